"""Join of Nsight Compute's counters with the kernels of a timeline, and their FLOPs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.enrich.classify.engine import canonical
from traceana.errors import InvalidInputError
from traceana.trace.ledger import Ledger

if TYPE_CHECKING:
    from traceana.trace import Trace

_SIZES: Final = [f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"]
ABSENT: Final = "measured launches without a kernel in the timeline"
UNMEASURED: Final = "kernels of measured names without a measurement"
OTHER_ORDER: Final = "measured launches in a different order than the timeline's kernels"


def with_counters(trace: Trace, counters: pl.DataFrame) -> Trace:
    """Return ``trace`` with ``counters`` of the same program, each with the row of its kernel.

    The n-th measured launch of a name, grid and block is joined to the n-th launched kernel of that
    name, grid and block. Names are compared by their :func:`signatures`, and without sizes if
    either side did not record all sizes. Launches without a kernel in the timeline keep a null
    ``activity``. The ledger counts as ``unmatched`` these launches, the kernels of measured names
    without a launch, and launches in a different order. Entries of an earlier join are replaced.

    Raises :class:`~traceana.errors.InvalidInputError` for a trace of several ranks.
    """
    ranks = trace.tables.activities["rank"].drop_nulls().unique().sort()
    if len(ranks) > 1:
        raise InvalidInputError(
            f"{trace.meta.source}: has {len(ranks)} ranks, and counters are of one process; give "
            "the trace of that rank"
        )
    measured = counters.drop("activity", strict=False)
    # `ncu --print-kernel-base function` prints the function name only.
    functions_only = not measured["name"].str.contains_any(["<", "("]).any()
    comparable = functions if functions_only else signatures
    names = comparable(trace.tables.names["name"])
    work = trace.tables.activities.with_row_index("activity").filter(pl.col("kind") == "kernel")
    launched = trace.tables.calls["start"].gather(work["call"]).alias("_launched")
    # In launch order; a kernel without a recorded launch is sorted by its start.
    kernels = (
        work.with_columns(launched, names.gather(work["name_id"]).alias("_name"))
        .sort(pl.coalesce("_launched", "start"), "start", maintain_order=True)
        .select("activity", "_name", *_SIZES)
    )
    measured = _one_row_per_launch(
        measured, comparable(measured["name"]), kernels["_name"]
    ).with_row_index("_row")
    compare_sizes = not any(
        frame[size].has_nulls() for frame in (measured, kernels) for size in _SIZES
    )
    keys = ["_name", *(_SIZES if compare_sizes else [])]
    kernels = (
        kernels.with_columns(pl.int_range(pl.len()).over(keys).alias("_nth"))
        .with_row_index("_order")
        .select("activity", "_order", *keys, "_nth")
    )
    launches = (
        measured.with_columns(comparable(measured["name"]).alias("_name"))
        .sort("launch", maintain_order=True)
        .with_columns(pl.int_range(pl.len()).over(keys).alias("_nth"))
    )
    with_kernels = launches.join(kernels, on=[*keys, "_nth"], how="left", maintain_order="left")
    joined = with_kernels.sort("_row").select(counters.columns)
    measured_kernels = kernels.filter(pl.col("_name").is_in(launches["_name"].unique().implode()))
    without_kernel = int(joined.filter(pl.col("activity").is_null())["launches"].fill_null(1).sum())
    matched = joined.height - joined["activity"].null_count()
    order = with_kernels["_order"].drop_nulls().cast(pl.Int64)
    ledger = Ledger()
    ledger.add("unmatched", without_kernel, table="counters", kept=True, detail=ABSENT)
    unmeasured = measured_kernels.height - matched
    ledger.add("unmatched", unmeasured, table="activities", kept=True, detail=UNMEASURED)
    ledger.add(
        "unmatched",
        int((order.diff() < 0).sum()) if joined["launches"].null_count() else 0,
        table="counters",
        kept=True,
        detail=OTHER_ORDER,
    )
    kept = trace.tables.ledger.filter(pl.col("reason") != "unmatched")
    return trace.with_tables(counters=joined, ledger=pl.concat([kept, ledger.frame()]))


def _one_row_per_launch(
    measured: pl.DataFrame, names: pl.Series, kernels: pl.Series
) -> pl.DataFrame:
    """Return ``measured`` with a row for each launch of rows that have the mean of several.

    ``names`` are the compared names of its rows, ``kernels`` the names of the timeline's kernels.
    Launches that the timeline does not have stay one row.
    """
    if measured["launches"].null_count() == measured.height:
        return measured
    counts = kernels.value_counts().rename({kernels.name: "_name", "count": "_ran"})
    with_count = (
        measured.with_columns(names.alias("_name"))
        .join(counts, on="_name", how="left", maintain_order="left")
        .with_columns(
            pl.min_horizontal("launches", pl.col("_ran").fill_null(0).cast(pl.Int64)).alias("_own")
        )
    )
    separate = pl.concat(
        [
            with_count.select(
                pl.all().repeat_by(pl.col("_own").fill_null(1)).explode()
            ).with_columns(pl.when(pl.col("launches").is_not_null()).then(1).alias("launches")),
            with_count.filter(pl.col("launches") > pl.col("_own")).with_columns(
                pl.col("launches") - pl.col("_own")
            ),
        ],
        how="vertical_relaxed",
    )
    return separate.filter(pl.col("name").is_not_null()).select(measured.columns)


_PARENTHESIS: Final = r"\([^()]*\)"
_DEEPEST: Final = 64
"""Levels of nested parentheses that are removed."""
_TEMPLATE: Final = r"<[^<>]*>"
_IDENTIFIER: Final = r"[A-Za-z_$][A-Za-z0-9_$]*"
_WORD: Final = rf"{_IDENTIFIER}(?:::)?|[0-9]+"
_NOISE: Final = r"^(?:const|volatile|void|operator|unnamed|lambda[0-9]*|T[0-9]+|.*::)$"


def signatures(names: pl.Series) -> pl.Series:
    """Return the part of each name that all profilers print alike.

    Nsight Compute prints ``void vectorized_elementwise_kernel<4, CUDAFunctor_add<float>, array<char
    *, 3>>(int, T2, T3)`` where CUPTI prints ``void at::native::vectorized_elementwise_kernel<4,
    at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int, ...)``: without namespaces
    (older versions with them), with the letters of template parameters for arguments, ``1`` for
    ``true``, and lambdas as ``[lambda(float) (instance 1)]`` where CUPTI has ``{lambda(float)#1}``.

    A signature is the words and numbers of the name and of its template arguments, separated by
    spaces. Kernels that differ only in the number or the type of a lambda have one signature.
    """
    distinct = names.unique()
    bare = (
        _removed(_PARENTHESIS, canonical(distinct))
        .str.replace_all(r"#[0-9]+", "")
        .str.replace_all(r"\b([0-9]+)[uUlL]+\b", "$1")
    )
    words = bare.str.extract_all(_WORD).list.eval(
        pl.element().filter(~pl.element().str.contains(_NOISE)).replace({"true": "1", "false": "0"})
    )
    signature = words.list.join(" ")
    return names.replace_strict(distinct, signature, return_dtype=pl.String)


def functions(names: pl.Series) -> pl.Series:
    """Return the function name of each kernel, without namespace, template and arguments."""
    distinct = names.unique()
    bare = _removed(_TEMPLATE, _removed(_PARENTHESIS, canonical(distinct)))
    function = bare.str.extract_all(_IDENTIFIER).list.last()
    return names.replace_strict(distinct, function, return_dtype=pl.String)


def _removed(pattern: str, texts: pl.Series) -> pl.Series:
    """Return ``texts`` without the matches of ``pattern``, removed repeatedly from inside out."""
    for _ in range(_DEEPEST):
        shorter = texts.str.replace_all(pattern, " ")
        if shorter.equals(texts):
            break
        texts = shorter
    return texts

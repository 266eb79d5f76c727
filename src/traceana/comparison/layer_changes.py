"""Changes inside matched layers: algorithm, bias, shape, memory format, precision."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

import msgspec
import numpy as np
import polars as pl

from traceana.comparison.diff_rows import PairedRun
from traceana.comparison.verdicts import Times

_PRODUCTS: Final = ("conv", "gemm")
_UNKNOWN: Final = ("unknown", "(unknown)")


class Change(msgspec.Struct, frozen=True):
    """One change: its ``kind`` (see ``docs/diff.md``), and its layer or subject.

    ``before`` and ``after`` are the values in baseline and candidate; ``layers`` is the number of
    pairs of layers that changed, ``layer_a`` and ``layer_b`` the pair whose time changed most.
    ``a`` and ``b`` are the time of the affected work in each step of either run (ns).
    """

    kind: str
    a: Times
    b: Times
    subject: str | None = None
    before: str | None = None
    after: str | None = None
    count_a: float | None = None
    count_b: float | None = None
    layers: int | None = None
    layer_a: str | None = None
    layer_b: str | None = None


def time_of(run: PairedRun, chosen: pl.Expr) -> Times:
    """Return the time of the ``chosen`` cells of ``run`` in each step (ns)."""
    rows = run.cells.filter(chosen)
    times = np.zeros(run.steps.count, dtype=np.int64)
    np.add.at(times, rows["step"].cast(pl.Int64).to_numpy(), rows["time_ns"].to_numpy())
    return times


def calls_of(run: PairedRun, chosen: pl.Expr) -> float:
    """Return the mean number of calls per step of the ``chosen`` cells of ``run``."""
    return int(run.cells.filter(chosen)["calls"].sum()) / run.steps.count


def algorithms(a: PairedRun, b: PairedRun, pairs: pl.DataFrame) -> Iterator[Change]:
    """Yield the convolutions whose main algorithm of a pass changed: one change per switch."""
    conv = (pl.col("category") == "conv") & ~pl.col("part").is_in(_UNKNOWN)
    main = [_main(run, conv, "pass", "part") for run in (a, b)]
    both = main[0].join(main[1], on=["pair", "pass"], suffix="_b", nulls_equal=True)
    switched = both.filter(pl.col("part") != pl.col("part_b")).sort("pass", "part", "part_b")
    keys = switched.select("pass", "part", "part_b").rows()
    rows = switched["pair"].to_list()
    for key, group in groupby(zip(keys, rows, strict=True), key=lambda entry: entry[0]):
        of = [row for _, row in group]
        direction, before, after = key
        chosen = (
            pl.col("pair").is_in(of)
            & (pl.col("category") == "conv")
            & (pl.col("pass").cast(pl.String).eq_missing(pl.lit(direction)))
        )
        yield _of_layers("algorithm", a, b, pairs, of, chosen, direction, before, after)


def biases(a: PairedRun, b: PairedRun, pairs: pl.DataFrame) -> Iterator[Change]:
    """Yield the convolutions and GEMMs whose bias is a separate kernel in one run only."""
    product = pl.col("category").is_in(_PRODUCTS)
    apart = pl.col("category") == "bias"
    own = [set(run.cells.filter(apart)["pair"].drop_nulls()) for run in (a, b)]
    products = [set(run.cells.filter(product)["pair"].drop_nulls()) for run in (a, b)]
    shared = products[0] & products[1]
    for kind, of in (
        ("bias_apart", (own[1] - own[0]) & shared),
        ("bias_fused", (own[0] - own[1]) & shared),
    ):
        if of:
            yield _of_layers(kind, a, b, pairs, sorted(of), pl.col("pair").is_in(of) & apart)


def shapes(a: PairedRun, b: PairedRun, pairs: pl.DataFrame) -> Iterator[Change]:
    """Yield the layers whose input or weight shape changed: one change per pair of shapes."""
    for kind in ("shape", "weight"):
        yield from _other(kind, a, b, pairs)


def memory_formats(a: PairedRun, b: PairedRun, pairs: pl.DataFrame) -> Iterator[Change]:
    """Yield the layers whose input changed its memory format: one change per pair of formats.

    Without recorded strides the format follows from the layer's kernels: the input of a convolution
    in NHWC is ``channels_last`` if no kernel of the layer transposes it, else ``contiguous``.
    """
    rows = pairs.with_row_index("pair")
    for column, run in (("a", a), ("b", b)):
        rows = rows.join(_formats_by_kernels(run), on="pair", how="left", maintain_order="left")
        known = pl.coalesce(f"memory_format_{column}", "format")
        rows = rows.with_columns(known.alias(f"memory_format_{column}")).drop("format")
    yield from _other("memory_format", a, b, rows.drop("pair"))


def _formats_by_kernels(run: PairedRun) -> pl.DataFrame:
    """Return ``pair`` and ``format`` where the names of convolution kernels imply the format."""
    name, conv = pl.col("name").str.to_lowercase(), pl.col("category") == "conv"
    turned = (pl.col("category") == "layout") & (pl.col("function") == "nchw_to_nhwc")
    last, first = ((conv & name.str.contains(one, literal=True)).any() for one in ("nhwc", "nchw"))
    format_ = (
        pl.when(last & first)
        .then(None)
        .when(last & ~turned.any())
        .then(pl.lit("channels_last"))
        .when(last | first)
        .then(pl.lit("contiguous"))
    )
    return (
        run.cells.filter(
            pl.col("pair").is_not_null()
            & (pl.col("role") == "layer")
            & ~pl.col("direction").is_in(["backward", "optimizer"]).fill_null(value=False)
        )
        .group_by("pair")
        .agg(format_.alias("format"))
        .drop_nulls()
    )


def _other(kind: str, a: PairedRun, b: PairedRun, pairs: pl.DataFrame) -> Iterator[Change]:
    """Yield the pairs whose columns ``kind`` differ: one change per pair of values."""
    columns = f"{kind}_a", f"{kind}_b"
    other = (
        pairs.with_row_index("pair")
        .filter(pl.col(columns[0]) != pl.col(columns[1]))
        .sort(*columns, "pair")
    )
    for (before, after), rows in other.group_by(*columns, maintain_order=True):
        of = rows["pair"].to_list()
        chosen = pl.col("pair").is_in(of)
        yield _of_layers(kind, a, b, pairs, of, chosen, None, str(before), str(after))


def precisions(a: PairedRun, b: PairedRun, pairs: pl.DataFrame) -> Iterator[Change]:
    """Yield the convolutions and GEMMs whose main precision or use of tensor cores changed."""
    product = pl.col("category").is_in(_PRODUCTS)
    changed: set[tuple[int, str]] = set()
    for kind, column in (("precision", "precision"), ("tensor_cores", "tensor_core")):
        known = product & pl.col(column).is_not_null()
        main = [_main(run, known, "category", column) for run in (a, b)]
        both = main[0].join(main[1], on=["pair", "category"], suffix="_b")
        other = both.filter(
            (pl.col(column) != pl.col(f"{column}_b"))
            & ~pl.Series(
                [r in changed for r in both.select("pair", "category").iter_rows()],
                dtype=pl.Boolean,
            )
        )
        changed |= set(other.select("pair", "category").iter_rows())
        keyed = other.with_columns(pl.col(column, f"{column}_b").cast(pl.String))
        for (category, before, after), rows in keyed.group_by(
            "category", column, f"{column}_b", maintain_order=True
        ):
            of = rows["pair"].to_list()
            chosen = pl.col("pair").is_in(of) & (pl.col("category") == category)
            yield _of_layers(kind, a, b, pairs, of, chosen, str(category), str(before), str(after))


def _main(run: PairedRun, chosen: pl.Expr, key: str, value: str) -> pl.DataFrame:
    """Return by pair and ``key`` the ``value`` with most of the chosen time."""
    return (
        run.cells.filter(chosen & pl.col("pair").is_not_null() & (pl.col("role") == "layer"))
        .with_columns(pl.col(key).cast(pl.String))
        .group_by("pair", key, value)
        .agg(pl.col("time_ns").sum())
        .sort("time_ns", value, descending=[True, False])
        .unique(["pair", key], keep="first", maintain_order=True)
        .select("pair", key, value)
        .sort("pair", key)
    )


def _of_layers(
    kind: str,
    a: PairedRun,
    b: PairedRun,
    pairs: pl.DataFrame,
    of: list[int],
    chosen: pl.Expr,
    subject: str | None = None,
    before: str | None = None,
    after: str | None = None,
) -> Change:
    most = _most(a, b, chosen)
    return Change(
        kind,
        time_of(a, chosen),
        time_of(b, chosen),
        subject,
        before,
        after,
        calls_of(a, chosen),
        calls_of(b, chosen),
        len(of),
        None if most is None else pairs["a"][most],
        None if most is None else pairs["b"][most],
    )


def _most(a: PairedRun, b: PairedRun, chosen: pl.Expr) -> int | None:
    """Return the pair whose chosen time changed most."""
    sums = [
        run.cells.filter(chosen).group_by("pair").agg(pl.col("time_ns").sum() / run.steps.count)
        for run in (a, b)
    ]
    both = sums[0].join(sums[1], on="pair", how="full", coalesce=True, suffix="_b").fill_null(0)
    apart = both.with_columns((pl.col("time_ns_b") - pl.col("time_ns")).abs().alias("_apart"))
    ordered = apart.sort("_apart", "pair", descending=[True, False])
    return int(ordered["pair"][0]) if ordered.height else None

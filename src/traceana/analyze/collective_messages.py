"""The message of each collective: its function, the bytes of a rank's input, the group size."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from traceana.files import UNDECODABLE
from traceana.flops.call import element_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceana.trace import Trace

_OF_BACKEND: Final = r"^(?:gloo|mpi|ucc):"
"""Operators of backends that perform a collective; their inputs are the rank's input. ``c10d::``
operators around them have outputs among their inputs, and untyped lists."""

_LAUNCHES: Final = r"^(?:nccl:|record_param_comms$|c10d::)"
"""PyTorch's operators around the launch of a collective's kernel, outermost last."""

_OUTPUT_FIRST: Final = r"^c10d::.*(?:_base_?|_tensor\w*)$"
"""Operators whose first input is the output tensor, the second the rank's input."""

_NAMES: Final = (
    ("reduce_scatter", r"(?i)reduce_?scatter"),
    ("all_reduce", r"(?i)all_?reduce"),
    ("all_gather", r"(?i)all_?gather"),
    ("all_to_all", r"(?i)all_?to_?all"),
    ("broadcast", r"(?i)broadcast|:bcast"),
    ("reduce", r"(?i)(?:^|:)_?reduce_?$"),
    ("gather", r"(?i)(?:^|:)gather_?$"),
    ("scatter", r"(?i)(?:^|:)scatter_?$"),
    ("send_recv", r"(?i)(?:^|:)(?:send|recv|batch_isend_irecv)\b|coalesced_send_recv"),
)

_JSON: Final = msgspec.json.Decoder()


def messages(collectives: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Return the message of each row of ``collectives``, activities of ``trace``.

    ``carries``
        Whether the row is the collective itself (a kernel or a backend's operator), not an
        operator that starts it.
    ``collective``
        ``all_reduce``, ``all_gather``, …: of a kernel from its recorded arguments, else from the
        annotation or the operators around its launch, else ``part``, from the kernel's name.
    ``sends``
        Whether a send or receive sends, by its recorded arguments; else null.
    ``bytes``
        The rank's input. Of a kernel from its recorded arguments (``bytes`` of the activity), else
        the input of the annotation or the operators around its launch; of a backend's operator its
        inputs, where shapes and types are recorded; else null.
    ``ranks``
        The group size: from the kernel's arguments, else from the operator's input and output,
        else the world size; null where the run has a smaller group and this one's is not recorded.
    """
    # Most traces are of one GPU: their operators and annotations need not be looked at.
    every_op, every_range = (
        table if collectives.height else table.clear() for table in (trace.ops, trace.ranges)
    )
    ops = every_op.select(
        pl.col("name").cast(pl.String),
        *("input_shapes", "input_types", "parent"),
        pl.int_range(pl.len(), dtype=pl.UInt32).alias("op"),
    )
    ranges = every_range.select(
        pl.col("text").cast(pl.String).alias("name"),
        *("input_shapes", "input_types"),
        pl.int_range(pl.len(), dtype=pl.UInt32).alias("range"),
    ).filter(pl.col("name").str.starts_with("nccl:"))
    is_kernel = pl.col("kind") == "kernel"
    of_backend = pl.col("name").str.contains(_OF_BACKEND).fill_null(value=False)
    known = _sized(ops, "op")
    annotated = ranges.select("range", _named(pl.col("name")).alias("annotated")).join(
        _sized(ranges, "range").select("range", pl.col("first_input").alias("annotated_bytes")),
        on="range",
        how="left",
    )
    joined = (
        collectives.select("kind", "bytes", "op", "range", "part", "collective", "group_size")
        .join(ops.select("op", "name"), on="op", how="left", maintain_order="left")
        .join(known.select("op", "all_inputs"), on="op", how="left", maintain_order="left")
        .join(_launches(ops, known), on="op", how="left", maintain_order="left")
        .join(annotated, on="range", how="left", maintain_order="left")
    )
    # The share of each kernel in the message of a launch with several kernels is not recorded.
    alone = pl.len().over("op", "range", "kind") == 1
    around = pl.when(alone).then(pl.coalesce("annotated_bytes", "message"))
    named = pl.coalesce(
        _named(pl.col("collective").cast(pl.String)), "annotated", "launched", "part"
    )
    named = pl.when(of_backend).then(pl.coalesce(_named(pl.col("name")), "part")).otherwise(named)
    group = pl.coalesce("group_size", pl.when(alone).then("group"))
    every = pl.lit(None if has_smaller_groups(trace) else trace.meta.world_size, pl.Int32)
    ranks = joined.select(
        pl.coalesce(group, pl.when((group == every).fill_null(value=True).all()).then(every))
    ).to_series()
    label = pl.col("collective").cast(pl.String)
    sends, receives = (label.str.contains(rf"(?i)^i?{word}$") for word in ("send", "recv"))
    return joined.select(
        pl.when(sends | receives).then(sends).alias("sends"),
        (is_kernel | of_backend).alias("carries"),
        pl.when(is_kernel | of_backend).then(named).otherwise("part").alias("collective"),
        pl.when(is_kernel)
        .then(pl.coalesce("bytes", around))
        .when(of_backend)
        .then("all_inputs")
        .alias("bytes"),
        ranks.cast(pl.Int32).alias("ranks"),
    )


def has_smaller_groups(trace: Trace) -> bool:
    """Return whether the run has a process group of several ranks, but not of all."""
    size, world = trace.process_groups["size"], trace.meta.world_size
    return world is not None and bool(((size > 1) & (size < world)).any())


def _launches(ops: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """Return by ``op`` the ``message`` (bytes), ``group`` and name (``launched``) of its launch.

    Each is from the operator, its only child, or its parent: the first of these that has it.
    """
    launching = ops.filter(pl.col("name").str.contains(_LAUNCHES)).join(known, on="op", how="left")
    launching = launching.with_columns(_named(pl.col("name")).alias("launched")).rename(
        {"first_input": "message"}
    )
    figures = ("message", "group", "launched")
    child = (
        launching.drop_nulls("parent")
        .filter(pl.len().over("parent") == 1)
        .select(pl.col("parent").alias("op"), *(pl.col(f).alias(f"child_{f}") for f in figures))
    )
    around = launching.select(
        pl.col("op").alias("parent"), *(pl.col(f).alias(f"around_{f}") for f in figures)
    )
    return (
        launching.join(child, on="op", how="left")
        .join(around, on="parent", how="left")
        .select(
            "op",
            *(pl.coalesce(f, f"child_{f}", f"around_{f}").alias(f) for f in figures),
        )
    )


def _named(column: pl.Expr) -> pl.Expr:
    """Return the collective that a name contains."""
    return pl.coalesce(
        *(pl.when(column.str.contains(pattern)).then(pl.lit(name)) for name, pattern in _NAMES)
    )


def _sized(rows: pl.DataFrame, key: str) -> pl.DataFrame:
    """Return by ``key`` the input sizes of operators or annotations, null where not recorded.

    ``all_inputs`` (bytes), ``first_input`` (bytes of the rank's input), ``group`` (number of ranks,
    by the sizes of input and output).
    """
    name = pl.col("name")
    wanted = rows.filter(name.str.contains(f"{_LAUNCHES}|{_OF_BACKEND}")).drop_nulls(
        ["input_shapes", "input_types"]
    )
    output_first = pl.when(name.str.contains(_OUTPUT_FIRST)).then(_named(name)).alias("base")
    is_base = name.str.contains(_OUTPUT_FIRST).alias("output_first")
    keys = ["output_first", "base", "input_shapes", "input_types"]
    wanted = wanted.select(key, is_base, output_first, "input_shapes", "input_types")
    distinct = wanted.select(keys).unique()
    sizes = [_sizes(*row) for row in distinct.iter_rows()]
    schema = {"all_inputs": pl.Int64, "first_input": pl.Int64, "group": pl.Int32}
    sized = distinct.hstack(pl.DataFrame(sizes, schema=schema, orient="row"))
    return wanted.join(sized, on=keys, nulls_equal=True).select(key, *schema)


def _sizes(
    output_first: bool, base: str | None, shapes: str, types: str
) -> tuple[int | None, int | None, int | None]:
    """Return the three figures of :func:`_sized` for tensors of ``shapes`` and ``types`` (JSON)."""
    try:
        extents, names = _JSON.decode(shapes), _JSON.decode(types)
    except UNDECODABLE:
        return None, None, None
    if not isinstance(extents, list) or not isinstance(names, list) or len(extents) != len(names):
        return None, None, None
    each = [_bytes(extent, name) for extent, name in zip(extents, names, strict=True)]
    known = [size for size in each if size is not None]
    every = sum(known) if len(known) == len(each) else None
    if not output_first:
        return every, each[0] if each else None, None
    output, given = (*each, None, None)[:2]
    pair = {"all_gather": (output, given), "reduce_scatter": (given, output)}.get(base or "")
    group = None
    if pair and pair[0] and pair[1] and pair[0] % pair[1] == 0:
        group = pair[0] // pair[1]
    return every, given, group


def _bytes(extent: Sequence[Any], name: str) -> int | None:
    size = element_size(name) if isinstance(name, str) else None
    if size is None or not isinstance(extent, list):
        return None
    return prod(extent) * size if all(isinstance(one, int) for one in extent) else None

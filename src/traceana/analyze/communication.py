"""Communication between ranks: the message of each collective, and its time by step and by size.

By step: time, exposed time (not overlapped with compute) and bytes, to judge how a run scales. By
message size: bandwidth as the NCCL tests define it.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from traceana.columns.intervals import COMPUTING, Busy, exposed
from traceana.files import UNDECODABLE
from traceana.flops.call import element_size
from traceana.result import Result, sums, with_share
from traceana.table import (
    BYTES,
    COUNT,
    FLAG,
    NUMBER,
    ONE_CALL,
    PART,
    RATE,
    SHARE,
    TIME,
    Column,
    aggregated,
    completed,
    conformed,
    laid_out,
    one_or_null,
    whole_sum,
)
from traceana.timeline.steps import device_windows, measured_steps, step_windows
from traceana.timeline.work import RANK, why_no_work, work
from traceana.trace import per_small_trace

if TYPE_CHECKING:
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
        table if collectives.height else table.clear()
        for table in (trace.tables.ops, trace.tables.ranges)
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
    sizes = _sized(ops, "op")
    annotated = ranges.select("range", _named(pl.col("name")).alias("annotated")).join(
        _sized(ranges, "range").select("range", pl.col("first_input").alias("annotated_bytes")),
        on="range",
        how="left",
    )
    joined = (
        collectives.select("kind", "bytes", "op", "range", "part", "collective", "group_size")
        .join(ops.select("op", "name"), on="op", how="left", maintain_order="left")
        .join(sizes.select("op", "all_inputs"), on="op", how="left", maintain_order="left")
        .join(_launches(ops, sizes), on="op", how="left", maintain_order="left")
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
    size, world = trace.tables.process_groups["size"], trace.meta.world_size
    return world is not None and bool(((size > 1) & (size < world)).any())


def _launches(ops: pl.DataFrame, sizes: pl.DataFrame) -> pl.DataFrame:
    """Return by ``op`` the ``message`` (bytes), ``group`` and name (``launched``) of its launch.

    Each is from the operator, its only child, or its parent: the first of these that has it.
    """
    launching = ops.filter(pl.col("name").str.contains(_LAUNCHES)).join(sizes, on="op", how="left")
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
    tensors: list[int | None] = []
    for extent, name in zip(extents, names, strict=True):
        size = element_size(name) if isinstance(name, str) else None
        whole = isinstance(extent, list) and all(isinstance(length, int) for length in extent)
        tensors.append(None if size is None or not whole else prod(extent) * size)
    sizes = [size for size in tensors if size is not None]
    every = sum(sizes) if len(sizes) == len(tensors) else None
    if not output_first:
        return every, tensors[0] if tensors else None, None
    output, given = (*tensors, None, None)[:2]
    pair = {"all_gather": (output, given), "reduce_scatter": (given, output)}.get(base or "")
    group = None
    if pair and pair[0] and pair[1] and pair[0] % pair[1] == 0:
        group = pair[0] // pair[1]
    return every, given, group


_REDUCTIONS: Final = ("all_reduce", "reduce_scatter", "reduce")

MESSAGE_KEYS: Final = ("collective", "message_bytes", "ranks")
"""Columns that identify a row of :func:`by_message`."""

_SHARED: Final = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
_ONCE: Final = ("broadcast", "reduce", "send_recv")

STEPS: Final = (
    Column("step", NUMBER, "number of the step"),
    RANK,
    Column("process", NUMBER, "the process that marked it"),
    Column("wall_ns", TIME, "the step's time"),
    Column("available_ns", TIME, "its time, times the devices that it used"),
    Column("collectives", COUNT, "activities of class `collective` that the step launched"),
    Column(
        "communication_ns",
        TIME,
        "the union of all collectives that ran in the step's window, from any step, summed over "
        "the devices that the step used. On a GPU they are kernels; on the CPU the operators that "
        "start them and the backend's operators that perform them, on its thread. Both include the "
        "time in which they wait for other ranks",
    ),
    Column(
        "exposed_ns",
        TIME,
        "the part of `communication_ns` not overlapped with other work of the device",
        zeros=True,
    ),
    Column(
        "exposed_share",
        SHARE,
        "its share of `available_ns`, at most 1",
        value=pl.when(pl.col("available_ns") > 0).then(
            pl.col("exposed_ns") / pl.col("available_ns")
        ),
    ),
    Column(
        "bytes",
        BYTES,
        "the rank's input to all collectives; null where the size of one is not recorded",
        scale="memory",
    ),
    Column(
        "reduced_bytes",
        BYTES,
        "the rank's input to reductions (all-reduce, reduce-scatter, reduce); null likewise. In "
        "data parallelism these are the bytes of the gradients, 4 per parameter in FP32; the bytes "
        "over a link depend on the algorithm (a ring: 2 (N - 1) / N times as many)",
    ),
    Column("warm_up", FLAG, "whether averages leave the step out"),
)
"""The columns of :func:`communication`."""
COLLECTIVE: Final = Column(
    "collective",
    PART,
    "`all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, `broadcast`, `reduce`, `gather`, "
    "`scatter`, `send_recv`: of the kernel's arguments, else of the annotation or operators around "
    "the launch, else of the kernel's name; null where none has it",
)
MESSAGE_BYTES: Final = Column(
    "message_bytes",
    BYTES,
    "size as in NCCL tests: the input of a rank, of an all-gather its output. Of the kernel's "
    "arguments (`In msg nelems`, `dtype`), else the recorded input around the launch; null where "
    "neither is recorded, or several kernels share one launch",
)


def communication(trace: Trace) -> Result:
    """Return one row per step of each rank, in order of rank and time, with the columns
    :data:`STEPS`.

    ``totals``: ``ranks``, the world size that the files record, else the number of ranks in the
    trace; the sums of ``collectives``, ``communication_ns`` and ``exposed_ns``.
    """
    collectives = with_messages(trace).filter(pl.col("step").is_not_null())
    size, reduces = pl.col("bytes"), pl.col("part").is_in(_REDUCTIONS)
    sizes = collectives.group_by("step").agg(
        pl.len().cast(pl.Int64).alias("collectives"),
        _whole_sum(size, pl.col("carries")).alias("bytes"),
        _whole_sum(
            pl.when(reduces.not_()).then(0).when(reduces).then(size), pl.col("carries")
        ).alias("reduced_bytes"),
    )
    measured = measured_steps(trace)
    frame = (
        step_windows(trace)
        .with_row_index("row")
        .with_columns((pl.col("end") - pl.col("start")).alias("wall_ns"))
        .join(sizes, left_on="row", right_on="step", how="left")
        .join(_in_windows(trace), left_on="row", right_on="step", how="left")
        .sort("rank", "host_start", "row", nulls_last=True)
        .with_columns(
            pl.col("collectives", "communication_ns", "exposed_ns").fill_null(0),
            (pl.col("wall_ns") * pl.col("devices").fill_null(1)).alias("available_ns"),
        )
        .with_columns(
            pl.when(pl.col("collectives") > 0).then(column).otherwise(0).alias(column)
            for column in ("bytes", "reduced_bytes")
        )
        .with_columns(
            pl.col("number").alias("step"),
            pl.coalesce("rank", pl.lit(trace.meta.rank, pl.Int32)),
            pl.col("row").is_in(measured.rows).not_().alias("warm_up"),
        )
    )
    frame = conformed(completed(frame, STEPS), STEPS)
    totals = {
        "ranks": trace.meta.world_size or max(1, frame["rank"].n_unique()),
        **sums(frame, "collectives", "communication_ns", "exposed_ns"),
    }
    notes = list(measured.notes)
    if trace.tables.activities.is_empty():
        notes.append(why_no_work(trace))
    elif frame.is_empty():
        notes.append("no steps: the trace has no step markers")
    elif collectives.is_empty():
        notes.append("no communication: no collectives in any step")
    return Result(frame, totals, tuple(notes), STEPS)


def by_message(trace: Trace) -> Result:
    """Return one row per collective, message size and number of ranks, most time first.

    The columns are :data:`MESSAGES`.
    """
    collectives = with_messages(trace).filter("carries")
    each = collectives.with_columns(message_size().alias("message_bytes"))
    compute = _computing(trace)
    frame = (
        with_share(aggregated(each, MESSAGE_KEYS, MESSAGES))
        .join(exposed(each, compute, MESSAGE_KEYS), on=MESSAGE_KEYS, how="left", nulls_equal=True)
        .sort("time_ns", *MESSAGE_KEYS, descending=[True, False, False, False], nulls_last=True)
    )
    frame = conformed(completed(frame, MESSAGES), MESSAGES)
    together = exposed(each, compute, ())["exposed_ns"].sum()
    totals = {**sums(frame, "count", "time_ns"), "exposed_ns": int(together)}
    if trace.tables.activities.is_empty():
        return Result(frame, totals, (why_no_work(trace),), MESSAGES)
    if frame.is_empty():
        return Result(frame, totals, ("no communication: no collectives",), MESSAGES)
    notes = ["time includes waiting for other ranks; algbw = size / time, busbw as in NCCL tests"]
    for column, without in (
        ("message_bytes", "message size not recorded: {:,} collectives"),
        ("ranks", "group size not recorded: {:,} collectives, no busbw"),
    ):
        if count := int(frame.filter(pl.col(column).is_null())["count"].sum()):
            notes.append(without.format(count))
    return Result(frame, totals, tuple(notes), MESSAGES)


def message_size() -> pl.Expr:
    """Return the message size as the NCCL tests define it, from the columns of
    :func:`with_messages`."""
    whole = pl.col("collective").eq_missing("all_gather")
    return pl.when(whole).then(pl.col("bytes") * pl.col("ranks")).otherwise("bytes")


def bus_factor(ranks: pl.Expr) -> pl.Expr:
    """Return bus over algorithm bandwidth of a ``collective`` of ``ranks`` ranks, as the NCCL tests
    define it; null unless the number is known and at least 2."""
    shared = (ranks - 1) / ranks
    return (
        pl.when(ranks < 2)
        .then(None)
        .when(pl.col("collective") == "all_reduce")
        .then(2 * shared)
        .when(pl.col("collective").is_in(_SHARED))
        .then(shared)
        .when(pl.col("collective").is_in(_ONCE) & ranks.is_not_null())
        .then(1.0)
    )


MESSAGES: Final = laid_out(
    (
        COLLECTIVE,
        MESSAGE_BYTES,
        Column(
            "ranks",
            COUNT,
            "group size: `Group size` of the kernel, else output over input of an all-gather or "
            "reduce-scatter, else the world size; null where it is not recorded, or groups of the "
            "run differ",
            type=pl.Int32,
        ),
        Column("count", COUNT, "number of collectives", pl.len(), title="calls", additive=True),
        Column(
            "time_ns",
            TIME,
            "summed durations, waiting for other ranks included",
            pl.col("duration").sum(),
            additive=True,
        ),
        Column(
            "mean_ns",
            TIME,
            "mean duration, rounded down",
            value=pl.col("time_ns") // pl.col("count"),
            scale=ONE_CALL,
        ),
        Column("share", SHARE, "of the time of all collectives", title="of collectives"),
        Column(
            "exposed_ns",
            TIME,
            "time in which a collective of the row ran and nothing but collectives on its device; "
            "overlapping collectives count once in their row, and once in the total",
            zeros=True,
            additive=True,
        ),
        Column(
            "algbw_bytes_per_s",
            RATE,
            "algorithm bandwidth: `message_bytes` times `count` over `time_ns`",
            value=pl.when(pl.col("time_ns") > 0).then(
                pl.col("message_bytes") * pl.col("count") * 1e9 / pl.col("time_ns")
            ),
            title="algbw",
        ),
        Column(
            "busbw_bytes_per_s",
            RATE,
            "bus bandwidth as in NCCL tests: that times 2 (n - 1) / n of an all-reduce, (n - 1) / "
            "n of an all-gather, reduce-scatter, all-to-all, gather and scatter, 1 of a broadcast, "
            "reduce and send-receive; null without `ranks`, or with one",
            value=pl.col("algbw_bytes_per_s") * bus_factor(pl.col("ranks")),
            title="busbw",
        ),
        Column(
            "part",
            PART,
            "the class of its kernel, from the kernel's name: `send_recv` of NCCL's all-to-all; "
            "null where it is not known, or kernels differ",
            one_or_null("part"),
        ),
        Column(
            "bytes",
            BYTES,
            "input bytes of a rank; null where one is not recorded",
            whole_sum("bytes"),
            scale="memory",
            additive=True,
        ),
    ),
    hidden="part bytes",
    dropped="share mean_ns ranks",
)
"""The columns of :func:`by_message`."""


def _in_windows(trace: Trace) -> pl.DataFrame:
    """Return ``communication_ns``, ``exposed_ns`` and ``devices`` of each ``step`` (row)."""
    windows = device_windows(trace)
    collectives = _of_collectives(trace.whole)
    compute = _computing(trace)
    both = compute.with_also(collectives)
    return (
        windows.with_columns(
            Busy.of(collectives).within(windows).alias("communication_ns"),
            (both.within(windows) - compute.within(windows)).alias("exposed_ns"),
        )
        .group_by("step")
        .agg(
            pl.col("communication_ns", "exposed_ns").sum(),
            pl.len().cast(pl.Int64).alias("devices"),
        )
    )


def _computing(trace: Trace) -> Busy:
    """Return when each device ran work other than collectives."""
    whole = trace.whole
    return Busy.of(
        work(whole, "rank", "device", "start", "duration", "kind", "category").filter(
            pl.col("kind").is_in(COMPUTING), pl.col("category").ne_missing("collective")
        )
    )


@per_small_trace
def with_messages(trace: Trace) -> pl.DataFrame:
    """Return the collectives of ``trace``: activities with their messages.

    Further columns: ``part`` (the function by the kernel's name), and those of
    :func:`~traceana.analyze.communication.messages`, which replace ``bytes`` and
    ``collective``.
    """
    collectives = _of_collectives(trace)
    return collectives.with_columns(messages(collectives, trace))


def _of_collectives(trace: Trace) -> pl.DataFrame:
    classes = work(trace, "category", "part")
    rows = work(trace).with_columns(classes["part"].cast(pl.String))
    return rows.filter(classes["category"] == "collective")


def _whole_sum(sizes: pl.Expr, carries: pl.Expr) -> pl.Expr:
    """Return the sum of the sizes of rows with ``carries``; null where a size is unknown."""
    is_complete = (carries & sizes.is_null()).any().not_() & carries.any()
    return pl.when(is_complete).then(sizes.filter(carries).sum())

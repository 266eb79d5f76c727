"""Memory of the devices: the allocator's events, the peak, and by layer, operator, line or step.

A memory snapshot of PyTorch has the allocator's blocks at its end too: what they hold and the
history did not allocate was live all the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from traceana.columns.distinct import thread_numbers
from traceana.columns.intervals import PER_DEVICE
from traceana.columns.nesting import NONE, Nesting, from_rows, take, to_rows
from traceana.result import Result, sums
from traceana.settings import FEWEST_GROWING
from traceana.table import (
    BYTES,
    COUNT,
    LINE,
    LONG,
    MOMENT,
    NUMBER,
    PART,
    PARTS,
    PATH,
    SHARE,
    TEXT,
    Column,
    Columns,
    aggregated,
    completed,
    conformed,
    laid_out,
)
from traceana.timeline.steps import measured_steps, name_of
from traceana.timeline.work import DEVICE_COLUMNS, has_frames
from traceana.trace import per_small_trace
from traceana.trace.schema import LABEL
from traceana.trace.work import NO_LINE, OUTSIDE, frame_labels, layer_labels
from traceana.vocabulary.option_words import MemoryBy

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from traceana.trace import Trace

NO_OPERATOR: Final = "(no operator)"
NO_STACK: Final = "(no stack recorded)"
EARLIER: Final = "(allocated before capture)"
"""The layer and operator of memory without an allocation in the trace."""

NO_ADDRESSES: Final = "(no addresses recorded)"
"""The layer and operator of all memory of a device whose events have no addresses."""

_SIZE: Final = pl.col("bytes")
_MEMORY: Final = "memory"
_NO_LAYER: Final = (
    f"`{EARLIER}` for memory without an allocation in the trace, `{NO_ADDRESSES}` for all memory "
    "where allocations and frees cannot be matched"
)
_ALLOCATIONS: Final = Column("allocations", COUNT, "number of allocations", (_SIZE > 0).sum())
_LARGEST: Final = Column(
    "largest_bytes", BYTES, "the largest allocation", _SIZE.filter(_SIZE > 0).max(), scale=_MEMORY
)
DEVICES: Final = laid_out(
    (
        *DEVICE_COLUMNS,
        _ALLOCATIONS,
        Column(
            "peak_bytes",
            BYTES,
            "the most that was allocated at once, by the allocator's own figure; where that is not "
            "recorded, counted from the start of the capture (`notes`). Of a snapshot, requested "
            "bytes, and null without a history",
            scale=_MEMORY,
        ),
        Column(
            "at_ns",
            MOMENT,
            "time of the allocation that reached it",
            title="time since first event",
        ),
        Column("step", NUMBER, "number of its step"),
        Column("layer", PATH, "its layer"),
        Column("operator", LONG, "its operator"),
        Column("line", LINE, "its line of the program"),
        Column(
            "reserved_bytes",
            BYTES,
            "the most that the allocator reserved; null where not recorded",
            pl.col("reserved").max(),
            scale=_MEMORY,
        ),
        _LARGEST,
        Column(
            "end_bytes",
            BYTES,
            "allocated after the last event",
            pl.col("allocated").last(),
            scale=_MEMORY,
        ),
        Column(
            "growth_bytes",
            BYTES,
            "median over the measured steps of the growth since the end of the step before",
            signed=True,
        ),
    ),
    dropped="allocations end_bytes largest_bytes line operator reserved_bytes",
)
HOLDERS: Final[dict[MemoryBy, Column]] = {
    "layer": Column("layer", PATH, f"layer of the allocations; {_NO_LAYER}"),
    "operator": Column("operator", LONG, "operator of the allocations, likewise"),
    "line": Column("line", LINE, "line of the program that made them, likewise"),
    "stack": Column(
        "stack", LONG, "lines of the program that called it, outermost first, and its own, likewise"
    ),
}
AT_PEAK: Final = (
    Column(
        "count",
        COUNT,
        "number of its allocations that were live at the device's peak; of a snapshot without a "
        "history, at its time",
        pl.len(),
        title="allocations",
    ),
    Column("bytes", BYTES, "their bytes", _SIZE.sum(), scale=_MEMORY),
    Column(
        "share",
        SHARE,
        "of the device's peak",
        value=_SIZE / _SIZE.sum().over(PER_DEVICE),
        title="of peak memory",
    ),
    _LARGEST,
)
STEPS: Final = (
    *DEVICE_COLUMNS,
    Column("step", NUMBER, "number of the step"),
    _ALLOCATIONS,
    Column(
        "peak_bytes",
        BYTES,
        "the most that was allocated during the step, its start included",
        scale=_MEMORY,
    ),
    Column("end_bytes", BYTES, "allocated at its end", scale=_MEMORY),
    Column(
        "growth_bytes",
        BYTES,
        "growth since the end of the step before; null for the first",
        signed=True,
    ),
)
SLICES: Final = laid_out(
    (
        *DEVICE_COLUMNS,
        Column("start_ns", MOMENT, "start of the slice", title="start (since first event)"),
        Column("allocated_bytes", BYTES, "the most in the slice, start included", scale=_MEMORY),
        Column("reserved_bytes", BYTES, "the same of reserved memory", scale=_MEMORY),
    ),
    bars="allocated_bytes",
)
CONVOLUTIONS: Final = laid_out(
    (
        *DEVICE_COLUMNS,
        Column("layer", PATH, "layer of the convolution"),
        Column("operator", LONG, "operator that launched it"),
        Column("direction", PART, "`fprop`, `dgrad`, `wgrad`", title="pass"),
        Column("algorithm", PARTS, "its algorithm"),
        Column("calls", COUNT, "number of calls with a workspace", pl.len()),
        Column("workspace_bytes", BYTES, "the most that one held at once", _SIZE.max()),
    ),
    dropped="operator calls direction",
)
_IS_INACTIVE: Final = pl.col("state") == "inactive"


def _bytes_in_state(state: str) -> pl.Expr:
    return _SIZE.filter(pl.col("state") == state).sum()


POOLS: Final = laid_out(
    (
        *DEVICE_COLUMNS,
        Column("pool", TEXT, "memory pool; `0.0` is the default one"),
        Column("stream", NUMBER, "stream of its segments, as the allocator identifies it"),
        Column("segment_type", TEXT, "`small` or `large` allocations", title="type"),
        Column("segments", COUNT, "number of segments", pl.col("segment").n_unique()),
        Column("reserved_bytes", BYTES, "size of the segments", _SIZE.sum(), scale=_MEMORY),
        Column(
            "allocated_bytes",
            BYTES,
            "allocated blocks, with what the allocator rounds up",
            _bytes_in_state("active_allocated"),
            scale=_MEMORY,
        ),
        Column(
            "requested_bytes",
            BYTES,
            "what the program requested of them",
            pl.col("requested_bytes").sum(),
            scale=_MEMORY,
        ),
        Column(
            "pending_bytes",
            BYTES,
            "freed blocks that another stream still uses",
            _bytes_in_state("active_pending_free"),
            scale=_MEMORY,
        ),
        Column(
            "inactive_bytes",
            BYTES,
            "free blocks",
            _bytes_in_state("inactive"),
            scale=_MEMORY,
        ),
        Column(
            "inactive_split_bytes",
            BYTES,
            "free blocks of segments with other blocks, which `empty_cache()` cannot return to the "
            "device; none of expandable segments",
            _SIZE.filter(_IS_INACTIVE & pl.col("is_split")).sum(),
            scale=_MEMORY,
        ),
        Column(
            "largest_free_bytes",
            BYTES,
            "the largest free block: a larger allocation needs a new segment",
            _SIZE.filter(_IS_INACTIVE).max(),
            title="largest free block",
            scale=_MEMORY,
        ),
    ),
    dropped="pending_bytes requested_bytes segment_type stream",
)
COLUMNS: Final[dict[MemoryBy, Columns]] = {
    "device": DEVICES,
    **{by: (*DEVICE_COLUMNS, holder, *AT_PEAK) for by, holder in HOLDERS.items()},
    "step": STEPS,
    "time": SLICES,
    "convolution": CONVOLUTIONS,
    "pool": POOLS,
}
"""The columns of :func:`memory` by ``by``."""


def events(trace: Trace) -> pl.DataFrame:
    """Return the allocations and frees of ``trace`` on the selected devices and ranks, by time.

    Events of the same time stay in the file's order. Columns: ``event`` (counted over all),
    ``rank``, ``device`` (null where not recorded), ``time``, ``address``, ``bytes`` (negative:
    freed), ``allocated`` (total after the event: the allocator's own figure, else the sum of the
    events since the capture began), ``counted`` (whether it is such a sum), ``reserved`` (null
    where not recorded), ``op`` (row of the innermost operator on the thread at that time),
    ``layer`` and ``frame`` (rows of ``layers`` and ``frames``).
    """
    return _events(trace.whole, *_selected(trace))


def _selected(trace: Trace) -> list[Collection[int] | None]:
    """Return the numbers of the selected devices and ranks; None selects all."""
    return [trace.meta.properties.get(key) for key in ("selected_devices", "selected_ranks")]


def _select_rows(
    frame: pl.DataFrame, devices: Collection[int] | None, ranks: Collection[int] | None
) -> pl.DataFrame:
    """Return the rows of ``frame`` on these devices and ranks."""
    for wanted, column in ((devices, "device"), (ranks, "rank")):
        if wanted is not None and not (column == "rank" and frame["rank"].null_count()):
            frame = frame.filter(pl.col(column).is_in(wanted))
    return frame


@per_small_trace
def _events(
    trace: Trace, devices: Collection[int] | None, ranks: Collection[int] | None
) -> pl.DataFrame:
    # Other events are of segments, and allocations that failed.
    memory = _select_rows(trace.tables.memory, devices, ranks).filter(_SIZE.is_not_null())
    op_key, event_key = thread_numbers(trace.tables.ops, memory)
    ops = Nesting.of(
        op_key, trace.tables.ops["start"].to_numpy(), trace.tables.ops["duration"].to_numpy()
    )
    op = to_rows(ops.innermost(event_key, memory["time"].to_numpy()))
    unknown = pl.col("allocated").is_null().any().over(PER_DEVICE)
    reserved = pl.col("reserved")
    return (
        memory.with_columns(
            op.alias("op"),
            trace.tables.ops["layer"].gather(op).alias("layer"),
            _frames(trace, memory, op).alias("frame"),
        )
        .sort("time", maintain_order=True)
        .with_row_index("event")
        .with_columns(unknown.alias("counted"))
        .with_columns(
            pl.when("counted")
            .then(pl.col("bytes").cum_sum().over(PER_DEVICE))
            .otherwise("allocated")
            .alias("allocated"),
            # An allocator that does not report reserved memory writes 0 throughout.
            pl.when((reserved > 0).any().over(PER_DEVICE)).then(reserved).alias("reserved"),
        )
        .select(
            "event", *PER_DEVICE, "time", "address", "bytes", "allocated", "counted", "reserved",
            "op", "layer", "frame",
        )
    )  # fmt: skip


def _frames(trace: Trace, memory: pl.DataFrame, op: pl.Series) -> pl.Series:
    """Return the row in ``frames`` of each event within the operators ``op``: the allocator's own,
    else the operator's, else the one on its thread."""
    frame = memory["frame"].zip_with(
        memory["frame"].is_not_null(), trace.tables.ops["frame"].gather(op)
    )
    if not has_frames(trace) or not frame.null_count():
        return frame
    # Few recordings have frames.
    from traceana.timeline.source_frames import frames_at

    on_thread = to_rows(frames_at(trace, memory, memory["time"].to_numpy()))
    return frame.zip_with(frame.is_not_null(), on_thread)


def allocations(events: pl.DataFrame) -> pl.DataFrame:
    """Return one row per allocation of :func:`events`, with the free of its address.

    Columns: ``rank``, ``device``, ``event``, ``time``, ``bytes``, ``op``, ``layer``, ``frame``, and
    ``freed_event`` and ``freed_time`` of the next event of the address; null if not freed during
    the capture. Events without an address cannot be matched and are left out.
    """
    each = [*PER_DEVICE, "address"]
    return (
        events.filter(pl.col("address").is_not_null())
        .with_columns(
            pl.col("event").shift(-1).over(each).alias("freed_event"),
            pl.col("time").shift(-1).over(each).alias("freed_time"),
        )
        .filter(pl.col("bytes") > 0)
        .select(
            *(*PER_DEVICE, "event", "time", "bytes", "op", "layer", "frame"),
            *("freed_event", "freed_time"),
        )
    )


def blocks(trace: Trace) -> pl.DataFrame:
    """Return the blocks of a snapshot on the selected devices and ranks.

    The columns are those of the table ``memory_blocks``, and ``is_split``: whether the block's
    segment has others and cannot be unmapped in parts.
    """
    segment = (*PER_DEVICE, "segment")
    return _select_rows(trace.tables.memory_blocks, *_selected(trace)).with_columns(
        (pl.col("expandable").fill_null(value=False).not_() & (pl.len().over(segment) > 1)).alias(
            "is_split"
        )
    )


def live_blocks(trace: Trace) -> pl.DataFrame:
    """Return the allocated blocks of a snapshot, with their holders: rows as of :func:`alive`, and
    ``address``.

    Their ``bytes`` are those that the program requested, as of the events.
    """
    live = blocks(trace).filter(pl.col("state") == "active_allocated")
    unknown = pl.Series([None] * live.height, dtype=pl.UInt32)
    return _with_holders(
        trace,
        live.select(
            *PER_DEVICE,
            "address",
            *(pl.Series(name, unknown) for name in ("layer", "op")),
            "frame",
            pl.coalesce("requested_bytes", "bytes").alias("bytes"),
        ),
    )


def within_steps(trace: Trace, events: pl.DataFrame) -> pl.DataFrame:
    """Return the events of the selected steps; all without a selection."""
    if "selected_steps" not in trace.meta.properties:
        return events
    return in_steps(trace, events).filter(pl.col("step_row").is_not_null()).drop("step_row")


def in_steps(trace: Trace, events: pl.DataFrame) -> pl.DataFrame:
    """Return ``events`` with ``step_row``, the step of their rank at that time, or null."""
    steps = trace.tables.steps.with_row_index("step_row").select(
        "step_row", "rank", "start", (pl.col("start") + pl.col("duration")).alias("until")
    )
    # Ranks may be null, which a join by groups does not match.
    number = pl.col("rank").cast(pl.Int64).fill_null(-1).alias("of_rank")
    return (
        # The order is restored afterwards: peaks of devices are in the order of the devices.
        events.with_row_index("of_event")
        .with_columns(number)
        .sort("time", maintain_order=True)
        .join_asof(
            steps.with_columns(number).drop("rank").sort("start", "step_row"),
            left_on="time",
            right_on="start",
            by="of_rank",
            strategy="backward",
            check_sortedness=False,
        )
        .with_columns(pl.when(pl.col("time") < pl.col("until")).then("step_row").alias("step_row"))
        .sort("of_event")
        .drop("of_event", "of_rank", "until", "start")
    )


def peaks(events: pl.DataFrame) -> pl.DataFrame:
    """Return the event of each device with the most allocated memory; the first of equal ones."""
    return (
        events.sort("allocated", descending=True, maintain_order=True)
        .unique(PER_DEVICE, keep="first", maintain_order=True)
        .sort(PER_DEVICE, nulls_last=True)
    )


def alive(trace: Trace, events: pl.DataFrame, at: pl.DataFrame) -> pl.DataFrame:
    """Return the allocations that were live at the peaks ``at`` of the devices, largest first.

    ``events`` are all of the capture. Columns: ``rank``, ``device``, ``layer``, ``operator``,
    ``line``, ``stack``, ``bytes``. A further row per device is the memory allocated before the
    capture, so that the rows add up to the peak; it is missing where the events exceed the
    allocator's own total. What a snapshot still holds of that memory has rows of its own.
    """
    peak_of = at.select(
        *PER_DEVICE,
        pl.col("event").alias("peak"),
        "allocated",
        pl.max_horizontal(
            pl.when(pl.col("time") >= start).then(start) for start in _window_starts(trace)
        ).alias("window_start"),
    )
    live = (
        allocations(events)
        .join(peak_of, on=PER_DEVICE, how="inner", nulls_equal=True, maintain_order="left")
        .filter(
            (pl.col("event") <= pl.col("peak"))
            # What an earlier window allocated may have been freed between the windows.
            & (pl.col("time") >= pl.col("window_start"))
            & (pl.col("freed_event").is_null() | (pl.col("freed_event") > pl.col("peak")))
        )
    )
    live = _with_holders(trace, live)
    if trace.tables.memory_blocks.height:
        left = events.group_by(*PER_DEVICE, "address").agg(pl.col("bytes").last() > 0)
        held = live_blocks(trace).join(
            left.filter("bytes"), on=(*PER_DEVICE, "address"), how="anti", nulls_equal=True
        )
        # A device without a history has no peak.
        held = held.join(peak_of.select(PER_DEVICE), on=PER_DEVICE, how="semi", nulls_equal=True)
        live = pl.concat([live, held.select(live.columns)])
    live_bytes = live.group_by(PER_DEVICE).agg(pl.col("bytes").sum().alias("known"))
    addresses = events.group_by(PER_DEVICE).agg(
        pl.col("address").is_not_null().any().alias("addressed")
    )
    holder = pl.when("addressed").then(pl.lit(EARLIER)).otherwise(pl.lit(NO_ADDRESSES))
    earlier = (
        peak_of.join(live_bytes, on=PER_DEVICE, how="left", nulls_equal=True)
        .join(addresses, on=PER_DEVICE, how="left", nulls_equal=True)
        .select(
            *PER_DEVICE,
            *(holder.alias(name) for name in HOLDERS),
            (pl.col("allocated") - pl.col("known").fill_null(0)).alias("bytes"),
        )
        .filter(pl.col("bytes") > 0)
    )
    return pl.concat([live, earlier]).sort(
        *PER_DEVICE, "bytes", descending=[False, False, True], nulls_last=True, maintain_order=True
    )


def _with_holders(trace: Trace, live: pl.DataFrame) -> pl.DataFrame:
    """Return device, :data:`HOLDERS` and bytes of allocations, and their address if they have it.

    ``live`` has rows of tables: ``layer``, ``op``, ``frame``.
    """
    return live.select(
        *PER_DEVICE,
        *(["address"] if "address" in live.columns else []),
        layer_names(trace, live["layer"]),
        operator_names(trace, live["op"]),
        line_names(trace, live["frame"]),
        stack_names(trace, live["frame"]),
        "bytes",
    )


def _window_starts(trace: Trace) -> list[int]:
    """Return the time of the first event of the allocator in each window of the recording."""
    whole = trace.whole
    times = whole.tables.memory["time"]
    recorded = (whole.recorded or whole).tables.memory["time"]
    windows = whole.meta.properties.get("windows") or {"": times.min()}
    starts = (times.filter(recorded >= start).min() for start in {*windows.values()})
    return [start for start in starts if isinstance(start, int)]


def layer_names(trace: Trace, rows: pl.Series) -> pl.Series:
    """Return the names of the layers of these rows."""
    paths = layer_labels(trace.tables)["layer_path"].cast(pl.String)
    return paths.gather(rows).fill_null(OUTSIDE).alias("layer")


def operator_names(trace: Trace, rows: pl.Series) -> pl.Series:
    """Return the names of the operators of these rows."""
    names = trace.tables.ops["name"].gather(rows).cast(pl.String)
    return names.fill_null(NO_OPERATOR).alias("operator")


def line_names(trace: Trace, rows: pl.Series) -> pl.Series:
    """Return the lines of these rows of ``frames``, with their texts."""
    names = frame_labels(trace.tables)["line_text"].gather(rows).cast(pl.String)
    return names.fill_null(NO_LINE).alias("line")


def stack_names(trace: Trace, rows: pl.Series) -> pl.Series:
    """Return the lines of the program on the stacks of these rows of ``frames``."""
    names = frame_labels(trace.tables)["stack"].gather(rows).cast(pl.String)
    return names.fill_null(NO_STACK).alias("stack")


_MOST_FAILED: Final = 3
"""Failed allocations that are listed."""
_SLICES: Final = 40
"""Slices of ``--by time``."""

NO_EVENTS: Final = (
    "no allocator events: record with torch.profiler.profile(profile_memory=True), or with the "
    "profiler of TensorFlow or JAX (.xplane.pb)"
)
NO_HISTORY: Final = (
    "no history of allocations in the snapshot, so no peak: call "
    "torch.cuda.memory._record_memory_history() before the program allocates"
)
NO_BLOCKS: Final = (
    "no blocks of an allocator: write a snapshot with torch.cuda.memory._dump_snapshot()"
)
NO_EVENTS_OF_XLA: Final = (
    "no allocator events: on a CPU this profiler records those of TensorFlow's operators, "
    "not of XLA's programs"
)


def no_events(trace: Trace) -> str:
    """Return why ``trace`` has no allocator events, and what records them."""
    if trace.tables.memory_blocks.height:
        return NO_HISTORY
    if trace.meta.format == "nsys":
        return NO_EVENTS.replace("no allocator events", "memory events of nsys not supported")
    if trace.meta.format == "xplane" and trace.on_cpu:
        return NO_EVENTS_OF_XLA
    return NO_EVENTS


def memory(trace: Trace, by: MemoryBy = "device") -> Result:
    """Return the allocated memory of each device by ``by``, with the columns :data:`COLUMNS`.

    For selected steps the peaks are those during the steps. By layer, operator, line and stack the
    rows of a device add up to its peak, or without a history to what a snapshot has allocated;
    several devices have no total. Without allocator events there are no rows, with the columns
    ``rank`` and ``device`` alone.
    """
    if by == "pool":
        return _by_pool(trace)
    every = events(trace)
    selected = within_steps(trace, every)
    if selected.is_empty() and by in ("device", *HOLDERS) and trace.tables.memory_blocks.height:
        return _without_history(trace, by)
    if selected.is_empty():
        why = (
            "no allocator events in the selection"
            if trace.tables.memory.height
            else no_events(trace)
        )
        return Result(conformed(selected, DEVICE_COLUMNS), {}, (why,), DEVICE_COLUMNS)
    totals: tuple[str, ...] = ()
    match by:
        case "device":
            frame = _by_device(trace, every, selected)
        case "step":
            frame = _by_step(trace, every)
        case "time":
            frame = _by_time(selected)
        case "convolution":
            frame = _by_convolution(trace, selected)
        case _:
            frame = _by_holder(alive(trace, every, peaks(selected)), by)
            # The peaks of devices are at different times, and of different memories.
            if frame.select(PER_DEVICE).unique().height == 1:
                totals = ("count", "bytes")
    frame = conformed(completed(frame, COLUMNS[by]), COLUMNS[by])
    return Result(frame, sums(frame, *totals), _notes(trace, every, frame, by), COLUMNS[by])


def _by_holder(live: pl.DataFrame, by: MemoryBy) -> pl.DataFrame:
    """Return the sums of the rows of :func:`alive`, the largest first."""
    return aggregated(live, (*PER_DEVICE, by), AT_PEAK).sort(
        *PER_DEVICE, "bytes", by, descending=[False, False, True, False], nulls_last=True
    )


def _without_history(trace: Trace, by: MemoryBy) -> Result:
    """Return what is allocated at the time of a snapshot without a history."""
    live = live_blocks(trace)
    if by == "device":
        allocated = live.group_by(PER_DEVICE).agg(_SIZE.sum().alias("end_bytes"))
        reserved = blocks(trace).group_by(PER_DEVICE).agg(_SIZE.sum().alias("reserved_bytes"))
        frame = reserved.join(allocated, on=PER_DEVICE, how="left", nulls_equal=True).sort(
            PER_DEVICE, nulls_last=True
        )
    else:
        frame = _by_holder(live, by)
    frame = conformed(completed(frame, COLUMNS[by]), COLUMNS[by])
    several = frame.select(PER_DEVICE).unique().height > 1
    totals = () if by == "device" or several else ("count", "bytes")
    return Result(frame, sums(frame, *totals), (NO_HISTORY,), COLUMNS[by])


def _by_pool(trace: Trace) -> Result:
    """Return the segments and free blocks of each pool, stream and type of segment."""
    keys = (*PER_DEVICE, "pool", "stream", "segment_type")
    frame = aggregated(blocks(trace).with_columns(pl.col(LABEL).cast(pl.String)), keys, POOLS).sort(
        *PER_DEVICE, "reserved_bytes", *keys[2:], descending=[False, False, True, *[False] * 3],
        nulls_last=True,
    )  # fmt: skip
    summed = [column.name for column in POOLS if column.kind in (COUNT, BYTES)][:-1]
    notes = () if frame.height else (NO_BLOCKS,)
    frame = conformed(frame, POOLS)
    return Result(frame, sums(frame, *summed), notes, POOLS)


def _by_device(trace: Trace, every: pl.DataFrame, selected: pl.DataFrame) -> pl.DataFrame:
    figures = aggregated(selected, PER_DEVICE, DEVICES)
    at = in_steps(trace, peaks(selected))
    growth = _growth(trace, every)
    # Columns without a value are not shown.
    named = [line_names(trace, at["frame"])] if has_frames(trace) else []
    if not trace.is_snapshot:
        named += [layer_names(trace, at["layer"]), operator_names(trace, at["op"])]
    return (
        at.select(
            *PER_DEVICE,
            pl.col("allocated").alias("peak_bytes"),
            pl.col("time").alias("at_ns"),
            trace.tables.steps["number"].gather(at["step_row"]).alias("step"),
            *named,
        )
        .join(figures, on=PER_DEVICE, how="left", nulls_equal=True, maintain_order="left")
        .join(growth, on=PER_DEVICE, how="left", nulls_equal=True, maintain_order="left")
    )


def _growth(trace: Trace, every: pl.DataFrame) -> pl.DataFrame:
    """Return the growth per measured step of each device, and the number of steps with growth."""
    grown = pl.col("growth_bytes")
    return (
        _by_step(trace, every)
        .filter(pl.col("step_row").is_in(measured_steps(trace).rows) & grown.is_not_null())
        .group_by(PER_DEVICE)
        .agg(
            grown.median().floor().cast(pl.Int64),
            (grown > 0).sum().alias("growing"),
            pl.len().alias("steps"),
        )
    )


def _by_step(trace: Trace, events: pl.DataFrame) -> pl.DataFrame:
    """Return one row per device and step of its rank, with :data:`STEPS` and ``step_row``.

    A device has no rows of steps before its first event.
    """
    number = pl.col("rank").cast(pl.Int64).fill_null(-1).alias("of_rank")
    steps = (
        trace.tables.steps.with_row_index("step_row")
        .with_columns(number, (pl.col("start") + pl.col("duration")).alias("until"))
        .select("step_row", pl.col("number").alias("step"), "of_rank", "start", "until")
    )
    parts = []
    for rows in events.partition_by(PER_DEVICE, maintain_order=True):
        rank = rows.select(number).item(0, 0)
        steps_of_rank = steps.filter(pl.col("of_rank") == rank).sort("start")
        during = (
            in_steps(trace, rows)
            .group_by("step_row")
            .agg(
                pl.col("allocated").max().alias("most"),
                (pl.col("bytes") > 0).sum().cast(pl.Int64).alias("allocations"),
            )
        )
        at_start, at_end = (
            _at(rows["time"], rows["allocated"], steps_of_rank[edge]) for edge in ("start", "until")
        )
        parts.append(
            steps_of_rank.with_columns(at_start.alias("start_bytes"), at_end.alias("end_bytes"))
            .join(during, on="step_row", how="left", maintain_order="left")
            .select(
                pl.lit(rows["rank"][0], pl.Int32).alias("rank"),
                pl.lit(rows["device"][0], pl.Int32).alias("device"),
                "step",
                "step_row",
                pl.col("allocations").fill_null(0),
                pl.max_horizontal("start_bytes", "most").alias("peak_bytes"),
                "end_bytes",
                (pl.col("end_bytes") - pl.col("end_bytes").shift(1)).alias("growth_bytes"),
            )
            .filter(pl.col("end_bytes").is_not_null())
        )
    return pl.concat(parts).sort("step_row", *PER_DEVICE, nulls_last=True, maintain_order=True)


def _by_time(events: pl.DataFrame) -> pl.DataFrame:
    """Return the time of each device's events in 40 equal slices, or per nanosecond if shorter."""
    parts = []
    for rows in events.partition_by(PER_DEVICE, maintain_order=True):
        time = rows["time"].to_numpy()
        first, span = int(time[0]), int(time[-1] - time[0]) + 1
        slices = min(_SLICES, span)
        starts = first + np.arange(slices) * span // slices
        of = pl.Series("slice", np.searchsorted(starts, time, side="right") - 1)
        most = rows.group_by(of).agg(pl.col("allocated", "reserved").max())
        frame = pl.DataFrame({"slice": np.arange(slices), "start_ns": starts})
        frame = frame.join(most, on="slice", how="left", maintain_order="left")
        at_start = [
            _at(rows["time"], rows[column], frame["start_ns"]).alias(f"{column}_at_start")
            for column in ("allocated", "reserved")
        ]
        parts.append(
            frame.with_columns(at_start).select(
                pl.lit(rows["rank"][0], pl.Int32).alias("rank"),
                pl.lit(rows["device"][0], pl.Int32).alias("device"),
                "start_ns",
                pl.max_horizontal("allocated", "allocated_at_start").alias("allocated_bytes"),
                pl.max_horizontal("reserved", "reserved_at_start").alias("reserved_bytes"),
            )
        )
    return pl.concat(parts).sort(PER_DEVICE, nulls_last=True, maintain_order=True)


def _at(times: pl.Series, values: pl.Series, wanted: pl.Series) -> pl.Series:
    """Return the value after the last event before each wanted time; null before the first."""
    last = np.searchsorted(times.to_numpy(), wanted.to_numpy(), side="left") - 1
    return values.gather(to_rows(last.astype(np.int64)))


def _by_convolution(trace: Trace, events: pl.DataFrame) -> pl.DataFrame:
    """Return one row per layer, operator, pass and algorithm of the convolutions.

    The workspace is the memory that the launching operator of a convolution allocates and frees
    before it returns, including temporary copies of operands, without the output.
    """
    convolution = np.full(trace.tables.ops.height, NONE, dtype=np.int64)
    launched = trace.tables.episodes.filter(pl.col("op").is_not_null()).unique(
        "op", keep="first", maintain_order=True
    )
    rows = from_rows(launched["op"])
    convolution[rows] = np.arange(len(rows))
    (key,) = thread_numbers(trace.tables.ops)
    start, duration = (trace.tables.ops[column].to_numpy() for column in ("start", "duration"))
    around = Nesting.of(key, start, duration).inherit(convolution)
    made = allocations(events).filter(pl.col("op").is_not_null())
    of = take(around, from_rows(made["op"]))
    operator = take(rows, of)
    end = take(start + duration, operator)
    within = made.with_columns(to_rows(of).alias("convolution")).filter(
        pl.Series(of != NONE)
        & pl.col("freed_time").is_not_null()
        & (pl.col("freed_time") <= pl.Series(end))
    )
    size = pl.col("bytes")
    each = (*PER_DEVICE, "convolution")
    made = within.select(*each, "event", size)
    freed = within.select(*each, pl.col("freed_event").alias("event"), -size)
    peak = (
        pl.concat([made, freed])
        .sort("event")
        .with_columns(size.cum_sum().over(each))
        .group_by(each)
        .agg(size.max())
    )
    of_peak = launched[from_rows(peak["convolution"])]
    algorithm, direction = of_peak["algorithm"], of_peak["direction"]
    peak = peak.with_columns(
        layer_names(trace, trace.tables.ops["layer"].gather(of_peak["op"])),
        operator_names(trace, of_peak["op"]),
        direction,
        algorithm,
    )
    keys = ("layer", "operator", "direction", "algorithm")
    return aggregated(peak, (*PER_DEVICE, *keys), CONVOLUTIONS).sort(
        *(*PER_DEVICE, "workspace_bytes", *keys),
        descending=[False, False, True, False, False, False, False],
        nulls_last=True,
    )


def _notes(trace: Trace, every: pl.DataFrame, frame: pl.DataFrame, by: MemoryBy) -> tuple[str, ...]:
    notes = []
    notes += _snapshot_notes(trace, every)
    if every["counted"].any():
        notes.append(
            "memory allocated before the capture not recorded: figures count from the start of the "
            "capture"
        )
    nowhere = every["address"].null_count()
    if nowhere and by in (*HOLDERS, "convolution"):
        notes.append(
            f"no address recorded: {nowhere:,} of {every.height:,} events, their memory is not "
            "attributed"
        )
    if by == "convolution" and frame.is_empty():
        notes.append(
            "no workspaces: no convolution allocates and frees memory within its operator, or "
            "operators are not recorded"
        )
    if by == "step" and frame.is_empty():
        notes.append("no steps: the trace has no step markers")
    grown = _growth(trace, every).filter(
        (pl.col("growing") == pl.col("steps")) & (pl.col("steps") >= FEWEST_GROWING)
    )
    for row in grown.sort(PER_DEVICE).to_dicts():
        device = "(not recorded)" if row["device"] is None else name_of(row["device"])
        notes.append(
            f"possible leak on device {device}: allocated memory grows in each of {row['steps']} "
            f"measured steps, median {row['growth_bytes']:,} bytes"
        )
    return tuple(notes)


def _snapshot_notes(trace: Trace, every: pl.DataFrame) -> list[str]:
    """Return the notes on a snapshot: what its figures are, and allocations that failed."""
    if trace.tables.memory_blocks.is_empty():
        return []
    notes = [
        f"peak within the recorded history of {every.height:,} events; sizes are requested bytes, "
        "which the allocator rounds up (memory --by pool)"
    ]
    before = every.group_by(PER_DEVICE, maintain_order=True).agg(
        (pl.col("allocated") - pl.col("bytes")).first().alias("start_bytes"),
        pl.col("allocated").max(),
    )
    notes += [
        f"{row['start_bytes']:,} bytes were allocated on {_place(row)} when the history began: "
        "more than at its peak"
        for row in before.filter(pl.col("start_bytes") > pl.col("allocated")).to_dicts()
    ]
    failed = _select_rows(trace.tables.memory, *_selected(trace)).filter(
        pl.col("failed_bytes").is_not_null()
    )
    lines = line_names(trace, failed["frame"])
    for row, line in zip(failed.head(_MOST_FAILED).to_dicts(), lines, strict=False):
        free = row["device_free_bytes"]
        left = "" if free is None else f", {free:,} free on the device"
        notes.append(
            f"out of memory on {_place(row)} at {row['time'] / 1e9:.6f} s: "
            f"{row['failed_bytes']:,} bytes requested{left}; {line}"
        )
    if failed.height > _MOST_FAILED:
        notes.append(f"out of memory: {failed.height - _MOST_FAILED:,} more allocations failed")
    return notes


def _place(row: Mapping[str, Any]) -> str:
    rank = "" if row["rank"] is None else f"rank {row['rank']}, "
    return f"{rank}device {row['device']}"

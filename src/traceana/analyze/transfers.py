"""Copies by direction and kind of host memory, and by operator, layer, call, step or size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np
import polars as pl

from traceana.analyze import summaries
from traceana.analyze.summaries import needs_timeline
from traceana.columns.intervals import PER_DEVICE, Busy, computing, exposed
from traceana.result import Result, share_of, sums
from traceana.settings import MANY_COPIES, SMALL_COPY_BYTES
from traceana.table import (
    BINARY,
    BYTES,
    COUNT,
    FLAG,
    LONG,
    MEAN,
    NUMBER,
    PART,
    PATH,
    RATE,
    SHARE,
    STEP,
    TEXT,
    TIME,
    Column,
    Columns,
    aggregated,
    completed,
    conformed,
    laid_out,
    one_or_null,
    per_second,
    whole_sum,
)
from traceana.timeline.copies import (
    ASYNCHRONOUS,
    DEVICE_MEMORY,
    HOST_DIRECTIONS,
    STAGED,
    SYNCHRONOUS,
    copies,
    link_peaks,
)
from traceana.timeline.steps import available_ns, device_windows, measured_steps
from traceana.timeline.work import kernels_of, work_ns
from traceana.trace.work import OUTSIDE, layer_labels
from traceana.vocabulary.option_words import TransfersBy

if TYPE_CHECKING:
    from traceana.trace import Trace

Key: TypeAlias = TransfersBy | Literal["kind"]
"""Its grouping, or what limits the copy: its size, the call, or the link."""

_DURATION, _BYTES, _IN_STEPS = pl.col("duration"), pl.col("bytes"), pl.col("in_steps")
_COUNTED_CALLS: Final = pl.sum_horizontal(SYNCHRONOUS, STAGED, ASYNCHRONOUS)
_IS_SMALL: Final = (pl.col("count") >= MANY_COPIES) & (pl.col("mean_bytes") < SMALL_COPY_BYTES)

DIRECTION: Final = Column(
    "direction",
    PART,
    "`HtoD`, `DtoH`, `DtoD`, `PtoP`, `HtoH`, CUDA arrays with `A`, `unknown`; `unified_HtoD`, "
    "`unified_DtoH`, `unified_DtoD`: migrations of unified memory, which no call starts",
)
HOST_MEMORY: Final = Column(
    "host_memory",
    TEXT,
    "`pageable`, `pinned`, `managed`, `unknown` …; null for copies without host memory",
    title="memory",
    rank=8,
)
KEYS: Final[dict[Key, Column]] = {
    "operator": Column("operator", LONG, "innermost operator around the copying call"),
    "layer": Column("layer", PATH, "layer of that operator, named as in `layers`"),
    "range": Column("range", LONG, "innermost annotation around the copying call"),
    "call": Column("call", LONG, "copying call of the runtime or driver"),
    "step": Column("step", NUMBER, "number of the step that launched the copy"),
    "size": Column(
        "size",
        BINARY,
        "largest power of two up to the bytes of the copy, 0 for an empty copy",
        title="size from",
    ),
}
"""The key of ``by``; null where the trace does not record it."""
_LIMIT: Final = Column("kind", TEXT, "what limits the copy: `small`, `blocking` or `other`")

COLUMNS: Final = (
    DIRECTION,
    HOST_MEMORY,
    Column("count", COUNT, "number of copies", pl.len(), title="calls", additive=True),
    Column(
        "bytes",
        BYTES,
        "their sizes; null unless the size of every copy of the row is recorded",
        whole_sum("bytes"),
        rank=9,
        additive=True,
    ),
    Column(
        "mean_bytes",
        BYTES,
        "mean size, rounded down",
        value=_BYTES // pl.col("count"),
        title="mean size",
        rank=6,
    ),
    Column("time_ns", TIME, "summed durations", _DURATION.sum(), additive=True),
    Column("share", SHARE, "of the time of all copies", shown=False),
    Column(
        "exposed_ns",
        TIME,
        "time in which a copy of the row ran and no kernel ran on its device: the union of the "
        "row's copies on each device less the time of any kernel there, of any stream or step, "
        "collectives included. Two rows whose copies overlap both count the time; the total counts "
        "it once, and can be less than the sum of the rows. Null where the device is unknown",
        zeros=True,
        additive=True,
    ),
    Column(
        "bytes_per_s",
        RATE,
        "achieved bandwidth: all bytes over the summed time",
        value=per_second("bytes", "time_ns"),
        title="bandwidth",
    ),
    Column(
        "median_bytes_per_s",
        RATE,
        "median bandwidth of single copies, without copies of 0 ns",
        pl.when(_DURATION > 0).then(_BYTES * 1e9 / _DURATION).median(),
        title="median bandwidth",
        rank=2,
    ),
    Column(
        "link",
        TEXT,
        "link of the copies: `PCIe 4 x16`, `NVLink-C2C` (by the device's name or compute "
        "capability), `device memory`; null where unknown, and where the devices of the row differ",
        one_or_null("link"),
        shown=False,
    ),
    Column(
        "peak_bytes_per_s",
        RATE,
        "datasheet unidirectional peak of the link; of `device memory` half its bandwidth (data "
        "sheet, else the trace), as each byte is read and written",
        one_or_null("peak_bytes_per_s"),
        title="peak bandwidth",
        type=pl.Int64,
        shown=False,
    ),
    Column(
        "peak_share",
        SHARE,
        "`bytes_per_s` over the peak of the link",
        value=pl.col("bytes_per_s") / pl.col("peak_bytes_per_s"),
        title="of peak",
        rank=7,
    ),
    Column(
        "blocking",
        TEXT,
        "whether the copying calls block the host: `yes`, `no`, `possibly` (an asynchronous call "
        "on pageable memory), `mixed`; of the recorded calls, null without any",
        value=pl.when(_COUNTED_CALLS == 0)
        .then(None)
        .when(pl.col(SYNCHRONOUS) == _COUNTED_CALLS)
        .then(pl.lit("yes"))
        .when(pl.col(STAGED) == _COUNTED_CALLS)
        .then(pl.lit("possibly"))
        .when(pl.col(ASYNCHRONOUS) == _COUNTED_CALLS)
        .then(pl.lit("no"))
        .otherwise(pl.lit("mixed")),
        rank=5,
    ),
    *(
        Column(
            kind,
            COUNT,
            f"number of copies whose call blocks the host: `{answer}`; unknown for the rest",
            (pl.col("blocking") == kind).sum(),
            shown=False,
            additive=True,
        )
        for kind, answer in ((SYNCHRONOUS, "yes"), (STAGED, "possibly"), (ASYNCHRONOUS, "no"))
    ),
    Column(
        "step_count",
        MEAN,
        "copies that a measured step launches; with `--by step`, the row's own step",
        _IN_STEPS.sum(),
        value=pl.col("step_count") / pl.col("steps"),
        title="calls per step",
        rank=1,
    ),
    Column(
        "step_bytes",
        BYTES,
        "their bytes per measured step, rounded down",
        pl.when(_BYTES.filter(_IN_STEPS).is_not_null().all()).then(_BYTES.filter(_IN_STEPS).sum()),
        value=pl.col("step_bytes") // pl.col("steps"),
        title="bytes per step",
        rank=3,
    ),
    Column(
        "step_ns",
        TIME,
        "their time per measured step, rounded down",
        _DURATION.filter(_IN_STEPS).sum(),
        value=pl.col("step_ns") // pl.col("steps"),
        title="per step",
        scale=STEP,
        shown=False,
    ),
    Column(
        "step_share",
        SHARE,
        "part of the measured steps' wall time, times the devices that they used, in which a copy "
        "of the row ran, whichever step launched it: at most 1. With `--by step`, the row's own "
        "copies in their own step",
        value=pl.when(pl.col("available_ns") > 0).then(
            pl.col("ran_ns").fill_null(0) / pl.col("available_ns")
        ),
        title="of step",
        rank=4,
    ),
    Column(
        "small",
        FLAG,
        "a hundred copies or more of fewer than 64 KiB on average",
        value=_IS_SMALL.fill_null(value=False),
        shown=False,
    ),
)
_BY_SIZE: Final = laid_out(
    (DIRECTION, HOST_MEMORY, KEYS["size"], *COLUMNS[2:]),
    shown="direction host_memory size count time_ns exposed_ns bytes_per_s",
    dropped="bar exposed_ns host_memory",
    bars="count",
)
_ORDER: Final[dict[Key, tuple[str, ...]]] = {
    "step": ("step", "direction", "host_memory"),
    "size": ("direction", "host_memory", "size"),
}

_OPERATOR_NUMBER: Final = r", (?:op_id|(?:stashed )?seq) ?= ?-?\d+"
"""The numbers that PyTorch's ``emit_nvtx`` adds to the name of an operator."""
_NO_STEPS: Final = "no steps: the trace has no step markers"
ON_STEPS: Final = "columns per step: "
"""Beginning of the notes on the measured steps."""
_POWERS: Final = 1 << np.arange(63, dtype=np.int64)


def columns_by(by: Key) -> Columns:
    """Return the columns of :func:`transfers`."""
    if by == "size":
        return _BY_SIZE
    return COLUMNS if by == "direction" else (KEYS.get(by, _LIMIT), *COLUMNS)


def transfers(trace: Trace, by: Key = "direction") -> Result:
    """Return one row per direction, kind of host memory and key (``by``).

    The columns are those of :func:`columns_by`. Most time first; steps and sizes in their order.

    A summary has ``count``, ``bytes`` where they are printed, and ``time_ns`` by direction; figures
    that need the times of single copies are null.
    """
    if trace.is_summary:
        return _printed(trace, by)
    columns = columns_by(by)
    keys = [*([] if by == "direction" else [by]), "direction", "host_memory"]
    measured = measured_steps(trace).rows
    each = copies(trace)
    no_steps = by == "step" and trace.tables.steps.is_empty() and each.height > 0
    if no_steps:
        each = each.clear()
    each = each.join(
        link_peaks(trace.tables.devices),
        on=["rank", "device", "direction"],
        how="left",
        nulls_equal=True,
    )
    if by != "direction":
        each = each.with_columns(_key_of(trace, each, by))
    in_steps = pl.col("step_row").is_in(measured) if by != "step" else pl.col("step").is_not_null()
    each = each.with_columns(in_steps.fill_null(False).alias("in_steps"))
    kernels = computing(trace.whole.tables.activities)
    frame = (
        aggregated(each, keys, columns)
        .join(exposed(each, kernels, keys), on=keys, how="left", nulls_equal=True)
        .join(_time_in_steps(trace, each, keys), on=keys, how="left", nulls_equal=True)
    )
    step_times = pl.DataFrame(
        {"step": trace.tables.steps["number"], "available_ns": available_ns(trace)}
    )
    if by == "step":
        available = step_times.group_by("step").agg(pl.col("available_ns").sum())
        one_step = pl.when(pl.col("step").is_not_null()).then(1)
        frame = frame.join(available, on="step", how="left", nulls_equal=True)
        frame = frame.with_columns(one_step.alias("steps"))
    else:
        of_all = step_times["available_ns"].gather(list(measured)).sum() if measured else None
        frame = frame.with_columns(
            pl.lit(of_all, pl.Int64).alias("available_ns"),
            pl.lit(len(measured) or None, pl.Int64).alias("steps"),
        )
    frame = _ordered(frame.with_columns(share_of(int(frame["time_ns"].sum()))), by)
    frame = conformed(completed(frame, columns), columns)
    notes = (_NO_STEPS,) if no_steps else _notes(trace, each, frame, by)
    size_columns = ["bytes"] if frame.height and not frame["bytes"].null_count() else []
    totals = sums(frame, "count", *size_columns, "time_ns")
    totals["exposed_ns"] = int(exposed(each, kernels, ())["exposed_ns"].sum())
    return Result(frame, totals, notes, columns)


def _printed(trace: Trace, by: Key) -> Result:
    """Return the copies of a summary by direction and host memory."""
    if by != "direction":
        needs_timeline(trace, f"transfers by {by}")
    each = summaries.copies(trace)
    keys = ("direction", "host_memory")
    timed = each.filter(pl.col("total_ns").is_not_null()).select(keys).unique()
    frame = (
        summaries.added(each, *keys)
        .rename({"calls": "count"})
        .join(timed.with_columns(timed=True), on=keys, how="left", nulls_equal=True)
        .with_columns(pl.when("timed").then("time_ns").alias("time_ns"))
    )
    frame = _ordered(frame.with_columns(share_of(int(frame["time_ns"].sum()))), by)
    frame = conformed(completed(frame, COLUMNS), COLUMNS)
    notes = summaries.notes(trace) if frame.height else ("no copies in the summary",)
    columns = [name for name in ("bytes", "time_ns") if not frame[name].null_count()]
    totals = sums(frame, "count", *(columns if frame.height else ["time_ns"]))
    return Result(frame, totals, notes, COLUMNS)


def _key_of(trace: Trace, copies: pl.DataFrame, by: Key) -> pl.Series:
    """Return the key of each of ``copies``, named as the column; ``by`` is not "direction".

    Texts are categorical. ``step`` is the step's number; ``size`` the largest power of two up to
    the copy's bytes, 0 for an empty copy. Null where the trace does not record it, except for
    layers, which have the names of :mod:`traceana.analyze.layers`.
    """
    match by:
        case "operator":
            return trace.tables.ops["name"].gather(copies["op"]).alias(by)
        case "range":
            texts = trace.tables.ranges["text"].gather(copies["range"]).cast(pl.String)
            return texts.str.replace_all(_OPERATOR_NUMBER, "").cast(pl.Categorical).alias(by)
        case "call":
            return trace.tables.calls["name"].gather(copies["call"]).alias(by)
        case "layer":
            paths = layer_labels(trace.tables)["layer_path"]
            return paths.gather(copies["layer"]).fill_null(OUTSIDE).alias(by)
        case "step":
            return trace.tables.steps["number"].gather(copies["step_row"]).alias(by)
        case "size":
            sizes = copies["bytes"].fill_null(0).to_numpy()
            power = _POWERS[np.searchsorted(_POWERS, sizes, side="right") - 1]
            floor = pl.Series(np.where(sizes > 0, power, 0))
            return copies.select(pl.when(pl.col("bytes").is_not_null()).then(floor).alias(by))[by]
        case _:
            below = (pl.col("bytes") < SMALL_COPY_BYTES).fill_null(value=False)
            many = below.sum().over("direction", "host_memory") >= MANY_COPIES
            synchronous = (pl.col("blocking") == SYNCHRONOUS).fill_null(value=False)
            return copies.select(
                pl.when(below & many)
                .then(pl.lit("small"))
                .when(synchronous)
                .then(pl.lit("blocking"))
                .otherwise(pl.lit("other"))
                .alias(by)
            ).to_series()


def _time_in_steps(trace: Trace, each: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return ``ran_ns`` by ``keys``: the time in the measured steps in which a copy ran.

    By step, only the time in the row's own step.
    """
    windows, located = device_windows(trace), each.drop_nulls("device")
    if "step" in keys:
        return _ran_in_own_step(windows, located, keys)
    measured = windows.filter(pl.col("step").is_in(measured_steps(trace).rows))
    groups = located.partition_by(keys, maintain_order=True)
    times = [int(Busy.of(group).within(measured).sum()) for group in groups]
    rows = pl.concat(
        [located.select(keys).clear(), *(group.select(keys).head(1) for group in groups)]
    )
    return rows.with_columns(pl.Series("ran_ns", times, dtype=pl.Int64))


def _ran_in_own_step(
    windows: pl.DataFrame, copied: pl.DataFrame, keys: Sequence[str]
) -> pl.DataFrame:
    """Return ``ran_ns`` by ``keys``: the time in the windows of the row's step with a copy.

    All rows at once: a trace may have thousands of steps.
    """
    place = [*keys, *PER_DEVICE]
    places = copied.select(place).unique(maintain_order=True).with_row_index("place")
    of_place = (pl.lit(None, pl.Int32).alias("rank"), pl.col("place").alias("device"), "start")
    numbered = copied.join(places, on=place, nulls_equal=True)
    of_step = (
        copied.select(*keys, "step_row")
        .unique()
        .join(windows, left_on="step_row", right_on="step")
        .join(places, on=place, nulls_equal=True)
    )
    busy = Busy.of(numbered.select(*of_place, "duration"))
    ran = busy.within(of_step.select(*of_place, "end")).alias("ran_ns")
    return of_step.with_columns(ran).group_by(keys).agg(pl.col("ran_ns").sum())


def _ordered(frame: pl.DataFrame, by: Key) -> pl.DataFrame:
    if by in _ORDER:
        return frame.sort(_ORDER[by], nulls_last=True)
    names = [] if by == "direction" else [pl.col(by).cast(pl.String)]
    descending = [True, *[False] * (len(names) + 2)]
    return frame.sort(
        "time_ns", *names, "direction", "host_memory", descending=descending, nulls_last=True
    )


def _notes(trace: Trace, each: pl.DataFrame, frame: pl.DataFrame, by: Key) -> tuple[str, ...]:
    """Return the notes on ``frame``, the result for the copies ``each``."""
    notes = []
    if not trace.on_cpu:
        # Other commands count them as kernels.
        copy = trace.tables.names["category"] == "memcpy"
        kernels = kernels_of(trace, "name_id", "duration")
        times = kernels.filter(copy.gather(kernels["name_id"]))["duration"]
        if len(times):
            part = 100 * int(times.sum()) / work_ns(trace)
            notes.append(
                f"copies by kernels: {part:.1f} % of GPU time, counted as kernels and not in this "
                "table"
            )
    if each.is_empty():
        if notes:
            return ("no copies with a record of their own", *notes)
        return ("no copies in the trace or the selection",)
    if unsized := each["bytes"].null_count():
        notes.append(
            f"copy size not recorded: {unsized:,} of {each.height:,} copies; bytes and bandwidth "
            "unknown in rows with such copies"
        )
    if instant := each.filter(pl.col("duration") == 0).height:
        notes.append(
            f"copies of 0 ns: {instant:,} of {each.height:,}, excluded from the median bandwidth"
        )
    if by != "direction" and frame[by].null_count():
        without_key = int(frame.filter(pl.col(by).is_null())["count"].sum())
        notes.append(f"no {by} recorded: {without_key:,} of {each.height:,} copies")
    if unknown := each["blocking"].null_count():
        no_calls = each["call"].null_count() == unknown
        missing = "no call recorded" if no_calls else "call or kind of memory not recorded"
        notes.append(f"blocking unknown: {unknown:,} of {each.height:,} copies, {missing}")
    notes += _link(trace, each, frame)
    if nowhere := each["device"].null_count():
        notes.append(f"device not recorded: {nowhere:,} copies, excluded from exposed time")
    if (trace.whole.tables.activities["kind"] == "graph").any():
        notes.append("CUDA graphs count as kernels: their nodes are not recorded")
    # Tables by step and size have no averages.
    if trace.tables.steps.height and by not in ("step", "size"):
        notes += [ON_STEPS + note for note in measured_steps(trace).notes]
    return tuple(notes)


def _link(trace: Trace, each: pl.DataFrame, frame: pl.DataFrame) -> list[str]:
    """Return the notes on the peak bandwidth of the links of ``each``."""
    over_links = each.filter(pl.col("direction").is_in(HOST_DIRECTIONS))
    missing = over_links.filter(pl.col("link").is_null())
    notes = []
    if missing.height:
        used = missing.select("rank", "device").unique()
        devices = trace.tables.devices.join(used, on=["rank", "device"], nulls_equal=True)
        names = devices["name"].drop_nulls().unique().sort()
        whose = ", ".join(names) if len(names) else "device name not recorded"
        notes.append(f"host link peak unknown: {whose}")
    if missing.height < over_links.height:
        notes.append("link peak: datasheet unidirectional peak; negotiated PCIe link not recorded")
    in_cache = (pl.col("link") == DEVICE_MEMORY) & (pl.col("peak_share") > 1)
    if frame.select(in_cache.any()).item():
        notes.append(
            "above 100 % of the device memory's peak: small copies can stay in the L2 cache"
        )
    if (each["direction"] == "PtoP").any():
        notes.append("PtoP link peak unknown: links between devices not recorded")
    return notes

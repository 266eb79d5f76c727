"""``idle`` and ``critical``: GPU idle time by cause, and the critical path of the steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache, partial
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl
from msgspec.structs import replace

from traceana.analyze.unrecorded import needs_device
from traceana.columns.intervals import PER_DEVICE
from traceana.report import numbers
from traceana.report.page import Block, Chart, Facts, Hidden, Page, Table
from traceana.report.pages.bars import cause_bars, path_bars
from traceana.report.pages.single_table import (
    data_of,
    device_title,
    named,
    notes_of,
    outside_text,
    source_of,
    table_of,
    window_text,
    with_values,
)
from traceana.report.result import CommandResult
from traceana.result import Arranged, Result, arrange
from traceana.table import Column, Kind, chosen, hiding
from traceana.timeline.critical import NO_OPERATOR
from traceana.timeline.idle_gaps import MEANINGS, capture, outside
from traceana.timeline.steps import measured_steps, step_processes
from traceana.trace.schema import CPU_DEVICE

if TYPE_CHECKING:
    from traceana.result import Result
    from traceana.trace import Trace
    from traceana.vocabulary.option_words import CriticalBy, IdleBy

Row = dict[str, Any]

FEW_DEVICES: Final = 2
"""With more devices, each has one line."""
MOST_DEVICES: Final = 16
FEW_COLUMNS: Final = 3
MOST_COLUMNS: Final = 8
"""More devices than these, or than the few beside a long name, have their spread shown."""


def idle(trace: Trace, *, by: IdleBy = "cause") -> CommandResult:
    """Return the idle time of each device by cause, by cause and ``by``, or by gap."""
    needs_device(trace, "idle")
    from traceana.analyze.devices import devices
    from traceana.timeline.idle import idle as analysis
    from traceana.timeline.idle import idle_time

    gaps = idle_time(trace)
    whole = analysis(trace, by, found=gaps)
    stepped = gaps.measured.select(PER_DEVICE).n_unique()
    of_devices = devices(trace, found=gaps)
    make = partial(_idle, trace, by, of_devices, whole, stepped)

    @cache
    def causes() -> pl.DataFrame:
        return (whole if by == "cause" else analysis(trace, "cause", found=gaps)).frame

    def complete(page: Page, _: int | None, __: bool) -> Page:
        """Add the table of what the causes mean."""
        meant = causes().select("cause").unique(maintain_order=True)
        if meant.is_empty():
            return page
        text = pl.col("cause").cast(pl.String).replace_strict(MEANINGS)
        columns = Column("cause", Kind.PART, title="idle cause"), Column("meaning", Kind.LONG)
        table = Table(meant.with_columns(text.alias("meaning")), columns, layout="compact")
        return replace(page, blocks=(*page.blocks, _without_launches(trace, table, "cause")))

    def pictures() -> list[Chart]:
        return cause_bars(causes(), stepped, _several(of_devices.frame))

    return CommandResult.of(whole, make, screenful=30, pictures=pictures, complete=complete)


def _idle(
    trace: Trace, by: IdleBy, devices: Result, whole: Result, stepped: int, shown: Arranged
) -> Page:
    if by == "gap" or devices.frame.height < 2:
        shown_as_facts = {"rank", "device"} - _differing(devices.frame)
        window = "step" if by == "step" else window_text(trace)
        titles = {"share": f"of {window}", "start_ns": "start in capture"}
        rows = replace(shown, columns=hiding(shown.columns, shown_as_facts))
        if by == "gap":
            start = pl.col("start_ns") - capture(trace)["start"].min()
            rows = replace(rows, frame=shown.frame.with_columns(start))
        table = table_of(rows, titles=titles)
    else:
        table = _side_by_side(by, devices.frame, whole, stepped, shown)
    table = _without_launches(trace, table, "cause")
    facts = Facts(device_facts(devices.frame.to_dicts()))
    blocks: tuple[Block, ...] = (facts, table, *notes_of(shown.notes))
    return Page("idle", blocks, data_of(shown, source_of(trace), {"devices": devices}))


def _without_launches(trace: Trace, table: Table, column: str) -> Table:
    """Return ``table`` without launches before the capture, if the trace has no calls at all."""
    if trace.whole.tables.calls.height or column not in table.frame.columns:
        return table
    label = pl.col(column).cast(pl.String).replace("not_recorded", "not recorded")
    return replace(table, frame=table.frame.with_columns(label))


def _differing(devices: pl.DataFrame) -> set[str]:
    """Return the columns that identify a device: rank, device or both."""
    if devices.height < 2:
        return set()
    if devices["rank"].n_unique() == devices.height:
        return {"rank"}
    return {"device"} if devices["rank"].n_unique() == 1 else {"rank", "device"}


def _side_by_side(
    by: IdleBy, devices: pl.DataFrame, whole: Result, stepped: int, shown: Arranged
) -> Table:
    """Return the time of each cause, a column a device, and their mean or sum.

    Times are means over the measured steps and the ``stepped`` devices with such steps. Without
    steps, and by step, they are sums over the window. Many devices are shown by the least, the
    median and the largest time, and by the devices farthest from the median. The devices nearest
    to the median are dropped first if the terminal is narrow.
    """
    keys = ["cause"] if by == "cause" else [by, "cause"]
    names = [name for name in PER_DEVICE if name in _differing(devices)]
    label = pl.concat_str(names, separator="/").alias("label")
    ordered = arrange(whole, sort=shown.sort).frame
    per_step = by != "step" and ordered["step_ns"].count() > 0
    if per_step:
        ordered = ordered.with_columns(count="step_count", time_ns="step_ns")
        ordered = ordered.filter(pl.col("count") > 0)
    rows = named(ordered.with_columns(label), by)
    labels = devices.select(label)["label"].to_list()
    summed = rows.group_by("label").agg(pl.col("time_ns").sum())
    times = dict.fromkeys(labels, 0) | dict(summed.iter_rows())
    spread = _Spread.of(times.values())
    farthest = sorted(labels, key=lambda device: -abs(times[device] - spread.median))[:MOST_COLUMNS]
    each = [device for device in labels if device in farthest]
    frame = _pivoted(rows, keys, labels, each)
    if per_step:
        frame = frame.with_columns(pl.col("count") / stepped, pl.col("time_ns") // stepped)
    if shown.sort is None:
        order = ["step", "time_ns"] if by == "step" else ["time_ns"]
        frame = frame.sort(order, descending=[name != "step" for name in order], nulls_last=True)
    top = frame.head(shown.limit or frame.height)
    below = frame.tail(frame.height - top.height)
    rest = Hidden(below.height, int(below["time_ns"].sum())) if below.height else None
    many = len(labels) > (FEW_COLUMNS if by in ("operator", "range") else MOST_COLUMNS)
    called = device_title(names)
    group = f"{len(labels)} {called}s" if many else called
    if per_step:
        group = f"{group}, per step"
    of_devices = [*(_Spread._fields if many else ()), *each]
    columns = (
        *with_values(frame, chosen(whole.columns, keys)),
        (
            Column("count", Kind.MEAN, title="gaps per step")
            if per_step
            else Column("count", Kind.COUNT, title="gaps")
        ),
        Column("time_ns", Kind.TIME, title="mean" if per_step else _several(devices), scale="idle"),
        *(
            Column(f"idle {device}", Kind.TIME, title=device, scale="idle", group=group)
            for device in of_devices
        ),
    )
    totals = {f"idle {device}": time for device, time in {**times, **spread._asdict()}.items()}
    totals["time_ns"] = sum(times.values()) // (stepped if per_step else 1)
    if not per_step:
        totals["count"] = int(frame["count"].sum())
    return Table(top, columns, totals, ("count", *reversed(farthest)), hidden=rest)


def _several(devices: pl.DataFrame) -> str:
    """Return that a figure is a sum over ``devices``; empty with one."""
    if devices.height < 2:
        return ""
    names = [name for name in PER_DEVICE if name in _differing(devices)]
    return f"sum over {devices.height} {device_title(names)}s"


class _Spread(NamedTuple):
    """The least, the median and the largest of several times."""

    min: int
    median: int
    max: int

    @classmethod
    def of(cls, times: Iterable[int]) -> _Spread:
        ordered = sorted(times)
        return cls(ordered[0], round(median(ordered)), ordered[-1])


def _pivoted(
    rows: pl.DataFrame, keys: list[str], labels: list[str], each: list[str]
) -> pl.DataFrame:
    """Return a row for each of ``keys``: its gaps and time, of ``each`` device and their spread."""
    per_device = rows.group_by(*keys, "label", maintain_order=True).agg(
        pl.col("count", "time_ns").sum()
    )
    time = pl.col("time_ns")
    frame = per_device.group_by(keys, maintain_order=True).agg(
        pl.col("count", "time_ns").sum(),
        time.alias("times"),
        *(time.filter(label=device).sum().alias(f"idle {device}") for device in each),
    )
    spreads = [_Spread.of([*times, *[0] * (len(labels) - len(times))]) for times in frame["times"]]
    columns = {f"idle {field}": pl.Int64 for field in _Spread._fields}
    spread = pl.DataFrame(spreads, schema=columns, orient="row")
    return frame.drop("times").hstack(spread)


def device_facts(rows: list[Row]) -> tuple[tuple[str, str], ...]:
    """Return the lines of each device of :func:`traceana.analyze.devices.devices`."""
    facts: list[tuple[str, str]] = []
    for row in rows[:MOST_DEVICES]:
        few = len(rows) <= FEW_DEVICES
        lines = [_time(row, alone=few)]
        if few:
            lines += [outside_text(row), _launches(row), _overlap(row)]
        filled = [line for line in lines if line]
        facts += [(_name(row) if at == 0 else "", line) for at, line in enumerate(filled)]
    if len(rows) > MOST_DEVICES:
        facts.append(("", f"… {len(rows) - MOST_DEVICES} more devices in the JSON"))
    return tuple(facts)


def _name(row: Row) -> str:
    if row["device"] == CPU_DEVICE:
        return "CPU" if row["rank"] is None else f"rank {row['rank']} CPU"
    return (
        f"GPU {row['device']}" if row["rank"] is None else f"rank {row['rank']} GPU {row['device']}"
    )


def _time(row: Row, *, alone: bool) -> str:
    span = row["span_ns"]
    if not span:
        return ""
    window = " capture" if row["rank"] is None else " capture of this rank"
    line = (
        f"idle {numbers.duration(row['idle_ns'])} ({numbers.share(row['idle_share'])}) of "
        f"{numbers.duration(span)}{'' if row['before_ns'] is None else window} · "
        f"busy {numbers.share(row['busy_ns'] / span)}"
    )
    if row["memops_only_ns"] and alone:
        line += f" · copies and memsets alone {numbers.share(row['memops_only_ns'] / span)}"
    return line


def _launches(row: Row) -> str:
    if not row["launches"]:
        return ""
    line = f"launches {numbers.count(row['launches'])}"
    if row["step_launches"] is not None:
        line += f" ({numbers.mean(row['step_launches'])} per step)"
    line += ", copies and memsets included"
    if row["launch_bound_share"] is not None:
        delays = (row[f"launch_delay_{name}_ns"] for name in ("median", "p95"))
        median, most = map(numbers.duration, delays)
        line += (
            f" · launch delay {median} median, {most} p95 · kernels shorter than their "
            f"launch call {numbers.share(row['launch_bound_share'])}"
        )
    return line


def _overlap(row: Row) -> str:
    parts = []
    for name, plural in (("copy", "copies"), ("collective", "collectives")):
        whole, exposed = row[f"{name}_ns"], row[f"{name}_exposed_ns"]
        if whole:
            part = "all" if exposed == whole else numbers.duration(exposed)
            parts.append(f"{plural} {numbers.duration(whole)}, {part} exposed")
    return " · ".join(parts)


def critical(trace: Trace, *, by: CriticalBy = "class") -> CommandResult:
    """Return the critical path of the measured steps, grouped by ``by``."""
    needs_device(trace, "critical")
    from traceana.timeline import critical as analysis

    path = analysis.critical(trace, by)

    def pictures() -> list[Chart]:
        several = step_processes(trace) > 1
        return path_bars(
            analysis.critical(trace, "segment").frame, _measured(trace), several=several
        )

    make = partial(_critical, trace, by, path.frame)
    return CommandResult.of(path, make, screenful=30, pictures=pictures)


def _since_step(every: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the segments ``rows`` with starts from the beginning of their step.

    ``every`` has all segments of the steps.
    """
    of = ("step", "rank")
    begin = every.group_by(of).agg(pl.col("start_ns").min().alias("begin"))
    return (
        rows.join(begin, on=of, how="left", nulls_equal=True, maintain_order="left")
        .with_columns(pl.col("start_ns") - pl.col("begin"))
        .drop("begin")
    )


_SEGMENTS: Final = {
    "host/operator": "operators",
    "host/range": "annotated ranges",
    "host/call": "CUDA API calls",
    "host/": "other",
    "gap/stream": "between kernels",
    "kernel/other": "unclassified",
}
"""Class and part of a segment -> display name of the part."""


def _critical(trace: Trace, by: CriticalBy, every: pl.DataFrame, shown: Arranged) -> Page:
    called = shown.frame
    if "part" in called.columns:
        what = pl.concat_str("class", pl.lit("/"), pl.col("part").fill_null(""))
        called = called.with_columns(
            what.replace_strict(_SEGMENTS, default=pl.col("part"), return_dtype=pl.String).alias(
                "part"
            )
        )
    if by == "segment":
        # An operator that is known names the time of the host in it.
        within = (pl.col("class") == "host") & (pl.col("operator") != NO_OPERATOR)
        called = called.with_columns(
            pl.coalesce("name", pl.when(within).then("operator")).alias("name")
        )
    steps = _measured(trace)
    left_out = {"step_count", "step_ns"} if steps is None else {"count", "time_ns"}
    if by == "segment":
        called = _since_step(every, called)
        left_out = {"rank"} if shown.frame["rank"].n_unique() < 2 else set()
    means = replace(shown, frame=called, columns=hiding(shown.columns, left_out))
    if steps is not None and by != "segment":
        means = replace(
            means,
            totals={"step_ns": shown.totals["time_ns"] // steps},
            hidden_totals={"time_ns": shown.hidden_totals["time_ns"] // steps},
        )
    titles = {"start_ns": f"start in {'capture' if steps is None else 'step'}"}
    table = table_of(means, titles=titles)
    table = _without_launches(trace, table, "part")
    notes = (*shown.notes, *_path_window(trace, shown.totals["time_ns"], steps))
    return Page("critical", (table, *notes_of(notes)), data_of(shown, source_of(trace)))


def _path_window(trace: Trace, path_ns: int, steps: int | None) -> Iterator[str]:
    """Yield how the path's time differs from the recording, in a trace without steps."""
    if steps is not None:
        return
    apart = outside(trace)
    if apart.height == 1:
        row = {**apart.row(0, named=True), "span_ns": path_ns}
        if text := outside_text(row):
            yield text


def _measured(trace: Trace) -> int | None:
    """Return the number of measured steps; None without any."""
    return len(measured_steps(trace).rows) or None

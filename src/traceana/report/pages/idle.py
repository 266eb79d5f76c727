"""``idle`` and ``critical``: GPU idle time by cause, and the critical path of the steps."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from traceana.report import numbers
from traceana.report.page import Block, Facts, Page
from traceana.report.pages.single_table import data_of, notes_of, source_of, table_of, table_page
from traceana.result import Arranged, Result
from traceana.trace.schema import CPU_DEVICE

if TYPE_CHECKING:
    from traceana.choices import CriticalBy, IdleBy
    from traceana.result import Result
    from traceana.trace import Trace

Row = dict[str, Any]

COLUMNS: Final = (
    *("rank", "device", "cause", "count", "time_ns", "share", "mean_ns", "max_ns"),
    *("step_count", "step_ns", "step_share"),
)
DROPPED: Final = ("step_count", "mean_ns", "step_share", "step_ns", "max_ns")
GAPS: Final = (
    *("rank", "device", "cause", "start_ns", "time_ns", "operator", "range", "before", "after"),
)
GAPS_DROPPED: Final = ("before", "range", "after", "operator")

_FIGURES: Final = ("count", "time_ns", "step_median_ns", "share")
PATHS: Final[dict[str, tuple[str, ...]]] = {
    "class": ("class", "part", *_FIGURES),
    "kernel": ("name", "class", "part", *_FIGURES),
    "layer": ("layer", "class", *_FIGURES),
    "operator": ("operator", "class", *_FIGURES),
    "segment": ("step", "start_ns", "time_ns", "class", "part", "name", "operator", "layer"),
}
PATHS_DROPPED: Final = ("layer", "count", "part", "operator")

_TITLES: Final = {"count": "gaps", "step_count": "gaps per step", "step_ns": "time per step"}

FEW_DEVICES: Final = 2
"""With more devices, each has one line."""
MOST_DEVICES: Final = 16


def idle(trace: Trace, *, by: IdleBy = "cause") -> Result:
    """Return the idle time of each device by cause, by cause and ``by``, or by gap."""
    from traceana.analyze.devices import devices
    from traceana.analyze.idle import idle as analysis
    from traceana.analyze.idle import idle_time

    found = idle_time(trace)
    make = partial(_idle, trace, by, devices(trace, found=found))
    return analysis(trace, by, found=found).with_page(make, screenful=30)


def _idle(trace: Trace, by: IdleBy, devices: Result, shown: Arranged) -> Page:
    added = () if by == "cause" else (by,)
    columns = GAPS if by == "gap" else (*added, *COLUMNS)
    dropped = GAPS_DROPPED if by == "gap" else DROPPED
    blocks: tuple[Block, ...] = (
        Facts(device_facts(devices.frame.to_dicts())),
        table_of(shown, columns, dropped=dropped, titles=_TITLES),
        *notes_of(shown.notes),
    )
    return Page("idle", blocks, data_of(shown, source_of(trace), {"devices": devices}))


def device_facts(rows: list[Row]) -> tuple[tuple[str, str], ...]:
    """Return the lines of each device of :func:`traceana.analyze.devices.devices`."""
    found: list[tuple[str, str]] = []
    for row in rows[:MOST_DEVICES]:
        lines = [_time(row)]
        if len(rows) <= FEW_DEVICES:
            lines += [_launches(row), _overlap(row)]
        filled = [line for line in lines if line]
        found += [(_name(row) if at == 0 else "", line) for at, line in enumerate(filled)]
    if len(rows) > MOST_DEVICES:
        found.append(("", f"… {len(rows) - MOST_DEVICES} more devices in the JSON"))
    return tuple(found)


def _name(row: Row) -> str:
    if row["device"] == CPU_DEVICE:
        return "CPU" if row["rank"] is None else f"rank {row['rank']} CPU"
    return (
        f"GPU {row['device']}" if row["rank"] is None else f"rank {row['rank']} GPU {row['device']}"
    )


def _time(row: Row) -> str:
    span = row["span_ns"]
    if not span:
        return ""
    line = (
        f"idle {numbers.duration(row['idle_ns'])} ({numbers.share(row['idle_share'])}) of "
        f"{numbers.duration(span)} · busy {numbers.share(row['busy_ns'] / span)}"
    )
    if row["memops_only_ns"]:
        line += f", of that copies and memsets alone {numbers.share(row['memops_only_ns'] / span)}"
    return line


def _launches(row: Row) -> str:
    if not row["launches"]:
        return ""
    line = f"launches {numbers.count(row['launches'])}"
    if row["step_launches"] is not None:
        line += f" ({numbers.mean(row['step_launches'])} per step)"
    if row["launch_bound_share"] is not None:
        delays = (row[f"launch_delay_{name}_ns"] for name in ("median", "p95"))
        median, most = map(numbers.duration, delays)
        line += (
            f" · launch delay {median} median, {most} p95 · launch-bound kernels "
            f"{numbers.share(row['launch_bound_share'])}"
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


def critical(trace: Trace, *, by: CriticalBy = "class") -> Result:
    """Return the critical path of the measured steps, grouped by ``by``."""
    from traceana.analyze import critical as analysis

    return analysis.critical(trace, by).with_page(partial(_critical, trace, by), screenful=30)


def _critical(trace: Trace, by: CriticalBy, shown: Arranged) -> Page:
    dropped = tuple(name for name in PATHS_DROPPED if name != by)
    return table_page("critical", shown, trace, columns=PATHS[by], dropped=dropped)

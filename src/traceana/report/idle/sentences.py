"""How busy the devices were, in sentences that say no more than the rows of ``devices``."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from traceana.report import human
from traceana.trace.schema import CPU_DEVICE

Row = dict[str, Any]

FEW: Final = 2
"""Of more devices than these only how busy they are is told."""
MOST: Final = 4
"""More devices than these are in the JSON alone."""


def sentences(frame: pl.DataFrame) -> tuple[str, ...]:
    """Return up to three sentences a device, of :func:`traceana.analyze.devices.devices`."""
    rows = frame.to_dicts()
    kinds = (_busy, _launches, _overlap) if len(rows) <= FEW else (_busy,)
    told = [tell(row) for row in rows[:MOST] for tell in kinds]
    if len(rows) > MOST:
        told.append(f"{len(rows) - MOST} devices more: --format json has them all")
    return tuple(says for says in told if says)


def _name(row: Row) -> str:
    if row["device"] == CPU_DEVICE:
        return "CPU" if row["rank"] is None else f"CPU of rank {row['rank']}"
    return f"GPU {row['device']}" if row["rank"] is None else f"GPU {row['rank']}/{row['device']}"


def _busy(row: Row) -> str:
    span = row["span_ns"]
    if not span:
        return ""
    says = f"{_name(row)}: busy {human.share(row['busy_ns'] / span)} of {human.duration(span)}"
    if row["memops_only_ns"]:
        says += f", {human.share(row['memops_only_ns'] / span)} of it with copies and memsets alone"
    return f"{says}; idle {human.duration(row['idle_ns'])}"


def _launches(row: Row) -> str:
    if not row["launches"]:
        return ""
    says = f"{_name(row)}: {human.counted(row['launches'], 'launch', 'launches')}"
    if row["step_launches"] is not None:
        says += f", {human.mean(row['step_launches'])} a step"
    if row["launch_bound_share"] is not None:
        median, most = (human.duration(row[f"queue_{name}_ns"]) for name in ("median", "p95"))
        says += (
            f"; {human.share(row['launch_bound_share'])} of the kernels last less than their "
            f"launch; from its end to the kernel {median} (median), {most} (95th percentile)"
        )
    return says


def _overlap(row: Row) -> str:
    parts = [
        f"{what} {human.duration(row[f'{name}_ns'])}, {human.duration(row[f'{name}_exposed_ns'])} "
        f"of it with no {beside} beside"
        for name, what, beside in (
            ("copy", "copies", "kernel"),
            ("collective", "collectives", "other kernel"),
        )
        if row[f"{name}_ns"]
    ]
    return f"{_name(row)}: {'; '.join(parts)}" if parts else ""

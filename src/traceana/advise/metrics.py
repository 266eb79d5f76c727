"""Figures of a run that a gate can hold to a limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import polars as pl

from traceana.advise.figures import Figures

Unit = Literal["share", "time", "count", "bytes"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure: ``of`` returns it (shares as fractions of 1, times in ns), None where unknown."""

    name: str
    unit: Unit
    title: str
    of: Callable[[Figures], float | None]


def _share(part_ns: int, whole_ns: int) -> float | None:
    return part_ns / whole_ns if whole_ns else None


def _idle(figures: Figures) -> float | None:
    if figures.on_cpu:
        return None
    return _share(figures.window_ns - figures.busy_ns, figures.window_ns)


def _of_work(*categories: str) -> Callable[[Figures], float | None]:
    def of(figures: Figures) -> float | None:
        rows = figures.breakdown.filter(pl.col("category").is_in(categories))
        return _share(int(rows["time_ns"].sum()), figures.work_ns)

    return of


def _pageable(figures: Figures) -> float | None:
    return _share(figures.exposed_pageable_ns, figures.window_ns)


def _plain_fp32(figures: Figures) -> float | None:
    rows = figures.kernels.filter(
        pl.col("category").is_in(["conv", "gemm"])
        & (pl.col("precision") == "fp32")
        & ~pl.col("tensor_core").fill_null(value=True)
    )
    return _share(int(rows["time_ns"].sum()), figures.work_ns)


def _per_step(direction: str, column: str) -> Callable[[Figures], float | None]:
    def of(figures: Figures) -> float | None:
        if not figures.stepped:
            return None
        rows = figures.transfers().filter(pl.col("direction") == direction)
        if rows[column].null_count():
            return None
        return int(rows[column].sum()) / figures.units

    return of


def _kernels_per_step(figures: Figures) -> float | None:
    return int(figures.kernels["calls"].sum()) / figures.units if figures.stepped else None


def _idle_for(*causes: str) -> Callable[[Figures], float | None]:
    return lambda figures: _share(figures.idle_ns(*causes), figures.window_ns)


def _exposed_communication(figures: Figures) -> float | None:
    exposed = int(figures.devices["collective_exposed_ns"].fill_null(0).sum())
    return _share(exposed, figures.window_ns)


def _step_time(figures: Figures) -> float | None:
    walls = figures.measured["wall_ns"]
    return float(walls.median()) if len(walls) else None  # type: ignore[arg-type]


METRICS: Final[tuple[Metric, ...]] = (
    Metric("idle", "share", "idle time of the devices, of the measured steps", _idle),
    Metric(
        "exposed_copy",
        "share",
        "time in which a copy runs and no kernel, of the measured steps",
        lambda figures: _share(figures.exposed_copies_ns, figures.window_ns),
    ),
    Metric(
        "exposed_pageable",
        "share",
        "the same, of copies from or to pageable host memory",
        _pageable,
    ),
    Metric(
        "exposed_communication",
        "share",
        "time in which a collective runs and no other kernel, of the measured steps",
        _exposed_communication,
    ),
    Metric("data_loading", "share", "idle time for the next batch, of the measured steps",
           _idle_for("data_loader")),
    Metric("synchronization", "share", "idle time for synchronizing calls, of the measured steps",
           _idle_for("synchronization")),
    Metric("launch_bound", "share", "kernels shorter than the call that launched them, of those "
           "whose call is known", lambda figures: figures.launch_bound),
    Metric("unclassified", "share", "work of no known class, of all work", _of_work("other")),
    Metric("layout", "share", "layout changes, of all work", _of_work("layout")),
    Metric("collective", "share", "collectives, of all work", _of_work("collective")),
    Metric("bias_activation", "share", "bias and activation kernels, of all work",
           _of_work("bias", "activation")),
    Metric("plain_fp32", "share", "fp32 products without tensor cores, of all work", _plain_fp32),
    Metric("step_time", "time", "median wall time of the measured steps", _step_time),
    Metric("kernels_per_step", "count", "kernels a step and device", _kernels_per_step),
    Metric("h2d_count_per_step", "count", "copies to the device, a step and device",
           _per_step("h2d", "count")),
    Metric("d2h_count_per_step", "count", "copies to the host, a step and device",
           _per_step("d2h", "count")),
    Metric("h2d_bytes_per_step", "bytes", "bytes copied to the device, a step and device",
           _per_step("h2d", "bytes")),
    Metric("d2h_bytes_per_step", "bytes", "bytes copied to the host, a step and device",
           _per_step("d2h", "bytes")),
)  # fmt: skip
"""All figures that ``--max`` knows."""

"""Gates of continuous integration: rules that must not hold, figures with a limit."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Literal

import msgspec
import polars as pl

from traceana.advise.figures import Figures
from traceana.advise.rule import RULES
from traceana.errors import UsageError, suggested

if TYPE_CHECKING:
    from traceana.advise import Advice

Unit = Literal["share", "time", "count", "bytes"]


class Metric(msgspec.Struct, frozen=True):
    """A figure; ``of`` returns its value (shares as fractions of 1, times in ns) or None."""

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
    return _share(figures.exposed_collectives_ns, figures.window_ns)


def _step_time(figures: Figures) -> float | None:
    return None if figures.step_time is None else float(figures.step_time.median_ns)


METRICS: Final[tuple[Metric, ...]] = (
    Metric("idle", "share", "idle time of the devices, of the measured steps", _idle),
    Metric(
        "exposed_copy",
        "share",
        "copy time not overlapped with compute, of the measured steps",
        lambda figures: _share(figures.exposed_copies_ns, figures.window_ns),
    ),
    Metric("exposed_pageable", "share", "the same, of copies of pageable host memory", _pageable),
    Metric(
        "exposed_communication",
        "share",
        "collective time not overlapped with compute, of the measured steps",
        _exposed_communication,
    ),
    Metric("data_loading", "share", "idle time for data loading, of the measured steps",
           _idle_for("data_loader")),
    Metric("synchronization", "share", "idle time for synchronization, of the measured steps",
           _idle_for("synchronization")),
    Metric("launch_bound", "share", "kernels shorter than their launch call, of those with a known "
           "launch", lambda figures: figures.launch_bound),
    Metric("unclassified", "share", "unclassified, of GPU time", _of_work("other")),
    Metric("layout", "share", "layout changes, of GPU time", _of_work("layout")),
    Metric("collective", "share", "collectives, of GPU time", _of_work("collective")),
    Metric("bias_activation", "share", "bias and activation kernels, of GPU time",
           _of_work("bias", "activation")),
    Metric("plain_fp32", "share", "FP32 convolutions and GEMMs without tensor cores, of GPU "
           "time", _plain_fp32),
    Metric("step_time", "time", "median time of the measured steps", _step_time),
    Metric("kernels_per_step", "count", "kernels per step and device", _kernels_per_step),
    Metric("htod_count_per_step", "count", "HtoD copies per step and device",
           _per_step("HtoD", "count")),
    Metric("dtoh_count_per_step", "count", "DtoH copies per step and device",
           _per_step("DtoH", "count")),
    Metric("htod_bytes_per_step", "bytes", "HtoD bytes per step and device",
           _per_step("HtoD", "bytes")),
    Metric("dtoh_bytes_per_step", "bytes", "DtoH bytes per step and device",
           _per_step("DtoH", "bytes")),
)  # fmt: skip
"""The figures of ``--max``."""

_FORMER: Final = {"h2d_": "htod_", "d2h_": "dtoh_"}
"""Former beginnings of names, which are still taken."""
_LIMIT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-zµ%]*)")
_LONGEST: Final = 40

SUFFIXES: Final[dict[Unit, dict[str, float]]] = {
    "share": {"%": 0.01, "": 1.0},
    "time": {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9},
    "count": {"": 1.0},
    "bytes": {"": 1.0, "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9},
}
"""The units of a limit, by the metric's unit."""


class Limit(msgspec.Struct, frozen=True):
    """The maximum of a figure, in the metric's unit."""

    metric: Metric
    most: float
    text: str


class Broken(msgspec.Struct, frozen=True):
    """A failed gate: a rule that holds, or a limit and the value of its figure (None: unknown)."""

    gate: str | Limit
    value: float | None = None

    @property
    def unknown(self) -> bool:
        """Whether the figure is not in the trace, so that the gate is inconclusive."""
        return isinstance(self.gate, Limit) and self.value is None


def rules_of(text: str) -> tuple[str, ...]:
    """Return the rule ids of ``a,b``. Raises :class:`~traceana.errors.UsageError`.

    ``any`` is replaced by all rules with a saving.
    """
    known = {rule.id: rule for rule in RULES}
    found: list[str] = []
    for word in (piece.strip() for piece in text.split(",")):
        if word == "any":
            found += [rule.id for rule in RULES if rule.kind in ("estimate", "upper bound")]
        elif word in known:
            found.append(word)
        else:
            raise UsageError(
                f"unknown rule {_cut(word)!r}{suggested(word, known)}: see traceana advise --list"
            )
    return tuple(dict.fromkeys(found))


def limit_of(text: str) -> Limit:
    """Return the limit of ``name=5%``; raises :class:`~traceana.errors.UsageError`."""
    name, sign, limit = (piece.strip() for piece in text.partition("="))
    name = _FORMER.get(name[:4], name[:4]) + name[4:]
    metric = next((one for one in METRICS if one.name == name), None)
    if metric is None:
        names = [one.name for one in METRICS]
        raise UsageError(
            f"unknown figure {_cut(name)!r}{suggested(name, names)}; figures: {', '.join(names)}"
        )
    match = _LIMIT.fullmatch(limit) if sign else None
    suffixes = SUFFIXES[metric.unit]
    if match is None or match.group(2) not in suffixes:
        raise UsageError(
            f"bad limit {_cut(limit)!r} for {name}: use a number"
            f"{_with([suffix for suffix in suffixes if suffix], '' not in suffixes)}, "
            f"as in {name}={_EXAMPLE[metric.unit]}"
        )
    number, suffix = match.groups()
    return Limit(metric, float(number) * suffixes[suffix], limit)


def broken(
    figures: Figures, advice: Advice, rules: Sequence[str], limits: Sequence[Limit]
) -> list[Broken]:
    """Return the failed gates of the trace of ``figures`` and ``advice``.

    They include gates on figures that are not in the trace, as unknown. A rule holds by its own
    estimate, also where the simulated saving is too small to be listed.
    """
    holding = {finding.rule.id for finding in (*advice.findings, *advice.small)}
    found = [Broken(rule) for rule in rules if rule in holding]
    for limit in limits:
        value = limit.metric.of(figures)
        if value is None or value > limit.most:
            found.append(Broken(limit, value))
    return found


_EXAMPLE: Final[dict[Unit, str]] = {
    "share": "5%",
    "time": "120ms",
    "count": "10",
    "bytes": "50MB",
}


def _with(suffixes: list[str], needed: bool) -> str:
    if not suffixes:
        return ""
    return f" with {'' if needed else 'or without '}{' or '.join(suffixes)}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"

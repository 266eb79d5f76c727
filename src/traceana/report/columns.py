"""How each column of any result is shown to people, and its unit in the JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any, Final

import polars as pl

from traceana.report import human
from traceana.report.names import brief
from traceana.report.text import plain
from traceana.trace.schema import CPU_DEVICE


class Kind(Enum):
    """What the values of a column are."""

    TEXT = auto()
    LONG = auto()  # text that may be long: takes the width that is left
    KERNEL = auto()  # a kernel's name
    PATH = auto()  # a layer's path
    NUMBER = auto()  # an ordinal or identifier: no thousands set apart
    COUNT = auto()
    MEAN = auto()  # mean of counts
    TIME = auto()
    BYTES = auto()
    BINARY = auto()  # bytes in powers of two
    RATE = auto()
    SHARE = auto()
    FLOPS = auto()
    FLOP_RATE = auto()
    INTENSITY = auto()
    RATIO = auto()
    CHANCE = auto()  # a p value
    FLAG = auto()
    DEVICE = auto()


_LONG: Final = (Kind.LONG, Kind.KERNEL, Kind.PATH)

UNITS: Final[dict[Kind, str]] = {
    Kind.TIME: "ns",
    Kind.BYTES: "B",
    Kind.BINARY: "B",
    Kind.RATE: "B/s",
    Kind.SHARE: "fraction of 1",
    Kind.FLOPS: "FLOP",
    Kind.FLOP_RATE: "FLOP/s",
    Kind.INTENSITY: "FLOP/B",
}

PER_CALL: Final = frozenset({"mean_ns", "median_ns", "min_ns", "max_ns"})

_KINDS: Final[dict[str, Kind]] = {
    "name": Kind.KERNEL,
    "range": Kind.LONG,
    "call": Kind.LONG,
    "layer": Kind.PATH,
    "title": Kind.LONG,
    "finding": Kind.LONG,
    "estimate": Kind.LONG,
    "doubt": Kind.LONG,
    "pytorch": Kind.LONG,
    "tensorflow": Kind.LONG,
    "jax": Kind.LONG,
    "shape": Kind.LONG,
    "algorithms": Kind.LONG,
    "reason": Kind.LONG,
    "derivation": Kind.LONG,
    "operator": Kind.LONG,
    "operators": Kind.LONG,
    "also_matched": Kind.LONG,
    "value": Kind.LONG,
    "calls": Kind.COUNT,
    "algorithm": Kind.LONG,
    "count": Kind.COUNT,
    "devices": Kind.COUNT,
    "blocks": Kind.MEAN,
    "multiprocessors": Kind.COUNT,
    "short_calls": Kind.COUNT,
    "in_runs": Kind.COUNT,
    "longest": Kind.COUNT,
    "tried": Kind.COUNT,
    "steps_count": Kind.COUNT,
    "copies_count": Kind.COUNT,
    "launches_count": Kind.COUNT,
    "culprit": Kind.KERNEL,
    "launches": Kind.COUNT,
    "launch_bound": Kind.COUNT,
    "step_launches": Kind.MEAN,
    "launch_bound_share": Kind.SHARE,
    "idle_share": Kind.SHARE,
    "before": Kind.KERNEL,
    "after": Kind.KERNEL,
    "bytes": Kind.BYTES,
    "mean_bytes": Kind.BYTES,
    "size": Kind.BINARY,
    "step_bytes": Kind.BYTES,
    "bytes_per_s": Kind.RATE,
    "median_bytes_per_s": Kind.RATE,
    "peak_bytes_per_s": Kind.RATE,
    "large_bytes_per_s": Kind.RATE,
    "workspace_bytes": Kind.BYTES,
    "peak_share": Kind.SHARE,
    "step_share": Kind.SHARE,
    "saving_share": Kind.SHARE,
    "flops_share": Kind.SHARE,
    "unused_share": Kind.SHARE,
    "step_count": Kind.MEAN,
    "synchronous": Kind.COUNT,
    "staged": Kind.COUNT,
    "asynchronous": Kind.COUNT,
    "share": Kind.SHARE,
    "measured": Kind.COUNT,
    "measured_flops": Kind.FLOPS,
    "fp64_flops": Kind.FLOPS,
    "fp32_flops": Kind.FLOPS,
    "fp16_flops": Kind.FLOPS,
    "tensor_flops": Kind.FLOPS,
    "of_peak": Kind.SHARE,
    "of_attainable": Kind.SHARE,
    "intensity": Kind.INTENSITY,
    "ratio": Kind.INTENSITY,
    "flops": Kind.FLOPS,
    "executed_flops": Kind.FLOPS,
    "alternative_flops": Kind.FLOPS,
    "flops_per_s": Kind.FLOP_RATE,
    "measured_flops_per_s": Kind.FLOP_RATE,
    "dram_bytes": Kind.BYTES,
    "dram_bytes_per_s": Kind.RATE,
    "tensor_active": Kind.SHARE,
    "step": Kind.NUMBER,
    "process": Kind.NUMBER,
    "stream": Kind.NUMBER,
    "thread": Kind.NUMBER,
    "allocations": Kind.COUNT,
    "position": Kind.NUMBER,
    "rank": Kind.NUMBER,
    "device": Kind.DEVICE,
    "warm_up": Kind.FLAG,
    "batched": Kind.FLAG,
    "small": Kind.FLAG,
    "tensor_core": Kind.FLAG,
    "a": Kind.PATH,
    "b": Kind.PATH,
    "confidence": Kind.SHARE,
    "relative": Kind.SHARE,
    "of_step": Kind.SHARE,
    "p": Kind.CHANCE,
    "run": Kind.LONG,
    "on": Kind.LONG,
    "source": Kind.LONG,
    "reference": Kind.LONG,
    "batch": Kind.NUMBER,
    "larger_batch": Kind.NUMBER,
    "steps": Kind.COUNT,
    "images_per_s": Kind.MEAN,
    "relative_speed": Kind.RATIO,
    "speed_up": Kind.RATIO,
    "efficiency": Kind.SHARE,
    "communication_share": Kind.SHARE,
    "exposed_share": Kind.SHARE,
    "of_parameters": Kind.SHARE,
    "residual_share": Kind.SHARE,
    "fits_better": Kind.FLAG,
    "direct_flops": Kind.FLOPS,
    "layers": Kind.COUNT,
    "of_layers": Kind.COUNT,
    "to_first": Kind.RATIO,
    "image_to_first": Kind.RATIO,
    "step_calls": Kind.MEAN,
    "step_kernels": Kind.MEAN,
    "step_copies": Kind.MEAN,
    "calls_a": Kind.MEAN,
    "calls_b": Kind.MEAN,
    "bytes_a": Kind.BYTES,
    "bytes_b": Kind.BYTES,
    "bytes_per_s_a": Kind.RATE,
    "bytes_per_s_b": Kind.RATE,
    "flops_a": Kind.FLOPS,
    "flops_b": Kind.FLOPS,
    "flops_per_s_a": Kind.FLOP_RATE,
    "flops_per_s_b": Kind.FLOP_RATE,
}

_ZERO_TELLS: Final = frozenset({"exposed_ns"})
"""Durations that are worth their width when all of them are 0."""

_CALLED: Final = {
    "bytes_per_s": "throughput",
    "flops_per_s": "FLOP/s",
    "executed_flops": "executed",
    "tensor_active": "tensor",
    "host_memory": "memory",
    "mean_bytes": "mean",
    "peak_share": "of peak",
    "step_share": "of step",
    "step_count": "per step",
    "step_bytes": "bytes per step",
    "size": "size from",
    "linear": "O(N-1)",
    "logarithmic": "O(log N)",
}


@dataclass(frozen=True, slots=True)
class Shown:
    """A column made ready for a table of text: its title, unit (may be empty) and cells."""

    title: str
    kind: Kind
    cells: list[str]
    total: str = ""
    unit: str = ""

    @property
    def right(self) -> bool:
        """Whether the column is of numbers."""
        return self.kind not in (Kind.TEXT, *_LONG, Kind.FLAG)

    @property
    def long(self) -> bool:
        """Whether the cells may be too long for a line."""
        return self.kind in _LONG


def kind_of(column: str) -> Kind:
    """Return the kind of ``column``: what is listed, by its ``_ns`` or ``_bytes``, else text."""
    if column in _KINDS:
        return _KINDS[column]
    if column.endswith("_bytes"):
        return Kind.BYTES
    return Kind.TIME if column.endswith("_ns") else Kind.TEXT


def unit_of(column: str) -> str | None:
    """Return the unit of ``column`` in CSV, JSON and Parquet output; null for those without."""
    return UNITS.get(kind_of(column))


def title_of(column: str) -> str:
    """Return what ``column`` is called in a table of text; its unit is told apart."""
    title = column.removesuffix("_ns")
    for written, called in _CALLED.items():
        title = title.replace(written, called)
    return title.replace("_", " ")


def tells(values: pl.Series) -> bool:
    """Tell whether a column is worth its width: not all null, and no durations that are all 0."""
    if values.null_count() == len(values):
        return False
    zero_tells = kind_of(values.name) is not Kind.TIME or values.name in _ZERO_TELLS
    return zero_tells or bool((values != 0).any())


def show(frame: pl.DataFrame, totals: Mapping[str, int], columns: Iterable[str]) -> list[Shown]:
    """Return those of ``columns`` of ``frame`` that tell something, for people.

    Durations that belong beside each other share one unit: those of single calls, and the others.
    """
    wanted = [column for column in columns if tells(frame[column])]
    times = [column for column in wanted if kind_of(column) is Kind.TIME]
    units: dict[str, human.Unit] = {}
    for group in (set(times) & PER_CALL, set(times) - PER_CALL):
        values = [value for c in group for value in (frame[c].max(), totals.get(c))]
        units |= dict.fromkeys(group, human.time_unit(values))  # type: ignore[arg-type]
    return [_shown(frame[column], totals.get(column), units.get(column)) for column in wanted]


def shown(kind: Kind, value: Any) -> str:
    """Return one value for people, with its unit."""
    return human.duration(value) if kind is Kind.TIME else _WRITERS[kind](value)


def _shown(values: pl.Series, total: int | None, unit: human.Unit | None) -> Shown:
    kind = kind_of(values.name)
    if kind is Kind.COUNT and values.dtype.is_float():
        kind = Kind.MEAN
    write = _WRITERS[kind] if unit is None else partial(human.in_unit, unit=unit)
    return Shown(
        title_of(values.name),
        kind,
        ["" if value is None else write(value) for value in values],
        "" if total is None else write(total),
        "" if unit is None else unit[1],
    )


_WRITERS: Final[dict[Kind, Callable[[Any], str]]] = {
    Kind.TEXT: lambda value: plain(str(value)),
    Kind.LONG: lambda value: plain(str(value)),
    Kind.PATH: lambda value: plain(str(value)),
    Kind.KERNEL: lambda value: brief(str(value)),
    Kind.NUMBER: str,
    Kind.COUNT: human.count,
    Kind.MEAN: human.mean,
    Kind.BYTES: human.size,
    Kind.BINARY: human.power_of_two,
    Kind.RATE: human.rate,
    Kind.SHARE: human.share,
    Kind.FLOPS: human.flops,
    Kind.FLOP_RATE: human.flop_rate,
    Kind.INTENSITY: human.ratio,
    Kind.RATIO: human.ratio,
    Kind.CHANCE: lambda value: f"{value:.3f}",
    Kind.FLAG: lambda value: "yes" if value else "no",
    Kind.DEVICE: lambda value: "cpu" if value == CPU_DEVICE else str(value),
}

"""What the values of each column of any result are, and their unit in the JSON."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


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

_KINDS: Final[dict[str, Kind]] = {
    "name": Kind.KERNEL,
    "range": Kind.LONG,
    "call": Kind.LONG,
    "layer": Kind.PATH,
    "title": Kind.LONG,
    "finding": Kind.LONG,
    "estimate": Kind.LONG,
    "caveat": Kind.LONG,
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
    "algbw_bytes_per_s": Kind.RATE,
    "busbw_bytes_per_s": Kind.RATE,
    "ranks": Kind.COUNT,
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

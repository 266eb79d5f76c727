"""What a device can do at most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

How = Literal["datasheet", "computed", "measured"]

RATES: Final = (
    *("fp64", "fp64_tensor", "fp32", "fp32_tensor", "tf32_tensor"),
    *("fp16", "fp16_tensor", "fp16_tensor_fp16_accumulate", "bf16", "bf16_tensor"),
    *("fp8_tensor", "int8_tensor", "fp4_tensor"),
)
"""The rates that a device may have. ``_tensor``: on tensor or matrix cores, accumulating in float32
where the operands are of 16 or 8 bits."""

_REAL: Final = {"c64": "fp32", "c128": "fp64", "w4a16": "fp16", "w8a16": "fp16"}
"""What is multiplied: pairs of real numbers for complex ones, weights unpacked to 16 bits."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """The highest rates of a device, dense, a multiply-accumulate being two operations.

    ``flops`` has operations per second by :data:`RATES`, without those that nobody told.
    ``bandwidth`` is of its memory, in bytes per second. ``how`` says whether the vendor printed the
    figures, whether they are multiprocessors times clock times the architecture's rate, or whether
    they were measured; ``source`` names the document, the rates or the measurement.
    """

    name: str
    how: How
    source: str
    flops: Mapping[str, float]
    bandwidth: float | None = None


def peak_for(peaks: Peaks, precision: str | None, tensor_core: bool | None) -> float | None:
    """Return the operations per second that a kernel of this class can reach, None if unknown.

    ``precision`` and ``tensor_core`` are the columns of ``names``. Where it is not known whether
    the tensor cores are used they are taken not to be, but for precisions that they alone have.
    """
    if precision is None:
        return None
    real = _REAL.get(precision, precision)
    on_tensor_cores = f"{real}_tensor"
    if tensor_core or real not in RATES:
        return peaks.flops.get(on_tensor_cores)
    return peaks.flops.get(real)

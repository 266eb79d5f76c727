"""Two models of a step's time on several devices, fitted by least squares.

Gathering gradients costs O(N-1) when one device collects them one after the other, and O(log N)
when they are added up along a tree (Kim et al., ISPASS 2017):

    T(N) = T_compute · s(N) + T_gather · g(N),   g(N) = N - 1  or  log₂ N

with s(N) = 1/N where the devices share a batch, and 1 where each has a batch of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

Gathering = Literal["O(N-1)", "O(log N)"]
GATHERINGS: Final[tuple[Gathering, ...]] = ("O(N-1)", "O(log N)")
FEWEST_COUNTS: Final = 3
"""Fewer device counts than this fit any two parameters: they would tell nothing."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fit:
    """A model with its two times (ns) and what it leaves of the measured ones.

    ``residual_ns`` is the root of the mean square of measured less fitted time, ``residual_share``
    that over the mean of the measured times.
    """

    gathering: Gathering
    shared_batch: bool
    compute_ns: float
    gather_ns: float
    residual_ns: float
    residual_share: float

    def step_ns(self, devices: Sequence[int] | Floats) -> Floats:
        """Return the time of a step on so many devices."""
        design = _design(self.gathering, devices, self.shared_batch)
        return np.asarray(design @ np.array([self.compute_ns, self.gather_ns]), dtype=np.float64)


def fits(
    devices: Sequence[int], step_ns: Sequence[float], *, shared_batch: bool
) -> tuple[Fit, ...] | None:
    """Return both models fitted to the times of steps, the one that leaves less first.

    None where there are fewer than three numbers of devices. Raises ``ValueError`` on lists of
    different lengths and on numbers of devices below 1.
    """
    if len(devices) != len(step_ns):
        raise ValueError(f"{len(devices)} numbers of devices and {len(step_ns)} times")
    if any(count < 1 for count in devices):
        raise ValueError("a number of devices below 1")
    if len(set(devices)) < FEWEST_COUNTS:
        return None
    measured = np.asarray(step_ns, dtype=np.float64)
    found = [_fit(gathering, devices, measured, shared_batch) for gathering in GATHERINGS]
    return tuple(sorted(found, key=lambda fit: fit.residual_ns))


def _fit(gathering: Gathering, devices: Sequence[int], measured: Floats, shared_batch: bool) -> Fit:
    design = _design(gathering, devices, shared_batch)
    (compute, gather), *_ = np.linalg.lstsq(design, measured, rcond=None)
    residual = float(np.sqrt(np.mean((measured - design @ np.array([compute, gather])) ** 2)))
    mean = float(measured.mean())
    return Fit(
        gathering,
        shared_batch,
        float(compute),
        float(gather),
        residual,
        residual / mean if mean else 0.0,
    )


def _design(gathering: Gathering, devices: Sequence[int] | Floats, shared_batch: bool) -> Floats:
    count = np.asarray(devices, dtype=np.float64)
    computing = 1 / count if shared_batch else np.ones_like(count)
    return np.column_stack([computing, count - 1 if gathering == GATHERINGS[0] else np.log2(count)])

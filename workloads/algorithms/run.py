"""Measures all layers, directions and batch sizes within the time limit."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from math import inf
from time import monotonic
from typing import Any, Literal, Protocol

from workloads.algorithms.study import Device, Direction, Layer, Measurement


class DeviceLostError(RuntimeError):
    """The device failed during a measurement; the message is the device's error."""


class Bench(Protocol):
    """A library on a device."""

    @property
    def library(self) -> Literal["cuDNN", "oneDNN"]: ...
    @property
    def version(self) -> str: ...
    @property
    def device(self) -> Device: ...
    @property
    def precision(self) -> Literal["fp32", "tf32"]: ...
    @property
    def layout(self) -> Literal["nchw", "nhwc", "own"]: ...
    @property
    def tolerance(self) -> float: ...
    @property
    def versions(self) -> Mapping[str, str]: ...

    def measure(self, layer: Layer, direction: Direction, batch: int) -> Iterator[Measurement]:
        """Yield a measurement of each algorithm. May raise :class:`DeviceLostError`."""


@dataclass(frozen=True)
class Plan:
    """The measured cases. ``seconds`` limits the whole run: no algorithm starts after it."""

    network: str
    layers: Sequence[Layer]
    directions: Sequence[Direction]
    batches: Sequence[int]
    warm_up: int
    seconds: float | None = None


@dataclass
class Run:
    """The measurements so far, also of a run that was interrupted."""

    plan: Plan
    bench: Bench
    measurements: list[Measurement] = field(default_factory=list)
    ended: str | None = None

    def measure(self, log: Callable[[str], None]) -> None:
        """Measure by batch size, smallest first, and pass a line to ``log`` after each."""
        limit = self.plan.seconds
        until = inf if limit is None else monotonic() + limit
        for batch in sorted(self.plan.batches):
            before, since = len(self.measurements), monotonic()
            for layer, direction in product(self.plan.layers, self.plan.directions):
                case = f"{layer.path}, {direction}, batch {batch}"
                measured = self.bench.measure(layer, direction, batch)
                try:
                    while monotonic() <= until:
                        if (each := next(measured, None)) is None:
                            break
                        self.measurements.append(each)
                    else:
                        self.ended = f"time limit of {limit:g} s reached at {case}"
                        if rest := [str(each) for each in self.plan.batches if each > batch]:
                            self.ended += f"; no batch {', '.join(rest)}"
                        return
                except (RuntimeError, MemoryError) as error:
                    # Measurements are kept after a failure of the library or the device.
                    lines = str(error).splitlines() or [type(error).__name__]
                    self.ended = f"{case}: {lines[0]}"
                    return
            done = self.measurements[before:]
            ran = sum(each.status == "ok" for each in done)
            spent = monotonic() - since
            log(f"batch {batch}: {len(done)} algorithms, {ran} timed, in {spent:.1f} s")

    def study(self) -> dict[str, Any]:
        """Return the study that is written to the file."""
        return {
            "format": "traceana-algorithms",
            "version": 1,
            "library": self.bench.library,
            "library_version": self.bench.version,
            "device": asdict(self.bench.device),
            "network": self.plan.network,
            "precision": self.bench.precision,
            "layout": self.bench.layout,
            "warm_up": self.plan.warm_up,
            "tolerance": self.bench.tolerance,
            "recorded": datetime.now(UTC).strftime("%Y-%m-%d"),
            "versions": {"python": platform.python_version(), **_versions(), **self.bench.versions},
            "ended": self.ended,
            "layers": [asdict(layer) for layer in self.plan.layers],
            "measurements": [each.row() for each in self.measurements],
        }


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for package in ("numpy", "torch"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found

"""Timed convolution algorithms: the file of a study, and its tables. See ``docs/algorithms.md``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from traceana.algorithms.file import read, write
from traceana.algorithms.model import AlgorithmStudy, Device, Layer, Measurement

if TYPE_CHECKING:
    from traceana.algorithms.frames import by_batch, by_layer, measurements

__all__ = [
    "AlgorithmStudy",
    "Device",
    "Layer",
    "Measurement",
    "by_batch",
    "by_layer",
    "measurements",
    "read",
    "write",
]


def __getattr__(name: str) -> Any:
    # The tables need polars, which a machine that only measures need not have.
    if name in ("by_batch", "by_layer", "measurements"):
        from traceana.algorithms import frames

        return getattr(frames, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

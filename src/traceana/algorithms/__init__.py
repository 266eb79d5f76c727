"""Timed convolution algorithms: the file of a study, and its tables. See ``docs/algorithms.md``."""

from __future__ import annotations

from traceana.algorithms.file import read
from traceana.algorithms.frames import by_batch, by_layer, measurements
from traceana.algorithms.model import AlgorithmStudy, Device, Layer, Measurement

__all__ = [
    "AlgorithmStudy",
    "Device",
    "Layer",
    "Measurement",
    "by_batch",
    "by_layer",
    "measurements",
    "read",
]

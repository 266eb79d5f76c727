"""The peaks of devices: rates of arithmetic by precision, and memory bandwidth."""

from __future__ import annotations

from traceana.flops.peaks.lookup import peaks_of, with_device_model
from traceana.flops.peaks.model import RATES, Peaks, peak_for

__all__ = ["RATES", "Peaks", "peak_for", "peaks_of", "with_device_model"]

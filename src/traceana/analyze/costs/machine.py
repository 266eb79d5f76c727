"""The peaks of the device that the selected work ran on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceana.analyze.work import work
from traceana.flops.cost import Refusal
from traceana.flops.peaks import Peaks, peaks_of
from traceana.trace.schema import CPU_DEVICE

if TYPE_CHECKING:
    from traceana.trace import Trace


def machine(trace: Trace) -> tuple[Peaks | None, str]:
    """Return the peaks that all devices at work share, and the sentence that says whose they are.

    None for a CPU (its peaks are measured, on request), for devices that differ, and where nothing
    is known of the device; the sentence says which.
    """
    used = work(trace)["device"].drop_nulls().unique()
    if (used == CPU_DEVICE).any():
        return None, "no peak: a CPU's is measured on the machine itself, with --calibrate"
    rows = trace.devices.filter(pl.col("device").is_in(used.implode()))
    told = rows.drop("device", "rank").unique(maintain_order=True)
    if told.is_empty():
        return None, "no peak: the trace does not say which device it was"
    found = [peaks_of(row) for row in told.iter_rows(named=True)]
    known = {peak.name: peak for peak in found if isinstance(peak, Peaks)}
    refused = next((peak for peak in found if isinstance(peak, Refusal)), None)
    if refused is not None:
        return None, f"no peak: {refused.reason}"
    if len(known) > 1:
        return None, "no peak: the work ran on devices of several kinds (choose with --device)"
    (peaks,) = known.values()
    return peaks, f"peaks of {peaks.name}: {peaks.how}, {peaks.source}"

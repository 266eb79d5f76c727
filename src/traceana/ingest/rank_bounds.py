"""Which ranks of a run can be added up: sums over all of them fit int64.

The sums of one file fit (:mod:`traceana.ingest.integrity`). Rows of an attributed trace refer to
each other by number, so a rank is left out whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from traceana.ingest.integrity import FARTHEST_NS, LARGEST_SUM, LONGEST_TRACE_NS
from traceana.trace import Trace
from traceana.trace.schema import TABLES, TIME_COLUMNS

_SUMMED: Final = ("duration", "bytes")


def summable(traces: Sequence[Trace]) -> list[bool]:
    """Return which of ``traces`` can be merged, those with the smallest sums and extents first.

    Durations and bytes of a table are added up over all ranks, and so is the extent of the run
    over all devices.
    """
    sums = [_sums(trace) for trace in traces]
    extents = [_extent(trace) for trace in traces]
    devices = [_devices(trace) for trace in traces]
    kept = [True] * len(traces)
    for of_column in zip(*sums, strict=True):
        total = 0
        for i in sorted(range(len(traces)), key=of_column.__getitem__):
            total += of_column[i] if kept[i] else 0
            kept[i] &= total <= LARGEST_SUM
    together = 0
    for i in sorted(range(len(traces)), key=extents.__getitem__):
        together += devices[i] if kept[i] else 0
        # One rank is as it would be alone.
        kept[i] &= extents[i] * together <= LARGEST_SUM or together == devices[i]
    return kept


def with_near_epochs(traces: Sequence[Trace]) -> list[Trace]:
    """Return ``traces``, those with an epoch before 1970, or far from the median, without it."""
    epochs = sorted(
        epoch
        for trace in traces
        if (epoch := trace.meta.epoch_ns) is not None and 0 <= epoch < FARTHEST_NS
    )
    median = epochs[len(epochs) // 2] if epochs else 0
    # The extent of all ranks is added up over their devices.
    devices = sum(map(_devices, traces))
    farthest = min(LONGEST_TRACE_NS, LARGEST_SUM // (4 * devices))
    return [
        trace
        if (epoch := trace.meta.epoch_ns) is None
        or (0 <= epoch < FARTHEST_NS and abs(epoch - median) <= farthest)
        else trace.with_meta(epoch_ns=None)
        for trace in traces
    ]


def _sums(trace: Trace) -> list[int]:
    return [
        int(trace.table(name)[column].abs().sum() or 0)
        for name, columns in TABLES.items()
        for column in _SUMMED
        if column in columns
    ]


def _extent(trace: Trace) -> int:
    ends = [
        end
        for name, columns in TIME_COLUMNS.items()
        for column in columns
        for end in (trace.table(name)[column].min(), trace.table(name)[column].max())
        if isinstance(end, int)
    ]
    return max(ends, default=0) - min(ends, default=0)


def _devices(trace: Trace) -> int:
    return max(1, trace.activities["device"].n_unique())

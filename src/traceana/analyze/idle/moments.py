"""All the gaps of a trace with their causes, and when its devices were busy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceana.analyze.idle.gaps import gaps, recording
from traceana.analyze.idle.host import host_time
from traceana.analyze.idle.judge import judged
from traceana.analyze.intervals import Busy
from traceana.analyze.work import work
from traceana.trace.schema import CPU_DEVICE

if TYPE_CHECKING:
    from traceana.trace import Trace

COLUMNS = (
    *("rank", "device", "start", "end", "before", "after"),
    *("cause", "explained", "call", "range", "op"),
)


@dataclass(frozen=True, slots=True)
class Moments:
    """The gaps of the selected devices, in the whole recording, and when the devices were busy.

    ``gaps`` has :data:`COLUMNS`; row numbers are those of the whole trace. ``busy`` is of any work,
    by device.
    """

    gaps: pl.DataFrame
    busy: Busy


def moments(trace: Trace) -> Moments:
    """Return the gaps of the devices that ``trace`` has work of."""
    whole = trace.whole
    places = work(trace).select("rank", "device").drop_nulls("device").unique()
    columns = ("rank", "device", "start", "duration", "kind")
    everything = whole.activities.select(columns).with_row_index("row")
    of_devices = everything.filter(pl.col("kind") != "sync", pl.col("device") != CPU_DEVICE).join(
        places, on=["rank", "device"], how="semi", nulls_equal=True
    )
    bounds = recording(whole)
    found = judged(whole, gaps(of_devices, bounds)).select(COLUMNS)
    busy = dict(Busy.of(of_devices).by_place)
    parts = [found]
    hosts = places.filter(pl.col("device") == CPU_DEVICE).select("rank")
    for rank, begin, finish in bounds.join(hosts, on="rank", nulls_equal=True).iter_rows():
        host = host_time(whole, rank, begin, finish)
        busy[rank, CPU_DEVICE] = host.busy
        parts.append(host.gaps.select(COLUMNS))
    return Moments(pl.concat(parts), Busy(busy))

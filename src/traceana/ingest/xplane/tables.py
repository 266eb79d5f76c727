"""From the planes' events to the canonical tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import polars as pl

from traceana.ingest.integrity import screen
from traceana.ingest.names import NameTable
from traceana.ingest.rebase import rebase
from traceana.ingest.xplane.activities import STREAM, activities
from traceana.ingest.xplane.derived import derived_ranges
from traceana.ingest.xplane.devices import device_number, devices, gpu_number, is_device
from traceana.ingest.xplane.facts import process_id
from traceana.ingest.xplane.hlo import HloPrograms
from traceana.ingest.xplane.host import host_tables
from traceana.ingest.xplane.plane_events import PlaneEvents
from traceana.ingest.xplane.space import Line, Plane, Space
from traceana.trace import Ledger
from traceana.trace.schema import conform, empty

_STREAM: Final = re.compile(STREAM)
_OFF_ZERO: Final = 1
"""Added to all times for a while: these clocks may begin at 0, which elsewhere is a lost time."""
_TIMED: Final = ("activities", "calls", "ops", "ranges")


def is_stream(plane: Plane, line: Line) -> bool:
    """Tell whether a line is a stream of a GPU, whose events are device work."""
    return gpu_number(plane) is not None and _STREAM.match(line.name) is not None


class Tables:
    """Gathers what the planes hold, then makes one set of tables of it."""

    def __init__(self, hlo: HloPrograms, ledger: Ledger) -> None:
        self._hlo = hlo
        self._ledger = ledger
        self._parts: dict[str, list[pl.DataFrame]] = {name: [] for name in (*_TIMED, "memory")}

    def add(self, plane: Plane, lines: Sequence[Line], events: PlaneEvents) -> None:
        """Take the events of some lines of a plane: all of them streams, or none."""
        if not is_device(plane):
            found = host_tables(events, lines, process_id(plane), self._hlo)
            for table, frame in found.items():
                self._keep(table, frame)
        elif (number := gpu_number(plane)) is not None and any(
            is_stream(plane, line) for line in lines
        ):
            self._keep("activities", activities(events, lines, number, self._hlo))
        else:
            self._keep("ranges", derived_ranges(events, lines, device_number(plane)))

    def keep_ranges(self, ranges: pl.DataFrame) -> None:
        """Take ranges that are of no plane."""
        self._keep("ranges", ranges)

    def finish(self, space: Space) -> tuple[dict[str, pl.DataFrame], int]:
        """Return the tables and the time, on the file's clock, that is now 0."""
        tables = {name: self._screened(name) for name in _TIMED}
        later = pl.col("time") + _OFF_ZERO
        tables["memory"] = self._frame("memory").with_columns(later)
        tables, first_ns = rebase(tables)
        names = NameTable()
        work = tables["activities"]
        tables["activities"] = work.with_columns(names.ids(work["name"]).alias("name_id")).drop(
            "name"
        )
        tables["names"] = names.frame()
        tables["instructions"] = self._hlo.instructions()
        tables["devices"] = devices(space, tables["activities"]["device"])
        tables["ledger"] = self._ledger.frame()
        return tables, first_ns - _OFF_ZERO

    def _keep(self, table: str, frame: pl.DataFrame) -> None:
        if not frame.height:
            return
        if table == "activities":
            named = frame.select("name")
            frame = pl.concat([conform("activities", frame.drop("name")), named], how="horizontal")
        else:
            frame = conform(table, frame)
        self._parts[table].append(frame)

    def _screened(self, table: str) -> pl.DataFrame:
        frame = self._frame(table).with_columns(pl.col("start") + _OFF_ZERO)
        if table != "ranges":
            return screen(frame, table, self._ledger)
        # Nested scopes of one name may begin and end together: they are no duplicates.
        return screen(frame.with_row_index("_place"), table, self._ledger).drop("_place")

    def _frame(self, table: str) -> pl.DataFrame:
        if self._parts[table]:
            return pl.concat(self._parts[table])
        nothing = empty(table)
        if table != "activities":
            return nothing
        return nothing.with_columns(pl.lit(None, pl.Categorical()).alias("name"))

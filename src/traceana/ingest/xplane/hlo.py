"""The compiled programs of XLA in the metadata plane: which instruction an event ran.

A profiled event names its instruction (``hlo_op``) and module; where in the program that came from
(``jit(step)/jvp(conv1)/conv_general_dilated``), its shapes and its window stand in the module
alone, an HloProto whose field numbers are in ``hlo_proto.py``.
"""

from __future__ import annotations

import re
from typing import Final

import polars as pl

from traceana.ingest.xplane.buffer import Buffer
from traceana.ingest.xplane.hlo_proto import read_module
from traceana.ingest.xplane.hlo_rows import Row, rows
from traceana.ingest.xplane.space import Plane, Space
from traceana.ingest.xplane.wire import Field, WireError
from traceana.trace.schema import ROW, conform

METADATA_PLANE: Final = "/host:metadata"
_PROTO: Final = "Hlo Proto"
_LABEL: Final = re.compile(r"^(?P<module>.*)\((?P<program>\d{1,18})\)$", re.DOTALL)
_TEXT_PER_BYTE: Final = 64
"""Characters of shapes in the table for each byte of the program, which names each just once."""
_ROWS: Final = {name: pl.Int64 if name == "parent" else pl.String for name in Row._fields}


class HloPrograms:
    """Looks up instructions; a program is decoded when an event first names it."""

    def __init__(self, buffer: Buffer, space: Space) -> None:
        self._buffer = buffer
        self._places: dict[str, Field] = {}
        self._decoded: dict[str, dict[str, int]] = {}
        self._scopes: list[str | None] = []
        self._parts: list[pl.DataFrame] = []
        for plane in space.planes:
            if plane.name == METADATA_PLANE:
                self._places |= _modules(plane)

    def of(self, events: pl.DataFrame) -> pl.DataFrame:
        """Return ``instruction`` and its ``scope`` of each event, null where none is known.

        ``events`` has the columns hlo_module, program_id and hlo_op. Instructions are rows of
        :meth:`instructions`.
        """
        keys = events.select("hlo_module", "program_id", "hlo_op")
        distinct = keys.unique(maintain_order=True).drop_nulls(["hlo_module", "hlo_op"])
        texts = distinct.cast({"hlo_module": pl.String, "hlo_op": pl.String})
        found = [self._row(*each) for each in texts.rows()]
        scopes = [None if row is None else self._scopes[row] for row in found]
        told = distinct.with_columns(
            pl.Series("instruction", found, dtype=ROW),
            pl.Series("scope", scopes, dtype=pl.String).cast(pl.Categorical()),
        )
        matched = keys.join(
            told, on=keys.columns, how="left", nulls_equal=True, maintain_order="left"
        )
        return matched.select("instruction", "scope")

    def instructions(self) -> pl.DataFrame:
        """Return the table ``instructions`` of the programs that events named."""
        return pl.concat([conform("instructions", pl.DataFrame()), *self._parts])

    def _row(self, module: str, program: int | None, instruction: str) -> int | None:
        for label in (f"{module}({program})", *self._labels(module)):
            if label in self._places:
                if label not in self._decoded:
                    self._decoded[label] = self._decode(label)
                return self._decoded[label].get(instruction)
        return None

    def _labels(self, module: str) -> list[str]:
        """Return the labels of a module whose program is not told, if there is but one."""
        found = [
            label
            for label in self._places
            if label == module or ((m := _LABEL.match(label)) and m["module"] == module)
        ]
        return found if len(found) == 1 else []

    def _decode(self, label: str) -> dict[str, int]:
        """Take a program into the table, and return the row of each instruction by name."""
        first = len(self._scopes)
        proto = self._places[label]
        budget = _TEXT_PER_BYTE * (proto.end - proto.start)
        try:
            found = rows(self._buffer, read_module(self._buffer, proto), budget)
        except WireError:
            return {}
        named = _LABEL.match(label)
        frame = pl.DataFrame(found, schema=_ROWS, orient="row").with_columns(
            pl.lit(named["module"] if named else label).alias("program"),
            pl.lit(int(named["program"]) if named else None, pl.Int64).alias("program_id"),
            pl.col("parent") + first,
        )
        self._scopes += [row.scope for row in found]
        self._parts.append(conform("instructions", frame))
        return {row.name: first + i for i, row in enumerate(found)}


def _modules(plane: Plane) -> dict[str, Field]:
    return {
        plane.event_names[event]: place
        for (event, stat), place in plane.kept_bytes.items()
        if plane.stat_names.get(stat) == _PROTO and event in plane.event_names
    }

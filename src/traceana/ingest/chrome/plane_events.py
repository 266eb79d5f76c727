"""Complete events of some threads, as :class:`traceana.ingest.xplane.plane_events.PlaneEvents`."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from traceana.ingest.xplane.buffer import Mask, Numbers


@dataclass(frozen=True, slots=True)
class JsonEvents:
    """Events of ``trace.json``; ``names`` are those that ``name`` counts."""

    names: list[str | None]
    frame: pl.DataFrame

    @classmethod
    def of(cls, frame: pl.DataFrame) -> JsonEvents:
        """Take the decoder's columns, and beside them a line number, ``line``."""
        names = frame["name"].unique(maintain_order=True)
        numbered = pl.DataFrame({"name": names, "number": range(len(names))})
        found = frame.join(numbered, on="name", how="left", nulls_equal=True, maintain_order="left")
        return cls(names.cast(pl.String).to_list(), found.cast({"line": pl.Int64}))

    @property
    def line(self) -> Numbers:
        """Which of the lines each is on."""
        return self.frame["line"].to_numpy()

    @property
    def name(self) -> Numbers:
        """Which of ``names`` each has."""
        return self.frame["number"].to_numpy()

    @property
    def start(self) -> Numbers:
        """Nanoseconds on the file's clock."""
        return self.frame["start"].to_numpy()

    @property
    def duration(self) -> Numbers:
        """Nanoseconds."""
        return self.frame["duration"].to_numpy()

    def pick(self, rows: Mask) -> JsonEvents:
        """Return some rows."""
        return JsonEvents(self.names, self.frame.filter(pl.Series(rows, dtype=pl.Boolean)))

    def has(self, stat: str) -> Mask:
        """Tell which rows have a stat."""
        if stat not in self.frame.columns:
            return pl.repeat(False, self.frame.height, eager=True).to_numpy()
        return self.frame[stat].is_not_null().to_numpy()

    def integers(self, stat: str) -> pl.Series:
        """Return an integer stat as Int64, null for rows without one."""
        return self.texts(stat).cast(pl.String).cast(pl.Int64, strict=False)

    def texts(self, stat: str) -> pl.Series:
        """Return a text stat as Categorical, null for rows without one."""
        if stat not in self.frame.columns:
            return pl.repeat(None, self.frame.height, dtype=pl.Categorical(), eager=True)
        return self.frame[stat]

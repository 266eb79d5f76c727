"""Complete events of some threads, as :class:`traceana.ingest.xplane.plane_events.PlaneEvents`."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from traceana.ingest.xplane.buffer import Mask, Numbers


class JsonEvents:
    """Events of ``trace.json`` that have a line number, ``line``, beside the decoder's columns."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self._frame = frame
        distinct = frame["name"].unique(maintain_order=True)
        numbered = pl.DataFrame({"name": distinct, "number": range(len(distinct))})
        found = frame.select("name").join(
            numbered, on="name", how="left", nulls_equal=True, maintain_order="left"
        )
        self.names: list[str | None] = distinct.cast(pl.String).to_list()
        self.name: Numbers = found["number"].cast(pl.Int64).to_numpy()
        self.line: Numbers = frame["line"].cast(pl.Int64).to_numpy()
        self.start: Numbers = frame["start"].to_numpy()
        self.duration: Numbers = frame["duration"].to_numpy()

    def labels(self, labels: Sequence[str | None]) -> pl.Series:
        """Return for each row the entry of ``labels``, one for each of ``names``."""
        texts = pl.Series(labels, dtype=pl.String).cast(pl.Categorical())
        return texts.gather(pl.Series(self.name))

    def has(self, stat: str) -> Mask:
        """Tell which rows have a stat."""
        if stat not in self._frame.columns:
            return pl.repeat(False, self._frame.height, eager=True).to_numpy()
        return self._frame[stat].is_not_null().to_numpy()

    def integers(self, stat: str) -> pl.Series:
        """Return an integer stat as Int64, null for rows without one."""
        return self.texts(stat).cast(pl.String).cast(pl.Int64, strict=False)

    def texts(self, stat: str) -> pl.Series:
        """Return a text stat as Categorical, null for rows without one."""
        if stat not in self._frame.columns:
            return pl.repeat(None, self._frame.height, dtype=pl.Categorical(), eager=True)
        return self._frame[stat]

"""Events of some lines of a plane, whatever file they were read from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import polars as pl

from traceana.ingest.xplane.buffer import Mask, Numbers


class PlaneEvents(Protocol):
    """What the tables are made of: an XPlane file and a ``trace.json`` both give it.

    ``line`` indexes the lines asked for, ``name`` indexes ``names``; times are nanoseconds on the
    file's clock.
    """

    @property
    def line(self) -> Numbers: ...
    @property
    def name(self) -> Numbers: ...
    @property
    def start(self) -> Numbers: ...
    @property
    def duration(self) -> Numbers: ...
    @property
    def names(self) -> Sequence[str | None]: ...

    def labels(self, labels: Sequence[str | None]) -> pl.Series:
        """Return for each row the entry of ``labels``, one for each of ``names``."""
        ...

    def has(self, stat: str) -> Mask:
        """Tell which rows have a stat."""
        ...

    def integers(self, stat: str) -> pl.Series:
        """Return an integer stat as Int64, null for rows without one."""
        ...

    def texts(self, stat: str) -> pl.Series:
        """Return a text stat as Categorical, null for rows without one."""
        ...

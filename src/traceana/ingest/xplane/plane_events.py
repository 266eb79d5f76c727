"""Events of some lines of a plane, whatever file they were read from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

import numpy as np
import polars as pl

from traceana.ingest.xplane.buffer import Mask, Numbers


class PlaneEvents(Protocol):
    """What the tables are made of: an XPlane file and a ``trace.json`` both give it.

    ``line`` indexes the lines asked for, ``name`` indexes the plane's names; times are nanoseconds
    on the file's clock.
    """

    @property
    def line(self) -> Numbers: ...
    @property
    def name(self) -> Numbers: ...
    @property
    def start(self) -> Numbers: ...
    @property
    def duration(self) -> Numbers: ...

    def pick(self, rows: Mask) -> Self:
        """Return some rows of events that nothing was picked of."""
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


def labels(texts: Sequence[str | None]) -> pl.Series:
    """Return texts as Categorical, for :func:`of_each` to choose from."""
    return pl.Series(texts, dtype=pl.String).cast(pl.Categorical())


def of_each(values: pl.Series, numbers: Numbers) -> pl.Series:
    """Return for each of ``numbers`` the value in that place."""
    return values.gather(pl.Series(numbers.astype(np.uint32, copy=False)))

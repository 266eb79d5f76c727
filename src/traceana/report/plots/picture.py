"""What a picture shows, before anything is drawn: panels with lines or with bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: its label with the unit; ``log`` is the base of a logarithmic one."""

    label: str
    log: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that gave no figure: where it would stand, and why there is none."""

    x: float
    reason: str


@dataclass(frozen=True, slots=True)
class Line:
    """Points of one series in the order of ``x``, in the units of the axes.

    ``low`` and ``high`` bound each point. A line with a ``dash`` is no measurement (a model, what
    would be ideal): thin, grey, without points.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    failures: Sequence[Failure] = ()
    dash: str | None = None


@dataclass(frozen=True, slots=True)
class Bars:
    """One series of bars: a value for each of the panel's ``rows``, null where there is none.

    ``notes`` stand in place of bars that are not there; a ``printed`` series is a paper's.
    """

    label: str
    values: Sequence[float | None]
    notes: Sequence[str | None] = ()
    printed: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot: lines over ``x``, or bars that lie along ``x``, one group a name of ``rows``."""

    title: str
    x: Axis
    y: Axis | None = None
    lines: Sequence[Line] = ()
    rows: Sequence[str] = ()
    bars: Sequence[Bars] = ()
    mark: float | None = None
    """Of bars: a value to compare with, drawn as a line."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Panels, ``columns`` beside each other, under what was measured (``title``) on what."""

    title: str
    on: Sequence[str] = ()
    panels: Sequence[Panel] = field(default_factory=tuple)
    columns: int = 2
    share: Literal["row", "all"] | None = None
    """Which panels have one y axis: the same rows of bars are then named once."""
    one_scale: bool = False
    """Whether all panels have one x axis: their bars can be compared by their lengths."""

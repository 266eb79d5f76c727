"""Scales and ticks: plain numbers, on logarithmic axes too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

from traceana.report.plots.picture import Axis
from traceana.report.plots.text import drawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_TICKS: Final = 12
_FEW_DECADES: Final = 2.5


def scale(axes: Axes, which: Literal["x", "y"], wanted: Axis, values: Sequence[float]) -> None:
    """Give an axis its label and ticks, and if it is to be logarithmic its scale.

    In base 2, as batches and devices are counted, the ticks are the values that there are, or
    powers of two where those are no counts.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_label_text(drawn(wanted.label, 80))
    positive = [value for value in values if value > 0]
    if wanted.log is None or not positive:
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    else:
        (axes.set_xscale if which == "x" else axes.set_yscale)("log", base=wanted.log)
        axis.set_minor_locator(NullLocator())
        if wanted.log == 2:
            axis.set_major_locator(FixedLocator(_in_base_2(positive)))
        else:
            decades = math.log10(max(positive) / min(positive))
            steps = (1.0, 2.0, 5.0) if decades < _FEW_DECADES else (1.0,)
            axis.set_major_locator(LogLocator(base=10, subs=steps, numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def number(value: float) -> str:
    """Return a number as people write it: ``0.05``, ``2``, ``1,500``."""
    if value == 0 or abs(value) >= 1:
        return f"{value:,.10g}" if value == round(value) else f"{value:,.6g}"
    return f"{value:.6f}".rstrip("0") if abs(value) >= 1e-6 else f"{value:.0e}"


def rounded(value: float) -> str:
    """Return ``value`` with three digits that tell."""
    return number(float(f"{value:.3g}"))


def _in_base_2(positive: Sequence[float]) -> list[float]:
    values = sorted(set(positive))
    if any(value != round(value) for value in values):
        least, most = math.floor(math.log2(values[0])), math.ceil(math.log2(values[-1]))
        values = [2.0**power for power in range(least, most + 1)]
    return values[:: math.ceil(len(values) / _MOST_TICKS)]

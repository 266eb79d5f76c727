"""The steps that are replayed: all of them, or a part of a long trace around its middle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl

from traceana.analyze.steps import measured_steps, span_of
from traceana.settings import REPLAYED_ACTIVITIES

if TYPE_CHECKING:
    from traceana.trace import Trace


class Part(msgspec.Struct, frozen=True):
    """The numbers of the steps to replay, in order, None for the whole trace, and how many
    activities that are."""

    numbers: list[int] | None
    activities: int

    @property
    def note(self) -> str | None:
        """The note on a part of a trace."""
        if self.numbers is None:
            return None
        steps = "step" if len(self.numbers) == 1 else "steps"
        most = f"{REPLAYED_ACTIVITIES:,} activities"
        return f"replayed: {steps} {span_of(self.numbers)}, around the middle (at most {most})"


def part_of(trace: Trace) -> Part:
    """Return the part of ``trace`` to replay.

    It has consecutive steps around the middle of the measured ones with at most
    ``REPLAYED_ACTIVITIES``, after the one before them, with which the replay begins; the middle
    step alone where it has more. A trace without steps is replayed as a whole.
    """
    whole = trace.whole
    if trace.steps.is_empty() or whole.activities.height <= REPLAYED_ACTIVITIES:
        return Part(None, whole.activities.height)
    numbers = whole.steps.group_by("number").agg(pl.col("start").min()).sort("start")["number"]
    counts = _activities(whole, numbers)
    chosen = trace.steps["number"].gather(measured_steps(trace).rows).unique()
    (measured,) = np.nonzero(numbers.is_in(chosen.implode()).to_numpy())
    first = last = middle = int(measured[len(measured) // 2])
    lowest, highest = max(int(measured[0]) - 1, 0), int(measured[-1])
    left = REPLAYED_ACTIVITIES - counts[middle]
    while first > lowest or last < highest:
        # In turn, so that the first that is added is the one before.
        before = last == highest or (first > lowest and middle - first <= last - middle)
        left -= counts[first - 1 if before else last + 1]
        if left < 0:
            break
        first, last = (first - 1, last) if before else (first, last + 1)
    return Part(numbers[first : last + 1].to_list(), sum(counts[first : last + 1]))


def _activities(trace: Trace, numbers: pl.Series) -> list[int]:
    """Return how many activities each of the steps ``numbers`` launched, of all processes."""
    own = trace.steps["number"].gather(trace.activities["step"].drop_nulls())
    counted = own.value_counts(name="count")
    of = dict(zip(counted["number"], counted["count"], strict=True))
    return [of.get(number, 0) for number in numbers]

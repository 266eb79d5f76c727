"""How far what a diff says can be believed, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from traceana.compare.changes.model import Half
from traceana.compare.verdict import Criteria, Step
from traceana.compare.views import LEAST_CONFIDENCE, doubtful


def doubts(
    a: Half, b: Half, criteria: Criteria, step: Step, pairs: pl.DataFrame, *, alike: bool
) -> Iterator[str]:
    """Yield what a reader of the verdicts has to know."""
    steps = a.sample.count, b.sample.count
    if unsure := pairs.filter(doubtful()).height:
        yield (
            f"no difference told of {unsure} layer pairs: match confidence below "
            f"{100 * LEAST_CONFIDENCE:g} %"
        )
    if alike:
        yield "every time in a is that of b: this is one recording, and nothing differs"
    elif not a.sample.marked or not b.sample.marked:
        yield "without marked steps on both sides nobody can tell whether a difference is real"
    elif not criteria.enough(*steps):
        yield (
            f"{steps[0]} and {steps[1]} steps are not enough to tell a difference from noise at "
            f"{100 * criteria.level:g} %: record at least 4 on both sides beside the warm-up"
        )
    else:
        yield (
            "faster and slower hold for all rows and changes together (p is corrected for their "
            f"number); same: all of the {100 * criteria.level:g} % interval is within "
            f"{100 * criteria.minimum_effect:g} %; inconclusive: neither is shown"
        )
        if step.verdict == "inconclusive":
            yield "more steps on both sides make the interval of the step narrower"
        yield (
            "an interval tells what these two recordings show: clocks, heat and neighbours of "
            "another day are not in it"
        )

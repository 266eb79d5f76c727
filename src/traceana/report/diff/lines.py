"""The lines of a diff's report: both runs, the step, the layers, what changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

import polars as pl

from traceana.comparison.resampling import Interval
from traceana.comparison.verdicts import Judged
from traceana.report import human
from traceana.report.diff.facts import Compared
from traceana.report.diff.sentences import arrow, percent, sentence, signed
from traceana.report.text import plain

MOST_CHANGES: Final = 10
MOST_LAYERS: Final = 10

VERDICTS: Final = {
    "faster": "B is faster",
    "slower": "B is slower",
    "same": "the same within noise",
    "inconclusive": "cannot be told from noise",
    "not enough steps": "not enough steps to tell",
}


ALIKE: Final = "the same: both sides are one recording"


def head(facts: Compared) -> list[str]:
    """Return lines of plain text: A, B, the verdict, median and mean, images, layers."""
    step = facts.step
    lines = [f"{name}  {_run(run)}" for name, run in zip("AB", facts.runs, strict=True)]
    lines.append(ALIKE if facts.alike else _verdict(step.decides, step.statistic))
    if step.other.verdict != step.verdict:
        by = "mean" if step.statistic == "median" else "median"
        lines.append(f"but by the {by} {_verdict(step.other, by)}: steps differ among themselves")
    lines += _times(facts)
    if facts.images is not None:
        a, b = facts.images
        lines.append(f"per image     {arrow(round(a), round(b))} ({percent(b / a - 1)})")
    lines.append(_layers(facts))
    return lines


def changes(facts: Compared) -> list[tuple[str, list[str]]]:
    """Return what changed: a title, and sentences; then what is below the least effect."""
    shown = facts.changes.head(MOST_CHANGES)
    found: list[tuple[str, list[str]]] = []
    for title, rows in (
        ("What changed, most effect first", shown.filter(~pl.col("least"))),
        (_least(facts), shown.filter("least")),
    ):
        told = [sentence(row, whole=facts.whole) for row in rows.to_dicts()]
        if told or not found:
            found.append((title, told))
    return found


def nothing(facts: Compared) -> str:
    """Return the sentence that stands where no change has the least effect."""
    of = "run" if facts.whole else "step"
    return f"Nothing that changes the {of} by {100 * facts.minimum_effect:g} %."


def _least(facts: Compared) -> str:
    of = "run" if facts.whole else "step"
    return f"Changed too, by less than {100 * facts.minimum_effect:g} % of the {of}"


def _times(facts: Compared) -> list[str]:
    step = facts.step
    if facts.whole or step.median == step.mean:
        name = "whole run" if facts.whole else "step"
        return [f"{name:12}  {arrow(round(step.mean.a), round(step.mean.b))}"]
    return [
        f"step, {name:6}  {arrow(round(one.a), round(one.b))}"
        + _interval(None if facts.alike else one.interval, facts.level)
        for name, one in (("median", step.median), ("mean", step.mean))
    ]


def _verdict(one: Judged, statistic: str) -> str:
    relative = "" if one.p is None else f": {percent(one.relative)}"
    of = "" if one.p is None else f" ({statistic})"
    return f"{VERDICTS[one.verdict]}{relative}{of}"


def _run(run: Mapping[str, Any]) -> str:
    told = [PurePath(run["file"]).name, *(run[key] for key in ("devices", "framework"))]
    told.append(human.counted(run["steps"], "step") if run["marked"] else "no steps marked")
    return " · ".join(plain(str(one)) for one in told if one)


def _interval(interval: Interval | None, level: float) -> str:
    if interval is None:
        return ""
    low, high = (signed(round(bound)) for bound in (interval.low, interval.high))
    return f", {signed(round(interval.difference))} ({100 * level:g} % interval {low} to {high})"


def _layers(facts: Compared) -> str:
    counts = facts.layers
    told = (
        f"layers        {human.counted(counts['pairs'], 'pair')}, {counts['only_a']} only in A, "
        f"{counts['only_b']} only in B"
    )
    if counts["moved"]:
        told += f", {counts['moved']} elsewhere in the order"
    if facts.confidence is not None:
        told += f"; confidence {human.share(facts.confidence)}"
    return told

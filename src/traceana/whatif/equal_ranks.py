"""Scenarios of the ranks of a job: some of its operations take the typical time of their type.

They are replayed as the slowdown of a job is (:mod:`traceana.job.slowdown`), over all its ranks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.columns.nesting import Flags, Ints
from traceana.errors import NoSuchSelectionError, UsageError
from traceana.job.ranks import job_steps_of
from traceana.job.replay import JobSteps, step_times
from traceana.job.slowdown import worst_ranks
from traceana.result import Result
from traceana.table import schema_of
from traceana.timeline.operations import PASSES
from traceana.whatif.whatif import COLUMNS

if TYPE_CHECKING:
    from traceana.trace import Trace

EQUAL, STRAGGLER, COLLECTIVES, SEQUENCES = (
    "equal ranks",
    "straggler",
    "collectives typical",
    "equal sequence lengths",
)
_PART: Final = re.compile(
    rf"{EQUAL}|{STRAGGLER}|{COLLECTIVES}|{SEQUENCES}|(?P<key>stage|rank):(?P<number>\d{{1,9}})"
)
_MOST_STAGES: Final = 8


def is_of_ranks(scenario: object) -> bool:
    """Return whether ``scenario`` is a text about ranks: ``stage:3 + collectives typical``."""
    return isinstance(scenario, str) and all(
        _PART.fullmatch(part.strip()) for part in scenario.split(" + ")
    )


def equal_ranks(trace: Trace, scenarios: Sequence[object]) -> Result:
    """Return one row per scenario, without one of the usual ones, in the columns of ``whatif``.

    The step of the job is the recorded one, less what the replay saves; there is no interval. The
    critical path is not determined. Raises ``UsageError`` on a scenario of another kind, and
    ``NoSuchSelectionError`` on a stage or rank that the job does not have, and on a trace whose
    ranks cannot be compared.
    """
    steps = job_steps_of(trace.whole)
    if steps is None:
        raise NoSuchSelectionError(
            f"{trace.meta.source} has no steps of several ranks that can be compared: see "
            "traceana ranks"
        )
    texts: list[str] = []
    for scenario in scenarios:
        if not isinstance(scenario, str) or not is_of_ranks(scenario):
            raise UsageError(
                f"{scenario!r} is not about ranks: give it without {EQUAL}, {STRAGGLER}, "
                f"{COLLECTIVES}, {SEQUENCES}, stage:N and rank:N"
            )
        texts.append(" ".join(scenario.split()))
    if not texts:
        stages = sorted({*steps.places["stage"]})
        of_stages = [f"stage:{stage}" for stage in stages[:_MOST_STAGES] if len(stages) > 1]
        texts = [EQUAL, STRAGGLER, *of_stages, COLLECTIVES]
        texts += [SEQUENCES] if steps.places["name"].is_in(PASSES).any() else []
    replayed, *after = step_times(steps, [steps.time, *(changed(steps, text) for text in texts)])
    recorded = steps.recorded
    rows = []
    for text, times in zip(texts, after, strict=True):
        predicted = recorded - replayed + times
        saving = float((replayed - times).mean())
        rows.append(
            {
                "scenario": text,
                "predicted_ns": round(float(np.median(predicted))),
                "relative": float(np.median(predicted) / np.median(recorded) - 1),
                "saving_ns": max(round(saving), 0),
                "saving_share": max(saving, 0.0) / float(recorded.mean()),
                "step_ns": round(float(np.median(recorded))),
                "mean_ns": round(float(recorded.mean())),
            }
        )
    frame = pl.DataFrame(
        [{column.name: row.get(column.name) for column in COLUMNS} for row in rows],
        schema=schema_of(COLUMNS),
        orient="row",
    )
    if not scenarios:
        frame = frame.sort("predicted_ns", maintain_order=True)
    notes = (
        "typical time: mean of the type of work, median of transfers, over all ranks and steps; "
        "launch delays as recorded",
    )
    return Result(frame, {}, notes, COLUMNS)


def changed(steps: JobSteps, text: str) -> Ints:
    """Return the times of all operations in the scenario ``text``."""
    typical = steps.typical_times()
    time = steps.time
    for part in text.split(" + "):
        match = _PART.fullmatch(part.strip())
        assert match is not None
        time = np.where(_chosen(steps, part.strip(), match), typical, time)
        if part.strip() == SEQUENCES:
            passes = steps.places["name"].is_in(PASSES).to_numpy()[:, None, None]
            # A stage keeps the work that it has for a micro-batch of any length.
            time = np.where(passes, steps.typical_times("stage"), time)
    return time


def _chosen(steps: JobSteps, part: str, match: re.Match[str]) -> Flags:
    """Return the operations that take the typical time, as an array that fits ``time``."""
    ranks = steps.ranks[:, :, None]
    if part == COLLECTIVES:
        return np.array(steps.places["is_transfer"].to_list(), dtype=np.bool_)[:, None, None]
    if match["key"] is None:
        worst = worst_ranks(steps)[:1] if part == STRAGGLER else []
        return np.isin(ranks, worst) | (part == EQUAL)
    number = int(match["number"])
    numbers = ranks if match["key"] == "rank" else steps.places["stage"].to_numpy()[:, None, None]
    if not (numbers == number).any():
        there = ", ".join(map(str, np.unique(numbers)[:16]))
        raise NoSuchSelectionError(f"the job has no {match['key']} {number}; it has {there}")
    chosen: Flags = numbers == number
    return chosen

"""The predicted step time of scenarios, with an interval, and what then limits the step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from traceana.analyze.classes import SOURCE, classified
from traceana.analyze.steps import measured_steps
from traceana.enrich.nesting import NONE, Ints
from traceana.enrich.numbering import first_rows, numbered
from traceana.result import Result
from traceana.settings import PREDICTION_LEVEL, RUN_TO_RUN
from traceana.whatif.changed import Changed, Selected, changed
from traceana.whatif.graph import HANDOVER, HOST, LAUNCH, SYNC, WAIT, Graph, graphs
from traceana.whatif.replay import replayed, step_windows
from traceana.whatif.scenario import Scenario, scenario

if TYPE_CHECKING:
    from traceana.trace import Trace

FACTORS: Final = tuple(one / 10 for one in range(11))
"""Those of a curve."""
_NORMAL: Final = 1.4826
"""Standard deviation over median absolute deviation, of normal errors."""
_OF_MEDIAN: Final = 1.2533
"""Standard error of a median over that of a mean, of normal errors: sqrt(pi / 2)."""
_WAITS: Final = "waiting"


class Replay(msgspec.Struct, frozen=True):
    """A trace replayed without a change: ``events`` are its device work and moments of threads."""

    events: int
    measured_ns: int
    replayed_ns: int
    largest_error_ns: int


def replay(trace: Trace) -> Replay:
    """Return how a replay of the whole of ``trace`` without a change differs from it.

    ``measured_ns`` and ``replayed_ns`` are the summed windows of all steps,
    ``largest_error_ns`` the largest difference of the end of any event.
    """
    events = measured = again = error = 0
    for graph in graphs(trace):
        over = replayed(graph, graph.edges.lag, graph.duration)
        begin, end = step_windows(graph, over, graph.duration)
        events += len(over)
        measured += int((graph.steps["end"] - graph.steps["begin"]).sum())
        again += int((end - begin).sum())
        error = max(error, int(np.abs(over - graph.at - graph.duration).max(initial=0)))
    return Replay(events, measured, again, error)


def whatif(trace: Trace, scenarios: Sequence[str | Scenario], *, curve: bool = False) -> Result:
    """Return one row per scenario, in their order.

    ``scenario``
        Its name.
    ``step_ns``
        Median window of the measured steps, of several processes the longest of each step.
    ``predicted_ns``, ``low_ns``, ``high_ns``
        The same after the change, and its interval (``prediction_level``): from the factors' own
        intervals, the variation of the steps, and that from run to run.
    ``relative``
        Predicted change over ``step_ns``.
    ``at_most_ns``
        What the step would save if all changed work were on its critical path: the summed time.
    ``limit``, ``limit_share``
        What takes most of the critical path after the change, and its share of it.

    With ``curve`` the totals of factors from 0 to 1 are in ``curves``.
    """
    given = [one if isinstance(one, Scenario) else scenario(one) for one in scenarios]
    selected = [Selected.of(trace, one) for one in given]
    processes = list(graphs(trace))
    measured = _measured(trace, processes)
    rows = []
    for one in selected:
        parts = [_predicted(trace, processes, one, where) for where in (0.5, 0.0, 1.0)]
        before = _per_step(processes, measured, None)
        middle, low, high = (
            _per_step(processes, measured, [part.windows for part in found]) for found in parts
        )
        step = float(np.median(before))
        predicted = float(np.median(middle))
        spread = _spread(before, middle)
        ends = [float(np.median(low)), float(np.median(high)), predicted]
        limit, share = _limit(trace, processes, parts[0], measured)
        saved = one.work_ns(trace, np.array(sorted(measured_rows(trace))))
        rows.append(
            {
                "scenario": one.scenario.name,
                "step_ns": round(step),
                "predicted_ns": round(predicted),
                "low_ns": max(0, math.floor(min(ends) - spread)),
                "high_ns": math.ceil(max(ends) + spread),
                "relative": predicted / step - 1 if step else None,
                "at_most_ns": round(saved / max(len(before), 1)),
                "limit": limit,
                "limit_share": share,
            }
        )
    return Result(pl.DataFrame(rows, schema=_SCHEMA, orient="row"), {}, _notes(trace, given))


_SCHEMA: Final = {
    "scenario": pl.String,
    "step_ns": pl.Int64,
    "predicted_ns": pl.Int64,
    "low_ns": pl.Int64,
    "high_ns": pl.Int64,
    "relative": pl.Float64,
    "at_most_ns": pl.Int64,
    "limit": pl.String,
    "limit_share": pl.Float64,
}

"""The predicted step time of scenarios, with an interval, and what then limits the step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace

from traceana.analyze.breakdown import breakdown
from traceana.analyze.classes import category_of
from traceana.analyze.steps import measured_steps
from traceana.enrich.nesting import NONE, Ints
from traceana.errors import NoSuchSelectionError
from traceana.result import Result
from traceana.settings import PREDICTION_LEVEL, RUN_TO_RUN, RUN_TO_RUN_CPU
from traceana.trace.schema import DEVICE_WORK
from traceana.whatif.changed import Changed, Selected, changed
from traceana.whatif.graph import Graph, graphs
from traceana.whatif.path import path_times
from traceana.whatif.replay import replayed, step_windows
from traceana.whatif.scenario import NAMED, Scenario, scenario

if TYPE_CHECKING:
    from traceana.trace import Trace

FACTORS: Final = tuple(one / 10 for one in range(11))
"""Those of a curve."""
_HEAVIEST: Final = 4
_NORMAL: Final = 1.4826
"""Standard deviation over median absolute deviation, of normal errors."""
_OF_MEDIAN: Final = 1.2533
"""Standard error of a median over that of a mean, of normal errors: sqrt(pi / 2)."""


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


def whatif(trace: Trace, scenarios: Sequence[str | Scenario]) -> Result:
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
        What the step would save if nothing that changes overlapped: its summed time, less what it
        takes after the change.
    ``limit``, ``limit_share``
        What takes most of the critical path after the change, and its share of it.

    Raises :class:`~traceana.errors.BadScenarioError`, and
    :class:`~traceana.errors.NoSuchSelectionError` where a change is about nothing in the trace.
    """
    given = [one if isinstance(one, Scenario) else scenario(one) for one in scenarios]
    selected = [Selected.of(trace, one) for one in given]
    processes = list(graphs(trace))
    measured = _measured(trace, processes)
    category = category_of(trace.whole.activities, trace.whole)
    rows = []
    for one in selected:
        found = _predicted(trace, processes, one, 0.5)
        before = _per_step(processes, measured, None)
        after = _per_step(processes, measured, found.windows)
        step, predicted = float(np.median(before)), float(np.median(after))
        ends = [predicted]
        if any(least < most for least, most in (change.factors for change in one.scenario.changes)):
            for where in (0.0, 1.0):
                other = _predicted(trace, processes, one, where)
                ends.append(float(np.median(_per_step(processes, measured, other.windows))))
        spread = _spread(after, RUN_TO_RUN_CPU if trace.on_cpu else RUN_TO_RUN)
        limit, share = _limit(trace, category, processes, found, measured)
        saved = _summed(processes, found, measured)
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
    frame = pl.DataFrame(rows, schema=_SCHEMA, orient="row")
    return Result(frame, {}, _notes(trace, given, processes))


def curves(trace: Trace, scenarios: Sequence[str | Scenario]) -> pl.DataFrame:
    """Return ``scenario``, ``factor`` and ``predicted_ns``: the median step of each scenario with
    all its factors replaced by 0, 0.1, … 1."""
    processes = list(graphs(trace))
    measured = _measured(trace, processes)
    rows = []
    for one in scenarios:
        given = one if isinstance(one, Scenario) else scenario(one)
        for factor in FACTORS:
            changes = tuple(replace(c, factor=factor, remove=False) for c in given.changes)
            selected = Selected.of(trace, replace(given, changes=changes))
            found = _predicted(trace, processes, selected, 0.5)
            median = float(np.median(_per_step(processes, measured, found.windows)))
            rows.append((given.name, factor, round(median)))
    schema = {"scenario": pl.String, "factor": pl.Float64, "predicted_ns": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def usual(trace: Trace) -> list[Scenario]:
    """Return scenarios that are worth asking of any trace, as far as they are about something in
    it: the heaviest classes in half the time, a faster host, and those with a name."""
    frame = breakdown(trace).frame
    heavy = (
        frame.group_by("category", maintain_order=True)
        .agg(pl.col("time_ns").sum())
        .sort("time_ns", descending=True, maintain_order=True)["category"]
        .head(_HEAVIEST)
    )
    on_device = trace.activities["kind"].is_in(DEVICE_WORK).any()
    texts = [f"{category} x 0.5" for category in heavy]
    texts += ["host x 0.5", "launch x 0.5"] if on_device else []
    found = []
    for one in [*texts, *NAMED]:
        with suppress(NoSuchSelectionError):
            found.append(Selected.of(trace, scenario(one)).scenario)
    return found


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


class _Replayed(msgspec.Struct, frozen=True):
    """A scenario replayed in each process: what it changed, when each node was over, and the begin
    and end of the windows of the steps."""

    changes: list[Changed]
    over: list[Ints]
    windows: list[tuple[Ints, Ints]]


def _predicted(trace: Trace, processes: list[Graph], one: Selected, where: float) -> _Replayed:
    changes = [changed(trace, graph, one, where) for graph in processes]
    over = [replayed(g, c.lag, c.duration) for g, c in zip(processes, changes, strict=True)]
    windows = [
        step_windows(g, o, c.duration) for g, o, c in zip(processes, over, changes, strict=True)
    ]
    return _Replayed(changes, over, windows)


def _measured(trace: Trace, processes: list[Graph]) -> list[Ints]:
    """Return the rows of the measured steps of each process, all of it without steps."""
    if trace.steps.is_empty():
        return [np.arange(graph.steps.height) for graph in processes]
    columns = ["number", "rank", "process", "start"]
    rows = trace.steps[measured_steps(trace).rows].select(columns)
    whole = trace.whole.steps.with_row_index("step_row")
    kept = whole.join(rows, on=columns, how="semi", nulls_equal=True)["step_row"]
    return [np.flatnonzero(graph.steps["step_row"].is_in(kept.implode())) for graph in processes]


def _per_step(
    processes: list[Graph], measured: list[Ints], windows: list[tuple[Ints, Ints]] | None
) -> list[int]:
    """Return the longest window of each measured step over the processes."""
    longest: dict[int | None, int] = {}
    for at, (graph, rows) in enumerate(zip(processes, measured, strict=True)):
        if windows is None:
            length = (graph.steps["end"] - graph.steps["begin"]).to_numpy()
        else:
            length = windows[at][1] - windows[at][0]
        numbers = graph.steps["number"].gather(rows).to_list()
        for number, one in zip(numbers, length[rows].tolist(), strict=True):
            longest[number] = max(longest.get(number, 0), one)
    return list(longest.values())


def _spread(after: Sequence[int], between: float) -> float:
    """Return the half width of the interval for the median step of another run, in ns.

    The medians of two runs of as many steps differ by chance: the standard error of a median, by
    the median absolute deviation, of both; and runs differ by more than their steps do, by the
    standard deviation ``between`` them.
    """
    from scipy.stats import norm, t

    count = len(after)
    middle = float(np.median(after))
    relative = np.array(after) / max(middle, 1)
    error = 0.0
    if count > 1:
        error = _OF_MEDIAN * _NORMAL * float(np.median(np.abs(relative - 1))) * math.sqrt(2 / count)
        error *= float(t.ppf((1 + PREDICTION_LEVEL) / 2, count - 1))
    run = math.sqrt(2) * between * float(norm.ppf((1 + PREDICTION_LEVEL) / 2))
    return middle * math.hypot(error, run)


def _limit(
    trace: Trace,
    category: pl.Series,
    processes: list[Graph],
    found: _Replayed,
    measured: list[Ints],
) -> tuple[str | None, float | None]:
    """Return what takes most of the critical paths of the measured steps, and its share."""
    times: Counter[str] = Counter()
    for graph, one, over, windows, rows in zip(
        processes, found.changes, found.over, found.windows, measured, strict=True
    ):
        times += path_times(trace, category, graph, one, over, windows[0], rows)
    if not times:
        return None, None
    (name, most), *_ = times.most_common(1)
    return name, most / times.total()


def _summed(processes: list[Graph], found: _Replayed, measured: list[Ints]) -> int:
    """Return by how much work and pieces of threads get shorter in the measured steps, summed."""
    saved = 0
    for graph, change, rows in zip(processes, found.changes, measured, strict=True):
        saved += int((graph.duration - change.duration)[np.isin(graph.step, rows)].sum())
        begin = graph.steps["begin"].to_numpy()[rows]
        end = graph.steps["end"].to_numpy()[rows]
        order = np.argsort(begin)
        last = np.searchsorted(begin[order], graph.host.begin, side="right") - 1
        inside = (last >= 0) & (graph.host.begin < end[order][np.maximum(last, 0)])
        less = (graph.host.end - graph.host.begin) * (1 - change.host)
        saved += round(float(less[inside].sum()))
    return saved


def _notes(trace: Trace, scenarios: Sequence[Scenario], processes: list[Graph]) -> tuple[str, ...]:
    notes = list(dict.fromkeys(note for one in scenarios for note in one.assumes))
    notes += measured_steps(trace).notes or ("no steps: the capture is one",)
    stays = sum(
        int((graph.activity != NONE).sum())
        - len(np.unique(graph.edges.target[graph.activity[graph.edges.target] != NONE]))
        for graph in processes
    )
    if stays:
        notes.append(f"{stays:,} activities wait for nothing that is recorded: they do not move")
    if (trace.activities["collective"].is_not_null()).any():
        notes.append("collectives take as long as recorded, with their waits for other ranks")
    return tuple(notes)

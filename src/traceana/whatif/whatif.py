"""The predicted step time of scenarios, with an interval, and what then limits the step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec.structs import replace

from traceana.analyze.classes import breakdown
from traceana.analyze.run_to_run import relative_spread
from traceana.columns.distinct import numbered
from traceana.columns.intervals import union
from traceana.columns.nesting import NONE, Flags, Ints, from_rows
from traceana.errors import NoSuchSelectionError
from traceana.result import Result
from traceana.settings import (
    CHANGE_ERROR,
    CHANGE_ERROR_CPU,
    FEWEST_LAUNCHES,
    FEWEST_STEPS,
    PREDICTION_DEVIATE,
    PREDICTION_LEVEL,
    REPLAYED_ACTIVITIES,
    RUN_TO_RUN_COPIES,
    RUN_TO_RUN_CPU,
    RUN_TO_RUN_HOST,
    RUN_TO_RUN_KERNELS,
    RUN_TO_RUN_PAGEABLE,
)
from traceana.table import (
    CATEGORY,
    COUNT,
    NUMBER,
    SHARE,
    STEP,
    TEXT,
    TIME,
    Column,
    laid_out,
    schema_of,
)
from traceana.timeline.copies import copies
from traceana.timeline.graph import Graph, graphs
from traceana.timeline.steps import MEDIAN_ERROR, measured_steps, span_of, step_time
from traceana.timeline.threads import Floats
from traceana.trace import Trace
from traceana.trace.schema import DEVICE_WORK
from traceana.trace.work import labels
from traceana.whatif.changed import ChangedGraph, Selection, changed_graph, selected
from traceana.whatif.profiler import ProfilerCost, cost_removed, host_factors, is_slowed
from traceana.whatif.replay import Meetings, path_times, replayed_together, step_windows
from traceana.whatif.scenario import NAMED, Scenario, batch_ratio, scenario

if TYPE_CHECKING:
    from traceana.whatif.scenario import Change

_MEDIAN, _MEAN = "median step", "mean step"
"""Two statistics: a batch that is late in every fourth step is in the mean alone."""
_PREDICTED, _SAVING = "predicted", "saving"
COLUMNS: Final = laid_out(
    (
        Column("scenario", TEXT, "its text or name"),
        Column(
            "predicted_ns",
            TIME,
            "`step_ns` after the change",
            scale=_PREDICTED,
            group=_MEDIAN,
        ),
        Column(
            "low_ns",
            TIME,
            "lower end of its interval (`meta.settings.prediction_level`): from the factors' own "
            "intervals, the variation of the steps and that from run to run by kind of work, "
            "`change_error`, and the profiler's cost",
            title="from",
            scale=_PREDICTED,
            group=_MEDIAN,
        ),
        Column("high_ns", TIME, "upper end", title="to", scale=_PREDICTED, group=_MEDIAN),
        Column(
            "relative",
            SHARE,
            "change of `predicted_ns` over `step_ns`",
            title="change",
            group=_MEDIAN,
            signed=True,
        ),
        Column(
            "per_example",
            SHARE,
            "of a scenario with `batch:RATIO`: change of the time per example, "
            "`predicted_ns` / RATIO over `step_ns`; else null",
            title="per example",
            group=_MEDIAN,
            signed=True,
        ),
        Column(
            "saving_ns",
            TIME,
            "what a step gets shorter, mean over the measured steps ([What-if](whatif.md)), so not "
            "the difference of the medians; 0 at least, the mean step at most",
            scale=_SAVING,
            group=_MEAN,
        ),
        Column("saving_share", SHARE, "of `mean_ns`", title="share", group=_MEAN),
        Column(
            "at_most_ns",
            TIME,
            "what changed in a step, of all processes, summed as if nothing overlapped, less what "
            "it takes after the change; below 0 where it takes longer",
            title="removed",
            scale=_SAVING,
            group="work",
        ),
        Column(
            "limit",
            CATEGORY,
            "what takes most of the critical path after the change",
            title="mostly",
            group="critical path",
        ),
        Column(
            "limit_share", SHARE, "its share of that path", title="share", group="critical path"
        ),
        Column(
            "step_ns",
            TIME,
            "median time of the measured steps before any change, of several processes the longest "
            "of each",
            title="per step",
            scale=STEP,
        ),
        Column(
            "mean_ns",
            TIME,
            "mean of the steps that savings are of ([What-if](whatif.md#saving-and-interval))",
            scale="one call",
        ),
        Column(
            "saving_low_ns",
            TIME,
            "lower end of the interval of `saving_ns` (`meta.settings.prediction_level`)",
        ),
        Column("saving_high_ns", TIME, "upper end"),
    ),
    hidden="step_ns mean_ns saving_low_ns saving_high_ns",
    dropped="limit_share at_most_ns limit saving_share",
)
"""The columns of :func:`whatif`."""
PATH: Final = (
    Column("scenario", TEXT, "the scenario; null: without a change"),
    Column("of", CATEGORY, "a class of work, `host`, `launch`, `sync` or `gap`"),
    Column("time_ns", TIME, "its time on the critical path, mean over the measured steps"),
)
"""The columns of the critical path of :class:`Prediction`."""
CURVE: Final = (
    COLUMNS[0],
    Column("factor", NUMBER, "what all factors of the scenario are replaced by", type=pl.Float64),
    Column(
        "predicted_ns",
        TIME,
        "the median step; what the scenario removes is removed at 0",
        scale=_PREDICTED,
    ),
)
"""The columns of :func:`curves`."""
REPLAY: Final = (
    Column("events", COUNT, "device work and moments of host threads"),
    Column("measured_ns", TIME, "summed windows of all steps as recorded"),
    Column("replayed_ns", TIME, "the same as replayed"),
    Column("largest_error_ns", TIME, "largest difference of the end of any event"),
)
"""The fields of :class:`Replay`."""
FACTORS: Final = tuple(tenth / 10 for tenth in range(11))
"""The factors of a curve."""
_HEAVIEST: Final = 4


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
    events = measured = replayed = largest_error = 0
    processes = list(graphs(trace, with_host=True))
    meetings = Meetings.of(trace.whole, processes)
    lags = [graph.edges.lag for graph in processes]
    lengths = [graph.duration for graph in processes]
    for graph, (ended, _) in zip(
        processes, replayed_together(processes, meetings, lags, lengths), strict=True
    ):
        begin, end = step_windows(graph, ended, graph.duration)
        events += len(ended)
        measured += int((graph.steps["end"] - graph.steps["begin"]).sum())
        replayed += int((end - begin).sum())
        largest_error = max(
            largest_error, int(np.abs(ended - graph.at - graph.duration).max(initial=0))
        )
    return Replay(events, measured, replayed, largest_error)


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
    if trace.tables.steps.is_empty() or whole.tables.activities.height <= REPLAYED_ACTIVITIES:
        return Part(None, whole.tables.activities.height)
    numbers = (
        whole.tables.steps.group_by("number").agg(pl.col("start").min()).sort("start")["number"]
    )
    launching_step = whole.tables.steps["number"].gather(
        whole.tables.activities["step"].drop_nulls()
    )
    counted = launching_step.value_counts(name="count")
    count_of_step = dict(zip(counted["number"], counted["count"], strict=True))
    counts = [count_of_step.get(number, 0) for number in numbers]
    (measured,) = np.nonzero(numbers.is_in(measured_steps(trace).numbers).to_numpy())
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


class Model(msgspec.Struct, frozen=True):
    """A trace, the graphs of its processes, the collectives in which these meet, and the rows of
    its measured steps in each of them.

    ``part`` is in the graphs; ``first`` is its first step. ``streams`` are the numbers of the
    streams of their kernels, NONE of other nodes. Each piece of host time takes ``host`` times as
    long as in ``trace``: once, unless the profiler's ``cost`` is to be removed from it. Pieces
    that are ``estimated`` take from the least to the most part of ``cost`` of that.
    """

    trace: Trace
    part: Part
    first: int | None
    processes: list[Graph]
    meetings: Meetings
    measured: list[Ints]
    streams: list[Ints]
    cost: ProfilerCost | None
    host: list[Floats]
    estimated: list[Flags]

    @property
    def marked(self) -> bool:
        """Whether the measured steps begin on threads of the host.

        Else a step is from its first work to its last, and time before that is in no step.
        """
        both = zip(self.processes, self.measured, strict=True)
        return all((graph.begins[rows] != NONE).all() for graph, rows in both)

    @property
    def step_ns(self) -> int:
        """Median time of the replayed steps in ``trace``."""
        return int(_median(_step_times(self, None)))

    @property
    def scale(self) -> float:
        """Median time of all measured steps over that of the replayed ones: by so much are the
        figures of a part of the trace scaled, so that they are of the step that is reported."""
        all_of_them = None if self.part.numbers is None else step_time(self.trace)
        return 1.0 if all_of_them is None else all_of_them.median_ns / (self.step_ns or 1)

    @classmethod
    def of(cls, trace: Trace) -> Model:
        """Return the model of ``trace``, of a part of its steps if it is long."""
        part = part_of(trace)
        steps = part.numbers or trace.whole.tables.steps.sort("start")["number"].to_list()
        processes = list(graphs(trace, part.numbers, with_host=True))
        cost = None if trace.recorded is None else cost_removed(trace.recorded)
        return cls(
            trace,
            part,
            steps[0] if steps else None,
            processes,
            Meetings.of(trace.whole, processes),
            _measured(trace, processes),
            _streams(trace.whole, processes),
            cost,
            [np.ones(len(graph.host.begin)) for graph in processes],
            [
                is_slowed(graph) if cost else np.zeros(len(graph.host.begin), dtype=np.bool_)
                for graph in processes
            ],
        )

    def without(self, cost: ProfilerCost) -> Model:
        """Return the model without the profiler's ``cost``."""
        factors = [host_factors(self.trace.whole, graph, cost) for graph in self.processes]
        slowed = [is_slowed(graph) for graph in self.processes]
        return replace(self, cost=cost, host=factors, estimated=slowed)

    def of_all_steps(self) -> Model:
        """Return the model of the whole trace, with the same cost of the profiler."""
        trace = self.trace.whole
        processes = list(graphs(trace, with_host=True))
        whole = replace(
            self,
            part=replace(self.part, numbers=None),
            processes=processes,
            meetings=Meetings.of(trace, processes),
            measured=_measured(self.trace, processes),
            streams=_streams(trace, processes),
        )
        return whole if self.cost is None else whole.without(self.cost)

    @classmethod
    def of_marked(cls, trace: Trace) -> Model | None:
        """Return the model of ``trace``; None where a replay has no meaning.

        A replay needs steps that are marked on the host and not too long, or none at all, and the
        launches of most of their work. It is of all devices, so there is none of a selection.
        """
        if "selected_devices" in trace.meta.properties or not _has_launches(trace):
            return None
        if part_of(trace).activities > REPLAYED_ACTIVITIES:
            return None
        model = cls.of(trace)
        return model if model.marked or trace.tables.steps.is_empty() else None


def _streams(trace: Trace, processes: Sequence[Graph]) -> list[Ints]:
    """Return the stream of each kernel among the nodes of ``processes``, as a number; else NONE."""
    activities = trace.tables.activities
    (number,) = numbered(activities.select("rank", "process", "device", "stream"))
    on_stream = (activities["kind"] == "kernel") & activities["stream"].is_not_null()
    number = np.append(np.where(on_stream, number, NONE), [NONE])
    return [number[graph.activity] for graph in processes]


def _has_launches(trace: Trace) -> bool:
    """Return whether the steps have work of a CPU, or calls that launched most of their work; of a
    trace without steps all of it."""
    work = trace.tables.activities
    if trace.tables.steps.height:
        work = work.filter(pl.col("step").is_not_null())
    if trace.on_cpu:
        return work.height > 0
    launched = work.filter(pl.col("kind").is_in(DEVICE_WORK))["call"].is_not_null()
    return launched.len() > 0 and launched.sum() >= FEWEST_LAUNCHES * launched.len()


class BoundScenario(msgspec.Struct, frozen=True):
    """A scenario, and the selection of each of its changes in each process of a model."""

    scenario: Scenario
    selections: list[list[Selection]]

    @classmethod
    def of(
        cls,
        model: Model,
        wanted: str | Scenario,
        known: dict[Change, list[Selection] | NoSuchSelectionError] | None = None,
    ) -> BoundScenario:
        """Return the scenario ``wanted`` of ``model``; what is ``known`` of its changes is reused.

        Raises :class:`~traceana.errors.UsageError`, and
        :class:`~traceana.errors.NoSuchSelectionError` where a change is about nothing in the trace.
        """
        chosen = scenario(wanted) if isinstance(wanted, str) else wanted
        known = {} if known is None else known
        changes: list[Change] = []
        selections: list[list[Selection]] = []
        for at, change in enumerate(chosen.changes, start=1):
            # The last of the changes is needed where none of them is about anything.
            needed = not change.implied or (at == len(chosen.changes) and not changes)
            if change not in known:
                try:
                    known[change] = selected(model.trace, model.processes, change)
                except NoSuchSelectionError as error:
                    known[change] = error
            selection = known[change]
            if not isinstance(selection, NoSuchSelectionError):
                selections.append(selection)
                changes.append(change)
            elif needed:
                raise selection
        chosen = replace(chosen, changes=tuple(changes))
        of_process = [list(process) for process in zip(*selections, strict=True)]
        return cls(chosen, of_process)


class Prediction(NamedTuple):
    """The ``table`` of :func:`whatif`, and the critical ``path`` by what its time is of.

    ``path`` has the columns :data:`PATH`; most time first.
    """

    table: Result
    path: pl.DataFrame


def whatif(model: Model, scenarios: Sequence[BoundScenario]) -> Prediction:
    """Return one row per scenario, in their order, and their critical paths.

    The columns are :data:`COLUMNS`. Savings are those of :class:`Saving`.
    """
    category = labels(model.trace.whole.tables, "category")["category"]
    steps = max(len(_step_times(model, None)), 1)
    base = before_changes(model)
    rows = []
    paths = [_path_of_scenario(model, category, None, base.replays.central, steps)]
    ceiling = _predicted(model, base.replays, paths[0], base)[2]
    between = _run_error(model, paths[0]) * base.median_ns
    for bound in scenarios:
        replays = Replays.of(model, bound)
        path = _path_of_scenario(model, category, bound.scenario.name, replays.central, steps)
        predicted, low, high = _predicted(model, replays, path, base, ceiling)
        limit, longest = path.row(0)[1:] if path.height else (None, 0)
        paths.append(path)
        saving = _saving(model, replays, base, between)
        rows.append(
            {
                "scenario": bound.scenario.name,
                "step_ns": round(base.median_ns),
                "mean_ns": round(base.mean_ns),
                "predicted_ns": round(predicted),
                "low_ns": math.floor(low),
                "high_ns": math.ceil(high),
                "relative": predicted / base.median_ns - 1 if base.median_ns else None,
                "saving_ns": saving.time_ns,
                "saving_low_ns": saving.low_ns,
                "saving_high_ns": saving.high_ns,
                "saving_share": saving.share,
                "at_most_ns": round(_time_removed(model, replays.central) / steps),
                "per_example": (
                    predicted / batch_ratio(bound.scenario) / base.median_ns - 1
                    if batch_ratio(bound.scenario) != 1 and base.median_ns
                    else None
                ),
                "limit": limit,
                "limit_share": longest / path["time_ns"].sum() if longest else None,
            }
        )
    frame = _scaled(model, pl.DataFrame(rows, schema=schema_of(COLUMNS), orient="row"))
    table = Result(frame, {}, _notes(model, scenarios), COLUMNS)
    return Prediction(table, _scaled(model, pl.concat(paths)))


def _scaled(model: Model, frame: pl.DataFrame) -> pl.DataFrame:
    """Return ``frame`` with its times scaled by :attr:`Model.scale`."""
    scale = model.scale
    if scale == 1.0:
        return frame
    return frame.with_columns(
        (pl.col(name) * scale).round().cast(pl.Int64)
        for name in frame.columns
        if name.endswith("_ns")
    )


class Base(msgspec.Struct, frozen=True):
    """The step before any change: its median and mean (ns), and the ``replays`` with the ends of
    the profiler's cost."""

    median_ns: float
    mean_ns: float
    replays: Replays


def before_changes(model: Model) -> Base:
    """Return the step before any change."""
    replays = Replays(unchanged(model), [], [unchanged(model, end) for end in _ends(model.cost)])
    times = _step_times(model, replays.central)
    return Base(_median(times), _mean(_settled_steps(model, times)), replays)


def median_ns(model: Model, outcome: _Outcome) -> float:
    """Return the median of the measured steps of ``outcome`` in ns."""
    return _median(_step_times(model, outcome))


def _ends(cost: ProfilerCost | None) -> tuple[float, ...]:
    return () if cost is None else (cost.least, cost.most)


class Saving(msgspec.Struct, frozen=True):
    """What a scenario saves of a step: the mean over the measured steps. Of
    ``fewest_steps_for_warm_up`` the first that is replayed does not count, which begins as recorded
    whatever changes.

    A mean, because a batch that is late in every fourth step is not in a median. ``low_ns`` and
    ``high_ns`` are its interval (``prediction_level``): from the factors' own intervals, the
    variation of the savings of the steps, and that from run to run, by which the run after the
    change may be slower: ``low_ns`` is then below 0. ``time_ns`` is 0 at least, and all are the
    mean step at most; ``share`` is a part of that.
    """

    time_ns: int
    low_ns: int
    high_ns: int
    share: float


def run_error_ns(model: Model, base: Base) -> float:
    """Return by what the steps (ns) of two runs of the program differ (``prediction_level``)."""
    return _run_error(model, _path_of_replays(model, base.replays)) * base.median_ns


def saving(model: Model, replays: Replays, base: Base, between_ns: float) -> Saving:
    """Return what a step saves by the changes of ``replays``.

    ``base`` is :func:`before_changes`, ``between_ns`` is :func:`run_error_ns`.
    """
    unscaled = _saving(model, replays, base, between_ns)
    scale = model.scale
    time, low, high = (
        round(ns * scale) for ns in (unscaled.time_ns, unscaled.low_ns, unscaled.high_ns)
    )
    return Saving(time, low, high, unscaled.share)


def mean_step_ns(model: Model, bound: BoundScenario) -> float:
    """Return the mean step (ns) after the changes of ``bound``; savings are differences of it."""
    outcome = _outcome(model, bound.scenario.changes, bound.selections, 0.5)
    return _mean(_settled_steps(model, _step_times(model, outcome))) * model.scale


class PredictedStep(msgspec.Struct, frozen=True):
    """The median step after changes and its interval (``prediction_level``), in ns, as in the table
    of :func:`whatif`."""

    median_ns: int
    low_ns: int
    high_ns: int


def predicted_step(
    model: Model, replays: Replays, base: Base, ceiling: float = math.inf
) -> PredictedStep:
    """Return the step after the changes of ``replays``; ``base`` is :func:`before_changes`.

    ``ceiling`` is the upper end before any change.
    """
    path = _path_of_replays(model, replays)
    predicted = _predicted(model, replays, path, base, ceiling / model.scale)
    median, low, high = (ns * model.scale for ns in predicted)
    return PredictedStep(round(median), math.floor(low), math.ceil(high))


def _saving(model: Model, replays: Replays, base: Base, between_ns: float) -> Saving:
    def times(outcome: _Outcome) -> npt.NDArray[np.float64]:
        return _times(_settled_steps(model, _step_times(model, outcome)))

    before, mean_step = times(base.replays.central), base.mean_ns
    saved = before - times(replays.central)
    means = [float((before - times(end)).mean()) for end in (replays.central, *replays.factors)]
    error = 0.0
    if len(before) > 1:
        error = float(saved.std(ddof=1)) / math.sqrt(len(before))
        error *= student_quantile((1 + PREDICTION_LEVEL) / 2, len(before) - 1)
    spread = math.hypot(error, between_ns, _change_error(model, means[0]))
    # The host's time without the profiler is known to some percent, and so is what it costs.
    for unchanged, changed in zip(base.replays.costs, replays.costs, strict=True):
        means.append(float((times(unchanged) - times(changed)).mean()))
    time = round(min(max(means[0], 0.0), mean_step))
    low = round(min(means) - spread)
    high = round(min(max(max(means) + spread, 0.0), mean_step))
    return Saving(time, min(low, time), high, time / mean_step if mean_step else 0.0)


def _settled_steps(model: Model, times: Mapping[int | None, int]) -> Mapping[int | None, int]:
    """Return the times of the measured steps, of several without the first that is replayed."""
    few = len(times) < FEWEST_STEPS
    return {number: time for number, time in times.items() if few or number != model.first}


def _times(times: Mapping[int | None, int]) -> npt.NDArray[np.float64]:
    return np.array(list(times.values()), dtype=np.float64)


def _mean(times: Mapping[int | None, int]) -> float:
    return float(_times(times).mean())


def curves(model: Model, scenarios: Sequence[BoundScenario]) -> pl.DataFrame:
    """Return the median step of each scenario with all its factors replaced by 0, 0.1, … 1, with
    the columns :data:`CURVE`."""
    rows = []
    for bound in scenarios:
        for factor in FACTORS:
            changes = [
                # A wait for the device has no factor.
                change
                if change.what == "sync"
                else replace(change, factor=factor, by=None, remove=change.remove and not factor)
                for change in bound.scenario.changes
            ]
            outcome = _outcome(model, changes, bound.selections, 0.5)
            median = _median(_step_times(model, outcome))
            rows.append((bound.scenario.name, factor, round(median)))
    return _scaled(model, pl.DataFrame(rows, schema=schema_of(CURVE), orient="row"))


def usual(model: Model) -> list[BoundScenario]:
    """Return the default scenarios that change something in the trace: the classes with most
    time in half of it, a faster host, and the named ones."""
    heaviest = (
        breakdown(model.trace)
        .frame.group_by("category", maintain_order=True)
        .agg(pl.col("time_ns").sum())
        .sort("time_ns", descending=True, maintain_order=True)["category"]
        .head(_HEAVIEST)
    )
    on_device = model.trace.tables.activities["kind"].is_in(DEVICE_WORK).any()
    texts = [f"{category} x 0.5" for category in heaviest]
    texts += ["host x 0.5", "launch x 0.5"] if on_device else []
    scenarios = []
    for text in [*texts, *NAMED]:
        with suppress(NoSuchSelectionError):
            scenarios.append(BoundScenario.of(model, text))
    return scenarios


class _Outcome(msgspec.Struct, frozen=True):
    """A scenario replayed in each process: what it changed, how long each node takes without the
    waits of collectives for other ranks (ns), when each node was over, the begin and end of the
    windows of the steps, and what runs beside each of them (ns)."""

    changes: list[ChangedGraph]
    alone: list[Ints]
    over: list[Ints]
    windows: list[tuple[Ints, Ints]]
    beside: list[Ints]


class Replays(msgspec.Struct, frozen=True):
    """The replays of a scenario: with the middle of its factors; with the ends of these, where they
    are intervals; and with the ends of the profiler's cost, where that is known."""

    central: _Outcome
    factors: list[_Outcome]
    costs: list[_Outcome]

    @classmethod
    def of(cls, model: Model, bound: BoundScenario) -> Replays:
        """Replay the scenario ``bound`` of ``model``."""
        changes, selections, cost = bound.scenario.changes, bound.selections, model.cost
        has_interval = any(change.by or change.factors[0] < change.factors[1] for change in changes)
        ends_of_factors = (0.0, 1.0) if has_interval else ()
        return cls(
            _outcome(model, changes, selections, 0.5),
            [_outcome(model, changes, selections, where) for where in ends_of_factors],
            [_outcome(model, changes, selections, 0.5, host) for host in _ends(cost)],
        )


def _outcome(
    model: Model,
    changes: Sequence[Change],
    selections: Sequence[Sequence[Selection]],
    where: float,
    host: float = 1.0,
) -> _Outcome:
    """Replay ``changes`` at ``where`` between their factors; host time that is estimated takes
    ``host`` times as long."""
    changes_of_process = []
    for graph, selection, factor, estimated in zip(
        model.processes, selections, model.host, model.estimated, strict=True
    ):
        factors = np.where(estimated, factor * host, factor)
        changes_of_process.append(changed_graph(graph, changes, selection, where, factors))
    alone = [change.duration for change in changes_of_process]
    lags = [change.lag for change in changes_of_process]
    replays = replayed_together(model.processes, model.meetings, lags, alone)
    windows, beside, together = [], [], []
    for graph, change, (over, duration) in zip(
        model.processes, changes_of_process, replays, strict=True
    ):
        windows.append(step_windows(graph, over, duration))
        beside.append(_time_beside(model.trace, graph, change))
        # A collective takes as long as its ranks let it.
        together.append(change._replace(duration=duration))
    return _Outcome(together, alone, [over for over, _ in replays], windows, beside)


def unchanged(model: Model, host: float = 1.0) -> _Outcome:
    """Replay ``model`` without a change, with ``host`` times the host's estimated time."""
    return _outcome(model, (), [[] for _ in model.processes], 0.5, host)


def _time_beside(trace: Trace, graph: Graph, change: ChangedGraph) -> Ints:
    """Return the time (ns) of what runs beside each step: of the busiest device, or of threads."""
    beside = np.zeros(graph.steps.height, dtype=np.int64)
    rows = np.flatnonzero((change.beside > 0) & (graph.step != NONE))
    if len(rows):
        devices = from_rows(trace.whole.tables.activities["device"])
        of_device = devices[graph.activity[rows]]
        for device in np.unique(of_device).tolist():
            on_device = rows[of_device == device]
            np.maximum(beside, _busy(graph, on_device, change.beside[on_device]), out=beside)
    pieces_beside = np.flatnonzero(change.host_beside)
    if len(pieces_beside):
        begin = graph.steps["begin"].to_numpy()
        by_begin = np.argsort(begin)
        step = np.searchsorted(begin[by_begin], graph.host.begin[pieces_beside], side="right") - 1
        inside = step >= 0
        times = np.rint(change.host_beside[pieces_beside[inside]]).astype(np.int64)
        np.add.at(beside, by_begin[step[inside]], times)
    return beside


def _busy(graph: Graph, nodes: Ints, lengths: Ints) -> Ints:
    """Return for each step how long some of ``nodes`` runs, if they take ``lengths`` (ns)."""
    start = graph.at[nodes] - graph.at[nodes].min()
    # Each step has a stretch of time of its own.
    span = int((start + lengths).max()) + 1
    start = start + graph.step[nodes] * span
    starts, ends = union(start, start + lengths)
    busy = np.zeros(graph.steps.height, dtype=np.int64)
    np.add.at(busy, starts // span, ends - starts)
    return busy


def _measured(trace: Trace, processes: list[Graph]) -> list[Ints]:
    """Return the rows of the measured steps of each process, all of it without steps."""
    if trace.tables.steps.is_empty():
        return [np.arange(graph.steps.height) for graph in processes]
    columns = ["number", "rank", "process", "start"]
    rows = trace.tables.steps[list(measured_steps(trace).rows)].select(columns)
    whole = trace.whole.tables.steps.with_row_index("step_row")
    kept = whole.join(rows, on=columns, how="semi", nulls_equal=True)["step_row"]
    return [np.flatnonzero(graph.steps["step_row"].is_in(kept.implode())) for graph in processes]


def _step_times(model: Model, outcome: _Outcome | None) -> Mapping[int | None, int]:
    """Return the longest window of each measured step over the processes, or what runs beside it
    where that is longer; as in the trace without ``outcome``."""
    if outcome is None:
        return _longest(
            model,
            [(graph.steps["end"] - graph.steps["begin"]).to_numpy() for graph in model.processes],
        )
    both = zip(outcome.windows, outcome.beside, strict=True)
    return _longest(model, [np.maximum(end - begin, beside) for (begin, end), beside in both])


def _longest(model: Model, lengths: Sequence[Ints]) -> Mapping[int | None, int]:
    """Return the longest of the ``lengths`` of each measured step over the processes, by number."""
    longest: dict[int | None, int] = {}
    for graph, rows, length in zip(model.processes, model.measured, lengths, strict=True):
        numbers = graph.steps["number"].to_list()
        for row, time in zip(rows.tolist(), length[rows].tolist(), strict=True):
            longest[numbers[row]] = max(longest.get(numbers[row], 0), time)
    return longest


def _median(times: Mapping[int | None, int]) -> float:
    return float(np.median(list(times.values())))


def _predicted(
    model: Model, replays: Replays, path: pl.DataFrame, base: Base, ceiling: float = math.inf
) -> tuple[float, float, float]:
    """Return the median step of another run, and the ends of its interval, in ns.

    ``ceiling`` is the upper end before any change: what only gets shorter is not above it.

    The medians of two runs of as many steps differ by chance: the standard error of a median, by
    the median absolute deviation, of both. Runs differ by more than their steps do, by the kind of
    work on the critical ``path``. Effects that a factor leaves out add an error in proportion to
    the change, and the profiler's cost is known to some percent.
    """

    def median(outcome: _Outcome) -> float:
        return _median(_step_times(model, outcome))

    times = np.array(list(_step_times(model, replays.central).values()))
    middle, count, error = float(np.median(times)), len(times), 0.0
    if count > 1:
        error = MEDIAN_ERROR * float(np.median(np.abs(times - middle))) * math.sqrt(2 / count)
        error *= student_quantile((1 + PREDICTION_LEVEL) / 2, count - 1)
    between = _run_error(model, path) * middle
    spread = math.hypot(error, between, _change_error(model, middle - base.median_ns))
    of_factors = [middle, *map(median, replays.factors)]
    faster, slower = map(median, replays.costs) if replays.costs else (middle, middle)
    low = min(of_factors) - math.hypot(spread, max(middle - faster, 0.0))
    level = PREDICTION_DEVIATE * math.sqrt(2)
    least = min(_busiest_stream(model, replay) for replay in (replays.central, *replays.factors))
    least *= 1 - level * RUN_TO_RUN_KERNELS
    high = max(of_factors) + math.hypot(spread, max(slower - middle, 0.0))
    if all(_only_shortens(model, replay) for replay in (replays.central, *replays.factors)):
        high = max(middle, min(high, ceiling))
    return middle, min(middle, max(least, low)), high


def _only_shortens(model: Model, outcome: _Outcome) -> bool:
    """Return whether no work and no host time takes longer than before."""
    both = zip(model.processes, model.host, outcome.changes, strict=True)
    return all(
        bool((change.duration <= graph.duration).all()) and bool((change.host <= factor).all())
        for graph, factor, change in both
    )


def _busiest_stream(model: Model, outcome: _Outcome) -> float:
    """Return the median time (ns) of the kernels of each step on its busiest stream: no step is
    shorter. Copies vary from run to run by more than the step."""
    busiest = []
    for graph, alone, stream in zip(model.processes, outcome.alone, model.streams, strict=True):
        nodes = np.flatnonzero((graph.step != NONE) & (stream != NONE))
        streams = int(stream.max(initial=NONE)) + 1
        time = np.zeros((graph.steps.height, max(streams, 1)), dtype=np.int64)
        np.add.at(time, (graph.step[nodes], stream[nodes]), alone[nodes])
        busiest.append(time.max(axis=1))
    return _median(_longest(model, busiest))


def _run_error(model: Model, path: pl.DataFrame) -> float:
    """Return by what two runs differ, relative to their step, of the critical ``path``."""
    level = PREDICTION_DEVIATE * math.sqrt(2)
    if model.trace.on_cpu:
        return level * RUN_TO_RUN_CPU
    times = dict(path.select("of", "time_ns").iter_rows())
    host = sum(times.pop(kind, 0) for kind in ("host", "launch", "sync", "gap"))
    copied = times.pop("memcpy", 0)
    pageable = (copies(model.trace.whole)["host_memory"] == "pageable").any()
    parts = (
        (sum(times.values()), RUN_TO_RUN_KERNELS),
        (copied, RUN_TO_RUN_PAGEABLE if pageable else RUN_TO_RUN_COPIES),
        # The interval of the profiler's cost has the host's variation in it.
        (host, RUN_TO_RUN_HOST if model.cost is None or model.cost.measured else 0.0),
    )
    return level * relative_spread(parts)


def _change_error(model: Model, change: float) -> float:
    """Return by what a predicted ``change`` misses, in its unit."""
    error = CHANGE_ERROR_CPU if model.trace.on_cpu else CHANGE_ERROR
    return abs(change) * error * PREDICTION_DEVIATE


def _path_of_replays(model: Model, replays: Replays) -> pl.DataFrame:
    """Return the critical path of ``replays`` as rows of :class:`Prediction`'s ``path``."""
    category = labels(model.trace.whole.tables, "category")["category"]
    steps = max(len(_step_times(model, None)), 1)
    return _path_of_scenario(model, category, None, replays.central, steps)


def _path_of_scenario(
    model: Model, category: pl.Series, scenario: str | None, outcome: _Outcome, steps: int
) -> pl.DataFrame:
    """Return the rows of a scenario of :class:`Prediction`'s ``path``."""
    times: Counter[str] = Counter()
    for graph, change, ended, windows, rows in zip(
        model.processes, outcome.changes, outcome.over, outcome.windows, model.measured, strict=True
    ):
        times += path_times(model.trace, category, graph, change, ended, windows[0], rows)
    parts = [(scenario, kind, round(time / steps)) for kind, time in times.most_common()]
    schema = schema_of(PATH)
    return pl.DataFrame(parts, schema=schema, orient="row")


def _time_removed(model: Model, outcome: _Outcome) -> int:
    """Return by how much work and pieces of threads get shorter in the measured steps, summed."""
    total = 0
    for graph, change, alone, rows, factor in zip(
        model.processes,
        outcome.changes,
        outcome.alone,
        model.measured,
        model.host,
        strict=True,
    ):
        # Other collectives take as long as their ranks let them.
        in_steps = np.isin(graph.step, rows) & (alone != graph.duration)
        total += int((graph.duration - change.duration)[in_steps].sum())
        begin = graph.steps["begin"].to_numpy()[rows]
        end = graph.steps["end"].to_numpy()[rows]
        by_begin = np.argsort(begin)
        last = np.searchsorted(begin[by_begin], graph.host.begin, side="right") - 1
        inside = (last >= 0) & (graph.host.begin < end[by_begin][np.maximum(last, 0)])
        removed = (graph.host.end - graph.host.begin) * (factor - change.host)
        total += round(float(removed[inside].sum()))
    return total


def _notes(model: Model, scenarios: Sequence[BoundScenario]) -> tuple[str, ...]:
    notes = list(dict.fromkeys(note for bound in scenarios for note in bound.scenario.assumes))
    notes.append("work removed: durations summed as if nothing overlapped")
    notes += measured_steps(model.trace).notes or ("no steps: whole capture",)
    notes += [model.part.note] if model.part.note else []
    unmoved = sum(
        int((graph.activity != NONE).sum())
        - len(np.unique(graph.edges.target[graph.activity[graph.edges.target] != NONE]))
        for graph in model.processes
    )
    if unmoved:
        noun = "activity" if unmoved == 1 else "activities"
        notes.append(f"no recorded dependency: {unmoved:,} {noun}, not moved")
    category = labels(model.trace.whole.tables, "category")["category"]
    collectives = int((category == "collective").sum())
    together = sum(model.meetings.ranks)
    if collectives and not together:
        notes.append("collectives: recorded durations, waits for other ranks included")
    elif collectives:
        apart = collectives - together
        rest = f", {apart:,} with their recorded duration" if apart > 0 else ""
        notes.append(f"collectives: {together:,} wait for their last rank{rest}")
    return tuple(notes)


_MOST_TERMS: Final = 200
"""Degrees of freedom above which the expansion around the normal distribution is exact enough."""


def student_quantile(level: float, degrees: int) -> float:
    """Return the value below which t with ``degrees`` of freedom is with probability ``level``.

    ``level`` is above 0.5. The error is below 1e-8 of the result.
    """
    if degrees > _MOST_TERMS:
        from statistics import NormalDist

        z = NormalDist().inv_cdf(level)
        first = (z**3 + z) / 4
        second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
        third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
        return z + first / degrees + second / degrees**2 + third / degrees**3
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        if (1 + _within(middle, degrees)) / 2 < level:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan(low)


def _within(angle: float, degrees: int) -> float:
    """Return the probability that t is between plus and minus sqrt(degrees) tan(``angle``).

    Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(odd + 2, degrees + 1, 2):
        total += term
        term *= cosine**2 * (power - 1) / power
    return (angle + sine * total) * 2 / math.pi if odd else sine * total

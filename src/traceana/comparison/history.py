"""The history of a program: its runs in order, their levels, and what changed between them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from math import sqrt
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace

from traceana.comparison.change_points import (
    Change,
    change_points,
    is_usual,
    level_difference,
    levels,
    newest_apart,
    usual_values,
)
from traceana.comparison.commits import ancestors, commit_places, is_among
from traceana.comparison.run_rows import FIGURES, METHOD, RUN
from traceana.comparison.run_store import StoredRun
from traceana.comparison.verdicts import Criteria, Gated, StatisticVerdict, gated, verdict_of
from traceana.errors import NoSuchSelectionError, UsageError
from traceana.settings import FEWEST_OF_LEVEL, PLANNED_POWER
from traceana.table import (
    COUNT,
    FLAG,
    LONG,
    NUMBER,
    PROBABILITY,
    SHARE,
    TEXT,
    TIME,
    Column,
    conformed,
    laid_out,
    names_of,
)

if TYPE_CHECKING:
    from traceana.comparison.resampling import Floats
    from traceana.comparison.run_store import Rows
    from traceana.vocabulary.option_words import HistoryBy, HistoryOrder

RUNS: Final = laid_out(
    (
        Column("number", NUMBER, "place of the run in the order, from 1", title=""),
        Column("run", LONG, "its label"),
        *RUN,
        *FIGURES,
        Column("level_ns", TIME, "mean step of the runs between two changes", title="level"),
        Column(
            "line", NUMBER, "number of the method that it was measured with, from 1", title="method"
        ),
        Column("outlier", FLAG, "true of a run far from its level: it does not move it"),
        *METHOD,
    ),
    hidden=" ".join(["low_ns", "high_ns", "outlier", *names_of(METHOD)]),
    dropped="peak_bytes mfu utilization date commit line",
)
_CHANGE: Final = (
    Column("kind", TEXT, "`step` (from one run to the next), `drift`, `method` (the runs were "
           "measured with something else), `outlier` (a single run; the newest three), or "
           "`possible` (the newest runs are far from all before, too few to be significant)"),
    Column("run", LONG, "first run after it; of a drift the first in it"),
    Column("number", NUMBER, "its place in the order", title=""),
    Column("commit", TEXT, "its commit"),
    Column("last", LONG, "last run before it; of a drift the last in it"),
    Column("method", LONG, "what is different of a method: `driver: 570 → 580`"),
    Column("before_ns", TIME, "level before: mean of its runs", title="before"),
    Column("after_ns", TIME, "level after", title="after"),
    Column("delta_ns", TIME, "their difference", title="change", signed=True),
    Column("low_ns", TIME, "lower end of its interval at the confidence level", signed=True),
    Column("high_ns", TIME, "upper end of its interval", signed=True),
    Column("relative", SHARE, "`delta_ns` over `before_ns`", title="relative change", signed=True),
    Column("p", PROBABILITY, "probability of such a change by chance, corrected for the search"),
    Column("runs_before", COUNT, "runs of the level before"),
    Column("runs_after", COUNT, "runs of the level after"),
)  # fmt: skip
CHANGES: Final = laid_out(
    _CHANGE,
    hidden="number last method low_ns high_ns runs_before runs_after",
    dropped="p commit before_ns",
)
ITEMS: Final = laid_out(
    (
        Column("item", LONG, "the class, layer, kernel or line"),
        Column("time_ns", TIME, "mean time per step in the newest level"),
        Column("share", SHARE, "`time_ns` over the summed time of all items"),
        *(column for column in _CHANGE if column.name not in ("method", "number")),
    ),
    hidden="last after_ns low_ns high_ns runs_before runs_after",
    dropped="p commit kind share before_ns",
)
"""Times of items, and the last change of each; null without one."""

SEEN: Final = (0.02, 0.05)
"""Changes of which is said after how many runs they are seen."""
_MOST_RUNS: Final = 50
_NEAREST: Final = 5
"""Runs on either side of a change, of which the most usual one stands for its level."""
_MOST_OUTLIERS: Final = 3
_LEAST_ITEM: Final = 0.001
"""Items below this part of the step are no rows."""
_DIGITS: Final = re.compile(r"([0-9]{1,18})")


class Line(msgspec.Struct, frozen=True):
    """Runs of one method: their ``places`` in the order, and the ``changes`` of their step.

    ``changes`` have positions in ``places``. ``usual`` is the standard deviation between runs that
    is usual of their work (ns). The newest runs, ``apart`` in number, are far from the level before
    them and too few to be one.
    """

    places: tuple[int, ...]
    changes: tuple[Change, ...]
    usual: float
    apart: int = 0

    def level(self, at: int) -> tuple[int, int]:
        """Return the begin and end of the level of the run at position ``at``."""
        every = levels(len(self.places), self.changes)
        return next(level for level in every if level[0] <= at < level[1])

    @property
    def settled(self) -> tuple[int, ...]:
        """The places of the runs that are not apart."""
        return self.places[: len(self.places) - self.apart]


class Pair(msgspec.Struct, frozen=True):
    """The places of two runs, each as usual as the runs near a change are, before and after it."""

    before: int
    after: int


class History(msgspec.Struct, frozen=True):
    """Runs in order, by method, and their changes.

    ``frame`` has a row per run (:data:`RUNS`), ``runs`` their paths, ``lines`` the methods in the
    order of their first runs. ``changes`` are the rows of :data:`CHANGES`, ``pairs`` the runs that
    stand for the levels of each; ``noise`` is the standard deviation from run to run relative to
    the level, in the line of the newest run. ``left_out`` says which runs were, and why.
    """

    frame: pl.DataFrame
    runs: tuple[StoredRun, ...]
    lines: tuple[Line, ...]
    changes: pl.DataFrame
    pairs: tuple[Pair, ...]
    noise: float
    criteria: Criteria
    left_out: tuple[str, ...] = ()

    @property
    def newest(self) -> Line:
        """The line of the newest run."""
        return self.lines[int(self.frame["line"][-1]) - 1]

    @property
    def steps(self) -> Floats:
        """The step time of each run (ns)."""
        return self.frame["step_ns"].to_numpy().astype(np.float64)

    def judged(self, against: str | None = None) -> Judged:
        """Return the newest run, with the others of its commit, beside the level before it.

        The level is that of the runs ``against`` which it is judged, by :func:`chosen`, or of all.
        """
        frame, line = self.frame, self.newest
        commit = frame["commit"][-1]
        last = frame.height - 1
        new = [
            place
            for place in line.places
            if place == last or (commit is not None and frame["commit"][place] == commit)
        ]
        wanted = None if against is None else chosen(self, against)
        old = [
            place
            for place in line.settled
            if place not in new and place < last and (wanted is None or place in wanted)
        ]
        values = self.steps
        before = values[old]
        changes = change_points(
            before, level=self.criteria.level, minimum_effect=self.criteria.minimum_effect,
            usual=line.usual,
        )  # fmt: skip
        begin = levels(len(before), changes)[-1][0] if old else 0
        before, after = usual_values(before[begin:]) if old else before, values[new]
        if len(before) < FEWEST_OF_LEVEL:
            fewer = f"{len(before)} runs of its method before it, {FEWEST_OF_LEVEL} needed"
            verdict = StatisticVerdict(
                float(before.mean()) if len(before) else 0.0, float(after.mean()), None, None,
                "inconclusive",
            )  # fmt: skip
            return Judged(verdict, tuple(old[begin:]), tuple(new), fewer)
        interval, p = level_difference(before, after, self.criteria.level, line.usual)
        a, b = float(before.mean()), float(after.mean())
        verdict = StatisticVerdict(
            a, b, interval, p, verdict_of(interval, False, self.criteria, a, b)
        )
        return Judged(verdict, tuple(old[begin:]), tuple(new), "")

    def runs_until(self, change: float, before: int) -> int | None:
        """Return how many runs of a commit show a relative ``change`` from ``before`` runs.

        That is with probability :data:`~traceana.settings.PLANNED_POWER`, at the confidence level;
        None where 50 do not.
        """
        from scipy.special import stdtrit

        tail = (1 - self.criteria.level) / 2
        for runs in range(1, _MOST_RUNS + 1):
            freedom = before + runs - 2
            if freedom < 1:
                continue
            error = self.noise * sqrt(1 / before + 1 / runs)
            deviates = -float(stdtrit(freedom, tail)) + NormalDist().inv_cdf(PLANNED_POWER)
            if change >= deviates * error:
                return runs
        return None


class Judged(msgspec.Struct, frozen=True):
    """The newest runs beside the level before them: their places, and the verdict on their step.

    ``reason`` says why there is no verdict; empty with one.
    """

    step: StatisticVerdict
    before: tuple[int, ...]
    newest: tuple[int, ...]
    reason: str

    def gated(self, limit: float) -> tuple[Gated, str]:
        """Return whether the newest runs are slower by more than ``limit``, a fraction, and why."""
        if self.reason:
            return "inconclusive", self.reason
        return gated(self.step, limit)


def chosen(history: History, against: str) -> set[int]:
    """Return the places of the runs of ``against``.

    That is a folder of theirs, the beginning of their labels, or a branch, tag or commit of git:
    runs of it and its ancestors. Raises :class:`~traceana.errors.NoSuchSelectionError`.
    """
    frame = history.frame
    # A folder around all runs says nothing of one.
    folders = [run.path.absolute().parent for run in history.runs]
    common = Path(os.path.commonpath(folders)) if folders else Path()
    in_folder = {
        place for place, folder in enumerate(folders) if against in folder.relative_to(common).parts
    }
    if in_folder and len(in_folder) < frame.height:
        return in_folder
    labelled = {place for place, label in enumerate(frame["run"]) if label.startswith(against)}
    if labelled:
        return labelled
    commits = ancestors(against)
    if commits is not None:
        of_branch = {
            place for place, commit in enumerate(frame["commit"]) if is_among(commit, commits)
        }
        if of_branch:
            return of_branch
    raise NoSuchSelectionError(
        f"--against {against}: no run in a folder of that name, with a label that begins so, or of "
        "a commit of such a branch; without --against all runs count"
    )


def run_history(
    rows: Rows,
    labels: Sequence[str],
    criteria: Criteria,
    order: HistoryOrder = "date",
) -> History:
    """Return the history of the runs of ``rows``, which are called ``labels``.

    Raises ``UsageError`` where the runs have no such ``order``.
    """
    places = _ordered(rows.frame, labels, order)
    frame = rows.frame.with_columns(pl.Series("run", labels, pl.String))[places]
    method = frame.select(names_of(METHOD))
    numbers: dict[tuple[Any, ...], int] = {}
    line_of = [numbers.setdefault(row, len(numbers)) for row in method.iter_rows()]
    steps = frame["step_ns"].to_numpy().astype(np.float64)
    lines = []
    level_ns = steps.copy()
    outlying = np.zeros(len(steps), dtype=np.bool_)
    residuals: list[Floats] = []
    for line in _lines(line_of, frame):
        at = np.array(line.places)
        values = steps[at]
        changes = change_points(
            values,
            level=criteria.level,
            minimum_effect=criteria.minimum_effect,
            usual=line.usual,
        )
        spans = levels(len(values), changes)
        newest_level = values[spans[-1][0] :]
        is_newest = line.places[-1] == len(steps) - 1
        apart = newest_apart(newest_level, criteria.minimum_effect) if is_newest else 0
        lines.append(replace(line, changes=tuple(changes), apart=apart))
        differences: list[Floats] = []
        for begin, end in spans:
            settled = min(end, len(values) - apart)
            part = values[begin:settled]
            far = np.abs(part / usual_values(part).mean() - 1) >= criteria.minimum_effect
            is_outlier = ~is_usual(part) & far
            of_level = part[~is_outlier]
            level_ns[at[begin:end]] = of_level.mean()
            outlying[at[begin:settled]] = is_outlier
            differences.append((of_level - of_level.mean()) / of_level.mean())
        residuals.append(np.concatenate(differences))
    newest = line_of[-1]
    of_newest = residuals[newest]
    freedom = len(of_newest) - len(levels(len(of_newest), lines[newest].changes))
    noise = sqrt(float(of_newest @ of_newest) / freedom) if freedom > 0 else 0.0
    frame = frame.with_columns(
        pl.int_range(1, pl.len() + 1).alias("number"),
        pl.Series("line", line_of, pl.Int64) + 1,
        pl.Series("level_ns", level_ns.round().astype(np.int64)),
        pl.Series("outlier", outlying),
    )
    history = History(
        conformed(frame, RUNS),
        tuple(rows.runs[place] for place in places),
        tuple(lines),
        pl.DataFrame(),
        (),
        noise,
        criteria,
        rows.left_out,
    )
    changes_and_pairs = [
        *_changes_of_step(history),
        *_changes_of_method(history),
        *_outliers(history),
        *_possible_change(history),
    ]
    changes_and_pairs.sort(key=lambda row: row[0]["number"])
    table = pl.DataFrame([row for row, _ in changes_and_pairs], infer_schema_length=None)
    return replace(
        history,
        changes=conformed(table, CHANGES),
        pairs=tuple(pair for _, pair in changes_and_pairs),
    )


def _lines(line_of: Sequence[int], frame: pl.DataFrame) -> Iterator[Line]:
    of_line: dict[int, list[int]] = {}
    for place, number in enumerate(line_of):
        of_line.setdefault(number, []).append(place)
    for places in of_line.values():
        usual = frame["usual_ns"].gather(places).median()
        yield Line(tuple(places), (), float(usual) if isinstance(usual, int | float) else 0.0)


def _ordered(frame: pl.DataFrame, labels: Sequence[str], order: HistoryOrder) -> list[int]:
    """Return the places of the runs in ``order``; runs that are equal in it stay as given."""
    count = range(frame.height)
    dates = frame["date"].to_list()
    undated = set(dates) == {None}
    if order == "given" or (order == "date" and undated):
        return [*count]
    if order == "label":
        return sorted(count, key=lambda place: _natural(labels[place]))
    if order == "commit":
        of_commits = commit_places(frame["commit"].to_list())
        return sorted(count, key=lambda place: (of_commits[place], dates[place] or ""))
    if None in dates:
        raise UsageError(
            f"{labels[dates.index(None)]} has no date: --order given or --order label, or "
            "--order commit"
        )
    return sorted(count, key=lambda place: dates[place])


def _natural(text: str) -> list[tuple[bool, int, str]]:
    """Return a key that orders numbers in texts by their values."""
    parts = enumerate(_DIGITS.split(text))
    return [(at % 2 > 0, int(part) if at % 2 else 0, part) for at, part in parts]


def _changes_of_step(history: History) -> Iterator[tuple[dict[str, Any], Pair]]:
    """Yield the changes of level in each line."""
    steps = history.steps
    for line in history.lines:
        for change in line.changes:
            yield _change_row(history.frame, line, change), _pair(line, change, steps)


def _change_row(frame: pl.DataFrame, line: Line, change: Change) -> dict[str, Any]:
    """Return the row of ``change`` in ``line``, as :data:`CHANGES`."""
    first = line.places[change.begin if change.drift else change.first]
    last = line.places[change.end - 1 if change.drift else change.first - 1]
    place = min(change.first, len(line.places) - 1) if change.drift else change.first
    kind = "drift" if change.drift else "step"
    difference = _difference(change.before, change.after, change.interval, change.p)
    counts = place - change.begin, change.end - place
    return _row(frame, kind, first, last, difference, counts)


def _row(
    frame: pl.DataFrame,
    kind: str,
    first: int,
    last: int,
    difference: dict[str, Any],
    counts: tuple[int, int],
) -> dict[str, Any]:
    """Return a row of :data:`CHANGES`, by the places of the ``first`` run after and the ``last``
    before it, and the numbers of runs on both sides."""
    return {
        "kind": kind,
        "run": frame["run"][first],
        "number": first + 1,
        "commit": frame["commit"][first],
        "last": frame["run"][last],
        **difference,
        "runs_before": counts[0],
        "runs_after": counts[1],
    }


def _outliers(history: History) -> Iterator[tuple[dict[str, Any], Pair]]:
    """Yield the newest outliers, each beside the usual runs of its level."""
    frame, steps = history.frame, history.steps
    for place in frame.with_row_index("place").filter("outlier")["place"].tail(_MOST_OUTLIERS):
        line = history.lines[int(frame["line"][place]) - 1]
        begin, end = line.level(line.places.index(place))
        others = [
            other
            for other in line.settled[begin:end]
            if other != place and not frame["outlier"][other]
        ]
        values = steps[others]
        interval, p = level_difference(values, steps[[place]], history.criteria.level, line.usual)
        # Few runs may be more alike than runs usually are.
        room = NormalDist().inv_cdf((1 + history.criteria.level) / 2) * line.usual
        if interval.low <= 0 <= interval.high or abs(interval.difference) <= room:
            continue
        level = float(values.mean())
        difference = _difference(level, steps[place], interval, p)
        row = _row(frame, "outlier", place, place, difference, (len(others), 1))
        nearest = sorted(others, key=lambda other: abs(other - place))[:_NEAREST]
        yield row, Pair(_most_usual(nearest, level, steps), place)


def _possible_change(history: History) -> Iterator[tuple[dict[str, Any], Pair]]:
    """Yield the newest runs that are far from the level before them and too few for a level."""
    line, frame, steps = history.newest, history.frame, history.steps
    if not line.apart:
        return
    begin, _ = line.level(len(line.places) - 1)
    old = [place for place in line.settled[begin:] if not frame["outlier"][place]]
    new = [*line.places[-line.apart :]]
    interval, p = level_difference(steps[old], steps[new], history.criteria.level, line.usual)
    before, after = float(steps[old].mean()), float(steps[new].mean())
    difference = _difference(before, after, interval, p)
    row = _row(frame, "possible", new[0], old[-1], difference, (len(old), len(new)))
    yield row, Pair(_most_usual(old[-_NEAREST:], before, steps), _most_usual(new, after, steps))


def _difference(before: float, after: float, interval: Any, p: float) -> dict[str, Any]:
    return {
        "before_ns": round(before),
        "after_ns": round(after),
        "delta_ns": round(after) - round(before),
        "low_ns": round(interval.low),
        "high_ns": round(interval.high),
        "relative": after / before - 1 if before else None,
        "p": p,
    }


def _pair(line: Line, change: Change, steps: Floats) -> Pair:
    """Return two runs near ``change``, those whose step is nearest to the levels."""
    if change.drift:
        before, after = [*line.places[change.begin :][:1]], [*line.places[: change.end][-1:]]
    else:
        before = [*line.places[change.begin : change.first][-_NEAREST:]]
        after = [*line.places[change.first : change.end][:_NEAREST]]
    return Pair(_most_usual(before, change.before, steps), _most_usual(after, change.after, steps))


def _most_usual(places: Sequence[int], level: float, steps: Floats) -> int:
    return min(places, key=lambda place: (abs(steps[place] - level), place))


def _changes_of_method(history: History) -> Iterator[tuple[dict[str, Any], Pair]]:
    """Yield each method but the first, beside that of the run before its first run."""
    frame, steps = history.frame, history.steps
    for line in history.lines[1:]:
        first = line.places[0]
        before = history.lines[int(frame["line"][first - 1]) - 1]
        at = before.places.index(first - 1)
        begin = before.level(at)[0]
        old = [*before.places[begin : at + 1]]
        new = [*line.places[slice(*line.level(0))]]
        of_old, of_new = usual_values(steps[old]), usual_values(steps[new])
        usual = max(before.usual, line.usual)
        interval, p = level_difference(of_old, of_new, history.criteria.level, usual)
        a, b = float(of_old.mean()), float(of_new.mean())
        counts = len(old), len(new)
        row = _row(frame, "method", first, first - 1, _difference(a, b, interval, p), counts)
        row["method"] = "; ".join(different_method(frame, first - 1, first))
        pair = Pair(_most_usual(old[-_NEAREST:], a, steps), _most_usual(new[:_NEAREST], b, steps))
        yield row, pair


def different_method(frame: pl.DataFrame, before: int, after: int) -> Iterator[str]:
    """Yield what two runs differ in, of :data:`~traceana.comparison.run_rows.METHOD`."""
    for column in METHOD:
        a, b = (frame[column.name][place] for place in (before, after))
        if a != b:
            of = column.title
            yield f"{of}: {'unknown' if a is None else a} → {'unknown' if b is None else b}"


def items(history: History, rows: Rows, by: HistoryBy) -> pl.DataFrame:
    """Return the items of the newest method, largest first, each with its last change.

    ``rows`` are those of the runs, with their items. The columns are :data:`ITEMS`. Levels are
    searched in the runs of the newest method, all items together.
    """
    line = history.newest
    place_of = {run: place for place, run in enumerate(history.runs)}
    position = {place: at for at, place in enumerate(line.places)}
    order = [position.get(place_of[run]) for run in rows.runs]
    long = (
        rows.frame.select("items", pl.Series("run", order, pl.Int64))
        .drop_nulls("run")
        .explode("items")
        .unnest("items")
        .filter(pl.col("by") == by)
        .drop_nulls()
    )
    if long.is_empty():
        return conformed(long, ITEMS)
    names = long["item"].unique().sort()
    numbers = long["item"].replace_strict(names, pl.int_range(len(names), eager=True))
    times = np.zeros((len(names), len(line.places)))
    np.add.at(times, (numbers.to_numpy(), long["run"].to_numpy()), long["time_ns"].to_numpy())
    step = float(history.frame["level_ns"][-1])
    large = times.mean(axis=1) >= _LEAST_ITEM * step
    listed: list[dict[str, Any]] = []
    for item, values in zip(names.filter(large), times[large], strict=True):
        changes = change_points(
            values,
            level=history.criteria.level,
            minimum_effect=history.criteria.minimum_effect,
            series=int(large.sum()),
        )
        begin = levels(len(values), changes)[-1][0]
        time = float(usual_values(values[begin:]).mean())
        row = {"item": item, "time_ns": round(time)}
        if changes:
            row |= _change_row(history.frame, line, changes[-1])
        listed.append(row)
    small = float(times[~large].mean(axis=1).sum())
    frame = conformed(pl.DataFrame(listed, infer_schema_length=None), ITEMS)
    share = pl.col("time_ns") / (pl.col("time_ns").sum() + small)
    ordered = frame.sort("time_ns", "item", descending=[True, False])
    return ordered.with_columns(share.alias("share"))

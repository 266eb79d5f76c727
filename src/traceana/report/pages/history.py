"""``history``: the runs of a program in order, and the changes of its step time."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from msgspec.structs import replace

from traceana.comparison.changes import CHANGES as OF_DIFF
from traceana.comparison.compared_run import Run
from traceana.comparison.diff import Diff, compared
from traceana.comparison.history import (
    CHANGES,
    ITEMS,
    RUNS,
    SEEN,
    History,
    Pair,
    different_method,
    items,
    run_history,
)
from traceana.comparison.run_inputs import labels as labels_of
from traceana.comparison.run_inputs import opened
from traceana.comparison.run_rows import METHOD
from traceana.comparison.run_store import find_stored, rows_of
from traceana.comparison.verdicts import Criteria
from traceana.errors import TraceanaError, UsageError
from traceana.readers.source import silent
from traceana.report import display_names, numbers
from traceana.report.page import Axis, Block, Chart, Facts, Finding, Findings, Heading, Marks, Page
from traceana.report.page import Part as FindingPart
from traceana.report.pages.diff import changed_layers, first_changes
from traceana.report.pages.single_table import data_of, notes_of, table_of
from traceana.report.result import CommandResult
from traceana.report.text import sparkline
from traceana.result import Arranged, Result
from traceana.settings import (
    CHANGE_POINT_P,
    CONFIDENCE_LEVEL,
    FEWEST_OF_LEVEL,
    MINIMUM_EFFECT,
)
from traceana.table import LONG, Column, Kind, conformed

if TYPE_CHECKING:
    from traceana.job.tasks import Done
    from traceana.vocabulary.option_words import HistoryBy, HistoryOrder

CAUSES: Final = (Column("run", LONG, "first run after the change of the history"), *OF_DIFF)
"""What changed at each change: the rows of ``diff`` between a run before and one after."""

MOST_EXPLAINED: Final = 5
"""The newest changes of which runs are opened and compared."""
_MOST_CAUSES: Final = 3
_MOST_LINES: Final = 4
_MOST_NAMED: Final = 5
_MOST_DRAWN: Final = 1_000
"""The newest runs in the chart."""
_WIDTH: Final = 60
_COMMIT: Final = 12
"""Letters of a commit on a page."""
_KINDS: Final = {
    **{"step": "level", "drift": "drift", "method": "method"},
    **{"outlier": "outlier", "possible": "possible change"},
}


def history(
    runs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    *others: str | os.PathLike[str],
    by: HistoryBy = "step",
    order: HistoryOrder = "date",
    labels: Sequence[str] | None = None,
    level: float = CONFIDENCE_LEVEL,
    minimum_effect: float = MINIMUM_EFFECT,
    explain: bool = True,
    progress: Done = silent,
) -> CommandResult:
    """Return the runs in order, newest first, with the changes of their step time as ``summary``.

    ``runs`` are paths: traces, bundles, recorded runs, folders of ranks, or a folder of them. In
    ``order`` of date, commit, label, or as given. ``labels`` name the runs, in the order of the
    paths. With ``by`` the rows are the classes, layers, kernels or lines of the newest method, each
    with its last change. A change is significant at
    :data:`~traceana.settings.CHANGE_POINT_P`, and at least ``minimum_effect``; intervals are at
    confidence ``level``. ``explain`` compares runs before and after the newest changes, which opens
    their traces. Raises the errors of :mod:`traceana.errors`.
    """
    criteria = Criteria(level, minimum_effect)
    first = [runs] if isinstance(runs, str | os.PathLike) else runs
    stored = find_stored([Path(path) for path in (*first, *others)])
    if labels is not None and len(labels) != len(stored):
        raise UsageError(f"{len(labels)} labels for {len(stored)} runs: give one for each")
    rows = rows_of(stored, items=by != "step", progress=progress)
    named = labels_of([run.path for run in stored]) if labels is None else labels
    name_of = dict(zip(stored, named, strict=True))
    past = run_history(rows, [name_of[run] for run in rows.runs], criteria, order)
    causes = _causes(past) if explain else [None] * past.changes.height
    if by == "step":
        result = Result(past.frame.reverse(), {}, tuple(_notes(past)), RUNS)
    else:
        frame = items(past, rows, by)
        nothing = () if frame.height else (f"no time by {by} in the runs of the newest method",)
        result = Result(frame, {}, (*nothing, *_notes(past)), ITEMS)

    def page(shown: Arranged) -> Page:
        short = shown.frame.with_columns(pl.col("commit").str.slice(0, _COMMIT))
        if by == "class":
            short = short.with_columns(_classes(short["item"]))
        table = table_of(replace(shown, frame=short), layout="compact")
        blocks: tuple[Block, ...] = (
            Facts(tuple(_head(past))),
            *_changes(past, causes),
            Heading("Runs, newest first" if by == "step" else f"Time by {by}, newest method"),
            table,
            *notes_of(shown.notes),
        )
        return Page("history", blocks, data_of(shown, _source(past, by), sections))

    explained = pl.concat(
        [
            pl.DataFrame(schema={column.name: column.dtype for column in CAUSES}),
            *(
                conformed(cause.changes.with_columns(run=pl.lit(run)), CAUSES)
                for run, cause in zip(past.changes["run"], causes, strict=True)
                if cause is not None
            ),
        ]
    )
    sections = {
        "changes": Result(past.changes, columns=CHANGES),
        "causes": Result(explained, columns=CAUSES),
    }
    return CommandResult.of(
        result, page, screenful=20, pictures=lambda: [picture(past)], summary=past
    )


def _classes(items_: pl.Series) -> pl.Series:
    """Return the names of classes, which are stored as ``category: part``."""
    parts = (text.partition(": ") for text in items_)
    called = [display_names.class_of(category, part or None) for category, _, part in parts]
    return pl.Series(items_.name, called, pl.String)


def _causes(past: History) -> list[Diff | None]:
    """Return ``diff`` of the runs beside each of the newest changes; None of those not opened."""
    count = past.changes.height
    unopened = max(count - MOST_EXPLAINED, 0)
    newest = [_cause(past, pair) for pair in past.pairs[unopened:]]
    return [*[None] * unopened, *newest]


def _cause(past: History, pair: Pair) -> Diff | None:
    """Return ``diff`` of two runs; None if one cannot be opened now."""
    paths = [past.runs[place].path for place in (pair.before, pair.after)]
    try:
        (a, model_a), (b, model_b) = opened(paths[0], None, paths[1]), opened(paths[1])
        return compared([Run("a", a, model_a)], [Run("b", b, model_b)], past.criteria)
    except TraceanaError:
        return None


def _head(past: History) -> Iterator[tuple[str, str]]:
    frame, steps = past.frame, past.steps
    first, last = frame.row(0, named=True), frame.row(-1, named=True)
    methods = f" · {len(past.lines)} methods" if len(past.lines) > 1 else ""
    ends = f"{first['run']} to {last['run']}" if frame.height > 1 else last["run"]
    yield "Runs", f"{numbers.counted(frame.height, 'run')}, {ends}{methods}"
    yield "Newest", f"step {numbers.duration(last['step_ns'])}{_figures(last)}"
    line = past.newest
    begin, _ = line.level(len(line.places) - 1)
    of_level = [place for place in line.settled[begin:] if not frame["outlier"][place]]
    level = numbers.duration(last["level_ns"])
    since = f"{frame['run'][of_level[0]]} to {frame['run'][of_level[-1]]}"
    yield "Level", f"{level}, mean of {numbers.counted(len(of_level), 'run')}, {since}"
    if line.changes:
        change = line.changes[-1]
        since = frame["run"][line.places[change.begin if change.drift else change.first]]
        times = numbers.arrow(round(change.before), round(change.after))
        yield "", f"{numbers.percent(change.relative)} since {since} ({times})"
    yield from _noise(past, len(of_level))
    for number, of_method in enumerate(past.lines[-_MOST_LINES:], len(past.lines) + 1):
        values = steps[list(of_method.places)]
        number -= min(len(past.lines), _MOST_LINES)
        label = f"Method {number}" if len(past.lines) > 1 else "Steps"
        ends = numbers.interval(int(values.min()), int(values.max()))
        yield label, f"{sparkline(values.tolist(), _WIDTH)}  {ends}"


def _figures(row: Mapping[str, Any]) -> str:
    device = "CPU" if row["devices"] == "CPU" else "GPU"
    parts = [
        (f"{device} utilization", "utilization", numbers.share),
        ("MFU", "mfu", numbers.share),
        ("peak memory", "peak_bytes", numbers.size),
    ]
    return "".join(
        f" · {title} {write(row[name])}" for title, name, write in parts if row[name] is not None
    )


def _noise(past: History, runs: int) -> Iterator[tuple[str, str]]:
    """Yield the noise from run to run, and how many runs show a change."""
    if not past.noise or runs < FEWEST_OF_LEVEL:
        return
    seen = []
    for change in SEEN:
        count = past.runs_until(change, runs)
        if count is None:
            seen.append(f"{numbers.level(change)} change not detectable")
        else:
            needed = f"needs {numbers.counted(count, 'run')} after it"
            seen.append(f"{numbers.level(change)} change {needed}")
    yield "Noise", " · ".join([f"{numbers.share(past.noise)} from run to run", *seen])


def _changes(past: History, causes: Sequence[Diff | None]) -> Iterator[Block]:
    """Yield the changes, newest first, each with the first lines of its diff."""
    count = past.changes.height
    if not count:
        yield Facts((("Changes", "none"),))
        return
    level = numbers.level(past.criteria.level)
    findings = []
    rows = zip(past.changes.to_dicts(), causes, past.pairs, strict=True)
    for row, cause, pair in list(rows)[::-1]:
        bounds = [row[name] for name in ("low_ns", "high_ns")]
        unit = numbers.scale(bounds, numbers.TIME)
        low, high = (numbers.with_sign(unit.write(bound), bound) for bound in bounds)
        times = numbers.arrow(row["before_ns"], row["after_ns"])
        times = f"{times}, {level} interval {low} to {high} {unit.unit}"
        commit = f"commit {row['commit'][:_COMMIT]}" if row["commit"] else ""
        if row["kind"] == "drift":
            where = f"from {row['run']} to {row['last']}"
        elif row["kind"] == "outlier":
            where = f"{row['run']} (run {row['number']})"
        elif row["kind"] == "possible":
            there = numbers.counted(row["runs_after"], "run")
            is_few = row["runs_after"] < FEWEST_OF_LEVEL
            reason = f"{FEWEST_OF_LEVEL} needed" if is_few else "not significant"
            where = f"from {row['run']} on (run {row['number']}; {there}, {reason})"
        else:
            where = f"from {row['run']} on (run {row['number']})"
        facts = [row["method"] or "", times, commit]
        effect = "" if row["relative"] is None else numbers.percent(row["relative"])
        findings.append(
            Finding(
                f"{_KINDS[row['kind']]} {where}",
                effect,
                " · ".join(fact for fact in facts if fact),
                parts=tuple(_lines(past, cause, pair)),
            )
        )
    yield Heading("Changes of the step time, newest first")
    yield Findings(tuple(findings), brief=True)


def _lines(past: History, cause: Diff | None, pair: Pair) -> Iterator[FindingPart]:
    """Yield the first lines of a diff."""
    if cause is None:
        return
    for finding in first_changes(cause, _MOST_CAUSES):
        yield FindingPart(1, finding.effect, f"{finding.title}: {finding.summary}")
        for part in finding.parts[:1]:
            yield FindingPart(2, part.effect, part.summary)
    if layers := changed_layers(cause, _MOST_CAUSES):
        yield FindingPart(1, "", f"layers: {layers}")
    paths = [str(past.runs[place].path) for place in (pair.before, pair.after)]
    yield FindingPart(1, "", f"traceana diff {shlex.join(paths)}")


def _notes(past: History) -> Iterator[str]:
    if past.frame["date"].null_count() == past.frame.height:
        yield "runs without dates: in the given order, unless --order is commit or label"
    outliers = past.frame.filter("outlier")["run"].to_list()
    if outliers:
        named = ", ".join(outliers[-_MOST_NAMED:])
        more = "" if len(outliers) <= _MOST_NAMED else " and earlier ones"
        counted = numbers.counted(len(outliers), "outlier")
        yield f"{counted}, not part of a level: {named}{more}"
    if past.changes.height > MOST_EXPLAINED:
        yield f"the newest {MOST_EXPLAINED} changes are explained"
    level = numbers.level(past.criteria.level)
    yield (
        f"change: p ≤ {CHANGE_POINT_P:g} and at least "
        f"{numbers.level(past.criteria.minimum_effect)}, {FEWEST_OF_LEVEL} runs or more on both "
        f"sides; intervals at {level}"
    )
    if past.frame["steps"].null_count():
        yield "runs without marked steps: time of the recording"


def _source(past: History, by: HistoryBy) -> dict[str, Any]:
    methods = [
        past.frame.row(line.places[0], named=True) | {"runs": len(line.places)}
        for line in past.lines
    ]
    names = [column.name for column in METHOD]
    return {
        "by": by,
        "runs": past.frame.height,
        "left_out": list(past.left_out),
        "methods": [
            {"line": number, "runs": row["runs"], **{name: row[name] for name in names}}
            for number, row in enumerate(methods, 1)
        ],
        "noise": past.noise,
        "level": past.criteria.level,
        "minimum_effect": past.criteria.minimum_effect,
    }


def picture(past: History) -> Chart:
    """Return the step time of each run, the levels, and where they change."""
    frame = past.frame.tail(_MOST_DRAWN)
    first = int(frame["number"][0])
    names = [_method_name(past, number) for number in frame["line"]]
    points = frame.select("number", "step_ns", "run", method=pl.Series(names, dtype=pl.String))
    edge = (pl.col("level_ns") != pl.col("level_ns").shift().over("line")).fill_null(value=True)
    level = frame.with_columns(part=edge.cum_sum().over("line")).select(
        "number", "level_ns", level=pl.format("{} {}", "line", "part")
    )
    changes = past.changes.filter(pl.col("number") >= first, pl.col("kind") != "outlier").select(
        pl.col("number") - 0.5, at=pl.format("{} {}", "kind", "number")
    )
    marks = [
        Marks(level, "rule", "number", "level_ns", colour="level"),
        Marks(points, "point", "number", "step_ns", colour="method", label="run"),
    ]
    if changes.height:
        marks.append(Marks(changes, "rule", "number", colour="at"))
    listed = ", ".join(
        f"{kind} {numbers.percent(relative)} at {run}"
        for kind, run, relative in past.changes.select("kind", "run", "relative").iter_rows()
        if relative is not None
    )
    return Chart(
        "Step time of the runs; dashed: levels and changes",
        f"{numbers.counted(past.frame.height, 'run')}; {listed or 'no change'}.",
        Axis("run", Kind.NUMBER, from_zero=False),
        Axis("step time", Kind.TIME, from_zero=False),
        tuple(marks),
        height=280,
    )


def _method_name(past: History, number: int) -> str:
    """Return a name of a method: what it differs in from that of the run before its first."""
    if number == 1:
        return "step" if len(past.lines) == 1 else "method 1"
    first = past.lines[number - 1].places[0]
    different = "; ".join(different_method(past.frame, first - 1, first))
    return f"method {number}: {different}"

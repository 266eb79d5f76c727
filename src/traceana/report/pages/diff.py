"""``diff``: the changes from a baseline to a candidate, and their significance."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl
from msgspec.structs import replace

from traceana.advise.bottleneck import bottleneck
from traceana.advise.figures import Figures
from traceana.comparison.changes import CHANGES
from traceana.comparison.changes import IDLE as IDLE_CAUSES
from traceana.comparison.compared_run import Run, devices
from traceana.comparison.diff import COLUMNS, IDLE, OVERLAP, SUMMARY, compared
from traceana.comparison.planning import planned
from traceana.comparison.run_inputs import opened
from traceana.comparison.verdicts import Criteria, mean_available, step_times
from traceana.report import display_names, numbers
from traceana.report.numbers import arrow, percent, signed
from traceana.report.page import Block, Facts, Finding, Findings, Heading, Hidden, Page, Part, Table
from traceana.report.pages.diff_html import pictures
from traceana.report.pages.single_table import (
    data_of,
    hidden_of,
    notes_of,
    ranked,
    source_of,
    table_of,
    with_values,
)
from traceana.report.result import CommandResult
from traceana.result import Arranged, Result, sums
from traceana.settings import CONFIDENCE_LEVEL, MINIMUM_EFFECT
from traceana.table import Kind
from traceana.timeline.idle_gaps import MEANINGS
from traceana.timeline.work import has_kernels, processor, work
from traceana.trace import Trace

if TYPE_CHECKING:
    from traceana.comparison.diff import Diff
    from traceana.comparison.paired_run import PairedRun
    from traceana.comparison.run_inputs import Given, Pairs
    from traceana.comparison.verdicts import StatisticVerdict, Step
    from traceana.runs.layer_manifest import Manifest
    from traceana.vocabulary.option_words import DiffBy, Statistic

Row = dict[str, Any]

_PARTS: Final[Mapping[str, str]] = {"class": "part", "algorithm": "algorithm"}

MOST_CHANGES: Final = 10
MOST_LAYERS: Final = 10


def diff(
    a: Given | Sequence[Given],
    b: Given | Sequence[Given],
    *,
    by: DiffBy | None = None,
    pairs: Pairs | None = None,
    model_a: Manifest | None = None,
    model_b: Manifest | None = None,
    level: float = CONFIDENCE_LEVEL,
    minimum_effect: float = MINIMUM_EFFECT,
    statistic: Statistic = "median",
) -> CommandResult:
    """Return the differences between baseline ``a`` and candidate ``b``, with their significance.

    One row per layer, or per item of ``by``; without it the page is the summary.
    Traces given by path are opened, with the layer manifest beside them. Where ``a`` and ``b`` are
    lists, of two or more runs each, the step and its kernels are tested between runs. ``pairs``
    forces pairs of layers of ``a`` and ``b``: a mapping of names, or a file of them
    (:mod:`traceana.comparison.run_inputs`). A verdict is faster or slower if the difference is
    significant at confidence ``level`` and its relative change is at least ``minimum_effect``;
    ``statistic`` is ``median`` or ``mean``. Of two memory snapshots the rows are the growth of live
    memory by line.
    Raises ``ValueError`` on an invalid level, minimum, statistic or number of runs, and the errors
    of :mod:`traceana.errors`.
    """
    criteria = Criteria(level, minimum_effect, statistic)
    of_a, of_b = (
        [given] if isinstance(given, Trace | str | os.PathLike) else list(given) for given in (a, b)
    )
    opened_a = [opened(given, model_a, of_b[0] if of_b else None) for given in of_a]
    opened_b = [opened(given, model_b, of_a[0] if of_a else None) for given in of_b]
    if any(trace.is_snapshot for trace, _ in (*opened_a, *opened_b)):
        from traceana.report.pages.memory_diff import diff_snapshots

        traces_a, traces_b = ([trace for trace, _ in run] for run in (opened_a, opened_b))
        return diff_snapshots(traces_a, traces_b, by)
    runs_a = [Run("a", trace, model) for trace, model in opened_a]
    runs_b = [Run("b", trace, model) for trace, model in opened_b]
    return differences(compared(runs_a, runs_b, criteria, pairs), by=by)


def runs_needed(run_diff: Diff, change: float) -> CommandResult:
    """Return how many runs and steps show the relative ``change`` of the step time.

    Raises as :func:`traceana.comparison.planning.planned`.
    """
    result = planned(run_diff, change)
    step = run_diff.step.decides
    heading = Heading(
        f"Runs that show a change of {numbers.level(change)}",
        f"step {numbers.duration(round(step.a))}, {run_diff.criteria.statistic}",
    )

    def page(shown: Arranged) -> Page:
        blocks: tuple[Block, ...] = (
            *(heading, table_of(shown, layout="compact")),
            *notes_of(shown.notes),
        )
        return Page("diff", blocks, data_of(shown, _source(run_diff), {}))

    return CommandResult.of(result, page)


def differences(run_diff: Diff, *, by: DiffBy | None = None) -> CommandResult:
    """Return the work of both runs, grouped by layer or ``by``, and the changes.

    Without ``by`` the page is a summary: the step, the changes and the layers.
    """
    frame = run_diff.by(by or "layer")
    columns = COLUMNS[by or "layer"]
    totals = sums(frame, "time_a_ns", "time_b_ns")
    # Rows of uncertain pairs have no difference, but the total has one.
    if run_diff.same_work:
        totals["delta_ns"] = totals["time_b_ns"] - totals["time_a_ns"]
    whole = Result(frame, totals, run_diff.notes, columns)
    make = partial(_summary, run_diff) if by is None else partial(_table, run_diff, by)

    def sections(page: Page, limit: int | None, _: bool) -> Page:
        from traceana.report.pages.diff_html import with_sections

        tables = {grouping: differences(run_diff, by=grouping) for grouping in run_diff.views}
        return with_sections(run_diff, tables, page, limit)

    return CommandResult.of(
        whole,
        make,
        screenful=40,
        pictures=lambda: pictures(run_diff),
        complete=sections if by is None else None,
        summary=run_diff,
        filterable=by is not None,
    )


def _table(run_diff: Diff, by: DiffBy, shown: Arranged) -> Page:
    frame = _named(shown.frame, by)
    columns = tuple(
        replace(column, kind=Kind.LONG) if column.name == _PARTS.get(by) else column
        for column in with_values(frame, shown.columns, shown.totals)
    )
    dropped = ranked(shown.columns)
    table = Table(frame, columns, shown.totals, dropped=dropped, hidden=hidden_of(shown))
    over = tuple(_sums(run_diff))
    facts = (Facts(over),) if over else ()
    return _page(run_diff, (*facts, table, *notes_of(shown.notes)), shown)


def _summary(run_diff: Diff, shown: Arranged) -> Page:
    rows = shown.frame.filter(pl.col("a").ne_missing(OVERLAP))
    top = _named(rows.head(MOST_LAYERS), "layer")
    more = rows.height + shown.hidden - top.height
    layers = Table(
        top,
        with_values(top, SUMMARY),
        dropped=ranked(SUMMARY),
        layout="compact",
        hidden=Hidden(more, command="diff --by layer") if more else None,
        folded=f"Layers, {'whole run' if _whole(run_diff) else 'per step'}",
    )
    blocks = (Facts(tuple(_head(run_diff))), *_changes(run_diff), layers, *notes_of(shown.notes))
    return _page(run_diff, blocks, shown)


def _page(run_diff: Diff, blocks: tuple[Block, ...], shown: Arranged) -> Page:
    sections = {
        "changes": Result(run_diff.changes, columns=CHANGES),
        "idle": Result(run_diff.idle, columns=IDLE_CAUSES),
    }
    return Page("diff", blocks, data_of(shown, _source(run_diff), sections))


def _source(run_diff: Diff) -> dict[str, Any]:
    criteria = run_diff.criteria
    return {
        "a": _run_source(run_diff.baseline),
        "b": _run_source(run_diff.candidate),
        "step": step_source(run_diff.step),
        "kernels": None if run_diff.kernel_time is None else step_source(run_diff.kernel_time),
        "runs": run_diff.runs,
        "image_ns": run_diff.per_image,
        "timed_ns": run_diff.timed_ns,
        "layers": dict(run_diff.counts),
        "confidence": run_diff.confidence,
        "level": criteria.level,
        "minimum_effect": criteria.minimum_effect,
    }


def _run_source(run: PairedRun) -> dict[str, Any]:
    return {**source_of(run.run.trace), "steps": run.steps.count, "batch": run.layers.batch}


def step_source(step: Step) -> dict[str, Any]:
    """Return the median and mean step of both runs for the JSON, each with its verdict."""
    judged = {
        name: {**msgspec.to_builtins(tested), "relative": tested.relative}
        for name, tested in (("median", step.median), ("mean", step.mean))
    }
    return {**judged, "statistic": step.statistic, "verdict": step.verdict}


def _named(frame: pl.DataFrame, by: DiffBy) -> pl.DataFrame:
    """Return ``frame`` with a name in every row of its first column.

    The candidate's layer stands beside the baseline's only where it has another name; a class and
    its part or algorithm are one name.
    """
    if by == "layer":
        other = pl.when(pl.col("a") != pl.col("b")).then("b")
        return frame.with_columns(pl.coalesce("a", "b").alias("a"), other.alias("b"))
    part = _PARTS.get(by)
    if part is None:
        return frame
    called = [display_names.class_of(*row) for row in frame.select("category", part).iter_rows()]
    return frame.with_columns(pl.Series(part, called, pl.String))


def _sums(run_diff: Diff) -> Iterator[tuple[str, str]]:
    """Yield over how many devices tables and changes are sums, where a run has several."""
    counts = _device_counts(run_diff)
    if max(counts) > 1:
        devices = " → ".join(map(str, dict.fromkeys(counts)))
        of = processor(run_diff.baseline.run.trace)
        yield "Tables", f"changes and rows are sums over {devices} {of}s"


def _device_counts(run_diff: Diff) -> list[int]:
    return [
        work(run.run.trace, "rank", "device").unique().height
        for run in (run_diff.baseline, run_diff.candidate)
    ]


def _whole(run_diff: Diff) -> bool:
    """Return whether whole captures are compared, because steps are not marked in both runs."""
    return not run_diff.baseline.steps.marked


def _head(run_diff: Diff) -> Iterator[tuple[str, str]]:
    yield "Baseline", _run(run_diff.baseline, run_diff.runs[0])
    yield "Candidate", _run(run_diff.candidate, run_diff.runs[1])
    yield from _times(run_diff)
    if run_diff.kernel_time is not None:
        tested = run_diff.kernel_time.decides
        text = f"{arrow(round(tested.a), round(tested.b))} per step"
        text += f" ({percent(tested.relative)})" if tested.a and not run_diff.alike else ""
        yield "GPU kernels", f"{text}; {_verdict(run_diff, tested)}"
    if run_diff.per_image is not None:
        a, b = run_diff.per_image
        yield "Per image", f"{arrow(round(a), round(b))} ({percent(b / a - 1)})"
    overlap = run_diff.by("layer").filter(pl.col("a").eq_missing(OVERLAP))
    change_ns = overlap["delta_ns"].item(0) if overlap.height else None
    mean = run_diff.step.mean
    if change_ns is not None and abs(change_ns) >= max(run_diff.criteria.least(mean.a, mean.b), 1):
        per = "" if _whole(run_diff) else " per step"
        how = "more" if change_ns < 0 else "less"
        yield "Overlap", f"streams overlap {how}: {numbers.signed(change_ns)}{per}"
    yield from _limits(run_diff)
    yield "Layers", _layers(run_diff)
    yield from _sums(run_diff)


def _limits(run_diff: Diff) -> Iterator[tuple[str, str]]:
    """Yield utilization and bottleneck of both runs, in the compared steps or the captures."""
    runs = run_diff.baseline, run_diff.candidate
    if any(run.run.trace.on_cpu or not run.steps.timed for run in runs):
        return
    if not all(has_kernels(run.run.trace) for run in runs):
        return
    idle = run_diff.by("class").filter(pl.col("category") == IDLE)
    available = [mean_available(run.steps) for run in runs]
    # Of steps without a duration nothing has a share.
    if idle.is_empty() or not all(available):
        return
    window = "run" if _whole(run_diff) else "step time"
    busy = [
        numbers.share(1 - idle[f"time_{side}_ns"].item(0) / time)
        for side, time in zip("ab", available, strict=True)
    ]
    yield "GPU utilization", f"{' → '.join(busy)} of {window}"
    every = [Figures(run.run.trace) for run in runs]
    if all(figures.stepped is not _whole(run_diff) for figures in every):
        limits = [limit.bound if (limit := bottleneck(figures)) else None for figures in every]
        yield "Bottleneck", " → ".join(limit or "not determined" for limit in limits)


def _run(run: PairedRun, runs: int) -> str:
    trace = run.run.trace
    parts = [display_names.trace_file(trace.meta.source), devices(trace), trace.meta.framework]
    steps = numbers.counted(run.steps.count, "step")
    parts.append(steps if run.steps.marked else "no steps marked")
    parts.append(f"first of {runs} runs" if runs > 1 else "")
    return " · ".join(str(part) for part in parts if part)


def _times(run_diff: Diff) -> Iterator[tuple[str, str]]:
    step = run_diff.step
    if _whole(run_diff):
        label = "Whole run" if run_diff.baseline.steps.timed else "Summed work"
        if not run_diff.same_work:
            why = "not compared: different work, steps not marked in both runs"
            yield label, f"{arrow(round(step.mean.a), round(step.mean.b))}; {why}"
            return
        yield label, f"{_judged(run_diff, step.mean)}; {_verdict(run_diff, step.mean)}"
        return
    names_of = {"median": step.median, "mean": step.mean}
    deciding = step.statistic
    tested = names_of.pop(deciding)
    yield "Step time", f"{_judged(run_diff, tested, deciding)}; {_verdict(run_diff, tested)}"
    ((other, two),) = names_of.items()
    if (two.a, two.b) != (tested.a, tested.b):
        verdict = f"; {_verdict(run_diff, two)}" if two.verdict != tested.verdict else ""
        yield "", f"{_judged(run_diff, two, other)}{verdict}"
    if run_diff.timed_ns is not None:
        a, b = run_diff.timed_ns
        relative = f" ({percent(b / a - 1)})" if a else ""
        yield "", f"timed {arrow(a, b)}{relative} without the profiler"


def _judged(run_diff: Diff, tested: StatisticVerdict, statistic: str = "") -> str:
    text = f"{arrow(round(tested.a), round(tested.b))} {statistic}".rstrip()
    if run_diff.alike:
        return text
    text += f" ({percent(tested.relative)})" if tested.a else ""
    if tested.interval is None:
        return text
    low, high = (signed(round(bound)) for bound in (tested.interval.low, tested.interval.high))
    return f"{text}, {numbers.level(run_diff.criteria.level)} interval {low} to {high}"


def _verdict(run_diff: Diff, tested: StatisticVerdict) -> str:
    if run_diff.alike:
        return "identical recordings"
    if tested.verdict == "not enough steps":
        steps = f"{run_diff.baseline.steps.count} and {run_diff.candidate.steps.count} steps"
        if _whole(run_diff):
            return "inconclusive: steps not marked in both runs"
        return f"inconclusive: {steps}, at least 4 needed in each run"
    return tested.verdict


def _layers(run_diff: Diff) -> str:
    counts = run_diff.counts
    parts = [
        f"{counts['pairs']:,} matched",
        f"{counts['only_a']} in the baseline only",
        f"{counts['only_b']} in the candidate only",
    ]
    if counts["moved"]:
        parts.append(f"{counts['moved']} reordered")
    if run_diff.confidence is not None:
        parts.append(f"match confidence {numbers.share(run_diff.confidence)}")
    return " · ".join(parts)


def _changes(run_diff: Diff) -> Iterator[Block]:
    """Yield the changes with their parts, largest effect first, then those below the minimum.

    Changes below a tenth of the minimum effect are left out.
    """
    whole = _whole(run_diff)
    of = "run" if whole else "step"
    criteria = run_diff.criteria
    tenth = replace(criteria, minimum_effect=criteria.minimum_effect / 10)
    smallest = tenth.least(*step_times(run_diff.baseline.steps, run_diff.candidate.steps))
    small = (pl.col("delta_ns").abs() < smallest).fill_null(value=False)
    negligible = pl.col("least") & (pl.col("change") != "launches") & small
    changes = run_diff.changes.with_columns(_in=pl.col("number").str.split(".").list.first())
    first = changes.filter(pl.col("number") == pl.col("_in"))
    listed = first.head(MOST_CHANGES).filter(~negligible)
    most_parts = max(_FEWEST_PARTS, MOST_CHANGES - listed.filter(~pl.col("least")).height)
    above: list[Finding] = []
    below: list[Finding] = []
    shown = 0
    for row in listed.to_dicts():
        parts = changes.filter(pl.col("_in") == row["number"], pl.col("number") != row["number"])
        finding, count = _change(row, parts.to_dicts(), most_parts, whole)
        (below if row["least"] else above).append(finding)
        shown += count
    step = run_diff.step.mean
    remark = "" if whole else "per step"
    if (
        len(above) > 1
        and first["delta_ns"].null_count() == 0
        and max(_device_counts(run_diff)) == 1
    ):
        total = (
            f"all listed {signed(int(first['delta_ns'].sum()))} of {signed(round(step.b - step.a))}"
        )
        remark = f"{remark}; {total}" if remark else total
    yield Heading(f"Changes, by effect on the {of}", remark)
    least = f"{numbers.level(criteria.minimum_effect)} of the {of}"
    yield Findings(tuple(above), brief=True) if above else Facts((("", f"none above {least}"),))
    if below:
        yield Heading(f"Changes below {least}")
        yield Findings(tuple(below), brief=True, first=len(above) + 1)
    if more := changes.height - shown:
        yield Facts((("", f"… {more} more (--format json)"),))


def first_changes(run_diff: Diff, most: int) -> tuple[Finding, ...]:
    """Return the ``most`` changes with the largest effect, each with its first parts.

    Changes below the minimum effect on the step are left out.
    """
    rows = run_diff.changes.filter(~pl.col("least"), pl.col("delta_ns").is_not_null())
    first = rows.filter(~pl.col("number").str.contains(".", literal=True)).head(most)
    return tuple(
        _change(
            row,
            rows.filter(pl.col("number").str.starts_with(f"{row['number']}.")).to_dicts(),
            _FEWEST_PARTS,
            _whole(run_diff),
        )[0]
        for row in first.to_dicts()
    )


def changed_layers(run_diff: Diff, most: int) -> str:
    """Return the layers whose time changed most, at least by the minimum effect on the step."""
    least = run_diff.criteria.least(*step_times(run_diff.baseline.steps, run_diff.candidate.steps))
    rows = run_diff.by("layer").filter(
        pl.col("role") == "layer", pl.col("delta_ns").abs() >= max(least, 1)
    )
    named = rows.select(pl.coalesce("b", "a"), "delta_ns", "verdict").head(most).iter_rows()
    return ", ".join(
        f"{layer} {signed(delta)}{' (inconclusive)' if verdict == 'inconclusive' else ''}"
        for layer, delta, verdict in named
    )


_FEWEST_PARTS: Final = 3
"""So many parts of a change are shown, more where there are few changes."""


def _change(row: Row, parts: Sequence[Row], most: int, whole: bool) -> tuple[Finding, int]:
    """Return a change with its first ``parts``, and the number of changes in it.

    A part that affects all work of the change around it has no effect of its own.
    """
    per = "" if whole else " per step"
    title, text = _TEXTS[row["change"]](row, per)
    section, rows = _rows(row)
    if row["change"] == "launches" or row["delta_ns"] is None:
        return Finding(title, "", text, section=section, rows=rows), 1
    around = {row["number"]: row}
    depth = {row["number"]: 0}
    listed: list[Part] = []
    for part in parts:
        number, outer = part["number"], part["number"].rpartition(".")[0]
        if outer not in around or part["delta_ns"] is None:
            continue
        same_work = all(part[side] == around[outer][side] for side in ("time_a_ns", "time_b_ns"))
        alone = same_work or part["change"] == "launches"
        if not alone and (part["least"] or sum(bool(other.effect) for other in listed) >= most):
            continue
        around[number], depth[number] = part, depth[outer] + (not alone)
        described = " ".join(_TEXTS[part["change"]](part, per))
        if part["verdict"] == "inconclusive":
            described += " · inconclusive"
        effect = "" if alone else signed(part["delta_ns"])
        listed.append(Part(max(depth[number], 1), effect, described, *_rows(part)))
    times = arrow(row["time_a_ns"], row["time_b_ns"])
    said = row["verdict"] if row["verdict"] in ("same", "inconclusive") else ""
    # A terminal cuts the end of a long line: what a cause of idle time means.
    facts = [times, said, text] if row["change"] == "idle" else [text, times, said]
    summary = " · ".join(fact for fact in facts if fact)
    effect = signed(row["delta_ns"])
    finding = Finding(title, effect, summary, section=section, rows=rows, parts=tuple(listed))
    return finding, len(around)


_SECTIONS: Final = {
    **{"kernels": "kernel", "launches": "kernel", "compiled": "kernel", "layers": "layer"},
    **{"copies": "transfer", "host_memory": "transfer", "layouts": "class", "calls": "kernel"},
    **{"communication": "class", "idle": "idle", "gpu": "kernel"},
}
"""The section with the rows of a change that is not of one layer."""


def _rows(row: Row) -> tuple[str, str]:
    """Return the section with the rows of a change, and a text of them."""
    if row["layer_a"] or row["layer_b"]:
        return "layer", row["layer_a"] or row["layer_b"]
    section = _SECTIONS.get(row["change"], "")
    texts = {
        "layouts": display_names.category("layout"),
        "communication": display_names.category("collective"),
        "copies": display_names.part(row["subject"] or "unknown"),
        "host_memory": display_names.part(row["subject"] or "unknown"),
        "idle": display_names.part(row["subject"] or "unknown"),
    }
    return section, texts.get(row["change"], "")


def _where(row: Row) -> str:
    a, b = row["layer_a"] or "?", row["layer_b"] or "?"
    name = a if a == b else f"{a} / {b}"
    others = row["layers"] - 1
    return f"in {name}" + (f" and {numbers.counted(others, 'more layer')}" if others else "")


def _counts(row: Row) -> str:
    before, after = (numbers.mean(row[f"count_{side}"]) for side in "ab")
    return before if before == after else f"{before} → {after}"


def _from_to(row: Row) -> str:
    return f"{row['before']} → {row['after']} {_where(row)}"


def _algorithm(row: Row, _: str) -> tuple[str, str]:
    of = f"{display_names.part(row['subject'])} " if row["subject"] else ""
    before, after = display_names.part(row["before"]), display_names.part(row["after"])
    return "algorithm", f"{of}{before} → {after} {_where(row)}"


def _tensor_cores(row: Row, _: str) -> tuple[str, str]:
    used = "used" if row["after"] == "true" else "no longer used"
    return f"{display_names.category(row['subject'])} tensor cores", f"{used} {_where(row)}"


def _memory(row: Row, _: str) -> tuple[str, str]:
    direction = display_names.part(row["subject"] or "unknown")
    return f"{direction} host memory", f"{row['before']} → {row['after']}"


def _kernels(row: Row, _: str) -> tuple[str, str]:
    counts = {"baseline": round(row["count_a"]), "candidate": round(row["count_b"])}
    said = ", ".join(f"{count} only in {run}" for run, count in counts.items() if count)
    return f"{_class(row)} kernels", said


def _class(row: Row) -> str:
    category, _colon, part = str(row["subject"]).partition(": ")
    return display_names.class_of(category, part or None)


def _compiled(row: Row, per: str) -> tuple[str, str]:
    now = bool(row["count_b"])
    kernels = numbers.whole(row["count_b"] if now else row["count_a"])
    return (
        "torch.compile",
        f"{'compiled now' if now else 'no longer compiled'}: {kernels} kernels{per}",
    )


def _of_layers(row: Row, _: str) -> tuple[str, str]:
    a, b = (round(row[f"count_{side}"]) for side in ("a", "b"))
    return "layers", f"{a} in the baseline only, {b} in the candidate only"


_TEXTS: Final[dict[str, Callable[[Row, str], tuple[str, str]]]] = {
    "gpu": lambda row, _: ("GPU", f"{row['before']} → {row['after']}"),
    "batch": lambda row, _: ("batch size", f"{row['before']} → {row['after']}"),
    "idle": lambda row, _: (
        f"idle: {display_names.part(row['subject'])}",
        MEANINGS[row["subject"]],
    ),
    "communication": lambda row, per: ("collectives", f"{_counts(row)}{per}"),
    "copies": lambda row, per: (
        f"{display_names.part(row['subject'] or 'unknown')} copies",
        f"{_counts(row)}{per}",
    ),
    "host_memory": _memory,
    "layouts": lambda row, per: ("layout conversion", f"{_counts(row)} kernels{per}"),
    "launches": lambda row, per: ("kernel launches", f"{_counts(row)}{per}"),
    "kernels": _kernels,
    "calls": lambda row, per: ("calls", f"{_class(row)}: {_counts(row)}{per}"),
    "compiled": _compiled,
    "layers": _of_layers,
    "algorithm": _algorithm,
    "bias_apart": lambda row, _: ("bias fusion", f"bias is now a separate kernel {_where(row)}"),
    "bias_fused": lambda row, _: ("bias fusion", f"bias is now fused {_where(row)}"),
    "shape": lambda row, _: ("input shape", _from_to(row)),
    "weight": lambda row, _: ("weight shape", _from_to(row)),
    "memory_format": lambda row, _: ("memory format", _from_to(row)),
    "precision": lambda row, _: (
        f"{display_names.category(row['subject'])} precision",
        f"{display_names.part(row['before'])} → {display_names.part(row['after'])} {_where(row)}",
    ),
    "tensor_cores": _tensor_cores,
}

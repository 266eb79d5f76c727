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
from traceana.comparison.run_inputs import opened
from traceana.comparison.verdicts import Criteria, mean_available, step_times
from traceana.report import display_names, numbers
from traceana.report.numbers import arrow, percent, signed
from traceana.report.page import Block, Facts, Finding, Findings, Heading, Hidden, Page, Table
from traceana.report.pages.diff_html import pictures
from traceana.report.pages.single_table import (
    data_of,
    hidden_of,
    notes_of,
    ranked,
    source_of,
    with_values,
)
from traceana.report.result import CommandResult
from traceana.result import Arranged, Result, sums
from traceana.settings import CONFIDENCE_LEVEL, MINIMUM_EFFECT
from traceana.table import Kind
from traceana.timeline.idle_gaps import MEANINGS
from traceana.timeline.work import processor, work
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
    ``statistic`` is ``median`` or ``mean``.
    Raises ``ValueError`` on an invalid level, minimum, statistic or number of runs, and the errors
    of :mod:`traceana.errors`.
    """
    criteria = Criteria(level, minimum_effect, statistic)
    of_a, of_b = (
        [given] if isinstance(given, Trace | str | os.PathLike) else list(given) for given in (a, b)
    )
    runs_a = [Run("a", *opened(one, model_a, of_b[0] if of_b else None)) for one in of_a]
    runs_b = [Run("b", *opened(one, model_b, of_a[0] if of_a else None)) for one in of_b]
    return differences(compared(runs_a, runs_b, criteria, pairs), by=by)


def differences(found: Diff, *, by: DiffBy | None = None) -> CommandResult:
    """Return the work of both runs, grouped by layer or ``by``, and the changes.

    Without ``by`` the page is a summary: the step, the changes and the layers.
    """
    frame = found.by(by or "layer")
    columns = COLUMNS[by or "layer"]
    totals = sums(frame, "time_a_ns", "time_b_ns")
    # Rows of uncertain pairs have no difference, but the total has one.
    if found.same_work:
        totals["delta_ns"] = totals["time_b_ns"] - totals["time_a_ns"]
    whole = Result(frame, totals, found.notes, columns)
    make = partial(_summary, found) if by is None else partial(_table, found, by)

    def sections(page: Page, limit: int | None) -> Page:
        from traceana.report.pages.diff_html import with_sections

        tables = {one: differences(found, by=one) for one in COLUMNS}
        return with_sections(found, tables, page, limit)

    return CommandResult.of(
        whole,
        make,
        screenful=40,
        pictures=lambda: pictures(found),
        complete=sections if by is None else None,
        summary=found,
        filterable=by is not None,
    )


def _table(found: Diff, by: DiffBy, shown: Arranged) -> Page:
    frame = _named(shown.frame, by)
    columns = tuple(
        replace(column, kind=Kind.LONG) if column.name == _PARTS.get(by) else column
        for column in with_values(frame, shown.columns, shown.totals)
    )
    dropped = ranked(shown.columns)
    table = Table(frame, columns, shown.totals, dropped=dropped, hidden=hidden_of(shown))
    over = tuple(_sums(found))
    facts = (Facts(over),) if over else ()
    return _page(found, (*facts, table, *notes_of(shown.notes)), shown)


def _summary(found: Diff, shown: Arranged) -> Page:
    rows = shown.frame.filter(pl.col("a").ne_missing(OVERLAP))
    top = _named(rows.head(MOST_LAYERS), "layer")
    more = rows.height + shown.hidden - top.height
    layers = Table(
        top,
        with_values(top, SUMMARY),
        dropped=ranked(SUMMARY),
        layout="compact",
        hidden=Hidden(more, command="diff --by layer") if more else None,
        folded=f"Layers, {'whole run' if _whole(found) else 'per step'}",
    )
    blocks = (Facts(tuple(_head(found))), *_changes(found), layers, *notes_of(shown.notes))
    return _page(found, blocks, shown)


def _page(found: Diff, blocks: tuple[Block, ...], shown: Arranged) -> Page:
    sections = {
        "changes": Result(found.changes, columns=CHANGES),
        "idle": Result(found.idle, columns=IDLE_CAUSES),
    }
    return Page("diff", blocks, data_of(shown, _source(found), sections))


def _source(found: Diff) -> dict[str, Any]:
    criteria = found.criteria
    return {
        "a": _run_source(found.baseline),
        "b": _run_source(found.candidate),
        "step": _step(found.step),
        "kernels": None if found.kernel_time is None else _step(found.kernel_time),
        "runs": found.runs,
        "image_ns": found.per_image,
        "layers": dict(found.counts),
        "confidence": found.confidence,
        "level": criteria.level,
        "minimum_effect": criteria.minimum_effect,
    }


def _run_source(run: PairedRun) -> dict[str, Any]:
    return {**source_of(run.run.trace), "steps": run.steps.count, "batch": run.layers.batch}


def _step(step: Step) -> dict[str, Any]:
    judged = {
        name: {**msgspec.to_builtins(one), "relative": one.relative}
        for name, one in (("median", step.median), ("mean", step.mean))
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


def _sums(found: Diff) -> Iterator[tuple[str, str]]:
    """Yield over how many devices tables and changes are sums, where a run has several."""
    counts = [
        work(one.run.trace, "rank", "device").unique().height
        for one in (found.baseline, found.candidate)
    ]
    if max(counts) > 1:
        devices = " → ".join(map(str, dict.fromkeys(counts)))
        of = processor(found.baseline.run.trace)
        yield "Tables", f"changes and rows are sums over {devices} {of}s"


def _whole(found: Diff) -> bool:
    """Return whether whole captures are compared, because steps are not marked in both runs."""
    return not found.baseline.steps.marked


def _head(found: Diff) -> Iterator[tuple[str, str]]:
    yield "Baseline", _run(found.baseline, found.runs[0])
    yield "Candidate", _run(found.candidate, found.runs[1])
    yield from _times(found)
    yield from _kernel_time(found)
    if found.per_image is not None:
        a, b = found.per_image
        yield "Per image", f"{arrow(round(a), round(b))} ({percent(b / a - 1)})"
    yield from _overlap(found)
    yield from _limits(found)
    yield "Layers", _layers(found)
    yield from _sums(found)


def _overlap(found: Diff) -> Iterator[tuple[str, str]]:
    """Yield how much of the change is work that overlaps more, or less, with other work."""
    overlap = found.by("layer").filter(pl.col("a").eq_missing(OVERLAP))
    change_ns = overlap["delta_ns"].item(0) if overlap.height else None
    if change_ns:
        per = "" if _whole(found) else " per step"
        how = "more" if change_ns < 0 else "less"
        yield "Overlap", f"streams overlap {how}: {numbers.signed(change_ns)}{per}"


def _limits(found: Diff) -> Iterator[tuple[str, str]]:
    """Yield utilization and bottleneck of both runs, in the compared steps or the captures."""
    runs = found.baseline, found.candidate
    if any(one.run.trace.on_cpu or not one.steps.timed for one in runs):
        return
    idle = found.by("class").filter(pl.col("category") == IDLE)
    available = [mean_available(one.steps) for one in runs]
    # Of steps without a duration nothing has a share.
    if idle.is_empty() or not all(available):
        return
    window = "run" if _whole(found) else "step time"
    busy = [
        numbers.share(1 - idle[f"time_{side}_ns"].item(0) / time)
        for side, time in zip("ab", available, strict=True)
    ]
    yield "GPU utilization", f"{' → '.join(busy)} of {window}"
    every = [Figures(one.run.trace) for one in runs]
    if all(one.stepped is not _whole(found) for one in every):
        limits = [limit.bound if (limit := bottleneck(one)) else None for one in every]
        yield "Bottleneck", " → ".join(limit or "not determined" for limit in limits)


def _run(run: PairedRun, runs: int) -> str:
    trace = run.run.trace
    parts = [display_names.trace_file(trace.meta.source), devices(trace), trace.meta.framework]
    steps = numbers.counted(run.steps.count, "step")
    parts.append(steps if run.steps.marked else "no steps marked")
    parts.append(f"first of {runs} runs" if runs > 1 else "")
    return " · ".join(str(one) for one in parts if one)


def _times(found: Diff) -> Iterator[tuple[str, str]]:
    step = found.step
    if _whole(found):
        label = "Whole run" if found.baseline.steps.timed else "Summed work"
        if not found.same_work:
            why = "not compared: different work, steps not marked in both runs"
            yield label, f"{arrow(round(step.mean.a), round(step.mean.b))}; {why}"
            return
        yield label, f"{_judged(found, step.mean)}; {_verdict(found, step.mean)}"
        return
    names_of = {"median": step.median, "mean": step.mean}
    deciding = step.statistic
    one = names_of.pop(deciding)
    yield "Step time", f"{_judged(found, one, deciding)}; {_verdict(found, one)}"
    ((other, two),) = names_of.items()
    if (two.a, two.b) != (one.a, one.b):
        verdict = f"; {_verdict(found, two)}" if two.verdict != one.verdict else ""
        yield "", f"{_judged(found, two, other)}{verdict}"


def _kernel_time(found: Diff) -> Iterator[tuple[str, str]]:
    if found.kernel_time is not None:
        one = found.kernel_time.decides
        text = f"{arrow(round(one.a), round(one.b))} per step"
        text += f" ({percent(one.relative)})" if one.a and not found.alike else ""
        yield "GPU kernels", f"{text}; {_verdict(found, one)}"


def _judged(found: Diff, one: StatisticVerdict, statistic: str = "") -> str:
    text = f"{arrow(round(one.a), round(one.b))} {statistic}".rstrip()
    if found.alike:
        return text
    text += f" ({percent(one.relative)})" if one.a else ""
    if one.interval is None:
        return text
    low, high = (signed(round(bound)) for bound in (one.interval.low, one.interval.high))
    return f"{text}, {numbers.level(found.criteria.level)} interval {low} to {high}"


def _verdict(found: Diff, one: StatisticVerdict) -> str:
    if found.alike:
        return "identical recordings"
    if one.verdict == "not enough steps":
        steps = f"{found.baseline.steps.count} and {found.candidate.steps.count} steps"
        if _whole(found):
            return "inconclusive: steps not marked in both runs"
        return f"inconclusive: {steps}, at least 4 needed in each run"
    return one.verdict


def _layers(found: Diff) -> str:
    counts = found.counts
    parts = [
        f"{counts['pairs']:,} matched",
        f"{counts['only_a']} in the baseline only",
        f"{counts['only_b']} in the candidate only",
    ]
    if counts["moved"]:
        parts.append(f"{counts['moved']} reordered")
    if found.confidence is not None:
        parts.append(f"match confidence {numbers.share(found.confidence)}")
    return " · ".join(parts)


def _changes(found: Diff) -> Iterator[Block]:
    """Yield the changes, largest effect first, then those below the minimum effect."""
    whole = _whole(found)
    of = "run" if whole else "step"
    rows = found.changes.head(MOST_CHANGES).filter(~_negligible(found))
    least = f"{numbers.level(found.criteria.minimum_effect)} of the {of}"
    above = [_change(row, whole) for row in rows.filter(~pl.col("least")).to_dicts()]
    below = [_change(row, whole) for row in rows.filter("least").to_dicts()]
    remark = "they overlap, do not add them"
    yield Heading(f"Changes, by effect on the {of}", remark if whole else f"per step; {remark}")
    yield Findings(tuple(above), brief=True) if above else Facts((("", f"none above {least}"),))
    if below:
        yield Heading(f"Changes below {least}")
        yield Findings(tuple(below), brief=True, first=len(above) + 1)
    more = found.changes.height - rows.height
    if more:
        yield Facts((("", f"… {more} more (--format json)"),))


def _negligible(found: Diff) -> pl.Expr:
    """Return which changes have an effect below a tenth of the minimum effect."""
    criteria = found.criteria
    tenth = replace(criteria, minimum_effect=criteria.minimum_effect / 10)
    smallest = tenth.least(*step_times(found.baseline.steps, found.candidate.steps))
    timed = pl.col("change") != "launches"
    small = (pl.col("delta_ns").abs() < smallest).fill_null(value=False)
    return pl.col("least") & timed & small


def _change(row: Row, whole: bool) -> Finding:
    title, text = _TEXTS[row["change"]](row, "" if whole else " per step")
    section, rows = _rows(row)
    if row["change"] == "launches" or row["delta_ns"] is None:
        return Finding(title, "", text, section=section, rows=rows)
    times = arrow(row["time_a_ns"], row["time_b_ns"])
    said = row["verdict"] if row["verdict"] in ("same", "inconclusive") else ""
    # A terminal cuts the end of a long line: what a cause of idle time means.
    parts = [times, said, text] if row["change"] == "idle" else [text, times, said]
    summary = " · ".join(part for part in parts if part)
    return Finding(title, signed(row["delta_ns"]), summary, section=section, rows=rows)


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


def _precision(row: Row) -> str:
    return f"{display_names.part(row['before'])} → {display_names.part(row['after'])} {_where(row)}"


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
    return "other kernels", f"{_class(row)}: {said}"


def _class(row: Row) -> str:
    category, _colon, part = str(row["subject"]).partition(": ")
    return display_names.class_of(category, part or None)


def _compiled(row: Row, per: str) -> tuple[str, str]:
    now = bool(row["count_b"])
    kernels = numbers.mean(row["count_b"] if now else row["count_a"])
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
        _precision(row),
    ),
    "tensor_cores": _tensor_cores,
}

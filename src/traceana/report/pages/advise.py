"""``advise``: recommendations with evidence, estimate and how-to, and the texts of its gates."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from shlex import join, quote
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from msgspec.structs import astuple, replace

from traceana.advise import advise as analysis
from traceana.advise.columns import BY_NAME, EVIDENCE, FINDINGS, FRAMEWORKS, PLAN
from traceana.files import STANDARD_INPUT
from traceana.plain_text import plain
from traceana.report import numbers
from traceana.report.cells import value_text
from traceana.report.page import Block, Data, Finding, Findings, Hidden, Page, Part, Rows, Table
from traceana.report.pages.single_table import (
    named,
    notes_of,
    ranked,
    source_of,
    table_result,
    with_values,
)
from traceana.report.result import CommandResult
from traceana.report.text import cut_end
from traceana.result import Arranged, Result, sums
from traceana.runs import batches_beside
from traceana.settings import LEAST_SAVING, PREDICTION_LEVEL
from traceana.table import Kind, laid_out, names_of, schema_of
from traceana.trace.schema import CPU_DEVICE

if TYPE_CHECKING:
    from traceana.advise import Advice, Rule
    from traceana.advise import Finding as Found
    from traceana.advise.gates import Broken
    from traceana.advise.rule import Stage
    from traceana.runs import BatchSeries
    from traceana.trace import Trace

EVIDENCE_ROWS: Final = 12
_ADDED: Final = ("time_ns", "step_ns", "exposed_ns")
"""Columns of evidence with a total."""

SECTIONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("data_loading", "host_bound", "launch_bound"), "idle"),
    **dict.fromkeys(("host_synchronization", "allocation", "code_loading"), "idle"),
    **{"exposed_communication": "collectives", "profiler_overhead": "timeline"},
    **dict.fromkeys(("small_copies", "pageable_copies", "synchronous_copies"), "transfers"),
    **dict.fromkeys(("slow_copies", "exposed_copies"), "transfers"),
    **dict.fromkeys(("tensor_cores_unused", "small_batch", "memory_bound_at_peak"), "roofline"),
    **dict.fromkeys(("unfused_bias_activation", "slow_bias_activation"), "layers"),
    **dict.fromkeys(("unfused_attention", "first_data_gradient", "layout_changes"), "layers"),
    **dict.fromkeys(("fast_convolution", "costly_transforms"), "layers"),
    **dict.fromkeys(("batchable_gemms", "algorithm_search", "zeroing"), "kernels"),
    **dict.fromkeys(("unfused_elementwise", "casts", "unfused_optimizer"), "kernels"),
    "first_step_counted": "summary",
}
"""The section of the report in HTML with the evidence of each rule."""

_LONGEST: Final = 120
_FIGURE: Final = re.compile(r"\{(\w+)\}")
_OPTIONAL: Final = re.compile(r"\[([^\[\]]*)\]")
_SINGULAR: Final = {
    **{"copies": "copy", "gaps": "gap", "kernels": "kernel", "launches": "launch"},
    **{"chains": "chain"},
    **{"convolutions": "convolution", "FP32 convolutions": "FP32 convolution", "calls": "call"},
}
_ONE: Final = re.compile(rf"(?<![\d.,])1 ({'|'.join(_SINGULAR)})\b")
_GATE_UNITS: Final[dict[str, Callable[[float], str]]] = {
    "share": numbers.share,
    "time": lambda value: numbers.duration(round(value)),
    "count": numbers.mean,
    "bytes": numbers.size,
}


def advise(
    trace: Trace,
    *,
    rule: str | None = None,
    explain: bool = False,
    batches: BatchSeries | None = None,
) -> CommandResult:
    """Return the recommendations: the plan, then the largest estimated saving first.

    With ``rule``, return that recommendation with its evidence. With ``explain`` the page has how
    each saving is estimated, and its limits. ``batches`` are the step times of
    runs that differ in the batch size only, by default from the sweep of the recorded run.
    """
    advice = analysis(trace, batches=batches or batches_beside(trace.meta.opened))
    return advised(trace, advice, rule=rule, explain=explain)


def advised(
    trace: Trace, advice: Advice, *, rule: str | None = None, explain: bool = False
) -> CommandResult:
    """Return the findings of ``advice`` on ``trace``, or the finding of ``rule`` with evidence."""

    if rule is not None:
        every = (*advice.findings, *advice.small)
        selected = tuple(finding for finding in every if finding.rule.id == rule)
        notes = advice.notes if selected else (f"{rule}: no finding",)
        if rule in (finding.rule.id for finding in advice.small):
            least = numbers.level(LEAST_SAVING)
            notes = (
                f"not listed without --rule: simulated saving below {least} of the step",
                *notes,
            )
        advice = replace(advice, findings=selected, notes=notes)
    frame = finding_rows(advice.findings, trace).frame
    explain = explain or rule is not None
    make = partial(_page, trace, advice, rule is not None, explain)
    folded = "" if rule else "Evidence"

    def complete(page: Page, limit: int | None, _: bool) -> Page:
        listed = next(block for block in page.blocks if isinstance(block, Findings))
        evident = findings_of(
            advice.findings, advice.plan, evidence=True, explain=explain, folded=folded, rows=limit
        )
        by_title = {finding.title: finding for finding in evident}
        items = tuple(by_title[item.title] for item in listed.items)
        return replace(page, blocks=(Findings(items), *page.blocks[1:]))

    result = Result(frame, {}, advice.notes, FINDINGS)
    return CommandResult.of(result, make, complete=complete)


def rules_listed() -> CommandResult:
    """Return one row per rule, with the columns of findings that need no trace."""
    from traceana.advise import RULES

    rows = [
        (rule.id, rule.title, rule.kind, rule.estimate, rule.caveat, *_changes(rule))
        for rule in RULES
    ]
    without = [column for column in FINDINGS if "_" not in column.name]
    columns = laid_out(
        (column for column in without if column.name not in ("scenario", "finding")),
        shown="rule title",
    )
    frame = pl.DataFrame(rows, schema=names_of(columns), orient="row")
    return table_result("advise", Result(frame, columns=columns))


def _page(trace: Trace, advice: Advice, whole: bool, explain: bool, shown: Arranged) -> Page:
    by_rule = {finding.rule.id: finding for finding in advice.findings}
    findings = [by_rule[rule] for rule in shown.frame["rule"]]
    notes = shown.notes
    if findings and not explain:
        notes = (*notes, "how savings are estimated, and their limits: --explain")
    if shown.hidden:
        notes = (f"{numbers.counted(shown.hidden, 'more finding')} (--limit 0: all)", *notes)
    blocks: tuple[Block, ...] = (
        Findings(findings_of(findings, advice.plan, evidence=whole, explain=explain)),
        *notes_of(notes),
    )
    rows = finding_rows(findings, trace)
    total = shown.frame.height + shown.hidden
    sections = {"plan": plan_rows(advice)}
    data = Data(rows, source_of(trace), {}, total, shown.notes, sections)
    return Page("advise", blocks, data)


def plan_rows(advice: Advice) -> Rows:
    """Return one row per change of the plan."""
    frame = pl.DataFrame(
        [astuple(stage) for stage in advice.plan],
        schema=schema_of(PLAN),
        orient="row",
    )
    return Rows(frame, columns=PLAN)


def with_changes(findings: Sequence[Found], plan: Sequence[Stage] = ()) -> tuple[Finding, ...]:
    """Return ``findings`` as blocks, each with what to change below its sentence.

    Without a known framework it is the change in the first one, which is named.
    """
    blocks = []
    for finding, block in zip(findings, findings_of(findings, plan), strict=True):
        changes = dict(_how_to(finding.rule))
        framework, change = next(iter(changes.items()))
        label = f"change ({framework})" if len(changes) > 1 else "change"
        blocks.append(replace(block, parts=(Part(1, "", f"{label}: {change}"),)))
    return tuple(blocks)


def _reached(stage: Stage) -> str:
    """Return the step before and after the change of ``stage``, with its interval."""
    times = (stage.from_ns, stage.step_ns, stage.low_ns, stage.high_ns)
    unit = numbers.scale(times, numbers.TIME)
    before, after, low, high = map(unit.write, times)
    text = f"{before} → {after} {unit.unit} ({low}\u2013{high})"
    return text if stage.certain else f"{text} · gain uncertain"


def findings_of(
    findings: Sequence[Found],
    plan: Sequence[Stage] = (),
    *,
    evidence: bool = False,
    explain: bool = False,
    folded: str = "",
    rows: int | None = EVIDENCE_ROWS,
) -> tuple[Finding, ...]:
    """Return ``findings`` as blocks; their evidence has at most ``rows`` rows.

    The effect of one in the ``plan`` is the step that is reached with those before. ``explain``
    adds how the saving is estimated, and its limits.
    """
    reached = {stage.rule: _reached(stage) for stage in plan}
    excess = {stage.rule: stage for stage in plan if stage.excess_reason}
    return tuple(
        Finding(
            finding.rule.title,
            reached.get(finding.rule.id) or saving(finding),
            sentence(finding),
            (
                *_how_to(finding.rule),
                *_excess_lines(finding, excess.get(finding.rule.id)),
                *_saving_lines(finding, alone=finding.rule.id in reached, explain=explain),
                *(_explained(finding) if explain else ()),
                ("rule", finding.rule.id),
            ),
            _evidence(finding, folded, rows) if evidence else None,
            SECTIONS[finding.rule.id],
            anchor=f"recommendation-{finding.rule.id}",
        )
        for finding in findings
    )


def finding_rows(findings: Sequence[Found], trace: Trace) -> Rows:
    """Return one row per finding, with command, figures and evidence as details."""
    rows = [
        (
            *(finding.rule.id, finding.rule.title, finding.kind),
            *(finding.saving_ns, finding.saving_share, *_simulation(finding)),
            *(finding.estimate_ns, sentence(finding)),
            *(finding.rule.estimate, finding.rule.caveat, *_changes(finding.rule)),
        )
        for finding in findings
    ]
    details = [
        {
            "command": _command(finding.rule, trace),
            "figures": dict(finding.figures),
            "evidence": finding.evidence,
        }
        for finding in findings
    ]
    schema = {column.name: column.dtype for column in FINDINGS}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return Rows(frame, details, (*FINDINGS, *EVIDENCE))


def _command(rule: Rule, trace: Trace) -> str:
    """Return the command that prints the evidence of ``rule``, with the options of ``trace``."""
    files = trace.meta.opened or (trace.meta.source,)
    # A name that begins with a dash would be an option.
    given = [f"./{file}" if file.startswith("-") else file for file in files]
    words = ["traceana", "advise", *("-" if file == STANDARD_INPUT else file for file in given)]
    for option, name in (
        ("--step", "selected_steps"),
        ("--device", "selected_devices"),
        ("--rank", "selected_ranks"),
    ):
        if (chosen := trace.meta.properties.get(name)) is not None:
            texts = ("cpu" if value == CPU_DEVICE else str(value) for value in chosen)
            words += [option, ",".join(texts)]
    return join([*words, *trace.meta.opened_with, "--rule", rule.id, "--format", "json"])


def sentence(finding: Found) -> str:
    """Return the sentence of a finding, with its figures.

    A figure in braces is formatted like the column of its name in
    :data:`~traceana.advise.columns.EVIDENCE`. Text in square brackets is omitted
    if a figure in it is unknown.
    """
    figures = finding.figures

    def filled(match: re.Match[str]) -> str:
        inside = match.group(1)
        lacking = any(figures[name] is None for name in _FIGURE.findall(inside))
        return "" if lacking else inside

    template = _OPTIONAL.sub(filled, finding.rule.sentence)
    text = _FIGURE.sub(lambda match: _figure(match.group(1), figures), template.strip())
    if finding.line is not None:
        text = f"{text}; largest: {plain(finding.line)}"
    return _ONE.sub(lambda match: f"1 {_SINGULAR[match.group(1)]}", text)


def saving(finding: Found) -> str:
    """Return the saving of a finding: ``3.20 ms (12.3 % of step)``, simulated.

    An estimate has ``≈``, an upper bound ``≤``.
    """
    match finding.kind:
        case "measurement validity":
            return "affects measurement validity"
        case "no saving":
            return "no saving"
        case "time per example":
            return f"≈ {numbers.percent(-finding.saving_share)} time per example"
        case kind:
            about = {"upper bound": "≤ ", "estimate": "≈ "}.get(kind, "")
            share = f"{numbers.share(finding.saving_share)} of {finding.saving_of}"
            return f"{about}{numbers.duration(finding.saving_ns)} ({share})"


def _simulation(finding: Found) -> tuple[int | None, int | None, str | None]:
    simulation = finding.simulation
    if simulation is None:
        return None, None, None
    return simulation.low_ns, simulation.high_ns, simulation.scenario


def _saving_lines(finding: Found, *, alone: bool, explain: bool) -> tuple[tuple[str, str], ...]:
    """Return how the saving was obtained: the simulation if there is one, with ``explain`` the
    estimate. That of a change of the plan is of the change ``alone``."""
    simulation, estimate = finding.simulation, finding.rule.estimate
    if simulation is None:
        return (("estimate", estimate),) if explain else ()
    interval = numbers.interval(simulation.low_ns, simulation.high_ns)
    level = numbers.level(PREDICTION_LEVEL)
    command = f"traceana whatif --scenario {quote(simulation.scenario)}"
    reason = simulation.excess_reason
    why = "" if reason is None else f", more than the estimate ({reason})"
    text = f"{numbers.duration(finding.saving_ns)} ({level} interval {interval}) by simulation"
    by_replay = ("alone" if alone else "saving", f"{text}{why}: {command}")
    if not explain:
        return (by_replay,)
    estimated = f"{numbers.duration(finding.estimate_ns)} without simulation: {estimate}"
    return by_replay, ("estimate", estimated)


def _explained(finding: Found) -> Iterator[tuple[str, str]]:
    """Yield the scenarios that predict the change, and the limits of the finding."""
    if finding.predicted_by:
        commands = (f"traceana whatif --scenario {name}" for name in finding.predicted_by)
        yield "prediction", "; ".join(commands)
    yield "caveat", finding.rule.caveat


def _excess_lines(finding: Found, stage: Stage | None) -> Iterator[tuple[str, str]]:
    """Yield why the change of ``stage`` saves more than the time of its finding."""
    if stage is not None:
        saved, estimate = map(numbers.duration, (stage.saving_ns, finding.estimate_ns))
        yield (
            "reason",
            f"{saved} saved, more than the estimate of {estimate}: {stage.excess_reason}",
        )


def broken_gate(gate: Broken) -> str:
    """Return the reason why ``gate`` failed."""
    if isinstance(gate.gate, str):
        return f"{gate.gate}: finding"
    metric = gate.gate.metric
    if gate.value is None:
        return f"{metric.name} unknown: not in this trace"
    write = _GATE_UNITS[metric.unit]
    return f"{metric.name} is {write(gate.value)}, limit {write(gate.gate.most)}"


def _how_to(rule: Rule) -> Iterator[tuple[str, str]]:
    """Yield each framework with its change, unless the rule has none for it."""
    changes = zip(FRAMEWORKS.values(), _changes(rule), strict=True)
    yield from ((framework, change) for framework, change in changes if change)


def _changes(rule: Rule) -> tuple[str, ...]:
    return tuple(getattr(rule.change, framework) for framework in FRAMEWORKS)


def _evidence(finding: Found, folded: str, rows: int | None) -> Table | None:
    frame = finding.evidence if rows is None else finding.evidence.head(rows)
    frame = named(frame, frame.columns[0]) if frame.columns else frame
    columns = with_values(frame, [BY_NAME[name] for name in frame.columns])
    more = finding.evidence.height - frame.height
    hidden = Hidden(more, command="advise --format json") if more else None
    added = [name for name in _ADDED if name in frame.columns]
    if "device" in frame.columns and finding.evidence["device"].n_unique() > 1:
        # Means of different devices do not add up to the mean of all.
        added = [name for name in added if name != "step_ns"]
    totals = sums(finding.evidence, *added)
    if not columns:
        return None
    return Table(frame, columns, totals, ranked(EVIDENCE), hidden=hidden, folded=folded)


def _figure(name: str, figures: Mapping[str, Any]) -> str:
    value = figures[name]
    if value is None:
        return "unknown"
    kind = BY_NAME[name].kind
    if kind in (Kind.COUNT, Kind.MEAN):
        # A mean per step: half a gap is none.
        return numbers.whole(value)
    text = value_text(kind, value)
    return cut_end(text, _LONGEST) if kind in (Kind.TEXT, Kind.KERNEL) else text

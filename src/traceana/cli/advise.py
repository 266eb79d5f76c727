"""``traceana advise``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traceana.cli import options
from traceana.cli.opening import exit_code, gate_label, noted, open_trace
from traceana.cli.options import Reading, Tabling, Writing
from traceana.cli.output import Output
from traceana.cli.streams import message, note
from traceana.errors import ExitCode, NoSuchSelectionError, SweepWarning, suggested
from traceana.vocabulary.option_words import Inconclusive

Files = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="FILE...",
        help="A trace, recorded run, saved bundle, or the files (or folder) of one run's ranks; "
        "- reads standard input.",
    ),
]
Listed = Annotated[bool, typer.Option("--list", help="List all rules; needs no trace.")]
One = Annotated[
    str | None,
    typer.Option(
        "--rule",
        metavar="ID",
        help="Show one finding with its evidence.",
        autocompletion=options.rules,
    ),
]
Explain = Annotated[
    bool,
    typer.Option("--explain", help="Also how each saving is estimated, and its limits."),
]
FailOn = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-on",
        metavar="RULE,RULE|any",
        help="Exit code 31 when one of these rules has a finding; may be repeated.",
        autocompletion=options.rules,
    ),
]
Most = Annotated[
    list[str] | None,
    typer.Option(
        "--max",
        metavar="FIGURE=LIMIT",
        help="Exit code 31 when a figure exceeds its limit, as in exposed_copy=5%; may be "
        "repeated. docs/advice.md lists the figures.",
        autocompletion=options.figures,
    ),
]

OnInconclusive = Annotated[
    Inconclusive,
    typer.Option(
        metavar="pass|fail",
        help="Result of an inconclusive gate: too few or too noisy steps, or a figure that "
        "the trace does not have.",
    ),
]


def advise(
    reading: Reading,
    tabling: Tabling,
    writing: Writing,
    files: Files = None,
    list_: Listed = False,
    rule: One = None,
    explain: Explain = False,
    fail_on: FailOn = None,
    most: Most = None,
    on_inconclusive: OnInconclusive = "pass",
) -> ExitCode:
    """Run the command; :mod:`traceana.commands` has its help."""
    from traceana.advise import gates

    output = Output(tabling, writing, reads=files or ())
    if list_:
        from traceana.report.pages.advise import rules_listed

        output.write(rules_listed())
        return ExitCode.OK
    if not files:
        raise typer.BadParameter("give a trace, or --list", param_hint="FILE...")
    rules = [gate for text in fail_on or () for gate in gates.rules_of(text)]
    limits = [gates.limit_of(text) for text in most or ()]
    if rule is not None:
        from traceana.advise import RULES

        rule_ids = [listed.id for listed in RULES]
        if rule not in rule_ids:
            raise NoSuchSelectionError(
                f"unknown rule {rule}{suggested(rule, rule_ids)}: see traceana advise --list"
            )
    from traceana.advise import advise as advice_on
    from traceana.advise import advised
    from traceana.advise.figures import Figures
    from traceana.report.pages.advise import advised as page
    from traceana.report.pages.advise import broken_gate
    from traceana.runs import batches_beside
    from traceana.whatif.program import without_profiler

    trace = without_profiler(open_trace(files, reading))
    if trace.is_summary and not rules and not limits:
        output.write(page(trace, advice_on(trace), rule=rule, explain=explain))
        return exit_code(trace, reading)
    with noted(SweepWarning):
        batches = batches_beside(trace.meta.opened)
    figures = Figures(trace, batches)
    advice = advised(figures)
    output.write(page(trace, advice, rule=rule, explain=explain))
    codes: set[ExitCode] = set()
    label = gate_label(trace)
    for gate in gates.broken(figures, advice, rules, limits):
        passes = gate.unknown and on_inconclusive == "pass"
        if not passes:
            codes.add(ExitCode.GATE_INCONCLUSIVE if gate.unknown else ExitCode.GATE_FAILED)
        (note if passes else message)(f"{label}: {broken_gate(gate)}{': passed' if passes else ''}")
    return min(codes) if codes else exit_code(trace, reading)

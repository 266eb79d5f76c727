"""``traceana history``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from traceana.cli.advise import OnInconclusive
from traceana.cli.diff import fraction, gate_code
from traceana.cli.options import Drawing, Tabling, by_option
from traceana.cli.output import Output
from traceana.cli.ranks import progress
from traceana.cli.streams import message
from traceana.errors import ExitCode
from traceana.vocabulary.option_words import HistoryBy, HistoryOrder

if TYPE_CHECKING:
    from traceana.comparison.history import History

Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUNS...",
        help="A folder of bundles, recorded runs or traces; or several of these, and folders of "
        "ranks.",
    ),
]
By = Annotated[
    HistoryBy,
    by_option(
        HistoryBy, "One row per run; or per class, layer, kernel or line, with its last change."
    ),
]
Order = Annotated[
    HistoryOrder,
    typer.Option(
        metavar="|".join(get_args(HistoryOrder)),
        help="Order of the runs: commit: as in the git repository around the current folder.",
    ),
]
Labels = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="NAME",
        help="Name of a run; once for each, as given. Default: from its file name.",
    ),
]
MinEffect = Annotated[
    str, typer.Option(metavar="PERCENT", help="Minimum relative change to report.")
]
Level = Annotated[str, typer.Option(metavar="PERCENT", help="Confidence level of intervals.")]
FailIfSlower = Annotated[
    str | None,
    typer.Option(
        metavar="PERCENT",
        help="Exit code 31 when the newest run, with others of its commit, is significantly "
        "slower than the level before it, by more than this part.",
    ),
]
Against = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="For --fail-if-slower: the level of these runs: a folder of theirs, the beginning of "
        "their labels, or a branch, tag or commit of git. Default: all runs before the newest.",
    ),
]
NoDiff = Annotated[
    bool, typer.Option("--no-diff", help="Do not open runs to show what changed between them.")
]
Strict = Annotated[bool, typer.Option("--strict", help="Exit code 17 when a run cannot be read.")]


def history(
    runs: Runs,
    tabling: Tabling,
    writing: Drawing,
    by: By = "step",
    order: Order = "date",
    label: Labels = None,
    min_effect: MinEffect = "1%",
    level: Level = "95%",
    fail_if_slower: FailIfSlower = None,
    against: Against = None,
    on_inconclusive: OnInconclusive = "pass",
    no_diff: NoDiff = False,
    strict: Strict = False,
) -> ExitCode:
    """Run the command; :mod:`traceana.commands` has its help."""
    from traceana.report.pages.history import history as page

    least, confidence = fraction(min_effect, "--min-effect"), fraction(level, "--level")
    if not 0.5 < confidence < 1:
        raise typer.BadParameter("must be above 50% and below 100%", param_hint="--level")
    gate = None if fail_if_slower is None else fraction(fail_if_slower, "--fail-if-slower")
    if against is not None and gate is None:
        raise typer.BadParameter("needs --fail-if-slower", param_hint="--against")
    output = Output(tabling, writing, reads=runs)
    with progress("reading runs") as done:
        result = page(
            runs,
            by=by,
            order=order,
            labels=label,
            level=confidence,
            minimum_effect=least,
            explain=not no_diff,
            progress=done,
        )
    past: History = result.summary
    judged = None if gate is None else past.judged(against)
    output.write(result)
    for why in past.left_out:
        message(f"skipped: {why}")
    if strict and past.left_out:
        return ExitCode.DAMAGED_INPUT
    if judged is None or gate is None:
        return ExitCode.OK
    outcome, reason = judged.gated(gate)
    return gate_code(outcome, reason, on_inconclusive)

"""``traceana diff``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from traceana.cli.advise import OnInconclusive
from traceana.cli.opening import exit_code, gate_label, open_trace
from traceana.cli.options import (
    AsRecorded,
    DeviceModel,
    Drawing,
    Reading,
    Rules,
    StepMarker,
    Tabling,
)
from traceana.cli.output import Output
from traceana.cli.ranks import list_bad, progress
from traceana.cli.streams import message, note
from traceana.errors import ExitCode, UsageError
from traceana.vocabulary.option_words import Inconclusive, JobDiffBy, Statistic

if TYPE_CHECKING:
    from traceana.comparison.verdicts import Criteria, Gated


A = Annotated[
    Path,
    typer.Argument(
        metavar="A",
        help="Baseline: a trace, a recorded run, a bundle, a folder of ranks, or a saved name. "
        "A1,A2,A3: several runs of one program.",
    ),
]
B = Annotated[
    Path | None,
    typer.Argument(
        metavar="[B]",
        help="Candidate; B1,B2,B3: several runs of it. Optional with --save-baseline.",
    ),
]
By = Annotated[
    JobDiffBy | None,
    typer.Option(
        "--by",
        metavar="|".join(get_args(JobDiffBy)),
        help="One row per layer, class, algorithm, kernel, GEMM tile, copy direction, line of the "
        "program, or rank of two distributed jobs. Default: a summary.",
    ),
]


@dataclass(frozen=True, slots=True)
class Inputs:
    """Options for reading both runs."""

    step: Annotated[
        str | None, typer.Option(metavar="N,N-M", help="Only these steps, in both runs.")
    ] = None
    device: Annotated[
        str | None, typer.Option(metavar="N,N|cpu", help="Only these devices, in both runs.")
    ] = None
    rank: Annotated[
        str | None, typer.Option(metavar="N,N-M", help="Only these ranks, in both runs.")
    ] = None
    step_marker: StepMarker = None
    device_model: DeviceModel = None
    rules: Rules = None
    model_a: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Layer manifest of the baseline. Default: beside A."),
    ] = None
    model_b: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Layer manifest of the candidate. Default: beside B."),
    ] = None
    as_recorded: AsRecorded = False
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit code 17 when a trace has integrity problems.")
    ] = False

    def reading(self, model: Path | None) -> Reading:
        """Return the options for reading one run."""
        return Reading(
            step=self.step,
            device=self.device,
            rank=self.rank,
            step_marker=self.step_marker,
            device_model=self.device_model,
            rules=self.rules,
            model=model,
            as_recorded=self.as_recorded,
            strict=self.strict,
        )


@dataclass(frozen=True, slots=True)
class Comparing:
    """Layer pairing, statistics and gate."""

    map: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help='Layer pairs to force: TOML "of A" = "of B", or CSV a,b.'
        ),
    ] = None
    min_effect: Annotated[
        str, typer.Option(metavar="PERCENT", help="Minimum relative change to report.")
    ] = "1%"
    level: Annotated[
        str, typer.Option(metavar="PERCENT", help="Confidence level of intervals and verdicts.")
    ] = "95%"
    statistic: Annotated[
        Statistic, typer.Option(metavar="median|mean", help="Step-time statistic to compare.")
    ] = "median"
    fail_if_slower: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT",
            help="Exit code 31 when B, or its GPU kernels, are significantly slower, by more than "
            "this part of A's step.",
        ),
    ] = None
    on_inconclusive: OnInconclusive = "pass"
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT",
            help="Only: how many runs of each, and steps in each, show a change of this part of "
            "the step time.",
        ),
    ] = None
    comment: Annotated[
        bool,
        typer.Option(
            "--comment",
            help="Only the verdict, a picture, the three largest changes, and what is unchanged: "
            "a comment on a pull request, with -f md.",
        ),
    ] = False
    save_baseline: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Save A as a baseline; give the name as A later."),
    ] = None


def diff(
    a: A,
    inputs: Inputs,
    comparing: Comparing,
    tabling: Tabling,
    writing: Drawing,
    b: B = None,
    by: By = None,
) -> ExitCode:
    """Run the command; :mod:`traceana.commands` has its help."""
    from traceana.comparison.run_inputs import lacks_capture, repetitions, save_baseline
    from traceana.comparison.verdicts import Criteria
    from traceana.report.pages.diff import diff as page
    from traceana.report.pages.diff import runs_needed

    if b is None and comparing.save_baseline is None:
        raise typer.BadParameter("give a candidate, or --save-baseline", param_hint="B")
    least = fraction(comparing.min_effect, "--min-effect")
    level = fraction(comparing.level, "--level")
    if not 0.5 < level < 1:
        raise typer.BadParameter("must be above 50% and below 100%", param_hint="--level")
    gate = None
    if comparing.fail_if_slower is not None:
        gate = fraction(comparing.fail_if_slower, "--fail-if-slower")
    change = None if comparing.plan is None else fraction(comparing.plan, "--plan")
    if change is not None and (b is None or by is not None or gate is not None):
        raise typer.BadParameter(
            "needs a candidate, and is not for --by and --fail-if-slower", param_hint="--plan"
        )
    if comparing.comment and (b is None or by is not None or change is not None):
        raise typer.BadParameter(
            "needs a candidate, and is not for --by and --plan", param_hint="--comment"
        )
    sides = [repetitions(path) for path in (a, b) if path is not None]
    paths = [path for side in sides for path in side]
    output = Output(tabling, writing, reads=paths)
    criteria = Criteria(level, least, comparing.statistic)
    single = all(len(side) == 1 for side in sides)
    if not single and (by == "rank" or comparing.save_baseline is not None):
        raise typer.BadParameter("several runs (A1,A2) are not for --by rank and --save-baseline")
    if len({len(side) > 1 for side in sides}) > 1:
        raise typer.BadParameter("several runs of one program only: give at least 2 of each")
    if by == "rank":
        return _jobs(paths, inputs, comparing, criteria, gate, output)
    readings = [inputs.reading(inputs.model_a), inputs.reading(inputs.model_b)]
    used = [reading for reading, side in zip(readings, sides, strict=False) for _ in side]
    traces = [
        open_trace([path], reading, number=number, of=len(paths))
        for number, (path, reading) in enumerate(zip(paths, used, strict=True))
    ]
    first = len(sides[0])
    if b is not None:
        for place, (path, chosen) in enumerate(zip(paths, used, strict=True)):
            other = paths[first if place < first else 0]
            if chosen.capture is None and lacks_capture(traces[place], path, other):
                traces[place] = open_trace([path], replace(chosen, capture=other))
    if comparing.save_baseline is not None:
        kept = save_baseline(comparing.save_baseline, traces[0], traces[0].manifest)
        note(f"saved as {kept.name}: {kept}")
    of_step = gate is not None or change is not None or comparing.comment
    if of_step and any(trace.is_snapshot for trace in traces):
        raise UsageError(
            "memory snapshots have no step: --fail-if-slower, --plan and --comment need traces"
        )
    needed = ("activities", "memory_blocks")
    codes = [exit_code(trace, reading, needed) for trace, reading in zip(traces, used, strict=True)]
    failed = next((code for code in codes if code is not ExitCode.OK), ExitCode.OK)
    if len(traces) == 1 or ExitCode.EMPTY_SELECTION in codes:
        return failed
    result = page(
        traces[:first],
        traces[first:],
        by=by,
        pairs=comparing.map,
        level=level,
        minimum_effect=least,
        statistic=comparing.statistic,
    )
    if change is not None:
        result = runs_needed(result.summary, change)
    judged = None if gate is None else result.summary.gated(gate)
    if comparing.comment:
        from traceana.report.pages.diff_comment import comment

        told = None if gate is None or judged is None else (gate, *judged)
        result = comment(result.summary, told)
    output.write(result)
    if failed is not ExitCode.OK:
        return failed
    if judged is None:
        return ExitCode.OK
    outcome, reason = judged
    compared = result.summary.baseline, result.summary.candidate
    label = gate_label(*(side.run.trace for side in compared))
    return gate_code(outcome, reason, comparing.on_inconclusive, label)


def _jobs(
    paths: list[Path],
    inputs: Inputs,
    comparing: Comparing,
    criteria: Criteria,
    gate: float | None,
    output: Output,
) -> ExitCode:
    """Write the difference of two jobs, rank by rank."""
    from traceana.comparison.verdicts import gated
    from traceana.job.tasks import Reading as RankReading
    from traceana.report.pages.job_diff import diff_jobs
    from traceana.report.pages.ranks import bad_ranks

    not_taken = {
        **{"--step": inputs.step, "--device": inputs.device, "--rank": inputs.rank},
        **{"--model-a": inputs.model_a, "--model-b": inputs.model_b, "--map": comparing.map},
        "--save-baseline": comparing.save_baseline,
    }
    for option, value in not_taken.items():
        if value is not None:
            raise typer.BadParameter("is not for --by rank", param_hint=option)
    rules = None if inputs.rules is None else str(inputs.rules)
    with progress() as done:
        reading = RankReading(inputs.step_marker, inputs.device_model, rules)
        result, job_diff = diff_jobs(paths[0], paths[1], reading, criteria, done)
    output.write(result)
    bad = [line for job in (job_diff.baseline, job_diff.candidate) for line in bad_ranks(job.rows)]
    list_bad(bad)
    jobs = (job_diff.baseline, job_diff.candidate)
    none_read = any(not job.rows["kernels"].count() for job in jobs)
    if none_read or (inputs.strict and bad):
        return ExitCode.DAMAGED_INPUT
    if gate is None:
        return ExitCode.OK
    if job_diff.step is None:
        message("gate: no common step of all ranks of a job")
        passes = comparing.on_inconclusive == "pass"
        return ExitCode.OK if passes else ExitCode.GATE_INCONCLUSIVE
    return gate_code(*gated(job_diff.step.decides, gate), comparing.on_inconclusive)


def gate_code(
    outcome: Gated, reason: str, on_inconclusive: Inconclusive, label: str = "gate"
) -> ExitCode:
    """Return the exit code of the gate; print a line if it fails or is inconclusive."""
    if outcome == "passed":
        return ExitCode.OK
    passes = outcome == "inconclusive" and on_inconclusive == "pass"
    (note if passes else message)(f"{label}: {reason}: {'passed' if passes else 'failed'}")
    if passes:
        return ExitCode.OK
    return ExitCode.GATE_FAILED if outcome == "failed" else ExitCode.GATE_INCONCLUSIVE


def fraction(text: str, option: str) -> float:
    """Return ``3%`` or ``0.03`` as a fraction; raises ``typer.BadParameter`` on other text."""
    from traceana.comparison.verdicts import percentage

    try:
        return percentage(text)
    except UsageError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error

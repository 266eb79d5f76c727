"""``diff --by rank``: the change from one distributed job to another, rank by rank and whole."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
from msgspec.structs import replace

from traceana.comparison.jobs import PARTS, RANKS, JobDiff, compare_jobs
from traceana.comparison.verdicts import Criteria
from traceana.job.ranks import DAMAGED, OK, Job, job, summarize
from traceana.job.sources import sources
from traceana.job.tasks import Done, Reading
from traceana.readers.ranks import spans
from traceana.readers.source import silent
from traceana.report import numbers
from traceana.report.numbers import arrow, percent, signed
from traceana.report.page import Block, Facts, Page, Table
from traceana.report.pages.diff import step_source
from traceana.report.pages.single_table import data_of, notes_of, table_of, with_values
from traceana.report.result import CommandResult
from traceana.result import Arranged, Result
from traceana.table import hiding


def diff_jobs(
    baseline: Path, candidate: Path, reading: Reading, criteria: Criteria, done: Done = silent
) -> tuple[CommandResult, JobDiff]:
    """Return the rows and the page of the jobs in two folders of ranks, and their figures.

    Raises the errors of :mod:`traceana.errors`.
    """
    a, b = (
        job(summarize(sources([folder]), reading, None, workers=None, done=done))
        for folder in (baseline, candidate)
    )
    job_diff = compare_jobs(a, b, criteria)
    names = (baseline.name or str(baseline), candidate.name or str(candidate))
    made = CommandResult.of(
        Result(job_diff.rows, columns=RANKS),
        partial(_page, job_diff, names),
        screenful=24,
        filterable=False,
    )
    return made, job_diff


def _page(job_diff: JobDiff, names: tuple[str, str], shown: Arranged) -> Page:
    frame = job_diff.rows
    sound = all((frame[name].drop_nulls() == OK).all() for name in ("status_a", "status_b"))
    columns = hiding(RANKS, ("status_a", "status_b")) if sound else RANKS
    parts = job_diff.parts.filter(pl.any_horizontal(pl.col("time_a_ns", "time_b_ns") != 0))
    blocks: tuple[Block, ...] = (
        Facts(tuple(_facts(job_diff, names))),
        Table(parts, with_values(parts, PARTS), layout="compact"),
        table_of(replace(shown, columns=columns)),
        *notes_of(shown.notes),
    )
    source = {
        "a": _source(job_diff.baseline, names[0]),
        "b": _source(job_diff.candidate, names[1]),
        "step": None if job_diff.step is None else step_source(job_diff.step),
        "level": job_diff.criteria.level,
        "minimum_effect": job_diff.criteria.minimum_effect,
    }
    return Page(
        "diff", blocks, data_of(shown, source, {"parts": Result(job_diff.parts, columns=PARTS)})
    )


def _source(all_ranks: Job, name: str) -> dict[str, Any]:
    read = {"ranks": all_ranks.rows.height, "read": _read(all_ranks), "steps": all_ranks.steps}
    return {"file": name, **read}


def _read(all_ranks: Job) -> int:
    return int(all_ranks.rows["status"].is_in([OK, DAMAGED]).sum())


def _facts(job_diff: JobDiff, names: tuple[str, str]) -> Iterator[tuple[str, str]]:
    jobs = (job_diff.baseline, job_diff.candidate)
    for label, name, all_ranks in zip(("Baseline", "Candidate"), names, jobs, strict=True):
        steps = numbers.counted(all_ranks.steps, "step")
        yield label, f"{name} · {_read(all_ranks)} of {all_ranks.rows.height} ranks read · {steps}"
    yield "Step time", _step(job_diff)
    yield "Stragglers", " → ".join(map(_stragglers, jobs))
    yield "Tables", "per step and rank; own time: step time less exposed waits for other ranks"


def _step(job_diff: JobDiff) -> str:
    if job_diff.step is None:
        return "not determined: no common step of all ranks"
    tested = job_diff.step.decides
    of = f"{job_diff.step.statistic}, of the longest rank in each step"
    text = f"{arrow(round(tested.a), round(tested.b))} {of} ({percent(tested.relative)})"
    if tested.interval is not None:
        low, high = (signed(round(bound)) for bound in (tested.interval.low, tested.interval.high))
        text += f", {numbers.level(job_diff.criteria.level)} interval {low} to {high}"
    few = tested.verdict == "not enough steps"
    verdict = "inconclusive: at least 4 steps needed in each job" if few else tested.verdict
    return f"{text}; {verdict}"


def _stragglers(all_ranks: Job) -> str:
    if not all_ranks.steps:
        return "not determined"
    late = all_ranks.rows.filter("straggler")["rank"].sort().to_list()
    return f"rank{'s' * (len(late) > 1)} {spans(late)}" if late else "none"

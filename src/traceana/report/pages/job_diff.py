"""``diff --by rank``: the change from one distributed job to another, rank by rank and whole."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
from msgspec.structs import replace

from traceana.comparison.jobs import PARTS, RANKS, JobDiff, compare_jobs
from traceana.comparison.verdicts import Criteria, Step
from traceana.job.ranks import DAMAGED, OK, Job, job, summarize
from traceana.job.sources import sources
from traceana.job.tasks import Done, Reading
from traceana.readers.ranks import spans
from traceana.readers.source import silent
from traceana.report import numbers
from traceana.report.numbers import arrow, percent, signed
from traceana.report.page import Block, Facts, Page, Table
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
    found = compare_jobs(a, b, criteria)
    names = (baseline.name or str(baseline), candidate.name or str(candidate))
    made = CommandResult.of(
        Result(found.rows, columns=RANKS),
        partial(_page, found, names),
        screenful=24,
        filterable=False,
    )
    return made, found


def _page(found: JobDiff, names: tuple[str, str], shown: Arranged) -> Page:
    frame = found.rows
    sound = all((frame[name].drop_nulls() == OK).all() for name in ("status_a", "status_b"))
    columns = hiding(RANKS, ("status_a", "status_b")) if sound else RANKS
    parts = found.parts.filter(pl.any_horizontal(pl.col("time_a_ns", "time_b_ns") != 0))
    blocks: tuple[Block, ...] = (
        Facts(tuple(_facts(found, names))),
        Table(parts, with_values(parts, PARTS), layout="compact"),
        table_of(replace(shown, columns=columns)),
        *notes_of(shown.notes),
    )
    source = {
        "a": _source(found.baseline, names[0]),
        "b": _source(found.candidate, names[1]),
        "step": None if found.step is None else _judged(found.step),
        "level": found.criteria.level,
        "minimum_effect": found.criteria.minimum_effect,
    }
    return Page(
        "diff", blocks, data_of(shown, source, {"parts": Result(found.parts, columns=PARTS)})
    )


def _source(one: Job, name: str) -> dict[str, Any]:
    return {"file": name, "ranks": one.rows.height, "read": _read(one), "steps": one.steps}


def _judged(step: Step) -> dict[str, Any]:
    both = (("median", step.median), ("mean", step.mean))
    found = {name: {**msgspec.to_builtins(one), "relative": one.relative} for name, one in both}
    return {**found, "statistic": step.statistic, "verdict": step.verdict}


def _read(one: Job) -> int:
    return int(one.rows["status"].is_in([OK, DAMAGED]).sum())


def _facts(found: JobDiff, names: tuple[str, str]) -> Iterator[tuple[str, str]]:
    jobs = (found.baseline, found.candidate)
    for label, name, one in zip(("Baseline", "Candidate"), names, jobs, strict=True):
        steps = numbers.counted(one.steps, "step")
        yield label, f"{name} · {_read(one)} of {one.rows.height} ranks read · {steps}"
    yield "Step time", _step(found)
    late = [_stragglers(one) for one in jobs]
    yield "Stragglers", " → ".join(late)
    yield "Tables", "per step and rank; own time: step time less exposed waits for other ranks"


def _step(found: JobDiff) -> str:
    if found.step is None:
        return "not determined: no common step of all ranks"
    one = found.step.decides
    of = f"{found.step.statistic}, of the longest rank in each step"
    text = f"{arrow(round(one.a), round(one.b))} {of} ({percent(one.relative)})"
    if one.interval is not None:
        low, high = (signed(round(bound)) for bound in (one.interval.low, one.interval.high))
        text += f", {numbers.level(found.criteria.level)} interval {low} to {high}"
    few = one.verdict == "not enough steps"
    return f"{text}; {'inconclusive: at least 4 steps needed in each job' if few else one.verdict}"


def _stragglers(one: Job) -> str:
    if not one.steps:
        return "not determined"
    late = one.rows.filter("straggler")["rank"].sort().to_list()
    return f"rank{'s' * (len(late) > 1)} {spans(late)}" if late else "none"

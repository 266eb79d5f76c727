"""The slowdown of a job on the page of ``ranks``: its line, its tables and its picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import polars as pl
from msgspec.structs import replace

from traceana.job.slowdown import (
    DATA,
    HOST,
    LINK,
    NONE,
    OPEN,
    RANDOM,
    RANK_TYPES,
    SLOWDOWN,
    STAGE,
    STEPS,
    TYPE,
    WORST,
    Slowdown,
)
from traceana.report import numbers
from traceana.report.page import Block, Table
from traceana.report.pages.single_table import with_values
from traceana.settings import STRAGGLER_SHARE
from traceana.table import Column, Kind, by_name

_LARGEST_ERROR: Final = 0.1
"""Where the replay differs more from the recording, its slowdown is none of the job."""
_MOST_ITEMS: Final = {WORST: 8, STAGE: 8, TYPE: 8, STEPS: 3}
_TIMES: Final = "\N{MULTIPLICATION SIGN}"
_LEAST: Final = 1.001
"""Types with a smaller slowdown explain nothing."""
_MOST_TYPES: Final = 5


def is_sound(slowdown: Slowdown | None) -> bool:
    """Return whether the replay has the steps of the recording, within 10 %."""
    return slowdown is not None and abs(slowdown.launch_slowdown - 1) <= _LARGEST_ERROR


def has_cause(slowdown: Slowdown | None) -> bool:
    """Return whether the page names the cause of a slowdown."""
    return slowdown is not None and is_sound(slowdown) and slowdown.cause not in (NONE, OPEN)


def summary(slowdown: Slowdown | None) -> Mapping[str, Any]:
    """Return the figures of a job that are one number each, for the JSON."""
    if slowdown is None or not is_sound(slowdown):
        return {"slowdown": None, "cause": None}
    return {
        "slowdown": slowdown.slowdown,
        "launch_slowdown": slowdown.launch_slowdown,
        "recorded_step_ns": round(slowdown.recorded_ns),
        "replayed_step_ns": round(slowdown.replayed_ns),
        "typical_step_ns": round(slowdown.typical_ns),
        "steps": slowdown.steps,
        "cause": slowdown.cause,
        "cause_explained": slowdown.explained,
        "cause_ranks": [*slowdown.ranks],
    }


def facts(slowdown: Slowdown | None) -> Iterator[tuple[str, str]]:
    """Return the lines of the slowdown and its cause."""
    if slowdown is None:
        return
    error = slowdown.launch_slowdown - 1
    if not is_sound(slowdown):
        side = "shorter" if error > 0 else "longer"
        yield (
            "Job",
            "slowdown not determined: the replayed step is "
            f"{numbers.share(abs(1 - 1 / slowdown.launch_slowdown))} {side} than the recorded one",
        )
        return
    step, typical = map(numbers.duration, (slowdown.replayed_ns, slowdown.typical_ns))
    side = "above" if error >= 0 else "below"
    yield (
        "Job",
        f"{slowdown.slowdown:.2f} {_TIMES} slower than with equal ranks · step {step}, {typical} "
        f"with typical times · recorded {numbers.share(abs(error))} {side}",
    )
    yield "Cause", _cause(slowdown)


def _cause(slowdown: Slowdown) -> str:
    subject = slowdown.subject
    match slowdown.cause:
        case cause if cause == NONE:
            return f"none: the ranks are equal within {numbers.share(STRAGGLER_SHARE)} of the step"
        case cause if cause == DATA:
            return (
                "unequal work per micro-batch, such as sequence lengths: forward and backward "
                f"times of a micro-batch correlate (r = {subject})"
            )
        case cause if cause == RANDOM:
            return f"single operations take longer, on no rank in particular: {subject}"
        case cause if cause == LINK:
            return f"link: transfers take longer than typical: {subject}"
        case cause if cause == HOST:
            return (
                "host: launch delays make the recorded step "
                f"{numbers.share(slowdown.launch_slowdown - 1)} longer"
            )
        case cause if cause == OPEN:
            return "not determined: no rank, stage, link or step has half of the slowdown"
    return subject


def blocks(slowdown: Slowdown | None, ranks: pl.Series) -> tuple[Block, ...]:
    """Return the tables of what the slowdown is of, and of the ``ranks`` by type of work."""
    if slowdown is None or not is_sound(slowdown) or slowdown.cause == NONE:
        return ()
    rows = slowdown.rows.with_columns(pl.col("slowdown").alias("key"))
    parts = []
    for by, most in _MOST_ITEMS.items():
        part = rows.filter(by=by)
        if by == TYPE:
            part = part.filter(pl.col("slowdown") >= _LEAST)
        if by != WORST:
            part = part.sort("key", descending=True, maintain_order=True)
        parts.append(part.head(most))
    frame = pl.concat(parts).drop("key")
    columns = with_values(frame, SLOWDOWN)
    table = Table(frame, columns, dropped=("count", "typical_ns"))
    of_ranks = slowdown.rank_types.filter(pl.col("rank").is_in(ranks.implode()))
    types = _widest(of_ranks)
    wide = of_ranks.pivot("type", index="rank", values="excess_share").select("rank", *types)
    order = pl.DataFrame({"rank": ranks}).with_row_index("order")
    wide = wide.join(order, on="rank").sort("order").drop("order")
    shares = by_name(RANK_TYPES)["excess_share"]
    heat = (
        Column("rank", Kind.NUMBER),
        *(replace(shares, name=name, title=name, group="above the typical time") for name in types),
    )
    return (table, *([Table(wide, heat, dropped=tuple(reversed(types)))] if types else []))


def _widest(rank_types: pl.DataFrame) -> list[str]:
    """Return the types of work that differ most from rank to rank, in time."""
    difference = (pl.col("time_ns") - pl.col("time_ns").mean()).abs().sum()
    by_type = rank_types.group_by("type").agg(difference.alias("differs"))
    by_type = by_type.filter(pl.col("differs") > 0)
    by_type = by_type.sort("differs", "type", descending=[True, False])
    return by_type["type"].head(_MOST_TYPES).to_list()

"""The summary of a rank: small tables of sums, steps and collectives, as Parquet files.

A rank's events stay in the process that read them. Sums are exact integers, so that the summaries
of any number of ranks add up to the sums of one Trace of all of them.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from traceana.analyze.collective_ranks import BETWEEN_TWO
from traceana.analyze.communication import communication, has_smaller_groups, with_messages
from traceana.analyze.devices import devices
from traceana.analyze.kernels import kernels
from traceana.analyze.summaries import needs_timeline
from traceana.columns.intervals import Busy
from traceana.files import UNDECODABLE, crc32, replace_folder, scratch_folder, scratch_prefix, umask
from traceana.job.rank_operations import operations_of, pass_limits, with_pieces
from traceana.plain_text import as_unicode
from traceana.timeline.idle import idle
from traceana.timeline.operations import OPERATIONS
from traceana.timeline.steps import device_windows, measured_steps, select
from traceana.timeline.work import work
from traceana.trace.bundle import write_tables

if TYPE_CHECKING:
    from traceana.trace import Trace

FACTS: Final = "rank.json"
_SHARDED: Final = "^(?:FSDP::|FullyShardedDataParallel)"
"""Annotations of PyTorch's FSDP, both versions."""
MOST_KERNELS: Final = 2000
"""Kernel names of a rank that are kept, by time."""

TABLES: Final[Mapping[str, Mapping[str, pl.DataType | type[pl.DataType]]]] = {
    "steps": {
        "step": pl.Int64,
        "wall_ns": pl.Int64,
        "exposed_communication_ns": pl.Int64,
        "bubble_ns": pl.Int64,
        "warm_up": pl.Boolean,
        "first_backward_ns": pl.Int64,
        "last_forward_ns": pl.Int64,
        "last_backward_ns": pl.Int64,
    },
    "kernels": {"name": pl.String, "category": pl.String, "calls": pl.Int64, "time_ns": pl.Int64},
    "idle": {"cause": pl.String, "count": pl.Int64, "time_ns": pl.Int64},
    "collectives": {
        "collective": pl.String,
        "message_bytes": pl.Int64,
        "bytes": pl.Int64,
        "output_bytes": pl.Int64,
        "process_group": pl.UInt32,
        "group_size": pl.Int32,
        "sequence": pl.Int64,
        "peer": pl.Int32,
        "sends": pl.Boolean,
        "step": pl.Int64,
        "start_ns": pl.Int64,
        "time_ns": pl.Int64,
        "piece": pl.Int64,
        "ends_in": pl.Int64,
        "exposed_ns": pl.Int64,
    },
    "process_groups": {
        "process_group": pl.UInt32,
        "group_name": pl.String,
        "description": pl.String,
        "group_ranks": pl.String,
    },
    "operations": OPERATIONS,
}
"""The tables of a summary, each with its columns."""
_LAYOUT: Final = crc32(repr({name: dict(columns) for name, columns in TABLES.items()}).encode())
"""A number that changes with the columns: another version may have written a kept summary."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a rank that are one number each, of the whole capture.

    ``recorded`` is the rank that the file records. ``kernel_ns`` is the sum of the kernels'
    durations; ``busy_ns``, ``compute_ns``, ``communication_ns``, ``copy_ns`` and the exposed times
    are unions of intervals, summed over the rank's ``devices``: of all work, of kernels other than
    collectives, of collectives, of copies. ``problems`` are the integrity problems by reason.
    ``reason`` is why a rank has no figures. ``smaller_groups``: the file lists process groups of
    several ranks, but not of all. ``sharded``: it has annotations of PyTorch's FSDP.
    ``layout`` is of the columns of the tables.
    """

    source: str
    reason: str = ""
    recorded: int | None = None
    world_size: int | None = None
    host: str | None = None
    format: str | None = None
    framework: str | None = None
    epoch_ns: int | None = None
    smaller_groups: bool = False
    sharded: bool = False
    truncated: bool = False
    problems: dict[str, int] = msgspec.field(default_factory=dict)
    devices: int = 0
    kernels: int = 0
    kernel_ns: int = 0
    span_ns: int = 0
    busy_ns: int = 0
    compute_ns: int = 0
    communication_ns: int = 0
    exposed_communication_ns: int = 0
    copy_ns: int = 0
    exposed_copy_ns: int = 0
    checksums: dict[str, int] = msgspec.field(default_factory=dict)
    layout: int = 0


class Summary(msgspec.Struct, frozen=True):
    """The facts of a rank, and its tables (:data:`TABLES`)."""

    facts: Facts
    tables: Mapping[str, pl.DataFrame]


def summaries(trace: Trace) -> list[Summary]:
    """Return the summary of each rank in ``trace``; one where it has a single rank.

    Raises :class:`~traceana.errors.NoSuchSelectionError` for a printed summary.
    """
    needs_timeline(trace, "ranks")
    numbers = trace.tables.activities["rank"].drop_nulls().unique().sort().to_list()
    if len(numbers) < 2:
        return [_of(trace, trace.meta.rank)]
    # The events of other ranks are none of a rank's own, and each would look through all of them.
    parts = (select(trace, ranks=[number]) for number in numbers)
    return [
        _of(msgspec.structs.replace(part, selected_from=None), number)
        for part, number in zip(parts, numbers, strict=True)
    ]


def unread(source: str, reason: str) -> Summary:
    """Return the summary of a file that was not read."""
    facts = Facts(source=source, reason=reason)
    return Summary(facts, {name: pl.DataFrame(schema=columns) for name, columns in TABLES.items()})


def _of(trace: Trace, rank: int | None) -> Summary:
    meta = trace.meta
    kernel = trace.tables.activities.filter(pl.col("kind") == "kernel")
    by_device = devices(trace).frame
    names = ("span_ns", "busy_ns", "kernel_ns", "collective_ns", "collective_exposed_ns")
    span, busy, kernels_union, together, exposed = (int(by_device[name].sum()) for name in names)
    hosts = meta.properties.get("hosts")
    host = hosts.get(str(rank)) if isinstance(hosts, dict) and rank is not None else meta.host
    problems = trace.tables.ledger.filter(pl.col("severity") == "problem")
    facts = Facts(
        source=as_unicode(str(meta.source)),
        recorded=rank,
        world_size=meta.world_size,
        host=host,
        format=meta.format,
        framework=meta.framework,
        epoch_ns=meta.epoch_ns,
        smaller_groups=has_smaller_groups(trace),
        sharded=trace.tables.ranges["text"].unique().cast(pl.String).str.contains(_SHARDED).any(),
        truncated=meta.truncated,
        problems=dict(problems.group_by("reason").agg(pl.col("count").sum()).sort("reason").rows()),
        devices=by_device.height,
        kernels=kernel.height,
        kernel_ns=int(kernel["duration"].sum()),
        span_ns=span,
        busy_ns=busy,
        compute_ns=kernels_union - exposed,
        communication_ns=together,
        exposed_communication_ns=exposed,
        copy_ns=int(by_device["copy_ns"].sum()),
        exposed_copy_ns=int(by_device["copy_exposed_ns"].sum()),
    )
    return Summary(facts, _tables(trace))


def _tables(trace: Trace) -> dict[str, pl.DataFrame]:
    # Of several processes the longest step.
    steps = (
        communication(trace)
        .frame.group_by("step")
        .agg(pl.col("wall_ns").max(), pl.col("exposed_ns").sum())
        .rename({"exposed_ns": "exposed_communication_ns"})
        .join(_bubbles(trace), on="step", how="left")
        .join(pass_limits(trace), on="step", how="left")
        .with_columns(warm_up=~pl.col("step").is_in(measured_steps(trace).numbers))
        .sort("step")
    )
    used = trace.tables.activities["process_group"].drop_nulls().unique()
    process_groups = (
        trace.tables.process_groups.with_row_index("process_group")
        .filter(pl.col("process_group").is_in(used.implode()))
        .rename({"name": "group_name", "ranks": "group_ranks"})
    )
    tables = {
        "steps": steps,
        "kernels": kernels(trace).frame.sort("time_ns", descending=True).head(MOST_KERNELS),
        "idle": idle(trace).frame.group_by("cause").agg(pl.col("count", "time_ns").sum()),
        "collectives": with_pieces(trace),
        "process_groups": process_groups,
        "operations": operations_of(trace),
    }
    return {
        name: frame.select(pl.col(column).cast(dtype) for column, dtype in TABLES[name].items())
        for name, frame in tables.items()
    }


def _bubbles(trace: Trace) -> pl.DataFrame:
    """Return ``step`` and ``bubble_ns``: the time of its devices without other work than sends and
    receives. Empty without recorded sends and receives."""
    none = pl.DataFrame(schema={"step": pl.Int64, "bubble_ns": pl.Int64})
    if trace.tables.process_groups.is_empty():
        return none
    between = with_messages(trace).filter(
        pl.col("carries"),
        pl.col("collective") == BETWEEN_TWO,
        pl.col("process_group").is_not_null(),
    )
    if between.is_empty():
        return none
    keys = ["device", "stream", "start", "duration", "name_id"]
    others = work(trace).join(between.select(keys), on=keys, how="anti", nulls_equal=True)
    windows = device_windows(trace)
    numbers = trace.tables.steps["number"].gather(windows["step"]).alias("step")
    idle = windows["end"] - windows["start"] - Busy.of(others).within(windows)
    return pl.DataFrame([numbers, idle.alias("bubble_ns")]).group_by("step").agg(pl.all().sum())


def write(summary: Summary, folder: Path) -> None:
    """Write ``summary`` as the folder ``folder``, whole or not at all; raises ``OSError``."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(scratch_prefix(folder.name), folder.parent) as scratch:
        checksums = write_tables(scratch, summary.tables)
        facts = msgspec.structs.replace(summary.facts, checksums=checksums, layout=_LAYOUT)
        (scratch / FACTS).write_bytes(msgspec.json.format(msgspec.json.encode(facts)))
        scratch.chmod(0o777 & ~umask())
        replace_folder(scratch, folder)


def read_facts(folder: Path) -> Facts | None:
    """Return the facts of the summary ``folder``; None where it is missing, not as written, or of
    a version with other tables."""
    try:
        facts = msgspec.json.decode((folder / FACTS).read_bytes(), type=Facts)
        tables = {name: (folder / f"{name}.parquet").read_bytes() for name in facts.checksums}
    except (*UNDECODABLE, OSError):
        return None
    whole = facts.layout == _LAYOUT and facts.checksums.keys() == TABLES.keys()
    sound = all(crc32(content) == facts.checksums[name] for name, content in tables.items())
    return facts if whole and sound else None


def read_table(folder: Path, name: str) -> pl.DataFrame:
    """Return a table of the summary ``folder``."""
    return pl.read_parquet(io.BytesIO((folder / f"{name}.parquet").read_bytes()))

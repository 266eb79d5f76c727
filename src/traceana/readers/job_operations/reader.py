"""Reads the operations of all ranks of a training job into the canonical tables.

An operation is work of its rank on the stream of its kind: a pass of a micro-batch, a send or
receive between pipeline stages, a collective of data-parallel ranks. A step is a range on each
rank, from the first to the last operation of the job.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from traceana.errors import CorruptError, NotATraceError
from traceana.readers.chrome.event_decoder import Counted, EventDecoder, to_nanoseconds
from traceana.readers.chrome.reader import Event
from traceana.readers.chrome.stream import extent, ledger_of, read_stream
from traceana.readers.integrity import FARTHEST_NS, rebase, screen
from traceana.readers.job_operations import COLUMNS
from traceana.readers.kernel_names import NameTable
from traceana.readers.parquet import ParquetFiles
from traceana.readers.source import ByteSource, Progress
from traceana.trace import Ledger, Tables, Trace, TraceMeta

_NUMBERS: Final = (
    *("rank", "dp_rank", "stage", "step", "sequence", "micro_batch", "model_chunk"),
    *("start", "duration"),
)
OPERATIONS: Final = {"name": pl.String(), **dict.fromkeys(_NUMBERS, pl.Int64())}
"""The columns of operations, whatever file has them; times are ns on the file's clock."""
_REQUIRED: Final = ("rank", "dp_rank", "stage", "sequence")
_LARGEST: Final = 1 << 30
"""Larger ranks, stages and numbers of operations are damaged."""
_CLOCK_ERROR_NS: Final = 1_000_000
"""An operation that ends before it starts, by less than this, was timed with that error."""
_NEIGHBOUR: Final = {
    "forward-send": 1,
    "forward-recv": -1,
    "backward-send": -1,
    "backward-recv": 1,
}
"""Sends and receives -> the stage of the other rank, relative to the own one."""
_COLLECTIVES: Final = (
    (r"-(?:send|recv)(?:-|$)", "send_recv", "pipeline_parallel"),
    (r"^embedding-.*all-?reduce", "all_reduce", "embedding"),
    (r"^layernorm-.*all-?reduce", "all_reduce", None),
    (r"^optimizer-clip-main-grad$", "all_reduce", "default_pg"),
    (r"reduce-?scatter", "reduce_scatter", "data_parallel"),
    (r"all-?gather", "all_gather", "data_parallel"),
    (r"all-?reduce", "all_reduce", "data_parallel"),
)
"""Pattern of an operation's type, its collective, and the description of its process group.

Clipping reduces the norm of the gradients over all ranks. Gradients of layer norms are reduced over
tensor-parallel ranks, of which the table has one.
"""
_THREAD: Final = re.compile(r"PP rank (\d{1,6}), TP rank (\d{1,6}), (\S+)")
_LEFT_OUT: Final = {"M": "metadata", "i": "instant", "I": "instant", "C": "counter"}


def read_table(path: Path, progress: Progress) -> Trace:
    """Return the Trace of a Parquet file with a row for each operation, times in seconds.

    Raises ``CorruptError`` where the file is damaged, ``NotATraceError`` without an operation.
    """
    size = path.stat().st_size
    table = ParquetFiles().read(path, COLUMNS)
    progress(size, size)
    names = {"name": "optype", "sequence": "seq_id", "micro_batch": "mb_id", "model_chunk": "mc"}
    seconds = {"start": "start_ts", "duration": "duration"}
    try:
        operations = table.select(
            *(
                pl.col(names.get(name, name)).cast(dtype, strict=False).alias(name)
                for name, dtype in OPERATIONS.items()
                if name not in seconds
            ),
            *(
                (pl.col(column).cast(pl.Float64) * 1e9)
                .round()
                .cast(pl.Int64, strict=False)
                .alias(name)
                for name, column in seconds.items()
            ),
        )
    except pl.exceptions.PolarsError as error:
        raise CorruptError(f"{path} has columns of other types: export it again") from error
    ledger = Ledger()
    ledger.add("few_digits", table.height, table="activities", kept=True)
    meta = TraceMeta(
        source=str(path),
        format="job-table",
        bytes_read=size,
        bytes_total=size,
        events=table.height,
    )
    return _trace(operations, meta, ledger)


class Columns(Counted):
    """The events of one stretch of a timeline."""

    operations: list[pl.DataFrame] = msgspec.field(default_factory=list)
    threads: dict[tuple[int, int], tuple[int, int, str]] = msgspec.field(default_factory=dict)
    """Process and thread -> pipeline rank, tensor-parallel rank, kind of operations."""

    def take(self, other: Columns) -> None:
        """Append another stretch."""
        self.add(other)
        self.operations += other.operations
        self.threads |= other.threads


def read_timeline(path: Path, progress: Progress) -> Trace:
    """Return the Trace of the Chrome trace of a job's operations, plain or gzip.

    Of collectives, sends and receives it has the transfer, without the wait for other ranks. A
    truncated file is read up to its end. Raises ``NotATraceError`` without an operation and
    ``CorruptError`` where the file ends before the first event.
    """
    source = ByteSource(path, progress)
    columns = Columns()
    end = read_stream(source, EventDecoder(Event, _columns), columns.take)
    ledger = ledger_of(columns, source, end)
    empty = pl.DataFrame(schema={"thread": pl.Int64, **OPERATIONS})
    operations = pl.concat([empty, *columns.operations]).drop("rank", "stage")
    # The exporter numbers the threads of a rank one after the other: its rank is their quotient.
    kinds = len({kind for _, _, kind in columns.threads.values()}) or 1
    rows = [
        (dp_rank, thread, stage, thread // kinds, tensor_rank)
        for (dp_rank, thread), (stage, tensor_rank, _) in columns.threads.items()
    ]
    schema = ("dp_rank", "thread", "stage", "rank", "tensor_rank")
    threads = pl.DataFrame(rows, schema=dict.fromkeys(schema, pl.Int64), orient="row")
    place = ("stage", "dp_rank", "tensor_rank")
    ranks = threads.select(*place, "rank").unique()
    if ranks["rank"].is_duplicated().any() or ranks.select(place).is_duplicated().any():
        threads = threads.with_columns(pl.struct(place).rank("dense").cast(pl.Int64).alias("rank"))
    operations = operations.join(threads, on=["dp_rank", "thread"], how="left").select(*OPERATIONS)
    return _trace(
        operations, TraceMeta(format="job-timeline", **extent(columns, source, end)), ledger
    )


def _columns(events: list[Event]) -> Columns:
    columns = Columns(events=len(events))
    complete = [event for event in events if event.ph == "X"]
    if complete:
        args = [event.args if isinstance(event.args, dict) else {} for event in complete]
        numbers = {
            "step": [_number(arg.get("step")) for arg in args],
            "sequence": [_number(arg.get("seq_id")) for arg in args],
            "micro_batch": [_number(arg.get("mb_id")) for arg in args],
            "model_chunk": [_number(arg.get("model_chunk")) for arg in args],
        }
        frame = pl.DataFrame(
            {
                "thread": [_number(event.tid) for event in complete],
                "name": [event.name if isinstance(event.name, str) else None for event in complete],
                "rank": None,
                "dp_rank": [_number(event.pid) for event in complete],
                "stage": None,
                **numbers,
                "start": to_nanoseconds([event.ts for event in complete]),
                "duration": to_nanoseconds([event.dur for event in complete]),
            },
            schema={"thread": pl.Int64, **OPERATIONS},
        )
        columns.operations.append(frame)
    for event in events:
        if event.ph == "M" and event.name == "thread_name" and isinstance(event.args, dict):
            name = event.args.get("name")
            match = _THREAD.fullmatch(name) if isinstance(name, str) else None
            process, thread = _number(event.pid), _number(event.tid)
            if match and process is not None and thread is not None:
                columns.threads[process, thread] = int(match[1]), int(match[2]), match[3]
        if event.ph != "X":
            reason = _LEFT_OUT.get(event.ph)
            columns.count(reason or "unknown_category", "" if reason else event.ph, 1)
    return columns


def _number(value: Any) -> int | None:
    return value if type(value) is int and abs(value) < FARTHEST_NS else None


def _trace(operations: pl.DataFrame, meta: TraceMeta, ledger: Ledger) -> Trace:
    """Return the Trace of ``operations``, in the columns :data:`OPERATIONS`."""
    sound = pl.all_horizontal(
        pl.col("name", "step").is_not_null(), pl.col(_REQUIRED).is_between(0, _LARGEST)
    ).fill_null(value=False)
    kept = operations.filter(sound)
    detail = "without a type, rank, stage, step or sequence number"
    ledger.add("malformed", operations.height - kept.height, table="activities", detail=detail)
    late = pl.col("duration").is_between(-_CLOCK_ERROR_NS, -1)
    clamped = int(kept.select(late.sum()).item() or 0)
    detail = "end before they start, by the clock's error: duration 0"
    ledger.add("lost_field", clamped, table="activities", kept=True, detail=detail)
    kept = kept.with_columns(pl.when(late).then(0).otherwise("duration").alias("duration"))
    if kept.is_empty():
        raise NotATraceError(f"{meta.source} has no operation of a job: check its export")
    kept = screen(_end_to_end(kept), "activities", ledger, zero_is_lost=False)
    number = pl.col("micro_batch", "model_chunk")
    names = NameTable(ledger)
    kept = kept.with_columns(
        pl.when(number.is_between(0, _LARGEST)).then(number).name.keep(),
        names.ids(kept["name"]).alias("name_id"),
    )
    activities, groups = _with_groups(kept)
    steps = (
        kept.group_by("step")
        .agg(pl.col("start").min(), (pl.col("start") + pl.col("duration")).max().alias("end"))
        .join(kept.select(pl.col("rank").unique()), how="cross")
        .sort("rank", "start")
        .select(
            pl.format("step {}", "step").alias("text"),
            pl.lit("step").alias("kind"),
            pl.col("rank").alias("process"),
            pl.lit(0, pl.Int64).alias("thread"),
            "start",
            (pl.col("end") - pl.col("start")).alias("duration"),
            "rank",
        )
    )
    frames = {"activities": activities, "ranges": steps}
    tables, _ = rebase(frames, ledger)
    described = ("stage", "dp_rank", "step", "sequence", "micro_batch", "model_chunk")
    rows = tables["activities"].with_row_index("activity")
    tables["operations"] = rows.select("activity", *described)
    tables["activities"] = rows.drop("activity", "name", *described)
    tables["process_groups"] = groups
    tables["names"] = names.frame()
    tables["ledger"] = ledger.frame()
    read_as = "operations of a job's ranks"
    properties = {"read_as": read_as, "stages": kept["stage"].n_unique()}
    ranks = kept["rank"].n_unique()
    # Of ranks that share their data the table has one.
    world_size = ranks if kept["rank"].max() == ranks - 1 else None
    return Trace(
        msgspec.structs.replace(meta, world_size=world_size, properties=properties), Tables(tables)
    )


def _end_to_end(operations: pl.DataFrame) -> pl.DataFrame:
    """Return ``operations`` with steps one after the other, where starts begin anew in each."""
    end = pl.col("start") + pl.col("duration")
    steps = operations.group_by("step").agg(pl.col("start").min(), end.max().alias("end"))
    first = pl.col("start").max() - pl.col("start").min()
    length = pl.col("end") - pl.col("start")
    if steps.height < 2 or not steps.select(first < length.max()).item():
        return operations
    before = length.cum_sum().shift(1, fill_value=0) - pl.col("start")
    shifts = steps.sort("step").select("step", before.alias("before"))
    return (
        operations.join(shifts, on="step", how="left", maintain_order="left")
        .with_columns(pl.col("start") + pl.col("before"))
        .drop("before")
    )


def _with_groups(operations: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return ``activities`` of ``operations``, with columns of these, and ``process_groups``."""
    name, stages = pl.col("name"), int(operations["stage"].n_unique())
    collective = description = pl.lit(None, pl.String)
    for pattern, kind, group in reversed(_COLLECTIVES):
        matches = name.str.contains(pattern)
        collective = pl.when(matches).then(pl.lit(kind)).otherwise(collective)
        description = pl.when(matches).then(pl.lit(group, pl.String)).otherwise(description)
    ranks = operations.select("rank", "dp_rank", "stage").unique("rank").sort("rank")
    is_end = pl.col("stage").is_in([0, ranks["stage"].max()])
    members = pl.col("rank").sort_by("stage", "dp_rank")
    groups = pl.concat(
        ranks.filter(part)
        .with_columns(pl.lit(described).alias("description"), key.cast(pl.String).alias("key"))
        .with_columns(members.implode().over("key").alias("members"))
        for described, part, key in (
            ("pipeline_parallel", pl.lit(value=True), pl.col("dp_rank")),
            ("embedding", is_end, pl.col("dp_rank")),
            ("data_parallel", pl.lit(value=True), pl.col("stage")),
            ("default_pg", pl.lit(value=True), pl.lit(0)),
        )
    ).filter(pl.col("members").list.len() > 1)
    # The members of the group of all would be listed once for each of them.
    listed = pl.when(pl.col("description") != "default_pg").then(
        pl.format("[{}]", pl.col("members").cast(pl.List(pl.String)).list.join(", "))
    )
    table = groups.select(
        pl.format("{} {}", "description", "key").alias("name"),
        "description",
        listed.alias("ranks"),
        pl.col("members").list.len().alias("size"),
        "rank",
    )
    row_of_group = groups.select(
        "rank", "description", pl.col("members").list.len().alias("group_size")
    ).with_row_index("process_group")
    neighbour = (pl.col("stage") + name.replace_strict(_NEIGHBOUR, default=None)) % max(stages, 1)
    peers = ranks.unique(["dp_rank", "stage"]).select(
        "dp_rank", "stage", pl.col("rank").alias("peer")
    )
    stream = (
        pl.when(collective.is_null())
        .then(pl.lit("compute"))
        .when(description == "pipeline_parallel")
        .then(name)
        .otherwise(pl.lit("collectives"))
    )
    activities = (
        operations.with_columns(
            collective.alias("collective"),
            description.alias("description"),
            neighbour.alias("neighbour"),
            stream.rank("dense").cast(pl.Int64).alias("stream"),
        )
        .join(row_of_group, on=["rank", "description"], how="left", maintain_order="left")
        .join(
            peers,
            left_on=["dp_rank", "neighbour"],
            right_on=["dp_rank", "stage"],
            how="left",
            maintain_order="left",
        )
        .with_columns(
            pl.when(pl.col("collective") == "send_recv")
            .then(name.str.extract("(send|recv)"))
            .otherwise("collective")
            .alias("collective"),
            # The same number on all ranks of a group.
            pl.when(pl.col("collective").is_not_null())
            .then(pl.struct("step", "name", "sequence").rank("dense").cast(pl.Int64))
            .alias("collective_sequence"),
            pl.lit("kernel").alias("kind"),
            pl.col("rank").alias("process"),
            pl.lit(0, pl.Int64).alias("device"),
        )
        .drop("description", "neighbour")
    )
    return activities, table

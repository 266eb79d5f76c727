"""What the operations of a training job wait for: the dependencies of one step of one replica.

Work of a stage runs in its order. A pass waits for its receive, and a send for its pass; a receive
is posted once the pass before is over. Sends and receives of a kind run in their order. The first
forward pass of a model chunk waits for its parameters, the reduction of gradients for the last
backward pass, and the optimizer for the norm of all gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from traceana.columns.nesting import Flags, Ints
from traceana.trace import per_small_trace

if TYPE_CHECKING:
    from traceana.trace import Trace

OPERATIONS: Final = {
    "name": pl.String,
    "collective": pl.String,
    "stage": pl.Int32,
    "dp_rank": pl.Int32,
    "step": pl.Int64,
    "sequence": pl.Int64,
    "micro_batch": pl.Int32,
    "model_chunk": pl.Int32,
    "start_ns": pl.Int64,
    "time_ns": pl.Int64,
}
"""The columns of a rank's operations: those of the table, the name, the collective, the times."""
PASSES: Final = ("forward-compute", "backward-compute")
GATHER, SCATTER, SEPARATE = (
    "params-all-gather",
    "grads-reduce-scatter",
    "separate-grads-all-reduce",
)
EMBEDDING: Final = "embedding-grads-all-reduce"
CLIP: Final = "optimizer-clip-main-grad"
_TAIL: Final = (
    *("gc", "layernorm-grads-all-reduce", EMBEDDING, SCATTER, SEPARATE, CLIP),
    "optimizer",
)
"""The end of a step, in order; those of gradients may overlap with the backward pass."""
_CLOCK_NS: Final = 50_000
"""Clocks of work and of communication differ by less."""
_ID: Final = ("stage", "lane", "name", "sequence")


class Placed(msgspec.Struct, frozen=True):
    """The operations of a job, placed in the graph that all its replicas and steps have in common.

    ``template`` has a row for each place: an operation of one step of the first replica. ``rows``
    are all operations with their ``place``. ``edges`` are the distinct ``source`` and ``target``
    places of operations that wait for others; those of a meeting begin together, ``across`` all
    replicas or in each.
    """

    template: pl.DataFrame
    rows: pl.DataFrame
    edges: pl.DataFrame
    meetings: list[Ints]
    across: Flags


def placed(operations: pl.DataFrame) -> Placed:
    """Return the places of ``operations``, which have ``rank`` and the columns :data:`OPERATIONS`.

    The graph is that of the first step with as many operations as most steps have. Operations that
    it lacks have no row.
    """
    # Of several ranks of a stage and data-parallel rank, such as tensor-parallel ones, each is a
    # lane of its own.
    lane = pl.col("rank").rank("dense").over("stage", "dp_rank").cast(pl.Int64) - 1
    rows = operations.with_columns(lane.alias("lane")).unique(
        ["rank", "step", "name", "sequence"], keep="first", maintain_order=True
    )
    first = rows.filter(dp_rank=rows["dp_rank"].min())
    sizes = first.group_by("step").len().sort("step")
    usual = sizes.filter(len=sizes["len"].mode().max())["step"][0]
    template = first.filter(step=usual).sort(*_ID).with_row_index("place")
    template = template.with_columns(pl.col("place").cast(pl.Int64))
    rows = rows.join(template.select(*_ID, "place"), on=_ID, how="inner", maintain_order="left")
    return Placed(template, rows, _edges(template), *_meetings(template))


def operations_of(trace: Trace) -> pl.DataFrame:
    """Return the rows of the table of operations with ``activity``, ``rank`` and the columns
    :data:`OPERATIONS`."""
    activities = trace.tables.activities.with_row_index("activity").select(
        *("activity", "rank"),
        trace.tables.names["name"].gather(trace.tables.activities["name_id"]).alias("name"),
        pl.col("collective").cast(pl.String),
        pl.col("start").alias("start_ns"),
        pl.col("duration").alias("time_ns"),
    )
    rows = trace.tables.operations.join(activities, on="activity", maintain_order="left")
    return rows.select("activity", "rank", *OPERATIONS)


@per_small_trace
def dependencies(trace: Trace) -> pl.DataFrame:
    """Return ``waiting`` and ``awaited``: activities of operations, and those that they wait for on
    their rank."""
    if trace.tables.operations.is_empty():
        return pl.DataFrame(schema={"waiting": pl.UInt32, "awaited": pl.UInt32})
    graph = placed(operations_of(trace))
    key = ["rank", "step"]
    rows = graph.rows.select("activity", "place", *key)
    return (
        graph.edges.join(rows.rename({"activity": "awaited"}), left_on="source", right_on="place")
        .join(
            rows.rename({"activity": "waiting"}),
            left_on=["target", *key],
            right_on=["place", *key],
        )
        .select("waiting", "awaited")
    )


def _edges(template: pl.DataFrame) -> pl.DataFrame:
    """Return the distinct ``source`` and ``target`` places of operations that wait for others."""
    stage = ["stage", "lane"]
    end = pl.col("start_ns") + pl.col("time_ns")
    name = pl.col("name")
    template = template.with_columns(end.alias("end")).sort("start_ns", "sequence", "name")
    in_tail = name.is_in(_TAIL)
    work = template.filter(pl.col("collective").is_null(), ~in_tail)
    overlapped = (template["name"] == SEPARATE).any()
    passes = _passes(template)
    edges = [
        _chain(work, stage),
        _chain(template.filter(pl.col("name").is_in([GATHER, SCATTER])), stage),
    ]
    messages = _messages(template)
    edges.append(_chain(messages, [*stage, "name"]))
    of_pass = [*stage, "direction", "nth"]
    matched = messages.join(passes.rename({"place": "pass"}), on=of_pass, how="inner")
    sends = matched.filter("sends")
    receives = matched.filter(~pl.col("sends"))
    edges += [
        _pairs(sends, "pass", "place"),
        _pairs(receives, "place", "pass"),
        # A receive is posted once the pass of its kind before is over.
        _pairs(
            receives.select(*stage, "direction", pl.col("nth") - 1, "place").join(
                passes.rename({"place": "pass"}), on=of_pass
            ),
            "pass",
            "place",
        ),
    ]
    # The first send and receive of the backward pass are posted before the last forward pass of
    # the warm-up.
    is_backward = name == PASSES[1]
    first_backward = work.with_columns(
        *(
            pl.col(column).shift(shift).over(stage).alias(f"{column}_{shift}")
            for column in ("name", "place")
            for shift in (1, 2)
        ),
        (is_backward.cum_sum() == 1).over(stage).alias("first"),
    ).filter(is_backward, "first", pl.all_horizontal(pl.col("name_1", "name_2") == PASSES[0]))
    backward_messages = messages.filter(pl.col("direction") == "backward").sort("sequence")
    first_messages = backward_messages.unique([*stage, "name"], keep="first", maintain_order=True)
    edges.append(
        _pairs(first_messages.join(first_backward, on=stage, suffix="_b"), "place_2", "place")
    )
    chunk = [*stage, "model_chunk"]
    gathers = (
        template.filter(name == GATHER)
        .sort("sequence")
        .unique(chunk, keep="last", maintain_order=True)
    )
    first_forward = work.filter(name == PASSES[0]).unique(chunk, keep="first", maintain_order=True)
    edges.append(_pairs(gathers.join(first_forward, on=chunk, suffix="_c"), "place", "place_c"))
    last = work.filter(name.is_in(PASSES)).sort("end")
    tail = template.filter(in_tail)
    if overlapped:
        scatters = tail.filter(name == SCATTER).sort("sequence")
        of_chunk = scatters.unique(chunk, keep="first", maintain_order=True)
        last_backward = last.filter(is_backward).unique(chunk, keep="last", maintain_order=True)
        edges.append(
            _pairs(of_chunk.join(last_backward, on=chunk, suffix="_c"), "place_c", "place")
        )
        tail = tail.filter(name != SCATTER)
        after = tail.filter(name.is_in(_TAIL[1:])).with_columns(_TAIL_ORDER).sort("order")
        after = after.unique(stage, keep="first", maintain_order=True)
        edges.append(
            _pairs(
                scatters.unique(stage, keep="last", maintain_order=True).join(
                    after, on=stage, suffix="_c"
                ),
                "place",
                "place_c",
            )
        )
    ending = pl.concat([last.unique(stage, keep="last", maintain_order=True), tail])
    ending = ending.with_columns(_TAIL_ORDER).sort("order", "sequence")
    edges.append(_chain(ending, stage))
    return pl.concat(edges).unique().filter(pl.col("source") != pl.col("target"))


_TAIL_ORDER: Final = (
    pl.col("name")
    .replace_strict({name: number for number, name in enumerate(_TAIL)}, default=-1)
    .alias("order")
)


def _chain(rows: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Return the edges between consecutive ``rows`` of equal ``keys``."""
    before = pl.col("place").shift(1).over(keys)
    return _pairs(rows.with_columns(before.alias("before")).drop_nulls("before"), "before", "place")


def _pairs(rows: pl.DataFrame, source: str, target: str) -> pl.DataFrame:
    return rows.select(pl.col(source).alias("source"), pl.col(target).alias("target"))


def _passes(template: pl.DataFrame) -> pl.DataFrame:
    """Return ``place`` of each pass, its ``direction`` and number (``nth``) among these."""
    return (
        template.filter(pl.col("name").is_in(PASSES))
        .sort("sequence")
        .select(
            *("stage", "lane", "place", "model_chunk", "start_ns", "end"),
            pl.col("name").str.strip_suffix("-compute").alias("direction"),
            pl.int_range(pl.len()).over("stage", "lane", "name").alias("nth"),
        )
    )


def _messages(template: pl.DataFrame) -> pl.DataFrame:
    """Return the sends and receives of ``template``, those of passes with the number of the pass.

    Columns: those of ``template``, ``direction``, ``sends``, ``nth`` (null of an operation that the
    profiler recorded at an end of the pipeline, without a message), ``peer`` (the other stage) and
    ``number`` among the messages of its kind and stage; null where the pass has no other stage.
    """
    stages, chunks = template.select(pl.col("stage", "model_chunk").max().fill_null(0) + 1).row(0)
    template = template.with_columns((pl.col("start_ns") + pl.col("time_ns")).alias("end"))
    kind = pl.col("name").str.extract_groups("^(forward|backward)-(send|recv)$")
    passes = _passes(template)
    ends = passes.group_by("stage", "lane", "direction").agg(
        pl.col("start_ns").max().alias("last_start"),
        pl.col("end").min().alias("first_end"),
        pl.len().alias("passes"),
    )
    of_kind = ["stage", "lane", "name"]
    messages = (
        template.with_columns(
            kind.struct["1"].alias("direction"), (kind.struct["2"] == "send").alias("sends")
        )
        .drop_nulls("direction")
        .join(ends, on=["stage", "lane", "direction"], how="left", maintain_order="left")
        .sort("start_ns", "sequence", "name")
    )
    # With several chunks a rank records messages before its first pass and after its last.
    real = (
        pl.when("sends")
        .then(pl.col("end") >= pl.col("first_end") - _CLOCK_NS)
        .otherwise(pl.col("start_ns") <= pl.col("last_start") + _CLOCK_NS)
    )
    number = real.cast(pl.Int64).cum_sum().over(of_kind) - 1
    # The first receive of the first stage can be missing.
    missing = ~pl.col("sends") & (real.sum().over(of_kind) == pl.col("passes").cast(pl.Int64) - 1)
    messages = messages.with_columns(
        pl.when(real).then(number + missing.cast(pl.Int64)).alias("nth")
    ).join(
        passes.select("stage", "lane", "direction", "nth", pl.col("model_chunk").alias("chunk")),
        on=["stage", "lane", "direction", "nth"],
        how="left",
        maintain_order="left",
    )
    part = pl.col("chunk").fill_null(0) * stages + pl.col("stage")
    step = pl.when(pl.col("direction") == "forward").then(1).otherwise(-1)
    step = pl.when("sends").then(step).otherwise(-step)
    has_peer = (part + step).is_between(0, stages * chunks - 1) & pl.col("nth").is_not_null()
    return messages.with_columns(
        pl.when(has_peer).then((pl.col("stage") + step) % stages).alias("peer"),
        pl.when(has_peer).then(has_peer.cast(pl.Int64).cum_sum().over(of_kind)).alias("number"),
    )


def _meetings(template: pl.DataFrame) -> tuple[list[Ints], Flags]:
    """Return the places that begin together, and which of these meetings are of all replicas."""
    messages = _messages(template).drop_nulls("number")
    sends = messages.filter("sends")
    pairs = sends.join(
        messages.filter(~pl.col("sends")),
        left_on=["lane", "direction", "stage", "peer", "number"],
        right_on=["lane", "direction", "peer", "stage", "number"],
        suffix="_peer",
    ).unique("place_peer", keep="first", maintain_order=True)
    meetings = [
        np.array(pair, dtype=np.int64) for pair in pairs.select("place", "place_peer").rows()
    ]
    across = [False] * len(meetings)
    ends = template.filter(pl.col("name") == EMBEDDING)
    both = [
        *((part, False) for part in ends.partition_by("lane", "sequence", maintain_order=True)),
        *(
            (part, True)
            for part in template.filter(pl.col("name") == CLIP).partition_by(
                "sequence", maintain_order=True
            )
        ),
        *(
            (part, True)
            for part in template.filter(
                pl.col("name").is_in([GATHER, SCATTER, SEPARATE])
            ).partition_by("stage", "name", "sequence", maintain_order=True)
        ),
    ]
    for part, of_all in both:
        meetings.append(part["place"].to_numpy())
        across.append(of_all)
    return meetings, np.array(across, dtype=np.bool_)

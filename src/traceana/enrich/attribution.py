"""The attribution pass: the call, operator, range, layer, step and direction of each activity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from traceana.columns.distinct import Texts, thread_numbers
from traceana.columns.nesting import (
    NONE,
    Flags,
    Ints,
    Nesting,
    from_rows,
    take,
    to_rows,
)
from traceana.enrich.cpu import operator_activities, range_activities
from traceana.enrich.launches import (
    launches_of,
    launches_with_work,
    steps_of_lost_launches,
    with_calls,
    with_complete,
)
from traceana.enrich.layers.from_scopes import ScopeLayers
from traceana.enrich.layers.layer_intervals import DEEPEST_PATH, Layer
from traceana.enrich.layers.repetition import Repetitions
from traceana.enrich.layers.resolve import LayerResolution, layer_table, merge_like, resolve
from traceana.enrich.layers.roles import MULTI_TENSOR, OPTIMIZER
from traceana.enrich.operators import forward_of, from_nvtx, with_nesting
from traceana.enrich.ranges import ThreadRanges
from traceana.enrich.steps import (
    as_steps,
    marked_by,
    step_of,
    steps,
    whole_steps_within,
    without_cut_step,
)
from traceana.trace import Ledger, Trace
from traceana.trace.schema import CPU_DEVICE, DEVICE_WORK, Direction, conform, join_pieces

if TYPE_CHECKING:
    from traceana.enrich import Code

_NOT_IN_ORDER: Final = 1 << 60
"""Added to the times of work outside of complete steps: its layers come after theirs."""


def attribute(
    trace: Trace,
    step_marker: str | None = None,
    *,
    of_device: bool = False,
    code: Code | None = None,
) -> Trace:
    """Return ``trace`` with the attribution columns of its activities filled in.

    ``step_marker`` names the ranges that are steps: :func:`traceana.enrich.steps.marked_by`,
    whose errors it raises. ``code`` returns the graphs of Inductor's generated code.

    Also filled in: ``steps`` and ``layers``; parent, depth, direction and layer of ``ops``; parent
    and depth of ``ranges``; operators that only NVTX ranges record. Activities keep their order and
    number. On a trace without device work, the host's operators become the activities, or its
    ranges where it has no operators (:mod:`traceana.enrich.cpu`), unless ``of_device``.
    """
    ledger = Ledger()
    activities, names, devices = trace.tables.activities, trace.tables.names, trace.tables.devices
    activities = with_calls(activities, trace.tables.calls, ledger)
    step_table = steps(trace, activities, step_marker)
    if step_marker is not None:
        trace = trace.with_tables(ranges=as_steps(trace, step_marker))
    derived = conform("ops", from_nvtx(trace.tables.ranges))
    trace = trace.with_tables(ops=pl.concat([trace.tables.ops, derived]))
    if step_marker is None:
        step_table = without_cut_step(trace, step_table, ledger)
    launches = launches_with_work(trace.tables.calls, activities)
    step_table = with_complete(step_table, launches)
    host = _Host.of(trace, step_table, ledger, code)
    on_device = of_device or activities["kind"].is_in(DEVICE_WORK).any()
    if not on_device and (host_work := host.work()):
        activities, names = host_work
        ledger.add("no_device_work", launches_of(trace.tables.calls), table="activities")
        devices = pl.concat([conform("devices", pl.DataFrame({"device": [CPU_DEVICE]})), devices])
    elif on_device:
        ledger.add("no_work", int(launches["lost"].sum()), table="calls", kept=True)
    activities, layers, layer_rows = _attributed(
        activities, names, trace.tables.calls, host, ledger
    )
    join_pieces(activities)
    layer_of_op = to_rows(take(layer_rows, host.layers.of_op))
    return trace.with_tables(
        activities=activities,
        names=conform("names", names),
        devices=devices,
        ops=host.ops.with_columns(layer_of_op.alias("layer")),
        ranges=host.ranges,
        steps=host.steps,
        layers=conform("layers", layers),
        graph_calls=host.layers.graph_calls(layer_rows),
        ledger=pl.concat([trace.tables.ledger, ledger.frame()]),
    )


class _Host(msgspec.Struct, frozen=True):
    """The operators, ranges, calls and steps of the host, indexed by thread and time."""

    ops: pl.DataFrame
    op_key: Ints
    op_nesting: Nesting
    ranges: pl.DataFrame
    range_key: Ints
    thread_ranges: ThreadRanges
    call_key: Ints
    captured_key: Ints
    """Of the activities with a ``capture_time``, in order."""
    steps: pl.DataFrame
    scopes: ScopeLayers
    layers: LayerResolution

    @classmethod
    def of(cls, trace: Trace, step_table: pl.DataFrame, ledger: Ledger, code: Code | None) -> _Host:
        ops = trace.tables.ops
        nodes = trace.tables.activities.filter(pl.col("capture_time").is_not_null())
        nodes = nodes.select("process", pl.col("capture_thread").alias("thread"))
        op_key, range_key, call_key, captured_key = thread_numbers(
            ops, trace.tables.ranges, trace.tables.calls, nodes
        )
        op_nesting = Nesting.of(op_key, ops["start"].to_numpy(), ops["duration"].to_numpy())
        op_names = Texts.of(ops["name"])
        scopes = ScopeLayers.of(ops, trace.tables.activities)
        ops = conform("ops", with_nesting(ops, op_names, op_nesting))
        ops = ops.with_columns(scopes.direction_of_ops(ops))
        ops = ops.with_columns(_with_that_around(ops, op_nesting))
        thread_ranges = ThreadRanges.of(trace.tables.ranges, range_key)
        deep = int((thread_ranges.nesting.depth >= DEEPEST_PATH).sum())
        within = _within_steps(trace.tables.ranges, step_table, ledger)
        op_step = step_of(step_table, ops["process"], ops["start"])
        layers = resolve(
            ops,
            op_names,
            op_key,
            op_nesting,
            op_step,
            forward_of(ops, op_names, op_nesting, trace.tables.links, op_step),
            trace.tables.ranges.filter(within),
            range_key[within],
            scopes,
            _copying(trace.tables.calls, call_key, op_nesting),
            compiled=trace.meta.framework == "JAX",
            code=code,
        )
        ledger.add("deep_range", deep + layers.too_long, table="ranges", kept=True)
        return cls(
            ops,
            op_key,
            op_nesting,
            thread_ranges.nested(trace.tables.ranges),
            range_key,
            thread_ranges,
            call_key,
            captured_key,
            step_table,
            scopes,
            layers,
        )

    def work(self) -> tuple[pl.DataFrame, pl.DataFrame] | None:
        """Return (activities, names) of the host's work, or None without operators and ranges."""
        if self.ops.height:
            found, names = operator_activities(self.ops, self.op_nesting)
            return conform("activities", found), names
        rows = self.thread_ranges.row
        if len(rows):
            found, names = range_activities(self.ranges[rows], self.thread_ranges.nesting)
            in_ranges = pl.Series(rows, dtype=pl.UInt32).gather(found["range"])
            return conform("activities", found.with_columns(in_ranges.alias("range"))), names
        return None


def _copying(calls: pl.DataFrame, call_key: Ints, op_nesting: Nesting) -> Ints | None:
    """Return the operators that called for a copy or a memset, None in a trace without calls."""
    if calls.is_empty():
        return None
    rows = np.flatnonzero(Texts.of(calls["name"]).matching(r"(?i)mem(?:cpy|set)"))
    found: Ints = op_nesting.innermost(call_key[rows], calls["start"].to_numpy()[rows])
    return np.unique(found[found != NONE])


def _within_steps(ranges: pl.DataFrame, step_table: pl.DataFrame, ledger: Ledger) -> Flags:
    """Return which ranges can be layers: those that contain no whole step.

    A range that begins within a step and contains later steps was never closed (a push without
    its pop) and is counted in ``ledger``. Ranges around all of training begin before the first
    step.
    """
    holds = whole_steps_within(step_table, ranges) > 0
    by_program = ranges["kind"].is_in(["annotation", "nvtx"]).to_numpy()
    around = ranges.filter(holds & by_program)
    at = step_of(step_table, around["process"], around["start"])
    begins = step_table["start"].gather(to_rows(at))
    unclosed = around.filter((pl.lit(begins) < pl.col("start")).fill_null(False))
    ledger.add(
        "unclosed",
        unclosed.height,
        table="ranges",
        kept=True,
        time_ns=int(unclosed["duration"].sum()),
        detail=", ".join(unclosed["text"].cast(pl.String).unique().sort().head(3)) or None,
    )
    within: Flags = ~(holds & by_program)
    return within


def _attributed(
    activities: pl.DataFrame, names: pl.DataFrame, calls: pl.DataFrame, host: _Host, ledger: Ledger
) -> tuple[pl.DataFrame, pl.DataFrame, Ints]:
    """Return the activities with operator, range, layer, step and direction, the layers, and the
    row of each of the host's layers in them."""
    launched_on, launched = _cause(activities, calls, host)
    key, time = _captured(activities, host, launched_on, launched)
    known = from_rows(activities["op"])
    op = np.where(known == NONE, host.op_nesting.innermost(key, time), known)
    layer = host.layers.of_scope(activities["scope"])
    around = np.where(op == NONE, host.layers.at(key, time), take(host.layers.of_op, op))
    layer = np.where(layer == NONE, around, layer)
    layer = host.layers.with_generated(layer, known, time)
    layers = [*host.layers.layers, OPTIMIZER]
    lost = activities["call"].is_null() & activities["kind"].is_in(DEVICE_WORK) & bool(calls.height)
    updates = names["name"].cast(pl.String).str.contains(MULTI_TENSOR)
    applied = updates.gather(activities["name_id"]).fill_null(value=False) & ~lost
    applied &= pl.Series((op == NONE) & (layer == NONE))
    layer = np.where(applied, len(layers) - 1, layer)
    direction = _direction(activities, host, layers, layer, op, key, time)
    when = np.where(launched_on == NONE, activities["start"].to_numpy(), launched)
    step = step_of(host.steps, activities["process"], pl.Series(when))
    if lost.any():
        step = steps_of_lost_launches(activities, step)
    layer, direction = _by_repetition(activities, layers, layer, direction, ledger)
    backward = (direction == "backward").fill_null(False).to_numpy()
    # The order of the layers is that of steps whose launches are recorded.
    complete = np.append(host.steps["complete"].fill_null(value=True).to_numpy(), [False])
    first = np.where(complete[step], when, when + _NOT_IN_ORDER) if complete.any() else when
    table, layer_row, rows = layer_table(layers, layer, first, lost.to_numpy(), backward)
    return (
        activities.with_columns(
            to_rows(op).alias("op"),
            to_rows(host.thread_ranges.innermost(key, time)).alias("range"),
            to_rows(layer_row).alias("layer"),
            to_rows(step).alias("step"),
            direction.alias("direction"),
        ),
        table,
        rows,
    )


def _with_that_around(ops: pl.DataFrame, nesting: Nesting) -> pl.Series:
    """Return the directions of ``ops``; an instruction without a scope has that of the nearest
    instruction with one around it, whose layer it has too.

    XLA's functions, bodies of loops and conditionals contain instructions of its own making.
    """
    direction = ops["direction"]
    lacking = direction.is_null() & ops["scope"].is_null() & ops["instruction"].is_not_null()
    if not lacking.any():
        return direction
    rows = np.arange(ops.height)
    around = nesting.inherit(np.where(ops["scope"].is_null().to_numpy(), NONE, rows))
    return direction.zip_with(~lacking, direction.gather(to_rows(around)))


def _direction(
    activities: pl.DataFrame,
    host: _Host,
    layers: list[Layer],
    layer: Ints,
    op: Ints,
    key: Ints,
    time: Ints,
) -> pl.Series:
    """Return the direction of each activity, from its layer's role, scope, operator or range."""
    # The last entry is that of NONE.
    updates = np.array([*(role == "optimizer" for _, _, role in layers), False])
    by_scope = host.scopes.direction_of(activities["scope"]).cast(Direction)
    by_op = host.ops["direction"].gather(to_rows(op))
    by_range = host.thread_ranges.direction_at(key, time)
    return pl.select(
        pl.when(pl.Series(updates[layer]))
        .then(pl.lit("optimizer", Direction))
        .otherwise(pl.coalesce(by_scope, by_op, by_range))
    ).to_series()


def _by_repetition(
    activities: pl.DataFrame,
    layers: list[Layer],
    layer: Ints,
    direction: pl.Series,
    ledger: Ledger,
) -> tuple[Ints, pl.Series]:
    """Return layer and direction, completed for work whose launch is not in the trace."""
    unknown = layer == NONE
    wanted = pl.Series(unknown) & activities["kind"].is_in(DEVICE_WORK)
    if unknown.all() or not wanted.any():
        return layer, direction
    code = direction.to_physical().cast(pl.Int64).fill_null(len(Direction.categories)).to_numpy()
    same_row, same_role = merge_like(layers)
    directed = np.where(unknown, NONE, same_row[layer] * (len(Direction.categories) + 1) + code)
    # Repetitions that differ in the layer may agree in the role, such as a collective.
    role = np.where(unknown, NONE, same_role[layer])
    source, of_role = Repetitions(activities).sources((directed, role), wanted)
    any_source = np.where(source == NONE, of_role, source)
    found = pl.Series(any_source != NONE)
    ledger.add(
        "by_repetition",
        int(found.sum()),
        table="activities",
        kept=True,
        time_ns=int(activities["duration"].filter(found).sum()),
    )
    return (
        np.where(any_source == NONE, layer, layer[any_source]),
        direction.zip_with(pl.Series(source == NONE), direction.gather(to_rows(source))),
    )


def _captured(activities: pl.DataFrame, host: _Host, key: Ints, time: Ints) -> tuple[Ints, Ints]:
    """Return (key, time) of each activity's launch, or of the capture of its graph's node."""
    captured = activities["capture_time"].is_not_null().to_numpy()
    if not captured.any():
        return key, time
    at_capture = key.copy(), time.copy()
    at_capture[0][captured] = host.captured_key
    at_capture[1][captured] = activities["capture_time"].to_numpy()[captured]
    return at_capture


def _cause(activities: pl.DataFrame, calls: pl.DataFrame, host: _Host) -> tuple[Ints, Ints]:
    """Return the thread and the time of each activity's launch; thread NONE where unknown.

    For work of the host they are its own thread and its start.
    """
    call, op, around = (from_rows(activities[column]) for column in ("call", "op", "range"))
    key = take(host.call_key, call)
    key = np.where(key == NONE, take(host.op_key, op), key)
    key = np.where(key == NONE, take(host.range_key, around), key)
    launched = take(calls["start"].to_numpy(), call)
    # An operator's activity includes dispatch before it, which may start before the range that
    # contains the operator.
    began = np.maximum(activities["start"].to_numpy(), take(host.ops["start"].to_numpy(), op))
    return key, np.where(call == NONE, began, launched)


def remarked(trace: Trace, marker: str) -> Trace:
    """Return an attributed ``trace`` with the steps of ``marker``: see
    :func:`traceana.enrich.steps.marked_by`.

    Its layers are unchanged. Raises its errors.
    """
    activities = trace.tables.activities
    ranks = activities["rank"].unique().sort()
    tables = [trace.tables.steps.clear()]
    step = np.full(activities.height, NONE, dtype=np.int64)
    when = pl.coalesce(trace.tables.calls["start"].gather(activities["call"]), activities["start"])
    time = activities.select(when.alias("time")).to_series()
    for rank in ranks if len(ranks) else [None]:
        of_rank = pl.col("rank").eq_missing(pl.lit(rank, pl.Int32))
        part = {name: trace.tables[name].filter(of_rank) for name in ("ranges", "ops")}
        rows = activities.select(of_rank.alias("own"))["own"]
        found = marked_by(trace.with_tables(**part), activities.filter(rows), marker)
        of_rank_work = activities.filter(rows)
        own = step_of(found, of_rank_work["process"], time.filter(rows))
        own = steps_of_lost_launches(of_rank_work, own)
        before = sum(table.height for table in tables)
        step[rows.to_numpy()] = np.where(own == NONE, NONE, own + before)
        tables.append(found.with_columns(pl.lit(rank, pl.Int32).alias("rank")))
    return trace.with_tables(
        steps=with_complete(pl.concat(tables), launches_with_work(trace.tables.calls, activities)),
        activities=activities.with_columns(to_rows(step).alias("step")),
    )

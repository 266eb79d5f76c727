"""The attribution pass: the call, operator, range, layer, step and direction of each activity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.columns.distinct import Texts, thread_numbers
from traceana.columns.nesting import NONE, Flags, Nesting, from_rows, take, to_rows
from traceana.enrich.cpu import operator_activities, range_activities
from traceana.enrich.launches import (
    launches_of,
    launches_with_work,
    steps_of_lost_launches,
    with_calls,
    with_complete,
)
from traceana.enrich.layers.from_scopes import ScopeLayers
from traceana.enrich.layers.resolve import (
    LaunchPoint,
    agreed_layers,
    layer_table,
    layers_of_work,
    resolve,
)
from traceana.enrich.layers.source import DEEPEST_PATH, Program
from traceana.enrich.operators import forward_of, from_nvtx, with_nesting
from traceana.enrich.ranges import ThreadRanges, records_frames, with_lines
from traceana.enrich.steps import (
    as_steps,
    marked_by,
    step_of,
    steps,
    whole_steps_within,
    without_cut_step,
)
from traceana.trace import Ledger, Trace
from traceana.trace.schema import CPU_DEVICE, DEVICE_WORK, conform, join_pieces

if TYPE_CHECKING:
    from traceana.enrich.layers.generated_code import Code

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
    trace = with_lines(trace)
    activities, names, devices = trace.tables.activities, trace.tables.names, trace.tables.devices
    calls, ranges = trace.tables.calls, trace.tables.ranges
    activities = with_calls(activities, calls, ledger)
    # A cut has the steps of its recording.
    is_cut = trace.tables.steps.height and step_marker is None
    step_table = trace.tables.steps if is_cut else steps(trace, activities, step_marker)
    if step_marker is not None:
        ranges = as_steps(trace, step_marker)
    ops = pl.concat([trace.tables.ops, conform("ops", from_nvtx(ranges))])
    trace = trace.with_tables(ops=ops, ranges=ranges)
    if step_marker is None and not is_cut:
        step_table = without_cut_step(trace, step_table, ledger)
    launches = launches_with_work(calls, activities)
    step_table = with_complete(step_table, launches)

    # The host's operators and ranges, by thread and time, and the layers of its operators.
    captured = activities["capture_time"].is_not_null()
    nodes = activities.filter(captured).select("process", thread="capture_thread")
    op_key, range_key, call_key, captured_key = thread_numbers(ops, ranges, calls, nodes)
    nesting = Nesting.of(op_key, ops["start"].to_numpy(), ops["duration"].to_numpy())
    op_names = Texts.of(ops["name"])
    scopes = ScopeLayers.of(ops, activities)
    ops = conform("ops", with_nesting(ops, op_names, nesting))
    ops = ops.with_columns(scopes.direction_of_ops(ops))
    ops = ops.with_columns(_directions_with_enclosing(ops, nesting))
    thread_ranges = ThreadRanges.of(ranges, range_key)
    within = _without_whole_step(ranges, step_table, ledger)
    op_step = step_of(step_table, ops["process"], ops["start"])
    copying = None
    if calls.height:
        copies = np.flatnonzero(Texts.of(calls["name"]).matching(r"(?i)mem(?:cpy|set)"))
        callers = nesting.innermost(call_key[copies], calls["start"].to_numpy()[copies])
        copying = np.unique(callers[callers != NONE])
    program = Program(
        ops,
        op_names,
        op_key,
        nesting,
        op_step,
        forward_of(ops, op_names, nesting, trace.tables.links, op_step),
        ranges.filter(within),
        range_key[within],
        copying,
    )
    resolved = resolve(program, scopes, code, compiled=trace.meta.framework == "JAX")
    forward = program.forward if resolved.compiled is None else resolved.compiled.forward
    if len(forward):
        ops = ops.with_columns(to_rows(forward).alias("forward"))
    too_deep = int((thread_ranges.nesting.depth >= DEEPEST_PATH).sum())
    ledger.add("deep_range", too_deep + resolved.too_long, table="ranges", kept=True)

    if of_device or activities["kind"].is_in(DEVICE_WORK).any():
        ledger.add("no_work", int(launches["lost"].sum()), table="calls", kept=True)
    elif ops.height or len(thread_ranges.row):
        if ops.height:
            host_activities, names = operator_activities(
                ops, nesting, ranges, trace.tables.instructions
            )
        else:
            rows = thread_ranges.row
            host_activities, names = range_activities(ranges[rows], thread_ranges.nesting)
            in_ranges = pl.Series(rows, dtype=pl.UInt32).gather(host_activities["range"])
            host_activities = host_activities.with_columns(in_ranges.alias("range"))
        activities = conform("activities", host_activities)
        ledger.add("no_device_work", launches_of(calls), table="activities")
        devices = pl.concat([conform("devices", pl.DataFrame({"device": [CPU_DEVICE]})), devices])

    # The thread and the time of each activity's launch, thread NONE where unknown; for work of the
    # host its own thread and its start. An operator's activity includes dispatch before it, which
    # may start before the range that contains the operator.
    call, recorded_op, recorded_range = (
        from_rows(activities[column]) for column in ("call", "op", "range")
    )
    launched_on = take(call_key, call)
    for keys, row in ((op_key, recorded_op), (range_key, recorded_range)):
        launched_on = np.where(launched_on == NONE, take(keys, row), launched_on)
    work_began = np.maximum(activities["start"].to_numpy(), take(program.start, recorded_op))
    launched = np.where(call == NONE, work_began, take(calls["start"].to_numpy(), call))
    key, time = launched_on, launched
    if captured.any():
        # The node of a graph has the layer of its capture.
        key, time = launched_on.copy(), launched.copy()
        node = activities["capture_time"].is_not_null().to_numpy()
        key[node], time[node] = captured_key, activities["capture_time"].to_numpy()[node]

    op = np.where(recorded_op == NONE, nesting.innermost(key, time), recorded_op)
    lost = activities["call"].is_null() & activities["kind"].is_in(DEVICE_WORK) & bool(calls.height)
    in_direction = thread_ranges.direction_at(key, time)
    at_launch = LaunchPoint(key, time, op, recorded_op, in_direction, lost.to_numpy())
    layers, layer, direction = layers_of_work(
        resolved, program, activities, names, at_launch, ledger
    )
    when = np.where(launched_on == NONE, activities["start"].to_numpy(), launched)
    step = step_of(step_table, activities["process"], pl.Series(when))
    if lost.any():
        step = steps_of_lost_launches(activities, step)
    layer, of_op = agreed_layers(program, resolved.of_op, layer, op)
    backward = (direction == "backward").fill_null(False).to_numpy()
    # The order of the layers is that of steps whose launches are recorded.
    complete = np.append(step_table["complete"].fill_null(value=True).to_numpy(), [False])
    first = np.where(complete[step], when, when + _NOT_IN_ORDER) if complete.any() else when
    table, layer_row, rows_of_layers = layer_table(
        layers, layer, first, activities["start"].to_numpy(), lost.to_numpy(), backward
    )
    activities = activities.with_columns(
        to_rows(op).alias("op"),
        to_rows(thread_ranges.innermost(key, time)).alias("range"),
        to_rows(layer_row).alias("layer"),
        to_rows(step).alias("step"),
        direction.alias("direction"),
    )
    join_pieces(activities)
    attributed = trace.with_tables(
        activities=activities,
        names=conform("names", names),
        devices=devices,
        ops=ops.with_columns(to_rows(take(rows_of_layers, of_op)).alias("layer")),
        ranges=thread_ranges.nested(ranges),
        steps=step_table,
        layers=conform("layers", table),
        graph_calls=resolved.graph_calls(rows_of_layers),
        ledger=pl.concat([trace.tables.ledger, ledger.frame()]),
    )
    if not records_frames(attributed.tables):
        return attributed
    # Few recordings have frames.
    from traceana.enrich.frames import with_frames

    return with_frames(attributed)


def _without_whole_step(ranges: pl.DataFrame, step_table: pl.DataFrame, ledger: Ledger) -> Flags:
    """Return which ranges can be layers: those that contain no whole step.

    A range that begins within a step and contains later steps was never closed (a push without
    its pop) and is counted in ``ledger``. Ranges around all of training begin before the first
    step.
    """
    holds = whole_steps_within(step_table, ranges) > 0
    by_program = ranges["kind"].is_in(["annotation", "nvtx"]).to_numpy()
    around = ranges.filter(holds & by_program)
    step = step_of(step_table, around["process"], around["start"])
    step_begins = step_table["start"].gather(to_rows(step))
    unclosed = around.filter((pl.lit(step_begins) < pl.col("start")).fill_null(False))
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


def _directions_with_enclosing(ops: pl.DataFrame, nesting: Nesting) -> pl.Series:
    """Return the directions of ``ops``; an instruction without a scope has that of the nearest
    instruction with one around it, whose layer it has too.

    XLA's functions, bodies of loops and conditionals contain instructions of its own making.
    """
    direction = ops["direction"]
    without_scope = direction.is_null() & ops["scope"].is_null() & ops["instruction"].is_not_null()
    if not without_scope.any():
        return direction
    rows = np.arange(ops.height)
    scoped_ancestor = nesting.inherit(np.where(ops["scope"].is_null().to_numpy(), NONE, rows))
    return direction.zip_with(~without_scope, direction.gather(to_rows(scoped_ancestor)))


def remarked(trace: Trace, marker: str) -> Trace:
    """Return an attributed ``trace`` with the steps of ``marker``: see
    :func:`traceana.enrich.steps.marked_by`.

    Its layers are unchanged. Raises its errors.
    """
    activities = trace.tables.activities
    ranks = activities["rank"].unique().sort()
    tables = [trace.tables.steps.clear()]
    step = np.full(activities.height, NONE, dtype=np.int64)
    launch_time = pl.coalesce(
        trace.tables.calls["start"].gather(activities["call"]), activities["start"]
    )
    time = activities.select(launch_time.alias("time")).to_series()
    for rank in ranks if len(ranks) else [None]:
        of_rank = pl.col("rank").eq_missing(pl.lit(rank, pl.Int32))
        part = {name: trace.tables[name].filter(of_rank) for name in ("ranges", "ops")}
        in_rank = activities.select(of_rank.alias("own"))["own"]
        step_table = marked_by(trace.with_tables(**part), activities.filter(in_rank), marker)
        of_rank_work = activities.filter(in_rank)
        step_of_work = step_of(step_table, of_rank_work["process"], time.filter(in_rank))
        step_of_work = steps_of_lost_launches(of_rank_work, step_of_work)
        steps_before = sum(table.height for table in tables)
        step[in_rank.to_numpy()] = np.where(step_of_work == NONE, NONE, step_of_work + steps_before)
        tables.append(step_table.with_columns(pl.lit(rank, pl.Int32).alias("rank")))
    return trace.with_tables(
        steps=with_complete(pl.concat(tables), launches_with_work(trace.tables.calls, activities)),
        activities=activities.with_columns(to_rows(step).alias("step")),
    )

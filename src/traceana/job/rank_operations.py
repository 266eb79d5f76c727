"""The operations of a rank: those of a job's table, else the time of each step by type of work.

A recording of a GPU has thousands of kernels in a step. For comparing ranks they are one operation
a pass, with the time of the host and the input beside them, and a transfer for each collective.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.columns.intervals import Busy
from traceana.job.replay import JobSteps, job_steps
from traceana.timeline import operations
from traceana.timeline.idle import idle
from traceana.timeline.idle_gaps import CAUSES, DATA_LOADER
from traceana.timeline.operations import OPERATIONS
from traceana.timeline.steps import device_windows
from traceana.timeline.work import work

if TYPE_CHECKING:
    from traceana.trace import Trace

_PASSES: Final = ("forward", "backward", "optimizer")
OTHER, INPUT, HOST = "other work", "input", "host"
_TYPES: Final = (INPUT, HOST, *_PASSES, OTHER)
_TRANSFER: Final = "collectives"


def operations_of(trace: Trace) -> pl.DataFrame:
    """Return the operations of ``trace``, of one rank, in the columns ``OPERATIONS``.

    Without a table of operations there is one for each step and type of work: the passes, other
    work, idle time while the input is awaited, other idle time; without stage and start.
    """
    if trace.tables.operations.is_empty():
        return _by_type(trace)
    return operations.operations_of(trace).select(*OPERATIONS)


def _by_type(trace: Trace) -> pl.DataFrame:
    windows = device_windows(trace)
    if windows.is_empty():
        return pl.DataFrame(schema=OPERATIONS)
    rows = work(trace.whole, "rank", "device", "start", "duration", "direction", "category").filter(
        pl.col("category").ne_missing("collective")
    )
    direction = rows["direction"].cast(pl.String)
    parts, busy, before = {}, Busy.of(rows.clear()), np.zeros(windows.height, dtype=np.int64)
    for name in _PASSES:
        busy = busy.with_also(rows.filter(direction == name))
        together = busy.within(windows).to_numpy()
        parts[name], before = together - before, together
    parts[OTHER] = Busy.of(rows).within(windows).to_numpy() - before
    steps = pl.Series("step", trace.tables.steps["number"].gather(windows["step"]))
    is_input = pl.col("cause").cast(pl.String) == CAUSES[DATA_LOADER]
    waiting = idle(trace, by="step").frame.select(
        "step",
        pl.when(is_input).then(pl.lit(INPUT)).otherwise(pl.lit(HOST)).alias("name"),
        "time_ns",
    )
    busy_time = pl.DataFrame({"step": steps, **parts}).unpivot(
        index="step", variable_name="name", value_name="time_ns"
    )
    # Devices of a process work at the same time.
    devices = pl.DataFrame({"step": steps}).group_by("step").len("devices")
    return (
        pl.concat([busy_time, waiting.select(busy_time.columns)])
        .group_by("step", "name")
        .agg(pl.col("time_ns").sum())
        .join(devices, on="step")
        .with_columns(pl.col("time_ns") // pl.col("devices"), pl.lit(0, pl.Int64).alias("sequence"))
        .sort("step", "name")
        .select(
            (pl.col(name) if name in _DESCRIBED else pl.lit(None)).cast(dtype).alias(name)
            for name, dtype in OPERATIONS.items()
        )
    )


_DESCRIBED: Final = ("name", "step", "sequence", "time_ns")


def steps_of_job(
    operations: pl.DataFrame, times: pl.DataFrame, exposed: pl.DataFrame, each: pl.DataFrame
) -> JobSteps | None:
    """Return the steps of a job, by its table of operations, else by its ranks' types of work.

    ``operations`` are those of all ranks (:func:`operations_of`, with ``rank``). ``times`` are the
    wall time and the waits of each rank in each step that is compared
    (:func:`traceana.job.stragglers.own_times`), ``exposed`` is its exposed communication, ``each``
    are the matched collectives. Without a table all ranks run the types of work in turn and meet in
    the collectives at the end of the step. None where that is not possible.
    """
    described = operations.drop_nulls("stage")
    if described.height:
        return job_steps(described)
    ranks, numbers = times["rank"].unique().sort(), times["step"].unique().sort()
    if len(ranks) < 2 or times.height != len(ranks) * len(numbers):
        return None
    key = ["rank", "step"]
    exposed_wait = pl.col("wall_ns") - pl.col("own_ns")
    transfer = times.join(exposed.select(*key, "exposed_communication_ns"), on=key).select(
        *key, (pl.col("exposed_communication_ns") - exposed_wait).alias("transfer_ns")
    )
    # The exposed transfers of a step, by collective as all of them are.
    by_kind = (
        each.group_by(*key, pl.col("collective").fill_null(_TRANSFER).alias("name"))
        .agg((pl.col("time_ns") - pl.col("wait_ns")).sum())
        .with_columns((pl.col("time_ns") / pl.col("time_ns").sum().over(key)).alias("share"))
        .filter(pl.col("share").is_finite())
    )
    transfers = (
        transfer.join(by_kind, on=key, how="left")
        .with_columns(pl.col("name").fill_null(_TRANSFER), pl.col("share").fill_null(1.0))
        .select(
            *key,
            "name",
            (pl.col("transfer_ns") * pl.col("share")).round().cast(pl.Int64).alias("time_ns"),
        )
    )
    kinds = transfers.filter(pl.col("time_ns") > 0)["name"].unique().sort().to_list()
    names = [*_TYPES, *(kinds or [_TRANSFER])]
    grid = (
        pl.DataFrame({"name": names})
        .with_row_index("place")
        .join(ranks.to_frame(), how="cross")
        .join(numbers.to_frame(), how="cross")
    )
    rows = pl.concat([operations.select(*key, "name", "time_ns"), transfers])
    time = (
        grid.join(rows, on=[*key, "name"], how="left")
        .sort("place", *key)["time_ns"]
        .fill_null(0)
        .to_numpy()
        .reshape(len(names), len(ranks), len(numbers))
    )
    places = pl.DataFrame(
        {"name": names, "stage": 0, "micro_batch": pl.Series([None] * len(names), dtype=pl.Int32)}
    ).with_columns(pl.Series("is_transfer", [name not in _TYPES for name in names]))
    walls = times.group_by("step").agg(pl.col("wall_ns").max()).sort("step")["wall_ns"]
    before = [np.array([place - 1] if place else [], dtype=np.int64) for place in range(len(names))]
    meetings = [np.array([place], dtype=np.int64) for place in range(len(_TYPES), len(names))]
    return JobSteps(
        places,
        before,
        meetings,
        np.ones(len(meetings), dtype=np.bool_),
        np.tile(ranks.to_numpy(), (len(names), 1)),
        ranks.to_numpy(),
        numbers.to_numpy(),
        time,
        walls.to_numpy(),
        has_launches=False,
    )

"""Time by layer: the rows add up to the work of the trace, to the nanosecond."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.classes import SOURCE, classified
from traceana.analyze.measured import added, measured_notes, measured_sums, with_rates
from traceana.analyze.result import Result, sums, with_share
from traceana.analyze.work import why_no_work, work
from traceana.trace.schema import Direction

if TYPE_CHECKING:
    from traceana.trace import Trace

KEYS: Final = ("layer", "type", "role", "position")
MEASURED: Final = ("measured", "measured_flops", "flops_per_s", "dram_bytes")
"""Of :data:`traceana.analyze.measured.COLUMNS`."""


def layers(trace: Trace) -> Result:
    """Return one row a layer, and one a role that is no layer (optimizer, data, collective ...).

    Columns: ``layer`` (its path, or in parentheses the role or why it is on no layer), ``type``, ``role``, ``position``
    (order of first execution), ``calls``, ``forward_ns``, ``backward_ns``, ``other_ns`` (of neither
    direction), ``time_ns`` (their sum), ``share`` of all work, ``algorithm`` (of its convolutions,
    most time first, comma-separated). Order of execution, roles last.
    """
    located = _located(trace)
    time, direction = pl.col("time_ns"), pl.col("direction")
    forward, backward = (time.filter(direction == d).sum() for d in ("forward", "backward"))
    frame = (
        located.group_by(KEYS)
        .agg(
            pl.col("calls").sum(),
            forward.alias("forward_ns"),
            backward.alias("backward_ns"),
            (time.sum() - forward - backward).alias("other_ns"),
            time.sum(),
            *added(),
        )
        .join(
            _algorithms(located, ("layer", "role")),
            on=["layer", "role"],
            how="left",
            nulls_equal=True,
        )
    )
    return _result(trace, with_share(frame), [])


def layers_by_direction(trace: Trace) -> Result:
    """Return one row a layer (or role) and direction.

    Columns as in :func:`layers`, with ``direction`` (``forward``, ``backward``, ``optimizer``, or
    null) in place of one column a direction.
    """
    located = _located(trace)
    frame = (
        located.group_by(*KEYS, "direction")
        .agg(pl.col("calls", "time_ns").sum(), *added())
        .join(
            _algorithms(located, ("layer", "role", "direction")),
            on=["layer", "role", "direction"],
            how="left",
            nulls_equal=True,
        )
    )
    return _result(trace, with_share(frame), ["direction"])


def _located(trace: Trace) -> pl.DataFrame:
    """Return the work added up by class, layer and direction, with what the layer is."""
    table = trace.layers.select(
        pl.int_range(pl.len(), dtype=pl.UInt32).alias("layer"),
        pl.when(pl.col("role").is_in(["layer", "unattributed"])).then("path").alias("path"),
        pl.when(pl.col("role") == "layer").then("type").alias("type"),
        pl.col("role").cast(pl.String),
        pl.when(pl.col("role") == "layer").then("position").alias("position"),
    )
    keys = (*SOURCE, "layer", "direction")
    by_source = (
        work(trace)
        .group_by(keys)
        .agg(pl.len().cast(pl.Int64).alias("calls"), pl.col("duration").sum().alias("time_ns"))
        .join(measured_sums(trace, *keys), on=keys, how="left", nulls_equal=True)
        .with_columns(pl.col("direction").cast(pl.String))
    )
    return (
        classified(by_source, trace)
        .join(table, on="layer", how="left", maintain_order="left")
        .with_columns(pl.col("role").fill_null("unattributed"))
        .with_columns(pl.coalesce("path", "(" + pl.col("role") + ")").alias("layer"))
        .drop("path")
    )


def _algorithms(located: pl.DataFrame, keys: tuple[str, ...]) -> pl.DataFrame:
    return (
        located.filter(pl.col("category") == "conv")
        .group_by(*keys, "part")
        .agg(pl.col("time_ns").sum())
        .sort(["time_ns", "part"], descending=[True, False])
        .group_by(keys, maintain_order=True)
        .agg(pl.col("part").str.join(", ").alias("algorithm"))
    )


def _result(trace: Trace, frame: pl.DataFrame, extra: list[str]) -> Result:
    times = [c for c in ("forward_ns", "backward_ns", "other_ns") if c in frame.columns]
    in_order = [pl.col(column).cast(Direction) for column in extra]
    frame = (
        with_rates(frame, trace)
        .sort("position", "layer", "role", *in_order, nulls_last=True, maintain_order=True)
        .select(*KEYS, *extra, "calls", *times, "time_ns", "share", "algorithm", *MEASURED)
    )
    known = [column for column in ("measured_flops", "dram_bytes") if trace.counters.height]
    return Result(frame, sums(frame, "calls", *times, "time_ns", *known), _notes(trace, frame))


def _notes(trace: Trace, frame: pl.DataFrame) -> tuple[str, ...]:
    if frame.is_empty():
        return (why_no_work(trace),)
    if not (frame["role"] == "layer").any():
        return (
            "no layers: the trace names none (record modules, NVTX or record_function ranges "
            "around the layers)",
            *measured_notes(trace),
        )
    return measured_notes(trace)

"""The copies of a trace: which way each went, to or from what memory, whether the host waited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from traceana.trace import Trace

SYNCHRONOUS: Final = "synchronous"
STAGED: Final = "staged"
ASYNCHRONOUS: Final = "asynchronous"
WAITS: Final = (SYNCHRONOUS, STAGED, ASYNCHRONOUS)

_COPY_CALL: Final = r"^(?:cuda|hip)Memcpy|^cuMemcpy"
_ENQUEUED: Final = r"^(?:cuda|cu|hip)(?:GraphLaunch|MemPrefetchAsync)"

_FROM_HOST: Final = ("h2d", "h2a", "h2h", "unified_h2d")
_TO_HOST: Final = ("d2h", "a2h", "unified_d2h")
_BETWEEN_DEVICES: Final = ("d2d", "a2a", "a2d", "d2a", "p2p")


def copies(trace: Trace) -> pl.DataFrame:
    """Return the copies of ``trace``, in their order.

    Columns of activities: ``rank``, ``device``, ``start``, ``duration``, ``bytes``, ``call``,
    ``op``, ``range``, ``layer``, and ``step_row``, which is their ``step``. Beside them:

    ``direction``
        CUPTI's copy kind; ``unified_h2d``, ``unified_d2h``, ``unified_d2d`` for migrations of
        unified memory, which no call asked for.
    ``host_memory``
        The kind of memory on the host's side; null for copies that do not touch it.
    ``waits``
        Whether the host waits in the call that asked for the copy, as the API documents it (see
        :func:`_waits`); null where no call is recorded, or its name tells nothing.
    """
    frame = trace.activities.filter(pl.col("kind") == "memcpy").select(
        *("rank", "device", "start", "duration", "bytes", "call", "op", "range", "layer"),
        pl.col("step").alias("step_row"),
        _direction().alias("direction"),
        pl.col("source_memory").cast(pl.String).alias("source"),
        pl.col("destination_memory").cast(pl.String).alias("destination"),
    )
    direction = pl.col("direction")
    host_memory = (
        pl.when(direction.is_in(_FROM_HOST))
        .then(pl.col("source").fill_null("unknown"))
        .when(direction.is_in(_TO_HOST))
        .then(pl.col("destination").fill_null("unknown"))
    )
    frame = frame.with_columns(host_memory.alias("host_memory")).drop("source", "destination")
    return frame.with_columns(_waits(trace, frame))


def _direction() -> pl.Expr:
    kind = pl.col("copy_kind").cast(pl.String).fill_null("unknown")
    # CUPTI gives a migration no correlation id, and managed memory on both sides.
    migrated = (
        pl.col("correlation").is_null()
        & (pl.col("source_memory") == "managed")
        & (pl.col("destination_memory") == "managed")
        & kind.is_in(["h2d", "d2h", "d2d"])
    )
    return pl.when(migrated).then("unified_" + kind).otherwise(kind)


def _waits(trace: Trace, frame: pl.DataFrame) -> pl.Series:
    """Return ``waits`` of each copy.

    Source: CUDA Runtime API, "API synchronization behavior". A call without ``Async`` waits, but
    not for a copy between devices. One with ``Async`` does not, but for a copy within the host; for
    pageable memory the driver stages the bytes and may wait (``staged``). Nothing of unknown host
    memory can be told. Copies of a launched graph and prefetches are enqueued.
    """
    name = pl.col("name").cast(pl.String)
    told = trace.calls.select(pl.col("name").unique()).select(
        "name",
        name.str.contains(_COPY_CALL).alias("copies"),
        name.str.contains("Async", literal=True).alias("async"),
        name.str.contains(_ENQUEUED).alias("enqueued"),
    )
    calls = trace.calls["name"].gather(frame["call"]).to_frame()
    kinds = calls.join(told, on="name", how="left", maintain_order="left").drop("name")
    direction, memory = pl.col("direction"), pl.col("host_memory")
    between = direction.is_in(_BETWEEN_DEVICES)
    within_host = direction == "h2h"
    return (
        frame.select("direction", "host_memory")
        .hstack(kinds)
        .select(
            pl.when(pl.col("enqueued"))
            .then(pl.lit(ASYNCHRONOUS))
            .when(pl.col("copies").not_() | (direction == "unknown"))
            .then(None)
            .when(pl.col("async").not_())
            .then(pl.when(between).then(pl.lit(ASYNCHRONOUS)).otherwise(pl.lit(SYNCHRONOUS)))
            .when(pl.col("copies").is_null() | (memory == "unknown"))
            .then(None)
            .when(within_host)
            .then(pl.lit(SYNCHRONOUS))
            .when(memory == "pageable")
            .then(pl.lit(STAGED))
            .otherwise(pl.lit(ASYNCHRONOUS))
            .cast(pl.Enum(WAITS))
            .alias("waits")
        )
        .to_series()
    )

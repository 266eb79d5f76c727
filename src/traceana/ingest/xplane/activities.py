"""Device work: the events on the streams of GPU planes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from traceana.ingest.xplane.details import kernel_details, memory_details
from traceana.ingest.xplane.hlo import HloPrograms
from traceana.ingest.xplane.names import scope_of
from traceana.ingest.xplane.plane_events import PlaneEvents
from traceana.ingest.xplane.space import Line

STREAM: Final = r"^Stream #(\d+)"
"""Names of the lines that are streams: ``Stream #13(Kernel,MemcpyH2D)``."""

STATS: Final = (
    "correlation_id",
    "kernel_details",
    "memcpy_details",
    "memset_details",
    "context_id",
    "tf_op",
    "annotation",
    "hlo_op",
    "hlo_module",
    "program_id",
)

_DIRECTION: Final = r"(?i)^memcpy(h2d|d2h|d2d|p2p|h2h|h2a|a2h|a2a|a2d|d2a)"


def activities(
    columns: PlaneEvents, lines: Sequence[Line], device: int, hlo: HloPrograms
) -> pl.DataFrame:
    """Return the activities of one GPU with their name as text, in the order of the file.

    What a name calls memcpy or memset is one; all else is a kernel, AMD's copies by kernels too.
    """
    lowered = [(name or "").lower() for name in columns.names]
    kinds = [
        "memcpy"
        if name.startswith("memcpy")
        else "memset"
        if name.startswith("memset")
        else "kernel"
        for name in lowered
    ]
    told = hlo.of(hlo_keys(columns))
    frame = pl.DataFrame(
        {
            "name": columns.labels(columns.names),
            "kind": columns.labels(kinds),
            "start": columns.start,
            "duration": columns.duration,
            "stream": _streams(columns, lines),
            "correlation": columns.integers("correlation_id"),
            "context": _context(columns),
            "scope": _scopes(columns, told["scope"]),
            "instruction": told["instruction"],
        }
    ).with_columns(pl.lit(device).alias("device"))
    kernels = kernel_details(columns.texts("kernel_details"))
    copies = memory_details(
        pl.select(
            pl.coalesce(columns.texts("memcpy_details"), columns.texts("memset_details"))
        ).to_series()
    )
    frame = pl.concat([frame, kernels, copies], how="horizontal")
    return _directed(frame)


def _streams(columns: PlaneEvents, lines: Sequence[Line]) -> pl.Series:
    numbers = pl.Series([line.name for line in lines], dtype=pl.String).str.extract(STREAM)
    return numbers.cast(pl.Int64, strict=False).gather(pl.Series(columns.line))


def _context(columns: PlaneEvents) -> pl.Series:
    """Return the CUDA context: text of the form ``$$5``."""
    labels = columns.texts("context_id").cast(pl.String)
    return labels.str.extract(r"(\d+)$").cast(pl.Int64, strict=False)


def _scopes(columns: PlaneEvents, instruction: pl.Series) -> pl.Series:
    """Return the name scope: what TensorFlow annotates, else where XLA's instruction is from."""
    annotated = [_scope_column(columns.texts(stat)) for stat in ("tf_op", "annotation")]
    return pl.select(pl.coalesce(*annotated, instruction)).to_series()


def _scope_column(labels: pl.Series) -> pl.Series:
    distinct = labels.unique().drop_nulls()
    if not len(distinct):
        return labels
    scopes = [scope_of(label) for label in distinct.cast(pl.String).to_list()]
    table = pl.DataFrame(
        {"label": distinct, "scope": pl.Series(scopes, dtype=pl.String).cast(pl.Categorical())}
    )
    found = labels.alias("label").to_frame()
    return found.join(table, on="label", how="left", maintain_order="left")["scope"]


def hlo_keys(columns: PlaneEvents) -> pl.DataFrame:
    """Return what tells the HLO instruction of each event."""
    return pl.DataFrame(
        {
            "hlo_module": columns.texts("hlo_module"),
            "program_id": columns.integers("program_id"),
            "hlo_op": columns.texts("hlo_op"),
        }
    )


def _directed(frame: pl.DataFrame) -> pl.DataFrame:
    is_copy, is_set = pl.col("kind") == "memcpy", pl.col("kind") == "memset"
    direction = pl.col("name").cast(pl.String).str.extract(_DIRECTION).str.to_lowercase()
    return frame.with_columns(
        pl.when(is_copy).then(direction.fill_null("unknown")).alias("copy_kind"),
        pl.when(is_copy)
        .then(pl.coalesce(pl.col("source_memory").cast(pl.String), pl.lit("unknown")))
        .alias("source_memory"),
        pl.when(is_copy | is_set)
        .then(pl.coalesce(pl.col("destination_memory").cast(pl.String), pl.lit("unknown")))
        .alias("destination_memory"),
    )

"""The rows of rocprof: their kinds, their cells, and what each input calls a cell.

rocprof's CSV, its two databases, its JSON and its Perfetto traces record the same activities under
different names. A reader is a map of columns, which stands here, and a way to the rows, which is a
file of its own; ``assembly.py`` makes the canonical tables of the rows. The map of CSV, whose
titles differ from version to version, is in ``printed/titles.tsv``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

import polars as pl

from traceana.readers.printed.titles import titles


class Kind(Enum):
    """The kinds of rows."""

    KERNELS = "kernels"
    LAUNCHES = "launches"
    """Kernels without times."""
    COUNTERS = "counters"
    COPIES = "copies"
    CALLS = "calls"
    AGENTS = "agents"
    OTHER = "other"
    """Allocations, barriers and samples, which are only counted."""


Rows = dict[Kind, pl.DataFrame]
"""The rows of each kind, with all cells of a row, as :func:`typed_rows` returns them."""
Columns = Mapping[str, str]
"""What an input calls a cell, by the name of the cell."""

COUNTER: Final = "counter "
"""Before the name of a counter in the name of its cell, where a kernel has a cell for each."""
AXES: Final = "xyz"
SIZES: Final = tuple(f"{what}_{axis}" for what in ("grid", "block") for axis in AXES)
"""Work-items of the grid and of a work-group."""
INTEGERS: Final = (
    "start",
    "end",
    "stream",
    "process",
    "thread",
    "dispatch",
    "correlation",
    "shared_memory",
    "registers",
    "bytes",
    *SIZES,
)
TEXTS: Final = (
    "name",
    "agent",
    "queue",
    "guid",
    "direction",
    "source",
    "destination",
    "domain",
    "function",
    "counter",
    "value",
)
_AGENTS: Final = {"device": "agent", "source": "source", "destination": "destination"}
"""Cells with the number of an agent: the cell that names it, as ``Agent 2``, ``GPU 1`` or ``2``."""
_NUMBER: Final = r"(\d+)$"


def typed_rows(parts: Iterable[tuple[Kind, pl.DataFrame]]) -> Rows:
    """Return the rows in ``parts`` by kind, with all cells: null where a part lacks one.

    :data:`INTEGERS` are int64, the numbers of agents int32, other cells have the type of the parts.
    """
    frames: dict[Kind, list[pl.DataFrame]] = {kind: [] for kind in Kind}
    for kind, cells in parts:
        frames[kind].append(cells)
    nothing = pl.DataFrame(schema={"name": pl.String})
    rows: Rows = {}
    for kind, pages in frames.items():
        cells = pl.concat([*pages, nothing], how="diagonal_relaxed")
        columns = []
        for name in INTEGERS:
            value = pl.col(name) if name in cells.columns else pl.lit(None, pl.Int64).alias(name)
            if cells.schema.get(name) == pl.String:
                value = value.str.strip_chars(" ")
            columns.append(value.cast(pl.Int64, strict=False))
        absent = [name for name in TEXTS if name not in cells.columns]
        columns += [pl.lit(None, pl.String).alias(name) for name in absent]
        agents = [
            pl.col(text)
            .cast(pl.String)
            .str.extract(_NUMBER, 1)
            .cast(pl.Int32, strict=False)
            .alias(name)
            for name, text in _AGENTS.items()
        ]
        rows[kind] = cells.with_columns(columns).with_columns(agents)
    return rows


CSV: Final = titles("rocprof")
"""Titles in lower-case letters and digits: their cell, empty for titles that are not read."""

DATABASE: Final[Columns] = {
    "start": "BeginNs",
    "end": "EndNs",
    "process": "pid",
    "thread": "tid",
    "agent": "dev-id",
    "stream": "stream-id",
    "correlation": "Index",
}
"""Columns of all tables of rocprof's database."""

ROCPD: Final[Mapping[Kind, Columns]] = {
    Kind.KERNELS: {
        "stream": "stream_id",
        "dispatch": "dispatch_id",
        "shared_memory": "group_segment_size",
        **{f"grid_{axis}": f"grid_size_{axis}" for axis in AXES},
        **{f"block_{axis}": f"workgroup_size_{axis}" for axis in AXES},
    },
    Kind.COPIES: {"stream": "stream_id", "bytes": "size"},
}
"""Columns of rocprofv3's database that have the value of a cell; others refer to other tables."""

PERFETTO: Final[Columns] = {
    "start": "begin_ns",
    "end": "end_ns",
    "correlation": "corr_id",
    "thread": "tid",
    "agent": "agent",
    "source": "src_agent",
    "destination": "dst_agent",
    "bytes": "copy_bytes",
    "shared_memory": "group_segment_size",
}
"""Debug annotations of a slice."""


class Id(str):
    """The path of an id in JSON: ``{"handle": 3}``, or the number itself."""

    __slots__ = ()


def _json_times(parent: str) -> Columns:
    return {
        "start": f"{parent}start_timestamp",
        "end": f"{parent}end_timestamp",
        "correlation": f"{parent}correlation_id.internal",
    }


def _json_dispatch(parent: str) -> Columns:
    return {
        "queue": Id(f"{parent}queue_id"),
        "dispatch": f"{parent}dispatch_id",
        "shared_memory": f"{parent}group_segment_size",
        **{f"grid_{axis}": f"{parent}grid_size.{axis}" for axis in AXES},
        **{f"block_{axis}": f"{parent}workgroup_size.{axis}" for axis in AXES},
    }


_JSON_RECORD: Final[Columns] = {
    "thread": "thread_id",
    "stream": Id("stream_id"),
    **_json_times(""),
}
JSON: Final[Mapping[Kind, Columns]] = {
    Kind.KERNELS: {**_JSON_RECORD, **_json_dispatch("dispatch_info.")},
    Kind.COPIES: {**_JSON_RECORD, "bytes": "bytes"},
    Kind.CALLS: _JSON_RECORD,
    Kind.COUNTERS: {
        "registers": "arch_vgpr_count",
        **_json_times("dispatch_data."),
        **_json_dispatch("dispatch_data.dispatch_info."),
    },
    Kind.AGENTS: {
        "node": "node_id",
        "logical_node": "logical_node_id",
        "compute_units": "cu_count",
        "clock_mhz": "max_engine_clk_fcompute",
        "memory_bytes": "local_mem_size",
        "warp_size": "wave_front_size",
        "gfx_version": "gfx_target_version",
        "gfx_name": "name",
        "product": "product_name",
        "model": "model_name",
    },
}
"""Paths in a record of JSON that have the value of a cell; others refer to other records."""

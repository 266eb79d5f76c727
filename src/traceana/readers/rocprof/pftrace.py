"""Makes the canonical tables of the slices that rocprofv3 writes with ``--output-format pftrace``.

Each activity is a slice whose beginning has all that is read in its debug annotations, times too:
those of the slice itself are rounded where kernels of a queue overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import polars as pl

from traceana.readers.rocprof.assembly import assembled
from traceana.readers.rocprof.columns import PERFETTO, TEXTS, Kind, typed_rows
from traceana.readers.source import ByteSource
from traceana.trace import Ledger, Trace, TraceMeta

_LARGEST: Final = 1 << 63
_CATEGORIES: Final = {
    "kernel_dispatch": Kind.KERNELS,
    "memory_copy": Kind.COPIES,
    **dict.fromkeys(
        ("hip_api", "hsa_api", "marker_api", "rccl_api", "rocdecode_api", "rocjpeg_api"), Kind.CALLS
    ),
}
_PREFIX: Final = "rocm_"
_STREAM: Final = r"STREAM \[(\d{1,17})\]"


def is_activity(category: str) -> bool:
    """Return whether rocprofv3 gives kernels, copies or calls this category."""
    return category.removeprefix(_PREFIX) in _CATEGORIES


def trace_of(
    source: ByteSource, slices: pl.DataFrame, process: int | None, left_out: Mapping[str, int]
) -> Trace:
    """Return the Trace of rocprofv3's slices.

    ``slices`` has columns category, name, track (its name) and args (JSON); ``left_out`` are other
    events of the file by their reason in the ledger.
    """
    rows = typed_rows(_rows(slices, process))
    ledger = Ledger()
    for reason, count in left_out.items():
        detail = "packets" if reason == "malformed" else None
        ledger.add(reason, count, table="-", detail=detail)
    ledger.add("damaged", int(source.damaged), table="-", kept=True)
    ledger.add("truncated", int(source.truncated), table="-", kept=True)
    meta = TraceMeta(
        source=str(source.path),
        format="rocprof",
        producer="AMD rocprofv3",
        truncated=source.truncated,
        bytes_read=source.bytes_read,
        bytes_total=source.bytes_total,
        events=sum(left_out.values()),
        properties={"printed": "Perfetto"},
    )
    return assembled(meta, rows, ledger)


def _rows(slices: pl.DataFrame, process: int | None) -> Iterator[tuple[Kind, pl.DataFrame]]:
    """Yield the rows of each category, with the names of cells."""
    with_domain = slices.with_columns(pl.col("category").str.strip_prefix(_PREFIX))
    for (category,), page in with_domain.group_by("category", maintain_order=True):
        kind = _CATEGORIES.get(str(category), Kind.OTHER)
        name = {Kind.CALLS: "function", Kind.COPIES: "direction"}.get(kind, "name")
        args = msgspec.json.decode(f"[{','.join(page['args'])}]")
        columns = {
            cell: [_typed(cell, values.get(annotation)) for values in args]
            for cell, annotation in PERFETTO.items()
        }
        types = {cell: pl.String if cell in TEXTS else pl.Int64 for cell in columns}
        yield (
            kind,
            pl.DataFrame(columns, schema=types).with_columns(
                page["name"].replace("", None).alias(name),
                page["track"].str.extract(_STREAM).cast(pl.Int64).alias("stream"),
                pl.lit(process, pl.Int64).alias("process"),
                pl.lit(str(category).removesuffix("_api").upper()).alias("domain"),
            ),
        )


def _typed(cell: str, value: Any) -> int | str | None:
    """Return ``value`` if it has the type of ``cell``, texts of any value; else None."""
    if cell in TEXTS:
        return None if value is None else str(value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and -_LARGEST <= value < _LARGEST else None

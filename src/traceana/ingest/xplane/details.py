"""What XPlane writes of a kernel or a copy as one text: ``regs:32 … grid:4,1,1 block:256,1,1``.

Keys over the years: NVIDIA's kernels have ``regs``, ``shm`` or ``static_shared`` and
``dynamic_shared``, AMD's ``group_mem``; copies have ``size`` and ``kind_src`` and ``kind_dst``,
AMD's and the oldest NVIDIA ones less.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.ingest.xplane.distinct import of_distinct
from traceana.trace.schema import ACTIVITIES

_MEMORIES: Final = (
    "pageable",
    "pinned",
    "device",
    "array",
    "managed",
    "device_static",
    "managed_static",
)
_AXES: Final = "xyz"


def kernel_details(texts: pl.Series) -> pl.DataFrame:
    """Return grid, block, registers and shared memory of each text; null where it tells none."""
    text = pl.col("text")
    static, dynamic = _number(text, "static_shared"), _number(text, "dynamic_shared")
    sizes = {
        f"{what}_{axis}": text.str.extract(rf"(?:^| ){what}:" + r"\d+," * i + r"(\d+)").cast(
            pl.Int64, strict=False
        )
        for what in ("grid", "block")
        for i, axis in enumerate(_AXES)
    }
    return _of_distinct(
        texts,
        registers=_number(text, "regs"),
        shared_memory=pl.coalesce(
            static + dynamic, static, dynamic, _number(text, "shm"), _number(text, "group_mem")
        ),
        **sizes,
    )


def memory_details(texts: pl.Series) -> pl.DataFrame:
    """Return bytes and the kinds of memory of each copy or set."""
    text = pl.col("text")
    return _of_distinct(
        texts,
        bytes=_number(text, "size"),
        source_memory=_memory(text, "kind_src"),
        destination_memory=pl.coalesce(_memory(text, "kind_dst"), _memory(text, "kind")),
    )


def _number(text: pl.Expr, key: str) -> pl.Expr:
    return text.str.extract(rf"(?:^| ){key}:(\d+)").cast(pl.Int64, strict=False)


def _memory(text: pl.Expr, key: str) -> pl.Expr:
    word = text.str.extract(rf"(?:^| ){key}:(\w+)").str.to_lowercase()
    return pl.when(word.is_in(_MEMORIES)).then(word)


def _of_distinct(texts: pl.Series, **columns: pl.Expr) -> pl.DataFrame:
    typed = {
        name: expression.cast(ACTIVITIES[name], strict=False)
        for name, expression in columns.items()
    }
    return of_distinct(texts, **typed)

"""Activities: the events on the streams of GPU planes, and the details in their stats."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import polars as pl

from traceana.ingest.xplane.events import PlaneEvents, labels, of_distinct, of_each
from traceana.ingest.xplane.hlo import HloPrograms, instruction_keys
from traceana.ingest.xplane.space import Line
from traceana.trace.schema import ACTIVITIES, ActivityKind, CopyKind, MemoryKind

STREAM: Final = r"^Stream #(\d+)"
"""Names of the lines that are streams: ``Stream #13(Kernel,MemcpyH2D)``."""
_NO_SCOPE: Final = "unknown"

_DIRECTION: Final = re.compile(
    r"memcpy(h2d|d2h|d2d|p2p|h2h|h2a|a2h|a2a|a2d|d2a)", re.ASCII | re.IGNORECASE
)

_MEMORIES: Final = [kind for kind in MemoryKind.categories if kind != "unknown"]

_AXES: Final = "xyz"


def activities(
    columns: PlaneEvents,
    lines: Sequence[Line],
    names: Sequence[str | None],
    device: int,
    hlo: HloPrograms,
) -> pl.DataFrame:
    """Return the activities of one GPU with their name as text, in the order of the file.

    Names that begin with memcpy or memset are copies and memsets; all others are kernels.
    """
    kinds = [_kind(name or "") for name in names]
    instructions = hlo.of(instruction_keys(columns))
    frame = pl.DataFrame(
        {
            "name": of_each(labels(names), columns.name),
            "kind": of_each(pl.Series(kinds, dtype=ActivityKind), columns.name),
            "start": columns.start,
            "duration": columns.duration,
            "stream": _streams(columns, lines),
            "correlation": columns.integers("correlation_id"),
            "context": _context(columns),
            "scope": _scopes(columns, instructions["scope"]),
            "instruction": instructions["instruction"],
            "copy_kind": of_each(pl.Series(map(_direction, names), dtype=CopyKind), columns.name),
        }
    ).with_columns(pl.lit(device).alias("device"))
    kernels = kernel_details(columns.texts("kernel_details"))
    copies = memory_details(
        pl.select(
            pl.coalesce(columns.texts("memcpy_details"), columns.texts("memset_details"))
        ).to_series()
    )
    is_copy, is_set = pl.col("kind") == "memcpy", pl.col("kind") == "memset"
    source, destination = pl.col("source_memory"), pl.col("destination_memory")
    return pl.concat([frame, kernels, copies], how="horizontal").with_columns(
        pl.when(is_copy).then(source.fill_null("unknown")),
        pl.when(is_copy | is_set).then(destination.fill_null("unknown")),
    )


def _kind(name: str) -> str:
    return next((kind for kind in ("memcpy", "memset") if name.lower().startswith(kind)), "kernel")


def _direction(name: str | None) -> str | None:
    if _kind(name or "") != "memcpy":
        return None
    found = _DIRECTION.match(name or "")
    return "to".join(found[1].upper().split("2")) if found else "unknown"


def _streams(columns: PlaneEvents, lines: Sequence[Line]) -> pl.Series:
    numbers = pl.Series([line.name for line in lines], dtype=pl.String).str.extract(STREAM)
    return of_each(numbers.cast(pl.Int64, strict=False), columns.line)


def _context(columns: PlaneEvents) -> pl.Series:
    """Return the CUDA context, which is text of the form ``$$5``."""
    number = pl.col("text").str.extract(r"(\d+)$").cast(pl.Int64, strict=False)
    return of_distinct(columns.texts("context_id"), context=number)["context"]


def _scopes(columns: PlaneEvents, instruction: pl.Series) -> pl.Series:
    """Return the name scope: TensorFlow's annotation, else the scope of XLA's instruction."""
    annotated = [_scope_column(columns.texts(stat)) for stat in ("tf_op", "annotation")]
    return pl.select(pl.coalesce(*annotated, instruction)).to_series()


def _scope_column(annotated: pl.Series) -> pl.Series:
    distinct = annotated.unique().drop_nulls()
    if not len(distinct):
        return annotated
    scopes = [scope_of(label) for label in distinct.cast(pl.String).to_list()]
    table = pl.DataFrame({"label": distinct, "scope": labels(scopes)})
    found = annotated.alias("label").to_frame()
    return found.join(table, on="label", how="left", maintain_order="left")["scope"]


def scope_of(label: str | None) -> str | None:
    """Return the name scope in an annotation of an activity, None where there is none.

    TensorFlow's ``annotation`` is ``scope:Type#key=value#``, several joined by ``::``; its
    ``tf_op`` is ``scope:Type``, and for XLA's kernels ``XlaModule:``.
    """
    if label is None:
        return None
    for part in label.split("::"):
        scope, colon, _ = part.partition("#")[0].rpartition(":")
        if colon and scope and scope != _NO_SCOPE and "XlaModule" not in scope:
            return scope
    return None


def kernel_details(texts: pl.Series) -> pl.DataFrame:
    """Return grid, block, registers and shared memory of each text; null where missing."""
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
    """Return bytes and memory kinds of each copy or memset."""
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

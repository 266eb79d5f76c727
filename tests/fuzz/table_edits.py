"""Edits of Parquet and Arrow files, and of the folders that hold several tables."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from tests.fuzz import values


def of_folder(
    rng: random.Random, files: Mapping[str, bytes]
) -> tuple[dict[str, bytes | None], str]:
    """Return changed files: one is a folder, empty, another's content, or an unexpected one."""
    names = sorted(files)
    name = rng.choice(names)
    other = rng.choice(names)
    pick = rng.randrange(5)
    if pick == 0:
        return {name: None}, f"{name} is a folder"
    if pick == 1:
        return {name: b""}, f"{name} is empty"
    if pick == 2:
        return {name: files[other]}, f"{name} is {other}"
    if pick == 3:
        return {name: files[other], other: files[name]}, f"{name} and {other} exchanged"
    extra = rng.choice(("x.json", "x.parquet", "x.arrow", "x.sqlite", ".hidden", "x.xplane.pb"))
    return {extra: rng.choice((b"", rng.randbytes(50), files[name][:100]))}, f"{extra} beside them"


def edited(rng: random.Random, content: bytes) -> tuple[bytes, str]:
    """Return the table with one column changed; bytes that are no table as they are."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    parquet = content[:4] == b"PAR1"
    try:
        if parquet:
            table = pq.read_table(pa.BufferReader(content), use_threads=False)
        else:
            table = pa.ipc.open_stream(content).read_all()
    except (pa.ArrowInvalid, OSError, ValueError):
        return content, "no table"
    if not table.num_columns:
        return content, "no columns"
    at = rng.randrange(table.num_columns)
    name = table.schema.names[at]
    try:
        table, what = _changed(rng, table, at)
        sink = pa.BufferOutputStream()
        if parquet:
            pq.write_table(table, sink, compression="zstd")
        else:
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
        return sink.getvalue().to_pybytes(), f"{name} {what}"
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError, ValueError) as error:
        return content, f"unchanged: {error!s:.40}"


def _changed(rng: random.Random, table: Any, at: int) -> tuple[Any, str]:
    import pyarrow as pa

    column, name = table.column(at), table.schema.names[at]
    pick = rng.randrange(9)
    if pick == 0:
        return table.remove_column(at), "dropped"
    if pick == 1:
        names = [*table.schema.names]
        names[at] = rng.choice(("start", "x", "", values.text(rng)))
        return table.rename_columns(names), f"renamed {names[at]!r:.40}"
    if pick == 2:
        return table.slice(0, rng.randrange(table.num_rows + 1)), "and the others cut"
    if pick == 3:
        return pa.concat_tables([table, table]), "and the others doubled"
    if pick == 4:
        kinds = (pa.string(), pa.float64(), pa.int8(), pa.uint64(), pa.null(), pa.date32())
        kind = rng.choice(kinds)
        if pa.types.is_null(kind):
            return table.set_column(at, name, pa.nulls(table.num_rows)), "all null, without a type"
        return table.set_column(at, name, column.cast(kind, safe=False)), f"as {kind}"
    if pick == 5:
        return table.set_column(at, name, pa.nulls(table.num_rows, column.type)), "all null"
    cells = column.to_pylist()
    if not cells:
        return table, "empty"
    some = rng.sample(range(len(cells)), min(len(cells), rng.choice((1, 3, len(cells)))))
    value: Any = None
    if pa.types.is_integer(column.type):
        width = column.type.bit_width
        signed = pa.types.is_signed_integer(column.type)
        low, high = (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if signed else (0, 2**width - 1)
        value = min(max(values.integer(rng), low), high)
    elif pa.types.is_floating(column.type):
        value = rng.choice((float("nan"), float("inf"), -1.0, 0.0))
    elif pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        value = values.text(rng)
    for place in some:
        cells[place] = value
    return table.set_column(at, name, pa.array(cells, column.type)), f"{value!r:.40} in {len(some)}"


def with_cells(column: str, value: Any) -> Callable[[bytes], bytes]:
    """Return the change of a Parquet file that sets all cells of ``column`` to ``value``."""

    def changed(content: bytes) -> bytes:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pq.read_table(pa.BufferReader(content), use_threads=False)
        at = table.schema.names.index(column)
        cells = pa.array([value] * table.num_rows, table.schema.types[at])
        sink = pa.BufferOutputStream()
        pq.write_table(table.set_column(at, column, cells), sink, compression="zstd")
        written: bytes = sink.getvalue().to_pybytes()
        return written

    return changed

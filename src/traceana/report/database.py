"""A trace as a DuckDB database: the documented tables, and what traceana found."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from traceana import __version__
from traceana.analyze.classes import SOURCE, classified
from traceana.analyze.critical import critical
from traceana.analyze.idle import idle
from traceana.enrich.numbering import first_rows, numbered
from traceana.errors import MissingExtraError
from traceana.trace.schema import SCHEMA, SCHEMA_VERSION

if TYPE_CHECKING:
    from traceana.trace import Trace
    from traceana.trace.schema import Column

ROW: Final = "row"
"""The number of a row in its table, which other tables have."""

_ROW_MEANING: Final = "number of the row in this table, counted from 0; other tables refer to it"
_BLOCK: Final = 1 << 20

WORK: Final = {
    ROW: "row of activities",
    "name": "name of the kernel, copy or operator",
    "kind": "kind of the activity",
    "category": "class of the activity, refined by its context",
    "part": "part of the category: algorithm, BLAS name, direction of a copy",
    "start": "ns from the trace's first event",
    "duration": "ns",
    "rank": "rank in a distributed run",
    "device": "device number within its rank; -1: the CPU",
    "stream": "CUDA or HIP stream; of a CPU operator, its thread",
    "step": "number of the step in which it was launched",
    "layer": "path of its layer",
    "direction": "pass of training",
    "operator": "innermost operator around the launch",
}
"""The columns of the table ``work`` and their meanings."""

_FOUND: Final = {
    "idle_gaps": "the idle gaps of each device with their causes: the rows of idle --by gap",
    "critical_path": "the segments of the critical path: the rows of critical --by segment",
    "work": "the activities that are work (not synchronization), with the texts of their rows",
    "meta": "metadata of the trace, a JSON value each",
}


def require_duckdb() -> None:
    """Raise :class:`~traceana.errors.MissingExtraError` if duckdb is not installed."""
    try:
        import duckdb  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(".duckdb needs duckdb: pip install 'traceana[duckdb]'") from error


def database(trace: Trace) -> Iterator[bytes]:
    """Yield the content of a database with the tables of ``trace``.

    Tables and columns are those of docs/tables.md, with their meanings as comments, and a column
    ``row`` in each, since a database has no order; times are BIGINT nanoseconds. ``work`` has a row
    per activity that is work, with the texts of what it refers to; ``idle_gaps`` and
    ``critical_path`` are what the commands find, ``meta`` is the trace's metadata. Raises
    ``OSError`` where the temporary files cannot be written.
    """
    tables = _tables(trace)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.duckdb"
        _write(path, tables)
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                yield block


def _write(path: Path, tables: Iterator[tuple[str, pl.DataFrame]]) -> None:
    import duckdb

    settings = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
    part = path.with_name("part.parquet")
    try:
        with duckdb.connect(str(path), config=settings) as base:
            for name, frame in tables:
                # DuckDB reads frames through pyarrow, and Parquet by itself.
                with part.open("wb") as file:
                    frame.write_parquet(file, compression="uncompressed")
                rows = f"SELECT * FROM read_parquet({_literal(str(part))})"
                base.execute(f'CREATE TABLE "{name}" AS {rows}')
                part.unlink()
                _comment(base, name)
    except (
        duckdb.IOException,
        duckdb.TransactionException,
        duckdb.FatalException,
        pl.exceptions.ComputeError,
    ) as error:
        # polars does not name the reason.
        table = isinstance(error, pl.exceptions.ComputeError)
        what = "a table cannot be written" if table else str(error).splitlines()[0]
        raise OSError(f"temporary files in {tempfile.gettempdir()}: {what}") from error


def _tables(trace: Trace) -> Iterator[tuple[str, pl.DataFrame]]:
    for name in SCHEMA:
        yield name, trace.table(name).with_row_index(ROW)
    yield "work", _work(trace)
    yield "idle_gaps", idle(trace, by="gap").frame
    yield "critical_path", critical(trace, by="segment").frame
    yield "meta", _meta(trace)


def _work(trace: Trace) -> pl.DataFrame:
    rows = trace.activities.with_row_index(ROW).filter(pl.col("kind") != "sync")
    (numbers,) = numbered(rows.select(SOURCE))
    classes = classified(rows.select(SOURCE)[first_rows(numbers)], trace)
    texts = {
        "name": (trace.names["name"], "name_id"),
        "step": (trace.steps["number"], "step"),
        "layer": (trace.layers["path"], "layer"),
        "operator": (trace.ops["name"], "op"),
    }
    return rows.with_columns(
        *(classes[name].gather(numbers).alias(name) for name in ("category", "part")),
        *(table.gather(rows[row]).alias(name) for name, (table, row) in texts.items()),
    ).select(*WORK)


def _meta(trace: Trace) -> pl.DataFrame:
    values: dict[str, Any] = msgspec.to_builtins(trace.meta)
    values |= {"traceana": __version__, "schema_version": SCHEMA_VERSION}
    return pl.DataFrame(
        {"property": list(values), "value": [json.dumps(one) for one in values.values()]}
    )


def _comment(base: Any, name: str) -> None:
    """Write the meanings of a table and its columns into the database."""
    described = SCHEMA.get(name)
    meaning = _FOUND[name] if described is None else described.row
    base.execute(f'COMMENT ON TABLE "{name}" IS {_literal(meaning)}')
    columns = WORK if name == "work" else {}
    if described is not None:
        columns = {ROW: _ROW_MEANING}
        columns |= {column: _meaning(one) for column, one in described.columns.items()}
    for column, text in columns.items():
        base.execute(f'COMMENT ON COLUMN "{name}"."{column}" IS {_literal(text)}')


def _meaning(column: Column) -> str:
    row = column.row_of and f"row of {column.row_of}"
    return "; ".join(one for one in (column.meaning, column.unit, row) if one)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"

"""A DuckDB export has every table of the trace, exact, and can be queried by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.report.html.test_document import HOSTILE, hostile
from tests.support.command_line import Run
from tests.support.opened import opened
from tests.support.traces import TraceBuilder, cnn_steps
from traceana import Trace
from traceana.errors import ExitCode, how_to_install
from traceana.trace.schema import SCHEMA

FIXTURE = Path(__file__).parents[2] / "fixtures" / "alexnet-cpu-ranges.json.gz"


@contextmanager
def exported(trace: Trace, folder: Path) -> Iterator[Any]:
    """Yield a connection to the exported database, which only reads."""
    path = trace.export(folder / "run.duckdb", overwrite=True)
    with duckdb.connect(str(path), read_only=True) as base:
        yield base


def check(trace: Trace, folder: Path) -> None:
    """Assert that rows and sums equal those of the tables and commands, to the nanosecond."""
    with exported(trace, folder) as base:
        for name in SCHEMA:
            table = trace.tables[name]
            assert base.execute(f'SELECT count(*) FROM "{name}"').fetchone() == (table.height,), (
                name
            )
        for name in ("activities", "calls", "ops", "ranges"):
            wanted = trace.tables[name].select("start", "duration").sum().row(0)
            sums = f"SELECT coalesce(sum(start), 0), coalesce(sum(duration), 0) FROM {name}"
            assert base.execute(sums).fetchone() == wanted, name
        breakdown = trace.report().frame
        by_class = "SELECT category, part, count(*), sum(duration) FROM work GROUP BY ALL"
        classes = breakdown.select("category", "part", "calls", "time_ns").rows()
        assert set(base.execute(by_class).fetchall()) == set(classes)
        # A database keeps the times that were recorded.
        recorded = trace.with_meta(as_recorded=True)
        for what, result in (
            ("idle_gaps", recorded.idle(by="gap")),
            ("critical_path", recorded.critical(by="segment")),
        ):
            times = base.execute(
                f"SELECT count(*), coalesce(sum(time_ns), 0) FROM {what}"
            ).fetchone()
            assert times == (result.frame.height, result.frame["time_ns"].sum()), what


def test_totals_of_built_steps_are_exact(tmp_path: Path) -> None:
    check(cnn_steps(), tmp_path)


def test_totals_of_a_recorded_trace_are_exact(tmp_path: Path) -> None:
    check(opened(FIXTURE), tmp_path)


def test_a_trace_without_events_is_a_database(tmp_path: Path) -> None:
    check(TraceBuilder().build(), tmp_path)


def test_rows_are_joined_by_their_numbers(tmp_path: Path) -> None:
    trace = opened(FIXTURE)
    query = (
        "SELECT l.path, sum(a.duration) FROM activities a JOIN layers l ON a.layer = l.row "
        "WHERE l.role = 'layer' GROUP BY ALL ORDER BY ALL"
    )
    frame = trace.layers().frame
    layers = frame.filter(frame["role"] == "layer").select("layer", "time_ns").sort("layer")
    with exported(trace, tmp_path) as base:
        rows = base.execute(query).fetchall()
        texts = "SELECT layer, sum(duration) FROM work WHERE layer IS NOT NULL GROUP BY ALL"
        named = dict(base.execute(texts).fetchall())
    assert rows == layers.rows()
    assert set(rows) <= set(named.items())


def test_every_column_has_its_meaning(tmp_path: Path) -> None:
    with exported(cnn_steps(), tmp_path) as base:
        columns = base.execute(
            "SELECT table_name, column_name, comment FROM duckdb_columns() "
            "WHERE NOT internal AND table_name NOT IN ('idle_gaps', 'critical_path', 'meta')"
        ).fetchall()
        tables = base.execute("SELECT table_name, comment FROM duckdb_tables()").fetchall()
    assert all(comment for *_, comment in (*columns, *tables))
    found = {(table, column) for table, column, _ in columns}
    assert {(table, column) for table, one in SCHEMA.items() for column in one.columns} <= found
    meanings = {(table, column): comment for table, column, comment in columns}
    assert meanings["activities", "duration"].endswith("ns")
    assert "row of layers" in meanings["activities", "layer"]


def test_the_metadata_is_json(tmp_path: Path) -> None:
    with exported(opened(FIXTURE), tmp_path) as base:
        meta = dict(base.execute("SELECT property, value FROM meta").fetchall())
    assert json.loads(meta["format"]) == "kineto"
    assert json.loads(meta["truncated"]) is False


@pytest.mark.exhaustive(after=2)
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_text_of_a_trace_is_a_value(text: str, tmp_path: Path) -> None:
    with exported(hostile(f"{text}'; DROP TABLE work; --"), tmp_path) as base:
        names = base.execute("SELECT DISTINCT name FROM work").fetchall()
    assert names == [(f"{text}'; DROP TABLE work; --",)]


def test_the_command_refuses_what_it_cannot_write(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "run.duckdb"
    assert run("export", FIXTURE, "-o", target).exit_code == 0
    before = target.read_bytes()
    assert run("export", FIXTURE, "-o", target).exit_code == ExitCode.CANNOT_WRITE
    assert target.read_bytes() == before
    packed = run("export", FIXTURE, "-o", tmp_path / "run.duckdb.gz")
    assert packed.exit_code == ExitCode.CANNOT_WRITE
    assert "or with .duckdb" in packed.stderr
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    missing = run("export", tmp_path / "none", "-o", tmp_path / "other.duckdb")
    assert missing.exit_code == ExitCode.MISSING_DEPENDENCY
    assert how_to_install("duckdb") in missing.stderr

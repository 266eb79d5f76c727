"""A workbook holds the exact values of every table, and text of a trace is only text."""

from __future__ import annotations

import re
from io import BytesIO
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from openpyxl import load_workbook

from tests.support.opened import opened
from tests.support.traces import cnn_steps
from traceana import Trace
from traceana.errors import MissingDependencyError, how_to_install
from traceana.report.page import Data, Page, Rows, Table
from traceana.report.workbook import render
from traceana.table import Column, Kind

FIXTURE = Path(__file__).parents[2] / "fixtures" / "alexnet-cpu-ranges.json.gz"


def sheets(content: bytes) -> dict[str, list[list[Any]]]:
    book = load_workbook(BytesIO(content))
    return {sheet.title: [list(row) for row in sheet.iter_rows(values_only=True)] for sheet in book}


def column(rows: list[list[Any]], title: str) -> list[Any]:
    at = rows[0].index(title)
    return [row[at] for row in rows[1:]]


def page(frame: pl.DataFrame) -> Page:
    kinds = {"bytes": Kind.BYTES}
    columns = tuple(Column(name, kinds.get(name, Kind.TEXT)) for name in frame.columns)
    return Page("test", (Table(frame, columns),), Data(Rows(frame)))


@pytest.fixture(scope="module")
def alexnet() -> Trace:
    return opened(FIXTURE)


def test_totals_equal_those_of_the_commands_to_the_nanosecond(
    alexnet: Trace, tmp_path: Path
) -> None:
    found = sheets(alexnet.report().save(tmp_path / "report.xlsx").read_bytes())
    for name, result in (
        ("layers", alexnet.layers()),
        ("kernels", alexnet.kernels()),
        ("operators", alexnet.flops()),
    ):
        times = column(found[name], "time_ns (ns)")
        assert sum(time or 0 for time in times) == result.totals["time_ns"], name
        assert len(times) == result.frame.height
    assert ["Steps", "3 (2-4, ProfilerStep), no warm-up detected"] in found["summary"]


@pytest.mark.parametrize("text", ["=1+1", "+cmd|' /C calc'!A0", "http://evil", "1e5", "@SUM(1)"])
def test_text_is_neither_formula_nor_link_nor_number(text: str) -> None:
    content = render(page(pl.DataFrame({"name": [text]})))
    (cell,) = next(load_workbook(BytesIO(content)).worksheets[1].iter_rows(min_row=2))
    assert (cell.value, cell.data_type, cell.hyperlink) == (text, "s", None)


def test_control_characters_are_written_out() -> None:
    content = render(page(pl.DataFrame({"name": ["a\x1b[2J\x00\u202e"]})))
    (name,) = column(next(iter(list(sheets(content).values())[1:])), "name")
    assert name == r"a\x1b[2J\x00\u202e"


def test_large_integers_are_text_and_exact() -> None:
    frame = pl.DataFrame({"bytes": [2**53, None, 2**53 + 1]})
    rows = list(sheets(render(page(frame))).values())[1]
    assert column(rows, "bytes (B)") == [2**53, None, str(2**53 + 1)]


def test_names_of_sheets_are_valid_and_distinct() -> None:
    frame = pl.DataFrame({"a": [1]})
    title = Column("a", Kind.NUMBER, title="[a]:*?/\\ " + "long " * 20)
    blocks = (Table(frame, (title,)), Table(frame, (title,)))
    names = list(sheets(render(Page("test", blocks, Data(Rows(frame))))))
    assert len(set(names)) == len(names) == 3
    assert all(len(name) <= 31 and not set(name) & set("[]:*?/\\") for name in names)


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "xlsxwriter", None)
    with pytest.raises(MissingDependencyError, match=re.escape(how_to_install("excel"))):
        render(cnn_steps().report().page())

"""The tables of docs/json.md are those of the declarations."""

from __future__ import annotations

import re

import polars as pl
import pytest

from tests.support.traces import cnn_steps
from tools.columns import PAGE, TABLE, markdown, page
from traceana.analyze import transfers
from traceana.commands import COMMANDS, declared_columns
from traceana.report.pages.single_table import table_result
from traceana.report.render import Format, render
from traceana.result import Result
from traceana.table import BYTES, TIME, Column, laid_out

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_page_is_as_generated() -> None:
    assert page(TEXT) == TEXT, "run python -m tools.columns"
    assert len(TABLE.findall(TEXT)) > 10


@pytest.mark.parametrize("name", [name for name, one in COMMANDS.items() if one.columns])
def test_help_and_the_page_have_every_column_of_a_command(name: str) -> None:
    documented = " ".join(match["names"] for match in TABLE.finditer(TEXT))
    assert set(COMMANDS[name].columns.split()) <= {*documented.split()}
    for column in declared_columns(COMMANDS[name].columns):
        assert column.meaning, column.name
        assert not re.search(r"``|\n", column.meaning), column.name


def test_one_declaration_shows_a_column_everywhere() -> None:
    """A declared column is in the frame, on the screen, in JSON, CSV, Markdown and the docs."""
    more = Column("longest_ns", TIME, "the longest copy", pl.col("duration").max())
    columns = (*transfers.COLUMNS, more)
    copies = pl.DataFrame({"direction": ["HtoD", "HtoD"], "duration": [3_000, 5_000]})
    from traceana.table import aggregated, conformed

    wanted = (columns[0], more)
    frame = conformed(aggregated(copies, ["direction"], wanted), wanted)
    assert frame.to_dicts() == [{"direction": "HtoD", "longest_ns": 5_000}]
    shown = table_result("transfers", Result(frame, {}, (), wanted), cnn_steps())
    page_of_it = shown.page()
    assert "longest" in repr(shown)
    for form in (Format.JSON, Format.CSV, Format.MARKDOWN):
        assert "longest" in str(render(page_of_it, form)), form
    assert '"longest_ns": "ns"' in str(render(page_of_it, Format.JSON))
    assert "| `longest_ns` | ns | the longest copy |" in markdown(wanted)


def test_a_layout_chooses_the_columns_of_a_page_and_their_order_of_dropping() -> None:
    columns = laid_out(
        (Column("a"), Column("b", BYTES), Column("c", TIME)), hidden="a", dropped="bar c", bars="b"
    )
    assert [column.shown for column in columns] == [False, True, True]
    assert [column.rank for column in columns] == [None, None, 2]
    assert [column.bars for column in columns] == [None, 1, None]

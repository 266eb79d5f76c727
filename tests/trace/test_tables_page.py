"""docs/tables.md equals the schema."""

from __future__ import annotations

from tools.tables import PAGE, filled_of, page
from traceana.trace.schema import SCHEMA, TABLES


def test_the_page_is_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(filled_of(text)), "run python -m tools.tables"


def test_a_column_without_a_format_is_listed_as_unfilled() -> None:
    filled = filled_of(PAGE.read_text(encoding="utf-8"))
    assert set(filled) == {(table, column) for table in TABLES for column in TABLES[table]}


def test_every_column_has_a_meaning_and_refers_to_a_table_that_exists() -> None:
    for table in SCHEMA.values():
        for column in table.columns.values():
            assert column.meaning
            assert column.row_of is None or column.row_of in SCHEMA

"""The integrity ledger adds up and has a description of every reason."""

from __future__ import annotations

import pytest

from traceana.trace import Ledger


def test_equal_reasons_add_up() -> None:
    ledger = Ledger()
    ledger.add("duplicate", 2, table="activities", time_ns=5)
    ledger.add("duplicate", 3, table="activities", time_ns=7)
    ledger.add("duplicate", 1, table="calls")
    ledger.add("malformed", 0, table="-")
    rows = ledger.frame().select("reason", "severity", "table", "count", "time_ns").rows()
    assert rows == [
        ("duplicate", "problem", "activities", 5, 12),
        ("duplicate", "problem", "calls", 1, None),
    ]


def test_an_unknown_reason_is_a_bug() -> None:
    with pytest.raises(KeyError):
        Ledger().add("because", 1, table="-")


def test_an_empty_ledger_has_its_columns() -> None:
    assert Ledger().frame().is_empty()
    assert "severity" in Ledger().frame().columns

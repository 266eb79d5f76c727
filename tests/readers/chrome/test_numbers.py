"""Decimal microseconds are converted to nanoseconds without a float."""

from __future__ import annotations

from decimal import Decimal

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from traceana.readers.chrome.event_decoder import parse, to_nanoseconds


@given(st.integers(-(2**62), 2**62), st.integers(0, 3))
def test_up_to_three_decimals_are_exact(nanoseconds: int, decimals: int) -> None:
    text = f"{Decimal(nanoseconds).scaleb(-3):.{decimals}f}"
    want = int(Decimal(text) * 1000)
    assert parse(pl.Series([text])).to_list() == [want]


def test_a_float_would_have_lost_this() -> None:
    text = "1712195495519689.123"
    assert parse(pl.Series([text])).to_list() == [1712195495519689123]
    assert round(float(text) * 1000) != 1712195495519689123


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("3.0000001", 3000),
        ("2.9999999", 3000),
        ("-0.5", -500),
        (".5", 500),
        ("1.", 1000),
        ("1e3", 1_000_000),
        ('"7"', 7000),
        (" 12 ", 12000),
        ("NaN", None),
        ('"N/A"', None),
        ("null", None),
        ("Infinity", None),
        ("", None),
        ("99999999999999999", None),  # beyond int64 nanoseconds
        ("9223372036854775.807", 2**63 - 1),
    ],
)
def test_odd_spellings(text: str, nanoseconds: int | None) -> None:
    assert parse(pl.Series([text])).to_list() == [nanoseconds]


def test_absent_values_keep_their_rows() -> None:
    raws = [Raw(b"1.5"), Raw(b""), Raw(b"2"), Raw(b"")]
    assert to_nanoseconds(raws).to_list() == [1500, None, 2000, None]
    assert to_nanoseconds([Raw(b"")]).to_list() == [None]
    assert to_nanoseconds([]).to_list() == []

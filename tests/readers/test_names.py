"""Distinct names get one number each, across chunks."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from traceana.readers.kernel_names import UNNAMED, NameTable
from traceana.trace import Ledger

texts = st.one_of(st.none(), st.sampled_from(["a", "b", "", "\x00", UNNAMED]), st.text())


@given(st.lists(st.lists(texts, max_size=8), max_size=5))
def test_ids_lead_back_to_the_names_across_chunks(chunks: list[list[str | None]]) -> None:
    table = NameTable(Ledger())
    ids = [table.ids(pl.Series(chunk, dtype=pl.String)) for chunk in chunks]
    names = table.frame()["name"].to_list()

    assert len(set(names)) == len(names)
    for chunk, numbers in zip(chunks, ids, strict=True):
        assert numbers.dtype == pl.UInt32
        assert [names[i] for i in numbers] == [UNNAMED if t is None else t for t in chunk]


def test_the_order_is_that_of_first_appearance() -> None:
    table = NameTable(Ledger())
    assert table.ids(pl.Series(["b", "a", "b"])).to_list() == [0, 1, 0]
    assert table.ids(pl.Series(["c", "a"], dtype=pl.Categorical)).to_list() == [2, 1]
    assert table.frame()["name"].to_list() == ["b", "a", "c"]

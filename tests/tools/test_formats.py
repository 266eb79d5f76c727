"""The list of files that were read equals the content of the fixtures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.manifest import chosen
from tests.support.opened import opened
from tools.formats import (
    FIXTURES,
    HEAD,
    LIST,
    PAGE,
    fixture,
    page,
    recordings,
    support,
    table,
)

TEXT = LIST.read_text(encoding="utf-8")


def test_the_list_has_the_recordings_in_their_order() -> None:
    assert TEXT.startswith(HEAD)
    own = TEXT.partition("in `fixtures/`\n\n")[2].partition("\n\n")[0]
    names = [line.split("`")[1] for line in own.splitlines()[2:]]
    assert names == [str(file.relative_to(FIXTURES)) for file in recordings()]
    assert f"{own}\n".startswith(table(iter(())))


@pytest.mark.parametrize("file", chosen(recordings()))
def test_a_row_is_that_of_its_recording(file: Path) -> None:
    *_, line = table(iter([fixture(file, opened(file))])).splitlines(keepends=True)
    assert f"\n{line}" in TEXT


def test_each_recording_of_a_timeline_has_a_row() -> None:
    described = [
        file.name.split(".", 1)[0]
        for file in FIXTURES.rglob("*.provenance.json")
        if "-ncu-" not in file.name
    ]
    assert [name for name in described if f"{name}." not in TEXT] == []


def test_the_matrix_counts_the_files_that_have_a_figure() -> None:
    one = ("`a`", "nsys 3", "Nsight", "1,200", "", "7", "", "yes", "", "2", "")
    two = ("`b`", "nsys 3", "Nsight", "5", "", "", "", "", "", "", "3 unknown, 1 cut")
    other = ("`c`", "kineto 1", "", *[""] * 8)
    assert list(support(table(iter([one, two, other])))) == [
        ("kineto 1", "", "1", *[""] * 8),
        ("nsys 3", "Nsight", "2", "2", "", "1", "", "1", "", "1", "1"),
    ]


def test_the_matrix_of_the_page_is_that_of_the_list() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text, TEXT) == text

"""The page of formats equals the content of the fixtures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.opened import opened
from tools.formats import FIXTURES, HEAD, PAGE, fixture, recordings, table

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_page_lists_the_recordings_in_their_order() -> None:
    assert TEXT.startswith(HEAD)
    own = TEXT.partition("in `fixtures/`\n\n")[2].partition("\n\n")[0]
    names = [line.split("`")[1] for line in own.splitlines()[2:]]
    assert names == [str(file.relative_to(FIXTURES)) for file in recordings()]
    assert f"{own}\n".startswith(table(iter(())))


@pytest.mark.parametrize("file", recordings(), ids=lambda file: file.name)
def test_a_row_is_that_of_its_recording(file: Path) -> None:
    *_, line = table(iter([fixture(file, opened(file))])).splitlines(keepends=True)
    assert f"\n{line}" in TEXT


def test_each_recording_has_a_row() -> None:
    described = [file.name.split(".", 1)[0] for file in FIXTURES.rglob("*.provenance.json")]
    assert [name for name in described if f"{name}." not in TEXT] == []

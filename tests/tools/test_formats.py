"""The page of formats equals the content of the fixtures."""

from __future__ import annotations

import pytest

from tools.formats import FIXTURES, HEAD, PAGE, fixtures, table

pytestmark = pytest.mark.slow


def test_the_page_is_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.startswith(HEAD)
    assert table(fixtures()) in text


def test_each_recording_has_a_row() -> None:
    described = [file.name.split(".", 1)[0] for file in FIXTURES.rglob("*.provenance.json")]
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in described if f"{name}." not in page] == []

"""The page of formats is what the fixtures really hold."""

from __future__ import annotations

from tools.formats import HEAD, PAGE, fixtures, table


def test_the_page_is_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.startswith(HEAD)
    assert table(fixtures()) in text

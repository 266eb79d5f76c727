"""The page of formulas equals the registry."""

from __future__ import annotations

from tools.flops import PAGE, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tools.flops"

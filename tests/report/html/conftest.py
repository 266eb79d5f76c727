"""One browser for the tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.report.html.browser import Browser, chromium


@pytest.fixture(scope="session")
def _browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def browser(_browser: Browser) -> Browser:
    """Return the browser with an empty console, in its initial width and colours."""
    _browser.driver.get("about:blank")
    _browser.console()
    _browser.emulate(prefers_color_scheme="light")
    _browser.width(1280)
    return _browser

"""What the tests of jobs share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from traceana.job import tasks


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tasks run in threads of this process: to start processes takes most of a test's time."""
    monkeypatch.setattr(tasks, "process_pool", ThreadPoolExecutor)

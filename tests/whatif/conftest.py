"""Synthetic programs are recorded without a cost of the profiler; test_profiler.py has it."""

from __future__ import annotations

import pytest

from tests.support.opened import no_cost


@pytest.fixture(autouse=True)
def no_profiler_cost(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "profiler_cost" not in request.keywords:
        monkeypatch.setattr("traceana.whatif.program.profiler_cost", no_cost)

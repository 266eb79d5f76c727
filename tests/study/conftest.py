"""Recorded runs as studies see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from traceana.study.recorded_runs import Recorded

Make = Callable[..., Recorded]


@pytest.fixture
def make() -> Make:
    """Return a maker of runs of AlexNet in PyTorch, three steps without a profiler."""

    def made(**changed: Any) -> Recorded:
        known: dict[str, Any] = {
            "folder": "sweep/run",
            "framework": "PyTorch",
            "version": "2.13.0",
            "network": "alexnet",
            "batch": 8,
            "device_name": "Pentium III",
            "steps_ns": (9_000_000, 10_000_000, 12_000_000),
            "timed": "without profiler",
        }
        return Recorded(**{**known, **changed})

    return made

"""Commands get a signal at a random moment (:mod:`tests.fuzz.moments`)."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from tests.support.frameworks import needs

if sys.platform != "linux":
    pytest.skip("processes are read from /proc", allow_module_level=True)

from tests.fuzz.moments import CASES, SIGNALS, moments


@pytest.mark.slow
def test_signals_at_some_moments_lose_nothing(tmp_path: Path) -> None:
    ends, wrong = moments(["save"], 3, 7, tmp_path)
    assert wrong == []
    # Each of the three, at least once.
    assert {end.split()[0] for end in ends["save"]} == {number.name for number in SIGNALS}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_signals_at_many_moments_lose_nothing(name: str, tmp_path: Path) -> None:
    for module in {"record": ["torch"], "mcp": ["mcp"], "export": ["duckdb"]}.get(name, []):
        needs(module)
    seed = random.randrange(10**6)
    _, wrong = moments([name], 30, seed, tmp_path)
    assert wrong == [], f"seed {seed}"

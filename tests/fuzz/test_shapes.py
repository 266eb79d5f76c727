"""A short campaign of attackers by structure (:mod:`tests.fuzz.shapes`) in its own process."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("costs are read from /proc", allow_module_level=True)

ROOT = Path(__file__).parents[2]


def campaign(*words: str, seconds: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzz.shapes", *words]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False
    )


@pytest.mark.slow
def test_a_short_campaign_exceeds_no_budget() -> None:
    words = ["--seed", "1", "--count", "9", "--most", "50000", "--only", "kineto a"]
    done = campaign(*words, seconds=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 1: 9 inputs" in done.stdout


@pytest.mark.exhaustive
def test_ten_minutes_of_a_new_seed_exceed_no_budget() -> None:
    done = campaign("--seed", str(random.randrange(10**6)), "--minutes", "10", seconds=1_800)
    assert done.returncode == 0, done.stdout + done.stderr

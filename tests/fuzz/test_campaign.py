"""A short campaign with a fixed seed, and the inputs that once failed.

Both run in a process of their own: this one has the threads of polars, which a fork would lose.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.regressions import CASES

ROOT = Path(__file__).parents[2]


def run(module: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *words]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )


@pytest.mark.slow
def test_a_short_campaign_breaks_no_promise(tmp_path: Path) -> None:
    words = ["--seed", "1", "--count", "510", "--analyze", "40", "--jobs", "2", "--shrink", "0"]
    result = run("tests.fuzz", *words, "--keep", str(tmp_path))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "| total | 510 |" in result.stdout


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    result = run("tests.fuzz.regressions")
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    return {line["name"]: line for line in lines}


@pytest.mark.slow
@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_what_once_failed_is_read_or_refused(
    outcomes: dict[str, dict[str, Any]], name: str
) -> None:
    outcome = outcomes[name]
    assert outcome["kind"] in ("read", "ledger", "refused"), outcome
    assert (outcome["kind"] == "refused") == bool(outcome["code"])

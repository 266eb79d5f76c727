"""A short campaign with a fixed seed, and the inputs that once failed.

Both run in one process of their own: this one has the threads of polars, which a fork would lose.
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


@pytest.fixture(scope="module")
def done(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> subprocess.CompletedProcess[str]:
    which = "all" if pytestconfig.getoption("--exhaustive") else "read"
    words = ["--seed", "1", "--count", "40", "--analyze", "6", "--jobs", "2", "--shrink", "0"]
    keep = ["--keep", str(tmp_path_factory.mktemp("kept"))]
    command = [sys.executable, "-m", "tests.fuzz", "--regressions", which, *words, *keep]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )


@pytest.mark.slow
def test_a_short_campaign_breaks_no_promise(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| total | 40 |" in done.stdout


@pytest.fixture(scope="module")
def outcomes(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["name"]: line for line in lines}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(case.name, marks=pytest.mark.exhaustive if case.commands else ())
        for case in CASES
    ],
)
def test_what_once_failed_is_read_or_refused(
    outcomes: dict[str, dict[str, Any]], name: str
) -> None:
    outcome = outcomes[name]
    assert outcome["kind"] in ("read", "ledger", "refused"), outcome
    assert (outcome["kind"] == "refused") == bool(outcome["code"])

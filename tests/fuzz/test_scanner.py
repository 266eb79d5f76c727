"""A short run of the scanner beside the decoders in Python, and one with sanitizers."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from tests.fuzz import messages
from tests.fuzz.scanner import Blocks, compared
from tools.build_scanner import compiler
from traceana.readers.compiled import COMPILED

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(
    not COMPILED, reason="the scanner is not compiled: python -m tools.build_scanner"
)
def test_changed_events_are_scanned_as_they_are_decoded() -> None:
    tally = compared(islice(Blocks(1), 3_000))
    assert tally.blocks == 3_000
    # Both are frequent enough to compare anything.
    assert tally.accepted > 500
    assert tally.blocks - tally.accepted > 500


@pytest.mark.skipif(
    not COMPILED, reason="the scanner is not compiled: python -m tools.build_scanner"
)
def test_changed_runs_of_xplane_are_scanned_as_python_decodes_them() -> None:
    tally = messages.compared(islice(messages.ChangedRuns(1), 4_000))
    assert tally.runs == 4_000
    # All three are frequent enough to compare anything.
    assert tally.events - tally.damaged > 8_000
    assert tally.damaged > 500
    assert tally.stopped > 500


@pytest.mark.exhaustive
@pytest.mark.skipif(compiler() is None, reason="no C compiler")
def test_no_sanitizer_reports_anything() -> None:
    command = [sys.executable, "-m", "tests.fuzz.scanner", "--seed", "2", "--count", "1000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.stdout.startswith("skipped"):
        pytest.skip(done.stdout + done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1,000 runs of XPlane" in done.stdout
    assert "1,000 blocks" in done.stdout

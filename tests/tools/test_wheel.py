"""The wheel is whole: installed elsewhere it reports on a trace, from another folder."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_built_wheel_reports_from_another_folder(tmp_path: Path) -> None:
    """Built and installed with what it depends on, into an environment without anything else."""

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            [str(part) for part in command], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    wheel = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps")
    run(*wheel, "--wheel-dir", tmp_path, ROOT)
    (built,) = tmp_path.glob("traceana-*.whl")
    venv.create(tmp_path / "clean")
    clean = tmp_path / "clean" / "bin"
    # The environment has no pip of its own: to get one takes longer than all the rest. What is not
    # imported need not be compiled.
    install = (sys.executable, "-m", "pip", "--python", clean / "python", "install", "--quiet")
    run(*install, "--no-compile", "--constraint", ROOT / "constraints.txt", built)
    screen = run(clean / "traceana", "report", ROOT / "fixtures" / "alexnet-cpu-ranges.json.gz")
    assert "convolution" in screen
    assert "traceana" in run(clean / "traceana", "--version")

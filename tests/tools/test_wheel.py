"""The wheels are whole: installed elsewhere they report on a trace, from another folder."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tools.build_scanner import LIBRARY, build

ROOT = Path(__file__).parents[2]
LARGEST: Final = 1_500_000
"""Bytes of a wheel."""
TRACE: Final = ROOT / "fixtures" / "alexnet-cpu-ranges.json.gz"

Execute = Callable[..., str]


def executing(folder: Path) -> Execute:
    """Return a function that runs a command in ``folder``, and returns its output."""

    def run(*command: str | Path, **environment: str) -> str:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=folder,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def wheel(run: Execute, folder: Path, **environment: str) -> Path:
    """Build a wheel into ``folder``."""
    words = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps")
    run(*words, "--wheel-dir", folder, ROOT, **environment)
    (built,) = folder.glob("traceana-*.whl")
    assert built.stat().st_size <= LARGEST
    return built


def libraries(built: Path) -> list[str]:
    """Return the compiled files in a wheel, and their source."""
    with zipfile.ZipFile(built) as archive:
        return [name for name in archive.namelist() if name.endswith((".so", ".c", ".part"))]


@pytest.mark.slow
def test_built_wheels_report_from_another_folder(tmp_path: Path) -> None:
    """Installed with what they depend on, into an environment without anything else."""
    run = executing(tmp_path)
    # A compiler that fails, as where there is none.
    pure = wheel(run, tmp_path / "pure", CC="false")
    assert pure.name.endswith("-py3-none-any.whl")
    assert libraries(pure) == []
    venv.create(tmp_path / "clean")
    clean = tmp_path / "clean" / "bin"
    # The environment has no pip of its own: to get one takes longer than all the rest. What is not
    # imported need not be compiled.
    pip = (sys.executable, "-m", "pip", "--python", clean / "python", "install", "--quiet")
    install = (*pip, "--no-compile", "--constraint", ROOT / "constraints.txt")
    run(*install, pure)
    assert "without the compiled scanner" in run(clean / "traceana", "--version")
    screen = run(clean / "traceana", "report", TRACE)
    assert "convolution" in screen
    if build(tmp_path) is None:
        pytest.skip("the scanner cannot be compiled here")
    compiled = wheel(run, tmp_path / "compiled")
    assert "-cp311-abi3-" in compiled.name
    assert libraries(compiled) == [f"traceana/ingest/chrome/{LIBRARY}"]
    run(*install, "--no-deps", "--force-reinstall", compiled)
    assert "with the compiled scanner" in run(clean / "traceana", "--version")
    assert run(clean / "traceana", "report", TRACE) == screen
    assert "compiled scanner" in run(clean / "traceana", "info", TRACE)

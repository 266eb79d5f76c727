"""``--inductor-cache``: folders without generated code, and traces to which it does not apply."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import Run
from tests.support.inductor import convolution, on_cpu
from traceana.errors import ExitCode

TRACE = Path(__file__).parents[2] / "fixtures" / "alexnet-cpu-ranges.json.gz"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Return a folder with the code of one graph."""
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / "cab.py").write_text(on_cpu([convolution("buf0", "x")]))
    return tmp_path


def test_a_folder_that_does_not_exist_is_one_line(run: Run, tmp_path: Path) -> None:
    result = run("layers", TRACE, "--inductor-cache", tmp_path / "missing")
    assert result.exit_code == ExitCode.NOT_FOUND
    assert (result.stdout, result.stderr.count("\n")) == ("", 1)
    assert "no such folder" in result.stderr


def test_a_folder_without_generated_code_is_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    result = run("layers", TRACE, "--inductor-cache", tmp_path)
    assert result.exit_code == ExitCode.USAGE
    assert (result.stdout, result.stderr.count("\n")) == ("", 1)
    assert "TORCHINDUCTOR_CACHE_DIR" in result.stderr


def test_a_saved_bundle_keeps_its_layers(run: Run, bundle: Path, cache: Path) -> None:
    result = run("layers", bundle, "--inductor-cache", cache)
    assert result.exit_code == ExitCode.USAGE
    assert "give --inductor-cache with the trace" in result.stderr


def test_code_of_other_graphs_is_one_line(run: Run, cache: Path) -> None:
    result = run("layers", TRACE, "--inductor-cache", cache)
    assert result.exit_code == ExitCode.USAGE
    assert (result.stdout, result.stderr.count("\n")) == ("", 1)
    assert "lacks the code of all its graphs; give the TORCHINDUCTOR_CACHE_DIR" in result.stderr

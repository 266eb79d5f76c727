"""A sweep of batches, for real, on the CPU."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.support.command_line import Run
from tests.support.frameworks import needs
from tests.support.recorded import recorded_sweep

pytestmark = pytest.mark.frameworks

needs("torch")

BATCHES = (1, 16)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record the small CIFAR-10 network at the ends of the sweep of batches."""
    folder = tmp_path_factory.mktemp("real") / "sweep"
    words = ["--framework", "pytorch", "--sweep", f"batch={','.join(map(str, BATCHES))}"]
    words += ["--network", "cifar10_quick", "--steps", "3", "--warm-up", "1"]
    return recorded_sweep(folder, *words)


@pytest.mark.exhaustive
def test_time_per_image_by_batch(sweep: Path, run: Run, tmp_path: Path) -> None:
    picture = tmp_path / "batch.svg"
    result = run("study", "batch", sweep, "--published", "--plot", picture, "-f", "json")
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    assert [(row["run"], row["batch"]) for row in rows] == [("PyTorch", one) for one in BATCHES]
    for row in rows:
        assert (row["status"], row["steps"], row["timed"]) == ("ok", 3, "with profiler")
        assert row["image_ns"] == pytest.approx(row["step_ns"] / row["batch"], abs=0.5)
        assert row["low_ns"] <= row["image_ns"] <= row["high_ns"]
        assert row["version"]
    drawn = ElementTree.parse(picture).getroot()
    texts = {"".join(one.itertext()) for one in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert {"cifar10_quick", "PyTorch", "1", "16"} <= texts

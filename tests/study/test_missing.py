"""A study's notes on missing runs: the points of a sweep, and valid commands to record others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.study.conftest import Make
from tests.support.command_line import Run
from tests.support.manifest import FIXTURES
from traceana.study.recorded_runs import NETWORKS, command
from traceana.study.step_times import batch_study, ratio_study
from workloads import networks


def test_the_networks_are_the_workloads() -> None:
    assert set(networks.NETWORKS) == NETWORKS


def test_a_workload_is_listed_with_its_options() -> None:
    assert command("JAX", "mlp", "--batch 8", sweep=("processes", (1, 2))) == (
        "traceana record --framework jax --network mlp --sweep processes=1,2 --batch 8 -o FOLDER"
    )


def test_a_script_is_the_users_own(make: Make) -> None:
    (one,) = batch_study([make(network="Net", batch=8)]).missing
    words = "traceana record --sweep batch=1,2,4,16,32,64,128,256,512 -o FOLDER"
    assert one.endswith(f"record more: {words} -- YOUR COMMAND {{batch}}")
    (other,) = ratio_study([make(network="Net", batch=8)]).missing
    assert other.endswith("record another: traceana record -o FOLDER -- YOUR COMMAND")


SWEEP = FIXTURES / "gpu" / "sweep_alexnet"
STOPPED = "sweep_alexnet: 1 of 5 runs not recorded (batch=256); record them: "
COMMAND = (
    "traceana record --framework pytorch --network alexnet --device cuda --profiler none "
    "--sweep batch=1,4,16,64,256 -o sweep_alexnet --resume"
)


@pytest.mark.parametrize("study", ["batch", "ratio", "scaling", "frameworks", "algorithms"])
def test_the_points_that_a_sweep_did_not_reach(study: str, run: Run) -> None:
    assert STOPPED + COMMAND in " ".join(run("study", study, SWEEP).stdout.split())
    result = json.loads(run("study", study, SWEEP, "-f", "json").stdout)
    assert result["meta"]["missing"][0] == STOPPED + COMMAND


def test_a_run_of_a_sweep_and_a_whole_sweep_miss_nothing(run: Run, tmp_path: Path) -> None:
    alone = json.loads(run("study", "batch", SWEEP / "batch=1", "-f", "json").stdout)
    assert not any("not recorded" in one for one in alone["meta"]["missing"])
    shutil.copytree(SWEEP, tmp_path / "in" / "whole")
    shutil.copytree(SWEEP / "batch=64", tmp_path / "in" / "whole" / "batch=256")
    whole = json.loads(run("study", "batch", tmp_path / "in", "-f", "json").stdout)
    assert not any("not recorded" in one for one in whole["meta"]["missing"])


def test_a_comparison_of_a_sweep(run: Run) -> None:
    assert STOPPED in " ".join(run("compare", SWEEP).stderr.split())


def test_the_sweep_of_a_script(run: Run, tmp_path: Path) -> None:
    sweep = {
        "version": 1,
        "axes": [{"name": "batch", "values": [str(at) for at in range(1, 12)]}],
        "points": [{"folder": f"batch={at}", "values": {"batch": str(at)}} for at in range(1, 12)],
        "argv": ["python", "my train.py", "--batch", "{batch}"],
        "profiler": "auto",
        "started_at": "2026-11-26T18:22:03+00:00",
    }
    shutil.copytree(SWEEP / "batch=1", tmp_path / "mine" / "batch=1")
    (tmp_path / "mine" / "traceana-sweep.json").write_text(json.dumps(sweep))
    found = json.loads(run("study", "batch", tmp_path, "-f", "json").stdout)
    assert found["meta"]["missing"][0] == (
        "mine: 10 of 11 runs not recorded (batch=2, batch=3, batch=4, batch=5, batch=6, batch=7, "
        "batch=8, batch=9 and 2 more); record them: traceana record --sweep "
        "batch=1,2,3,4,5,6,7,8,9,10,11 -o mine --resume -- python 'my train.py' --batch '{batch}'"
    )

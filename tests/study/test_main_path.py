"""The whole way on a machine without a GPU, for real: record, report, layers, diff, the studies."""

from __future__ import annotations

import gzip
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import traceana
from tests.support.command_line import Run
from tests.support.frameworks import needs
from tests.support.recorded import FRAMEWORKS, recorded_sweep
from traceana.analyze.communication import communication
from traceana.runs import Status, find_runs
from traceana.runs.layer_manifest import read
from workloads.network import Conv, Linear
from workloads.networks import NETWORKS

pytestmark = pytest.mark.frameworks

WEIGHTED = [each.name for each in NETWORKS["alexnet"]().layers if isinstance(each, Conv | Linear)]
NAMES = ("PyTorch", "Keras", "JAX")
TIMED = Path(__file__).resolve().parents[2] / "fixtures/algorithms/alexnet-cpu-onednn.json"
Rows = list[dict[str, Any]]


@pytest.fixture
def runs(alexnets: Path) -> list[Path]:
    return [alexnets / f"framework={one}" for one in FRAMEWORKS]


@pytest.fixture(scope="module")
def devices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record data-parallel processes that exchange their gradients by gloo."""
    needs("torch")
    words = ["--framework", "pytorch", "--network", "cifar10_quick", "--width-divisor", "8"]
    words += ["--sweep", "processes=1,2", "--batch", "8", "--steps", "3", "--warm-up", "1"]
    return recorded_sweep(tmp_path_factory.mktemp("devices") / "sweep", *words, "--threads", "1")


def document(run: Run, *words: object) -> Any:
    result = run(*words, "-f", "json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def by(rows: Rows, *keys: str) -> Mapping[Sequence[Any], dict[str, Any]]:
    return {tuple(row[key] for key in keys): row for row in rows}


def bare(layer: str) -> str:
    """Return the layer's name; scopes begin with the network's."""
    return layer.removeprefix("alexnet.")


def is_picture(path: Path) -> bool:
    if path.suffix == ".png":
        return path.read_bytes().startswith(b"\x89PNG")
    return ElementTree.parse(path).getroot().tag.endswith("svg")


def test_each_run_is_whole(alexnets: Path) -> None:
    found = find_runs([alexnets])
    assert [one.run.workload.framework for one in found if one.run.workload] == list(NAMES)
    for one in found:
        assert one.run.status is Status.COMPLETE
        timing, environment = one.timing(), one.environment()
        assert timing is not None
        assert timing.with_profiler is not None
        assert len(timing.with_profiler.steps_ns) == 2
        assert environment is not None
        assert {"numpy", "traceana"} <= set(environment.packages)
        assert one.layers is not None
        assert set(WEIGHTED) <= {layer.path for layer in read(one.layers).layers}


@pytest.mark.parametrize("number", range(3), ids=FRAMEWORKS)
def test_report_and_layers(number: int, runs: list[Path], run: Run) -> None:
    result = run("report", runs[number])
    assert result.exit_code == 0, result.stderr
    assert "Steps            2 (" in result.stdout
    assert "CPU time by class" in result.stdout
    rows = {bare(row["layer"]): row for row in document(run, "layers", runs[number])["rows"]}
    for layer in WEIGHTED:
        assert rows[layer]["forward_ns"] > 0, layer
        assert rows[layer]["backward_ns"] > 0, layer
    assert rows["conv1"]["flops_per_s"] > 0


def test_diff_and_compare(runs: list[Path], run: Run) -> None:
    rows = document(run, "diff", *runs[:2])["rows"]
    pairs = {row["a"]: row["b"] for row in rows}
    assert {layer: pairs[layer] for layer in WEIGHTED} == {
        one: f"alexnet.{one}" for one in WEIGHTED
    }
    rows = document(run, "compare", *runs, "--by", "layer")["rows"]
    items = [
        {row["run"]: bare(row["layer"]) for row in rows if row["item"] == n} for n in range(25)
    ]
    for layer in WEIGHTED:
        assert {f"framework={one}": layer for one in FRAMEWORKS} in items


def test_frameworks(alexnets: Path, run: Run, tmp_path: Path) -> None:
    picture = tmp_path / "frameworks.svg"
    made = document(run, "study", "frameworks", alexnets, "--published", "--plot", picture)
    rows = by(made["rows"], "run", "layer")
    for name in NAMES:
        for layer in WEIGHTED:
            assert rows[name, layer]["forward_ns"] > 0, (name, layer)
            assert rows[name, layer]["backward_ns"] > 0, (name, layer)
    assert {row["per"] for row in made["rows"]} == {"step"}
    assert is_picture(picture)


def test_epilogues(alexnets: Path, run: Run, tmp_path: Path) -> None:
    picture = tmp_path / "epilogues.png"
    made = document(run, "study", "epilogues", alexnets, "--published", "--plot", picture)
    rows = by(made["rows"], "run", "operation", "direction")
    # XLA makes one fusion of both.
    for name, library in (("PyTorch", "aten"), ("Keras", "tensorflow")):
        assert rows[name, "relu", "forward"]["library"] == library
        for direction in ("forward", "backward"):
            assert rows[name, "relu", direction]["time_ns"] > 0
            assert rows[name, "relu", direction]["calls"] == 7
    assert is_picture(picture)


def test_ratio(alexnets: Path, run: Run, tmp_path: Path) -> None:
    picture = tmp_path / "ratio.svg"
    rows = by(document(run, "study", "ratio", alexnets, "--plot", picture)["rows"], "run")
    assert set(rows) == {(name,) for name in NAMES}
    assert rows["PyTorch",]["relative_speed"] == 1
    for (name,), row in rows.items():
        expected = rows["PyTorch",]["step_ns"] / row["step_ns"]
        assert row["relative_speed"] == pytest.approx(expected), name
    assert is_picture(picture)


@pytest.mark.parametrize("name", ["algorithms", "layerwise"])
def test_timed_algorithms(name: str, run: Run, tmp_path: Path) -> None:
    picture = tmp_path / f"{name}.png"
    rows = document(run, "study", name, TIMED, "--plot", picture)["rows"]
    assert {row["direction"] for row in rows} == {"fprop", "dgrad", "wgrad"}
    assert {"direct", "gemm", "winograd_nonfused"} <= {row["algorithm"] for row in rows}
    assert is_picture(picture)


@pytest.mark.parametrize("name", ["sgemm", "transfers"])
def test_rows_without_cpu_figures_have_a_note(name: str, alexnets: Path, run: Run) -> None:
    result = run("study", name, alexnets, "--published")
    assert result.exit_code == 0, result.stderr
    assert "on a CPU" in result.stdout or "CPU operators" in result.stdout


@pytest.mark.exhaustive
def test_scaling(devices: Path, run: Run, tmp_path: Path) -> None:
    picture = tmp_path / "scaling.svg"
    made = document(run, "study", "scaling", devices, "--plot", picture)
    assert [row["devices"] for row in made["rows"]] == [1, 2]
    assert made["rows"][0]["speedup"] == 1
    for one, row in zip(find_runs([devices]), made["rows"], strict=True):
        assert len(one.run.traces) == row["devices"]
        assert row["step_ns"] > 0
        if row["devices"] > 1:
            assert 0 < row["communication_share"] < 1
            # Every gradient is sent once.
            assert row["reduced_bytes"] == row["parameter_bytes"]
    assert is_picture(picture)


@pytest.mark.exhaustive
def test_each_process_writes_its_own_trace(devices: Path) -> None:
    both = traceana.open(devices / "processes=2")
    assert both.tables.activities["rank"].unique().sort().to_list() == [0, 1]
    steps = communication(both)
    assert steps.totals["ranks"] == 2
    assert steps.frame.height == 2 * 3
    assert (steps.frame["communication_ns"] > 0).all()
    assert (steps.frame["exposed_ns"] <= steps.frame["communication_ns"]).all()
    for rank in range(2):
        file = devices / "processes=2" / f"trace.rank{rank}.json.gz"
        events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
        named = [event for event in events if event.get("name") == "aten::conv2d"]
        # They share the batch of 8.
        assert named[0]["args"]["Input Dims"][0] == [4, 3, 32, 32]

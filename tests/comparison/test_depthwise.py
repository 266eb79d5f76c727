"""A depthwise CNN in three frameworks: layers are paired by their names."""

from __future__ import annotations

import subprocess
import sys
from itertools import combinations
from pathlib import Path

import polars as pl
import pytest

import traceana
from tests.comparison.shared import diff
from tests.support import depthwise
from tests.support.depthwise import NAMES
from tests.support.forked import with_keras
from tests.support.frameworks import needs
from traceana.comparison.layer_features import plain_name
from traceana.trace import Trace

pytestmark = pytest.mark.frameworks

FRAMEWORKS = ("keras", "torch", "flax")
UNNAMED = "functions"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trace]:
    needs("tensorflow", "torch", "flax")
    folder = tmp_path_factory.mktemp("depthwise")
    with_keras(folder / "log", depthwise.keras, folder / "keras")
    for framework in ("torch", "flax", UNNAMED):
        command = [sys.executable, "-m", "tests.support.depthwise", framework]
        subprocess.run(
            [*command, str(folder / framework)],
            check=True,
            capture_output=True,
            cwd=Path(__file__).parents[2],
        )
    files = {name: folder / name for name in (*FRAMEWORKS, UNNAMED)}
    files["torch"] /= "trace.json"
    return {name: traceana.open(file) for name, file in files.items()}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("a", "b"), [*combinations(FRAMEWORKS, 2)])
def test_every_layer_is_paired_by_its_name(a: str, b: str, runs: dict[str, Trace]) -> None:
    found = diff(runs[a], runs[b])
    layers = found.pairs.filter(pl.col("role") == "layer")
    pairs = layers.drop_nulls(["a", "b"]).select("a", "b").rows()
    names = [
        (plain_name(one).split(".")[-1], plain_name(other).split(".")[-1]) for one, other in pairs
    ]
    assert {one for one, _ in names} >= set(NAMES)
    assert all(one == other for one, other in names if {one, other} & set(NAMES))
    table = found.by("layer").filter(pl.col("role") == "layer")
    assert table["delta_ns"].null_count() == 0
    assert found.by("layer")["delta_ns"].sum() == found.by("class")["delta_ns"].sum()


@pytest.mark.exhaustive
def test_layers_that_are_functions_of_a_module_are_no_saving(runs: dict[str, Trace]) -> None:
    """Flax runs activations and the pooling as functions of the module: its row has their time."""
    found = diff(runs["keras"], runs[UNNAMED])
    layers = found.pairs.filter(pl.col("role") == "layer")
    module = layers.filter(pl.col("b") == "Net")
    assert module["a"].to_list() == ["Net"]
    names = {plain_name(one) for one in layers["a"].drop_nulls()}
    assert not names & {"net.relu1", "net.relu2", "net.relu3", "net.pool"}
    (change,) = found.changes.filter(pl.col("change") == "layers").to_dicts() or [{}]
    assert not change.get("count_b", 0)

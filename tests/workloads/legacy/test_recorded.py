"""Recordings of the studies' frameworks, made for docs/studies.md."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import polars as pl
import pytest

import traceana
from tests.support.manifests import manifest_of
from traceana.analyze.layers import layers
from traceana.runs.layer_manifest import read
from workloads.networks import NETWORKS
from workloads.options import RunOptions
from workloads.provenance import stem

FOLDER = Path(__file__).resolve().parents[3] / "fixtures" / "legacy"
RECORDINGS = sorted(FOLDER.glob("*.json.gz"))
PRIVATE = re.compile(r"/(?:home|root|work|tmp|Users)/|\w@[a-z]{3}")


def test_nothing_lies_there_unexplained() -> None:
    stems = [stem(file) for file in RECORDINGS]
    expected = {file.name for file in RECORDINGS}
    expected |= {f"{name}.{kind}.json" for name in stems for kind in ("provenance", "layers")}
    assert {path.name for path in FOLDER.iterdir()} == expected
    explained = (FOLDER.parent / "README.md").read_text("utf-8")
    assert all(f"| `{file.name}` |" in explained for file in RECORDINGS)


@pytest.mark.parametrize("file", RECORDINGS, ids=lambda file: file.name)
def test_provenance(file: Path) -> None:
    text = file.with_name(f"{stem(file)}.provenance.json").read_text("utf-8")
    facts = json.loads(text)
    assert facts["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert facts["bytes"] == file.stat().st_size
    assert facts["recorder"]["version"]
    assert not PRIVATE.search(text)
    manifest = file.with_name(f"{stem(file)}.layers.json")
    assert read(manifest) == manifest_of(RunOptions(network="alexnet", batch=8))


def test_caffes_layers_have_their_names_and_both_passes() -> None:
    trace = traceana.open(FOLDER / "alexnet-cpu-caffe.json.gz")
    frame = layers(trace).frame
    names = [layer.name for layer in NETWORKS["alexnet"]().layers]
    assert frame["layer"].to_list() == ["images", "labels", *names, "loss", "(optimizer)"]
    weighted = frame.filter(pl.col("layer").str.contains(r"^(?:conv|fc)\d$"))
    assert weighted.height == 8
    assert (weighted["forward_ns"] > 0).all()
    assert (weighted["backward_ns"] > 0).all()
    assert trace.tables.steps["number"].to_list() == [0, 1, 2]
    assert frame["time_ns"].sum() == trace.tables.activities["duration"].sum()


def test_cntks_steps_and_phases() -> None:
    trace = traceana.open(FOLDER / "alexnet-cpu-cntk.json.gz")
    assert trace.tables.steps["number"].to_list() == [0, 1, 2]
    named = trace.tables.activities.with_columns(
        trace.tables.names["name"].gather(trace.tables.activities["name_id"]).alias("name")
    )
    assert named["name"].to_list() == ["__Forward + Backward", "__Weight Update"] * 3
    # One span for both passes: of neither.
    assert named["direction"].null_count() == named.height
    assert named["step"].to_list() == [0, 0, 1, 1, 2, 2]


def test_caffe_and_pytorch_are_paired_layer_by_layer() -> None:
    pytorch = traceana.open(FOLDER.parent / "alexnet-cpu-ranges.json.gz")
    caffe = traceana.open(FOLDER / "alexnet-cpu-caffe.json.gz")
    pairs = traceana.diff(pytorch, caffe).summary.pairs
    names = {layer.name for layer in NETWORKS["alexnet"]().layers} | {"loss", "(optimizer)"}
    paired = pairs.drop_nulls(["a", "b"])
    assert paired["a"].to_list() == paired["b"].to_list()
    assert set(paired["a"]) == names

"""Keras' default names: scopes with numbers are of the layers that they really are."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import msgspec
import polars as pl
import pytest

import traceana
from tests.comparison.shared import diff
from tests.support.forked import with_keras
from tests.support.frameworks import needs
from tests.support.keras_names import all_of_keras, all_of_pytorch
from traceana.analyze.layers import layers
from traceana.analyze.manifest_layers import paired, with_names_of
from traceana.comparison.diff import Diff
from traceana.runs.layer_manifest import Layer, Manifest, find, read
from traceana.trace import Trace

pytestmark = pytest.mark.frameworks

NETWORKS = ("vgg11", "unet", "mobilenet", "densenet")
ALONE = (
    *("sequential", "built-again", "nested", "recurrent", "subclassed", "mixed"),
    *(f"{network}-default" for network in NETWORKS),
)
FLOPS_UNKNOWN = ("TimeDistributed", "Bidirectional", "GRU")


@pytest.fixture(scope="session")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All recordings of Keras, of one process, and those of PyTorch."""
    needs("tensorflow", "torch")
    folder = tmp_path_factory.mktemp("names")
    with_keras(folder / "log", all_of_keras, folder)
    all_of_pytorch(folder)
    return folder


@cache
def opened(file: Path) -> tuple[Trace, Manifest]:
    beside = find(file)
    assert beside is not None
    return traceana.open(file), read(beside)


def of_keras(recordings: Path, name: str) -> tuple[Trace, Manifest]:
    return opened(recordings / f"{name}.xplane.pb")


def weighted(model: Manifest) -> list[Layer]:
    return [layer for layer in model.layers if layer.parameters]


def dotted(layer: Layer) -> str:
    return layer.path.replace("/", ".")


@pytest.mark.exhaustive(after=3)
@pytest.mark.parametrize("name", ALONE)
def test_every_layer_of_the_manifest_has_its_own_row(recordings: Path, name: str) -> None:
    trace, model = of_keras(recordings, name)
    frame = layers(trace, model=model).frame
    rows = {row["layer"]: row for row in frame.iter_rows(named=True)}
    for layer in weighted(model):
        row = rows[dotted(layer)]
        assert row["type"] == layer.type
        assert row["input_shape"] == str([*layer.inputs[0]])
        assert row["output_shape"] == str([*layer.outputs[0]])
    assert int(frame["time_ns"].sum()) == int(layers(trace).frame["time_ns"].sum())


@pytest.mark.parametrize("name", ALONE)
def test_forward_flops_are_the_manifest_s(recordings: Path, name: str) -> None:
    trace, model = of_keras(recordings, name)
    passes = layers(trace, model=model, direction=True).frame
    forward = passes.filter(pl.col("direction") == "forward")
    found = dict(forward.select("layer", "flops").iter_rows())
    for layer in weighted(model):
        if layer.type not in FLOPS_UNKNOWN and "Norm" not in layer.type:
            assert found[dotted(layer)] == (layer.flops or 0) * trace.tables.steps.height


@pytest.mark.parametrize("name", ALONE)
def test_nothing_else_is_taken_for_a_layer(recordings: Path, name: str) -> None:
    """The number behind a scope is that of TensorFlow; without it, it is the layer's name."""
    trace, model = of_keras(recordings, name)
    found = paired(trace, model)
    calls = Counter(layer.path for layer in found.layer_of.values())
    for row, layer in found.layer_of.items():
        scope, path = trace.tables.layers["path"][row].split("."), layer.path.split("/")
        assert len(scope) == len(path)
        for of_trace, of_model in zip(scope, path, strict=True):
            assert re.fullmatch(rf"{re.escape(of_model)}(_\d+)?", of_trace)
        assert calls[layer.path] <= layer.calls
    assert not found.unclear


@pytest.mark.parametrize("name", ALONE)
def test_names_given_once_stay(recordings: Path, name: str) -> None:
    trace, model = of_keras(recordings, name)
    once = with_names_of(trace, model)
    assert with_names_of(once, model).tables.layers.equals(once.tables.layers)
    assert once.tables.activities["duration"].sum() == trace.tables.activities["duration"].sum()
    assert (
        once.tables.activities["layer"].is_null().sum()
        == trace.tables.activities["layer"].is_null().sum()
    )


def test_a_model_that_is_called_twice_has_both_calls(recordings: Path) -> None:
    trace, model = of_keras(recordings, "called-twice")
    found = paired(trace, model)
    calls = Counter(layer.path for layer in found.layer_of.values())
    assert {calls[layer.path] for layer in weighted(model)} == {2}


@cache
def compared(recordings: Path, a: str, b: str) -> Diff:
    return diff(opened(recordings / a)[0], opened(recordings / b)[0])


def alone(found: Diff) -> tuple[list[str], list[str]]:
    """Return the layers of both runs that have no partner."""
    pairs = found.alignment.pairs
    sides = (
        (found.baseline.layers.layers, {pair.a for pair in pairs}),
        (found.candidate.layers.layers, {pair.b for pair in pairs}),
    )
    of_a, of_b = (
        [layer.label for place, layer in enumerate(layers) if place not in paired]
        for layers, paired in sides
    )
    return of_a, of_b


def truth_of_pytorch(file: Path) -> dict[str, int]:
    """Return by row the number of the layer with weights, as constructed.

    The profiler numbers the instances of a class in order of their first call.
    """
    trace, model = opened(file)
    of_type = defaultdict(list)
    for number, layer in enumerate(weighted(model)):
        of_type[layer.framework_type.rpartition(".")[2]].append(number)
    found = {}
    for path, kind in trace.tables.layers.filter(pl.col("role") == "layer")[
        "path", "type"
    ].iter_rows():
        counted = re.search(r"_(\d+)$", path)
        if counted and kind in of_type:
            found[path] = of_type[kind][int(counted[1])]
    return found


def truth_of_keras(file: Path) -> dict[str, int]:
    return {dotted(layer): number for number, layer in enumerate(weighted(opened(file)[1]))}


@pytest.mark.exhaustive(after=1)
@pytest.mark.parametrize("network", NETWORKS)
def test_weighted_layers_are_paired_with_pytorch_s(recordings: Path, network: str) -> None:
    names = f"{network}-pytorch.json.gz", f"{network}-default.xplane.pb"
    found = compared(recordings, *names)
    theirs = truth_of_pytorch(recordings / names[0])
    ours = truth_of_keras(recordings / names[1])
    assert len(theirs) == len(ours)
    reported = [
        (
            theirs.get(found.baseline.layers.layers[p.a].label),
            ours.get(found.candidate.layers.layers[p.b].label),
            p,
        )
        for p in found.alignment.pairs
    ]
    assert all(a == b for a, b, p in reported if p.confidence > 0.9)
    right = sum(a == b is not None for a, b, _ in reported)
    assert right >= 0.95 * len(ours)


@pytest.mark.parametrize("network", NETWORKS[:3])
def test_a_model_with_names_is_paired_with_itself_without(recordings: Path, network: str) -> None:
    names = f"{network}-own.xplane.pb", f"{network}-default.xplane.pb"
    found = compared(recordings, *names)
    of_a, of_b = (truth_of_keras(recordings / name) for name in names)
    pairs = {
        (
            of_a.get(found.baseline.layers.layers[p.a].label),
            of_b.get(found.candidate.layers.layers[p.b].label),
        )
        for p in found.alignment.pairs
    }
    assert pairs - {(None, None)} == {(number, number) for number in of_a.values()}
    assert alone(found) == ([], [])


@pytest.mark.parametrize(("trace_of", "model_of"), [("vgg11", "mobilenet"), ("unet", "sequential")])
def test_a_manifest_of_another_model_is_not_used(
    recordings: Path, trace_of: str, model_of: str
) -> None:
    """Both have layers ``conv2d``, ``conv2d_1`` … where each process gives these names anew."""
    trace, own = of_keras(recordings, f"{trace_of}-default")
    _, other = of_keras(recordings, f"{model_of}-default" if model_of in NETWORKS else model_of)
    wrong = renumbered(other, own.layers[0].path.partition("/")[0])
    found = paired(trace, wrong)
    assert found.another or not found.layer_of
    assert not found.layer_of
    note = "layer manifest not used: it describes another model"
    assert not found.another or note in layers(trace, model=wrong).notes


def renumbered(model: Manifest, root: str) -> Manifest:
    """Return ``model`` as a process describes it that makes no other."""
    counts: Counter[str] = Counter()
    made = []
    for layer in model.layers:
        name = re.sub(r"_\d+$", "", layer.path.rpartition("/")[2])
        number, counts[name] = counts[name], counts[name] + 1
        path = f"{root}/{name}" + (f"_{number}" if number else "")
        made.append(msgspec.structs.replace(layer, path=path))
    return msgspec.structs.replace(model, layers=tuple(made))

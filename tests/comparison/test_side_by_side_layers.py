"""The layers of several runs in one row each: never by position, never lost, never twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

from tests.comparison.shared import compare
from tests.support.networks import network
from tests.support.training import KERNELS, LAYERS, training
from traceana.analyze.layers import layers
from traceana.comparison.compared_run import Run
from traceana.comparison.layer_features import RunLayers
from traceana.comparison.layer_rows import aligned
from traceana.comparison.run_tables import Comparison, layer_table

FIXTURES = Path(__file__).parents[2] / "fixtures"
WEIGHTED = ("conv1", "conv2", "conv3", "conv4", "conv5", "fc6", "fc7", "fc8")


def run_of(label: str, layers: Sequence[tuple[str, str]], **options: object) -> Run:
    return Run(label, training(layers=layers, **options))  # type: ignore[arg-type]


def of_side(label: str, side: RunLayers) -> Run:
    """Return a run with only its layers."""
    found = Run(label, training(steps=1))
    found.layers = side
    return found


def test_a_layer_that_one_run_lacks_moves_no_other() -> None:
    runs = [
        run_of("short", [one for one in LAYERS if one[0] != "relu1"]),
        run_of("whole", LAYERS),
        run_of("shorter", [one for one in LAYERS if one[0] not in ("conv1", "pool")]),
    ]
    found = layer_table(runs)
    layers = found.frame.filter(role="layer")
    assert (layers["layer"] == layers["path"]).all()
    wide = found.pivot().filter(role="layer")
    assert wide["layer"].to_list() == [name for name, _ in LAYERS]
    for run, lacks in (("short", {"relu1"}), ("whole", set()), ("shorter", {"conv1", "pool"})):
        assert set(wide.filter(pl.col(f"{run} step_ns").is_null())["layer"]) == lacks
    assert set(layers.filter(run="whole")["confidence"]) == {None}
    others = layers.filter(pl.col("run") != "whole")["confidence"]
    assert others.null_count() == 0
    assert others.min() > 0.5  # type: ignore[operator]


def test_what_the_largest_run_lacks_is_paired_among_the_others() -> None:
    base = network(3)
    extra = network(77).layers[:2]
    small = base.layers[:-3]
    with_extra = RunLayers((*small[:10], *extra, *small[10:]), None)
    runs = [of_side("a", with_extra), of_side("b", base), of_side("c", with_extra)]
    rows = aligned(runs)
    placed = Counter((at, one.index) for row in rows for at, one in row.items())
    assert max(placed.values()) == 1
    assert len(placed) == sum(len(run.layers.layers) for run in runs)
    of_extra = [row for row in rows if 0 in row and row[0].index in (10, 11)]
    assert [{at: one.index for at, one in row.items()} for row in of_extra] == [
        {0: 10, 2: 10},
        {0: 11, 2: 11},
    ]
    # They stand where they stand in their run.
    assert [row[0].index for row in rows if 0 in row] == list(range(len(with_extra.layers)))


def test_the_order_of_runs_decides_the_names_alone() -> None:
    runs = [run_of("a", LAYERS[1:]), run_of("b", LAYERS), run_of("c", LAYERS[:-1])]
    there, back = layer_table(runs).frame, layer_table(runs[::-1]).frame
    keys = ["run", "layer", "path", "confidence", "time_ns", "step_ns"]
    assert there.select(keys).sort(keys).equals(back.select(keys).sort(keys))


def test_times_of_passes_add_up_and_are_those_of_the_single_run() -> None:
    slower = {**KERNELS, "fc": (("hgemm", 9_000), ("bias", 1_000))}
    runs = [run_of("a", LAYERS), run_of("b", LAYERS, kernels=slower, seed=5)]
    frame = layer_table(runs).frame
    for prefix in ("", "step_"):
        parts = [pl.col(f"{prefix}{one}_ns") for one in ("forward", "backward", "other")]
        whole = "time_ns" if not prefix else "step_ns"
        assert frame.select((sum(parts[1:], parts[0]) == pl.col(whole)).all()).item()
    assert (
        frame.group_by("run").agg(pl.col("share").sum())["share"].to_list()
        == [pytest.approx(1.0)] * 2
    )


@pytest.fixture(scope="module")
def frameworks() -> Comparison:
    return compare(
        {
            "pytorch": FIXTURES / "alexnet-cpu-ranges.json.gz",
            "keras": FIXTURES / "xplane" / "alexnet-cpu-keras.xplane.pb",
            "jax": FIXTURES / "xplane" / "alexnet-cpu-jax.xplane.pb",
        }
    )


@pytest.mark.slow
def test_weighted_layers_of_three_frameworks_stand_in_one_row_each(frameworks: Comparison) -> None:
    rows = frameworks.by("layer").frame.filter(role="layer")
    for layer in WEIGHTED:
        (item,) = rows.filter(run="pytorch", path=layer)["item"]
        paths = rows.filter(item=item)
        assert paths["run"].to_list() == ["pytorch", "keras", "jax"]
        assert {path.rpartition(".")[2] for path in paths["path"]} == {layer}


def test_layers_are_those_of_each_run_alone(frameworks: Comparison) -> None:
    columns = ["calls", "forward_ns", "backward_ns", "other_ns", "time_ns"]
    for run in frameworks.runs:
        alone = layers(run.trace, costs=False).frame
        found = frameworks.by("layer").frame.filter(run=run.label)
        assert sorted(found.select("path", "role", *columns).iter_rows()) == sorted(
            alone.select("layer", "role", *columns).iter_rows()
        )
        assert found["share"].sum() == pytest.approx(1.0)


def test_three_frameworks_have_images_and_flops(frameworks: Comparison) -> None:
    pytorch, keras, jax = frameworks.by("summary").frame.to_dicts()
    assert [one["batch"] for one in (pytorch, keras, jax)] == [8, 4, 4]
    for one in (pytorch, keras, jax):
        assert one["image_ns"] == one["wall_ns"] // one["batch"]
        assert one["flops_per_s"] == pytest.approx(one["flops"] / one["mean_wall_ns"] * 1e9)
    counted = layers(frameworks.runs[0].trace).frame.filter(role="layer")["flops"].sum()
    assert pytorch["flops"] == pytest.approx(counted / 3)
    # The same network: operations per image differ by what each computes beside the layers.
    assert pytorch["flops"] / 8 == pytest.approx(keras["flops"] / 4, rel=0.01)
    assert keras["flops"] == pytest.approx(jax["flops"], rel=0.01)

"""Tables of an algorithm study, in figures that can be added by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.workloads.algorithms.test_file import layer, measurement, study
from traceana.flops.timed_algorithms import Layer, read
from traceana.study.timed_convolutions import MEASUREMENTS, by_batch, by_layer, measurements

FIXTURE = Path(__file__).resolve().parents[3] / "fixtures/algorithms/alexnet-cpu-onednn.json"


def wide(path: str) -> Layer:
    return layer(path, in_channels=4, out_channels=4, input=(8, 8), output=(8, 8))


def table(*rows: dict[str, Any]) -> pl.DataFrame:
    made = tuple(measurement(**row) for row in rows)
    return measurements(study(layers=(wide("conv1"), wide("conv2")), measurements=made))


WINOGRAD = {"algorithm": "winograd_nonfused", "name": "convolution_winograd"}
ABSENT = {"status": "unsupported", "reason": "no such shape"}
TIMED = (
    {"times_ns": (30, 10, 20), "workspace_bytes": 0},
    {"times_ns": (15, 15), "workspace_bytes": 7, "implementation": "other"},
    {"times_ns": (8,), "workspace_bytes": 100, **WINOGRAD},
    {"layer": "conv2", "times_ns": (40,), "workspace_bytes": 3},
    {"layer": "conv2", **WINOGRAD, **ABSENT},
    {"layer": "conv2", "times_ns": (50,), "batch": 8},
)


def test_one_row_a_measurement() -> None:
    frame = table(*TIMED)
    assert dict(frame.schema) == {
        name: kind if isinstance(kind, pl.DataType) else kind()
        for name, kind in MEASUREMENTS.items()
    }
    assert frame["median_ns"].to_list() == [20.0, 15.0, 8.0, 40.0, None, 50.0]
    assert frame["position"].to_list() == [0, 0, 0, 1, 1, 1]
    assert frame["times_ns"].to_list()[4] is None
    assert set(frame["family"]) == {"direct", "winograd"}


def test_operations_of_each_algorithm() -> None:
    """2 · N · K · P · Q · C · R · S, and of F(4x4, 3x3) 36 products for 16 results."""
    frame = table(*TIMED)
    direct = 2 * 4 * 4 * 8 * 8 * 4 * 9
    assert frame["direct_flops"].to_list() == [direct] * 5 + [2 * direct]
    assert frame["executed_flops"].to_list()[:2] == [direct, direct]
    tiles = 4 * 2 * 2  # images, and 4 x 4 results each
    products = 2 * 36 * tiles * 4 * 4
    # Each tile of 4 channels there and 4 back takes 144 and 100 operations or more, for the paper
    # counts a multiplication fused with an addition as one.
    assert frame["executed_flops"][2] > products + tiles * 4 * (144 + 100)
    assert frame["direct_flops_per_s"][0] == pytest.approx(direct / 20e-9)


def test_a_refused_count_has_its_reason() -> None:
    made = study(
        layers=(layer(stride=(2, 2), output=(5, 4)),),
        measurements=(measurement(layer="conv", algorithm="fft", **ABSENT),),
    )
    frame = measurements(made)
    assert frame["executed_flops"].to_list() == [None]
    assert frame["flops_reason"].to_list() == ["FFT: stride 1 only"]


def test_by_layer_has_the_fastest_of_each_algorithm() -> None:
    frame = by_layer(table(*TIMED), 4)
    assert frame.select("layer", "algorithm", "median_ns", "status").rows() == [
        ("conv1", "direct", 15.0, "ok"),
        ("conv1", "winograd_nonfused", 8.0, "ok"),
        ("conv2", "direct", 40.0, "ok"),
        ("conv2", "winograd_nonfused", None, "unsupported"),
    ]


def test_by_batch_sums_over_the_layers_that_ran() -> None:
    frame = by_batch(table(*TIMED))
    common = frame.select("algorithm", "common_layers", "common_ns").rows()
    assert common == [("winograd_nonfused", 1, 8.0), ("direct", 1, 15.0), ("direct", 1, 50.0)]
    frame = frame.drop("direction", "family", "common_layers", "common_ns")
    assert frame.rows(named=True) == [
        {
            **{"batch": 4, "algorithm": "winograd_nonfused", "layers": 1, "of_layers": 2},
            **{"median_ns": 8.0, "fastest_ns": 8.0, "workspace_bytes": 100},
        },
        {
            **{"batch": 4, "algorithm": "direct", "layers": 2, "of_layers": 2},
            **{"median_ns": 55.0, "fastest_ns": 48.0, "workspace_bytes": 7},
        },
        {
            **{"batch": 8, "algorithm": "direct", "layers": 1, "of_layers": 1},
            **{"median_ns": 50.0, "fastest_ns": 50.0, "workspace_bytes": None},
        },
    ]


def test_nothing_measured() -> None:
    frame = table()
    assert frame.height == 0
    assert by_batch(frame).height == 0
    assert by_layer(frame, 1).height == 0


def test_directions_are_in_their_order() -> None:
    rows = [{"direction": direction, "times_ns": (1,)} for direction in ("wgrad", "dgrad", "fprop")]
    expected = ["fprop", "dgrad", "wgrad"]
    assert by_layer(table(*rows), 4)["direction"].to_list() == expected
    assert by_batch(table(*rows))["direction"].to_list() == expected


def test_the_recorded_study() -> None:
    """AlexNet on a CPU: Winograd runs for its three 3x3 convolutions, in every direction."""
    frame = measurements(read(FIXTURE))
    assert set(frame["status"]) == {"ok", "unsupported", "left_out"}
    assert frame.filter(pl.col("status") == "ok")["error"].max() < 1e-4  # type: ignore[operator]
    batches = by_batch(frame)
    assert set(batches["of_layers"]) == {5}
    assert set(batches.filter(pl.col("family") == "winograd")["layers"]) == {3}
    assert set(batches.filter(pl.col("family") != "winograd")["layers"]) == {5}
    fewer = by_layer(frame, 4).filter(pl.col("algorithm") == "winograd_nonfused")
    assert (fewer["executed_flops"] * 2 < fewer["direct_flops"]).all()

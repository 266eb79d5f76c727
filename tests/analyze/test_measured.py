"""Measured figures beside the timeline's, each known in closed form."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from tests.support.traces import TraceBuilder, cnn_steps
from traceana.analyze.classes import breakdown
from traceana.analyze.facts import facts
from traceana.analyze.kernels import kernels
from traceana.analyze.layers import layers
from traceana.analyze.measured import COLUMNS as MEASURED
from traceana.enrich.counters import with_counters
from traceana.table import names_of
from traceana.timeline.steps import select
from traceana.trace import Tables, Trace, TraceMeta
from traceana.trace.merge import merge
from traceana.trace.schema import conform

LAUNCH: dict[str, Any] = {
    "duration": 9_999,
    "dram_bytes": 1_000,
    **{f"fp32_{operation}": 100 for operation in ("add", "mul", "fma")},
    "tensor_ops": 600,
    "tensor_active_percent": 50.0,
}

NAMES = names_of(MEASURED)


def launches(*rows: tuple[str, dict[str, Any]]) -> pl.DataFrame:
    table = [{"launch": i, "name": name, **LAUNCH, **own} for i, (name, own) in enumerate(rows)]
    return conform("counters", pl.DataFrame(table, infer_schema_length=None))


def measured() -> Trace:
    """Return ``cnn_steps`` with the counters of its first step: all but the layout change."""
    step = ["scudnn", "relu", "winograd", "sgemmBatched", "scudnn", "adam"]
    own: list[dict[str, Any]] = [{"tensor_active_percent": 20.0}, {}, {}, {}, {}]
    own.append({"dram_bytes": None})
    return with_counters(cnn_steps(), launches(*zip(step, own, strict=True)))


def row(frame: pl.DataFrame, **where: str) -> dict[str, Any]:
    return frame.filter(**where).row(0, named=True)


def test_figures_of_a_kernel() -> None:
    convolution = row(kernels(measured()).frame, name="scudnn")
    # Two of six launches: 1000 ns and 2000 ns of the timeline.
    assert {key: convolution[key] for key in NAMES} == {
        "measured": 2,
        "ncu_ns": 2 * 9_999,
        "measured_flops": 2 * (100 + 100 + 200 + 600),
        "fp64_flops": None,
        "fp32_flops": 2 * 400,
        "fp16_flops": None,
        "tensor_flops": 1_200,
        "measured_flops_per_s": pytest.approx(2_000 / 3_000e-9),
        "dram_bytes": 2_000,
        "dram_bytes_per_s": pytest.approx(2_000 / 3_000e-9),
        "tensor_active": pytest.approx((0.2 * 1_000 + 0.5 * 2_000) / 3_000),
        "occupancy": None,
        "sm_efficiency": None,
    }
    assert convolution["calls"] == 6


def test_what_was_not_measured_is_null_and_not_0() -> None:
    frame = kernels(measured()).frame
    layout = row(frame, name="nchwToNhwc")
    assert [layout[key] for key in NAMES] == [0, *[None] * (len(NAMES) - 1)]
    assert row(frame, name="adam")["dram_bytes"] is None
    assert kernels(cnn_steps()).frame.select(NAMES).null_count().row(0) == (6,) * len(NAMES)


def test_totals_and_notes_of_measurements() -> None:
    result = kernels(measured())
    assert result.totals["measured_flops"] == 6 * 1_000
    assert result.totals["dram_bytes"] == 5 * 1_000
    assert "measured by Nsight Compute: 6 of 21 kernels" in result.notes
    assert "kernels of measured names without a measurement: 12" in result.notes
    assert "FLOP counters not measured: fp64, fp16" in result.notes
    assert set(result.notes[1:]) <= set(breakdown(measured()).notes)
    assert "measured_flops" not in kernels(cnn_steps()).totals


def test_active_tensor_cores_without_counted_operations_have_a_note() -> None:
    reported = kernels(with_counters(cnn_steps(), launches(("relu", {"tensor_ops": 0})))).notes
    assert any("tensor FLOPs too low: 1 launches" in note for note in reported)
    assert not any("tensor FLOPs too low" in note for note in kernels(measured()).notes)


def test_figures_of_a_layer() -> None:
    result = layers(measured())
    first = row(result.frame, layer="features.0")
    assert [first[key] for key in ("measured", "measured_flops", "dram_bytes")] == [2, 2_000, 2_000]
    assert first["measured_flops_per_s"] == pytest.approx(2_000 / 3_000e-9)
    assert result.totals["measured_flops"] == 6_000
    both = layers(measured(), direction=True).frame
    assert row(both, layer="features.0", direction="backward")["measured_flops"] == 1_000
    assert row(layers(cnn_steps()).frame, layer="features.0")["measured_flops"] is None


def test_counters_go_with_the_selected_steps() -> None:
    trace = measured()
    first = select(trace, steps=[1])
    assert kernels(first).totals["measured_flops"] == 6_000
    assert row(kernels(first).frame, name="scudnn")["measured_flops_per_s"] == pytest.approx(
        2e12 / 3_000
    )
    assert select(trace, steps=[2, 3]).tables.counters.is_empty()
    assert kernels(select(trace, devices=[0])).totals["measured_flops"] == 6_000


def test_a_launch_that_the_timeline_lacks_is_kept_through_a_selection() -> None:
    trace = with_counters(cnn_steps(), launches(("never run", {}), ("relu", {})))
    assert select(trace, steps=[2]).tables.counters["name"].to_list() == ["never run"]


def test_counters_go_with_their_rank() -> None:
    plain, with_them = TraceBuilder(), TraceBuilder()
    plain.kernel("other", 0, 7)
    with_them.kernel("k", 0, 10)
    ranked = with_counters(with_them.build(), launches(("k", {})))
    merged = merge([plain.build(), ranked], [0, 1], TraceMeta(source="a", format="kineto"))
    assert row(kernels(merged).frame, name="k")["measured_flops"] == 1_000
    assert kernels(select(merged, ranks=[1])).totals["measured_flops"] == 1_000


def test_counters_alone_are_shown_by_kernel() -> None:
    counters = launches(("k", {}), ("slow", {"duration": 50_000}), ("k", {}))
    names = conform("names", pl.DataFrame({"name": ["k", "slow"]}))
    trace = Trace(
        TraceMeta(source="a.csv", format="ncu"), Tables({"counters": counters, "names": names})
    )
    result = kernels(trace)
    assert result.frame.select("name", "calls", "measured", "time_ns").rows() == [
        ("slow", 1, 1, None),
        ("k", 2, 2, None),
    ]
    assert row(result.frame, name="k")["measured_flops_per_s"] == pytest.approx(2_000 / 19_998e-9)
    assert result.totals == {"calls": 3, "measured_flops": 3_000, "dram_bytes": 3_000}
    assert "without a timeline" in result.notes[0]


def test_facts() -> None:
    assert facts(measured())["counters"] == {
        "launches": 6,
        "joined": 6,
        "distinct_kernel_names": 5,
        "measured": [
            "duration",
            "dram_bytes",
            "fp32_add",
            "fp32_mul",
            "fp32_fma",
            "tensor_ops",
            "tensor_active_percent",
        ],
    }
    assert facts(cnn_steps())["counters"] is None


def test_instructions_that_move_constants_are_no_arithmetic() -> None:
    """HFMA2 loads constants: counted as multiply-adds, and busy in the pipe of the tensor cores."""
    moves = {"fp16_add": 0, "fp16_mul": 0, "fp16_fma": 70, "tensor_ops": 0}
    moving = with_counters(cnn_steps(), launches(("relu", moves)))
    assert row(kernels(moving).frame, name="relu")["fp16_flops"] == 0
    assert not any("tensor FLOPs too low" in note for note in kernels(moving).notes)
    adding = with_counters(cnn_steps(), launches(("relu", {**moves, "fp16_add": 1})))
    assert row(kernels(adding).frame, name="relu")["fp16_flops"] == 2 + 4 * 70
    named = cnn_steps().tables.names.with_columns(
        pl.when(pl.col("name") == "relu").then(pl.lit("fp16")).otherwise("precision")
        .alias("precision").cast(pl.String)
    )  # fmt: skip
    half = with_counters(
        cnn_steps().with_tables(names=conform("names", named)), launches(("relu", moves))
    )
    assert row(kernels(half).frame, name="relu")["fp16_flops"] == 4 * 70

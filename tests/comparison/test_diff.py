"""Diffs of runs with one known change: they list that change and no other."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import polars as pl
import pytest

import traceana
from tests.comparison.shared import diff
from tests.support.traces import TraceBuilder, cnn_steps
from tests.support.training import KERNELS, LAYERS, Kernel, training
from traceana.analyze.layer_operands import operands
from traceana.comparison.diff import IDLE, OVERLAP, VIEWS, Diff
from traceana.comparison.layer_features import run_layers
from traceana.comparison.verdicts import step_times
from traceana.trace import Trace
from traceana.vocabulary.option_words import DiffBy

APART = (IDLE, OVERLAP)
A = training(seed=1)
B = training(seed=2)


def with_kernels(**of: Sequence[Kernel]) -> Mapping[str, Sequence[Kernel]]:
    return {**KERNELS, **of}


def kinds(found: Diff) -> set[str]:
    return set(found.changes["change"])


def changed(found: Diff, kind: str) -> dict[str, object]:
    return found.changes.row(by_predicate=pl.col("change") == kind, named=True)


@pytest.mark.parametrize("trace", [A, cnn_steps()])
def test_a_trace_is_the_same_as_itself(trace: Trace) -> None:
    found = diff(trace, trace)
    assert found.step.verdict == "same"
    assert found.changes.is_empty()
    assert found.counts["only_a"] == found.counts["only_b"] == found.counts["moved"] == 0
    for by in VIEWS:
        rows = found.by(by)
        assert (rows["delta_ns"] == 0).all()
        assert set(rows["verdict"]) == {"same"}
    assert any("one recording" in note for note in found.notes)
    assert (found.by("layer")["a"] == found.by("layer")["b"]).all()


def test_two_runs_drawn_alike_do_not_differ() -> None:
    found = diff(A, B)
    # The variance between runs is more than the minimum effect of 1 %.
    assert found.step.verdict == "inconclusive"
    assert set(found.by("layer")["verdict"]) <= {"same", "inconclusive"}
    assert found.changes.is_empty()


@pytest.mark.parametrize(
    "other",
    [
        B,
        training(seed=3, kernels=with_kernels(conv2=[("implicit", 300_000), ("bias", 9_000)])),
        training(seed=4, layers=LAYERS[:-1], idle=900_000),
        training(seed=5, copies=7, steps=5),
    ],
)
def test_rows_add_up_to_the_step(other: Trace) -> None:
    found = diff(A, other)
    for by in VIEWS:
        rows = found.by(by)
        for side, steps in (("a", found.baseline.steps.frame), ("b", found.candidate.steps.frame)):
            whole = int(steps["available_ns"].sum()) // steps.height
            assert int(rows[f"time_{side}_ns"].sum()) == whole
        assert (rows["delta_ns"] == rows["time_b_ns"] - rows["time_a_ns"]).all()
        assert {IDLE, OVERLAP} <= set(rows[rows.columns[0]])


@cache
def both_ways() -> tuple[Diff, Diff]:
    other = training(
        seed=3,
        steps=6,
        kernels=with_kernels(conv2=[("implicit", 300_000), ("bias", 9_000)], fc=[("hgemm", 9_000)]),
        layers=LAYERS[1:],
        copies=3,
    )
    return diff(A, other), diff(other, A)


@pytest.mark.parametrize("by", VIEWS)
def test_turned_around_everything_is_mirrored(by: DiffBy) -> None:
    there, back = both_ways()
    turned = {
        "faster": "slower",
        "slower": "faster",
        "only in baseline": "only in candidate",
        "only in candidate": "only in baseline",
    }
    names = {
        name: name.replace("_a", "_#").replace("_b", "_a").replace("_#", "_b")
        for name in ("calls_a", "calls_b", "time_a_ns", "time_b_ns", "type_a", "type_b")
    } | ({"a": "b", "b": "a"} if by == "layer" else {})
    names |= {"low_ns": "high_ns", "high_ns": "low_ns"}
    compared = ["delta_ns", "p", "verdict", *names]
    keys = [name for name in there.by(by).columns if there.by(by).schema[name] == pl.String]
    columns = [c for c in dict.fromkeys([*keys, *compared]) if c in there.by(by).columns]
    mirrored = (
        back.by(by)
        .rename({old: new for old, new in names.items() if old in columns})
        .with_columns(-pl.col("delta_ns", "low_ns", "high_ns"), pl.col("verdict").replace(turned))
    )
    assert there.by(by).select(columns).sort(keys).equals(mirrored.select(columns).sort(keys))
    assert there.step.verdict == turned[back.step.verdict]
    assert there.step.median.interval is not None
    assert back.step.median.interval is not None
    assert there.step.median.interval.low == -back.step.median.interval.high
    one, other_way = ((found.changes["change"].sort().to_list()) for found in (there, back))
    swapped = {"bias_apart": "bias_fused"}
    assert sorted(swapped.get(kind, kind) for kind in one) == other_way


def test_other_names_of_layers_change_nothing() -> None:
    names = {path: f"net/{number}/x" for number, (path, _) in enumerate(LAYERS)}
    layers = [(names[path], kind) for path, kind in LAYERS]
    kernels = {names[path]: reported for path, reported in KERNELS.items()}
    found = diff(A, training(seed=1, layers=layers, kernels=kernels))
    assert found.step.verdict == "same"
    assert found.changes.is_empty()
    pairs = found.by("layer").filter(pl.col("role") == "layer").select("a", "b").drop_nulls().rows()
    assert dict(pairs) == names


def test_another_time_of_day_and_other_streams_change_nothing() -> None:
    tables = {
        name: table.with_columns(pl.col("start") + 10**12)
        for name in ("activities", "steps")
        if (table := A.tables[name]).height
    }
    tables["activities"] = tables["activities"].with_columns(
        (pl.int_range(pl.len()) * 7919 % 31).cast(pl.Int64).alias("stream")
    )
    found = diff(A, A.with_tables(**tables))
    assert found.step.verdict == "same"
    assert found.changes.is_empty()
    assert (found.by("layer")["delta_ns"] == 0).all()


def test_a_layer_whose_kernels_run_twice_is_the_only_one_that_differs() -> None:
    twice = training(seed=1, kernels=with_kernels(conv2=[*KERNELS["conv2"]] * 2))
    found = diff(A, twice)
    assert found.step.verdict == "slower"
    slower = found.by("layer").filter(pl.col("verdict") == "slower")
    assert slower["a"].to_list() == ["conv2"]
    assert slower["calls_b"].to_list() == [2.0]
    assert slower["relative"][0] == pytest.approx(1, abs=0.01)
    others = found.by("layer").filter(pl.col("a") != "conv2")
    assert set(others["verdict"]) <= {"same", "inconclusive"}
    assert kinds(found) == {"launches"}


def test_kernels_of_one_run_only_are_listed_by_class() -> None:
    """Without layers, that have the change of an algorithm, by algorithm."""

    def run(algorithm: str, time: int) -> Trace:
        builder = TraceBuilder()
        builder.name("common", category="elementwise")
        builder.name(algorithm, category="conv", algorithm=algorithm)
        builder.name(f"{algorithm} update", category="optimizer")
        builder.kernel("common", 0, 1_000_000)
        builder.kernel(algorithm, 1_000_000, time)
        builder.kernel(f"{algorithm} update", 1_000_000 + time, 500_000)
        return builder.build()

    changes = diff(run("winograd", 2_000_000), run("fft", 5_000_000)).changes
    kernels = changes.filter(pl.col("change") == "kernels")
    columns = ("subject", "count_a", "count_b", "time_a_ns", "time_b_ns")
    assert sorted(kernels.select(columns).rows()) == [
        ("conv: fft", 0, 1, 0, 5_000_000),
        ("conv: winograd", 1, 0, 2_000_000, 0),
        ("optimizer", 1, 1, 500_000, 500_000),
    ]
    assert changes.row(0, named=True)["subject"] == "conv: fft"


def test_another_number_of_calls_is_listed_by_class_without_layers() -> None:
    def run(calls: int) -> Trace:
        builder = TraceBuilder()
        builder.name("common", category="elementwise")
        builder.name("turned", category="layout")
        for name, algorithm in (("direct", "direct"), ("other direct", "direct"), ("fft", "fft")):
            builder.name(name, category="conv", algorithm=algorithm)
        names = ["common", "fft", *["direct"] * calls, "other direct", *["turned"] * calls]
        for number, name in enumerate(names):
            builder.kernel(name, number * 1_000_000, 500_000)
        return builder.build()

    changes = diff(run(1), run(4)).changes.filter(pl.col("change").is_in(["calls", "layouts"]))
    assert sorted(changes.select("change", "subject", "count_a", "count_b", "delta_ns").rows()) == [
        ("calls", "conv: direct", 2, 5, 1_500_000),
        ("layouts", None, 1, 4, 1_500_000),
    ]
    assert "calls" not in kinds(
        diff(A, training(seed=2, kernels=with_kernels(conv2=[*KERNELS["conv2"]] * 2)))
    )


def test_a_changed_convolution_algorithm_is_listed() -> None:
    found = diff(A, training(seed=2, kernels=with_kernels(conv2=[("implicit", 700_000)])))
    row = changed(found, "algorithm")
    assert (row["before"], row["after"], row["layers"]) == ("winograd", "implicit_gemm", 1)
    assert (row["layer_a"], row["layer_b"], row["verdict"]) == ("conv2", "conv2", "slower")
    assert row["delta_ns"] == pytest.approx(300_000, rel=0.02)
    assert kinds(found) == {"algorithm", "kernels"}
    by_algorithm = found.by("algorithm").filter(pl.col("category") == "conv")
    assert dict(by_algorithm.select("algorithm", "verdict").iter_rows()) == {
        "winograd": "only in baseline",
        "implicit_gemm": "only in candidate",
        "implicit_precomp_gemm": "same",
    }


def test_kernels_of_one_run_have_the_time_of_their_class_where_layers_are_paired() -> None:
    """Work that moves to a kernel of both runs is no change of the step."""
    moved = diff(A, training(seed=2, kernels=with_kernels(conv2=[("implicit_precomp", 400_000)])))
    row = changed(moved, "kernels")
    assert (row["subject"], row["count_a"], row["count_b"]) == ("conv", 1, 0)
    whole = moved.by("class").filter(category="conv").sum()
    assert (row["time_a_ns"], row["time_b_ns"]) == pytest.approx(
        (whole["time_a_ns"].item(), whole["time_b_ns"].item()), abs=2
    )


def test_as_many_copies_that_take_longer_are_listed() -> None:
    def run(seed: int, time: int) -> Trace:
        rng = random.Random(seed)
        builder = TraceBuilder()
        builder.name("k", category="gemm")
        for step in range(8):
            start = step * 20_000_000
            row = builder.step(step, start, 15_000_000)
            builder.copy("HtoD", start, time + rng.randrange(1_000), bytes=1_000_000, step=row)
            builder.kernel("k", start + 1_000_000, 13_000_000 + rng.randrange(1_000), step=row)
        return builder.build()

    assert "copies" not in kinds(diff(run(1, 50_000), run(2, 50_000)))
    row = changed(diff(run(1, 50_000), run(2, 100_000)), "copies")
    assert (row["count_a"], row["count_b"], row["verdict"], row["least"]) == (1, 1, "slower", True)


def test_a_bias_no_longer_fused_is_listed() -> None:
    found = diff(
        A, training(seed=2, kernels=with_kernels(conv1=[*KERNELS["conv1"], ("bias", 80_000)]))
    )
    row = changed(found, "bias_apart")
    assert (row["layer_a"], row["count_a"], row["count_b"]) == ("conv1", 0, 1)
    assert row["verdict"] == "slower"
    assert kinds(found) == {"bias_apart", "kernels", "launches"}


def test_new_transposes_are_listed() -> None:
    around = [("transpose", 30_000), *KERNELS["conv2"], ("transpose", 30_000)]
    found = diff(A, training(seed=2, kernels=with_kernels(conv2=around)))
    row = changed(found, "layouts")
    assert (row["count_a"], row["count_b"], row["verdict"]) == (0, 2, "slower")
    assert kinds(found) == {"layouts", "kernels", "launches"}


def test_more_copies_and_lost_pinned_memory_are_listed() -> None:
    found = diff(A, training(seed=2, copies=9, memory="pageable"))
    row = changed(found, "copies")
    assert (row["subject"], row["count_a"], row["count_b"]) == ("HtoD", 1, 9)
    memory = changed(found, "host_memory")
    assert (memory["before"], memory["after"]) == ("pinned", "pageable")
    assert kinds(found) == {"copies", "host_memory"}


def test_a_slow_data_loader_is_listed() -> None:
    found = diff(training(seed=1, loading=5_000), training(seed=2, loading=800_000))
    assert found.step.verdict == "slower"
    # Without calls the cause is unknown; the host's wait is no second change.
    assert found.changes.select("change", "subject", "verdict").rows() == [
        ("idle", "not_recorded", "slower")
    ]
    assert found.changes["delta_ns"].item() == pytest.approx(795_000, rel=0.01)
    work = found.by("layer").filter(pl.col("a") != IDLE)
    assert set(work["verdict"]) <= {"same", "inconclusive"}


def test_a_changed_precision_is_listed() -> None:
    found = diff(A, training(seed=2, kernels=with_kernels(fc=[("hgemm", 50_000)])))
    row = changed(found, "precision")
    assert (row["before"], row["after"], row["layer_a"]) == ("fp32", "fp16", "fc")
    assert kinds(found) == {"precision", "kernels"}


def test_changed_shape_and_batch_are_listed() -> None:
    def shaped(trace: Trace, batch: int, size: int) -> Trace:
        rows = [
            {
                "name": "aten::conv2d",
                "start": number,
                "duration": 1,
                "depth": 0,
                "direction": "forward",
                "input_shapes": f"[[{batch}, 3, {size}, {size}], [8, 3, 3, 3]]",
                "layer": number,
            }
            for number in range(3)
        ]
        return trace.with_tables(ops=pl.DataFrame(rows))

    found = diff(shaped(A, 8, 224), shaped(B, 16, 299))
    row = changed(found, "shape")
    assert (row["before"], row["after"], row["layers"]) == ("3x224x224", "3x299x299", 3)
    assert (changed(found, "batch")["before"], changed(found, "batch")["after"]) == ("8", "16")
    assert found.per_image == (found.step.median.a / 8, found.step.median.b / 16)
    (conv1,) = found.by("layer").filter(pl.col("a") == "conv1").to_dicts()
    assert conv1["b"] == "conv1"
    assert conv1["image_a_ns"] == conv1["time_a_ns"] // 8
    assert conv1["image_b_ns"] == conv1["time_b_ns"] // 16
    assert (found.by("layer").filter(pl.col("image_a_ns").is_not_null()).height) == found.by(
        "layer"
    ).height
    assert diff(A, B).by("layer")["image_a_ns"].null_count() == diff(A, B).by("layer").height


def _convolutions(trace: Trace, side: int, strides: str | None, batch: int = 8) -> Trace:
    """The trace with a convolution of ``side`` x ``side`` in its first layer."""
    row = {
        "name": "aten::conv2d",
        "start": 0,
        "duration": 1,
        "depth": 0,
        "direction": "forward",
        "input_shapes": f"[[{batch}, 3, 224, 224], [8, 3, {side}, {side}]]",
        "input_strides": strides,
        "layer": 0,
    }
    return trace.with_tables(ops=pl.DataFrame([row], schema_overrides={"input_strides": pl.String}))


def test_a_changed_weight_shape_is_listed() -> None:
    found = diff(_convolutions(A, 3, None), _convolutions(B, 5, None))
    row = changed(found, "weight")
    assert (row["before"], row["after"], row["layers"]) == ("3x3x3x8", "3x5x5x8", 1)
    assert (row["layer_a"], row["layer_b"]) == ("conv1", "conv1")
    assert kinds(found) == {"weight"}
    assert kinds(diff(_convolutions(A, 3, None), _convolutions(B, 3, None, batch=16))) == {"batch"}


@pytest.mark.slow
def test_a_changed_memory_format_is_listed() -> None:
    first, last = "[[150528, 50176, 224, 1], []]", "[[150528, 1, 672, 3], []]"
    found = diff(_convolutions(A, 3, first), _convolutions(B, 3, last))
    row = changed(found, "memory_format")
    assert (row["before"], row["after"], row["layers"]) == ("contiguous", "channels_last", 1)
    assert kinds(found) == {"memory_format"}
    assert kinds(diff(_convolutions(A, 3, last), _convolutions(B, 3, last))) == set()
    # Without strides in one run no change is listed.
    assert kinds(diff(_convolutions(A, 3, None), _convolutions(B, 3, last))) == set()


def test_kernels_imply_a_memory_format_without_recorded_strides() -> None:
    """NHWC kernels between changes of layout take NCHW tensors, without these NHWC ones."""
    nhwc = ("sm80_xmma_fprop_nhwc", 200_000)
    turned = training(seed=1, kernels=with_kernels(conv1=[("transpose", 9_000), nhwc]))
    straight = training(seed=2, kernels=with_kernels(conv1=[nhwc]))
    found = diff(turned, straight)
    row = changed(found, "memory_format")
    assert (row["before"], row["after"], row["layer_a"]) == ("contiguous", "channels_last", "conv1")
    assert "memory_format" not in kinds(diff(turned, turned))
    assert "memory_format" not in kinds(diff(A, straight))


def test_layers_of_a_low_confidence_pair_are_not_compared() -> None:
    """Pairs of low confidence have no difference; the rows still add up to the step."""
    a = training(
        seed=1,
        layers=[(f"x.{n}", "Linear") for n in range(6)],
        kernels={f"x.{n}": (("sgemm", 100_000),) for n in range(6)},
    )
    b = training(
        seed=2,
        layers=[(f"y{n}.q", "Linear") for n in range(9)],
        kernels={f"y{n}.q": (("hgemm", 100_000),) for n in range(9)},
    )
    found = diff(a, b)
    rows = found.by("layer").filter(pl.col("a").is_not_null() & pl.col("b").is_not_null())
    unsure = rows.filter(pl.col("confidence") < 0.5)
    assert unsure.height
    for column in ("delta_ns", "low_ns", "high_ns", "relative", "of_step", "p"):
        assert unsure[column].null_count() == unsure.height
    assert set(unsure["verdict"]) == {"inconclusive"}
    sure = rows.filter(pl.col("confidence") >= 0.5)
    assert sure["delta_ns"].null_count() == 0
    altered = found.changes.filter(pl.col("change") == "precision")["layers"].sum()
    assert altered <= sure.height


def test_new_collectives_are_listed() -> None:
    found = diff(
        A, training(seed=2, kernels=with_kernels(fc=[*KERNELS["fc"], ("all_reduce", 90_000)]))
    )
    assert changed(found, "communication")["verdict"] == "slower"


@pytest.mark.slow
def test_another_gpu_is_listed_first() -> None:
    def on(name: str | None, trace: Trace) -> Trace:
        return trace.with_tables(devices=trace.tables.devices.with_columns(name=pl.lit(name)))

    slower = {path: [(name, 2 * ns) for name, ns in own] for path, own in KERNELS.items()}
    other = training(seed=2, kernels=slower)
    found = diff(on("NVIDIA A100", A), on("Tesla V100", other))
    row = found.changes.row(0, named=True)
    assert (row["change"], row["before"], row["after"]) == ("gpu", "NVIDIA A100", "Tesla V100")
    assert row["time_b_ns"] > 1.9 * row["time_a_ns"] > 0
    assert "gpu" in kinds(diff(on("NVIDIA A100", A), on("Tesla V100", B)))
    assert "gpu" not in kinds(diff(on("NVIDIA A100", A), on(None, other)))
    assert "gpu" not in kinds(diff(on("NVIDIA A100", A), on("NVIDIA A100", other)))


def test_layers_without_a_match_are_listed() -> None:
    found = diff(A, training(seed=2, layers=LAYERS[:3] + LAYERS[4:]))
    row = changed(found, "layers")
    assert (row["count_a"], row["count_b"]) == (1, 0)
    alone = found.by("layer").filter(pl.col("verdict") == "only in baseline")
    assert alone["a"].to_list() == ["relu2"]
    assert alone["b"].to_list() == [None]


@pytest.mark.slow
def test_one_thing_has_one_verdict_wherever_it_stands() -> None:
    """The collective is a row by layer, class and kernel, and a change."""
    noisy = with_kernels(fc=[*KERNELS["fc"], ("all_reduce", 90_000)])
    slower = with_kernels(fc=[*KERNELS["fc"], ("all_reduce", 130_000)])
    for noise in (0.01, 0.1, 0.2):
        found = diff(
            training(seed=1, kernels=noisy, noise=noise, steps=5),
            training(seed=2, kernels=slower, noise=noise, steps=5),
        )
        reported = {
            (row["p"], row["verdict"])
            for by, key in (("class", "category"), ("kernel", "category"))
            for row in found.by(by).filter(pl.col(key) == "collective").to_dicts()  # type: ignore[arg-type]
        }
        reported |= {
            (row["p"], row["verdict"])
            for row in found.changes.filter(change="communication").to_dicts()
        }
        assert len(reported) == 1
    assert "communication" in kinds(found)


def test_a_step_that_varies_more_than_it_changed_is_inconclusive() -> None:
    found = diff(training(seed=1, noise=0.3), training(seed=2, noise=0.3))
    assert found.step.verdict == "inconclusive"
    assert found.step.median.interval is not None
    least = 0.01 * min(found.step.median.a, found.step.median.b)
    assert max(-found.step.median.interval.low, found.step.median.interval.high) > least
    assert any("several runs" in note for note in found.notes)


@cache
def changed_little() -> Diff:
    return diff(
        A, training(seed=3, kernels=with_kernels(conv2=[("winograd", 440_000)]), noise=0.006)
    )


@pytest.mark.parametrize("by", VIEWS)
def test_what_is_the_same_lies_within_the_least_effect_and_what_is_real_beyond(by: DiffBy) -> None:
    found = changed_little()
    rows = found.by(by)
    rows = rows.filter(~pl.col(rows.columns[0]).is_in(APART))
    least = 0.01 * min(step_times(found.baseline.steps, found.candidate.steps))
    inside = pl.max_horizontal(-pl.col("low_ns"), pl.col("high_ns")) <= least
    assert rows.filter(verdict="same").select(inside.all()).item()
    assert not rows.filter(verdict="inconclusive").select(inside.any()).item()
    # What is significant stays so, however small a part of the step it is.
    real = rows.filter(pl.col("verdict").is_in(["faster", "slower"]))
    assert real.select((pl.col("low_ns").sign() * pl.col("high_ns").sign() > 0).all()).item()
    assert real.height or by not in ("layer", "class", "kernel")


def test_changes_below_the_minimum_effect_are_last() -> None:
    small = with_kernels(conv1=[*KERNELS["conv1"], ("bias", 5_000)], fc=[("hgemm", 150_000)])
    found = diff(A, training(seed=1, kernels=small))
    least = found.changes["least"].to_list()
    assert least == sorted(least)
    assert changed(found, "bias_apart")["least"]
    assert changed(found, "precision")["least"]
    assert not changed(found, "launches")["least"]
    large = found.changes.filter(~pl.col("least"), pl.col("change") != "launches")
    assert (large["of_step"].abs() >= 0.009).all()


def within(trace: Trace, names: Sequence[str]) -> Trace:
    """Return ``trace`` with all its work within the operators ``names``, outermost first."""
    ops = [
        {"name": name, "start": 0, "duration": 1, "depth": at, "parent": at - 1 if at else None}
        for at, name in enumerate(names)
    ]
    inner = pl.lit(len(names) - 1, pl.UInt32)
    return trace.with_tables(
        ops=pl.DataFrame(ops), activities=trace.tables.activities.with_columns(inner.alias("op"))
    )


def test_compiled_kernels_are_compared_with_those_that_they_replace() -> None:
    names = ["Torch-Compiled Region: 0/0", "CompiledFunction", "aten::mm"]
    rest = [kernel for path, _ in LAYERS[1:] for kernel in KERNELS[path]]
    layers = [LAYERS[0], ("net", "Embedding")]
    whole = training(seed=2, layers=layers, kernels=with_kernels(net=rest))
    found = diff(A, within(whole, names))
    reported = changed(found, "compiled")
    assert (reported["count_a"], reported["count_b"]) == (0, 7)
    before, after = (sum(ns for own in KERNELS.values() for _, ns in own), reported["time_b_ns"])
    assert reported["time_a_ns"] == pytest.approx(before, rel=0.1)
    assert after == pytest.approx(before, rel=0.1)
    assert not kinds(found) & {"kernels", "calls", "layers"}
    assert "compiled" not in kinds(diff(A, within(whole, ["aten::mm"])))
    assert "compiled" not in kinds(diff(within(A, names), within(whole, names)))


def test_one_step_has_no_significance() -> None:
    found = diff(training(steps=1), training(steps=1, idle=10_000_000))
    assert found.step.verdict == "not enough steps"
    assert "not enough" in found.notes[-1]
    assert "slower" not in set(found.by("layer")["verdict"])


def test_a_trace_without_steps_is_compared_as_a_whole() -> None:
    none = A.with_tables(
        steps=A.tables.steps.clear(),
        activities=A.tables.activities.with_columns(pl.lit(None).alias("step")),
    )
    found = diff(none, B)
    assert found.step.verdict == "not enough steps"
    assert not found.candidate.steps.marked
    assert any("no steps marked" in note for note in found.notes)


def test_diff_is_exported_and_refuses_invalid_criteria() -> None:
    for wrong in ({"level": 1.5}, {"minimum_effect": -1.0}, {"statistic": "mode"}):
        with pytest.raises(ValueError, match="invalid criteria"):
            diff(A, B, **wrong)


@pytest.mark.frameworks
def test_a_recording_in_channels_last_has_another_memory_format(tmp_path: Path) -> None:
    """PyTorch's own strides: the same convolution on the same image in both formats."""
    torch = pytest.importorskip("torch")
    found = []
    for name, kind in (("a", torch.contiguous_format), ("b", torch.channels_last)):
        image = torch.rand(2, 3, 8, 8).to(memory_format=kind)
        layer = torch.nn.Conv2d(3, 4, 3)
        with torch.profiler.profile(record_shapes=True) as profiler, torch.no_grad():
            for _ in range(3):
                with torch.profiler.record_function("nn.Module: Conv2d_0"):
                    layer(image)
        profiler.export_chrome_trace(str(tmp_path / f"{name}.json"))
        found.append(operands(traceana.open(tmp_path / f"{name}.json")))
    assert [{one.memory_format for one in side.values()} for side in found] == [
        {"contiguous"},
        {"channels_last"},
    ]


def _transformer(*shapes: str) -> Trace:
    """Return the steps of a transformer whose linear layers and attention have these inputs."""
    build = TraceBuilder(framework="PyTorch")
    build.name("gemm", category="gemm")
    build.name("flash", category="attention")
    kinds = [*("linear",) * (len(shapes) - 1), "scaled_dot_product_attention"]
    for number in range(4):
        step, at = build.step(number, number * 10_000, 10_000), number * 10_000
        for place, (kind, shape) in enumerate(zip(kinds, shapes, strict=True)):
            layer = build.layer(f"{kind}_{place}", kind) if number == 0 else place
            op = build.row(
                "ops", name=f"aten::{kind}", process=1, thread=1, start=at, duration=10, depth=0,
                input_shapes=f"[{shape},[512,512],[512]]", input_types='["float","float","float"]',
                layer=layer, direction="forward",
            )  # fmt: skip
            kernel = "gemm" if kind == "linear" else "flash"
            build.kernel(kernel, at, 1_000, step=step, op=op, layer=layer, direction="forward")
            at += 1_000
    return build.build()


@pytest.mark.parametrize(
    ("attention", "batch"),
    [("[8,8,512,64]", 8), ("[8,512,8,64]", 8), ("[4096,512]", None), ("[7,8,512,64]", None)],
)
def test_tokens_as_rows_of_a_matrix_are_no_batch(attention: str, batch: int | None) -> None:
    """The same transformer, whose sequences are merged into one axis where it is compiled."""
    eager = _transformer("[8,512,512]", "[8,512,512]", "[8,512,512]", "[8,8,512,64]")
    compiled = _transformer("[4096,512]", "[4096,512]", "[4096,512]", attention)
    assert run_layers(eager).batch == 8
    assert run_layers(compiled).batch == batch
    found = diff(eager, compiled)
    assert found.per_image is None
    assert "batch" not in kinds(found)

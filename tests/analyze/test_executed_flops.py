"""Convolutions of a trace: the algorithm of the kernels with the shapes of the operator."""

from __future__ import annotations

import polars as pl
import pytest

import traceana
from tests.analyze.test_operator_flops import CONV, FLOPS, STRIDES, Ops, shared
from traceana.analyze.executed_flops import EXECUTED, executed_by_episode
from traceana.flops.convolution import Convolution
from traceana.flops.executed import Executed, executed
from traceana.trace.schema import conform

ONE = Convolution(2, 3, 4, (3, 3), (8, 8), (8, 8), stride=(1, 1), dilation=(1, 1))


def episodes(*rows: tuple[int | None, str | None, str | None]) -> pl.DataFrame:
    columns = ("op", "algorithm", "direction")
    frame = pl.DataFrame([dict(zip(columns, row, strict=True)) for row in rows])
    return conform("episodes", frame)


def flops(algorithm: str, direction: str = "fprop") -> int:
    result = executed(ONE, algorithm, direction)  # type: ignore[arg-type]
    assert isinstance(result, Executed)
    return result.flops


def test_the_nearest_operator_with_shapes_serves() -> None:
    ops = Ops()
    outer = ops.add("aten::conv2d", CONV, STRIDES)
    reported = [*STRIDES[:6], "False", "[0]", "1"]
    middle = ops.add("aten::convolution", [*CONV, [], []], reported, outer)
    inner = ops.add("aten::cudnn_convolution", None, parent=middle)
    other = ops.add("aten::mul", [[3], [3]])
    result = executed_by_episode(
        ops.frame(),
        episodes(
            (inner, "winograd_nonfused", "fprop"),
            (outer, "implicit_gemm", "fprop"),
            (middle, "fft", "dgrad"),
            (other, "fft", "fprop"),
            (None, "fft", "fprop"),
            (inner, "unknown", "fprop"),
            (inner, "fft", None),
        ),
    )
    assert result.schema == pl.Schema(EXECUTED)
    assert result["episode"].to_list() == list(range(7))
    assert result["operator"].to_list() == [middle, outer, middle, None, None, middle, middle]
    assert result["direct_flops"].to_list() == [FLOPS] * 3 + [None] * 2 + [FLOPS] * 2
    assert result["executed_flops"].to_list() == [
        flops("winograd_nonfused"),
        FLOPS,
        flops("fft", "dgrad"),
        *[None] * 4,
    ]
    assert result["reason"].to_list() == [
        *[None] * 3,
        *["no launching operator with shapes"] * 2,
        "no FLOP formula for this algorithm",
        "algorithm or direction unknown",
    ]


def test_the_algorithm_implies_an_unrecorded_stride() -> None:
    ops = Ops()
    op = ops.add("aten::conv2d", CONV, sequence=5, direction="forward")
    ops.add("ConvolutionBackward0", [[2, 4, 8, 8]], sequence=5, direction="backward")
    result = executed_by_episode(
        ops.frame(), episodes((op, "winograd", "fprop"), (op, "gemm", "fprop"))
    )
    assert result["executed_flops"].to_list() == [flops("winograd"), FLOPS]


def test_unsupported_convolutions_have_a_reason() -> None:
    ops = Ops()
    strided = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "1"]
    op = ops.add("aten::conv2d", CONV, strided)
    result = executed_by_episode(ops.frame(), episodes((op, "fft", "fprop")))
    assert result["reason"].to_list() == ["FFT: stride 1 only"]
    assert result["direct_flops"].to_list() == [FLOPS // 4]


def test_no_episodes() -> None:
    result = executed_by_episode(Ops().frame(), episodes())
    assert result.is_empty()
    assert result.schema == pl.Schema(EXECUTED)


@pytest.mark.parametrize("name", ["workers0", "workers4"])
def test_winograd_of_resnet_50_executes_less_than_half(name: str) -> None:
    trace = traceana.open(shared(f"resnet50_train_v100_{name}.json.gz"))
    both = trace.tables.episodes.hstack(
        executed_by_episode(trace.tables.ops, trace.tables.episodes).drop("episode")
    )
    winograd = both.filter(pl.col("algorithm").cast(pl.String).str.starts_with("winograd"))
    assert winograd.height > 100
    assert winograd["reason"].null_count() == winograd.height
    assert (2 * winograd["executed_flops"] < winograd["direct_flops"]).all()
    gemm = both.filter(pl.col("algorithm").is_in(["implicit_gemm", "algo_0"]))
    assert (gemm["executed_flops"] == gemm["direct_flops"]).all()


def test_what_is_beyond_64_bits_is_refused() -> None:
    ops = Ops()
    huge = ops.add("aten::conv2d", [[2**40, 3, 2**40, 8], *CONV[1:]], STRIDES)
    result = executed_by_episode(
        ops.frame(), episodes((huge, "gemm", "fprop"), (huge, "unknown", "fprop"))
    )
    assert result["executed_flops"].to_list() == [None, None]
    assert set(result["reason"]) == {"FLOP count exceeds 64 bits"}

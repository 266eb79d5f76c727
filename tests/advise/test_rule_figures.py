"""The figures of single rules, computed without the other rules."""

from __future__ import annotations

from typing import Any

import pytest

from tests.advise.building import Run, run_of
from traceana.advise import advise
from traceana.advise.convolution_algorithms import fast_convolution
from traceana.advise.device_utilization import zeroing
from traceana.advise.figures import Figures
from traceana.advise.fusion import unfused_attention
from traceana.advise.rule import Found
from traceana.report.pages.advise import sentence


def faster(**convolution: Any) -> Found | None:
    """Return what the rule finds of one convolution by a GEMM."""
    run = Run()
    run.next_step()
    run.convolution("implicit_gemm", **convolution)
    return fast_convolution(Figures(run.build()))


@pytest.mark.parametrize("other", [{"stride": 2}, {"filters": (64, 1)}, {"tensor_core": True}])
def test_winograd_and_fft_are_for_fp32_convolutions_of_stride_1(other: dict[str, Any]) -> None:
    assert faster() is not None
    assert faster(**other) is None


def test_an_fp32_convolution_of_unrecorded_types_moves_floats() -> None:
    known, unknown = faster(), faster(types=None)
    assert known is not None
    assert unknown is not None
    assert unknown.saving_ns == known.saving_ns


def test_fills_are_a_share_of_the_gpu_time() -> None:
    def put(run: Run) -> None:
        run.name("fill", category="elementwise", function="fill")
        run.put("fill", 2_000_000)

    found = zeroing(Figures(run_of(put)))
    assert found is not None
    # 2 of 10 ms in each of four steps.
    assert (found.saving_ns, found.figures["share"]) == (8_000_000, 0.2)


ZERO = "void multi_tensor_apply_kernel<TensorListMetadata<1>, ZeroFunctor<float, 1, 1, 0>>()"
ADD = "void vectorized_elementwise_kernel<4, CUDAFunctor_add<float>, std::array<char*, 3ul>>()"


@pytest.mark.parametrize("zeros", [True, False])
def test_gradients_are_added_to_zeros(*, zeros: bool) -> None:
    """Additions of ``AccumulateGrad`` alone; of several backward passes they are needed."""

    def put(run: Run) -> None:
        for name in (ZERO, ADD):
            run.name(name, category="elementwise", function="add" if name == ADD else None)
        thread = {"process": 1, "thread": 1, "duration": 10}
        if zeros:
            op = run.row("ops", name="aten::_foreach_zero_", start=run.at, depth=0, **thread)
            run.put(ZERO, 100_000, op=op)
        outer = run.row(
            "ops", name="torch::autograd::AccumulateGrad", start=run.at, depth=0,
            direction="backward", **thread,
        )  # fmt: skip
        inner = run.row(
            "ops", name="aten::add_", start=run.at, depth=1, parent=outer, direction="backward",
            **thread,
        )  # fmt: skip
        run.put(ADD, 300_000, op=inner)
        other = run.row("ops", name="aten::add", start=run.at, depth=0, **thread)
        run.put(ADD, 500_000, op=other)

    found = zeroing(Figures(run_of(put)))
    if not zeros:
        assert found is None
        return
    assert found is not None
    assert (found.saving_ns, found.kind) == (4 * 400_000, None)
    assert (found.figures["calls"], found.figures["added"]) == (1, 1)


def test_additions_of_a_graph_may_be_of_gradients() -> None:
    """No operator says whose they are: an upper bound, with the change for a graph."""

    def put(run: Run) -> None:
        for name in (ZERO, ADD):
            run.name(name, category="elementwise", function="add" if name == ADD else None)
        run.put(ZERO, 100_000)
        for _ in range(3):
            run.put(ADD, 200_000)

    (finding,) = (one for one in advise(run_of(put)).findings if one.rule.id == "zeroing")
    assert (finding.saving_ns, finding.rule.kind) == (700_000, "upper bound")
    assert "3 that may add gradients to zeros" in sentence(finding)
    assert "capture" in finding.rule.change.pytorch


def test_the_math_backend_of_attention_is_all_its_work() -> None:
    """Scale, product, mask and softmax inside its operator, and their gradients; no other."""
    kernels = {"scale": "elementwise", "scores": "gemm", "mask": "elementwise", "soft": "softmax"}

    def put(run: Run) -> None:
        for name, category in {**kernels, "flash": "attention"}.items():
            run.name(name, category=category, batched=category == "gemm")
        number, thread = run.number, {"process": 1, "thread": 1}
        outer = run.row(
            "ops", name="aten::_scaled_dot_product_attention_math", start=run.at, duration=1_000,
            depth=0, sequence=10 * number, direction="forward", **thread,
        )  # fmt: skip
        for place, name in enumerate(kernels):
            op = run.row(
                "ops", name=f"aten::{name}", start=run.at + place, duration=1, depth=1,
                parent=outer, sequence=10 * number + place, direction="forward", **thread,
            )  # fmt: skip
            run.put(name, 100_000, op=op, direction="forward")
        other = run.row(
            "ops", name="aten::_flash_attention_forward", start=run.at, duration=10, depth=0,
            sequence=10 * number + 4, direction="forward", **thread,
        )  # fmt: skip
        run.put("flash", 500_000, op=other, direction="forward")
        for place, name in ((4, "flash"), (3, "soft"), (1, "scores")):
            op = run.row(
                "ops", name=f"{name}Backward0", start=run.at, duration=10, depth=0,
                sequence=10 * number + place, forward_thread=1, direction="backward",
                process=1, thread=2,
            )  # fmt: skip
            run.put(name, 200_000, op=op, direction="backward")

    found = unfused_attention(Figures(run_of(put)))
    assert found is not None
    assert (found.saving_ns, found.kind) == (4 * 800_000, "upper bound")
    assert found.figures["calls"] == 6


@pytest.mark.parametrize("forward", [True, False])
def test_bias_and_activation_are_of_the_forward_pass_where_that_is_known(*, forward: bool) -> None:
    """Beside kernels of a replayed graph, whose pass is not known, or only these."""

    def put(run: Run) -> None:
        run.name("gemm", category="gemm")
        run.name("relu", category="activation", function="relu")
        run.put("gemm", 200_000)
        run.put("relu", 500_000)
        run.put("relu", 100_000, direction="backward")
        if forward:
            run.put("relu", 200_000, direction="forward")

    (finding,) = (
        one for one in advise(run_of(put)).findings if one.rule.id == "unfused_bias_activation"
    )
    assert finding.saving_ns == (200_000 if forward else 500_000)
    assert ("of the forward pass" in sentence(finding)) is forward

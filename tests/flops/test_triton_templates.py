"""FLOPs of Inductor's Triton templates, from the buffers of their kernels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.enrich.test_compiled_regions import Program
from tests.support.traces import with_methods
from traceana.flops.call import Call, Cost, Refusal
from traceana.flops.registry import cost

Shapes = Sequence[Sequence[int]]


def counted(name: str, shapes: Shapes, dtype: str = "c10::BFloat16") -> Cost | Refusal:
    types = json.dumps([dtype if shape else "Scalar" for shape in shapes])
    found = cost(Call.decode(f"triton_tem_fused_{name}", json.dumps(shapes), types))
    if isinstance(found, Refusal):
        return found
    (one,) = found
    return one


@pytest.mark.parametrize(
    ("name", "shapes", "flops", "kind"),
    [
        ("mm_0", [[8, 16], [16, 32], [8, 32]], 2 * 8 * 16 * 32, "matmul"),
        ("_scaled_mm_3", [[8, 16], [16, 32], [8, 32]], 2 * 8 * 16 * 32, "matmul"),
        # A bias before the operands, a weight as it is stored, and a residual behind.
        (
            "add_addmm_relu_12",
            [[32], [2, 4, 16], [32, 16], [2, 4, 32], [2, 4, 32], []],
            2 * 8 * 16 * 32,
            "matmul",
        ),
        # Heads of attention, read as one matrix.
        ("mm_t_view_1", [[2, 3, 4, 5], [15, 7], [8, 7]], 2 * 8 * 15 * 7, "matmul"),
        ("bmm_2", [[6, 8, 16], [6, 16, 4], [6, 8, 4]], 6 * 2 * 8 * 16 * 4, "batched_matmul"),
        (
            "bmm_2",
            [[2, 3, 8, 16], [2, 3, 4, 16], [2, 3, 8, 4]],
            6 * 2 * 8 * 16 * 4,
            "batched_matmul",
        ),
        (
            "add_convolution_relu_0",
            [[4, 3, 32, 32], [16, 3, 3, 3], [16], [4, 16, 32, 32], [4, 16, 32, 32]],
            2 * 4 * 16 * 32 * 32 * 27,
            "conv2d",
        ),
        (
            "convolution_1",
            [[4, 8, 9, 9], [16, 2, 3, 3], [4, 16, 4, 4]],
            2 * 4 * 16 * 4 * 4 * 2 * 9,
            "conv2d",
        ),
        (
            "convolution_1",
            [[1, 2, 9, 9, 9], [4, 2, 3, 3, 3], [1, 4, 7, 7, 7]],
            2 * 4 * 7**3 * 2 * 27,
            "conv3d",
        ),
        (
            "flex_attention_0",
            [[2, 8, 64, 16], [2, 2, 128, 16], [2, 2, 128, 16], [2, 8, 64], [2, 8, 64], [1, 1, 1]],
            2 * 2 * 8 * 64 * 128 * 32,
            "attention",
        ),
        (
            "flex_attention_backward_0",
            [[2, 8, 64, 16], [2, 2, 128, 16], [2, 2, 128, 16], [2, 8, 64], [2, 8, 64, 16]],
            2 * 2 * 8 * 64 * 128 * 5 * 16,
            "attention",
        ),
    ],
)
def test_the_count_is_that_of_the_product(name: str, shapes: Shapes, flops: int, kind: str) -> None:
    found = counted(name, shapes)
    assert isinstance(found, Cost)
    assert (found.flops, found.kind) == (flops, kind)
    if kind != "attention":
        assert found.bytes == 2 * sum(prod(shape) for shape in shapes if shape)


def test_what_a_mask_of_blocks_leaves_out_is_not_known() -> None:
    found = counted("flex_attention_0", [[2, 8, 64, 16]] * 3 + [[2, 8, 64]])
    assert isinstance(found, Cost)
    assert found.skipped is None


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        # One of three matrices in a buffer.
        ("mm_0", [[8, 48], [16, 32], [8, 32]]),
        # The same buffer twice is recorded once.
        ("mm_0", [[8, 16], [8, 8]]),
        ("mm_0", [[4, 6], [6, 9], [4, 9], [9, 5], [4, 5]]),
        ("bmm_0", [[6, 8, 16], [5, 16, 4], [6, 8, 4]]),
        ("bmm_mm_0", [[6, 8, 16], [6, 16, 4], [6, 8, 4]]),
        ("_grouped_mm_0", [[64, 16], [4, 16, 32], [4], [64, 32]]),
        ("convolution_0", [[4, 3, 32, 32], [16, 3, 3, 3], [4, 48, 32, 32]]),
        ("flex_attention_0", [[2, 8, 64, 16], [2, 2, 128, 32], [2, 2, 128, 16]]),
        ("relu_0", [[8, 16], [16, 32], [8, 32]]),
        ("mm_0", [[8, 16]] * 11),
    ],
)
def test_what_the_buffers_do_not_tell_is_refused(name: str, shapes: Shapes) -> None:
    assert isinstance(counted(name, shapes), Refusal)


def test_without_shapes_there_is_no_count() -> None:
    assert isinstance(cost(Call("triton_tem_fused_mm_0", ())), Refusal)


@given(
    st.tuples(*[st.integers(1, 12)] * 3),
    st.tuples(*[st.booleans()] * 3),
    st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=3), max_size=3),
    st.randoms(use_true_random=False),
)
def test_no_order_and_no_other_buffer_gives_a_wrong_count(
    extents: tuple[int, int, int], turned: tuple[bool, ...], others: list[list[int]], random: object
) -> None:
    m, n, k = extents
    matrices = [[m, k], [k, n], [m, n]]
    shapes = [one[::-1] if turn else one for one, turn in zip(matrices, turned, strict=True)]
    shapes += others
    random.shuffle(shapes)  # type: ignore[attr-defined]
    found = counted("mm_0", shapes)
    assert isinstance(found, Refusal) or found.flops == 2 * m * n * k
    if not others:
        assert isinstance(found, Cost)


def test_a_compiled_graph_has_the_flops_of_its_templates() -> None:
    program = Program(on_device=True)
    calls = [
        ("triton_tem_fused_addmm_relu_0", [[32], [8, 16], [32, 16], [8, 32]]),
        ("triton_poi_fused_add_1", [[8, 32], [8, 32]]),
        ("triton_tem_fused_mm_2", [[8, 32], [32, 4], [8, 4]]),
    ]
    for _ in range(2):
        program.step(calls)
    frame = with_methods(program.trace()).flops().frame
    assert frame["flops"].sum() == 2 * (2 * 8 * 16 * 32 + 2 * 8 * 32 * 4)

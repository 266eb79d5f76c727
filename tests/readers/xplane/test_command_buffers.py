"""Kernels that XLA runs from command buffers, and their instructions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

import traceana
from tests.readers.xplane.hlo_writing import Made, array, computation, module, write_programs
from tests.readers.xplane.writing import PlaneWriter, message, number
from traceana.readers.xplane.command_buffers import CommandBuffers, Scheduled

Named = tuple[str, str, str]
"""Name, opcode and shapes of an instruction."""


def placed(
    named: Sequence[Named], kernels: Sequence[str | None], *, whole: bool = True
) -> list[int | None]:
    instructions = (Scheduled(row, None, *one) for row, one in enumerate(named))
    program = CommandBuffers.of(instructions, filter(None, kernels))
    return program.rows(kernels, whole=whole)


ADD, GEMM, REDUCE = (
    ("loop_add_fusion.1", "fusion", "a"),
    ("cublas-gemm.3", "custom-call", "b"),
    ("input_reduce_fusion", "fusion", "c"),
)


def test_generated_kernels_have_the_names_of_instructions_and_libraries_are_between() -> None:
    kernels: list[str | None]
    kernels = ["loop_add_fusion_1", "nvjet_tst_128x64", "input_reduce_fusion"]
    assert placed((ADD, GEMM, REDUCE), kernels) == [0, 1, 2]
    # Split-K: two kernels of one call. A copy is no kernel.
    kernels[2:2] = [None, "splitKreduce_kernel"]
    assert placed((ADD, GEMM, REDUCE), kernels) == [0, 1, None, 1, 2]


def test_the_names_of_amd_end_in_kd() -> None:
    assert placed((ADD, REDUCE), ["loop_add_fusion_1.kd"]) == [0]


def test_equal_fusions_are_compiled_once_and_run_in_order() -> None:
    equal = [(f"fusion.{number}", "fusion", "same") for number in (4, 2, 7)]
    other = ("fusion.9", "fusion", "other")
    assert placed((*equal, other), ["fusion_4", "fusion_4", "fusion_4"]) == [0, 1, 2]
    # Which two of the three ran is not known.
    assert placed((*equal, other), ["fusion_4", "fusion_4"]) == [None, None]
    # One of them has a kernel of its own; whether the last one shares that is not known.
    assert placed(equal, ["fusion_4", "fusion_2", "fusion_4"]) == [0, None, 2]


def test_an_instruction_of_a_loop_runs_repeatedly() -> None:
    assert placed((ADD, REDUCE), ["loop_add_fusion_1"] * 4) == [0] * 4


def test_calls_are_paired_in_order_where_there_are_as_many_kernels() -> None:
    second = ("cublas-gemm.4", "custom-call", "d")
    program = (ADD, GEMM, second, REDUCE)
    one, other = "loop_add_fusion_1", "input_reduce_fusion"
    assert placed(program, [one, "gemm_a", "gemm_b", other]) == [0, 1, 2, 3]
    assert placed(program, [one, "gemm_a", "gemm_b", "gemm_c", other]) == [0, None, None, None, 3]


def test_collectives_are_no_kernels_of_libraries() -> None:
    reduced = ("all-reduce-start", "all-reduce-start", "e")
    kernels = [
        "loop_add_fusion_1",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        "nvjet_tst",
        "input_reduce_fusion",
    ]
    assert placed((ADD, GEMM, reduced, REDUCE), kernels) == [0, 2, 1, 3]


def test_at_the_ends_of_a_launch_that_may_be_cut_nothing_is_guessed() -> None:
    kernels = ["nvjet_tst_128x64", "input_reduce_fusion"]
    assert placed((GEMM, REDUCE), kernels) == [0, 1]
    assert placed((GEMM, REDUCE), kernels, whole=False) == [None, 1]


def test_another_order_than_the_schedule_leaves_libraries_out() -> None:
    kernels = ["input_reduce_fusion", "nvjet_tst", "loop_add_fusion_1"]
    assert placed((ADD, GEMM, REDUCE), kernels) == [2, None, 0]


def test_without_a_generated_kernel_nothing_is_known() -> None:
    assert placed((ADD, GEMM, REDUCE), ["nvjet_tst_128x64"]) == [None]
    assert placed((("a.b", "fusion", ""), ("a_b", "fusion", "")), ["a_b"]) == [None]


def scheduled(entry: int, *computations: bytes, schedule: dict[int, Sequence[int]]) -> bytes:
    """Encode a program whose computations run in the order of ``schedule``."""
    sequences = b"".join(
        message(1, number(1, key) + message(2, b"".join(number(1, one) for one in numbers)))
        for key, numbers in schedule.items()
    )
    content = module(entry, *computations)
    return message(1, content[_header(content) :] + message(7, sequences))


def _header(content: bytes) -> int:
    """Return the bytes of the tag and the length of the first field."""
    end = 1
    while content[end] & 0x80:
        end += 1
    return end + 1


def program() -> bytes:
    """A fusion, a product of cuBLAS, and a fusion, in a computation that a call runs."""
    config = (
        b'{"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}'
    )
    product = message(28, "__cublas$gemm") + message(43, config)
    inner = computation(
        10,
        4,
        Made(1, "p", "parameter", array(8, 16)),
        Made(5, "w", "parameter", array(16, 32)),
        Made(4, "loop_add_fusion.1", "fusion", array(8, 32), "jit(f)/jvp(net)/relu/max", (3,)),
        Made(2, "loop_mul_fusion", "fusion", array(8, 16), "jit(f)/jvp(net)/scale/mul", (1,)),
        Made(
            3,
            "gemm.7",
            "custom-call",
            array(8, 32),
            "jit(f)/jvp(net)/dense/dot_general",
            (2, 5),
            more=product,
        ),
    )
    main = computation(11, 7, Made(7, "call.1", "call", array(8, 32), called=(10,)))
    return scheduled(11, inner, main, schedule={10: [1, 5, 2, 3, 4], 11: [7]})


@pytest.mark.parametrize("hlo_op", ["command_buffer_1", "call.1"])
def test_a_command_buffer_has_the_layers_of_its_instructions(tmp_path: Path, hlo_op: str) -> None:
    plane = PlaneWriter("/device:GPU:0")
    names = ["loop_mul_fusion", "nvjet_tst_64x32", "loop_add_fusion_1"]
    plane.line(
        "Stream #1",
        [
            plane.event(
                name, (10 * launch + place) * 1_000_000, 500_000,
                hlo_module="jit_f", program_id=4, hlo_op=hlo_op, correlation_id=100 + launch,
            )
            for launch in range(4)
            for place, name in enumerate(names)
        ],
    )  # fmt: skip
    trace = traceana.open(write_programs(tmp_path / "x.xplane.pb", plane, jit_f_4=program()))
    ran = trace.tables.instructions["name"].gather(
        trace.tables.activities["instruction"].drop_nulls()
    )
    assert ran.to_list() == ["loop_mul_fusion", "gemm.7", "loop_add_fusion.1"] * 4
    layers = trace.tables.layers["path"].gather(trace.tables.activities["layer"])
    assert layers.to_list() == ["net.scale", "net.dense", "net.relu"] * 4
    flops = trace.flops().frame.filter(pl.col("flops") > 0)
    assert flops["flops"].sum() == 4 * 2 * 8 * 16 * 32

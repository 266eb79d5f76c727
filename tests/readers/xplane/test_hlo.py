"""Compiled programs: their instructions, and which of them an event ran."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import traceana
from tests.readers.xplane.hlo_writing import (
    U8,
    Made,
    array,
    computation,
    module,
    ran,
    tuple_of,
    write_programs,
)
from tests.readers.xplane.writing import PlaneWriter, message, number, trace_of
from traceana.trace import Trace


def window_dimension(**values: int) -> bytes:
    order = ("size", "stride", "low", "high", "window_dilation", "base_dilation", "reversal")
    fields = (number(order.index(name) + 1, value) for name, value in values.items())
    return message(1, b"".join(fields))


def convolution(key: int, scope: str, **more: int) -> Made:
    """A convolution NHWC x HWIO, 11x11, stride 4, padding 2 and 1."""
    one = window_dimension(size=11, stride=4, low=2, high=1, window_dilation=1, base_dilation=1)
    numbers = number(8, 3) + number(3, 2) + number(4, 3) + number(10, 3)
    for tag, dimensions in ((11, (1, 2)), (6, (0, 1)), (12, (1, 2))):
        numbers += b"".join(number(tag, each) for each in dimensions)
    fields = message(15, one + one) + message(16, numbers) + number(50, 1) + number(58, 1)
    return Made(key, "conv", "convolution", array(4, 55, 55, 64), scope, (1, 2), more=fields)


def step() -> bytes:
    """A fusion of a convolution, and a loop whose body holds a dot."""
    fused = computation(
        10,
        3,
        Made(1, "p0", "parameter", array(4, 224, 224, 3)),
        Made(2, "p1", "parameter", array(11, 11, 3, 64)),
        convolution(3, "jit(f)/conv1/conv_general_dilated"),
    )
    sizes = b"".join(number(tag, value) for tag, value in ((1, 1), (2, 0)))
    body = computation(
        11,
        5,
        Made(4, "q0", "parameter", array(8, 8)),
        Made(5, "dot.1", "dot", array(8, 8), operands=(4, 4), more=message(30, sizes)),
    )
    config = message(43, b'{"known_trip_count":{"n":"5"}}')
    applied = computation(13, 20, Made(20, "add.inner", "add", array()))
    main = computation(
        12,
        9,
        Made(6, "x", "parameter", array(4, 224, 224, 3)),
        Made(7, "fusion.1", "fusion", array(4, 55, 55, 64), "", (6,), (10,), message(11, "kLoop")),
        Made(8, "loop", "while", tuple_of(array(8, 8), array(3, kind=U8)), "", (7,), (11,), config),
        Made(9, "sum", "reduce", array(), "jit(f)/sum", (8,), (13,)),
    )
    return module(12, fused, body, applied, main)


def rows_of(trace: Trace) -> list[dict[str, object]]:
    return trace.tables.instructions.rows(named=True)


def test_instructions_with_their_shapes_and_what_holds_them(tmp_path: Path) -> None:
    plane = ran(("jit_f", 4, "fusion.1"), ("jit_f", 4, "dot.1"), ("jit_f", 4, "none"))
    trace = trace_of(write_programs(tmp_path / "x.pb", plane, jit_f_4=step()))
    table = trace.tables.instructions
    assert table.select("name", "parent", "opcode").rows() == [
        ("fusion.1", None, "fusion"),
        ("loop", None, "while"),
        ("sum", None, "reduce"),
        ("conv", 0, "convolution"),
        ("dot.1", 1, "dot"),
    ]
    assert table["program"].unique().to_list() == ["jit_f"]
    assert table["program_id"].unique().to_list() == [4]
    assert trace.tables.activities["instruction"].to_list() == [0, 4, None]
    scope = "jit(f)/conv1/conv_general_dilated"
    assert trace.tables.activities["scope"].to_list() == [scope, None, None]
    fusion, loop, _, conv, dot = rows_of(trace)
    assert fusion["attributes"] == '{"kind":"kLoop"}'
    assert loop["output_shape"] == "[[8,8],[3]]"
    assert loop["output_type"] == '["f32","u8"]'
    assert json.loads(str(loop["attributes"])) == {"trip_count": 5}
    assert conv["input_shapes"] == "[[4,224,224,3],[11,11,3,64]]"
    assert conv["input_types"] == '["f32","f32"]'
    assert (conv["output_shape"], conv["output_type"]) == ("[4,55,55,64]", "f32")
    assert json.loads(str(conv["attributes"])) == {
        "window": {
            "size": [11, 11],
            "stride": [4, 4],
            "padding_low": [2, 2],
            "padding_high": [1, 1],
            "window_dilation": [1, 1],
            "base_dilation": [1, 1],
            "reversal": [0, 0],
        },
        "dimension_numbers": {
            "input_batch": 0,
            "input_feature": 3,
            "input_spatial": [1, 2],
            "kernel_input_feature": 2,
            "kernel_output_feature": 3,
            "kernel_spatial": [0, 1],
            "output_batch": 0,
            "output_feature": 3,
            "output_spatial": [1, 2],
        },
        "feature_group_count": 1,
        "batch_group_count": 1,
    }
    assert json.loads(str(dot["attributes"])) == {
        "lhs_contracting": [1],
        "rhs_contracting": [0],
        "lhs_batch": [],
        "rhs_batch": [],
    }


def test_programs_of_one_name_are_distinct_and_only_those_that_ran_are_kept(
    tmp_path: Path,
) -> None:
    def program(size: int) -> bytes:
        return module(1, computation(1, 1, Made(1, "exp", "exponential", array(size))))

    plane = ran(("jit_f", 7, "exp"), ("jit_f", 5, "exp"), ("jit_g", 1, "exp"))
    path = write_programs(
        tmp_path / "x.pb", plane, jit_f_5=program(5), jit_f_7=program(7), jit_h_9=program(9)
    )
    trace = trace_of(path)
    reported = trace.tables.instructions.select("program", "program_id", "output_shape").rows()
    assert reported == [("jit_f", 7, "[7]"), ("jit_f", 5, "[5]")]
    assert trace.tables.activities["instruction"].to_list() == [0, 1, None]


def test_operators_of_the_host_and_the_activities_made_of_them(tmp_path: Path) -> None:
    plane = PlaneWriter("/host:CPU")
    event = plane.event("sum", 0, 5_000_000, hlo_module="jit_f", program_id=4, hlo_op="sum")
    plane.line("tf_XLAEigen/1", [event])
    path = write_programs(tmp_path / "x.xplane.pb", plane, jit_f_4=step())
    trace = traceana.open(path)
    assert trace.tables.ops["instruction"].to_list() == [2]
    assert trace.tables.activities["instruction"].to_list() == [2]


def test_ranks_and_bundles_keep_the_references(tmp_path: Path) -> None:
    plane = ran(("jit_f", 4, "dot.1"))
    for rank in (0, 1):
        write_programs(tmp_path / f"rank{rank}.xplane.pb", plane, jit_f_4=step())
    trace = traceana.open(tmp_path)
    table = trace.tables.instructions
    assert table.height == 10
    ran_ = table[trace.tables.activities["instruction"].to_list()]
    assert ran_["name"].to_list() == ["dot.1", "dot.1"]
    assert table["name"].gather(ran_["parent"]).to_list() == ["loop", "loop"]
    assert trace.tables.activities["instruction"].to_list() == [4, 9]
    again = traceana.open(trace.save(tmp_path / "saved"))
    assert_frame_equal(again.tables.instructions, table)


@pytest.mark.parametrize(
    "config",
    [
        b'{"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}',
        b'{"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":[1]}}}',
    ],
)
def test_the_backend_config_of_library_calls(tmp_path: Path, config: bytes) -> None:
    more = message(28, "__cublas$gemm") + message(43, config)
    call = Made(2, "gemm", "custom-call", tuple_of(array(4, 4), array(9, kind=U8)), more=more)
    program = module(1, computation(1, 2, call))
    path = write_programs(tmp_path / "x.pb", ran(("jit_f", 1, "gemm")), jit_f_1=program)
    (row,) = rows_of(trace_of(path))
    assert row["target"] == "__cublas$gemm"
    assert json.loads(str(row["attributes"]))["lhs_contracting"] == [1]


@pytest.mark.parametrize(
    ("config", "lost"),
    [
        *((b"{" * 50_000, 1), (b'{"a":' + b" " * 70_000 + b"1}", 1), (b'{"a":', 1)),
        # The text of another library.
        *((b"[" * 50_000, 0), (b"\xff\xfe", 0), (b"[1]", 0), (b'{"a":1}', 0)),
    ],
)
def test_a_broken_backend_config_is_counted(tmp_path: Path, config: bytes, lost: int) -> None:
    call = Made(2, "c", "custom-call", array(4), more=message(28, "t") + message(43, config))
    program = module(1, computation(1, 2, call))
    path = write_programs(tmp_path / "x.pb", ran(("jit_f", 1, "c")), jit_f_1=program)
    trace = trace_of(path)
    assert trace.tables.instructions["attributes"].to_list() == [None]
    assert trace.tables.ledger.filter(reason="lost_field")["count"].sum() == lost


def test_computations_that_call_each_other_end(tmp_path: Path) -> None:
    first = computation(1, 11, Made(11, "a", "call", array(1), called=(2,)))
    second = computation(2, 12, Made(12, "b", "call", array(1), called=(1, 2, 99)))
    path = write_programs(tmp_path / "x.pb", ran(("j", 1, "b")), j_1=module(1, first, second))
    trace = trace_of(path)
    assert trace.tables.instructions.select("name", "parent").rows() == [("a", None), ("b", 0)]
    assert trace.tables.activities["instruction"].to_list() == [1]


def test_a_computation_that_two_call_stands_once(tmp_path: Path) -> None:
    calls = [Made(20 + i, f"call.{i}", "call", array(1), called=(1,)) for i in range(2)]
    shared = computation(1, 11, Made(11, "inner", "negate", array(1)))
    program = module(2, shared, computation(2, 20, *calls))
    trace = trace_of(write_programs(tmp_path / "x.pb", ran(("j", 1, "inner")), j_1=program))
    assert trace.tables.instructions.select("name", "parent").rows() == [
        ("call.0", None),
        ("call.1", None),
        ("inner", 0),
    ]


def test_tuples_within_tuples_end(tmp_path: Path) -> None:
    shape = array(3)
    for _ in range(5_000):
        shape = tuple_of(shape)
    program = module(1, computation(1, 1, Made(1, "deep", "infeed", shape)))
    trace = trace_of(write_programs(tmp_path / "x.pb", ran(("j", 1, "deep")), j_1=program))
    assert trace.tables.instructions["output_shape"].to_list() == ["[" * 17 + "]" * 17]


def test_shapes_that_would_fill_the_memory_are_left_out(tmp_path: Path) -> None:
    wide = Made(1, "wide", "infeed", tuple_of(*[array()] * 2000))
    many = [Made(2 + i, f"i{i}", "custom-call", array(1), operands=(1,) * 100) for i in range(100)]
    program = module(1, computation(1, 1, wide, *many))
    trace = trace_of(write_programs(tmp_path / "x.pb", ran(("j", 1, "i0")), j_1=program))
    table = trace.tables.instructions
    assert table.height == 101
    reported = table["input_shapes"].str.len_bytes().fill_null(0).sum()
    assert 0 < reported < 64 * len(program)
    assert table["input_shapes"].null_count() > 0


def test_an_array_of_countless_dimensions(tmp_path: Path) -> None:
    vast = Made(1, "vast", "convolution", array(*[2**62] * 200_000), operands=(1, 1))
    program = module(1, computation(1, 1, vast))
    trace = trace_of(write_programs(tmp_path / "x.pb", ran(("j", 1, "vast")), j_1=program))
    assert trace.tables.instructions["name"].to_list() == ["vast"]


def test_a_damaged_program_is_in_the_ledger(tmp_path: Path) -> None:
    path = write_programs(tmp_path / "x.pb", ran(("j", 1, "a")), j_1=message(1, b"\x07\x07\x07"))
    trace = trace_of(path)
    assert trace.tables.instructions.is_empty()
    assert trace.tables.activities["instruction"].to_list() == [None]
    (entry,) = trace.tables.ledger.filter(pl.col("table") == "instructions").to_dicts()
    assert (entry["reason"], entry["kept"], entry["count"]) == ("malformed", True, 1)
    assert entry["detail"] == "HLO program j(1)"


def test_damaged_attributes_leave_the_instruction(tmp_path: Path) -> None:
    bad = Made(1, "a", "convolution", array(2), more=message(15, b"\x07\x07"))
    program = module(1, computation(1, 1, bad))
    trace = trace_of(write_programs(tmp_path / "x.pb", ran(("j", 1, "a")), j_1=program))
    assert trace.tables.instructions.select("name", "attributes").rows() == [("a", None)]
    assert "lost_field" in trace.tables.ledger["reason"].to_list()


def test_order_of_operands_and_missing_ones(tmp_path: Path) -> None:
    known = [Made(i, f"v{i}", "iota", array(i)) for i in (1, 2)]
    uses = Made(3, "u", "add", array(1), operands=(2, 77, 1))
    program = module(1, computation(1, 3, *known, uses))
    trace = trace_of(write_programs(tmp_path / "x.pb", ran(("j", 1, "u")), j_1=program))
    assert trace.tables.instructions.filter(pl.col("name") == "u")["input_shapes"].to_list() == [
        "[[2],null,[1]]"
    ]

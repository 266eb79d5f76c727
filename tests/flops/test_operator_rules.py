"""Operators of a user: rows of the file of rules, counted as traceana's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import traceana
from traceana.analyze.flops import flops
from traceana.enrich.classify import load_rules
from traceana.errors import InvalidInputError
from traceana.flops.call import Call, Refusal
from traceana.flops.registry import cost

RULES = """
[[operator]]
name = '^lab::gated$'
formula = "linear"
operands = "w x"

[[operator]]
name = '^lab::(?:up|down)$'
formula = "2*t*k*n*h + t*k*n"
operands = "th enh tk=3"
"""


def recorded(folder: Path) -> Path:
    """Write a trace of three operators, each with one kernel."""
    shapes = {
        "lab::gated": [[5, 4], [2, 3, 4]],
        "lab::up": [[6, 4], [8, 10, 4], [], [6, 2]],
        "lab::down": [[6, 4], [8, 10, 5], [], [6, 2]],
    }
    events = []
    for number, (name, dims) in enumerate(shapes.items(), start=1):
        at = 100 * number
        args = {"Input Dims": dims, "Input type": ["float"] * len(dims), "External id": number}
        same = {"ph": "X", "pid": 1, "tid": 1}
        events += [
            {**same, "cat": "cpu_op", "name": name, "ts": at, "dur": 50, "args": args},
            {**same, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 5, "dur": 5,
             "args": {"correlation": number, "External id": number}},
            {**same, "cat": "kernel", "name": "lab_kernel", "ts": at + 20, "dur": 10, "pid": 0,
             "tid": 7, "args": {"correlation": number, "External id": number, "device": 0,
                                "stream": 7}},
        ]  # fmt: skip
    path = folder / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def test_operators_are_counted_by_the_rows_of_the_users_file(tmp_path: Path) -> None:
    rules = tmp_path / "mine.toml"
    rules.write_text(RULES)
    trace = traceana.open(recorded(tmp_path), rules=rules)
    rows = {row["operator"]: row for row in flops(trace).frame.iter_rows(named=True)}
    assert rows["lab::gated"]["flops"] == 2 * (2 * 3) * 4 * 5
    assert rows["lab::gated"]["formula"] == "matmul"
    assert rows["lab::up"]["flops"] == 2 * 6 * 2 * 10 * 4 + 6 * 2 * 10
    assert rows["lab::down"]["flops"] is None
    assert rows["lab::down"]["reason"] == "matrix shapes do not match"
    without = flops(traceana.open(recorded(tmp_path))).frame
    assert without["flops"].null_count() == 3
    trace.save(tmp_path / "kept")
    kept = flops(traceana.open(tmp_path / "kept")).frame
    assert kept.equals(flops(trace).frame)


@pytest.mark.parametrize(
    ("changed", "to", "problem"),
    [
        ('"linear"', '"lineer"', "unknown formula 'lineer': use linear"),
        ('"w x"', '"w x=second"', "the position of an operand is a number"),
        ("t*k*n", "t*q*n", "q is not an extent of 'th enh tk=3'"),
        ("+ t*k*n", "+ t*k**n", "'' is neither a number nor a letter"),
        ("name = '^lab::gated$'", "", "needs name"),
        ("'^lab::gated$'", "'('", "invalid pattern"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_with_its_line(
    tmp_path: Path, changed: str, to: str, problem: str
) -> None:
    rules = tmp_path / "mine.toml"
    rules.write_text(RULES.replace(changed, to))
    with pytest.raises(InvalidInputError, match=r"mine\.toml:\d+: operator ") as caught:
        load_rules(rules)
    assert problem in str(caught.value)


F8 = "c10::Float8_e4m3fn"


@pytest.mark.parametrize(
    ("name", "shapes", "scalars", "flops"),
    [
        # 6 tokens, 2 experts each of 8, gates and values of 5 units from and to a width of 4.
        ("vllm::outplace_fused_experts", ((6, 4), (8, 10, 4), (8, 4, 5), (6, 2), (6, 2)), (),
         2 * 6 * 2 * (10 * 4 + 4 * 5)),
        ("fbgemm::f8f8bf16_rowwise", ((3, 4), (5, 4), (3,), (5,)), (), 120),
        # Transformer Engine: weight, input, bias, as its functions have them since version 2.
        ("_Linear", ((5, 4), (2, 3, 4), (5,)), (), 240),
        ("_LayerNormLinear", ((2, 3, 4), (4,), (4,), (5, 4), ()), (), 240),
        ("_C::cutlass_scaled_mm", ((3, 5), (3, 4), (4, 5)), (), 120),
        ("sgl_kernel::fp8_scaled_mm", ((3, 4), (4, 5)), (), 120),
        ("primus_turbo::gemm_impl", ((4, 3), (), (5, 4), ()), ("", "True", "", "True"), 120),
        ("primus_turbo::gemm_fp8_impl", ((3, 4), (1,), (), (5, 4), (1,), ()),
         ("", "", "False", "", "", "True"), 120),
        ("primus_turbo::grouped_gemm_impl", ((9, 4), (3, 5, 4), (3,), (4,), (), ()),
         ("", "", "", "", "False", "True"), 360),
        ("primus_turbo::grouped_gemm_variable_k_impl", ((9, 4), (9, 5), (3,), (4,), (), ()),
         ("", "", "", "", "True", "False"), 360),
        ("aten::_weight_int4pack_mm", ((3, 4), (1, 2, 3, 4), (), (2, 5, 2)), (), 120),
        ("aten::_weight_int8pack_mm", ((3, 4), (5, 4), (5,)), (), 120),
        ("aiter::fmha_v3_fwd", ((2, 4, 6, 8), (2, 5, 3, 8), (2, 5, 3, 8)), (),
         2 * 2 * 6 * 4 * 5 * 16),
    ],
)  # fmt: skip
def test_operators_of_public_libraries(
    name: str, shapes: tuple[tuple[int, ...], ...], scalars: tuple[str, ...], flops: int
) -> None:
    result = cost(Call(name, shapes, tuple(F8 if shape else "" for shape in shapes), scalars))
    assert not isinstance(result, Refusal), result
    assert sum(one.flops for one in result) == flops


def test_other_versions_of_a_function_are_refused() -> None:
    """The weight in FP8, and transposed, came before the input."""
    result = cost(Call("_Linear", ((5, 4), (5, 4), (4, 5), (2, 3, 4), (5,)), (F8,) * 5))
    assert result == Refusal("matrix shapes do not match")

"""Convolutions as JAX writes and XLA rewrites them: all three of a layer have one count."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.readers.xplane.hlo_writing import ran, write_programs
from tests.readers.xplane.writing import message, trace_of
from traceana.flops.hlo import instruction_flops

pytestmark = pytest.mark.frameworks

jax = pytest.importorskip("jax")

SAME, VALID = [(1, 1), (1, 1)], [(0, 0), (0, 0)]
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "same": ((4, 13, 13, 32), (3, 3, 32, 64), {"padding": SAME}),
    "valid": ((4, 14, 14, 6), (5, 5, 6, 16), {"padding": VALID}),
    "more padding than window": ((1, 30, 60, 16), (1, 2, 16, 40), {"padding": SAME}),
    "strided": ((4, 28, 28, 16), (3, 3, 16, 32), {"padding": SAME, "window_strides": (2, 2)}),
    "dilated": ((4, 28, 28, 16), (3, 3, 16, 32), {"padding": VALID, "rhs_dilation": (2, 2)}),
    "grouped": ((4, 28, 28, 16), (3, 3, 4, 32), {"padding": VALID, "feature_group_count": 4}),
    "transposed": (
        (4, 7, 7, 16),
        (4, 4, 16, 32),
        {"padding": [(2, 2), (2, 2)], "lhs_dilation": (2, 2)},
    ),
}


def convolutions(path: Path, x: Any, w: Any, options: dict[str, Any], compiled: bool) -> pl.Series:
    """Return the FLOPs of the convolutions of a step forward and back."""

    def layer(x: Any, w: Any) -> Any:
        given = {"window_strides": (1, 1), **options}
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, w, dimension_numbers=numbers, **given)

    def loss(x: Any, w: Any) -> Any:
        return (layer(x, w) ** 2).sum()

    arguments = [jax.ShapeDtypeStruct(shape, "float32") for shape in (x, w)]
    lowered = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(*arguments)
    if compiled:
        (made,) = lowered.compile().runtime_executable().hlo_modules()
    else:
        made = lowered.compiler_ir("hlo")
    proto = message(1, made.as_serialized_hlo_module_proto())
    table = trace_of(
        write_programs(path / "x.pb", ran(("jit_loss", 1, "any")), jit_loss_1=proto)
    ).tables.instructions
    found = table.with_row_index("instruction").join(instruction_flops(table), on="instruction")
    return found.filter(pl.col("opcode").cast(pl.String) == "convolution")["flops"]


@pytest.mark.parametrize("compiled", [False, True], ids=["as written", "optimized"])
@pytest.mark.parametrize("case", CASES)
def test_forward_and_both_gradients(tmp_path: Path, case: str, compiled: bool) -> None:
    x, w, options = CASES[case]
    found = convolutions(tmp_path, x, w, options, compiled)
    if "lhs_dilation" in options:
        positions = prod(x[1:3])
    else:
        stride = options.get("window_strides", (1, 1))
        dilation = options.get("rhs_dilation", (1, 1))
        positions = prod(
            (x[1 + i] + sum(options["padding"][i]) - dilation[i] * (w[i] - 1) - 1) // stride[i] + 1
            for i in range(2)
        )
    assert found.to_list() == [2 * x[0] * positions * prod(w)] * 3


def test_a_depthwise_gradient_that_xla_computes_for_all_pairs_of_channels(tmp_path: Path) -> None:
    x, w = (4, 28, 28, 16), (3, 3, 1, 16)
    options = {"padding": SAME, "window_strides": (2, 2), "feature_group_count": 16}
    one = 2 * 4 * 14 * 14 * prod(w)
    assert convolutions(tmp_path, x, w, options, False).to_list() == [one] * 3
    # On the CPU the optimizer converts it to a convolution without groups and keeps 1/16.
    assert convolutions(tmp_path, x, w, options, True).sort().to_list() == [one, one, 16 * one]

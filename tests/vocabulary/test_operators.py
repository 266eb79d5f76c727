"""What operators are called."""

from __future__ import annotations

import csv
import re
from importlib.resources import files
from typing import get_args

import pytest

from traceana.vocabulary.operators import (
    WEIGHTED,
    Kind,
    Operator,
    of_kinds,
    operator_row,
    operators,
    positions,
)


def test_every_row_stands_once_and_says_something() -> None:
    text = files("traceana.vocabulary").joinpath("operators.csv").read_text("utf-8")
    rows = list(csv.reader(text.splitlines()))[1:]
    assert len(operators()) == len(rows)
    assert all(any(rest) for _, *rest in rows)
    assert {row.kind for row in operators().values()} == {*get_args(Kind), ""}
    works = {"", "view", "allocation", "inside", "copies", "moves"}
    assert {row.work for row in operators().values()} == works


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::conv2d", "convolution"),
        ("torch.nn.functional.conv2d", "convolution"),
        ("mkldnn::_convolution_pointwise", "convolution"),
        ("_MklNativeConv2DWithBias", "convolution"),
        ("aten::addmm", "linear"),
        ("aten::matmul", "batched_mm"),
        ("aten::_scaled_dot_product_flash_attention", "attention"),
        ("aten::native_layer_norm", "normalization"),
        ("fb::convex_sum", None),
        ("aten::convolution_backward", None),
        ("aten::conv2d.default", None),
    ],
)
def test_operators_of_a_kind_are_found_in_any_namespace(name: str, kind: Kind | None) -> None:
    found = [one for one in WEIGHTED if re.search(of_kinds(one), name)]
    assert found == ([] if kind is None else [kind])


def test_the_addend_of_a_product_comes_before_its_operands() -> None:
    for name, input_, weight in (
        ("aten::addmm", 1, 2),
        ("aten::linear", 0, 1),
        ("an operator of a program", 0, 1),
    ):
        row = operator_row(name)
        assert (row.input, row.weight) == (input_, weight)
    assert operator_row("an operator of a program") == Operator()


def test_the_positions_of_operands_follow_each_other() -> None:
    assert positions("x w mask=10 y") == {"x": 0, "w": 1, "mask": 10, "y": 11}
    assert positions("x . . w") == {"x": 0, "w": 3}
    assert positions("") == {}

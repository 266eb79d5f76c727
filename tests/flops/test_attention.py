"""Causal attention: the scores inside the mask, and each operator's argument for it."""

from __future__ import annotations

import pytest

from traceana.flops.attention import Attention, Causal
from traceana.vocabulary.operators import operators


@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 7), (7, 3), (1, 4), (4, 1)])
@pytest.mark.parametrize("causal", ["no", "top left", "bottom right"])
def test_the_masked_scores_are_those_of_the_mask(queries: int, keys: int, causal: Causal) -> None:
    shift = {"no": keys, "top left": 0, "bottom right": keys - queries}[causal]
    masked = sum(key > query + shift for query in range(queries) for key in range(keys))
    attention = Attention(2, 3, 3, queries, keys, 8, 8, causal)
    assert attention.masked == 2 * 3 * masked


@pytest.mark.frameworks
def test_the_causal_input_is_where_pytorch_has_it() -> None:
    torch = pytest.importorskip("torch")
    schemas = {}
    for schema in torch._C._jit_get_all_schemas():
        if schema.overload_name == "":
            schemas[schema.name] = [argument.name for argument in schema.arguments]
    found = {
        schemas[name][at]
        for name, row in operators().items()
        if name.startswith("aten::") and "attention" in row.formula
        for operand, at in row.operands.items()
        if operand in ("causal", "mask_type")
    }
    assert found == {"is_causal", "custom_mask_type"}

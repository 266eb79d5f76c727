"""The registry: no second formula for a name, a derivation behind every id."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import traceana.flops
from traceana.flops import registry
from traceana.flops.call import Call, Cost, Refusal
from traceana.flops.registry import (
    check_row,
    cost,
    declare,
    formula,
    formulas,
    function,
    functions,
)
from traceana.vocabulary.operators import operators


def test_a_second_function_of_a_name_is_refused() -> None:
    functions()

    def again(call: Call) -> tuple[Cost, ...]:
        """Nothing."""
        return ()

    with pytest.raises(ValueError, match="matmul is registered twice"):
        function("matmul")(again)


def test_every_operator_is_counted_by_a_function_that_is_there() -> None:
    used = {row.formula for row in operators().values() if "*" not in row.formula} - {""}
    # Chosen by another function, of layers only, and of rows that write the products themselves.
    assert set(functions()) - used == {"gelu_tanh", "dropout", "products"}
    assert used <= set(functions())
    for row in operators().values():
        if row.formula:
            check_row(row.formula, " ".join(f"{name}={at}" for name, at in row.operands.items()))


def test_a_second_formula_of_an_id_is_refused() -> None:
    formulas()
    with pytest.raises(ValueError, match="matmul is registered twice"):
        declare("matmul", "Twice.")
    with pytest.raises(ValueError, match="has no derivation"):
        formula("nothing")(lambda: None)
    assert "nothing" not in formulas()


def test_every_formula_has_a_derivation_and_every_function_its_inputs() -> None:
    for one, text in formulas().items():
        summary = text.partition("\n")[0]
        assert summary.endswith((".", ":")), one
        assert len(summary) <= 100, one
    for name, counts in functions().items():
        assert inspect.getdoc(counts), name


def test_every_module_that_registers_is_listed() -> None:
    root = Path(inspect.getfile(traceana.flops)).parent
    registering = {
        path.stem
        for path in root.glob("*.py")
        if "@function(" in path.read_text("utf-8") and path.stem != "registry"
    }
    assert set(registry.FAMILIES) == registering


def test_nothing_evaluates_text() -> None:
    root = Path(inspect.getfile(traceana.flops)).parent
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile"), path


@pytest.mark.frameworks
def test_no_operator_takes_more_inputs_than_its_schema() -> None:
    torch = pytest.importorskip("torch")
    schemas: dict[str, int] = {}
    counted = {name for name, row in operators().items() if row.formula}
    for schema in torch._C._jit_get_all_schemas():
        tensors = any("Tensor" in str(argument.type) for argument in schema.arguments)
        writes = any(argument.is_out for argument in schema.arguments)
        if tensors and not writes and schema.name in counted:
            number = len(schema.arguments)
            schemas[schema.name] = max(schemas.get(schema.name, 0), number)
    known = {name: number for name, number in schemas.items() if name.startswith("aten::")}
    rows = {name: row.inputs for name, row in operators().items() if row.inputs is not None}
    assert known == rows


F = "float"


def test_of_a_recorded_stack_the_last_inputs_are_the_operators() -> None:
    """TorchScript: what the interpreter holds comes before the operator's own inputs."""
    stack = ((7,), (7, 9), (9, 9), (3, 4), (4, 5))
    result = cost(Call("aten::matmul", stack, (F,) * 5))
    assert not isinstance(result, Refusal)
    assert result[0].flops == 2 * 3 * 4 * 5
    relu = cost(Call("aten::relu", ((100, 100), (5,), (3, 4)), (F,) * 3))
    assert not isinstance(relu, Refusal)
    assert relu[0].flops == 12


def test_one_more_input_may_be_the_tensor_that_is_written() -> None:
    written = cost(Call("aten::matmul", ((3, 4), (4, 5), (3, 5)), (F,) * 3))
    assert not isinstance(written, Refusal)
    assert written[0].flops == 2 * 3 * 4 * 5
    stack = cost(Call("aten::matmul", ((9, 9), (3, 4), (4, 5)), (F,) * 3))
    assert not isinstance(stack, Refusal)
    assert stack[0].flops == 2 * 3 * 4 * 5
    either = cost(Call("aten::matmul", ((2, 4), (4, 5), (5, 4)), (F,) * 3))
    assert either == Refusal("more inputs recorded than in the operator's schema")

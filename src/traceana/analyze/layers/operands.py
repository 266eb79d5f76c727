"""What a layer's own operator takes, and its weight: as the trace recorded them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from traceana.analyze.layers.instructions import products
from traceana.attribute.layers.annotations import OPERAND_POSITIONS
from traceana.attribute.layers.roles import WEIGHTED
from traceana.flops.arity import MOST_INPUTS
from traceana.flops.call import Call
from traceana.flops.model import Shape, UncountableError

if TYPE_CHECKING:
    from traceana.trace import Trace

_NO_TENSOR: Final = r"^\[\s*(\]|\[\s*\])"
"""Of recorded shapes: an empty list, or a scalar in front."""

_WEIGHTED: Final = (
    WEIGHTED + r"|^(?:_Mkl)?(?:Native)?_?(?:Fused)?(?:Conv[23]D|DepthwiseConv2dNative|"
    r"(?:Batch)?MatMul(?:V[23])?|BatchNorm(?:V[23])?)(?:WithBias)?$"
)
"""Operators of PyTorch, and of TensorFlow, that have a weight."""


class Operands(NamedTuple):
    """Of one layer: the shapes of its first input, its weight and its output.

    ``weight`` is what stands in the weight's place, also of a product of two activations. What is
    not known is None.
    """

    input: Shape | None
    weight: Shape | None
    output: Shape | None = None


def operands(trace: Trace) -> dict[int, Operands]:
    """Return by row of ``layers`` what it takes and its weight.

    The input is that of the layer's first outermost forward operator, the weight that of the first
    that is a convolution, product, normalization or embedding. An operator without a tensor of one
    dimension or more in front, as the counting of batches in a normalization, is none. Of a
    compiled program it is the layer's first convolution or product
    (:func:`traceana.analyze.layers.instructions.products`).
    """
    layers = trace.layers["role"].cast(pl.String) == "layer"
    name = pl.col("name").cast(pl.String)
    named = (
        trace.ops.filter(
            layers.gather(trace.ops["layer"]).fill_null(False)
            & ~pl.col("input_shapes").str.contains(_NO_TENSOR)
            & (pl.col("direction") == "forward").fill_null(True)
        )
        .sort("depth", "start", maintain_order=True)
        .select("layer", name, "input_shapes", name.str.contains(_WEIGHTED).alias("weighted"))
    )
    found = {
        layer: Operands(one.input, one.weight, one.output) for layer, one in products(trace).items()
    }
    for row, operator, text in _first(named):
        found[row] = Operands(_shape(operator, text, 0), None)
    for row, operator, text in _first(named.filter("weighted")):
        found[row] = Operands(found[row].input, _shape(operator, text, 1))
    return found


def _first(ops: pl.DataFrame) -> Iterator[tuple[int, str, str]]:
    first = ops.unique("layer", keep="first", maintain_order=True)
    return first.select("layer", "name", "input_shapes").iter_rows()


def _shape(operator: str, text: str, which: int) -> Shape | None:
    """Return the shape of the input (0) or the weight (1) of a call."""
    try:
        call = Call.decode(operator, text)
        # TorchScript records more than the operator's own inputs, in front of them.
        beyond = max(len(call.shapes) - MOST_INPUTS.get(operator, len(call.shapes)), 0)
        return call.shape(beyond + OPERAND_POSITIONS.get(operator, (0, 1))[which])
    except UncountableError:
        return None

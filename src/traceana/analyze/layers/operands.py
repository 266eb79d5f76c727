"""What a layer's own operator takes, and its weight: as the trace recorded them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from traceana.analyze.layers.instructions import products
from traceana.flops.arity import MOST_INPUTS
from traceana.flops.call import Call
from traceana.flops.model import Shape, UncountableError

if TYPE_CHECKING:
    from traceana.trace import Trace

_NO_TENSOR: Final = r"^\[\s*(\]|\[\s*\])"
"""Of recorded shapes: an empty list, or a scalar in front."""

_POSITIONS: Final[dict[str, tuple[int, int]]] = {
    "aten::embedding": (1, 0),
    **dict.fromkeys(("aten::layer_norm", "aten::native_layer_norm", "aten::group_norm"), (0, 2)),
    # A bias, or what else is added to the product, stands in front.
    **dict.fromkeys(
        [
            f"aten::{name}{in_place}"
            for name in ("addmm", "baddbmm", "addbmm", "addmv", "sspaddmm")
            for in_place in ("", "_")
        ],
        (1, 2),
    ),
    "aten::_addmm_activation": (1, 2),
}
"""Where PyTorch's operators have their input and their weight, if not first and second."""


class Operands(NamedTuple):
    """Of one layer: its operator, and the shapes of its first input, its weight and its output.

    ``weight`` is what stands in the weight's place, also where the operator has none there: a
    product of two activations. What is not known is None.
    """

    operator: str
    input: Shape | None
    weight: Shape | None
    output: Shape | None = None


def operands(trace: Trace) -> dict[int, Operands]:
    """Return by row of ``layers`` what its first outermost forward operator takes.

    An operator without a tensor of one dimension or more in front, as the counting of batches in a
    normalization, is none. Of a compiled program it is the layer's first convolution or product
    (:func:`traceana.analyze.layers.instructions.products`).
    """
    layers = trace.layers["role"].cast(pl.String) == "layer"
    named = trace.ops.filter(
        layers.gather(trace.ops["layer"]).fill_null(False)
        & ~pl.col("input_shapes").str.contains(_NO_TENSOR)
        & (pl.col("direction") == "forward").fill_null(True)
    )
    first = (
        named.sort("depth", "start", maintain_order=True)
        .unique("layer", keep="first", maintain_order=True)
        .select("layer", pl.col("name").cast(pl.String), "input_shapes")
    )
    found = {
        layer: Operands(one.operator, one.input, one.weight, one.output)
        for layer, one in products(trace).items()
    }
    for row, name, text in first.iter_rows():
        try:
            call = Call.decode(name, text)
        except UncountableError:
            continue
        # TorchScript records more than the operator's own inputs, in front of them.
        beyond = max(len(call.shapes) - MOST_INPUTS.get(name, len(call.shapes)), 0)
        places = (beyond + place for place in _POSITIONS.get(name, (0, 1)))
        found[row] = Operands(name, *(_shape(call, place) for place in places))
    return found


def _shape(call: Call, position: int) -> Shape | None:
    try:
        return call.shape(position)
    except UncountableError:
        return None

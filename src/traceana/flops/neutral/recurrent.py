"""Recurrent layers: LSTM, GRU and the plain recurrent network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, Literal

from traceana.flops.model import Cost, Operand, Part, Shape, compulsory
from traceana.flops.registry import formula

Cell = Literal["lstm", "gru", "rnn_tanh", "rnn_relu"]

GATES: Final[dict[Cell, int]] = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""Rows of the weights for each unit."""
_FORWARD: Final[dict[Cell, int]] = {"lstm": 18, "gru": 14, "rnn_tanh": 1, "rnn_relu": 1}
_BACKWARD: Final[dict[Cell, int]] = {"lstm": 23, "gru": 16, "rnn_tanh": 3, "rnn_relu": 1}


@dataclass(frozen=True, slots=True)
class Recurrent:
    """The extents of one call of a recurrent layer or of a stack of them.

    ``positions`` is the number of time steps, summed over the images of the batch; ``matrices`` are
    the weights of all layers and directions, each applied at every position; ``units`` is the
    number of hidden units of all layers and directions; ``biases`` the number of elements of the
    bias vectors.
    """

    cell: Cell
    positions: int
    matrices: tuple[Shape, ...]
    units: int
    biases: int = 0

    @property
    def weights(self) -> int:
        """The elements of all matrices."""
        return sum(map(prod, self.matrices))

    @property
    def products(self) -> int:
        """The multiply-accumulates of all matrices, as two operations each."""
        return 2 * self.positions * self.weights


def _cost(
    layer: Recurrent, part: Part, flops: int, operands: Sequence[Operand | None], rule: str
) -> Cost:
    kind = layer.cell.removesuffix("_tanh").removesuffix("_relu")
    return Cost(kind, part, flops, compulsory(*operands), rule)


@formula("recurrent.forward")
def forward(layer: Recurrent, *operands: Operand | None) -> Cost:
    """2 · T · N · |W| and the gates: every weight meets every time step of every image.

    A position (one of T time steps of one of N images) multiplies its input by W and the state
    before it by R; a projection of the state is a matrix more. |W| sums the elements of all
    matrices, layers and directions. Both products of a gate are one sum, which starts at its bias.
    The rest is elementwise, for each unit and position. LSTM (Hochreiter and Schmidhuber, 1997;
    Gers et al., 2000), 18: three sigmoids (12), tanh, c = f·c + i·g (3), tanh(c), and the product
    with o. GRU (Cho et al., 2014, the reset behind the product), 14: two sigmoids (8),
    n = tanh(a + r·b) (3), h = n + z·(h - n) (3). A plain recurrent unit, 1.
    Dropout between layers is left out.
    """
    gates = _FORWARD[layer.cell] * layer.positions * layer.units
    return _cost(layer, "forward", layer.products + gates, operands, "recurrent.forward")


@formula("recurrent.dgrad")
def dgrad(layer: Recurrent, *operands: Operand | None) -> Cost:
    """2 · T · N · |W| and the gates: each matrix, transposed, meets the gradients of its gates.

    Wᵀ gives the gradient of the input, Rᵀ that of the state before. Libraries compute the gradients
    of the first layer's input and of the first state whether they are used or not: they count.
    Elementwise, for each unit and position, LSTM 23: tanh(c) again (1), do = dh·tanh(c) (1),
    dc = dc + dh·o·(1 - tanh²) (5), di = dc·g, df = dc·c, dg = dc·i (3), the gradients of three
    sigmoids (9) and of a tanh (3), dc·f (1). GRU 16: dn = dh·(1 - z) (2), dz = dh·(h - n) (2),
    through tanh (3) and sigmoid (3), dr (1 and 3), r·dn (1), z·dh (1). A plain unit: 3 (tanh) or
    1 (ReLU).
    """
    gates = _BACKWARD[layer.cell] * layer.positions * layer.units
    return _cost(layer, "dgrad", layer.products + gates, operands, "recurrent.dgrad")


@formula("recurrent.wgrad")
def wgrad(layer: Recurrent, *operands: Operand | None) -> Cost:
    """2 · T · N · |W|: each weight's gradient sums a product for each position.

    The gradient of W is the sum of outer products of the gates' gradients with the input, that of
    R with the state before.
    """
    return _cost(layer, "wgrad", layer.products, operands, "recurrent.wgrad")


@formula("recurrent.bias_grad")
def bias_grad(layer: Recurrent, *operands: Operand | None) -> Cost:
    """T · N · b: the gradients of the gates, summed over the positions.

    b is the number of biases that have a gradient of their own: the two biases of an LSTM's gate
    are one sum, and so are those of a plain unit and of two of a GRU's gates.
    """
    own = {"gru": 4}.get(layer.cell, GATES[layer.cell]) * layer.units
    return _cost(layer, "bias_grad", layer.positions * own, operands, "recurrent.bias_grad")


@formula("recurrent.cell")
def fused_cell(cell: Cell, units: int, biases: int, *operands: Operand | None) -> Cost:
    """The gates of one time step, whose products ran before.

    For each unit 22 (LSTM: 18, and 4 sums of the two products) or 16 (GRU: 14, and 2 sums; the
    third is in n). Each bias that is given adds one a gate.
    """
    sums = {"lstm": 4, "gru": 2}.get(cell, 1)
    flops = units * (_FORWARD[cell] + sums + biases * GATES[cell])
    return Cost(cell, "forward", flops, compulsory(*operands), "recurrent.cell")


@formula("recurrent.cell_backward")
def fused_cell_backward(cell: Cell, units: int, *operands: Operand | None) -> Cost:
    """The gradients of one time step's gates: 23 a unit of an LSTM, 16 of a GRU.

    As in `recurrent.dgrad`, without its products.
    """
    flops = units * _BACKWARD[cell]
    return Cost(cell, "backward", flops, compulsory(*operands), "recurrent.cell_backward")

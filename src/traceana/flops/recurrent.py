"""Recurrent layers: LSTM, GRU and plain RNN, and their operators in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final, Literal

import msgspec

from traceana.flops.call import Call, Cost, Operand, Part, Shape, UncountableError, compulsory
from traceana.flops.registry import formula, function

Cell = Literal["lstm", "gru", "rnn_tanh", "rnn_relu"]

GATES: Final[dict[Cell, int]] = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""Rows of the weights for each unit."""
_FORWARD: Final[dict[Cell, int]] = {"lstm": 18, "gru": 14, "rnn_tanh": 1, "rnn_relu": 1}
_BACKWARD: Final[dict[Cell, int]] = {"lstm": 23, "gru": 16, "rnn_tanh": 3, "rnn_relu": 1}


class Recurrent(msgspec.Struct, frozen=True):
    """The extents of one call of a recurrent layer or a stack of layers.

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
    """2 · T · N · |W| and the gates: every weight is used at every time step of every image.

    A position (one of T time steps of one of N images) multiplies its input by W and the previous
    state by R; a projection of the state is a further matrix. |W| sums the elements of all
    matrices, layers and directions. Both products of a gate are one sum, with the bias as initial
    value. The rest is elementwise, for each unit and position. LSTM (Hochreiter and Schmidhuber,
    1997; Gers et al., 2000), 18: three sigmoids (12), tanh, c = f·c + i·g (3), tanh(c), and the
    product with o. GRU (Cho et al., 2014, reset after the product), 14: two sigmoids (8),
    n = tanh(a + r·b) (3), h = n + z·(h - n) (3). A plain recurrent unit, 1.
    Dropout between layers is left out.
    """
    gates = _FORWARD[layer.cell] * layer.positions * layer.units
    return _cost(layer, "forward", layer.products + gates, operands, "recurrent.forward")


@formula("recurrent.dgrad")
def dgrad(layer: Recurrent, *operands: Operand | None) -> Cost:
    """2 · T · N · |W| and the gates: transposed matrices times the gradients of their gates.

    Wᵀ gives the gradient of the input, Rᵀ that of the previous state. Libraries always compute the
    gradients of the first layer's input and of the first state: they count.
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
    R with the previous state.
    """
    return _cost(layer, "wgrad", layer.products, operands, "recurrent.wgrad")


@formula("recurrent.bias_grad")
def bias_grad(layer: Recurrent, *operands: Operand | None) -> Cost:
    """T · N · b: the gradients of the gates, summed over the positions.

    b is the number of biases with distinct gradients: the two biases of an LSTM's gate have one
    sum, as have those of a plain unit and of two of a GRU's gates.
    """
    biases = {"gru": 4}.get(layer.cell, GATES[layer.cell]) * layer.units
    return _cost(layer, "bias_grad", layer.positions * biases, operands, "recurrent.bias_grad")


@formula("recurrent.cell")
def fused_cell(cell: Cell, units: int, biases: int, *operands: Operand | None) -> Cost:
    """The gates of one time step, whose products ran before.

    Per unit 22 (LSTM: 18, and 4 sums of the two products) or 16 (GRU: 14, and 2 sums; the third is
    in n). Each given bias adds one per gate.
    """
    sums = {"lstm": 4, "gru": 2}.get(cell, 1)
    flops = units * (_FORWARD[cell] + sums + biases * GATES[cell])
    return Cost(cell, "forward", flops, compulsory(*operands), "recurrent.cell")


@formula("recurrent.cell_backward")
def fused_cell_backward(cell: Cell, units: int, *operands: Operand | None) -> Cost:
    """The gradients of one time step's gates: 23 per unit of an LSTM, 16 of a GRU.

    As in `recurrent.dgrad`, without its products.
    """
    flops = units * _BACKWARD[cell]
    return Cost(cell, "backward", flops, compulsory(*operands), "recurrent.cell_backward")


_MODES: Final[dict[str, Cell]] = {"0": "rnn_relu", "1": "rnn_tanh", "2": "lstm", "3": "gru"}
"""PyTorch's numbers of the libraries' cells."""


@function("recurrent", "recurrent_layer")
def layer_forward(call: Call) -> tuple[Cost, ...]:
    """Input […, I], the weights and biases of all layers and directions, state, cell state; of one
    layer and direction W, R and their biases (or W, R again)."""
    layer, size = _extents(call), call.size("x")
    states = _states(call, layer)
    weights = Operand(layer.weights + layer.biases, size)
    output = Operand(layer.positions * layer.units, size)
    if call.formula == "recurrent":
        try:
            # The output has both directions.
            width = call.shape("state")[-1] * (1 + call.flag("bidirectional"))
            output = Operand(layer.positions * width, size)
        except UncountableError:
            output = Operand(None, None)
    return (forward(layer, call.operand("x"), weights, *states, output, *states),)


@function("recurrent_backward", "recurrent_layer_backward")
def layer_backward(call: Call) -> tuple[Cost, ...]:
    """As forward, and the output; the mask of the gradients, without one all of them."""
    layer, size = _extents(call), call.size("x")
    entering, output = call.operand("x"), call.operand("y")
    states, matrices = _states(call, layer), Operand(layer.weights, size)
    # The gradient of the input is an intermediate result of that of the weights.
    parts = [dgrad(layer, matrices, output, output, entering, *states, *states)]
    if "mask" not in call.at or call.flags("mask")[-1]:
        parts.append(wgrad(layer, entering, output, matrices))
        if layer.biases:
            parts.append(bias_grad(layer, Operand(layer.biases, size)))
    return tuple(parts)


def _states(call: Call, layer: Recurrent) -> tuple[Operand | None, Operand | None]:
    return call.operand("state"), call.operand("cell_state") if layer.cell == "lstm" else None


@function("lstm_cell", "gru_cell")
def cell(call: Call) -> tuple[Cost, ...]:
    """The products with input and state [N, gates · H], the state [N, H], two biases."""
    kind: Cell = "lstm" if call.formula == "lstm_cell" else "gru"
    units = _units(call, "x_gates", GATES[kind])
    read = [call.operand(at) for at in call.at]
    biases = sum(operand is not None for operand in read[3:])
    # The state, the cell state of an LSTM, and the gates for the backward pass.
    written = Operand({"lstm": 2 + 4, "gru": 1 + 5}[kind] * units, call.size("x_gates"))
    return (fused_cell(kind, units, biases, *read, written),)


@function("lstm_cell_backward")
def lstm_cell_backward(call: Call) -> tuple[Cost, ...]:
    """The gradients of state and cell state, cell states [N, H], the gates [N, 4H], biases."""
    units = _units(call, "gates", GATES["lstm"])
    read = [call.operand(at) for at in range(5)]
    part = fused_cell_backward("lstm", units, *read, call.operand("gates"), call.operand("state"))
    return (part, *_sums(call, "lstm", units))


@function("gru_cell_backward")
def gru_cell_backward(call: Call) -> tuple[Cost, ...]:
    """The gradient of the state [N, H], the gates [N, 5H], biases."""
    units = _units(call, "gates", 5, state="dy")
    gates, state = Operand(3 * units, call.size("dy")), call.operand("dy")
    part = fused_cell_backward("gru", units, state, call.operand("gates"), gates, gates, state)
    return (part, *_sums(call, "gru", units, state="dy"))


def _units(call: Call, gates: str, each: int, state: str = "state") -> int:
    units = call.elements(state)
    if call.elements(gates) != each * units:
        raise UncountableError("gate and state shapes do not match")
    return units


def _sums(call: Call, kind: Cell, units: int, state: str = "state") -> tuple[Cost, ...]:
    """Return the biases' gradients, sums over the images."""
    width = call.shape(state)[-1]
    if "biased" not in call.at or not call.flag("biased") or not width:
        return ()
    of = Recurrent(kind, units // width, (), width)
    return (bias_grad(of, Operand(2 * GATES[kind] * width, call.size(0))),)


def _extents(call: Call) -> Recurrent:
    mode = call.scalar("mode")
    if mode not in _MODES:
        raise UncountableError("recurrent cell type unknown")
    kind = _MODES[mode]
    positions = prod(call.shape("x", 2, 3)[:-1])
    if "r" in call.at:
        of_input, of_state = call.shape("w", 2), call.shape("r", 2)
        width = of_state[1]
        if of_state[0] != GATES[kind] * width or of_input[0] != of_state[0]:
            raise UncountableError("weight shapes do not match")
        # A layer without biases has its matrices as input a second time.
        vectors = [call.shape(name) for name in ("bias_w", "bias_r") if len(call.shape(name)) == 1]
        return Recurrent(kind, positions, (of_input, of_state), width, sum(map(prod, vectors)))
    (cells, *_, width), tensors = call.shape("state", 3), call.tensor_list("w")
    matrices = tuple(tensor for tensor in tensors if len(tensor) == 2)
    if kind == "lstm":
        # With a projection the state is narrower than the cell state.
        width = call.shape("cell_state", 3)[-1]
    gates = [matrix for matrix in matrices if matrix[0] == GATES[kind] * width]
    if not cells or len(matrices) % cells or len(gates) < 2 * cells:
        raise UncountableError("weight and state shapes do not match")
    biases = sum(prod(tensor) for tensor in tensors if len(tensor) == 1)
    return Recurrent(kind, positions, matrices, cells * width, biases)

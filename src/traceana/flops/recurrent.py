"""Recurrent layers: LSTM, GRU and plain RNN, and their operators in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final, Literal, NamedTuple

import msgspec

from traceana.flops.call import Call
from traceana.flops.cost import Cost, Operand, Part, Shape, UncountableError, compulsory
from traceana.flops.registry import formula, operator

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
    own = {"gru": 4}.get(layer.cell, GATES[layer.cell]) * layer.units
    return _cost(layer, "bias_grad", layer.positions * own, operands, "recurrent.bias_grad")


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


@operator("aten::_cudnn_rnn", "aten::miopen_rnn")
def stack(call: Call) -> tuple[Cost, ...]:
    """Input […, I], the weights and biases of all layers and directions, state, cell state."""
    state = 4 if "cudnn" in call.name else 3
    layer = _stack(call, state, call.scalar(state + 2))
    return (forward(layer, *_operands(call, state, _outputs(call, state, layer))),)


@operator("aten::_cudnn_rnn_backward", "aten::miopen_rnn_backward")
def stack_backward(call: Call) -> tuple[Cost, ...]:
    """Input […, I], weights and biases, state 4, cell state 5, output 6, its gradient, the mask."""
    layer = _stack(call, 4, call.scalar(10))
    size = call.size(0)
    output = call.operand(6)
    state, weights = (call.operand(4), call.operand(5)), Operand(layer.weights, size)
    entering = call.operand(0)
    # The gradient of the input is an intermediate result of that of the weights.
    parts = [dgrad(layer, weights, output, output, entering, *state, *state)]
    if call.flags(len(call.shapes) - 1)[-1]:
        parts.append(wgrad(layer, entering, output, weights))
        if layer.biases:
            parts.append(bias_grad(layer, Operand(layer.biases, size)))
    return tuple(parts)


@operator("aten::mkldnn_rnn_layer")
def layer_forward(call: Call) -> tuple[Cost, ...]:
    """Input [T, N, I], W, R, their biases (or W, R again), state, cell state, …, the cell 9."""
    layer = _layer(call, 9)
    size, state = call.size(0), call.operand(5)
    cell_state = call.operand(6) if layer.cell == "lstm" else None
    read = (call.operand(0), Operand(layer.weights + layer.biases, size), state, cell_state)
    written = (Operand(layer.positions * layer.matrices[1][1], size), state, cell_state)
    return (forward(layer, *read, *written),)


@operator("aten::mkldnn_rnn_layer_backward")
def layer_backward(call: Call) -> tuple[Cost, ...]:
    """Input [T, N, I], W, R, their biases, states, output 7, …, the cell 14."""
    layer = _layer(call, 14)
    size, entering, output, state = call.size(0), *(call.operand(at) for at in (0, 7, 5))
    cell_state = call.operand(6) if layer.cell == "lstm" else None
    weights = Operand(layer.weights, size)
    states = (state, cell_state, state, cell_state)
    parts = [
        dgrad(layer, weights, output, output, entering, *states),
        wgrad(layer, entering, output, weights),
    ]
    if layer.biases:
        parts.append(bias_grad(layer, Operand(layer.biases, size)))
    return tuple(parts)


@operator("aten::_thnn_fused_lstm_cell", "aten::_thnn_fused_gru_cell")
def cell(call: Call) -> tuple[Cost, ...]:
    """The products with input and state [N, gates · H], the state [N, H], two biases."""
    fused = _fused(call, "lstm" if "lstm" in call.name else "gru", gates=0, state=2)
    read = tuple(call.operand(at) for at in range(5))
    biases = sum(one is not None for one in read[3:])
    # The state, the cell state of an LSTM, and the gates for the backward pass.
    workspace = 4 if fused.cell == "lstm" else 5
    written = (2 if fused.cell == "lstm" else 1) + workspace
    result = Operand(written * fused.units, call.size(0))
    return (fused_cell(fused.cell, fused.units, biases, *read, result),)


@operator("aten::_thnn_fused_lstm_cell_backward", "aten::_thnn_fused_lstm_cell_backward_impl")
def lstm_cell_backward(call: Call) -> tuple[Cost, ...]:
    """The gradients of state and cell state, cell states [N, H], the gates [N, 4H], biases."""
    fused = _fused(call, "lstm", gates=4, state=2)
    gates, before = call.operand(4), call.operand(2)
    moved = (*(call.operand(at) for at in range(5)), gates, before)
    parts = (fused_cell_backward("lstm", fused.units, *moved),)
    return parts if call.name.endswith("_impl") else (*parts, *_sums(call, fused, 5))


@operator("aten::_thnn_fused_gru_cell_backward")
def gru_cell_backward(call: Call) -> tuple[Cost, ...]:
    """The gradient of the state [N, H], the gates [N, 5H], biases."""
    units = call.elements(0)
    if call.elements(1) != 5 * units:
        raise UncountableError("gate and state shapes do not match")
    gates = Operand(3 * units, call.size(0))
    moved = (call.operand(0), call.operand(1), gates, gates, call.operand(0))
    fused = _Fused("gru", units, call.shape(0)[-1])
    return (fused_cell_backward("gru", units, *moved), *_sums(call, fused, 2))


class _Fused(NamedTuple):
    cell: Cell
    units: int
    width: int


def _fused(call: Call, kind: Cell, *, gates: int, state: int) -> _Fused:
    units = call.elements(state)
    if call.elements(gates) != GATES[kind] * units:
        raise UncountableError("gate and state shapes do not match")
    return _Fused(kind, units, call.shape(state)[-1])


def _sums(call: Call, fused: _Fused, flag: int) -> tuple[Cost, ...]:
    """Return the biases' gradients, sums over the images."""
    if not call.flag(flag) or not fused.width:
        return ()
    rows = fused.units // fused.width
    of = Recurrent(fused.cell, rows, (), fused.width)
    return (bias_grad(of, Operand(2 * GATES[fused.cell] * fused.width, call.size(0))),)


def _stack(call: Call, state: int, mode: str) -> Recurrent:
    hidden = call.shape(state, 3)
    tensors = call.tensor_list(1)
    matrices = tuple(one for one in tensors if len(one) == 2)
    kind = _cell(mode)
    # With a projection the state is narrower than the cell state.
    width = call.shape(state + 1, 3)[-1] if kind == "lstm" else hidden[-1]
    cells = hidden[0]
    gates = [one for one in matrices if one[0] == GATES[kind] * width]
    if not cells or len(matrices) % cells or len(gates) < 2 * cells:
        raise UncountableError("weight and state shapes do not match")
    biases = sum(prod(one) for one in tensors if len(one) == 1)
    positions = prod(call.shape(0, 2, 3)[:-1])
    return Recurrent(kind, positions, matrices, cells * width, biases)


def _layer(call: Call, mode: int) -> Recurrent:
    kind = _cell(call.scalar(mode))
    of_input, of_state = call.shape(1, 2), call.shape(2, 2)
    width = of_state[1]
    if of_state[0] != GATES[kind] * width or of_input[0] != of_state[0]:
        raise UncountableError("weight shapes do not match")
    # A layer without biases has its matrices as input a second time.
    biases = sum(call.elements(at) for at in (3, 4) if len(call.shape(at)) == 1)
    positions = prod(call.shape(0, 2, 3)[:-1])
    return Recurrent(kind, positions, (of_input, of_state), width, biases)


def _cell(mode: str) -> Cell:
    if mode not in _MODES:
        raise UncountableError("recurrent cell type unknown")
    return _MODES[mode]


def _operands(call: Call, state: int, output: Operand) -> tuple[Operand | None, ...]:
    weights = Operand(sum(map(prod, call.tensor_list(1))), call.size(0))
    states = (call.operand(state), call.operand(state + 1))
    return (call.operand(0), weights, *states, output, *states)


def _outputs(call: Call, state: int, layer: Recurrent) -> Operand:
    """Return the output, of both directions; its width is unknown where the flag is unknown."""
    try:
        bidirectional = call.flag(13 if "cudnn" in call.name else 11)
    except UncountableError:
        return Operand(None, None)
    width: Shape = call.shape(state)[-1:]
    return Operand(layer.positions * width[0] * (1 + bidirectional), call.size(0))

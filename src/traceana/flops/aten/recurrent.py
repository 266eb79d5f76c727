"""PyTorch's recurrent layers in the libraries behind them: cuDNN, MIOpen, oneDNN, fused cells."""

from __future__ import annotations

from math import prod
from typing import Final, NamedTuple

from traceana.flops.call import Call
from traceana.flops.model import Cost, Operand, Shape, UncountableError
from traceana.flops.neutral.recurrent import (
    GATES,
    Cell,
    Recurrent,
    bias_grad,
    dgrad,
    forward,
    fused_cell,
    fused_cell_backward,
    wgrad,
)
from traceana.flops.registry import operator

_MODES: Final[dict[str, Cell]] = {"0": "rnn_relu", "1": "rnn_tanh", "2": "lstm", "3": "gru"}
"""The numbers that PyTorch gives the cells of its libraries."""


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
    # The gradient of the input is computed on the way to that of the weights.
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
    # The state, of an LSTM the cell's state too, and the gates that the backward pass needs.
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
        raise UncountableError("the extents of gates and state do not agree")
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
        raise UncountableError("the extents of gates and state do not agree")
    return _Fused(kind, units, call.shape(state)[-1])


def _sums(call: Call, fused: _Fused, flag: int) -> tuple[Cost, ...]:
    """Return the sums over the images that the biases' gradients are."""
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
    # With a projection the state is narrower than the cell's.
    width = call.shape(state + 1, 3)[-1] if kind == "lstm" else hidden[-1]
    cells = hidden[0]
    gates = [one for one in matrices if one[0] == GATES[kind] * width]
    if not cells or len(matrices) % cells or len(gates) < 2 * cells:
        raise UncountableError("the extents of weights and state do not agree")
    biases = sum(prod(one) for one in tensors if len(one) == 1)
    positions = prod(call.shape(0, 2, 3)[:-1])
    return Recurrent(kind, positions, matrices, cells * width, biases)


def _layer(call: Call, mode: int) -> Recurrent:
    kind = _cell(call.scalar(mode))
    of_input, of_state = call.shape(1, 2), call.shape(2, 2)
    width = of_state[1]
    if of_state[0] != GATES[kind] * width or of_input[0] != of_state[0]:
        raise UncountableError("the extents of the weights do not agree")
    # A layer without biases is handed its matrices a second time.
    biases = sum(call.elements(at) for at in (3, 4) if len(call.shape(at)) == 1)
    positions = prod(call.shape(0, 2, 3)[:-1])
    return Recurrent(kind, positions, (of_input, of_state), width, biases)


def _cell(mode: str) -> Cell:
    if mode not in _MODES:
        raise UncountableError("the kind of the recurrent cell is not known")
    return _MODES[mode]


def _operands(call: Call, state: int, output: Operand) -> tuple[Operand | None, ...]:
    weights = Operand(sum(map(prod, call.tensor_list(1))), call.size(0))
    states = (call.operand(state), call.operand(state + 1))
    return (call.operand(0), weights, *states, output, *states)


def _outputs(call: Call, state: int, layer: Recurrent) -> Operand:
    """Return the output, of both directions; its width is not known where the flag is not."""
    try:
        bidirectional = call.flag(13 if "cudnn" in call.name else 11)
    except UncountableError:
        return Operand(None, None)
    width: Shape = call.shape(state)[-1:]
    return Operand(layer.positions * width[0] * (1 + bidirectional), call.size(0))

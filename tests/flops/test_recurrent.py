"""Recurrent layers as PyTorch's profiler records their libraries' calls, in closed form."""

from __future__ import annotations

import pytest

from traceana.flops.call import Call, Cost, Entry, Refusal
from traceana.flops.registry import cost

T, N, X, H, P = 3, 2, 5, 7, 4
"""Time steps, images, width of the input, of the state, of a projected state."""
F = 4
"""Bytes of an element."""
W, R = 4 * H * X, 4 * H * H


def weights(gates: int, layers: int, ways: int, biases: bool, state: int = H) -> Entry:
    """Return the shapes of a stack's weights in cuDNN's order."""
    tensors: list[tuple[int, ...]] = []
    for layer in range(layers):
        for _ in range(ways):
            tensors.append((gates * H, ways * state if layer else X))
            tensors.append((gates * H, state))
            tensors += [(gates * H,)] * (2 * biases) + [(state, H)] * (state != H)
    return tuple(tensors)


def parts(name: str, shapes: tuple[Entry, ...], scalars: dict[int, str]) -> dict[str, int]:
    """Return the FLOPs of each part of a call of float tensors."""
    result = costs(name, shapes, scalars)
    assert not isinstance(result, Refusal), result
    return {one.part: one.flops for one in result}


def costs(
    name: str, shapes: tuple[Entry, ...], scalars: dict[int, str]
) -> tuple[Cost, ...] | Refusal:
    types = tuple(
        "Scalar"
        if place in scalars
        else "TensorList"
        if shape and isinstance(shape[0], tuple)
        else "float"
        if shape
        else ""
        for place, shape in enumerate(shapes)
    )
    texts = tuple(scalars.get(place, "") for place in range(len(shapes)))
    return cost(Call(f"aten::{name}", shapes, types, texts))


def cudnn(
    kind: str, layers: int, ways: int, biases: bool, *, packed: bool = False, state: int = H
) -> tuple[tuple[Entry, ...], dict[int, str]]:
    gates = {"2": 4, "3": 3}.get(kind, 1)
    hidden = (layers * ways, N, state)
    shapes: list[Entry] = [(T * N, X) if packed else (T, N, X)]
    shapes += [weights(gates, layers, ways, biases, state), (), (), hidden]
    shapes += [(layers * ways, N, H) if kind == "2" else ()]
    shapes += [()] * 10
    scalars = {2: "4", 6: kind, 7: str(H), 8: "0", 9: str(layers), 10: "False", 11: "0."}
    return tuple(shapes), scalars | {12: "True", 13: str(ways == 2), 14: "[]"}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("kind", "gates", "elementwise"), [("2", 4, 18), ("3", 3, 14), ("1", 1, 1), ("0", 1, 1)]
)
def test_a_stack_of_cudnn(kind: str, gates: int, elementwise: int, packed: bool) -> None:
    """Two layers in both directions: the second reads both directions of the first."""
    matrices = 2 * gates * H * (X + H) + 2 * gates * H * (2 * H + H)
    shapes, scalars = cudnn(kind, 2, 2, biases=True, packed=packed)
    want = T * N * (2 * matrices + elementwise * 4 * H)
    assert parts("_cudnn_rnn", shapes, scalars) == {"forward": want}


def test_a_projection_is_a_product_more() -> None:
    shapes, scalars = cudnn("2", 1, 1, biases=False, state=P)
    matrices = 4 * H * X + 4 * H * P + P * H
    want = T * N * (2 * matrices + 18 * H)
    assert parts("_cudnn_rnn", shapes, scalars) == {"forward": want}


def test_a_stack_of_miopen_has_no_buffer_of_weights() -> None:
    shapes, scalars = cudnn("2", 1, 1, biases=True)
    # Neither the buffer nor the width of a projection.
    places = [place for place in range(16) if place not in (3, 8)]
    moved = {new: scalars[old] for new, old in enumerate(places) if old in scalars}
    made = tuple(shapes[place] for place in places)
    want = {"forward": T * N * (2 * (W + R) + 18 * H)}
    assert parts("miopen_rnn", made, moved) == want


@pytest.mark.parametrize("wanted", [True, False])
def test_the_gradients_of_a_stack(wanted: bool) -> None:
    weight = weights(4, 1, 1, biases=True)
    state: Entry = (1, N, H)
    output: Entry = (T, N, H)
    tensors: tuple[Entry, ...] = ((T, N, X), weight, (), (), state, state, output, output, (), ())
    shapes = (*tensors, *[()] * 10, (100,), ())
    scalars = {2: "4", 10: "2", 21: f"[True, False, False, {wanted}]"}
    got = parts("_cudnn_rnn_backward", shapes, scalars)
    want = {"dgrad": T * N * (2 * (W + R) + 23 * H)}
    if wanted:
        want |= {"wgrad": T * N * 2 * (W + R), "bias_grad": T * N * 4 * H}
    assert got == want


def onednn(biases: bool) -> tuple[Entry, ...]:
    first: tuple[Entry, ...] = ((T, N, X), (4 * H, X), (4 * H, H))
    more: tuple[Entry, ...] = ((4 * H,), (4 * H,)) if biases else first[1:]
    return (*first, *more, (N, H), (N, H))


@pytest.mark.parametrize("biases", [True, False])
def test_a_layer_of_onednn(biases: bool) -> None:
    shapes = (*onednn(biases), *[()] * 9)
    scalars = {7: "False", 9: "2", 10: str(H), 11: "1", 12: str(biases)}
    want = T * N * (2 * (W + R) + 18 * H)
    assert parts("mkldnn_rnn_layer", shapes, scalars) == {"forward": want}
    result = costs("mkldnn_rnn_layer", shapes, scalars)
    assert not isinstance(result, Refusal)
    vectors = 8 * H if biases else 0
    assert result[0].bytes == F * (T * N * X + W + R + vectors + 4 * N * H + T * N * H)


@pytest.mark.parametrize("biases", [True, False])
def test_the_gradients_of_a_layer_of_onednn(biases: bool) -> None:
    output: tuple[Entry, ...] = ((T, N, H), (N, H), (N, H), (T, N, H))
    shapes = (*onednn(biases), *output, *[()] * 11, (100,))
    scalars = {13: "False", 14: "2", 15: str(H), 16: "1", 17: str(biases)}
    want = {"dgrad": T * N * (2 * (W + R) + 23 * H), "wgrad": T * N * 2 * (W + R)}
    if biases:
        want["bias_grad"] = T * N * 4 * H
    assert parts("mkldnn_rnn_layer_backward", shapes, scalars) == want


@pytest.mark.parametrize(("biases", "more"), [(False, 0), (True, 8)])
def test_the_fused_cell_of_an_lstm(biases: bool, more: int) -> None:
    gates, state = (N, 4 * H), (N, H)
    vectors: tuple[Entry, ...] = ((4 * H,), (4 * H,)) if biases else ((), ())
    shapes: tuple[Entry, ...] = (gates, gates, state, *vectors)
    assert parts("_thnn_fused_lstm_cell", shapes, {}) == {"forward": N * H * (22 + more)}
    back: tuple[Entry, ...] = (state, state, state, state, gates, ())
    want = {"backward": N * H * 23} | ({"bias_grad": N * 4 * H} if biases else {})
    assert parts("_thnn_fused_lstm_cell_backward", back, {5: str(biases)}) == want


@pytest.mark.parametrize(("biases", "more"), [(False, 0), (True, 6)])
def test_the_fused_cell_of_a_gru(biases: bool, more: int) -> None:
    gates, state = (N, 3 * H), (N, H)
    vectors: tuple[Entry, ...] = ((3 * H,), (3 * H,)) if biases else ((), ())
    shapes: tuple[Entry, ...] = (gates, gates, state, *vectors)
    assert parts("_thnn_fused_gru_cell", shapes, {}) == {"forward": N * H * (16 + more)}
    back: tuple[Entry, ...] = (state, (N, 5 * H), ())
    want = {"backward": N * H * 16} | ({"bias_grad": N * 4 * H} if biases else {})
    assert parts("_thnn_fused_gru_cell_backward", back, {2: str(biases)}) == want


@pytest.mark.parametrize(
    ("place", "shape"), [(1, ((4 * H, X),)), (4, (1, N, H + 1)), (0, (T,)), (5, ())]
)
def test_extents_that_do_not_agree_are_refused(place: int, shape: Entry) -> None:
    shapes, scalars = cudnn("2", 1, 1, biases=True)
    changed = (*shapes[:place], shape, *shapes[place + 1 :])
    result = costs("_cudnn_rnn", changed, scalars)
    if place == 4:
        # The cell state, not this one, has the number of units.
        assert not isinstance(result, Refusal)
    else:
        assert isinstance(result, Refusal)


def test_an_unknown_kind_of_cell_is_refused() -> None:
    shapes, scalars = cudnn("2", 1, 1, biases=True)
    assert isinstance(costs("_cudnn_rnn", shapes, scalars | {6: "9"}), Refusal)
    assert isinstance(costs("_cudnn_rnn", shapes, {}), Refusal)

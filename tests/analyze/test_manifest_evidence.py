"""What speaks against a layer of the manifest: the size of a row's weight."""

from __future__ import annotations

from traceana.analyze.layer_operands import Operands
from traceana.analyze.layers import _of_state
from traceana.analyze.manifest_names import Evidence
from traceana.model.manifest import Layer

GRU = Layer(
    path="functional/gru",
    type="GRU",
    framework_type="keras.layers.GRU",
    position=0,
    parameters={"weight": (48, 32), "recurrent_kernel": (48, 16), "bias": (2, 48)},
)


def test_a_recurrent_layer_has_two_weights() -> None:
    sizes = {0: 48 * 32, 1: 48 * 16, 2: 48}
    evidence = Evidence(frozenset(), frozenset(), frozenset(), sizes)
    assert [evidence.against_row(row, GRU) for row in sizes] == [False, False, True]


def test_a_product_of_the_state_does_not_read_the_input() -> None:
    state = Operands((8, 16), (16, 48), (8, 48))
    of_input = Operands((96, 32), (32, 48), (96, 48))
    assert _of_state(state, GRU)
    assert not _of_state(of_input, GRU)

"""The experiments: a program, what is changed in it, and the scenario that stands for the change.

A scenario is written before the changed program has run. Where a change has no scenario of its own,
the factor is what its sizes say: twice the batch is twice the work of the layers.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec.structs import replace

from benchmarks.backtest.programs import Program


class Case(msgspec.Struct, frozen=True):
    """An experiment: ``before``, ``after`` and the ``scenario`` that predicts it."""

    name: str
    before: Program
    after: Program
    scenario: str


_CNN: Final = Program(batch=8)
_MLP: Final = Program(network="mlp", width=1024, batch=64)
_LSTM: Final = Program(network="lstm", width=128)
_TRANSFORMER: Final = Program(network="transformer", width=128, batch=16)
_SMALL: Final = Program(batch=4, width=32)


def _case(name: str, before: Program, scenario: str, **changes: Any) -> Case:
    return Case(name, before, replace(before, **changes), scenario)


_DOUBLE: Final = "layer:* x 2"
_NOTHING: Final = "host x 1"

CASES: Final = (
    # Nothing is changed: how far runs of one program are apart.
    _case("cnn, nothing", _CNN, _NOTHING),
    _case("mlp, nothing", _MLP, _NOTHING),
    _case("lstm, nothing", _LSTM, _NOTHING),
    _case("transformer, nothing", _TRANSFORMER, _NOTHING),
    # The input pipeline.
    _case(
        "cnn, no sleep of 10 ms in the data set", replace(_CNN, load_ms=10), "data-ready", load_ms=0
    ),
    _case(
        "cnn, no sleep of 40 ms in the data set", replace(_CNN, load_ms=40), "data-ready", load_ms=0
    ),
    _case(
        "mlp, no sleep of 20 ms in the data set", replace(_MLP, load_ms=20), "data-ready", load_ms=0
    ),
    _case("lstm, sleep of 40 ms halved", replace(_LSTM, load_ms=40), "data x 0.5", load_ms=20),
    _case("mlp, sleep of 10 ms doubled", replace(_MLP, load_ms=10), "data x 2", load_ms=20),
    _case(
        "transformer, sleep of 60 ms, a quarter",
        replace(_TRANSFORMER, load_ms=60),
        "data x 0.25",
        load_ms=15,
    ),
    _case("cnn, a worker for a sleep of 10 ms", replace(_CNN, load_ms=10), "data-ready", workers=1),
    _case(
        "mlp, two workers for a sleep of 15 ms", replace(_MLP, load_ms=15), "data-ready", workers=2
    ),
    _case(
        "lstm, a worker for a sleep of 20 ms", replace(_LSTM, load_ms=20), "data-ready", workers=1
    ),
    _case(
        "cnn, no products in the data set", replace(_CNN, load_work=40), "data-ready", load_work=0
    ),
    _case(
        "mlp, no products in the data set", replace(_MLP, load_work=40), "data-ready", load_work=0
    ),
    _case(
        "lstm, products in the data set halved",
        replace(_LSTM, load_work=60),
        "data x 0.5",
        load_work=30,
    ),
    _case("cnn, a worker for the products", replace(_CNN, load_work=40), "data-ready", workers=1),
    # The host beside the model.
    _case(
        "cnn, no sleep of 15 ms in logging",
        replace(_CNN, logging_ms=15),
        "range:logging x 0",
        logging_ms=0,
    ),
    _case(
        "mlp, no sleep of 15 ms in logging",
        replace(_MLP, logging_ms=15),
        "range:logging x 0",
        logging_ms=0,
    ),
    _case(
        "lstm, sleep in logging doubled",
        replace(_LSTM, logging_ms=15),
        "range:logging x 2",
        logging_ms=30,
    ),
    _case(
        "transformer, sleep in logging halved",
        replace(_TRANSFORMER, logging_ms=30),
        "range:logging x 0.5",
        logging_ms=15,
    ),
    _case("cnn, no metrics", replace(_CNN, metrics=10), "range:metrics x 0", metrics=0),
    _case("mlp, no metrics", replace(_MLP, metrics=10), "range:metrics x 0", metrics=0),
    _case(
        "transformer, metrics halved",
        replace(_TRANSFORMER, metrics=20),
        "range:metrics x 0.5",
        metrics=10,
    ),
    _case("cnn, no copies", replace(_CNN, clones=20), "operator:aten::clone x 0", clones=0),
    _case("mlp, no copies", replace(_MLP, clones=20), "operator:aten::clone x 0", clones=0),
    _case(
        "lstm, copies halved", replace(_LSTM, clones=40), "operator:aten::clone x 0.5", clones=20
    ),
    _case(
        "transformer, copies doubled",
        replace(_TRANSFORMER, clones=20),
        "operator:aten::clone x 2",
        clones=40,
    ),
    # Layers.
    _case("cnn, without the third layer", _CNN, "no layer:conv3 + no layer:act3", layers=2),
    _case("cnn, a fourth layer as the third", _CNN, "layer:conv3 x 2 + layer:act3 x 2", layers=4),
    _case("mlp, without the third layer", _MLP, "no layer:fc3 + no layer:act3", layers=2),
    _case("mlp, a fourth layer as the third", _MLP, "layer:fc3 x 2 + layer:act3 x 2", layers=4),
    _case("mlp, six layers for three", _MLP, "layer:fc3 x 4 + layer:act3 x 4", layers=6),
    _case("lstm, without the third layer", _LSTM, "no layer:lstm3*", layers=2),
    _case("lstm, a fourth layer as the third", _LSTM, "layer:lstm3* x 2", layers=4),
    _case("transformer, without the third layer", _TRANSFORMER, "no layer:block3*", layers=2),
    _case("transformer, a fourth layer as the third", _TRANSFORMER, "layer:block3* x 2", layers=4),
    _case("transformer, six layers for three", _TRANSFORMER, "layer:block3* x 4", layers=6),
    # Kinds of layers.
    _case("cnn, no dropout", replace(_CNN, dropout=True), "no layer:drop*", dropout=False),
    _case("mlp, no dropout", replace(_MLP, dropout=True), "no layer:drop*", dropout=False),
    _case(
        "cnn, no normalization",
        replace(_CNN, normalization=True),
        "no layer:norm*",
        normalization=False,
    ),
    _case(
        "mlp, no normalization",
        replace(_MLP, normalization=True),
        "no layer:norm*",
        normalization=False,
    ),
    _case("cnn, no activation", _CNN, "no layer:act*", activation="Identity"),
    _case(
        "mlp, no activation",
        replace(_MLP, activation="GELU"),
        "no layer:act*",
        activation="Identity",
    ),
    _case(
        "cnn, no slow activation",
        replace(_CNN, activation="GELU"),
        "no layer:act*",
        activation="Identity",
    ),
    # Sizes.
    _case("cnn, batch 8 to 16", _CNN, _DOUBLE, batch=16),
    _case("cnn, batch 8 to 4", _CNN, "layer:* x 0.5", batch=4),
    _case("small cnn, batch 4 to 16", _SMALL, "layer:* x 4", batch=16),
    _case("mlp, batch 64 to 128", _MLP, _DOUBLE, batch=128),
    _case("lstm, batch 32 to 64", _LSTM, _DOUBLE, batch=64),
    _case("lstm, length 32 to 16", _LSTM, "layer:* x 0.5", length=16),
    _case("lstm, length 32 to 64", _LSTM, _DOUBLE, length=64),
    _case("transformer, batch 16 to 32", _TRANSFORMER, _DOUBLE, batch=32),
    _case("transformer, batch 16 to 8", _TRANSFORMER, "layer:* x 0.5", batch=8),
    # Training.
    _case(
        "mlp, Adam to SGD",
        replace(_MLP, optimizer="Adam"),
        "direction:optimizer x 0..0.5",
        optimizer="SGD",
    ),
    _case("mlp, first layer frozen", _MLP, "layer:fc1 x 0.4..0.6", frozen=1),
    _case("cnn, two threads", _CNN, "layer:* x 0.5..0.7", threads=2),
    _case("mlp, two threads", _MLP, "layer:* x 0.5..0.7", threads=2),
    _case("transformer, two threads", _TRANSFORMER, "layer:* x 0.5..0.7", threads=2),
    _case("lstm, two threads", _LSTM, "layer:* x 0.5..0.8", threads=2),
)

"""The experiments: a program, what is changed in it, and the scenario that stands for the change.

A scenario is written before the changed program has run. Where a change has no scenario of its own,
the factor is what its sizes say: twice the batch is twice the work of the layers.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec.structs import replace

from benchmarks.backtest.jax_programs import JaxProgram
from benchmarks.backtest.keras_programs import KerasProgram
from benchmarks.backtest.recording import AnyProgram
from benchmarks.backtest.torch_programs import Program


class Case(msgspec.Struct, frozen=True):
    """An experiment: ``before``, ``after`` and the ``scenario`` that predicts it."""

    name: str
    before: AnyProgram
    after: AnyProgram
    scenario: str


_CNN: Final = Program(batch=8)
_MLP: Final = Program(network="mlp", width=1024, batch=64)
_LSTM: Final = Program(network="lstm", width=128)
_TRANSFORMER: Final = Program(network="transformer", width=128, batch=16)
_SMALL: Final = Program(batch=4, width=32)

_CNN_2: Final = Program(batch=12, width=48)
_CNN_3: Final = Program(batch=10, width=40)
_MLP_2: Final = Program(network="mlp", width=768, batch=96)
_MLP_3: Final = Program(network="mlp", width=640, batch=96)
_LSTM_2: Final = Program(network="lstm", width=96)
_TRANSFORMER_2: Final = Program(network="transformer", width=96, batch=24)
_KERAS: Final = KerasProgram(width=512, batch=64)
_JAX: Final = JaxProgram(width=512, batch=64)
_BESIDE: Final = JaxProgram(width=704, batch=112, beside=True)
_CNN_BESIDE: Final = JaxProgram(network="cnn", width=32, batch=8, normalization=True, beside=True)


def _case(name: str, before: AnyProgram, scenario: str, **changes: Any) -> Case:
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
    # The second set. Its sizes are others, so that no changed program is one of the first set.
    # Contiguous inputs are converted for oneDNN's convolutions and back; how much of them that is
    # depends on the size. PyTorch's tutorial on channels_last reports up to 1.8 times the speed.
    _case("cnn, channels_last", _CNN_2, "conv x 0.6..1", channels_last=True),
    _case(
        "cnn with normalization, channels_last",
        replace(_CNN_2, normalization=True),
        "conv x 0.6..1 + normalization x 0.7..1.3",
        channels_last=True,
    ),
    # Without oneDNN a convolution is a copy of all windows and the same product; a recurrent layer
    # is operators for each moment; products of 32 bits are the BLAS's anyway.
    _case("cnn, without oneDNN", _CNN_2, "conv x 1..3", onednn=False),
    _case("lstm, without oneDNN", _LSTM_2, "rnn x 1..3", onednn=False),
    _case("mlp, without oneDNN", _MLP_2, _NOTHING, onednn=False),
    # A compiled program has one pass where elementwise operators had several. Products and
    # convolutions stay calls of the same libraries.
    _case(
        "cnn with normalization, compiled",
        replace(_CNN_2, normalization=True),
        "elementwise x 0.3..1 + activation x 0.3..1 + normalization x 0.3..1",
        compiled=True,
    ),
    _case(
        "mlp with a written GELU, compiled",
        replace(_MLP_2, activation="written GELU"),
        "elementwise x 0.1..0.5 + activation x 0.3..1",
        compiled=True,
    ),
    _case(
        "transformer with dropout, compiled",
        replace(_TRANSFORMER_2, dropout=True),
        "elementwise x 0.3..1 + activation x 0.3..1 + normalization x 0.3..1 + dropout x 0.3..1",
        compiled=True,
    ),
    # The processor has no instructions for bfloat16: operands are converted, products not faster.
    _case("cnn, autocast to bfloat16", _CNN_2, "conv x 1..8", autocast=True),
    _case("mlp, autocast to bfloat16", _MLP_2, "gemm x 1..8", autocast=True),
    # 32 bits for 64: half the bytes, and twice the numbers in a register. oneDNN has no convolution
    # of 64 bits.
    _case("mlp, float for double", replace(_MLP_3, double=True), "layer:* x 0.5", double=False),
    _case(
        "cnn, float for double", replace(_CNN_3, double=True), "layer:* x 0.2..0.5", double=False
    ),
    _case("mlp, double for float", _MLP_2, "layer:* x 2", double=True),
    # Accumulation of gradients.
    _case(
        "mlp, four batches in a step",
        _MLP_2,
        "direction:forward x 4 + direction:backward x 4 + data x 4",
        accumulate=4,
    ),
    _case(
        "transformer, two batches in a step for four",
        replace(_TRANSFORMER_2, accumulate=4),
        "direction:forward x 0.5 + direction:backward x 0.5 + data x 0.5",
        accumulate=2,
    ),
    # The same work in two halves, which may be slower.
    _case("cnn, a batch of 12 as two of 6", _CNN_2, "layer:* x 1..1.1", batch=6, accumulate=2),
    # Layers replaced: factors are the ratios of FLOPs; small kernels do not reach the same rate.
    _case("cnn, third kernel 1 x 1", _CNN_2, "layer:conv3 x 0.11..0.4", kernel=1),
    _case("cnn, third kernel 5 x 5", _CNN_2, "layer:conv3 x 2.2..2.8", kernel=5),
    _case(
        "cnn, four groups",
        _CNN_2,
        "layer:conv2 x 0.25..0.8 + layer:conv3 x 0.25..0.8",
        groups=4,
    ),
    _case("mlp, third layer of rank 96", _MLP_2, "layer:fc3 x 0.25..0.35", rank=96),
    # Three gates for four, but PyTorch has no GRU of oneDNN.
    _case("lstm, GRU for LSTM", _LSTM_2, "rnn x 0.75..2", cell="GRU"),
    _case(
        "transformer, no third block",
        _TRANSFORMER_2,
        "no layer:block3 + no layer:block3.*",
        layers=2,
    ),
    _case(
        "transformer, no dropout",
        replace(_TRANSFORMER_2, batch=20, dropout=True),
        "no layer:*dropout*",
        dropout=False,
    ),
    # Activations: a written GELU has 8 passes forward and about 12 backward, with a tanh in one of
    # them; SiLU has two forward.
    _case(
        "mlp, GELU for a written one",
        replace(_MLP_3, activation="written GELU"),
        "layer:act* x 0.15..0.5",
        activation="tanh GELU",
    ),
    _case(
        "mlp, a written GELU for GELU",
        replace(_MLP_2, activation="tanh GELU", batch=112),
        "layer:act* x 2..6.7",
        activation="written GELU",
    ),
    _case(
        "cnn, SiLU for a written one",
        replace(_CNN_3, activation="written SiLU"),
        "layer:act* x 0.4..0.8",
        activation="SiLU",
    ),
    # Keras. TensorFlow fuses the product and the bias into the activation behind them.
    _case("keras mlp, batch 64 to 128", _KERAS, _DOUBLE, batch=128),
    _case(
        "keras mlp, without the third layer", _KERAS, "no layer:*fc3* + no layer:*act3*", layers=2
    ),
    _case(
        "keras mlp, a fourth layer as the third",
        _KERAS,
        "layer:*fc3* x 2 + layer:*act3* x 2",
        layers=4,
    ),
    _case(
        "keras mlp, Adam to SGD",
        replace(_KERAS, width=448, optimizer="adam"),
        "direction:optimizer x 0..0.5",
        optimizer="sgd",
    ),
    _case(
        "keras mlp, no sleep of 15 ms in logging",
        replace(_KERAS, width=480, logging_ms=15),
        "range:logging x 0",
        logging_ms=0,
    ),
    _case(
        "keras mlp, no sleep of 60 ms in the input pipeline",
        replace(_KERAS, width=544, load_ms=60),
        "data-ready",
        load_ms=0,
    ),
    # XLA: Adam in one pass, other products.
    _case(
        "keras mlp with Adam, compiled",
        replace(_KERAS, optimizer="adam"),
        "direction:optimizer x 0.2..0.7 + gemm x 0.7..1.5",
        jit=True,
    ),
    _case(
        "keras cnn, no normalization",
        replace(_KERAS, network="cnn", width=16, batch=8, normalization=True),
        "no layer:*norm*",
        normalization=False,
    ),
    # JAX.
    _case("jax mlp, batch 64 to 128", _JAX, _DOUBLE, batch=128),
    _case("jax mlp, without the third layer", _JAX, "no layer:fc3 + no layer:act3", layers=2),
    _case("jax mlp, a fourth layer as the third", _JAX, "layer:fc3 x 2 + layer:act3 x 2", layers=4),
    _case(
        "jax mlp, no sleep of 20 ms for the batch",
        replace(_JAX, width=480, load_ms=20),
        "data-ready",
        load_ms=0,
    ),
    _case(
        "jax mlp, sleep in logging doubled",
        replace(_JAX, logging_ms=10),
        "range:logging x 2",
        logging_ms=20,
    ),
    _case(
        "jax mlp, Adam to SGD",
        replace(_JAX, width=448, adam=True),
        "direction:optimizer x 0..0.5",
        adam=False,
    ),
    # Each layer once more in the backward pass, which has two products; XLA may find them equal.
    _case("jax mlp, recomputed", _JAX, "direction:backward x 1..1.5", remat=True),
    _case(
        "jax cnn, no normalization",
        replace(_JAX, network="cnn", width=24, batch=8, normalization=True),
        "no layer:norm*",
        normalization=False,
    ),
    # JAX, the host beside the step, as with a GPU: it sleeps or works in less time than the step is
    # computed in,
    _case(
        "jax mlp, no sleep of 3 ms beside",
        replace(_BESIDE, logging_ms=3),
        "range:logging x 0",
        logging_ms=0,
    ),
    _case(
        "jax mlp, sleep of 2 ms beside doubled",
        replace(_BESIDE, width=736, logging_ms=2),
        "range:logging x 2",
        logging_ms=4,
    ),
    _case(
        "jax mlp, no sleep of 4 ms for the next batch beside",
        replace(_BESIDE, width=672, load_ms=4),
        "data-ready",
        load_ms=0,
    ),
    _case(
        "jax mlp, sleep for the next batch beside halved",
        replace(_BESIDE, batch=128, load_ms=4),
        "data x 0.5",
        load_ms=2,
    ),
    _case(
        "jax mlp, no metrics beside", replace(_BESIDE, metrics=2), "range:metrics x 0", metrics=0
    ),
    _case(
        "jax cnn, no sleep of 3 ms beside",
        replace(_CNN_BESIDE, logging_ms=3),
        "range:logging x 0",
        logging_ms=0,
    ),
    _case(
        "jax cnn, no metrics beside",
        replace(_CNN_BESIDE, metrics=2),
        "range:metrics x 0",
        metrics=0,
    ),
    _case(
        "jax mlp, batch 112 to 56 with a sleep of 3 ms beside",
        replace(_BESIDE, logging_ms=3),
        "layer:* x 0.5",
        batch=56,
    ),
    _case(
        "jax mlp, without the third layer, with metrics beside",
        replace(_BESIDE, metrics=2),
        "no layer:fc3 + no layer:act3",
        layers=2,
    ),
    # in more,
    _case(
        "jax mlp, no sleep of 40 ms beside",
        replace(_BESIDE, logging_ms=40),
        "range:logging x 0",
        logging_ms=0,
    ),
    _case(
        "jax mlp, without the third layer, with a sleep of 40 ms beside",
        replace(_BESIDE, logging_ms=40),
        "no layer:fc3 + no layer:act3",
        layers=2,
    ),
    _case(
        "jax mlp, a fourth layer as the third, with a sleep of 50 ms beside",
        replace(_BESIDE, logging_ms=50),
        "layer:fc3 x 2 + layer:act3 x 2",
        layers=4,
    ),
    _case(
        "jax mlp, batch 112 to 56 with a sleep of 40 ms beside",
        replace(_BESIDE, logging_ms=40),
        "layer:* x 0.5",
        batch=56,
    ),
    _case(
        "jax mlp, Adam to SGD with a sleep of 50 ms beside",
        replace(_BESIDE, adam=True, logging_ms=50),
        "direction:optimizer x 0..0.5",
        adam=False,
    ),
    _case(
        "jax mlp, recomputed, with a sleep of 50 ms beside",
        replace(_BESIDE, logging_ms=50),
        "direction:backward x 1..1.5",
        remat=True,
    ),
    _case(
        "jax mlp, no sleep of 40 ms for the next batch beside",
        replace(_BESIDE, width=672, load_ms=40),
        "data-ready",
        load_ms=0,
    ),
    _case(
        "jax mlp, metrics beside halved",
        replace(_BESIDE, metrics=24),
        "range:metrics x 0.5",
        metrics=12,
    ),
    _case(
        "jax mlp, without the third layer, with long metrics beside",
        replace(_BESIDE, metrics=24),
        "no layer:fc3 + no layer:act3",
        layers=2,
    ),
    _case(
        "jax cnn, no sleep of 60 ms beside",
        replace(_CNN_BESIDE, logging_ms=60),
        "range:logging x 0",
        logging_ms=0,
    ),
    _case(
        "jax cnn, no normalization, with a sleep of 60 ms beside",
        replace(_CNN_BESIDE, logging_ms=60),
        "no layer:norm*",
        normalization=False,
    ),
    _case(
        "jax cnn, batch 8 to 4 with a sleep of 60 ms beside",
        replace(_CNN_BESIDE, logging_ms=60),
        "layer:* x 0.5",
        batch=4,
    ),
    # and in less before, in more after, or the reverse.
    _case(
        "jax mlp, sleep of 3 ms beside, 40 ms",
        replace(_BESIDE, logging_ms=3),
        "range:logging x 13.33",
        logging_ms=40,
    ),
    _case(
        "jax mlp, metrics beside, twelve times",
        replace(_BESIDE, metrics=2),
        "range:metrics x 12",
        metrics=24,
    ),
    _case(
        "jax mlp, sleep of 30 ms for the next batch beside, a sixth",
        replace(_BESIDE, load_ms=30),
        "data x 0.1667",
        load_ms=5,
    ),
    _case(
        "jax mlp, batch 112 to 448 with a sleep of 25 ms beside",
        replace(_BESIDE, logging_ms=25),
        "layer:* x 4",
        batch=448,
    ),
    _case(
        "jax cnn, sleep of 40 ms beside, a tenth",
        replace(_CNN_BESIDE, logging_ms=40),
        "range:logging x 0.1",
        logging_ms=4,
    ),
)

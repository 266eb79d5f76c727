"""Train a plan with CNTK 2.7 on the CPU, under its own profiler.

python3.6 -m venv old && old/bin/pip install cntk==2.7.post2 'numpy<1.19' scipy
python -m workloads.legacy.plan plan.npz --batch 4
old/bin/python -m workloads.legacy.cntk plan.npz --trace FOLDER

Its libraries need OpenMPI 1.10 (libmpi.so.12, libmpi_cxx.so.1). OpenMPI 4.1 works instead: links of
those names to libmpi.so.40 and libmpi_cxx.so.40 in a folder of LD_LIBRARY_PATH.
"""

from typing import Any

import cntk
import numpy as np
from cntk.debugging import enable_profiler, start_profiler, stop_profiler

from workloads.legacy.case import LEARNING_RATE, MOMENTUM, Case, arguments, train, unknown


def apply(layer: "dict[str, Any]", x: Any, case: Case) -> Any:
    """Return the layer's output for ``x``, under the layer's name."""
    kind, name = layer["kind"], layer["name"]
    if kind == "Conv":
        weight = cntk.parameter(init=case.weight(layer))
        bias = cntk.parameter(init=np.zeros((weight.shape[0], 1, 1), np.float32))
        pad = layer["padding"]
        if pad:
            x = cntk.pad(x, [(0, 0), (pad, pad), (pad, pad)])
        stride = (layer["stride"],) * 2
        product = cntk.convolution(
            weight, x, strides=(1, *stride), auto_padding=[False], groups=layer["groups"]
        )
        return cntk.plus(product, bias, name=name)
    if kind == "Linear":
        weight = case.weight(layer)
        bias = cntk.parameter(init=np.zeros(len(weight), np.float32))
        return cntk.plus(cntk.times(x, cntk.parameter(init=weight.T.copy())), bias, name=name)
    if kind == "MaxPool":
        return cntk.pooling(
            x, cntk.MAX_POOLING, (layer["kernel"],) * 2, strides=(layer["stride"],) * 2,
            ceil_out_dim=layer["partial"], name=name,
        )  # fmt: skip
    if kind == "LocalResponseNorm":
        # CNTK takes the radius of the window, and multiplies alpha with the mean.
        return cntk.local_response_normalization(
            x, layer["size"] // 2, layer["k"], layer["alpha"] * layer["size"], layer["beta"],
            name=name,
        )  # fmt: skip
    if kind == "ReLU":
        return cntk.relu(x, name=name)
    if kind == "Flatten":
        return cntk.flatten(x, axis=0, name=name) if len(x.shape) > 1 else x
    if kind == "Dropout":
        return cntk.dropout(x, layer["probability"], name=name)
    return unknown(layer)


def main() -> None:
    """Run the command."""
    options = arguments(__doc__, "the folder in which CNTK's profiler writes")
    case = Case(options.plan)
    images, labels = cntk.input_variable(case.images.shape[1:]), cntk.input_variable(case.classes)
    x = images
    for layer in case.layers:
        x = apply(layer, x, case)
    x = cntk.reshape(x, (case.classes,))
    loss = cntk.cross_entropy_with_softmax(x, labels)
    learner = cntk.momentum_sgd(
        x.parameters,
        cntk.learning_parameter_schedule(LEARNING_RATE, minibatch_size=case.batch),
        cntk.momentum_schedule(MOMENTUM, minibatch_size=case.batch),
        unit_gain=False,
    )
    trainer = cntk.Trainer(x, (loss,), [learner])
    hot = np.eye(case.classes, dtype=np.float32)[case.labels]

    def step(_: int) -> float:
        trainer.train_minibatch({images: case.images, labels: hot})
        return float(trainer.previous_minibatch_loss_average)

    def start() -> None:
        if options.trace:
            start_profiler(options.trace, True)
            enable_profiler()

    def stop() -> None:
        if options.trace:
            stop_profiler()

    train(case, step, start, stop)


if __name__ == "__main__":
    main()

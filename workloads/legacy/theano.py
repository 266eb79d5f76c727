"""Train a plan with Theano 1.0.5 on the CPU and print its profile: times of operators, no trace.

python3.8 -m venv old && old/bin/pip install 'setuptools<60' wheel 'numpy<1.22' 'scipy<1.8' six
old/bin/pip install --no-build-isolation Theano==1.0.5
python -m workloads.legacy.plan plan.npz --batch 4
THEANO_FLAGS=floatX=float32 old/bin/python -m workloads.legacy.theano plan.npz

Lasagne, in which Kim et al. wrote their network, cannot be imported: PyPI has only version 0.1,
which needs modules that Theano 1.0 removed.
"""

from typing import Any

import numpy as np
import theano
from theano import tensor
from theano.sandbox.rng_mrg import MRG_RandomStreams
from theano.tensor.nnet import conv2d
from theano.tensor.signal.pool import pool_2d

from workloads.legacy.case import LEARNING_RATE, MOMENTUM, Case, arguments, train, unknown


def apply(layer: "dict[str, Any]", x: Any, case: Case, values: "list[Any]", random: Any) -> Any:
    """Return the layer's output for ``x``; append its parameters to ``values``."""
    kind, name = layer["kind"], layer["name"]
    if layer["weight_shape"]:
        weight = case.weight(layer)
        weight = weight if kind == "Conv" else weight.T.copy()
        outputs = layer["out_channels"] if kind == "Conv" else layer["out_features"]
        own = [
            theano.shared(weight, name=name + ".weight"),
            theano.shared(np.zeros(outputs, np.float32), name=name + ".bias"),
        ]
        values += own
    if kind == "Conv":
        product = conv2d(
            x, own[0], border_mode=layer["padding"], subsample=(layer["stride"],) * 2,
            filter_flip=False, num_groups=layer["groups"],
        )  # fmt: skip
        return product + own[1].dimshuffle("x", 0, "x", "x")
    if kind == "Linear":
        return x.dot(own[0]) + own[1]
    if kind in ("MaxPool", "AvgPool"):
        return pool_2d(
            x, (layer["kernel"],) * 2, stride=(layer["stride"],) * 2, pad=(layer["padding"],) * 2,
            ignore_border=not layer["partial"],
            mode="max" if kind == "MaxPool" else "average_exc_pad",
        )  # fmt: skip
    if kind == "ReLU":
        return tensor.nnet.relu(x)
    if kind == "Flatten":
        return x.flatten(2)
    if kind == "Dropout":
        kept = 1 - layer["probability"]
        return x * random.binomial(x.shape, p=kept, dtype="float32") / np.float32(kept)
    return unknown(layer)


def main() -> None:
    """Run the command."""
    case = Case(arguments(__doc__, None).plan)
    images, labels = tensor.tensor4("images"), tensor.ivector("labels")
    values: Any = []
    random = MRG_RandomStreams(1)
    x = images
    for layer in case.layers:
        x = apply(layer, x, case, values, random)
    loss = tensor.nnet.categorical_crossentropy(tensor.nnet.softmax(x), labels).mean()
    updates: Any = []
    gradients = tensor.grad(loss, values)
    for value, gradient in zip(values, gradients):  # noqa: B905  # not in Python 3.6
        moment = theano.shared(np.zeros_like(value.get_value()))
        moved = np.float32(MOMENTUM) * moment - np.float32(LEARNING_RATE) * gradient
        updates += [(moment, moved), (value, value + moved)]
    run = theano.function([images, labels], loss, updates=updates, profile=True)
    labels = case.labels.astype("int32")
    train(case, lambda _: run(case.images, labels))
    run.profile.summary()


if __name__ == "__main__":
    main()

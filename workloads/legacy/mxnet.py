"""Train a plan with MXNet 1.9.1 on the CPU, under mxnet.profiler.

python -m venv old && old/bin/pip install mxnet==1.9.1 numpy==1.23.5    # Python 3.6 to 3.11
python -m workloads.legacy.plan plan.npz --batch 4
old/bin/python -m workloads.legacy.mxnet plan.npz --trace profile.json

Every layer is a separate operator (no symbol, no fusion), so that the profile has each of them.
"""

import os
from typing import Any

# Gradients would run as one operator for many layers.
os.environ["MXNET_EXEC_BULK_EXEC_TRAIN"] = "0"

import mxnet as mx
from mxnet import autograd, nd, profiler

from workloads.legacy.case import LEARNING_RATE, MOMENTUM, Case, arguments, train, unknown


def parameters(case: Case) -> "dict[str, Any]":
    """Return (weight, bias) of each layer that has them, by name, with gradients attached."""
    found = {}
    for layer in case.layers:
        if layer["weight_shape"]:
            weight = nd.array(case.weight(layer))
            bias = nd.zeros(weight.shape[0])
            for each in (weight, bias):
                each.attach_grad()
            found[layer["name"]] = (weight, bias)
    return found


def apply(layer: "dict[str, Any]", x: Any, values: "dict[str, Any]") -> Any:
    """Return the layer's output for ``x``, by one operator."""
    kind, own = layer["kind"], values.get(layer["name"], ())
    if kind == "Conv":
        side, stride, pad = ((layer[key],) * 2 for key in ("kernel", "stride", "padding"))
        return nd.Convolution(
            x, *own, kernel=side, stride=stride, pad=pad,
            num_filter=layer["out_channels"], num_group=layer["groups"],
        )  # fmt: skip
    if kind == "Linear":
        return nd.FullyConnected(x, *own, num_hidden=layer["out_features"])
    if kind in ("MaxPool", "AvgPool"):
        side, stride, pad = ((layer[key],) * 2 for key in ("kernel", "stride", "padding"))
        return nd.Pooling(
            x, kernel=side, stride=stride, pad=pad, pool_type=kind[:3].lower(),
            pooling_convention="full" if layer["partial"] else "valid", count_include_pad=False,
        )  # fmt: skip
    if kind == "LocalResponseNorm":
        # MXNet multiplies alpha with the mean over the channels.
        return nd.LRN(
            x, nsize=layer["size"], alpha=layer["alpha"] * layer["size"],
            beta=layer["beta"], knorm=layer["k"],
        )  # fmt: skip
    if kind in ("ReLU", "Tanh"):
        return nd.Activation(x, act_type=kind.lower())
    if kind == "Flatten":
        return nd.Flatten(x)
    if kind == "Dropout":
        return nd.Dropout(x, p=layer["probability"])
    return unknown(layer)


def main() -> None:
    """Run the command."""
    options = arguments(__doc__, "where mxnet.profiler writes its JSON")
    case = Case(options.plan)
    values = parameters(case)
    moments = {name: [nd.zeros_like(each) for each in own] for name, own in values.items()}
    images, labels = nd.array(case.images), nd.array(case.labels)
    domain = profiler.Domain("train")

    def step(number: int) -> float:
        frame = profiler.Frame(domain, f"iteration {number}" if number >= 0 else "warm-up")
        frame.start()
        with autograd.record():
            x = images
            for layer in case.layers:
                x = apply(layer, x, values)
            loss = -nd.pick(nd.log_softmax(x), labels).mean()
        loss.backward()
        for name, own in values.items():
            for each, moment in zip(own, moments[name]):  # noqa: B905  # not in Python 3.6
                nd.sgd_mom_update(
                    each, each.grad, moment, lr=LEARNING_RATE, momentum=MOMENTUM, out=each
                )
        nd.waitall()
        frame.stop()
        return float(loss.asscalar())

    def start() -> None:
        if options.trace:
            profiler.set_config(profile_all=True, filename=options.trace)
            profiler.set_state("run")

    def stop() -> None:
        if options.trace:
            profiler.set_state("stop")
            profiler.dump()

    mx.random.seed(0)
    train(case, step, start, stop)


if __name__ == "__main__":
    main()

"""Train a plan with Caffe 1.0 on the CPU and write the spans of each layer, forward and backward.

python3.8 -m venv old && old/bin/pip install kendryte-caffe==1.0.0.20210829 'numpy<1.24'
python -m workloads.legacy.plan plan.npz --batch 4
old/bin/python -m workloads.legacy.caffe plan.npz --trace layers.json

Caffe has no profiler, and its tool ``caffe time`` is not in the wheel. Its nets call back before
and after each layer: the spans between, and the iterations, are written as a Chrome trace.
"""

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

# Compiled protocol buffers of Python clash with those in Caffe's library.
os.environ.setdefault("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")

import caffe
import numpy as np

from workloads.legacy.case import LEARNING_RATE, MOMENTUM, Case, arguments, train, unknown

# Weights are learnt at the solver's rate, and biases too.
_RATES = "param {{ lr_mult: 1 }} param {{ lr_mult: 1 }} "


def text_of(layer: "dict[str, Any]", bottom: str, top: str) -> str:
    """Return the layer as Caffe's prototxt."""
    kind = layer["kind"]
    sides = "kernel_size: {kernel} stride: {stride} pad: {padding}"
    if kind == "Conv":
        body = _RATES + "convolution_param {{ num_output: {out_channels} group: {groups} "
        body += sides + " }}"
        type_ = "Convolution"
    elif kind == "Linear":
        type_ = "InnerProduct"
        body = _RATES + "inner_product_param {{ num_output: {out_features} }}"
    elif kind in ("MaxPool", "AvgPool"):
        rounding = "" if layer["partial"] else " round_mode: FLOOR"
        type_ = "Pooling"
        body = "pooling_param {{ pool: " + ("MAX " if kind == "MaxPool" else "AVE ")
        body += sides + rounding + " }}"
    elif kind == "LocalResponseNorm":
        type_ = "LRN"
        body = "lrn_param {{ local_size: {size} beta: {beta} k: {k} alpha: "
        body += repr(layer["alpha"] * layer["size"]) + " }}"
    elif kind == "Dropout":
        type_, body = "Dropout", "dropout_param {{ dropout_ratio: {probability} }}"
    elif kind in ("ReLU", "Flatten"):
        type_, body = kind, ""
    elif kind == "Tanh":
        type_, body = "TanH", ""
    else:
        unknown(layer)
    of_type = body.format(**layer)
    name = layer["name"]
    return f'layer {{ name: "{name}" type: "{type_}" bottom: "{bottom}" top: "{top}" {of_type} }}\n'


class Spans:
    """Begins and ends of a net's layers, as events of a Chrome trace (microseconds)."""

    def __init__(self, net: Any) -> None:
        self.events: Any = []
        names = list(net._layer_names)  # pycaffe has no public name
        for direction in ("forward", "backward"):
            for when, note in (("before", self.begin), ("after", self.end)):
                getattr(net, when + "_" + direction)(
                    lambda layer, note=note, direction=direction: note(
                        direction + ": " + names[layer]
                    )
                )

    def begin(self, text: str) -> None:
        """Begin a span."""
        self._add("B", text)

    def end(self, text: str) -> None:
        """End a span."""
        self._add("E", text)

    def _add(self, phase: str, text: str) -> None:
        now = time.perf_counter() * 1e6
        self.events.append({"ph": phase, "name": text, "pid": 1, "tid": 1, "ts": round(now, 3)})


def network(case: Case) -> str:
    """Return the network with its input and loss as Caffe's prototxt."""
    shape = " ".join(f"dim: {extent}" for extent in case.images.shape)
    text = _input("images", shape) + _input("labels", f"dim: {case.batch}")
    bottom = "images"
    for layer in case.layers:
        text += text_of(layer, bottom, layer["name"])
        bottom = layer["name"]
    inputs = f'bottom: "{bottom}" bottom: "labels"'
    return text + f'layer {{ name: "loss" type: "SoftmaxWithLoss" {inputs} top: "loss" }}\n'


def _input(name: str, shape: str) -> str:
    blob = f'top: "{name}" input_param {{ shape {{ {shape} }} }}'
    return f'layer {{ name: "{name}" type: "Input" {blob} }}\n'


def main() -> None:
    """Run the command."""
    options = arguments(__doc__, "where the layers' spans are written as JSON")
    case = Case(options.plan)
    with tempfile.TemporaryDirectory() as folder:
        net, solver = Path(folder, "net"), Path(folder, "solver")
        net.write_text(network(case))
        rates = f'base_lr: {LEARNING_RATE} momentum: {MOMENTUM} lr_policy: "fixed"'
        solver.write_text(
            f'net: "{net}" {rates} solver_mode: CPU display: 0 snapshot_after_train: false'
        )
        caffe.set_mode_cpu()
        trained = caffe.SGDSolver(str(solver))
    blobs = trained.net.blobs
    for layer in case.layers:
        if layer["weight_shape"]:
            weight, bias = trained.net.params[layer["name"]]
            weight.data[...] = case.weight(layer)
            bias.data[...] = 0
    blobs["images"].data[...] = case.images
    blobs["labels"].data[...] = case.labels.astype(np.float32)

    spans = Spans(trained.net)
    trained.add_callback(lambda: None, lambda: spans.begin("optimizer"))

    def step(number: int) -> float:
        spans.begin(f"iteration {number}")
        trained.step(1)
        spans.end("optimizer")
        spans.end(f"iteration {number}")
        return float(blobs["loss"].data)

    train(case, step, spans.events.clear)
    if options.trace:
        Path(options.trace).write_text(json.dumps({"traceEvents": spans.events}))


if __name__ == "__main__":
    main()

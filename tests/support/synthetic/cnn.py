"""The training of a convolutional network on a V100 that never was.

Operators, their shapes and the layers are those that PyTorch would record of a VGG-11 with batch
normalization. A kernel's time is that of a roofline: a share of the device's peak for what it
computes, a share of its bandwidth for what it moves.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from tests.support.synthetic.records import GPU
from tests.support.synthetic.scenario import STREAM, THREAD, Scenario

V100: Final = GPU("Tesla V100-SXM2-16GB", (7, 0), 80, 16_945_512_448, 900_000_000_000)
PEAK: Final = 15.7e12
"""FLOP/s in FP32."""

AUTOGRAD: Final = 12
"""The thread of the backward pass."""

CHANNELS: Final = ((64,), (128,), (256, 256), (512, 512), (512, 512))
"""Of the convolutions in each stage."""

PARAMETERS: Final = 132_868_840

Shape = tuple[int, ...]

_WINOGRAD: Final = "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"
_IMPLICIT: Final = "volta_scudnn_128x64_relu_interior_nn_v1"
_DGRAD: Final = "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int)"
_WGRAD: Final = "void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int)"
_NORM: Final = "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>(int)"
_NORM_BACK: Final = "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(float)"
_CLAMP: Final = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::"
    "launch_clamp_scalar(at::TensorIteratorBase&)::{lambda(float)#1}, at::detail::Array<char*, 2> "
    ">(int)"
)
_THRESHOLD: Final = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::"
    "threshold_kernel_impl<float>(at::TensorIteratorBase&)::{lambda(float, float)#1}, "
    "at::detail::Array<char*, 3> >(int)"
)
_POOL: Final = "void at::native::(anonymous namespace)::max_pool_{}_nchw<float, float>(int)"
_UPDATE: Final = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
    "namespace)::TensorListMetadata<2>, at::native::(anonymous namespace)::"
    "BinaryOpListAlphaFunctor<float, 2, 2, 0>, std::plus<float>, float>()"
)


@dataclass(frozen=True)
class _Operator:
    """An operator and its kernels; each kernel computes as long as the device needs for ``flops``
    at its peak, and moves ``size`` bytes. ``inputs`` are the operator's recorded arguments.
    """

    name: str
    shapes: Sequence[Shape]
    kernels: Sequence[str]
    flops: float
    size: int
    inputs: Sequence[str] = ()


class Training:
    """The run: a cursor on the host, one on the device, and the operators that wait for backward.

    Host calls take about ``host`` nanoseconds.
    """

    def __init__(self, batch: int, *, host: int = 9_000, seed: int = 1) -> None:
        """Begin a run with ``batch`` images a step."""
        self.scenario = Scenario([V100])
        self.batch = batch
        self._host = host
        self._random = random.Random(seed)
        self._at = 0
        self._free = 0
        self._thread = THREAD
        self._sequence = 0
        self._waiting: list[tuple[int, str, list[_Operator]]] = []

    def step(self, number: int, loading: int) -> None:
        """Train one step after ``loading`` nanoseconds of waiting for its batch."""
        began = self._at
        self._spend(20_000)
        self._at += self._varied(loading)
        self.scenario.data_loader(began + 20_000, self._at)
        image: Shape = (self.batch, 3, 224, 224)
        self._upload(4 * prod(image))
        self._forward(image)
        self._thread = AUTOGRAD
        while self._waiting:
            self._backward(*self._waiting.pop())
        self._thread = THREAD
        start = self._at
        for name in ("aten::_foreach_mul_", "aten::_foreach_add_", "aten::_foreach_add_"):
            self._run(_Operator(name, [], [_UPDATE], 0, 12 * PARAMETERS))
        self.scenario.range("Optimizer.step#SGD.step", start, self._at)
        # The loss is printed: the host waits for the device.
        until = max(self._at, self._free) + 10_000
        self.scenario.sync(self._at, until, "stream", stream=STREAM)
        self._at = until + 30_000
        self.scenario.step(number, began, self._at)

    def _forward(self, image: Shape) -> None:
        shape = image
        for stage, widths in enumerate(CHANNELS, 1):
            for place, width in enumerate(widths, 1):
                shape = self._convolution(f"stage{stage}.conv{place}", shape, width)
                self._normalization(f"stage{stage}.bn{place}", shape)
                self._activation(f"stage{stage}.relu{place}", shape)
            shape = self._pooling(f"stage{stage}.pool", shape)
        shape = (self.batch, prod(shape[1:]))
        for place, width in enumerate((4096, 4096, 1000), 1):
            shape = self._linear(f"classifier.fc{place}", shape, width)
            if place < 3:
                self._activation(f"classifier.relu{place}", shape)

    def _convolution(self, layer: str, given: Shape, width: int) -> Shape:
        made: Shape = (given[0], width, *given[2:])
        weight: Shape = (width, given[1], 3, 3)
        flops = 2 * prod(made) * given[1] * 9
        size = 4 * (prod(given) + prod(weight) + prod(made))
        winograd = given[1] > 3
        kernel, rate = (_WINOGRAD, 0.93) if winograd else (_IMPLICIT, 0.35)
        inputs = ["", "", "[1, 1]", "[1, 1]", "[1, 1]", "1", "False", "False", "True"]
        shapes = [given, weight]
        start = self._at
        name = "aten::cudnn_convolution"
        self._run(_Operator(name, shapes, [kernel], flops / rate, size, inputs))
        self._layer(layer, "aten::conv2d", start, shapes)
        # The gradient of the images is not needed.
        of_input = given[1] > 3
        inputs = ["", "", "", "[0]", *["[1, 1]"] * 3, "False", "[0, 0]", "1"]
        inputs.append(f"[{of_input}, True, False]")
        shapes = [made, given, weight, *[()] * 8]
        kernels = [_WGRAD, *([_DGRAD] if of_input else [])]
        name = "aten::convolution_backward"
        back = _Operator(name, shapes, kernels, flops / 0.6, size, inputs)
        self._later("ConvolutionBackward0", [back])
        return made

    def _normalization(self, layer: str, shape: Shape) -> None:
        size = 4 * prod(shape)
        channels: Shape = (shape[1],)
        shapes = [shape, *[channels] * 4]
        start = self._at
        self._run(_Operator("aten::cudnn_batch_norm", shapes, [_NORM], 0, 3 * size))
        self._layer(layer, "aten::batch_norm", start, shapes)
        name, shapes = "aten::cudnn_batch_norm_backward", [shape, shape, channels]
        self._later("CudnnBatchNormBackward0", [_Operator(name, shapes, [_NORM_BACK], 0, 5 * size)])

    def _activation(self, layer: str, shape: Shape) -> None:
        size = 4 * prod(shape)
        start = self._at
        self._run(_Operator("aten::clamp_min_", [shape, ()], [_CLAMP], 0, 2 * size))
        self._layer(layer, "aten::relu_", start, [shape])
        name, shapes = "aten::threshold_backward", [shape, shape, ()]
        self._later("ReluBackward0", [_Operator(name, shapes, [_THRESHOLD], 0, 3 * size)])

    def _pooling(self, layer: str, given: Shape) -> Shape:
        made = (*given[:2], given[2] // 2, given[3] // 2)
        size = 4 * (prod(given) + 3 * prod(made))
        name = "aten::max_pool2d_with_indices"
        start = self._at
        self._run(_Operator(name, [given], [_POOL.format("forward")], 0, size))
        self._layer(layer, "aten::max_pool2d", start, [given])
        back = _Operator(f"{name}_backward", [made, given], [_POOL.format("backward")], 0, 2 * size)
        self._later("MaxPool2DWithIndicesBackward0", [back])
        return made

    def _linear(self, layer: str, given: Shape, width: int) -> Shape:
        made: Shape = (given[0], width)
        weight: Shape = (width, given[1])
        work = 2 * prod(made) * given[1] / 0.5, 4 * (prod(given) + prod(made) + prod(weight))
        shapes = [(width,), given, weight[::-1]]
        start = self._at
        self._run(_Operator("aten::addmm", shapes, ["volta_sgemm_32x32_sliced1x4_tn"], *work))
        self._layer(layer, "aten::linear", start, [given, weight, (width,)])
        of_input = _Operator("aten::mm", [made, weight], ["volta_sgemm_32x128_nn"], *work)
        of_weight = _Operator("aten::mm", [made[::-1], given], ["volta_sgemm_128x64_nt"], *work)
        self._later("AddmmBackward0", [of_input, of_weight])
        return made

    def _upload(self, size: int) -> None:
        start = self._at
        self._spend(12_000)
        begins = max(self._at + 8_000, self._free)
        time = self._varied(round(size / 11.9))
        self.scenario.copy("HtoD", size, at=self._at, begins=begins, duration=time, call=7_000)
        self._spend(12_000)
        self.scenario.operator("aten::copy_", start, self._at)
        self._spend(8_000)
        self._free = begins + time

    def _layer(self, path: str, operator: str, start: int, shapes: Sequence[Shape]) -> None:
        """Close the layer that began at ``start``: its operator, and the range around it."""
        self._sequence += 1
        self.scenario.operator(
            operator, start - 4_000, self._at + 2_000, arguments=self._inputs(shapes)
        )
        self.scenario.range(f"forward: {path}", start - 6_000, self._at + 4_000)
        self._at += 14_000

    def _later(self, node: str, calls: list[_Operator]) -> None:
        self._waiting.append((self._sequence - 1, node, calls))

    def _backward(self, sequence: int, node: str, calls: list[_Operator]) -> None:
        """Run the node of the autograd graph whose forward operator has ``sequence``."""
        start = self._at
        self._spend(5_000)
        for one in calls:
            self._run(one)
        self._spend(3_000)
        order: dict[str, object] = {"Sequence number": sequence, "Fwd thread id": 1}
        self.scenario.operator(
            node, start + 2_000, self._at - 1_000, thread=AUTOGRAD, arguments=order
        )
        text = f"autograd::engine::evaluate_function: {node}"
        self.scenario.operator(text, start, self._at, thread=AUTOGRAD, arguments=order)
        self._spend(2_000)

    def _run(self, one: _Operator) -> None:
        start = self._at
        for kernel in one.kernels:
            self._spend(self._host)
            self._launch(kernel, one)
            self._spend(9_000)
        given = self._inputs(one.shapes)
        if one.inputs:
            given["Concrete Inputs"] = list(one.inputs)
        self.scenario.operator(one.name, start, self._at, thread=self._thread, arguments=given)

    def _launch(self, kernel: str, one: _Operator) -> None:
        time = max(one.flops / PEAK, one.size / (0.78 * V100.bandwidth))
        begins = max(self._at + 5_000, self._free)
        duration = self._varied(max(2_000, round(1e9 * time)))
        self.scenario.launch(
            at=self._at,
            begins=begins,
            duration=duration,
            name=kernel,
            blocks=max(1, one.size // 32_768),
            call=6_000,
            thread=self._thread,
        )
        self._free = begins + duration

    def _inputs(self, shapes: Sequence[Shape]) -> dict[str, object]:
        strides = [[prod(shape[at + 1 :]) for at in range(len(shape))] for shape in shapes]
        return {
            "Sequence number": self._sequence,
            "Fwd thread id": 0,
            "Input Dims": [list(shape) for shape in shapes],
            "Input Strides": strides,
            "Input type": ["float" if shape else "Scalar" for shape in shapes],
        }

    def _spend(self, time: int) -> None:
        self._at += self._varied(time)

    def _varied(self, time: int) -> int:
        return max(1, round(time * (1 + 0.02 * self._random.gauss(0, 1))))


def cnn_training(steps: int = 5, batch: int = 16) -> Scenario:
    """Return the run of ``steps`` steps; every second one waits longer for its batch."""
    run = Training(batch)
    for number in range(steps):
        run.step(number, 18_000_000 if number % 2 else 9_000_000)
    return run.scenario

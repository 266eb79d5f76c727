"""Trainings of a CNN, a transformer and an MLP without a bottleneck, and places to put one.

A kernel's time is that of a roofline: 55 % of the peak for what it computes, 60 % of the bandwidth
for what it moves. The host runs ahead of the device, the batch is copied during the backward pass,
products run on tensor cores where the device has them, and their epilogues are fused.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Final, Literal

from tests.support.synthetic.records import GPU, Event
from tests.support.synthetic.scenario import STREAM, THREAD, Scenario

Shape = tuple[int, ...]
Place = Literal["begin", "forward", "middle", "backward", "end"]
"""Before the forward pass, in the middle of it, after it, in the middle of the backward pass, and
before the optimizer."""
Pace = Literal["event", "stream"]
"""The host waits for the step before, and is a step ahead; or for each step at its end."""

AUTOGRAD: Final = 12
COPIES: Final = 13
"""The stream of the copies of the next batch."""
COMMUNICATION: Final = 20

COMPUTE: Final = 0.55
MEMORY: Final = 0.6
"""Shares of the peaks that kernels reach."""

NORM: Final = (
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::Half, float>()"
)
NORM_BACK: Final = (
    "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<c10::Half>()"
)
# In NHWC: without layout changes they take as long.
BATCH_NORM: Final = "void cudnn::batchnorm_fwtr_nhwc_semiPersist<float, float, float, 512, 16>()"
BATCH_NORM_BACK: Final = (
    "void cudnn::batchnorm_bwtr_nhwc_semiPersist<float, float, float, 512, 16>()"
)
FLASH: Final = "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64> >()"
FLASH_BACK: Final = "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<int>()"
SOFTMAX: Final = (
    "void (anonymous namespace)::softmax_warp_forward<c10::Half, c10::Half, float, 10>()"
)
LOSS: Final = (
    "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float>()"
)
ADAM: Final = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
    "namespace)::FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::"
    "FusedAdamMathFunctor<float, 4> >()"
)
RELU: Final = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::"
    "launch_clamp_scalar(at::TensorIteratorBase&)::{lambda(float)#1}, at::detail::Array<char*, 2> "
    ">()"
)
TRIED: Final = (
    "void fft2d_r2c_32x32<float, false, 1u, false>()",
    "void fft2d_r2c_32x32<float, false, 0u, false>()",
    "maxwell_cgemm_32x64_tn",
    "void fft2d_c2r_32x32<float, false, false, 0u, false, false>()",
    "maxwell_scudnn_128x64_relu_interior_nn_v1",
    "void cudnn::cnn::implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1>()",
)
"""Three algorithms, the first of four kernels."""

TO_NHWC: Final = "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true>()"


@dataclass(frozen=True)
class Device:
    """A GPU with the peaks of its data sheet: FLOP/s, bytes/s, and of the link one way."""

    gpu: GPU
    flops: float
    fp32: float
    bandwidth: float
    link: float
    gemm: str
    fp32_gemm: str
    """Names of the kernels; ``gemm`` on tensor cores where the device has them."""
    conv: tuple[str, str, str]
    """Forward, data gradient, weight gradient."""
    half: bool = True

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return 2 if self.half else 4


_XMMA: Final = (
    "sm80_xmma_{}_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_stage4_"
    "warpsize2x2x1_g1_tensor16x8x16_kernel_cudnn"
)
A100: Final = Device(
    GPU(),
    312e12,
    19.5e12,
    2.039e12,
    31.5e9,
    "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn",
    "ampere_sgemm_128x64_tn",
    (_XMMA.format("fprop"), _XMMA.format("dgrad"), _XMMA.format("wgrad")),
)
V100: Final = Device(
    GPU("Tesla V100-SXM2-16GB", (7, 0), 80, 16_945_512_448, 900_000_000_000),
    125e12,
    15.7e12,
    0.9e12,
    15.75e9,
    "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_tn",
    "volta_sgemm_128x64_tn",
    (
        "volta_fp16_s884cudnn_fp16_128x128_ldg8_relu_f2f_exp_interior_nhwc_tn_v1",
        "volta_fp16_s884cudnn_fp16_128x128_ldg8_dgrad_f2f_exp_interior_nhwc_tt_v1",
        "volta_fp16_s884cudnn_fp16_128x128_ldg8_wgrad_idx_exp_interior_nhwc_nt_v1",
    ),
)
P100: Final = Device(
    GPU("Tesla P100-SXM2-16GB", (6, 0), 56, 17_071_734_784, 732_000_000_000),
    10.6e12,
    10.6e12,
    0.732e12,
    15.75e9,
    "maxwell_sgemm_128x64_tn",
    "maxwell_sgemm_128x64_tn",
    (
        "maxwell_scudnn_winograd_128x128_ldg1_ldg4_tile148t_nt_v1",
        "maxwell_scudnn_winograd_128x128_ldg1_ldg4_mobile_relu_tile148t_nt_v1",
        "void cudnn::winograd_nonfused::winogradWgradData4x4<float, float>()",
    ),
    half=False,
)


@dataclass(frozen=True)
class Kernel:
    """A kernel of an operator: its name, its time, and its blocks."""

    name: str
    time: int
    blocks: int = 2_000


@dataclass(frozen=True)
class Operator:
    """An operator of a network, its kernels and its recorded arguments."""

    name: str
    kernels: Sequence[Kernel]
    shapes: Sequence[Shape] = ()
    inputs: Sequence[str] = ()


@dataclass(frozen=True)
class Layer:
    """A layer: the operators of both passes, and the node of the autograd graph."""

    name: str
    node: str
    forward: Sequence[Operator]
    backward: Sequence[Operator]


Insert = Callable[["Run"], None]


@dataclass(frozen=True)
class Plan:
    """What a run does besides the network: work at places, and traits of the network.

    ``traits`` are times (ns) of what each layer does only with them, or other numbers.
    """

    places: Sequence[tuple[Place, Insert]] = ()
    traits: Mapping[str, int] = field(default_factory=dict)


class Run:
    """A cursor on the host and one on each stream of each device."""

    def __init__(
        self,
        device: Device,
        layers: Callable[[Run], Sequence[Layer]],
        plan: Plan,
        *,
        pace: Pace = "stream",
        devices: int = 1,
        seed: int = 1,
        dispatch: int = 5_000,
        training: bool = True,
        reduced: bool = False,
        slower: bool = False,
        process: int | None = None,
    ) -> None:
        """Begin a run of ``layers``; with ``reduced``, gradients are all-reduced as they are ready.

        ``slower`` is for plans in which one rank takes longer. A ``process`` of several has the
        device of its number; else there is one, and it has all devices.
        """
        self.device = device
        self.scenario = Scenario([device.gpu] * devices, process=100 + (process or 0))
        self._gpus = range(devices) if process is None else [process]
        self.plan = plan
        self.slower = slower
        self.number = -1
        self.at = 0
        self.gpu = self._gpus[0]
        self.ends: list[int] = []
        """When the work of each step is done."""
        self._pace = pace
        self._dispatch = dispatch
        self._training = training
        self._reduced = reduced
        self._random = random.Random(seed)
        self._free: dict[tuple[int, int], int] = {}
        self._copied: dict[int, Event] = {}
        self._launched: list[list[Event]] = []
        self._thread = THREAD
        self._sequence = 0
        self.layers = layers(self)

    def trait(self, name: str) -> int:
        """Return the time of a trait, 0 without it."""
        return self.plan.traits.get(name, 0)

    def roofline(self, flops: float, size: float, peak: float | None = None) -> int:
        """Return the time of a kernel of ``flops`` that moves ``size`` bytes."""
        computing = flops / (COMPUTE * (peak or self.device.flops))
        return max(3_000, round(1e9 * max(computing, size / (MEMORY * self.device.bandwidth))))

    def free(self, stream: int = STREAM) -> int:
        """Return when a stream of the present device is free."""
        return self._free.get((self.gpu, stream), 0)

    def step(self) -> None:
        """Run the next step."""
        self.number += 1
        began = self.at
        self.spend(10_000)
        self._at_place("begin")
        for gpu in self._gpus:
            self.gpu = gpu
            self._receive()
            order = self._forward()
            self._upload()
            self._at_place("middle")
            if self._training:
                self._backward(order)
                self._at_place("end")
                self._update()
        self._wait()
        self.spend(10_000)
        self.ends.append(self.drained())
        self.scenario.step(self.number, began, self.at)

    def _at_place(self, place: Place) -> None:
        for where, insert in self.plan.places:
            if where == place:
                insert(self)

    def _forward(self) -> list[tuple[int, Layer]]:
        order = []
        for place, layer in enumerate(self.layers):
            with self.module(layer.name):
                for one in layer.forward:
                    self.run(one)
            self._sequence += 1
            order.append((self._sequence - 1, layer))
            if place == len(self.layers) // 2:
                self._at_place("forward")
        return order

    def _backward(self, order: list[tuple[int, Layer]]) -> None:
        self.run(Operator("aten::nll_loss_forward", [Kernel(LOSS, 5_000)]))
        self._thread = AUTOGRAD
        for place, (sequence, layer) in enumerate(reversed(order)):
            with self.node(layer.node, sequence):
                for one in layer.backward:
                    self.run(one)
            if self._reduced and place < len(order) - 1:
                self.all_reduce(40_000)
            if place == len(order) // 2:
                self._at_place("backward")
        self._thread = THREAD

    def _update(self) -> None:
        start = self.at
        self.spend(10_000)
        if self._reduced:
            self.wait_for(COMMUNICATION)
        for _ in range(2):
            self.run(Operator("aten::_fused_adam_", [Kernel(ADAM, 60_000)]))
        self.scenario.range("Optimizer.step#Adam.step", start, self.at)

    def _wait(self) -> None:
        """Let the host wait, for this step or for the one before."""
        events = []
        for place, gpu in enumerate(self._gpus):
            self.gpu = gpu
            if self._pace == "stream":
                until = max(self.at + 2_000, self.free() + 3_000)
                self.scenario.sync(self.at, until, "stream", stream=STREAM, device=gpu)
                self.at = until
            else:
                events.append(self._recorded(STREAM))
                if self._launched:
                    before = self._launched[-1][place]
                    until = max(self.at + 1_000, before.completed + 2_000)
                    self.scenario.sync(self.at, until, "event", event=before, device=gpu)
                    self.at = until
        self._launched.append(events)

    def _receive(self) -> None:
        """Let the kernels that follow wait for this step's batch."""
        if (event := self._copied.get(self.gpu)) is not None:
            self._await(event, STREAM)

    def _upload(self) -> None:
        """Copy the next batch beside the kernels."""
        size = round(120e-6 * 0.8 * self.device.link)
        self.copy("HtoD", size, 0.8, stream=COPIES)
        self._copied[self.gpu] = self._recorded(COPIES)

    def drained(self) -> int:
        """Return when all the work that was launched is done."""
        return max(self._free.values(), default=0)

    def spend(self, time: int) -> None:
        """Let the host take some time."""
        self.at += self.varied(time)

    def varied(self, time: int) -> int:
        """Return a time near to ``time``."""
        return max(1, round(time * (1 + 0.01 * self._random.gauss(0, 1))))

    @contextmanager
    def inside(
        self, name: str, shapes: Sequence[Shape] = (), inputs: Sequence[str] = ()
    ) -> Iterator[None]:
        """Run an operator, around whatever the host does meanwhile."""
        start = self.at
        self.spend(1_000)
        yield
        self.spend(1_000)
        kind = "c10::Half" if self.device.half else "float"
        given: dict[str, object] = {
            "Sequence number": self._sequence,
            "Fwd thread id": 0,
            "Input Dims": [list(shape) for shape in shapes],
            "Input Strides": [
                [prod(shape[at + 1 :]) for at in range(len(shape))] for shape in shapes
            ],
            "Input type": [kind if shape else "Scalar" for shape in shapes],
        }
        if inputs:
            given["Concrete Inputs"] = list(inputs)
        self.scenario.operator(name, start, self.at, thread=self._thread, arguments=given)

    @contextmanager
    def module(self, name: str) -> Iterator[None]:
        """Run a layer: the range around its forward pass."""
        start = self.at
        self.spend(3_000)
        yield
        self.scenario.range(f"nn.Module.forward: {name}", start, self.at)

    @contextmanager
    def node(self, name: str, sequence: int | None = None) -> Iterator[None]:
        """Run a node of the backward graph, of the last forward operator by default."""
        start = self.at
        self.spend(2_000)
        yield
        self.spend(2_000)
        number: dict[str, object] = {
            "Sequence number": self._sequence - 1 if sequence is None else sequence,
            "Fwd thread id": 1,
        }
        thread, text = self._thread, f"autograd::engine::evaluate_function: {name}"
        self.scenario.operator(name, start + 500, self.at - 500, thread=thread, arguments=number)
        self.scenario.operator(text, start, self.at, thread=thread, arguments=number)
        self.spend(1_000)

    def run(self, one: Operator) -> None:
        """Run an operator of kernels."""
        with self.inside(one.name, one.shapes, one.inputs):
            for kernel in one.kernels:
                self.kernel(kernel)

    def kernel(self, one: Kernel, *, dispatch: int | None = None, call: int = 3_000) -> None:
        """Launch a kernel."""
        self.spend(self._dispatch if dispatch is None else dispatch)
        begins, time = self._begins(call, STREAM), self.varied(one.time)
        self.scenario.launch(
            at=self.at, begins=begins, duration=time, name=one.name, blocks=one.blocks, call=call,
            thread=self._thread, device=self.gpu,
        )  # fmt: skip
        self._free[self.gpu, STREAM] = begins + time
        self.at += call

    def copy(
        self,
        direction: Literal["HtoD", "DtoH"],
        size: int,
        share: float,
        *,
        memory: Literal["pinned", "pageable"] = "pinned",
        synchronous: bool = False,
        stream: int = STREAM,
    ) -> None:
        """Copy at a ``share`` of the link's peak; a copy of pageable memory blocks the host."""
        self.spend(3_000)
        call = 2_000
        begins = self._begins(call, stream)
        time = self.varied(max(1_500, round(1e9 * size / (share * self.device.link))))
        end = begins + time
        blocks = synchronous or memory == "pageable"
        self.scenario.copy(
            direction, size, at=self.at, begins=begins, duration=time, memory=memory,
            synchronous=synchronous, stream=stream, call=end - self.at if blocks else call,
            thread=self._thread, device=self.gpu,
        )  # fmt: skip
        self._free[self.gpu, stream] = end
        self.at = end if blocks else self.at + call

    def memset(self, size: int, time: int) -> None:
        """Set memory of the device."""
        self.spend(2_000)
        begins = self._begins(1_000, STREAM)
        self.scenario.memset(
            size, at=self.at, begins=begins, duration=time, thread=self._thread, device=self.gpu
        )
        self._free[self.gpu, STREAM] = begins + time
        self.at += 1_000

    def synchronize(self) -> None:
        """Let the host wait for the stream of the present device."""
        until = max(self.at + 1_000, self.free() + 2_000)
        self.scenario.sync(
            self.at, until, "stream", stream=STREAM, thread=self._thread, device=self.gpu
        )
        self.at = until

    def synchronize_free(self, time: int) -> None:
        """Free memory, for which the driver waits until the device is done."""
        until = max(self.at, self.free()) + time
        self.scenario.free(self.at, until, thread=self._thread)
        self.at = until

    def all_reduce(self, time: int, operation: str = "AllReduce_Sum_f16_RING_LL") -> None:
        """Reduce over the ranks on the stream of communication, after the kernels launched."""
        self._await(self._recorded(STREAM), COMMUNICATION)
        self.spend(3_000)
        begins, time = self._begins(3_000, COMMUNICATION), self.varied(time)
        self.scenario.collective(
            COMMUNICATION, at=self.at, begins=begins, duration=time, operation=operation,
            device=self.gpu, thread=self._thread,
        )  # fmt: skip
        self._free[self.gpu, COMMUNICATION] = begins + time
        self.at += 3_000

    def wait_for(self, stream: int) -> None:
        """Let the kernels that follow wait for the work of another stream."""
        self._await(self._recorded(stream), STREAM)

    def _begins(self, call: int, stream: int) -> int:
        return max(self.at + call + 1_000, self.free(stream) + 700)

    def _recorded(self, stream: int) -> Event:
        event = self.scenario.record_event(
            stream, at=self.at, completed=self.free(stream), call=500, device=self.gpu,
            thread=self._thread,
        )  # fmt: skip
        self.at += 1_000
        return event

    def _await(self, event: Event, stream: int) -> None:
        self.scenario.wait_event(event, stream, at=self.at, call=500, thread=self._thread)
        self.at += 1_000
        self._free[self.gpu, stream] = max(self.free(stream), event.completed + 500)


def usual(run: Run, time: int) -> Shape:
    """Return the shape that is read and written in ``time`` at a usual bandwidth."""
    return (64, round(time * 1e-9 * MEMORY * run.device.bandwidth / (2 * run.device.size * 64)))


def relu(run: Run, time: int) -> Operator:
    """Return an activation of its own that takes ``time``."""
    return Operator("aten::relu", [Kernel(RELU, time)], [usual(run, time)])


def linear(run: Run, name: str, rows: int, into: int, out: int) -> Layer:
    """Return a fully connected layer with a fused epilogue."""
    flops, size = 2 * rows * into * out, run.device.size * (rows * into + into * out + rows * out)
    time, gemm = run.roofline(flops, size), run.device.gemm
    forward = [Operator("aten::addmm", [Kernel(gemm, time)], [(out,), (rows, into), (into, out)])]
    if activation := run.trait("activation"):
        forward.append(relu(run, activation))
    back = [
        Operator("aten::mm", [Kernel(gemm, time)], [(rows, out), (out, into)]),
        Operator("aten::mm", [Kernel(gemm, time)], [(out, rows), (rows, into)]),
    ]
    return Layer(name, "AddmmBackward0", forward, back)


def mlp(width: int = 2048, depth: int = 4, rows: int = 8192) -> Callable[[Run], Sequence[Layer]]:
    """Return the layers of an MLP."""
    return lambda run: [linear(run, f"fc{one}", rows, width, width) for one in range(depth)]


def transformer(
    width: int = 768, depth: int = 2, tokens: tuple[int, int] = (8, 1024)
) -> Callable[[Run], Sequence[Layer]]:
    """Return the layers of a transformer; trait ``softmax``: attention that is not fused."""
    (batch, length), heads = tokens, width // 64
    rows = batch * length

    def layers(run: Run) -> Sequence[Layer]:
        norm = run.roofline(0, 2 * run.device.size * rows * width)
        found = []
        for block in range(depth):

            def normalization(name: str, block: int = block) -> Layer:
                name, shapes = f"blocks.{block}.{name}", [(rows, width)]
                forward = Operator("aten::native_layer_norm", [Kernel(NORM, norm)], shapes)
                back = Operator(
                    "aten::native_layer_norm_backward", [Kernel(NORM_BACK, 2 * norm)], shapes
                )
                return Layer(name, "NativeLayerNormBackward0", [forward], [back])

            found += [
                normalization("norm1"),
                linear(run, f"blocks.{block}.qkv", rows, width, 3 * width),
                _attention(run, f"blocks.{block}.attention", (batch, heads, length, 64)),
                linear(run, f"blocks.{block}.proj", rows, width, width),
                normalization("norm2"),
                linear(run, f"blocks.{block}.fc1", rows, width, 4 * width),
                linear(run, f"blocks.{block}.fc2", rows, 4 * width, width),
            ]
        return found

    return layers


def _attention(run: Run, name: str, shape: Shape) -> Layer:
    batch, heads, length, width = shape
    flops = 2 * batch * heads * length * length * width
    fused = run.roofline(2 * flops / 0.7, 0)
    if not run.plan.traits.keys() & {"softmax", "bmm"}:
        op = "aten::_flash_attention_{}"
        forward = Operator(op.format("forward"), [Kernel(FLASH, fused)], [shape] * 3)
        back = Operator(op.format("backward"), [Kernel(FLASH_BACK, 2 * fused)], [shape] * 4)
        return Layer(name, "FlashAttnBackward0", [forward], [back])
    left: Shape = (batch * heads, length, width)
    right: Shape = (batch * heads, width, length)
    scores: Shape = (batch * heads, length, length)
    moved = run.device.size * (prod(left) + prod(right) + prod(scores))
    product = Kernel(run.device.gemm, run.roofline(flops, moved))
    forwards = [Operator("aten::bmm", [product], [left, right])]
    if softmax := run.trait("softmax"):
        forwards.append(
            Operator("aten::_softmax", [Kernel(SOFTMAX, softmax)], [usual(run, softmax)])
        )
    forwards.append(Operator("aten::bmm", [product], [scores, left]))
    backs = [Operator("aten::bmm", [product], [scores, left]) for _ in range(4)]
    return Layer(name, "BmmBackward0", forwards, backs)


def cnn(
    widths: Sequence[int] = (64, 128, 128, 256, 256), side: int = 56, batch: int = 128
) -> Callable[[Run], Sequence[Layer]]:
    """Return the layers of a CNN with batch normalization.

    Traits: ``activation``, ``layout`` before each convolution, ``input_gradient`` of the first,
    ``trials`` of the second, and ``gemm_layers``, how many convolutions run as GEMMs where
    Winograd would do.
    """

    def layers(run: Run) -> Sequence[Layer]:
        found, channels, now = [], 3, side
        for place, width in enumerate(widths):
            stride = 2 if place in (2, 4) else 1
            made = now // stride
            found.append(_convolution(run, place, (batch, channels, now), (width, made), stride))
            found.append(_batch_norm(run, place, (batch, width, made, made)))
            channels, now = width, made
        return found

    return layers


def _convolution(
    run: Run, place: int, given: tuple[int, int, int], out: tuple[int, int], stride: int
) -> Layer:
    (batch, channels, side), (width, made) = given, out
    device = run.device
    images: Shape = (batch, channels, side, side)
    result: Shape = (batch, width, made, made)
    weight: Shape = (width, channels, 3, 3)
    flops = 2 * prod(result) * channels * 9
    size = device.size * (prod(images) + prod(weight) + prod(result))
    names = list(device.conv)
    # Winograd executes 16 multiplications where 36 are needed.
    spared = 1.0 if device.half else 16 / 36
    if not device.half and (stride > 1 or 0 < place <= run.trait("gemm_layers")):
        names, spared = ["maxwell_scudnn_128x64_relu_interior_nn_v1"] * 3, 1.0
    time = run.roofline(flops * spared, size)
    forward, dgrad, wgrad = (Kernel(name, time) for name in names)
    pad = "[1, 1]"
    inputs = ["", "", "", f"[{stride}, {stride}]", pad, pad, "False", "[0, 0]", "1"]
    kernels = [forward]
    if layout := run.trait("layout"):
        kernels.insert(0, Kernel(TO_NHWC, layout))
    if place == 1 and (trials := run.trait("trials")):
        kernels = [*(Kernel(one, trials // len(TRIED)) for one in TRIED), *kernels]
    operators = [Operator("aten::_convolution", kernels, [images, weight, ()], inputs)]
    if activation := run.trait("activation"):
        operators.append(relu(run, activation))
    # The gradient of the images is not needed.
    gradient = run.trait("input_gradient") if place == 0 else time
    mask = f"[{gradient > 0}, True, False]"
    back = Operator(
        "aten::convolution_backward",
        [wgrad, *([Kernel(dgrad.name, gradient)] if gradient else [])],
        [result, images, weight, *[()] * 8],
        ["", "", "", "[0]", f"[{stride}, {stride}]", pad, pad, "False", "[0, 0]", "1", mask],
    )
    return Layer(f"conv{place}", "ConvolutionBackward0", operators, [back])


def _batch_norm(run: Run, place: int, shape: Shape) -> Layer:
    size = run.device.size * prod(shape)
    forward, back = (run.roofline(0, passes * size) for passes in (3, 5))
    name = "aten::cudnn_batch_norm"
    channels: Shape = (shape[1],)
    return Layer(
        f"bn{place}",
        "CudnnBatchNormBackward0",
        [Operator(name, [Kernel(BATCH_NORM, forward)], [shape, *[channels] * 4])],
        [Operator(f"{name}_backward", [Kernel(BATCH_NORM_BACK, back)], [shape, shape, channels])],
    )


def trained(run: Run, steps: int) -> Run:
    """Return ``run`` after its steps."""
    for _ in range(steps):
        run.step()
    return run


def step_time(run: Run) -> float:
    """Return the mean time of a step (ns), from the end of the second's work to the last one's."""
    return (run.ends[-1] - run.ends[1]) / (len(run.ends) - 2)

"""Runs with one planted bottleneck each, its size, and the findings that it may have.

The expected findings were written down before ``advise`` was run. The size of a bottleneck is by
how much the step of the same run is shorter without it: the run is built a second time, mended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

import msgspec

import traceana
from tests.support.synthetic import kineto, nsys, write_kineto, write_nsys
from tests.support.synthetic.networks import (
    A100,
    P100,
    V100,
    Device,
    Insert,
    Kernel,
    Layer,
    Operator,
    Pace,
    Place,
    Plan,
    Run,
    cnn,
    mlp,
    step_time,
    trained,
    transformer,
)
from traceana.advise import advise
from traceana.report.page import Page
from traceana.report.pages.advise import advised

Network = Callable[[Run], Sequence[Layer]]
Make = Callable[[Device, int], Plan]
"""Returns what is planted on a device so that it takes about so many nanoseconds a step."""


def nothing(device: Device, time: int) -> Plan:
    """Return the plan of a run without the bottleneck."""
    return Plan()


@dataclass(frozen=True)
class Cause:
    """A bottleneck: the rule that must find it, and how it is made.

    ``also`` are rules that the same time may hold for, whatever the decoys are. ``mended`` is the
    run after the recommended change, without the work by default. ``exact``: the size is what the
    recommended change saves, for it removes time and replaces none.
    """

    rule: str
    make: Make
    also: frozenset[str] = frozenset()
    mended: Make = nothing
    exact: bool = True


@dataclass(frozen=True, eq=False)
class Case:
    """A run with a planted ``cause`` of about ``share`` of the step, None in a healthy one.

    ``decoys`` are other causes with their shares. Those of 1 % and more are in the trace, and may
    be found; smaller ones may not.
    """

    name: str
    network: Network
    cause: Cause | None = None
    share: float = 0.0
    decoys: Sequence[tuple[Cause, float]] = ()
    device: Device = A100
    steps: int = 5
    pace: Pace = "stream"
    file: Literal["kineto", "nsys", "ranks", "processes"] = "kineto"
    devices: int = 1
    training: bool = True
    reduced: bool = False

    @property
    def allowed(self) -> frozenset[str]:
        """The rules that may hold."""
        real = [one for one, share in self.decoys if share >= 0.01]
        causes = [*real, *([self.cause] if self.cause else [])]
        return frozenset().union(*({one.rule} | one.also for one in causes))

    def run(
        self, planted: str = "with", *, slower: bool = False, process: int | None = None
    ) -> Run:
        """Return the run ``with`` the bottleneck, ``mended``, or ``healthy``: without decoys too.

        ``slower`` is the rank of a ``ranks`` case that the others wait for, ``process`` one of the
        two of a ``processes`` case.
        """
        plan = Plan() if planted == "healthy" else self._plan(planted)
        seed = sum(self.name.encode())
        return trained(
            Run(
                self.device, self.network, plan, pace=self.pace, devices=self.devices, seed=seed,
                training=self.training, reduced=self.reduced, slower=slower, process=process,
            ),
            self.steps,
        )  # fmt: skip

    def _plan(self, planted: str) -> Plan:
        base = _healthy_time(self)
        causes = [(one, share, one.make) for one, share in self.decoys]
        if self.cause is not None:
            make = self.cause.make if planted == "with" else self.cause.mended
            causes.append((self.cause, self.share, make))
        # The sizes are parts of the step that has them all.
        rest = 1 - sum(share for _, share, _ in causes)
        plans = [
            make(self.device, round(share * base / rest) // self._layers_with(one))
            for one, share, make in causes
        ]
        places = [place for plan in plans for place in plan.places]
        traits = {name: time for plan in plans for name, time in plan.traits.items()}
        return Plan(places, traits)

    def _layers_with(self, cause: Cause) -> int:
        """Return how many layers a trait changes; 1 for what is done at a place."""
        plans = (Plan(), cause.make(self.device, 1_000))
        plain, changed = (Run(self.device, self.network, plan).layers for plan in plans)
        return max(1, sum(one != other for one, other in zip(plain, changed, strict=True)))

    def loss(self) -> int:
        """Return the size of the bottleneck (ns per step): what the mended run is faster by."""
        return round(step_time(self.run()) - step_time(self.run("mended")))


@cache
def _healthy_time(case: Case) -> float:
    """Return the step time of a case's healthy run: sizes of causes are parts of it."""
    return step_time(case.run("healthy"))


def at(place: Place | tuple[Place, ...], insert: Callable[[Run, int], None]) -> Make:
    """Return a maker of what ``insert`` does at a place, or at each of several."""
    places: tuple[Place, ...] = place if isinstance(place, tuple) else (place,)

    def make(device: Device, time: int) -> Plan:
        each: Insert = lambda run: insert(run, time)  # noqa: E731
        return Plan([(one, each) for one in places])

    return make


def trait(*names: str) -> Make:
    """Return a maker of traits of the network, of the same time."""
    return lambda device, time: Plan(traits=dict.fromkeys(names, time))


def waits_for_batch(run: Run, time: int) -> None:
    """Wait for the data loader, for ``time`` longer than the device has work."""
    until = max(run.at, run.drained()) + time
    run.scenario.data_loader(run.at, until)
    run.at = until


def works_on_host(run: Run, time: int) -> None:
    """Do other things than launch, for ``time`` longer than the device has work."""
    run.at = max(run.at, run.drained()) + time


def reads_value(run: Run, time: int) -> None:
    """Read a value on the host, and work with it there for half of the time."""
    with run.inside("aten::item"), run.inside("aten::_local_scalar_dense"):
        run.copy("DtoH", 4, 0.01)
        run.synchronize()
    run.at += time // 2


def half_ahead(run: Run, time: int) -> None:
    """Do the same work on the host, without the value."""
    run.at += time // 2


def synchronizes(run: Run, time: int) -> None:
    """Wait for the device, and compute on the host before the next launch."""
    run.synchronize()
    run.at += time


def computes_ahead(run: Run, time: int) -> None:
    """Compute the same on the host, without waiting."""
    run.at += time


def allocates(run: Run, time: int) -> None:
    """Free and allocate memory, which waits for the device."""
    run.synchronize_free(time // 4)
    for _ in range(3):
        run.scenario.malloc(run.at, run.at + time // 4)
        run.at += time // 4


def tiny_kernels(run: Run, time: int) -> None:
    """Launch kernels that are shorter than their launch calls."""
    name = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >()"
    )
    for _ in range(max(1, time // 14_000)):
        with run.inside("aten::add"):
            run.kernel(Kernel(name, 2_000), dispatch=6_000, call=6_000)


def in_a_graph(run: Run, time: int) -> None:
    """Run the same kernels one behind the other, launched at once."""
    count = max(1, time // 14_000)
    run.kernel(Kernel("graph", count * 2_700))


def all_reduces(run: Run, time: int) -> None:
    """Reduce over the ranks when all gradients are there."""
    run.all_reduce(time)
    run.wait_for(20)


def straggles(run: Run, time: int) -> None:
    """Let one rank take longer, and the others wait for it in the collective that follows."""
    if run.slower:
        run.run(Operator("aten::max_pool2d_with_indices", [Kernel(POOL, time)]))
    run.all_reduce(50_000 + (0 if run.slower else time))
    run.wait_for(20)


def in_step(run: Run, time: int) -> None:
    """Reduce without a rank that takes longer."""
    run.all_reduce(50_000)
    run.wait_for(20)


def gathers(run: Run, time: int) -> None:
    """Gather and scatter parameters before the forward pass, without prefetch."""
    run.all_reduce(time // 2, "AllGather_RING_LL")
    run.all_reduce(time - time // 2, "ReduceScatter_Sum_f16_RING_LL")
    run.wait_for(20)


def copied(
    memory: Literal["pinned", "pageable"],
    share: float,
    *,
    synchronous: bool = False,
    direction: Literal["HtoD", "DtoH"] = "HtoD",
    count: int = 1,
) -> Callable[[Run, int], None]:
    """Return copies of ``time`` in all, at a share of the link's peak."""

    def insert(run: Run, time: int) -> None:
        size = round(time / count * 1e-9 * share * run.device.link)
        for _ in range(count):
            run.copy(direction, size, share, memory=memory, synchronous=synchronous)

    return insert


def small_copies(run: Run, time: int) -> None:
    """Copy many small arrays: 16 KiB in 6 µs each."""
    size = 16_384
    for _ in range(max(1, time // 6_700)):
        run.copy("HtoD", size, size / 6e-6 / run.device.link)


def one_copy(run: Run, time: int) -> None:
    """Copy the same bytes at once."""
    run.copy("HtoD", max(1, time // 6_700) * 16_384, 0.8)


def pinned(
    share: float, *, direction: Literal["HtoD", "DtoH"] = "HtoD"
) -> Callable[[Run, int], None]:
    """Return the copy of as many bytes as pageable memory at ``share`` of the peak would be."""
    return lambda run, time: run.copy(direction, round(time * 1e-9 * share * run.device.link), 0.8)


def sets_memory(run: Run, time: int) -> None:
    """Fill the gradients with zeros."""
    for _ in range(8):
        run.memset(round(time / 8 * 1e-9 * 0.6 * run.device.bandwidth), time // 8)


def fills(run: Run, time: int) -> None:
    """Fill the gradients with zeros, by kernels."""
    name = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >()"
    for _ in range(8):
        size = round(time / 8 * 1e-9 * 0.6 * run.device.bandwidth / 4)
        run.run(Operator("aten::zero_", [Kernel(name, time // 8)], [(size,)]))


def in_fp32(run: Run, time: int) -> None:
    """Compute four products of FP32 without tensor cores."""
    for _ in range(4):
        side = round((time / 4 * 1e-9 * 0.7 * run.device.fp32 / 2) ** (1 / 3))
        kernel = Kernel(run.device.fp32_gemm, time // 4)
        run.run(Operator("aten::mm", [kernel], [(side, side), (side, side)]))


def on_tensor_cores(run: Run, time: int) -> None:
    """Compute the same products on tensor cores, at half of their peak."""
    cores = 156e12 if run.device.gpu.capability[0] > 7 else 125e12
    in_half = Kernel(run.device.gemm, round(time / 4 * 0.7 * run.device.fp32 / (0.5 * cores)))
    for _ in range(4):
        run.run(Operator("aten::mm", [in_half]))


def few_blocks(blocks: int) -> Callable[[Run, int], None]:
    """Return kernels of so many blocks."""

    def insert(run: Run, time: int) -> None:
        for _ in range(6):
            kernel = Kernel(POOL, time // 6, blocks)
            run.run(Operator("aten::max_pool2d_with_indices", [kernel]))

    return insert


POOL: Final = "void at::native::(anonymous namespace)::max_pool_forward_nchw<float, float>()"


def all_blocks(blocks: int) -> Callable[[Run, int], None]:
    """Return the same kernels on the whole device."""

    def insert(run: Run, time: int) -> None:
        filled = blocks / run.device.gpu.multiprocessors
        for _ in range(6):
            kernel = Kernel(POOL, round(time / 6 * filled))
            run.run(Operator("aten::max_pool2d_with_indices", [kernel]))

    return insert


def gemms_in_a_row(run: Run, time: int) -> None:
    """Multiply one small matrix after the other: 16 of 4 blocks."""
    with run.module("experts"):
        for _ in range(16):
            kernel = Kernel(run.device.gemm, time // 16 - 700, 4)
            run.run(Operator("aten::mm", [kernel], [(128, 256), (256, 256)]))


def gemms_at_once(run: Run, time: int) -> None:
    """Multiply the same matrices by one kernel."""
    run.run(Operator("aten::bmm", [Kernel(run.device.gemm, time // 16 - 700, 64)]))


def slow_gradient(run: Run, time: int) -> None:
    """Compute gradients of activations at 15 % of the bandwidth."""
    name = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::"
        "threshold_kernel_impl<float>(at::TensorIteratorBase&)::{lambda(float, float)#1}, "
        "at::detail::Array<char*, 3> >()"
    )
    size = run.device.size
    columns = round(time / 4 * 1e-9 * 0.15 * run.device.bandwidth / (3 * size * 64))
    for number in range(4):
        # Of different sizes, so that they do not look like a chain.
        shape = (64, columns + number)
        with run.node("ReluBackward0"):
            run.run(
                Operator("aten::threshold_backward", [Kernel(name, time // 4)], [shape, shape, ()])
            )


def fast_gradient(run: Run, time: int) -> None:
    """Compute the same gradients at the full bandwidth."""
    for _ in range(4):
        run.run(Operator("aten::threshold_backward", [Kernel("k", round(0.15 * time / 4))]))


def additions(run: Run, time: int) -> None:
    """Add large tensors at 88 % of the bandwidth."""
    name = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >()"
    )
    size = run.device.size
    columns = round(time / 4 * 1e-9 * 0.88 * run.device.bandwidth / (3 * size * 64))
    for number in range(4):
        # Of different sizes, so that they do not look like a chain.
        shape = (64, columns + number)
        run.run(Operator("aten::add", [Kernel(name, time // 4)], [shape, shape, ()]))


def chained(run: Run, time: int) -> None:
    """Compute five elementwise functions of one tensor, each by a kernel of its own."""
    name = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >()"
    )
    size = run.device.size
    shape = (64, round(time / 4 * 1e-9 * 0.6 * run.device.bandwidth / (2 * size * 64)))
    functors = (
        "CUDAFunctor_add",
        "BinaryFunctor",
        "AUnaryFunctor",
        "BUnaryFunctor",
        "CUDAFunctor_add",
    )
    for functor, operator in zip(functors, ("add", "mul", "mul", "mul", "add"), strict=True):
        kernel = Kernel(name.format(functor), time // 4)
        run.run(Operator(f"aten::{operator}", [kernel], [shape, ()]))


def fused_chain(run: Run, time: int) -> None:
    """Compute the same by one kernel."""
    run.run(Operator("aten::add", [Kernel("triton_poi_fused_add_mul_0", time // 4)]))


def autocasts(run: Run, time: int) -> None:
    """Cast the weights to 16 bits."""
    name = (
        "void at::native::unrolled_elementwise_kernel<at::native::bfloat16_copy_kernel_cuda("
        "at::TensorIteratorBase&)::{lambda(float)#1}, std::array<char*, 2ul>, 4>()"
    )
    for blocks in range(1_000, 9_000, 1_000):
        with run.inside("aten::_to_copy"):
            run.run(Operator("aten::copy_", [Kernel(name, time // 8, blocks)]))


def loops_over_parameters(run: Run, time: int) -> None:
    """Update each parameter by operators of its own, while the device waits."""
    run.at = max(run.at, run.drained())
    start = run.at
    name = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<{}> >()"
    for number in range(max(1, time // 30_000)):
        with run.inside("aten::add_"):
            kernel = Kernel(name.format("float"), 2_000 + number % 2)
            run.kernel(kernel, dispatch=20_000, call=6_000)
    run.scenario.range("Optimizer.step#SGD.step", start, run.at)


def updates_at_once(run: Run, time: int) -> None:
    """Update all parameters by one kernel."""
    start = run.at
    name = "void at::native::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata>()"
    with run.inside("aten::_fused_sgd_"):
        run.kernel(Kernel(name, max(1, time // 30_000) * 1_500))
    run.scenario.range("Optimizer.step#SGD.step", start, run.at)


def profiles(run: Run, time: int) -> None:
    """Let the profiler flush its buffers."""
    run.scenario.overhead(run.at, run.at + time)
    run.at += time


def loads_code(run: Run, time: int) -> None:
    """Launch a kernel of which the driver has to load the code."""
    run.scenario.overhead(run.at, run.at + time, text="Lazy Function Loading")
    run.at += time


def warms_up(run: Run, time: int) -> None:
    """Work on the host, as long as ten times of it, in the first step only."""
    run.at += 10 * time if run.number == 0 else 0


def transformed(run: Run, time: int) -> None:
    """Convolve small images by FFT, four times."""
    images, weight = (1, 64, 6, 6), (64, 64, 3, 3)
    names = ("void fft2d_r2c_32x32<float, false, 1u, false>()", "maxwell_cgemm_32x64_tn",
             "void fft2d_c2r_32x32<float, false, false, 0u, false, false>()")  # fmt: skip
    inputs = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
    for _ in range(4):
        kernels = [Kernel(name, time // 12) for name in names]
        run.run(Operator("aten::_convolution", kernels, [images, weight, ()], inputs))


def directly(run: Run, time: int) -> None:
    """Convolve the same images directly."""
    flops = 2 * prod((1, 64, 6, 6)) * 64 * 9
    for _ in range(4):
        run.run(Operator("aten::_convolution", [Kernel("k", run.roofline(flops, 0))]))


def gemm_layers(count: int) -> Make:
    """Return a maker of convolutions that run as GEMMs."""
    return lambda device, time: Plan(traits={"gemm_layers": count})


LOADER: Final = Cause("data_loading", at("begin", waits_for_batch))
PYTHON: Final = Cause("host_bound", at("begin", works_on_host))
ITEM: Final = Cause(
    "host_synchronization",
    at(("forward", "end"), reads_value),
    mended=at(("forward", "end"), half_ahead),
)
SYNC: Final = Cause(
    "host_synchronization", at("end", synchronizes), mended=at("end", computes_ahead)
)
MALLOC: Final = Cause("allocation", at("middle", allocates))
CODE: Final = Cause("code_loading", at("begin", loads_code))
LAUNCHES: Final = Cause("launch_bound", at("begin", tiny_kernels), mended=at("begin", in_a_graph))
REDUCE: Final = Cause("exposed_communication", at("end", all_reduces))
GATHER: Final = Cause("exposed_communication", at("begin", gathers))
STRAGGLER: Final = Cause("exposed_communication", at("end", straggles), mended=at("end", in_step))
# A copy of pageable memory blocks the host: one cause of both.
PAGEABLE: Final = Cause(
    "pageable_copies",
    at("begin", copied("pageable", 0.25)),
    frozenset({"synchronous_copies"}),
    mended=at("begin", pinned(0.25)),
)
PAGEABLE_BACK: Final = replace(
    PAGEABLE,
    make=at("end", copied("pageable", 0.2, direction="DtoH")),
    mended=at("end", pinned(0.2, direction="DtoH")),
)
# The exposed time of a blocking copy is exposed whatever the call.
BLOCKING: Final = Cause(
    "synchronous_copies",
    at("middle", copied("pinned", 0.8, synchronous=True, direction="DtoH")),
    frozenset({"exposed_copies"}),
)
SLOW_COPY: Final = Cause(
    "slow_copies", at("middle", copied("pinned", 0.12)), frozenset({"exposed_copies"}), exact=False
)
OFFLOAD: Final = Cause("exposed_copies", at("middle", copied("pinned", 0.8, count=4)))
SMALL: Final = Cause("small_copies", at("middle", small_copies), mended=at("middle", one_copy))
ZEROS: Final = Cause("zeroing", at("begin", sets_memory))
FILLS: Final = Cause("zeroing", at("begin", fills))
FP32: Final = Cause(
    "tensor_cores_unused", at("middle", in_fp32), mended=at("middle", on_tensor_cores), exact=False
)
FEW: Final = Cause(
    "small_batch", at("forward", few_blocks(12)), mended=at("forward", all_blocks(12))
)
ROW: Final = Cause(
    "batchable_gemms",
    at("forward", gemms_in_a_row),
    frozenset({"small_batch"}),
    mended=at("forward", gemms_at_once),
)
ACTIVATION: Final = Cause("unfused_bias_activation", trait("activation"))
SLOW: Final = Cause(
    "slow_bias_activation", at("backward", slow_gradient), mended=at("backward", fast_gradient)
)
SOFT: Final = Cause("unfused_attention", trait("softmax"), mended=trait("bmm"))
LAYOUT: Final = Cause("layout_changes", trait("layout"))
GRADIENT: Final = Cause("first_data_gradient", trait("input_gradient"))
TRIALS: Final = Cause("algorithm_search", trait("trials"))
GEMM_CONV: Final = Cause("fast_convolution", gemm_layers(4), exact=False)
TRANSFORM: Final = Cause(
    "costly_transforms", at("forward", transformed), mended=at("forward", directly), exact=False
)
CHAIN: Final = Cause(
    "unfused_elementwise", at("forward", chained), mended=at("forward", fused_chain)
)
CASTS: Final = Cause("casts", at("begin", autocasts))
# A host that launches too slowly leaves the same gaps.
LOOP: Final = Cause(
    "unfused_optimizer",
    at("end", loops_over_parameters),
    frozenset({"host_bound", "launch_bound", "small_batch"}),
    mended=at("end", updates_at_once),
    exact=False,
)
AT_PEAK: Final = Cause("memory_bound_at_peak", at("forward", additions), exact=False)
OVERHEAD: Final = Cause("profiler_overhead", at("begin", profiles), exact=False)
WARM_UP: Final = Cause("first_step_counted", at("begin", warms_up), exact=False)
BIG: Final = transformer(1024, 2, (8, 2048))
WIDE: Final = mlp(4096, 3)
DEEP: Final = mlp(1536, 8)
SMALL_CNN: Final = cnn((64, 64, 128), 56, 128)
FP32_CNN: Final = cnn((64, 64, 64), 28, 64)

CASES: Final = (
    # Waits of the GPU for the host.
    Case("loader-60", cnn(), LOADER, 0.6, [(PYTHON, 0.03), (REDUCE, 0.05)], pace="event", steps=6),
    Case("loader-30", BIG, LOADER, 0.3, [(OFFLOAD, 0.05), (ITEM, 0.04)], steps=3),
    Case("loader-08", mlp(), LOADER, 0.08, [(PYTHON, 0.003), (SMALL, 0.02)], steps=12),
    Case("loader-nsys", DEEP, LOADER, 0.2, [(MALLOC, 0.03), (PAGEABLE, 0.05)], file="nsys"),
    Case("python-45", transformer(), PYTHON, 0.45, [(LOADER, 0.1), (MALLOC, 0.03)], steps=8,
         pace="event"),
    Case("python-10", cnn(), PYTHON, 0.1, [(ACTIVATION, 0.03), (REDUCE, 0.04)], V100, pace="event"),
    Case("python-nsys", mlp(), PYTHON, 0.25, [(ITEM, 0.05)], file="nsys", pace="event"),
    Case("item-15", transformer(), ITEM, 0.15, [(LOADER, 0.03), (SOFT, 0.04)], steps=6),
    Case("item-40", mlp(), ITEM, 0.4, [(LOADER, 0.05), (FP32, 0.03)], pace="event", steps=4),
    Case("sync-05", BIG, SYNC, 0.05, [(SMALL, 0.01), (REDUCE, 0.02)], steps=4),
    Case("sync-30", cnn(), SYNC, 0.3, [(LOADER, 0.1), (LAYOUT, 0.05)], V100, steps=10),
    Case("sync-nsys", WIDE, SYNC, 0.12, [(MALLOC, 0.02)], file="nsys", pace="event"),
    Case("malloc-25", cnn(), MALLOC, 0.25, [(SYNC, 0.05), (LOADER, 0.05)], steps=7),
    Case("malloc-05", BIG, MALLOC, 0.05, [(PYTHON, 0.015)], pace="event", steps=3),
    Case("malloc-nsys", transformer(), MALLOC, 0.1, [(REDUCE, 0.03)], V100, file="nsys"),
    Case("code-20", cnn(), CODE, 0.2, [(LOADER, 0.05), (ITEM, 0.03)], steps=6),
    Case("code-08", transformer(), CODE, 0.08, [(REDUCE, 0.02)], V100, steps=4),
    Case("code-nsys", WIDE, CODE, 0.15, [(MALLOC, 0.03)], file="nsys"),
    Case("launches-40", transformer(512, 2, (8, 512)), LAUNCHES, 0.4, [(LOADER, 0.04)], steps=4),
    Case("launches-25", cnn(), LAUNCHES, 0.25, [(REDUCE, 0.03)], steps=4),
    Case("launches-55", mlp(1024), LAUNCHES, 0.55, [(LOADER, 0.05), (SMALL, 0.04)], steps=6),
    # Communication.
    Case("reduce-35", transformer(), REDUCE, 0.35, [(LOADER, 0.1), (PAGEABLE, 0.05)], reduced=True),
    Case("reduce-04", BIG, REDUCE, 0.04, [(PYTHON, 0.015)], pace="event", reduced=True),
    Case("gather-20", mlp(), GATHER, 0.2, [(ITEM, 0.03), (FP32, 0.04)], steps=8),
    Case("reduce-nsys", cnn(), REDUCE, 0.15, [(LOADER, 0.05)], V100, file="nsys"),
    Case("reduce-devices", WIDE, REDUCE, 0.2, [(LOADER, 0.03)], devices=2),
    Case("straggler-30", transformer(), STRAGGLER, 0.3, [(LOADER, 0.03)], file="ranks"),
    Case("straggler-10", cnn(), STRAGGLER, 0.1, [(ACTIVATION, 0.02)], file="ranks"),
    Case("processes-loader", transformer(), LOADER, 0.25, [(REDUCE, 0.03)], devices=2,
         file="processes"),
    Case("processes-straggler", mlp(), STRAGGLER, 0.2, [(LOADER, 0.03)], devices=2,
         file="processes"),
    # Copies.
    Case("pageable-40", cnn(), PAGEABLE, 0.4, [(LOADER, 0.1), (REDUCE, 0.05)], steps=6),
    Case("pageable-06", BIG, PAGEABLE, 0.06, [(PYTHON, 0.015), (SMALL, 0.004)], steps=3,
         pace="event"),
    Case("pageable-back", mlp(), PAGEABLE_BACK, 0.25, [(ITEM, 0.05)], V100),
    Case("pageable-nsys", transformer(), PAGEABLE, 0.15, [(MALLOC, 0.03)], file="nsys"),
    Case("blocking-30", transformer(), BLOCKING, 0.3, [(LOADER, 0.05)], steps=6),
    Case("blocking-08", WIDE, BLOCKING, 0.08, [(PYTHON, 0.02)], V100, file="nsys", pace="event"),
    Case("slow-copy-35", cnn(), SLOW_COPY, 0.35, [(LOADER, 0.06)], V100),
    Case("slow-copy-10", transformer(), SLOW_COPY, 0.1, [(REDUCE, 0.02)], pace="event"),
    Case("offload-30", BIG, OFFLOAD, 0.3, [(LOADER, 0.05), (SMALL, 0.03)], steps=3),
    Case("offload-12", mlp(), OFFLOAD, 0.12, [(FP32, 0.03)], V100, file="nsys"),
    Case("small-copies-25", cnn(), SMALL, 0.25, [(OFFLOAD, 0.05), (LOADER, 0.05)], steps=4),
    Case("small-copies-08", transformer(), SMALL, 0.08, [(ITEM, 0.02)], steps=4),
    Case("zeros-12", mlp(), ZEROS, 0.12, [(LOADER, 0.04)], steps=6),
    Case("fills-08", transformer(), FILLS, 0.08, [(SMALL, 0.02)], pace="event", steps=8),
    # Kernels.
    Case("fp32-60", mlp(), FP32, 0.6, [(LOADER, 0.1), (REDUCE, 0.05)], steps=5),
    Case("fp32-20", transformer(), FP32, 0.2, [(REDUCE, 0.04)], V100, pace="event"),
    Case("fp32-nsys", WIDE, FP32, 0.3, [(MALLOC, 0.04)], file="nsys"),
    Case("few-blocks-40", cnn(), FEW, 0.4, [(LOADER, 0.08)], steps=5),
    Case("few-blocks-15", transformer(), FEW, 0.15, [(PAGEABLE, 0.03)], V100, pace="event"),
    Case("gemm-row-35", transformer(), ROW, 0.35, [(LOADER, 0.05)], steps=5),
    Case("gemm-row-12", WIDE, ROW, 0.12, [(REDUCE, 0.03)], pace="event", steps=8),
    Case("activation-20", mlp(), ACTIVATION, 0.2, [(LOADER, 0.05), (ITEM, 0.02)]),
    Case("activation-04", BIG, ACTIVATION, 0.04, [(PYTHON, 0.004)], pace="event", steps=3),
    Case("activation-cnn", cnn(), ACTIVATION, 0.12, [(LAYOUT, 0.03)], V100),
    Case("slow-activation-30", mlp(), SLOW, 0.3, [(LOADER, 0.08)], steps=4),
    Case("slow-activation-10", cnn(), SLOW, 0.1, [(REDUCE, 0.02)], V100, pace="event"),
    Case("attention-30", transformer(), SOFT, 0.3, [(LOADER, 0.05), (FP32, 0.04)]),
    Case("attention-10", BIG, SOFT, 0.1, [(REDUCE, 0.03)], V100, pace="event", steps=3),
    Case("layout-30", cnn(), LAYOUT, 0.3, [(LOADER, 0.05), (ACTIVATION, 0.05)]),
    Case("layout-07", SMALL_CNN, LAYOUT, 0.07, [(REDUCE, 0.02)], V100, pace="event"),
    Case("input-gradient-20", cnn(), GRADIENT, 0.2, [(ACTIVATION, 0.05), (LOADER, 0.05)]),
    Case("input-gradient-05", cnn(), GRADIENT, 0.05, [(REDUCE, 0.02)], V100, pace="event"),
    Case("search-30", FP32_CNN, TRIALS, 0.3, [(LOADER, 0.06)], P100, steps=4),
    Case("search-60", FP32_CNN, TRIALS, 0.6, [(REDUCE, 0.05)], P100, pace="event", steps=6),
    Case("gemm-conv", FP32_CNN, GEMM_CONV, 0.2, [(LOADER, 0.03)], P100),
    Case("gemm-conv-wide", cnn((64, 128), 28, 32), GEMM_CONV, 0.2, [(REDUCE, 0.03)], P100,
         pace="event"),
    Case("fft-20", FP32_CNN, TRANSFORM, 0.2, [(LOADER, 0.03)], P100),
    Case("fft-50", FP32_CNN, TRANSFORM, 0.5, [(ACTIVATION, 0.05)], P100, pace="event"),
    Case("chain-30", transformer(), CHAIN, 0.3, [(LOADER, 0.05)]),
    Case("chain-10", mlp(), CHAIN, 0.1, [(REDUCE, 0.02)], V100, pace="event"),
    Case("casts-20", transformer(), CASTS, 0.2, [(LOADER, 0.05)]),
    Case("casts-08", WIDE, CASTS, 0.08, [(REDUCE, 0.02)], V100, pace="event"),
    Case("optimizer-20", transformer(), LOOP, 0.2, [(REDUCE, 0.02)]),
    Case("optimizer-10", mlp(), LOOP, 0.1, [(SMALL, 0.02)], V100, pace="event", steps=8),
    # Findings without a saving: decoys are too small to be found.
    Case("at-peak-40", mlp(), AT_PEAK, 0.4, [(PYTHON, 0.003)]),
    Case("at-peak-15", transformer(), AT_PEAK, 0.15, [(REDUCE, 0.003)], V100, pace="event"),
    Case("profiler-25", BIG, OVERHEAD, 0.25, [(PYTHON, 0.003)], steps=3),
    Case("profiler-nsys", WIDE, OVERHEAD, 0.1, [(MALLOC, 0.003)], file="nsys"),
    Case("warm-up-kineto", mlp(), WARM_UP, 0.3, [(SMALL, 0.003)], steps=5),
    Case("warm-up-nsys", WIDE, WARM_UP, 0.4, [(PYTHON, 0.002)], file="nsys", steps=8),
    # Healthy runs.
    Case("healthy-cnn", cnn(), steps=6),
    Case("healthy-cnn-nsys", cnn(), device=V100, file="nsys", pace="event"),
    Case("healthy-transformer", BIG, decoys=[(PYTHON, 0.004), (SMALL, 0.003)], steps=4),
    Case("healthy-transformer-v100", transformer(), device=V100, pace="event", reduced=True),
    Case("healthy-mlp", WIDE, decoys=[(LOADER, 0.004), (MALLOC, 0.003)], steps=20),
    Case("healthy-mlp-devices", WIDE, devices=2, pace="event", reduced=True),
    Case("healthy-fp32-p100", FP32_CNN, device=P100, pace="event", decoys=[(REDUCE, 0.004)]),
    Case("healthy-ranks", transformer(), file="ranks", reduced=True, pace="event"),
    Case("healthy-processes", WIDE, devices=2, file="processes", pace="event", reduced=True),
    Case("healthy-inference", BIG, training=False, pace="event", decoys=[(FP32, 0.004)]),
    Case("healthy-decoys", BIG, pace="event", steps=4,
         decoys=[(LOADER, 0.004), (ACTIVATION, 0.004), (OFFLOAD, 0.004), (FEW, 0.004),
                 (SYNC, 0.003)]),
)  # fmt: skip


class Score(msgspec.Struct, frozen=True):
    """What ``advise`` found in the run of a case: rules and savings (ns per step), in its order.

    ``loss_ns`` is the planted loss, ``step_ns`` the step with it. ``page`` has the finding of
    the cause with its evidence, and is None in a healthy run.
    """

    found: tuple[tuple[str, int], ...]
    loss_ns: int
    step_ns: int
    page: Page | None


@cache
def score(case: Case) -> Score:
    """Return what ``advise`` finds in the file of a case."""
    run = case.run()
    with TemporaryDirectory() as name:
        folder = Path(name)
        if case.file == "ranks":
            for rank in range(3):
                slower = case.run(slower=rank == 1)
                write_kineto(slower.scenario, folder / f"rank{rank}.json")
            trace = traceana.open(folder)
        elif case.file == "processes":
            first, second = (
                case.run(slower=process == 1, process=process).scenario for process in range(2)
            )
            trace = traceana.open(write_nsys(first, folder / "run.sqlite", second))
        else:
            trace = {"kineto": kineto, "nsys": nsys}[case.file](run.scenario, folder)
        advice = advise(trace)
        found = tuple((one.rule.id, one.saving_ns) for one in advice.findings)
        page = None
        if case.cause is not None:
            page = advised(trace, advice, rule=case.cause.rule).page()
    loss = case.loss() if case.cause is not None else 0
    return Score(found, loss, round(step_time(run)), page)

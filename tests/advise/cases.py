"""For each rule a trace in which it holds, and traces in which it must not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.advise.building import MICROSECOND, STEPS, WALL, Run, run_of
from tests.support.synthetic import Scenario, nsys
from traceana.enrich.refine.searches import with_searches
from traceana.trace import Trace

Build = Callable[[Path], Trace]


def filled(put: Callable[[Run], object], **device: Any) -> Build:
    return lambda folder: run_of(put, **device)


def conv(*algorithms: str, **reported: Any) -> Build:
    return filled(lambda run: run.convolution(*algorithms, **reported))


def gradients(dgrad: int, wgrad: int) -> Build:
    """Return gradients of the first convolution, for the input and for the weight."""

    def put(run: Run) -> None:
        for direction in ("dgrad",) * dgrad + ("wgrad",) * wgrad:
            run.convolution("implicit_gemm", images=(32, 3, 224), stride=2, direction=direction)

    return filled(put)


def kernels(*named: tuple[str, dict[str, Any]], duration: int = 500_000, **columns: Any) -> Build:
    def put(run: Run) -> None:
        for name, classes in named:
            run.name(name, **classes)
            run.put(name, duration, **columns)

    return filled(put)


def layout_alone(run: Run) -> None:
    run.name("permute", category="layout", function="transpose")
    run.put("permute", 500_000)


def relu_of(microseconds: int) -> Build:
    """Return a ReLU of 4 MiB: 9 µs at a V100's bandwidth."""

    def put(run: Run) -> None:
        run.name("relu", category="activation", function="relu")
        for _ in range(3):
            op = run.op("aten::relu", "[[1024,1024]]", '["float"]')
            run.put("relu", microseconds * MICROSECOND, op=op)

    return filled(put)


def added(microseconds: int) -> Build:
    """Return sums of 256 MiB and more, 894 µs at a V100's bandwidth."""

    def put(run: Run) -> None:
        op = run.op("aten::add", "[[8192,8192],[8192,8192],[]]", '["float","float","Scalar"]')
        run.put("plain", microseconds * MICROSECOND, op=op)

    return filled(put)


def products_in_a_row(between: bool) -> Build:
    def put(run: Run) -> None:
        run.name("sgemm", category="gemm", precision="fp32", batched=False, tensor_core=True)
        for _ in range(8):
            run.put("sgemm", 50 * MICROSECOND, grid_x=10)
            if between:
                run.put("plain", MICROSECOND)

    return filled(put)


def beside_winograd(folder: Path) -> Trace:
    """Return convolutions by GEMM and by Winograd on a GPU that needs cuDNN 8 or later."""

    def put(run: Run) -> None:
        run.convolution("implicit_gemm")
        run.convolution("winograd_nonfused")

    return run_of(put, compute_capability="9.0")  # type: ignore[no-any-return]


def volume(run: Run) -> None:
    """Put in a convolution of volumes, which cuDNN has neither Winograd nor FFT for."""
    op = run.op(
        "aten::conv3d", "[[4,64,8,56,56],[64,64,3,3,3],[],[],[],[]]",
        inputs='["","","","[1, 1, 1]","[1, 1, 1]","[1, 1, 1]","1"]',
    )  # fmt: skip
    episode = run.row("episodes", op=op, algorithm="implicit_gemm", direction="fprop")
    run.name("volume", category="conv", algorithm="implicit_gemm", direction="fprop",
             precision="fp32", tensor_core=False)  # fmt: skip
    run.put("volume", 700_000, op=op, episode=episode)


def searched_before(folder: Path) -> Trace:
    """Return costly transforms that the library chose by a search in the first step."""
    run = Run()
    for number in range(STEPS):
        run.next_step()
        if number == 0:
            run.convolution("winograd_nonfused", "fft", "implicit_gemm", duration=1_000)
        run.convolution("fft", images=(1, 64, 6), duration=500_000)
    return with_searches(run.build())


def attention(batched: bool, softmax: str = "softmax") -> Build:
    gemm = {"category": "gemm", "precision": "fp16", "batched": batched, "tensor_core": True}
    return kernels(("scores", gemm), (softmax, {"category": "softmax"}))


def chain(
    *kernels: str,
    shapes: tuple[str, ...] = ("[[512,512]]",),
    between: str | None = None,
    **more: Any,
) -> Build:
    """Return elementwise kernels of 300 µs in a row, ``between`` them another kernel."""

    def put(run: Run) -> None:
        run.name("triton_poi_fused_add_0", category="elementwise")
        run.name("sgemm", category="gemm", precision="fp16", tensor_core=True)
        for number, name in enumerate(kernels):
            op = run.op(f"aten::{name}", shapes[number % len(shapes)], '["float"]')
            if not name.startswith("triton"):
                run.name(name, category="elementwise", function=name)
            run.put(name, 300_000, op=op, **more)
            if between:
                run.put(between, 50_000)

    return filled(put)


def cast(result: str, source: str) -> Build:
    """Return a copy of 300 µs to one type from another."""

    def put(run: Run) -> None:
        run.name("cast", category="elementwise", function="copy")
        shapes, types = "[[512,512],[512,512],[]]", f'["{result}", "{source}", "Scalar"]'
        run.put("cast", 300_000, op=run.op("aten::copy_", shapes, types))

    return filled(put)


def loss_beside_attention(run: Run) -> None:
    """Put in a log-softmax, whose kernel has the same name as a softmax's, beside a product."""
    run.name("scores", category="gemm", precision="fp16", batched=True, tensor_core=True)
    run.name("softmax", category="softmax")
    run.put("scores", 500_000)
    run.put("softmax", 500_000, op=run.op("aten::_log_softmax", "[[700,33278],[],[]]"))


def sgemm(tensor_core: bool, **device: Any) -> Build:
    def put(run: Run) -> None:
        run.name("gemm", category="gemm", precision="fp32", tensor_core=tensor_core)
        run.put("gemm", 500_000)

    return filled(put, **device)


def updates(name: str, direction: str = "optimizer") -> Build:
    """Return kernels of an optimizer: a quarter of 1.2 ms is more than 1 % of the step."""

    def put(run: Run) -> None:
        run.name(name, category="optimizer")
        for _ in range(4):
            run.put(name, 300_000, direction=direction)

    return filled(put)


def gemv(run: Run) -> None:
    """Put in a product of a matrix and a vector: 410 MB are 263 µs at an A100's bandwidth."""
    run.name("gemv", category="gemm", precision="fp32", tensor_core=False)
    run.put("gemv", 270_000, op=run.op("aten::mv", "[[100000,1024],[1024]]"))


def copies(
    count: int, size: int, duration: int, memory: str, *, large: bool = False, hidden: bool = False
) -> Build:
    def put(run: Run) -> None:
        begin = run.at
        for _ in range(count):
            run.put_copy("HtoD", duration, bytes=size, source_memory=memory)
        if hidden:
            run.kernel_in_step("plain", begin, run.at - begin, stream=9)
        if large:
            run.put_copy("HtoD", 200_000, bytes=2_000_000, source_memory="pinned")

    return filled(put)


def many_beside_a_hidden_one(folder: Path) -> Trace:
    """Return 30 small copies a step, and one of 100 MB beside the kernels."""

    def put(run: Run) -> None:
        begin = run.at - 4_000_000
        run.copy(
            "HtoD", begin, 4_000_000, bytes=100_000_000, source_memory="pinned", step=run.step_row
        )
        for _ in range(30):
            run.put_copy("HtoD", 10_000, bytes=1_000, source_memory="pinned")

    return run_of(put)  # type: ignore[no-any-return]


def walls(*times: int) -> Build:
    def build(folder: Path) -> Trace:
        run = Run()
        for wall in times:
            run.next_step(wall)
        return run.build()

    return build


def scenario(describe: Callable[[Scenario], object]) -> Build:
    def build(folder: Path) -> Trace:
        run = Scenario()
        describe(run)
        return nsys(run, folder)

    return build


def gap(meanwhile: Callable[[Scenario], object] | None, length: int = 50_000) -> Build:
    """Return two kernels of 100 µs and a gap, in which the host does something."""

    def describe(run: Scenario) -> None:
        run.launch(at=0, begins=1_000, duration=100_000)
        if meanwhile is not None:
            meanwhile(run)
        at = 101_000 + length
        run.launch(at=at, begins=at + 200, duration=100_000)

    return scenario(describe)


def queued(run: Scenario) -> None:
    for number in range(10):
        run.launch(at=1_000 * number, begins=100_000 * (number + 1), duration=100_000)


def dispatched(duration: int) -> Build:
    """Return operators of 20 µs whose call of 5 µs launches a kernel each."""

    def describe(run: Scenario) -> None:
        end = 0
        for number in range(20):
            at = 20_000 * number
            run.operator("aten::add", at, at + 19_000)
            end = max(at + 15_500, end)
            run.launch(at=at + 10_000, begins=end, duration=duration, call=5_000)
            end += duration

    return scenario(describe)


def collective(hidden: bool) -> Build:
    def describe(run: Scenario) -> None:
        run.launch(at=0, begins=1_000, duration=100_000 + 50_000 * hidden)
        run.collective(20, at=500, begins=101_000, duration=50_000)

    return scenario(describe)


def copied(synchronous: bool) -> Build:
    def describe(run: Scenario) -> None:
        run.launch(at=0, begins=1_000, duration=100_000)
        begins = 101_000 if synchronous else 50_000
        run.copy(
            "DtoH", 4_096, at=900, begins=begins, duration=20_000, stream=9, memory="pinned",
            synchronous=synchronous,
        )  # fmt: skip
        run.launch(at=130_000, begins=130_500, duration=100_000)

    return scenario(describe)


CASES: Final[dict[str, tuple[Build, tuple[Build, ...]]]] = {
    "fast_convolution": (
        conv("implicit_gemm"),
        (
            conv("implicit_gemm", stride=2),
            conv("implicit_gemm", filters=(64, 1)),
            conv("implicit_gemm", tensor_core=True),
            conv("winograd_nonfused"),
            conv("winograd_nonfused", "fft", "implicit_gemm", duration=200_000),
            beside_winograd,
            filled(volume),
        ),
    ),
    "costly_transforms": (
        conv("fft", images=(1, 64, 6), duration=500_000),
        (
            conv("winograd"),
            conv("implicit_gemm", images=(1, 64, 6)),
            searched_before,
        ),
    ),
    "layout_changes": (
        conv("implicit_gemm", layout=300_000, tensor_core=True),
        (
            filled(layout_alone),
            # In FP32 without tensor cores a convolution is slower in NHWC.
            conv("implicit_gemm", layout=300_000),
        ),
    ),
    "first_data_gradient": (
        gradients(1, 1),
        (
            gradients(0, 1),
            # Of an image that is optimized, and of a gradient penalty.
            gradients(1, 0),
            gradients(2, 1),
            conv("implicit_gemm", images=(32, 64, 56), stride=2, direction="dgrad"),
        ),
    ),
    "unfused_bias_activation": (
        kernels(
            ("gemm", {"category": "gemm"}), ("bias", {"category": "bias"}), direction="forward"
        ),
        (
            kernels(
                ("gemm", {"category": "gemm"}), ("bias", {"category": "bias"}), direction="backward"
            ),
            kernels(("relu", {"category": "activation"})),
        ),
    ),
    "slow_bias_activation": (relu_of(100), (relu_of(12), relu_of(1))),
    "unfused_attention": (
        attention(True, "softmax_warp_forward<float, float, float, (int)6, (bool)0, (bool)1>"),
        (
            attention(False),
            attention(True, "cunn_SoftMaxForward<2, float, float, LogSoftMaxForwardEpilogue>"),
            attention(True, "softmax_warp_forward<float, float, float, 10, true, false>"),
            attention(True, "softmax_warp_forward<float, float, float, (int)6, (bool)1, (bool)0>"),
            filled(loss_beside_attention),
        ),
    ),
    "unfused_elementwise": (
        chain("mul", "add", "copy"),
        (
            chain("mul"),
            chain("mul", "add", "copy", between="sgemm"),
            chain("mul", "add", shapes=("[[512,512]]", "[[512]]")),
            chain("mul", "add", direction="optimizer"),
            chain("fill", "add"),
            chain("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
            # Without shapes these may be of a loop over other tensors.
            kernels(*[("axpy", {"category": "elementwise"})] * 4, grid_x=500),
        ),
    ),
    "casts": (
        cast("c10::BFloat16", "float"),
        (cast("float", "float"), cast("c10::BFloat16", "c10::BFloat16"), cast("int", "float")),
    ),
    "unfused_optimizer": (
        updates("multi_tensor_apply_kernel<BinaryOpListAlphaFunctor>"),
        (updates("multi_tensor_apply_kernel<FusedAdamMathFunctor>"), updates("mul", "backward")),
    ),
    "batchable_gemms": (products_in_a_row(False), (products_in_a_row(True),)),
    "tensor_cores_unused": (
        sgemm(False),
        (
            sgemm(True),
            sgemm(False, name="Tesla P100-SXM2-16GB", compute_capability="6.0"),
            filled(
                gemv, name="NVIDIA A100-SXM4-40GB", compute_capability="8.0", multiprocessors=108
            ),
        ),
    ),
    "small_batch": (
        kernels(("k", {"category": "pooling"}), duration=1_000_000, grid_x=4),
        (
            kernels(("k", {"category": "pooling"}), duration=1_000_000, grid_x=80),
            kernels(("k", {"category": "collective"}), duration=1_000_000, grid_x=4),
        ),
    ),
    "algorithm_search": (
        conv("fft", "winograd_nonfused", "implicit_gemm", duration=300_000),
        (conv("fft", duration=300_000), conv("gemm", "implicit_gemm", duration=300_000)),
    ),
    "small_copies": (
        copies(100, 1_000, 10_000, "pinned", large=True),
        (
            copies(20, 1_000, 10_000, "pinned", large=True),
            copies(20, 1_000_000, 80_000, "pinned"),
        ),
    ),
    "pageable_copies": (
        copies(1, 4_000_000, 1_000_000, "pageable"),
        (
            copies(1, 4_000_000, 1_000_000, "pinned"),
            copies(1, 4_000_000, 1_000_000, "pageable", hidden=True),
        ),
    ),
    "synchronous_copies": (copied(True), (copied(False),)),
    "slow_copies": (
        copies(1, 4_000_000, 1_000_000, "pinned"),
        (copies(1, 4_000_000, 300_000, "pinned"), copies(1, 4_000_000, 1_000_000, "pageable")),
    ),
    "exposed_copies": (
        copies(1, 4_000_000, 300_000, "pinned"),
        (
            copies(1, 4_000_000, 300_000, "pinned", hidden=True),
            copies(1, 4_000_000, 300_000, "pageable"),
            copies(100, 1_000, 10_000, "pinned"),
            copies(1, 4_000_000, 10_000, "pinned"),
            copies(1, 4_000_000, 1_000_000, "pinned"),
            many_beside_a_hidden_one,
        ),
    ),
    "data_loading": (
        gap(lambda run: run.data_loader(100_000, 150_000)),
        (gap(None), gap(lambda run: run.range("validate", 100_000, 150_000))),
    ),
    "host_bound": (
        gap(None),
        (scenario(queued), gap(lambda run: run.data_loader(100_000, 150_900))),
    ),
    "launch_bound": (dispatched(1_000), (dispatched(19_800), dispatched(6_000))),
    "host_synchronization": (gap(lambda run: run.sync(500, 150_000)), (gap(None),)),
    "allocation": (gap(lambda run: run.malloc(102_000, 150_000)), (gap(None),)),
    "code_loading": (
        gap(lambda run: run.overhead(102_000, 150_000, text="Lazy Function Loading")),
        (gap(None), gap(lambda run: run.overhead(102_000, 150_000))),
    ),
    "exposed_communication": (collective(False), (collective(True),)),
    "profiler_overhead": (gap(lambda run: run.overhead(102_000, 150_000)), (gap(None),)),
    "first_step_counted": (
        walls(3 * WALL, WALL, WALL, WALL),
        (
            walls(WALL, WALL, WALL, WALL),
            walls(WALL),
            # Steps after the first are as slow as it.
            walls(9 * WALL, WALL, 10 * WALL),
            walls(10 * WALL, WALL, 9 * WALL),
        ),
    ),
    "zeroing": (
        kernels(("fill", {"category": "elementwise", "function": "fill"})),
        (
            kernels(("add", {"category": "elementwise", "function": "add"})),
            kernels(("fill", {"category": "elementwise", "function": "fill"}), duration=90_000),
        ),
    ),
    "memory_bound_at_peak": (added(1_000), (added(1_900),)),
}

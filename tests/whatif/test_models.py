"""Scenarios that give each piece of work a factor of its own, where the answer is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.support.manifest import TRACES
from tests.support.opened import opened
from tests.support.traces import TraceBuilder
from traceana import Trace
from traceana.errors import NoSuchSelectionError, UsageError
from traceana.flops.timed_algorithms import AlgorithmStudy, Device, Layer, Measurement
from traceana.settings import BATCH_SPREAD, FIXED_NS, TENSOR_CORE_GEMMS
from traceana.whatif.scenario import NAMED, Change, Scenario, scenario
from traceana.whatif.whatif import BoundScenario, Model

V100: dict[str, Any] = {
    "device": 0,
    "name": "Tesla V100-SXM2-16GB",
    "vendor": "NVIDIA",
    "compute_capability": "7.0",
    "multiprocessors": 80,
}


def predicted(trace: Trace, text: str) -> tuple[int, int, int]:
    frame = trace.whatif(text).frame
    return frame.select("predicted_ns", "low_ns", "high_ns").row(0)


def factors(trace: Trace, text: str) -> tuple[list[float], list[float]]:
    """Return the ends of the factors of all activities, in order."""
    model = Model.of(trace)
    selection = BoundScenario.of(model, text).selections[0][0]
    assert selection.factors is not None
    (graph,) = model.processes
    rows = np.argsort(graph.activity)[-trace.tables.activities.height :]
    least, most = (end[rows].tolist() for end in selection.factors)
    return least, most


def one_kernel(
    shape: tuple[int, int, int], time: int, device: dict[str, Any] = V100, **of_name: Any
) -> Trace:
    """Return a step of a matrix product (m, k, n) of ``time`` ns and a kernel of 1,000."""
    m, k, n = shape
    b = TraceBuilder(framework="PyTorch")
    b.row("devices", **device)
    b.name("sgemm", category="gemm", **{"precision": "fp32", "tensor_core": False, **of_name})
    b.name("add", category="elementwise")
    shapes = f"[[{m}, {k}], [{k}, {n}]]"
    op = b.row("ops", name="aten::mm", start=0, duration=90, depth=0,
               input_shapes=shapes, input_types='["float", "float"]')  # fmt: skip
    s = b.step(1, 0, 100)
    b.kernel("sgemm", 0, time, op=op, step=s)
    b.kernel("add", time, 1_000, step=s)
    return b.build()


def test_tensor_cores_by_the_peaks() -> None:
    # A V100 has 15.7 TFLOP/s in FP32 and 125 on tensor cores; memory needs far less.
    trace = one_kernel((4096, 4096, 4096), 10_000_000)
    (least, _), (most, _) = factors(trace, "tensor-cores")
    assert least == pytest.approx(TENSOR_CORE_GEMMS[0] * 15.7 / 125)
    assert most == pytest.approx(TENSOR_CORE_GEMMS[1] * 15.7 / 125)
    middle = round(10_000_000 * (least + most) / 2)
    assert predicted(trace, "tensor-cores")[0] == pytest.approx(middle + 1_000, abs=1)


def test_tensor_cores_move_as_many_bytes() -> None:
    # 3 x 4 MiB of floats, half of them left, at 900 GB/s.
    trace = one_kernel((1024, 1024, 1024), 8_000)
    (least, _), _ = factors(trace, "tensor-cores")
    assert least == pytest.approx(3 * 1024 * 1024 * 2 / 900e9 * 1e9 / 8_000)


@pytest.mark.parametrize(("size", "like"), [(4096, True), (6_600, False), (2_500, False)])
def test_tensor_cores_as_fast_as_those_at_like_shapes(size: int, like: bool) -> None:
    """Four times the FLOPs, or a fourth, are another shape."""
    b = TraceBuilder(framework="PyTorch")
    b.row("devices", **V100)
    b.name("sgemm", category="gemm", precision="fp32", tensor_core=False)
    b.name("hgemm", category="gemm", precision="fp16", tensor_core=True)
    s = b.step(1, 0, 200_000_000)
    flops = 2 * size**3
    # Six products at half of the tensor cores' peak.
    times = [10_000_000, *[round(flops / (0.5 * 125e12) * 1e9)] * 6]
    at = 0
    for number, time in enumerate(times):
        dtype = "float" if number == 0 else "c10::Half"
        sides = "4096, 4096" if number == 0 else f"{size}, {size}"
        op = b.row("ops", name="aten::mm", start=number * 10, duration=5, depth=0,
                   input_shapes=f"[[{sides}], [{sides}]]",
                   input_types=f'["{dtype}", "{dtype}"]')  # fmt: skip
        b.kernel("sgemm" if number == 0 else "hgemm", at, time, op=op, step=s)
        at += time
    least, most = factors(b.build(), "tensor-cores")
    expected = [times[1] / times[0]] * 2 if like else [by * 15.7 / 125 for by in TENSOR_CORE_GEMMS]
    assert [least[0], most[0]] == pytest.approx(expected, rel=1e-6)
    assert least[1:] == most[1:] == [1.0] * 6


def test_another_gpu_by_the_bound_of_each_kernel() -> None:
    flops = 2 * 4096**3
    attainable = flops / 15.7e12 * 1e9
    trace = one_kernel((4096, 4096, 4096), round(2 * attainable))
    least, most = factors(trace, "gpu:A100-SXM4-40GB")
    # Half of the time is explained by arithmetic; the rest may be latency.
    assert least[0] == pytest.approx(15.7 / 19.5, rel=1e-6)
    assert most[0] == pytest.approx(0.5 * 15.7 / 19.5 + 0.5, rel=1e-6)
    # Elementwise work goes with the memory: 900 to 1,555 GB/s.
    assert least[1] == most[1] == pytest.approx(900 / 1555, rel=1e-6)


def test_kernels_of_a_fused_optimizer_take_the_time_of_their_bytes() -> None:
    """Four million floats, two operands and a result, at 900 GB/s; other kernels unchanged."""
    b = TraceBuilder(framework="PyTorch")
    b.row("devices", **V100)
    b.name("add", category="elementwise")
    b.name("multi_tensor_apply", category="elementwise")
    b.name("multi_tensor_apply<FusedSgd>", category="elementwise")
    s = b.step(1, 0, 1_000_000)
    op = b.row("ops", name="aten::add_", start=0, duration=90, depth=0,
               input_shapes="[[4000000], [4000000]]", input_types='["float", "float"]')  # fmt: skip
    b.kernel("add", 0, 100_000, op=op, step=s, direction="optimizer")
    b.kernel("multi_tensor_apply", 100_000, 9_000, step=s, direction="optimizer")
    b.kernel("multi_tensor_apply<FusedSgd>", 200_000, 9_000, step=s, direction="optimizer")
    b.kernel("add", 300_000, 9_000, step=s, direction="forward")
    least, most = factors(b.build(), "fused-optimizer")
    moving = 3 * 4 * 4e6 / 900e9 * 1e9 / 100_000
    assert most == pytest.approx([moving, 1, 1, 1])
    assert least == pytest.approx([moving / 2, 0.5, 1, 1])


def test_copies_of_pinned_memory_are_as_fast_as_others() -> None:
    b = TraceBuilder()
    s = b.step(1, 0, 5_000_000)
    size = 10 << 20
    for at, (memory, time) in enumerate(
        [("pageable", 2_000_000), ("pinned", 1_000_000), ("pinned", 1_000_000)]
    ):
        b.copy("HtoD", at * 2_000_000, time, bytes=size, source_memory=memory, step=s)
    assert factors(b.build(), "pinned") == ([0.5, 1.0, 1.0], [0.5, 1.0, 1.0])


def test_copies_beside_the_step_bound_it() -> None:
    def trace(copy: int, kernel: int) -> Trace:
        b = TraceBuilder()
        b.name("add", category="elementwise")
        s = b.step(1, 0, copy + kernel)
        b.copy("HtoD", 0, copy, bytes=1 << 20, source_memory="pinned", step=s)
        b.kernel("add", copy, kernel, step=s)
        return b.build()

    assert predicted(trace(3_000, 7_000), "overlapped-copies")[0] == 7_000
    assert predicted(trace(7_000, 3_000), "overlapped-copies")[0] == 7_000


def test_copies_of_two_devices_run_beside_each_other() -> None:
    b = TraceBuilder()
    b.name("add", category="elementwise")
    s = b.step(1, 0, 10_000)
    for device in (0, 1):
        b.copy("HtoD", 0, 7_000, bytes=1 << 20, source_memory="pinned", step=s, device=device)
        b.kernel("add", 7_000, 3_000, step=s, device=device)
    # Two streams of one device share its link.
    b.copy("HtoD", 1_000, 7_000, bytes=1 << 20, source_memory="pinned", step=s, stream=9)
    assert predicted(b.build(), "overlapped-copies")[0] == 8_000


@pytest.mark.parametrize(("blocks", "fits"), [(80, True), (160, False), (640, False)])
def test_a_batch_fills_the_device_before_a_product_takes_longer(blocks: int, fits: bool) -> None:
    b = TraceBuilder()
    b.row("devices", **V100)
    b.name("gemm", category="gemm")
    b.name("add", category="elementwise")
    b.name("adam", category="optimizer")
    s = b.step(1, 0, 2_000)
    # 80 multiprocessors hold 160 blocks of 512 threads with 64 registers each.
    grid = {"grid_x": blocks, "grid_y": 1, "grid_z": 1, "registers": 64}
    block = {"block_x": 512, "block_y": 1, "block_z": 1}
    time = 10 * FIXED_NS
    for at, (name, direction) in enumerate(
        (("gemm", "forward"), ("add", "forward"), ("adam", "optimizer"))
    ):
        b.kernel(name, at * time, time, step=s, direction=direction, **grid, **block)
    # Nine tenths of a kernel's time go with the batch.
    by_work, spread = 1.9, 0.9 * BATCH_SPREAD
    least, most = factors(b.build(), "batch:2")
    assert least == pytest.approx([1.0 if fits else by_work - spread, by_work - spread, 1.0])
    assert most == pytest.approx([2.0 if not fits else by_work + spread, by_work + spread, 1.0])


def test_workers_make_batches_beside_the_step() -> None:
    b = TraceBuilder()
    b.name("add", category="elementwise")
    here = {"process": 1, "thread": 1}
    b.row("ranges", text="step#1", kind="step", start=0, duration=10_000, **here)
    s = b.step(1, 0, 10_000, process=1, source="step")
    loading = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    b.row("ops", name=loading, start=0, duration=8_000, depth=0, **here)
    b.row("ops", name="aten::add", start=8_000, duration=2_000, depth=0, **here)
    call = b.row("calls", name="cudaLaunchKernel", start=8_500, duration=10, **here)
    b.kernel("add", 9_000, 500, call=call, op=1, step=s, process=1)
    trace = b.build()
    assert [predicted(trace, f"workers:{n}")[0] for n in (1, 2, 8)] == [8_000, 4_000, 2_000]


def two_ranks(slow: int, *, bytes_: int = 4096) -> Trace:
    """Return a step of two ranks, which compute for 1,000 and ``slow`` ns, and then reduce for 500
    after the last arrived. Their clocks are 1 ms apart."""
    b = TraceBuilder(framework="PyTorch", world_size=2)
    b.name("fast", category="elementwise")
    b.name("slow", category="elementwise")
    b.name("ncclDevKernel_AllReduce_Sum", category="collective", function="all_reduce")
    late = max(1_000, slow)
    for rank, compute in enumerate((1_000, slow)):
        at = rank * 1_000_000
        s = b.step(1, at, late + 500, rank=rank, process=rank)
        b.kernel("slow" if rank else "fast", at, compute, step=s, rank=rank, stream=7)
        b.kernel("ncclDevKernel_AllReduce_Sum", at + compute, late + 500 - compute, step=s,
                 rank=rank, stream=7, bytes=bytes_)  # fmt: skip
    return b.build()


@pytest.mark.parametrize("factor", [0, 0.2, 0.5, 1, 2])
def test_ranks_wait_for_the_last(factor: float) -> None:
    found = predicted(two_ranks(3_000), f"kernel:slow x {factor}")[0]
    assert found == max(1_000, round(3_000 * factor)) + 500
    found = predicted(two_ranks(3_000), f"kernel:fast x {4 * factor}")[0]
    assert found == max(3_000, round(4_000 * factor)) + 500


def test_only_the_transfer_of_a_collective_goes_with_its_factor() -> None:
    trace = two_ranks(3_000)
    assert predicted(trace, "collective x 0.5")[0] == 3_250
    # Without a fit the link's part is none to all of it: 1 to 0.25 times as long.
    found, low, high = predicted(trace, "link:4")
    assert (found, low <= 3_125, high >= 3_500) == (round(3_000 + 500 * 0.625), True, True)


def test_waits_for_other_ranks_are_not_in_the_summed_saving() -> None:
    # The other rank waits longer in its collective.
    (shorter,) = two_ranks(3_000).whatif("kernel:fast x 0.5").frame["at_most_ns"]
    assert shorter == 500


def test_more_ranks_move_more() -> None:
    # A ring of 4 moves 3/4 of a message where one of 2 moved 1/2; its latency is 2 to 3 times.
    found, low, high = predicted(two_ranks(3_000), "ranks:4")
    assert found == round(3_000 + 500 * (1.5 + 3) / 2)
    assert low <= 3_750
    assert high >= 4_500


def test_a_link_by_the_fit_of_three_sizes() -> None:
    b = TraceBuilder(world_size=2)
    b.name("ncclDevKernel_AllReduce_Sum", category="collective", function="all_reduce")
    s = b.step(1, 0, 100_000)
    at = 0
    for size in (10_000, 20_000, 40_000):
        b.kernel("ncclDevKernel_AllReduce_Sum", at, 10_000 + size, step=s, bytes=size)
        at += 10_000 + size
    least, most = factors(b.build(), "link:2")
    assert least == pytest.approx([15 / 20, 20 / 30, 30 / 50])
    assert most == pytest.approx(least)


@pytest.mark.parametrize(
    "text",
    ["gpu:", "batch:0", "batch:x", "batch:nan", "link:-1", "ranks:1", "ranks:many", "workers:0",
     "recording:", "tensor-cores:2"],
)  # fmt: skip
def test_arguments_that_have_no_meaning(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        scenario(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["tensor-cores", "pinned", "gpu:H100", "link:2", "ranks:4", "no-input-gradient",
             "overlapped-copies", "workers:2"]
)  # fmt: skip
def test_what_a_trace_does_not_have(text: str) -> None:
    b = TraceBuilder()
    b.name("add", category="elementwise")
    b.kernel("add", 0, 100)
    with pytest.raises(NoSuchSelectionError) as caught:
        BoundScenario.of(Model.of(b.build()), text)
    assert "\n" not in str(caught.value)


def test_an_unknown_gpu_is_refused_with_the_nearest() -> None:
    with pytest.raises(NoSuchSelectionError, match="nearest"):
        BoundScenario.of(Model.of(one_kernel((64, 64, 64), 1_000)), "gpu:H1000")


def test_a_model_has_no_factor() -> None:
    assert all(c.factor == 1 and not c.remove for s in NAMED.values() for c in s.changes if c.by)


def test_a_batch_by_recordings_of_others(tmp_path: Path) -> None:
    def trace(batch: int) -> Trace:
        b = TraceBuilder()
        b.name("add", category="elementwise")
        b.name("adam", category="optimizer")
        layer = b.layer("fc")
        for number in range(2):
            s = b.step(number, number * 100_000, 50_000)
            at = number * 100_000
            b.kernel("add", at, 1_000 + 10 * batch, step=s, layer=layer, direction="forward")
            b.kernel("adam", at + 50_000, 700, step=s, direction="optimizer")
        return b.build()

    files = []
    for batch in (8, 16):
        trace(batch).save(tmp_path / f"{batch}.traceana")
        files.append((batch / 32, str(tmp_path / f"{batch}.traceana")))
    change = Change(by="batch:4", recordings=tuple(files))
    model = Model.of(trace(32))
    asked = BoundScenario.of(model, Scenario(name="x", changes=(change,)))
    ((selection,),) = asked.selections
    assert selection.factors is not None
    for end in selection.factors:
        assert sorted(end.tolist()) == pytest.approx([1, 1, 2_280 / 1_320, 2_280 / 1_320])


def test_convolutions_as_in_another_recording_and_as_timed(tmp_path: Path) -> None:
    def trace(time: int) -> Trace:
        b = TraceBuilder(framework="PyTorch")
        b.name("winograd", category="conv", algorithm="winograd", direction="fprop")
        op = b.row("ops", name="aten::cudnn_convolution", start=0, duration=90, depth=0,
                   input_shapes="[[4, 3, 8, 8], [5, 3, 3, 3]]", input_types='["float", "float"]',
                   inputs='["", "", "[1, 1]", "[1, 1]", "[1, 1]", "1"]')  # fmt: skip
        episode = b.row("episodes", op=op, algorithm="winograd", direction="fprop")
        s = b.step(1, 0, 100)
        b.kernel("winograd", 0, time, op=op, step=s, direction="forward", episode=episode)
        return b.build()

    trace(400).save(tmp_path / "other.traceana")
    here = trace(1_000)
    assert factors(here, f"recording:{tmp_path / 'other.traceana'}") == ([0.4], [0.4])
    layer = Layer(
        path="conv", in_channels=3, out_channels=5, input=(8, 8), output=(8, 8), kernel=(3, 3),
        stride=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1),
    )  # fmt: skip
    timed = [
        Measurement(layer="conv", direction="fprop", batch=4, algorithm=name, name=name,
                    status="ok", times_ns=times)
        for name, times in (("fft", (500, 500)), ("winograd", (200, 300)), ("direct", (900,)))
    ]  # fmt: skip
    file = tmp_path / "times.json"
    study = AlgorithmStudy(
        library="cuDNN", library_version="9", device=Device(kind="gpu", name="x"), network="x",
        precision="fp32", layout="nchw", warm_up=0, tolerance=1, recorded="now", versions={},
        ended=None, layers=(layer,), measurements=tuple(timed),
    )  # fmt: skip
    file.write_bytes(msgspec.json.encode(study))
    assert factors(here, f"recording:{file}") == ([0.225], [0.275])
    assert factors(here, f"recording:fft@{file}") == ([0.5], [0.5])


@pytest.mark.skipif(not TRACES.is_dir(), reason="no shared traces")
def test_convolutions_without_recorded_strides() -> None:
    path = TRACES / "kineto" / "resnet50_train_v100_workers0.json.gz"
    least, most = factors(opened(path), f"recording:{path}")
    changed = [(low, high) for low, high in zip(least, most, strict=True) if (low, high) != (1, 1)]
    assert len(changed) > 1_000
    # Half of the convolutions of a shape are between its quartiles.
    assert sum(low <= 1 <= high for low, high in changed) >= 0.4 * len(changed)


def test_a_larger_batch_has_the_time_per_example() -> None:
    trace = opened(Path(__file__).parents[2] / "fixtures" / "gpu" / "alexnet_b128.json.gz")
    rows = trace.whatif(["batch:2", "batch:0.5", "conv x 0.5"]).frame.to_dicts()
    for row, ratio in zip(rows[:2], (2, 0.5), strict=True):
        before, after = row["step_ns"], row["predicted_ns"] / ratio
        assert row["per_example"] == pytest.approx(after / before - 1, abs=1e-6)
    assert rows[2]["per_example"] is None


def test_autocast_halves_no_more_than_the_bytes() -> None:
    # A GEMM of 16384 x 64 x 16384 is bound by memory: in FP16 half of its bytes, and casts of all.
    trace = one_kernel((16_384, 64, 16_384), 3_000_000)
    (least, _), (most, _) = factors(trace, "amp")
    size = 4 * (2 * 16_384 * 64 + 16_384 * 16_384)
    moving = 0.5 * size / 900e9 * 1e9 / 3_000_000
    assert least == pytest.approx(moving, rel=0.01)
    slowest = max(moving, TENSOR_CORE_GEMMS[1] * 15.7 / 125)
    assert most == pytest.approx(slowest + 3 * moving, rel=0.01)


@pytest.mark.profiler_cost
def test_bf16_of_alexnet_is_as_fast_as_predicted() -> None:
    trace = opened(Path(__file__).parents[2] / "fixtures" / "gpu" / "alexnet_b128.json.gz")
    (row,) = trace.whatif("amp").frame.to_dicts()
    # Measured without a profiler: 24.7 and 16.5 ms.
    assert row["predicted_ns"] == pytest.approx(16_500_000, rel=0.05)
    assert row["low_ns"] < 16_500_000 < row["high_ns"]


def test_products_in_tf32_gain_at_most_the_ratio_of_the_peaks() -> None:
    trace = opened(Path(__file__).parents[2] / "fixtures" / "gpu" / "alexnet_b128_tf32.json.gz")
    (row,) = trace.whatif("amp").frame.to_dicts()
    assert row["predicted_ns"] > trace.whatif("gemm x 0.5 + conv x 0.5").frame["predicted_ns"][0]


@pytest.mark.parametrize("name", ["compile", "folded-norm"])
def test_named_scenarios_only_shorten(name: str) -> None:
    trace = opened(Path(__file__).parents[2] / "fixtures" / "gpu" / "resnet18_b8.json.gz")
    (row,) = trace.whatif(name).frame.to_dicts()
    assert row["low_ns"] < row["predicted_ns"] < row["step_ns"]
    assert row["high_ns"] <= 1.25 * row["step_ns"]


@pytest.mark.parametrize("name", ["cuda-graphs", "compile", "amp"])
def test_data_loading_stays_as_it_is(name: str) -> None:
    """Its operators, its launches and its kernels, unlike those of the model."""
    b = TraceBuilder(framework="PyTorch")
    b.row("devices", **V100)
    b.name("add", category="elementwise")
    b.name("relu", category="activation")
    b.name("sgemm", category="gemm", precision="fp32", tensor_core=False)
    here = {"process": 1, "thread": 1}
    b.row("ranges", text="step#1", kind="step", start=0, duration=20_000, **here)
    s = b.step(1, 0, 20_000, process=1, source="step")
    loading = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    b.row("ops", name=loading, start=0, duration=10_000, depth=0, **here)
    shapes = {"input_shapes": "[[512, 512], [512, 512]]", "input_types": '["float", "float"]'}
    for at, kernel in enumerate(("add", "relu", "sgemm") * 2):
        start, parent = 1_000 + 2_500 * at + 2_000 * (at > 2), 0 if at < 3 else None
        called, more = ("aten::mm", shapes) if kernel == "sgemm" else (f"aten::{kernel}", {})
        op = b.row("ops", name=called, start=start, duration=1_000, parent=parent,
                   depth=int(parent is not None), **here, **more)  # fmt: skip
        call = b.row("calls", name="cudaLaunchKernel", start=start + 500, duration=100, **here)
        b.kernel(kernel, start + 700, 50, call=call, op=op, step=s, process=1)
    trace = b.build()
    model = Model.of(trace)
    (graph,), (selections,) = model.processes, BoundScenario.of(model, name).selections
    for selection in selections:
        assert not (selection.host & (graph.host.end <= 10_000)).any()
        assert not (selection.work & (graph.at < 10_000)).any()
    assert any((one.host & (graph.host.begin >= 10_000)).any() for one in selections)


def test_torch_compile_shortens_python_between_the_layers_alone() -> None:
    """Not Python before the model and after it, nor a batch that is loaded between layers."""
    b = TraceBuilder(framework="PyTorch")
    b.name("relu", category="activation")
    here = {"process": 1, "thread": 1}
    layers = [b.layer(f"relu_{number}", "relu") for number in range(3)]
    b.row("ranges", text="load_data", kind="annotation", start=26_000, duration=2_000, **here)
    for number, begin in enumerate((0, 50_000)):
        b.row("ranges", text=f"step#{number}", kind="step", start=begin, duration=50_000, **here)
        s = b.step(number, begin, 50_000, process=1, source="step")
        for layer, start in zip(layers, (10_000, 20_000, 30_000), strict=True):
            op = b.row("ops", name="aten::relu", start=begin + start, duration=5_000, depth=0,
                       layer=layer, **here)  # fmt: skip
            call = b.row("calls", name="cudaLaunchKernel", start=begin + start + 1_000,
                         duration=100, **here)  # fmt: skip
            b.kernel("relu", begin + start + 2_000, 500, call=call, op=op, layer=layer, step=s,
                     process=1)  # fmt: skip
    model = Model.of(b.build())
    (graph,) = model.processes
    bound = BoundScenario.of(model, "compile")
    (selection,) = (
        selection
        for change, selection in zip(bound.scenario.changes, bound.selections[0], strict=True)
        if change.between_layers
    )
    host, rows = graph.host, selection.host
    spans = sorted(zip(host.begin[rows].tolist(), host.end[rows].tolist(), strict=True))
    assert sum(end - begin for begin, end in spans) == 2 * 10_000 - 2_000
    assert all(begin % 50_000 >= 15_000 and end % 50_000 <= 30_000 for begin, end in spans)


def test_time_between_layers_is_of_the_host() -> None:
    with pytest.raises(UsageError, match="between_layers"):
        Change(between_layers=True)

"""Predictions for programs of a simulated machine: what it takes with the change, exactly."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.synthetic import Scenario, kineto
from tests.support.traces import TraceBuilder
from tests.timeline.critical import simulation
from tests.timeline.critical.simulation import CALL, Machine
from traceana import Trace

pytestmark = pytest.mark.usefixtures("resumed_at_once")

Program = Callable[[Machine, float, float], None]
FACTORS = (0.0, 0.1, 0.25, 0.5, 0.8, 1.0, 1.5, 4.0)


def one_stream(machine: Machine, kernels: float, copies: float) -> None:
    for length in (400, 900, 120, 400, 2_000):
        machine.work("kernel", 7, round(length * kernels))
    machine.synchronize(7)


def host_bound(machine: Machine, kernels: float, copies: float) -> None:
    for _ in range(20):
        machine.idle(700)
        machine.work("kernel", 7, round(80 * kernels))
    machine.synchronize(7)


def two_streams_and_an_event(machine: Machine, kernels: float, copies: float) -> None:
    machine.work("kernel", 7, round(600 * kernels))
    machine.work("copy", 13, round(3_000 * copies))
    machine.event(13, 7)
    machine.work("kernel", 7, round(5_000 * kernels))
    machine.work("copy", 13, round(9_000 * copies))
    machine.event(13, 7)
    machine.work("kernel", 7, round(4_000 * kernels))
    machine.synchronize(7)


def copy_bound(machine: Machine, kernels: float, copies: float) -> None:
    for _ in range(4):
        machine.work("copy", 7, round(8_000 * copies))
        machine.work("kernel", 7, round(1_000 * kernels))
    machine.synchronize(7)


PROGRAMS = (one_stream, host_bound, two_streams_and_an_event, copy_bound)


@pytest.fixture
def resumed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let work begin with the event that it waits for; the machine delays it only if it waits."""
    monkeypatch.setattr(simulation, "RESUME", 0)


def ran(program: Program, kernels: float = 1, copies: float = 1) -> Machine:
    machine = Machine()
    program(machine, kernels, copies)
    machine.run.step(0, 0, machine.now)
    return machine


def traced(program: Program, folder: Path) -> Trace:
    return kineto(ran(program).run, folder)


def predicted(trace: Trace, scenario: str) -> int:
    return int(trace.whatif(scenario).frame["predicted_ns"][0])


@pytest.mark.parametrize("program", PROGRAMS)
def test_kernels_that_take_longer_or_shorter(program: Program, tmp_path: Path) -> None:
    trace = traced(program, tmp_path)
    found = {f: predicted(trace, f"kernel:. x {f}") for f in FACTORS}
    assert found == {f: ran(program, kernels=f).now for f in FACTORS}


@pytest.mark.parametrize("program", [two_streams_and_an_event, copy_bound])
def test_copies_that_take_longer_or_shorter(program: Program, tmp_path: Path) -> None:
    trace = traced(program, tmp_path)
    found = {f: predicted(trace, f"memcpy x {f}") for f in FACTORS}
    assert found == {f: ran(program, copies=f).now for f in FACTORS}


def test_a_call_that_loads_code_is_as_long_in_a_graph(tmp_path: Path) -> None:
    """The first launch of a kernel loads its code: no graph, and no other launch, saves that."""
    loading = 5_000_000
    run = Scenario()
    run.launch(at=0, call=loading, begins=loading + 10, duration=100)
    for at in range(loading + 1_000, loading + 201_000, 10_000):
        run.operator("aten::relu", at, at + 9_000)
        run.launch(at=at + 2_000, call=5_000, begins=at + 7_010, duration=100)
    run.step(0, 0, loading + 201_000)
    trace = kineto(run, tmp_path)
    assert predicted(trace, "launch x 0") > loading
    assert loading < predicted(trace, "cuda-graphs") < loading + 100_000


def test_pinned_copies_to_the_device_do_not_block(tmp_path: Path) -> None:
    def program(machine: Machine, *, pinned: bool) -> None:
        for _ in range(4):
            machine.work("kernel", 7, 50_000)
            if pinned:
                machine.work("copy", 7, 2_000)
            else:
                machine.blocking(7, 2_000, staged=True)
            machine.idle(40_000)
        machine.synchronize(7)

    trace = traced(lambda machine, *_: program(machine, pinned=False), tmp_path)
    found = ran(lambda machine, *_: program(machine, pinned=True)).now
    # The machine's copy takes as long, but its calls and the begin of a copy take some nanoseconds.
    assert abs(predicted(trace, "pinned") - found) <= 4 * CALL
    assert predicted(trace, "host x 1") > 1.7 * found


def waiting(machine: Machine, *, waits: bool) -> None:
    """Launch a kernel four times, wait for it or not, and work for a third of its time."""
    for length in (9_000, 3_000, 12_000, 6_000):
        machine.work("kernel", 7, length)
        if waits:
            machine.synchronize(7)
        machine.idle(length // 3)


@pytest.mark.parametrize("text", ["no sync", "sync x 0", "no synchronization"])
def test_a_host_that_does_not_wait_runs_ahead(tmp_path: Path, text: str) -> None:
    trace = traced(lambda machine, *_: waiting(machine, waits=True), tmp_path)
    machine = ran(lambda machine, *_: waiting(machine, waits=False))
    assert predicted(trace, text) == max(machine.now, *machine.ends())
    assert predicted(trace, "host x 1") > 1.2 * max(machine.now, *machine.ends())


def test_a_host_that_does_not_wait_for_copies_to_it_runs_ahead(tmp_path: Path) -> None:
    def program(machine: Machine, *, waits: bool) -> None:
        for _ in range(4):
            machine.work("kernel", 7, 20_000)
            if waits:
                machine.blocking(7, 1_000)
                machine.synchronize(7)
            else:
                machine.work("copy", 7, 1_000)
            machine.idle(15_000)

    trace = traced(lambda machine, *_: program(machine, waits=True), tmp_path)
    machine = ran(lambda machine, *_: program(machine, waits=False))
    # The calls that copy, and the begin of a copy, take some nanoseconds.
    assert abs(predicted(trace, "no sync") - max(machine.now, *machine.ends())) <= 4 * CALL
    assert predicted(trace, "host x 1") > 1.5 * machine.now


def test_a_fused_optimizer_leaves_the_host_little(tmp_path: Path) -> None:
    """An optimizer of twenty operators of 9 us with 1 us of Python between, after 5 us of it."""
    run = Scenario()
    run.operator("aten::mm", 0, 9_000)
    run.launch(at=2_000, call=5_000, begins=7_010, duration=3_000, name="sgemm")
    for at in range(15_000, 215_000, 10_000):
        run.operator("aten::add_", at, at + 9_000)
        run.launch(at=at + 2_000, call=5_000, begins=at + 7_010, duration=100, name="add_")
    run.range("Optimizer.step#SGD.step", 10_000, 215_000)
    run.step(0, 0, 215_000)
    trace = kineto(run, tmp_path)
    # Of 200 us of operators and Python between them 0 to 10 % remain.
    assert predicted(trace, "host x 1") == 215_000
    assert predicted(trace, "fused-optimizer") == 15_000 + 0.05 * 200_000
    low, high = trace.whatif("fused-optimizer").frame.select("low_ns", "high_ns").row(0)
    assert low < 15_000 < 35_000 < high


@pytest.mark.parametrize(
    ("text", "saved"),
    [
        ("relu x 0", ["relu"]),
        ("activations x 0", ["relu", "gelu"]),
        ("norm x 0", ["norm"]),
        ("dropout x 0", ["dropout"]),
        ("direction:optimizer x 0", ["sgd"]),
    ],
)
def test_work_of_a_word_takes_no_time(text: str, saved: list[str]) -> None:
    kinds = {"norm": "normalization", "relu": "activation", "gelu": "activation", "sgd": "gemm"}
    build, at = TraceBuilder(framework="PyTorch"), 0
    step = build.step(0, 0, 63_000)
    # No two sums of these are equal.
    times = dict(zip((*kinds, "dropout"), (1_000, 2_000, 4_000, 8_000, 16_000), strict=True))
    for name, time in times.items():
        build.name(name, category=kinds.get(name, name), function=name)
        direction = "optimizer" if name == "sgd" else "forward"
        build.kernel(name, at, time, step=step, direction=direction)
        at += time
    trace = build.build()
    saving = predicted(trace, "host x 1") - predicted(trace, text)
    assert saving == sum(times[one] for one in saved)


@pytest.mark.parametrize(
    ("norm", "least", "most"),
    [
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>()", 470, 610),
        ("void cudnn::batchnorm_fwtr_nhwc_semiPersist<float>()", 1_000, 1_000),
    ],
)
def test_without_layout_changes_cudnn_normalizes_nhwc(norm: str, least: int, most: int) -> None:
    build = TraceBuilder(framework="PyTorch")
    step = build.step(0, 0, 7_000)
    for at, (name, time) in enumerate([(norm, 1_000), ("nchwToNhwc", 2_000), ("conv", 4_000)]):
        build.name(name, category={0: "normalization", 1: "layout"}.get(at, "conv"))
        build.kernel(name, (0, 1_000, 3_000)[at], time, step=step)
    trace = build.build()
    assert predicted(trace, "no layout") == 4_000 + (least + most) / 2
    assert "no layout: channels_last" in trace.whatif("no layout").notes[0]


steps = st.lists(
    st.tuples(
        st.sampled_from(["kernel", "kernel", "copy", "event", "synchronize", "idle"]),
        st.sampled_from([7, 13]),
        st.integers(1, 3_000),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps, st.sampled_from(FACTORS))
# The call waits for one of two streams, on which the work had ended when it began.
@pytest.mark.slow
@example([("kernel", 13, 99), ("synchronize", 13, 1), ("kernel", 7, 77)], 10.0)
def test_any_program(done: list[tuple[str, int, int]], factor: float) -> None:
    def program(machine: Machine, kernels: float, copies: float) -> None:
        machine.work("kernel", 7, round(10 * kernels))
        for what, stream, length in done:
            match what:
                case "event":
                    machine.event(stream, 20 - stream)
                case "synchronize":
                    machine.synchronize(stream)
                case "idle":
                    machine.idle(length)
                case kind:
                    scaled = kernels if kind == "kernel" else copies
                    machine.work(kind, stream, round(length * scaled))
        machine.synchronize(7)

    with tempfile.TemporaryDirectory() as folder:
        found = predicted(traced(program, Path(folder)), f"kernel:. x {factor}")
    machine = ran(program, kernels=factor)
    # A call of the machine takes longer where it has nothing to wait for.
    waits = 1 + sum(what == "synchronize" for what, _, _ in done)
    assert abs(found - max(machine.now, *machine.ends())) <= waits * CALL

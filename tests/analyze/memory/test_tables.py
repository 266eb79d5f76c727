"""Memory in closed form: built events, every figure known."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.traces import TraceBuilder
from traceana.analyze.memory import NO_EVENTS, memory
from traceana.timeline.steps import select
from traceana.trace import Trace


class Recording(TraceBuilder):
    """Events of one allocator on device 0, whose own count begins at ``before``."""

    def __init__(self, before: int = 0, *, counts: bool = True) -> None:
        super().__init__()
        self._allocated = before
        self._counts = counts
        self._sizes: dict[int, int] = {}

    def allocate(self, time: int, address: int, size: int) -> None:
        self._sizes[address] = size
        self.event(time, address, size)

    def free(self, time: int, address: int) -> None:
        self.event(time, address, -self._sizes.pop(address))

    def op(self, name: str, start: int, duration: int, **columns: Any) -> int:
        where = {"process": 1, "thread": 1}
        return self.row("ops", name=name, start=start, duration=duration, **where, **columns)

    def event(self, time: int, address: int | None, size: int) -> None:
        self._allocated += size
        reported = {"allocated": self._allocated, "reserved": 4096} if self._counts else {}
        where = {"process": 1, "thread": 1, "device": 0, "address": address}
        self.row("memory", time=time, bytes=size, **where, **reported)


@pytest.mark.parametrize("by", ["device", "time"])
def test_devices_come_in_their_order_and_the_unknown_last(by: Any) -> None:
    builder = TraceBuilder()
    for time, device in ((5, None), (10, 3), (20, 0), (30, 1)):
        where = {"process": 1, "thread": 1, "device": device, "address": time}
        builder.row("memory", time=time, bytes=8, **where)
    frame = memory(builder.build(), by).frame
    assert frame["device"].to_list() == [0, 1, 3, None]


def test_several_devices_have_no_total_and_an_unknown_one_has_a_name() -> None:
    builder = TraceBuilder()
    for time, device in ((5, None), (10, 3)):
        where = {"process": 1, "thread": 1, "device": device, "address": time}
        builder.row("memory", time=time, bytes=8, **where)
    builder.kernel("k", 0, 1, device=3)
    trace = builder.build()
    assert memory(trace, "layer").totals == {}
    assert memory(select(trace, devices=[3]), "layer").totals == {"count": 1, "bytes": 8}
    assert "(not recorded)" in repr(trace.memory())


def test_the_peak_of_a_device_is_in_its_step_whenever_that_of_the_device_before_was() -> None:
    builder = TraceBuilder()
    for step in range(5):
        builder.step(step, 100 * step, 100, process=1)
    peaks = [450, 150, 350, 50, 250]
    for time, device in sorted((time, device) for device, time in enumerate(peaks)):
        builder.row("memory", time=time, bytes=8, process=1, thread=1, device=device, address=time)
    assert memory(builder.build()).frame["step"].to_list() == [4, 1, 3, 0, 2]


def training() -> Recording:
    """Return two steps in a convolution and a linear layer, after which 50 bytes more are held.

    512 bytes are there before. Step 0 (0 to 100) holds at most 512 + 100 + 300, at 30; step 1 (100
    to 200) 512 + 50 + 100 + 200, at 130.
    """
    b = Recording(before=512)
    conv, linear = b.layer("conv", "Conv2d"), b.layer("fc", "Linear")
    b.step(0, 0, 100, process=1)
    b.step(1, 100, 100, process=1)
    b.op("aten::conv2d", 5, 40, layer=conv)
    b.op("aten::empty", 8, 4, layer=conv)
    b.op("aten::addmm", 125, 20, layer=linear)
    b.allocate(10, 1, 100)
    b.allocate(30, 2, 300)
    b.free(35, 2)
    b.allocate(60, 3, 50)
    b.free(80, 1)
    b.allocate(110, 1, 100)
    b.allocate(130, 4, 200)
    b.free(140, 4)
    b.free(150, 1)
    return b


def test_the_peak_of_a_device() -> None:
    (row,) = memory(training().build()).frame.to_dicts()
    assert row == {
        "rank": None,
        "device": 0,
        "allocations": 5,
        "peak_bytes": 912,
        "at_ns": 30,
        "step": 0,
        "layer": "conv",
        "operator": "aten::conv2d",
        "line": None,
        "reserved_bytes": 4096,
        "largest_bytes": 300,
        "end_bytes": 562,
        "growth_bytes": 0,
    }


def test_the_peak_of_a_step_that_is_selected() -> None:
    (row,) = memory(select(training().build(), steps=[1])).frame.to_dicts()
    assert (row["peak_bytes"], row["at_ns"], row["step"]) == (862, 130, 1)
    assert (row["layer"], row["operator"], row["allocations"]) == ("fc", "aten::addmm", 2)


def test_what_is_alive_at_the_peak() -> None:
    trace = training().build()
    result = memory(trace, "operator")
    assert result.frame.select("operator", "count", "bytes", "largest_bytes").rows() == [
        ("(allocated before capture)", 1, 512, 512),
        ("aten::conv2d", 1, 300, 300),
        ("aten::empty", 1, 100, 100),
    ]
    assert result.totals["bytes"] == 912
    assert result.frame["share"].sum() == pytest.approx(1)
    by_layer = memory(select(trace, steps=[1]), "layer").frame
    assert by_layer.select("layer", "bytes").rows() == [
        ("(allocated before capture)", 512),
        ("fc", 200),
        ("(outside all layers)", 150),
    ]


def test_steps() -> None:
    frame = memory(training().build(), "step").frame
    assert frame.drop("rank", "device").rows() == [
        (0, 3, 912, 562, None),
        (1, 2, 862, 562, 0),
    ]


def test_the_course_over_time() -> None:
    frame = memory(training().build(), "time").frame
    # 141 ns in 40 slices: what was allocated stays until the next event.
    starts = [10 + number * 141 // 40 for number in range(40)]
    assert frame["start_ns"].to_list() == starts
    steps = [(10, 612), (30, 912), (35, 612), (60, 662), (80, 562), (110, 662), (130, 862)]
    steps += [(140, 662), (150, 562)]
    expected = []
    for start, end in zip(starts, [*starts[1:], 151], strict=True):
        here = [size for time, size in steps if start <= time < end]
        before = [size for time, size in steps if time < start][-1:]
        expected.append(max(here + before))
    assert frame["allocated_bytes"].to_list() == expected
    assert set(frame["reserved_bytes"]) == {4096}


def test_an_allocator_that_does_not_count_is_counted_from_the_beginning() -> None:
    b = Recording(counts=False)
    b.allocate(0, 1, 10)
    b.allocate(5, 2, 20)
    b.free(6, 1)
    b.allocate(7, 3, 5)
    result = memory(b.build())
    (row,) = result.frame.to_dicts()
    assert (row["peak_bytes"], row["at_ns"], row["end_bytes"]) == (30, 5, 25)
    assert row["reserved_bytes"] is None
    assert any("figures count from the start" in note for note in result.notes)


def test_events_without_addresses_have_no_layer() -> None:
    b = Recording()
    b.event(0, None, 10)
    b.event(5, None, -10)
    result = memory(b.build(), "layer")
    assert result.frame.select("layer", "bytes").rows() == [("(no addresses recorded)", 10)]
    assert any("no address recorded: 2 of 2 events" in note for note in result.notes)


@pytest.mark.parametrize(("kept", "reported"), [(8, True), (0, False)])
def test_memory_that_every_step_leaves_behind(kept: int, reported: bool) -> None:
    b = Recording()
    for number in range(4):
        at = 100 * number
        b.step(number, at, 100, process=1)
        b.allocate(at + 10, 1, 64)
        if kept:
            b.allocate(at + 20, 100 + number, kept)
        b.free(at + 30, 1)
    result = memory(b.build())
    assert result.frame["growth_bytes"].to_list() == [kept]
    hint = (
        "possible leak on device 0: allocated memory grows in each of 3 measured steps, "
        "median 8 bytes"
    )
    assert (hint in result.notes) is reported


def convolutions() -> Recording:
    """Return two calls of a layer's convolution, one by FFT with two buffers at a time."""
    b = Recording()
    layer = b.layer("conv1", "Conv2d")
    for at, algorithm in ((0, "fft"), (100, "winograd"), (200, "fft")):
        b.op("aten::cudnn_convolution", at, 50, layer=layer)
        op = b.op("aten::empty", at + 1, 3, layer=layer)
        b.row("episodes", op=op - 1, algorithm=algorithm, direction="fprop")
        b.allocate(at + 2, 10 + at, 1_000)  # its result
        b.allocate(at + 10, 1, 70 if at < 200 else 400)
        if algorithm == "fft":
            b.allocate(at + 12, 2, 30)
        b.free(at + 20, 1)
        if algorithm == "fft":
            b.free(at + 25, 2)
        b.allocate(at + 30, 1, 5_000)
        b.free(at + 60, 1)  # when the operator has returned
    return b


def test_workspaces_of_convolutions() -> None:
    frame = memory(convolutions().build(), "convolution").frame
    assert frame.drop("rank", "device").rows() == [
        ("conv1", "aten::cudnn_convolution", "fprop", "fft", 2, 430),
        ("conv1", "aten::cudnn_convolution", "fprop", "winograd", 1, 70),
    ]


def test_no_workspaces_have_a_note() -> None:
    result = memory(training().build(), "convolution")
    assert result.frame.is_empty()
    assert any(note.startswith("no workspaces") for note in result.notes)


def test_devices_are_selected() -> None:
    b = training()
    b.row("devices", device=0)
    b.row("devices", device=1)
    b.row("memory", time=3, bytes=9, device=1, address=5, allocated=9, reserved=0)
    trace = b.build()
    assert memory(trace).frame["device"].to_list() == [0, 1]
    assert memory(select(trace, devices=[1])).frame["peak_bytes"].to_list() == [9]


def test_a_trace_without_events() -> None:
    result = memory(Trace(TraceBuilder().meta))
    assert result.frame.is_empty()
    assert result.notes == (NO_EVENTS,)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 100)), min_size=1, max_size=40))
def test_what_is_alive_adds_up_to_the_peak(moves: list[tuple[int, int]]) -> None:
    """An address that is in use is freed, another is allocated."""
    b, most, now = Recording(before=7), 7, 7
    used: dict[int, int] = {}
    for time, (address, size) in enumerate(moves):
        if address in used:
            now -= used.pop(address)
            b.free(time, address)
        else:
            used[address] = size
            now += size
            b.allocate(time, address, size)
        most = max(most, now) if time else now
    trace = b.build()
    held = memory(trace, "operator")
    assert memory(trace).frame["peak_bytes"].item() == most == held.totals["bytes"]
    earlier = held.frame.filter(pl.col("operator") == "(allocated before capture)")
    assert earlier["bytes"].to_list() == [7]

"""Perfetto's packets, written with its own classes: clocks, defaults, texts, tracks, slices."""

from __future__ import annotations

import gzip
import random
import time
import zlib
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as perfetto

from tests.readers.kineto.writing import annotation, call, kernel, op
from tests.readers.perfetto.test_pytorch import LAUNCH, notes
from tests.readers.perfetto.writing import (
    BEGIN,
    CLEARED,
    COUNTER,
    END,
    INSTANT,
    Writer,
    write_pytorch,
)
from tests.readers.rocprof.perfetto import message, varint
from tests.support.command_line import Run
from traceana import open as open_trace
from traceana.errors import CorruptError, NotATraceError, TraceanaError
from traceana.readers import read
from traceana.readers.detect import detect
from traceana.trace import Trace

DATA = Path(__file__).parent / "data"


def of(writer: Writer, folder: Path) -> Trace:
    """Return the Trace of a written file."""
    return read(writer.write(folder / "t.pftrace"))


def add_slice(
    writer: Writer, name: str, start: int, end: int, category: str = "cpu_op", track: int = 1
) -> Any:
    """Add a slice with its texts in place; return its beginning."""
    begin = writer.event(BEGIN, track, start)
    begin.name, begin.categories[:] = name, [category]
    writer.event(END, track, end)
    return begin


def spans(trace: Trace) -> list[tuple[str, int, int]]:
    """Return name, start and duration of the operators."""
    return trace.tables.ops.select(pl.col("name").cast(pl.String), "start", "duration").rows()


@pytest.mark.parametrize(
    ("name", "duration", "stream"), [("track_events", 1000, 7), ("render_stages", 900, None)]
)
def test_kernels_on_tracks_and_as_render_stages(
    name: str, duration: int, stream: int | None
) -> None:
    tables = open_trace(DATA / f"{name}.pftrace").tables
    assert tables.activities["duration"].to_list() == [duration] * 10
    assert tables.activities["start"].to_list() == [2000 * number for number in range(10)]
    assert tables.activities["kind"].unique().to_list() == ["kernel"]
    assert tables.activities["device"].unique().to_list() == [0]
    assert tables.activities["stream"].unique().to_list() == [stream]
    assert tables.names.height == 1
    assert tables.ledger.is_empty()


def test_slices_nest_by_time_on_each_track(tmp_path: Path) -> None:
    writer = Writer()
    for type_, track, at, name in (
        (BEGIN, 1, 10, "outer"), (BEGIN, 2, 11, "other"), (BEGIN, 1, 20, "inner"),
        (END, 1, 30, ""), (END, 1, 50, ""), (BEGIN, 1, 60, "next"), (END, 2, 65, ""),
        (END, 1, 70, ""),
    ):  # fmt: skip
        event = writer.event(type_, track, at)
        if name:
            event.name, event.categories[:] = name, ["cpu_op"]
    assert spans(of(writer, tmp_path)) == [
        *(("outer", 0, 40), ("other", 1, 54)),
        *(("inner", 10, 10), ("next", 50, 10)),
    ]


def test_slices_without_an_end_or_a_beginning_are_a_problem(tmp_path: Path) -> None:
    writer = Writer()
    writer.event(END, 1, 5)
    add_slice(writer, "whole", 10, 20)
    open_begin = writer.event(BEGIN, 1, 30)
    open_begin.name, open_begin.categories[:] = "open", ["cpu_op"]
    trace = of(writer, tmp_path)
    assert spans(trace) == [("whole", 0, 10)]
    assert (notes(trace, "malformed"), trace.meta.events) == (2, 3)


def test_threads_and_processes_are_of_the_track_or_of_its_parents(tmp_path: Path) -> None:
    writer = Writer()
    for uuid, parent in ((1, 0), (2, 1), (3, 2), (4, 4)):
        described = writer.packet().track_descriptor
        described.uuid, described.parent_uuid = uuid, parent
        if uuid == 1:
            described.process.pid = 77
        elif uuid == 2:
            described.thread.tid = 5
    for track in (1, 2, 3, 4):
        add_slice(writer, "a", 10 * track, 10 * track + 5, track=track)
    tables = of(writer, tmp_path).tables
    assert tables.ops["process"].to_list() == [77, 77, 77, None]
    assert tables.ops["thread"].to_list() == [None, 5, 5, None]


def test_the_default_track_and_clock_of_a_sequence(tmp_path: Path) -> None:
    writer = Writer()
    described = writer.packet().track_descriptor
    described.uuid, described.thread.pid, described.thread.tid = 9, 77, 5
    # A clock of the sequence, whose times are microseconds since the packet before.
    first = writer.packet(flags=CLEARED)
    first.trace_packet_defaults.timestamp_clock_id = 64
    first.trace_packet_defaults.track_event_defaults.track_uuid = 9
    snapshot = writer.packet().clock_snapshot.clocks
    snapshot.add(clock_id=6, timestamp=5_000_000)
    snapshot.add(clock_id=64, timestamp=1000, is_incremental=True, unit_multiplier_ns=1000)
    for type_, step in ((BEGIN, 3), (BEGIN, 4), (END, 2), (END, 10)):
        event = writer.packet(step).track_event
        event.type = type_
        if type_ == BEGIN:
            event.name, event.categories[:] = "a", ["cpu_op"]
    # Another sequence has a clock of this number of its own, and the default is BOOTTIME.
    other = writer.packet(5_004_000, sequence=2).track_event
    other.type, other.name, other.categories[:], other.track_uuid = BEGIN, "b", ["cpu_op"], 1
    other = writer.packet(5_005_500, sequence=2).track_event
    other.type, other.track_uuid = END, 1
    trace = of(writer, tmp_path)
    assert spans(trace) == [("a", 0, 16_000), ("a", 4_000, 2_000), ("b", 1_000, 1_500)]
    assert trace.tables.ops["thread"].to_list() == [5, 5, None]
    # Cleared, the sequence has neither.
    writer.packet(flags=CLEARED)
    event = writer.packet(5_100_000).track_event
    event.type, event.name, event.categories[:] = BEGIN, "c", ["cpu_op"]
    event = writer.packet(5_100_700).track_event
    event.type = END
    trace = of(writer, tmp_path)
    assert spans(trace)[-1] == ("c", 5_100_000 - 5_003_000, 700)
    assert trace.tables.ops["thread"].to_list() == [5, 5, None, None]


def test_times_of_other_clocks_are_moved_to_the_trace_s(tmp_path: Path) -> None:
    writer = Writer()
    clocks = writer.packet().clock_snapshot.clocks
    for clock, now in ((1, 1_700_000_000_000_000_000), (3, 400), (6, 1000)):
        clocks.add(clock_id=clock, timestamp=now)
    for clock, start in ((6, 2000), (3, 2000), (3, 3000), (5, 4000)):
        for type_, at in ((BEGIN, start), (END, start + 10)):
            packet = writer.packet(at)
            packet.timestamp_clock_id = clock
            packet.track_event.type, packet.track_event.track_uuid = type_, clock
            if type_ == BEGIN:
                packet.track_event.name = f"{clock}"
                packet.track_event.categories[:] = ["cpu_op"]
    trace = of(writer, tmp_path)
    assert spans(trace) == [("6", 0, 10), ("3", 600, 10), ("3", 1600, 10)]
    assert trace.meta.epoch_ns == 1_700_000_000_000_001_000
    # No snapshot relates this clock to the others: a slice without a time, and its end.
    assert (notes(trace, "missing_time"), notes(trace, "malformed")) == (1, 1)


def test_texts_are_those_of_the_sequence_since_it_was_cleared(tmp_path: Path) -> None:
    writer = Writer()
    for sequence, flags, name in ((1, CLEARED, "a"), (2, CLEARED, "b"), (1, CLEARED, "c")):
        packet = writer.packet(flags=flags, sequence=sequence)
        packet.interned_data.event_names.add(iid=1, name=name)
        packet.interned_data.event_categories.add(iid=1, name="cpu_op")
        packet.interned_data.debug_annotation_names.add(iid=1, name="Module Hierarchy")
        text = name.encode()
        packet.interned_data.debug_annotation_string_values.add(iid=1, str=text)
    for sequence, at in ((2, 10), (1, 20)):
        begin = writer.packet(at, sequence=sequence).track_event
        begin.type, begin.name_iid, begin.track_uuid = BEGIN, 1, sequence
        begin.category_iids.append(1)
        begin.debug_annotations.add(name_iid=1, string_value_iid=1)
        end = writer.packet(at + 5, sequence=sequence).track_event
        end.type, end.track_uuid = END, sequence
    # Nothing is known of this sequence: its first packets were lost.
    lost = writer.packet(30, sequence=3).track_event
    lost.type, lost.name_iid, lost.categories[:], lost.track_uuid = BEGIN, 1, ["cpu_op"], 3
    end = writer.packet(35, sequence=3)
    end.previous_packet_dropped = 1
    end.track_event.type, end.track_event.track_uuid = END, 3
    trace = of(writer, tmp_path)
    assert spans(trace) == [("b", 0, 5), ("c", 10, 5), ("", 20, 5)]
    assert trace.tables.ops["module"].to_list() == ["b", "c", None]
    assert (notes(trace, "unnamed"), notes(trace, "dropped_by_profiler")) == (1, 1)


def test_arguments_of_every_kind(tmp_path: Path) -> None:
    writer = Writer()
    for value, text in (
        ({"legacy_json_value": '{"a": [1]}'}, '{"a":[1]}'),
        ({"legacy_json_value": "{no"}, '"{no"'),
        ({"legacy_json_value": "9" * 30}, "9" * 30),
        ({"legacy_json_value": "[" * 5000}, f'"{"[" * 5000}"'),
        ({"pointer_value": 2**64 - 1}, "18446744073709551615"),
        ({"bool_value": True}, "true"),
        ({"double_value": 0.5}, "0.5"),
        ({"double_value": float("nan")}, "null"),
        ({}, "[]"),
    ):
        begin = add_slice(writer, text, 10, 20)
        begin.debug_annotations.add(name="Concrete Inputs", **value)
    nested = add_slice(writer, '{"a":[-1,"b",[]],"c":null}', 10, 20)
    value = nested.debug_annotations.add(name="Concrete Inputs").nested_value
    value.nested_type, value.dict_keys[:] = 1, ["a", "c"]
    array = value.dict_values.add(nested_type=2)
    array.array_values.add(int_value=-1)
    array.array_values.add(string_value="b")
    array.array_values.add(nested_type=2)
    value.dict_values.add()
    ops = of(writer, tmp_path).tables.ops
    assert ops["inputs"].to_list() == ops["name"].cast(pl.String).to_list()


def test_marks_are_read_as_kineto_s_and_counters_are_counted(tmp_path: Path) -> None:
    writer = Writer()
    add_slice(writer, "aten::mm", 10, 20)
    mark = writer.event(INSTANT, 1, 12)
    mark.name, mark.categories[:] = "[memory]", ["cpu_instant_event"]
    for name, value in (("Addr", 64), ("Bytes", 512), ("Device Type", 1), ("Device Id", 0)):
        mark.debug_annotations.add(name=name, int_value=value)
    writer.event(INSTANT, 1, 13).name = "mark"
    writer.event(COUNTER, 8, 14).counter_value = 3
    samples = writer.packet(15).gpu_counter_event
    samples.counters.add(counter_id=0, int_value=1)
    samples.counters.add(counter_id=1, double_value=2.5)
    trace = of(writer, tmp_path)
    memory = trace.tables.memory.row(0, named=True)
    assert (memory["time"], memory["address"], memory["bytes"], memory["device"]) == (2, 64, 512, 0)
    assert (notes(trace, "instant"), notes(trace, "counter")) == (1, 3)
    assert trace.meta.events == 6


def test_events_converted_from_chrome_s_json(tmp_path: Path) -> None:
    writer = Writer()
    whole = writer.packet(10_000).track_event
    whole.name, whole.categories[:] = "aten::mm", ["cpu_op"]
    whole.legacy_event.phase, whole.legacy_event.duration_us = ord("X"), 7
    begin = writer.packet(20_000).track_event
    begin.name, begin.categories[:], begin.legacy_event.phase = "aten::add", ["cpu_op"], ord("B")
    writer.packet(25_000).track_event.legacy_event.phase = ord("E")
    writer.packet(26_000).track_event.legacy_event.phase = ord("b")
    huge = writer.packet(30_000).track_event
    huge.name, huge.categories[:] = "aten::huge", ["cpu_op"]
    huge.legacy_event.phase, huge.legacy_event.duration_us = ord("X"), 2**63 - 1
    trace = of(writer, tmp_path)
    assert spans(trace) == [("aten::mm", 0, 7000), ("aten::add", 10_000, 5000)]
    assert (notes(trace, "impossible_time"), notes(trace, "unknown_category")) == (1, 1)


def test_flows_between_operators_lead_to_the_backward_pass(tmp_path: Path) -> None:
    writer = Writer()
    backward = add_slice(writer, "MmBackward0", 50, 60, track=2)
    forward = add_slice(writer, "aten::mm", 10, 20)
    launch = add_slice(writer, "cudaLaunchKernel", 12, 13, category="cuda_runtime", track=3)
    work = add_slice(writer, "gemm", 30, 40, category="kernel", track=4)
    forward.flow_ids.append(2**63 + 5)
    backward.terminating_flow_ids.append(2**63 + 5)
    launch.flow_ids_old.append(6)
    work.terminating_flow_ids_old.append(6)
    trace = of(writer, tmp_path)
    assert trace.tables.links.select("from_time", "to_time").rows() == [(0, 40)]
    assert notes(trace, "launch_flow") == 2


def test_render_stages_of_older_traces(tmp_path: Path) -> None:
    writer = Writer()
    specifications = writer.packet(0).gpu_render_stage_event.specifications
    for name in ("Graphics", "Copies"):
        specifications.hw_queue.add(name=name)
    for name in ("Render", "Memcpy"):
        specifications.stage.add(name=name)
    for number, (start, queue, stage) in enumerate(((10, 0, 0), (20, 1, 1))):
        event = writer.packet(start).gpu_render_stage_event
        event.event_id, event.duration, event.gpu_id = number, 5, 1
        event.hw_queue_id, event.stage_id, event.context = queue, stage, 3
    tables = of(writer, tmp_path).tables
    names = tables.names["name"].gather(tables.activities["name_id"]).to_list()
    assert names == ["Render", "Memcpy"]
    rows = tables.activities.select("kind", "device", "stream", "context", "start", "duration")
    assert rows.rows() == [("kernel", 1, 0, 3, 0, 5), ("memcpy", 1, 1, 3, 10, 5)]


def test_a_stage_without_a_name_has_that_of_its_kernel_or_specification(tmp_path: Path) -> None:
    writer = Writer()
    interned = writer.packet(flags=CLEARED).interned_data
    interned.gpu_specifications.add(iid=1, name="Compute", category=2)
    interned.MergeFromString(message((1000, message((1, 1), (2, "_Z4gemmv")))))
    interned.MergeFromString(message((1000, message((1, 2), (2, "_Z1kv"), (3, "k()")))))
    for start, kernel_iid in ((10, 1), (20, 2), (30, 0)):
        stage = writer.packet(start).gpu_render_stage_event
        stage.duration, stage.stage_iid, stage.kernel_iid = 5, 1, kernel_iid
        stage.launch.args.add(name="shared_mem_static", uint_value=100)
        if start == 20:
            stage.launch.args.add(name="shared_mem_dynamic", int_value=28)
    tables = of(writer, tmp_path).tables
    names = tables.names["name"].gather(tables.activities["name_id"]).to_list()
    assert names == ["gemm()", "k()", "Compute"]
    # Static and dynamic memory, where the file has both.
    assert tables.activities["shared_memory"].to_list() == [None, 128, None]


def packed(content: bytes, number: int = 50) -> bytes:
    """Return a trace of one compressed packet."""
    return message((1, message((number, content))))


@pytest.mark.parametrize("form", ["deflate", "gzip", "both", "twice"])
def test_compressed_traces(tmp_path: Path, form: str) -> None:
    content = (DATA / "track_events.pftrace").read_bytes()
    if form != "gzip":
        content = packed(zlib.compress(content))
    if form == "twice":
        content = packed(zlib.compress(content))
    path = tmp_path / "t.pftrace"
    path.write_bytes(gzip.compress(content) if form in ("gzip", "both") else content)
    assert detect(path).name == "pftrace"
    assert read(path).tables.activities["duration"].sum() == 10_000


def test_zstd_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.pftrace").write_bytes(packed(b"\x28\xb5\x2f\xfd" + bytes(20), 133))
    with pytest.raises(NotATraceError, match="compressed with zstd"):
        read(tmp_path / "t.pftrace")
    both = packed(b"\x28\xb5\x2f\xfd" + bytes(20), 133)
    (tmp_path / "t.pftrace").write_bytes(both + (DATA / "track_events.pftrace").read_bytes())
    trace = read(tmp_path / "t.pftrace")
    assert (trace.tables.activities.height, notes(trace, "malformed")) == (10, 1)


def test_a_trace_of_the_system_is_refused_with_what_it_has(tmp_path: Path, run: Run) -> None:
    trace = perfetto.Trace()
    trace.packet.add(trusted_packet_sequence_id=1).trace_config.duration_ms = 5
    for number in range(3):
        packet = trace.packet.add(timestamp=number, trusted_packet_sequence_id=1)
        packet.ftrace_events.cpu = number
    packet = trace.packet.add(timestamp=5, trusted_packet_sequence_id=1)
    packet.sys_stats.num_forks = 1
    event = trace.packet.add(timestamp=6, trusted_packet_sequence_id=1).track_event
    event.type, event.name, event.categories[:] = INSTANT, "Choreographer", ["view"]
    path = tmp_path / "android.pftrace"
    path.write_bytes(trace.SerializeToString())
    what = "it has 3 ftrace_events packets, 1 sys_stats packets, 1 view events: record the GPU"
    with pytest.raises(NotATraceError, match=what):
        read(path)
    done = run("report", path)
    assert (done.exit_code, len(done.stderr.splitlines())) == (14, 1)


SHAPES: dict[str, Any] = {"Input Dims": [[2, 3], []], "Sequence number": 4}


def whole(folder: Path) -> bytes:
    """Return a trace with work, operators, calls, waits and texts of every kind."""
    events = [
        annotation("step", 1, 60),
        op("aten::mm", 2, 9, **SHAPES),
        call("cudaLaunchKernel", 3, 2, correlation=9),
        kernel("gemm", 5, 1.5, correlation=9, **LAUNCH),
        {**kernel("Memset", 8, 1, bytes=64, **{"memory kind": 3}), "cat": "gpu_memset"},
        {**kernel("Memcpy", 18, 1, bytes=64), "cat": "gpu_memcpy"},
        {**op("Buffer Flush", 6, 2), "cat": "overhead", "pid": -1, "tid": 0},
    ]
    return write_pytorch(folder / "whole.pftrace", events, {1: [0]}).read_bytes()


@pytest.mark.slow
def test_a_trace_cut_at_any_byte_is_read_up_to_there(tmp_path: Path) -> None:
    content = whole(tmp_path)
    path = tmp_path / "t.pftrace"
    boundaries = {0}
    at = 0
    for packet in perfetto.Trace.FromString(content).packet:
        at += len(message((1, packet.SerializeToString())))
        boundaries.add(at)
    assert at == len(content)
    for cut in range(60, len(content), 11):
        path.write_bytes(content[:cut])
        try:
            trace = read(path)
        except TraceanaError:
            continue
        assert trace.meta.truncated == (cut not in boundaries), cut


def mutated(rng: random.Random, content: bytes) -> bytes:
    """Return ``content`` with one to four damages."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(changed))
        match rng.randrange(7):
            case 0:
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                changed[at] = rng.choice((0, 0x7F, 0x80, 0xFF, 0x0A, 0x5A))
            case 2:
                del changed[at : at + rng.randrange(1, 40)]
            case 3:
                end = at + rng.randrange(1, 200)
                changed[at:at] = changed[at:end]
            case 4:
                changed[at : at + 1] = varint(rng.choice((2**31, 2**63, 2**64 - 1, 2**20)))
            case 5:
                changed[at : at + 8] = rng.randbytes(8)
            case _:
                source = rng.randrange(len(changed))
                changed[at : at + 30] = changed[source : source + 30]
        if not changed:
            return content
    return bytes(changed)


def fuzz(folder: Path, seed: int, inputs: int) -> dict[str, int]:
    """Read damaged traces; return how many had each outcome. Other errors than typed ones rise."""
    rng = random.Random(seed)
    rocprof = DATA / "track_events.pftrace"
    sources = [whole(folder), rocprof.read_bytes(), (DATA / "render_stages.pftrace").read_bytes()]
    sources.append(packed(zlib.compress(sources[0])))
    outcomes: dict[str, int] = {}
    for _ in range(inputs):
        path = folder / "fuzz.pftrace"
        path.write_bytes(mutated(rng, rng.choice(sources)))
        start = time.monotonic()
        try:
            trace = read(path)
            kept = sum(
                trace.tables[name].height
                for name in ("activities", "calls", "ops", "ranges", "links", "memory")
            )
            left_out = trace.tables.ledger.filter(~pl.col("kept"))["count"].sum()
            if trace.meta.format != "rocprof":
                assert kept + left_out == trace.meta.events
            outcome = "read"
        except TraceanaError as error:
            assert len(str(error).splitlines()) == 1
            outcome = type(error).__name__
        assert time.monotonic() - start < 10
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    return outcomes


@pytest.mark.slow
def test_damaged_traces_are_read_or_refused(tmp_path: Path) -> None:
    outcomes = fuzz(tmp_path, 1, 300)
    assert set(outcomes) <= {"read", "NotATraceError", "CorruptError", "UnknownFormatError"}
    assert outcomes["read"] > 150


def test_lengths_beyond_the_file_and_deep_nesting(tmp_path: Path) -> None:
    path = tmp_path / "t.pftrace"
    sound = (DATA / "track_events.pftrace").read_bytes()
    path.write_bytes(sound + b"\x0a" + varint(2**62) + b"abc")
    trace = read(path)
    assert (trace.tables.activities.height, trace.meta.truncated) == (10, True)
    value = b""
    for _ in range(5000):
        value = message((12, value))
    event = message((9, BEGIN), (11, 2), (23, "deep"), (4, message((10, "a"), (12, value))))
    path.write_bytes(sound + message((1, message((8, 50_000), (10, 1), (11, event)))))
    trace = read(path)
    assert (trace.tables.activities.height, notes(trace, "malformed")) == (10, 1)
    (path).write_bytes(b"\x0a\x05\x50\x01\x5a\x7f\x00")
    with pytest.raises(CorruptError, match="before its first event"):
        read(path)


@pytest.mark.slow
def test_a_million_empty_packets(tmp_path: Path) -> None:
    path = tmp_path / "t.pftrace"
    sound = (DATA / "track_events.pftrace").read_bytes()
    path.write_bytes(sound + b"\x0a\x00" * 10**6)
    assert read(path).tables.activities.height == 10
    # Within a compressed packet at most 64 MiB are read.
    path.write_bytes(sound + packed(zlib.compress(bytes(80 << 20))))
    trace = read(path)
    assert (trace.tables.activities.height, notes(trace, "malformed")) == (10, 1)

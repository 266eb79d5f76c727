"""Truncated files, damaged files, and files of other formats."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.readers.xplane.writing import (
    PlaneWriter,
    accounted,
    gpu,
    message,
    number,
    trace_of,
    write,
)
from tests.support.command_line import run
from traceana.errors import CorruptError, ExitCode, TraceanaError, UnknownFormatError
from traceana.readers import read
from traceana.readers.detect import detect


def test_an_xspace_is_detected_by_its_content(tmp_path: Path) -> None:
    assert detect(write(tmp_path / "anything", gpu("k"))).name == "xplane"


SPACE = gpu("a", "b").encode()
CUT = (SPACE[:-20], gzip.compress(SPACE, mtime=0)[:-12])


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", ExitCode.DAMAGED_INPUT),
        (message(1, message(1, "input") + message(2, "Placeholder")), ExitCode.UNRECOGNIZED_FORMAT),
        (SPACE + b"\x0f\x0f\x0f", ExitCode.DAMAGED_INPUT),
        (SPACE + message(9, "no field of an XSpace"), ExitCode.DAMAGED_INPUT),
        *((content, ExitCode.DAMAGED_INPUT) for content in CUT),
    ],
    ids=["empty", "GraphDef", "noise", "other field", "cut", "gzip cut"],
)
@pytest.mark.parametrize("command", ["info", "report"])
def test_errors_are_one_line_and_a_code(
    tmp_path: Path, command: str, content: bytes, code: ExitCode
) -> None:
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(content)
    shown = run(command, path)
    assert shown.exit_code == code
    (line,) = shown.stderr.splitlines()
    assert line.startswith("traceana: ")
    assert (shown.stdout != "") == (content in CUT)


@pytest.mark.parametrize(
    "content",
    [
        message(1, message(1, "input") + message(2, "Placeholder")),  # TensorFlow's GraphDef
        message(1, number(1, 1) + number(2, 2)),  # a pprof profile
        number(1, 8) + message(2, "pytorch"),  # an ONNX model
        b"\x0a\x05\xff\xff\xff\xff\xff",
    ],
    ids=["GraphDef", "pprof", "onnx", "noise"],
)
def test_a_protobuf_of_something_else(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.pb"
    path.write_bytes(content)
    with pytest.raises(UnknownFormatError):
        read(path)


@pytest.mark.slow
def test_cut_anywhere_is_read_up_to_there_or_refused(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.pb", gpu("a", "b"), gpu("c", device=1)).read_bytes()
    path = tmp_path / "cut.pb"
    seen = set()
    for size in range(1, len(whole)):
        path.write_bytes(whole[:size])
        try:
            trace = read(path)
        except TraceanaError:
            continue
        assert accounted(trace) == trace.meta.events
        first = len(gpu("a", "b").encode())
        assert trace.meta.truncated == (size != first)
        seen.add(trace.tables.activities.height)
    assert seen == {0, 1, 2, 3}


def test_an_event_that_is_cut_is_counted(tmp_path: Path) -> None:
    # Names come behind the events: those of a plane that is cut are lost.
    plane = gpu("a", "b")
    path = tmp_path / "cut.pb"
    encoded = plane.encode()
    path.write_bytes(encoded[: encoded.index(plane.lines[0]) + len(plane.lines[0]) - 1])
    trace = trace_of(path)
    assert trace.meta.truncated
    assert trace.tables.activities.height == 1
    assert trace.tables.names["name"].to_list() == ["(unnamed)"]
    reasons = dict(trace.tables.ledger.select("reason", "count").iter_rows())
    assert reasons["unnamed"] == 1
    assert reasons["truncated"] >= 1
    assert accounted(trace) == trace.meta.events == 2


def test_damaged_events_are_left_out_and_counted(tmp_path: Path) -> None:
    plane = PlaneWriter("/device:GPU:0")
    bad = message(4, number(1, 1) + b"\x12\x7f")  # a field that reaches beyond the event
    plane.line("Stream #1", [plane.event("a", 0, 1000), bad, plane.event("b", 5000, 1000)])
    trace = trace_of(write(tmp_path / "x.pb", plane))
    assert trace.tables.activities.height == 2
    assert dict(trace.tables.ledger.select("reason", "count").iter_rows()) == {"malformed": 1}
    assert accounted(trace) == trace.meta.events == 3


def test_an_event_whose_stat_lost_the_tag_of_its_value_is_damaged(tmp_path: Path) -> None:
    plane = PlaneWriter("/device:GPU:0")
    # The id of two bytes has the tag of the value in it, and the value is the tag of nothing.
    bad = message(4, number(1, 1) + message(4, b"\x08\x82\x18\x0d"))
    plane.line("Stream #1", [plane.event("a", 0, 1000), bad])
    trace = trace_of(write(tmp_path / "x.pb", plane))
    assert trace.tables.activities.height == 1
    assert dict(trace.tables.ledger.select("reason", "count").iter_rows()) == {"malformed": 1}


@pytest.mark.parametrize("tag", [b"\x25", b"\x21", b"\xa2\x00"], ids=["fixed32", "fixed64", "long"])
def test_events_of_another_encoding_are_counted_and_passed_over(tmp_path: Path, tag: bytes) -> None:
    plane = PlaneWriter("/device:GPU:0")
    odd = tag + (b"\x03\x08\x01\x00" if tag == b"\xa2\x00" else bytes(8 if tag == b"\x21" else 4))
    plane.line("Stream #1", [plane.event("a", 0, 1000), odd, odd, plane.event("b", 5000, 1000)])
    trace = trace_of(write(tmp_path / "x.pb", plane))
    assert trace.tables.activities["start"].to_list() == [0, 5]
    assert dict(trace.tables.ledger.select("reason", "count").iter_rows()) == {"malformed": 2}
    assert accounted(trace) == trace.meta.events == 4


def test_a_line_of_events_of_another_encoding_alone_is_counted(tmp_path: Path) -> None:
    plane = gpu("k")
    plane.line("Stream #2", [b"\x25" + bytes(4)] * 3)
    trace = trace_of(write(tmp_path / "x.pb", plane))
    assert accounted(trace) == trace.meta.events == 4


def test_events_that_stand_for_several_have_no_time(tmp_path: Path) -> None:
    plane = PlaneWriter("/host:CPU")
    plane.line("python", [plane.event("a", 0, 1000), plane.event("b", 0, 1000, number(5, 3))])
    trace = trace_of(write(tmp_path / "x.pb", plane))
    assert trace.tables.ranges.height == 1
    assert dict(trace.tables.ledger.select("reason", "count").iter_rows()) == {"aggregate": 1}
    assert accounted(trace) == trace.meta.events == 2


def test_other_fields_between_events(tmp_path: Path) -> None:
    plane = PlaneWriter("/device:GPU:0")
    events = [plane.event("a", 0, 1000), number(9, 5), plane.event("b", 5000, 1000)]
    plane.line("Stream #1", [*events, number(10, 7), message(11, "shown as")])
    trace = trace_of(write(tmp_path / "x.pb", plane))
    assert trace.tables.activities["start"].to_list() == [0, 5]
    assert trace.tables.ledger.is_empty()
    assert not trace.meta.truncated


def test_noise_behind_the_planes(tmp_path: Path) -> None:
    path = write(tmp_path / "x.pb", gpu("k"))
    path.write_bytes(path.read_bytes() + b"\x0f\x0f\x0f")
    with pytest.raises(CorruptError, match="copy or record it again"):
        read(path)


def test_a_line_whose_name_is_longer_than_the_line_is_a_problem(tmp_path: Path) -> None:
    whole = gpu("a", "b").encode()
    files = [tmp_path / name for name in ("sound.xplane.pb", "broken.xplane.pb")]
    name = message(2, "Stream #7(Kernel)")
    assert whole.count(name) == 1
    for file, content in zip(
        files, (whole, whole.replace(name, b"\x12\x7f" + name[2:])), strict=True
    ):
        file.write_bytes(content)
    sound, broken = map(trace_of, files)
    assert broken.tables.activities.height < sound.tables.activities.height
    problems = broken.tables.ledger.filter(broken.tables.ledger["severity"] == "problem")
    assert problems.select("reason", "count").rows() == [("damaged", 1)]


def test_a_plane_whose_tag_is_that_of_a_warning_is_a_problem(tmp_path: Path) -> None:
    file = write(tmp_path / "host.xplane.pb", gpu("a", "b"), gpu("c", device=1))
    content = bytearray(file.read_bytes())
    assert content[0] == 1 << 3 | 2
    content[0] = 3 << 3 | 2
    file.write_bytes(content)
    trace = trace_of(file)
    assert trace.tables.activities.height == 1
    assert trace.tables.ledger.select("reason", "severity", "count").rows() == [
        ("damaged", "problem", 1)
    ]


@pytest.mark.parametrize(
    "unknown",
    [message(5, "gone"), number(4, 1) + number(12, 7), b"\x2a\x7fcut"],
    ids=["another number", "after a wrong type", "longer than the line"],
)
def test_a_field_among_the_events_that_lines_do_not_have_is_a_problem(
    tmp_path: Path, unknown: bytes
) -> None:
    plane = PlaneWriter("/device:GPU:0")
    plane.line("Stream #1", [plane.event("a", 0, 1000), unknown])
    trace = trace_of(write(tmp_path / "x.pb", plane, gpu("c", device=1)))
    assert trace.tables.activities.height == 2
    assert "problem" in trace.tables.ledger["severity"].to_list()
    assert "damaged" in trace.tables.ledger["reason"].to_list()


def test_a_plane_whose_line_has_the_tag_of_no_field_is_a_problem(tmp_path: Path) -> None:
    whole = gpu("a", "b").encode()
    at = whole.index(message(2, "Stream #7(Kernel)"))
    tag = whole.rindex(b"\x1a", 0, at)
    file = tmp_path / "x.pb"
    file.write_bytes(whole[:tag] + b"\x3a" + whole[tag + 1 :])
    trace = trace_of(file)
    assert trace.tables.activities.height == 0
    assert trace.tables.ledger.select("reason", "severity", "count").rows() == [
        ("damaged", "problem", 1)
    ]


def test_metadata_that_no_longer_has_its_name_is_a_problem(tmp_path: Path) -> None:
    whole = gpu("kernel", "b").encode()
    at = whole.index(message(2, "kernel"))
    entry = whole.rindex(b"\x22", 0, at)
    file = tmp_path / "x.pb"
    file.write_bytes(whole[: entry + 2] + b"\x42\x7f" + whole[entry + 4 :])
    trace = trace_of(file)
    assert "problem" in trace.tables.ledger["severity"].to_list()
    assert "damaged" in trace.tables.ledger["reason"].to_list()


def test_a_name_longer_than_its_metadata_is_a_problem(tmp_path: Path) -> None:
    whole = gpu("kernel", "b").encode()
    name = message(2, "kernel")
    assert whole.count(name) == 1
    file = tmp_path / "x.pb"
    file.write_bytes(whole.replace(name, b"\x12\x7f" + name[2:]))
    trace = trace_of(file)
    assert trace.tables.ledger.select("reason", "severity", "count").rows() == [
        ("damaged", "problem", 1)
    ]


def test_hostile_text_is_only_text(tmp_path: Path) -> None:
    plane = PlaneWriter("/device:GPU:0")
    name = "(.*)\x00\x1b[31m{0}%s"
    plane.line("Stream #1", [plane.event(name, 0, 1000, tf_op="a\x00b/c:D", context_id="x\x00")])
    trace = trace_of(write(tmp_path / "x.pb", plane))
    assert trace.tables.names["name"].to_list() == [name]
    assert trace.tables.activities["scope"].to_list() == ["a?b/c"]


def test_a_profile_folder_with_nothing_readable(tmp_path: Path) -> None:
    run = tmp_path / "plugins" / "profile" / "2026_01_01_00_00_00"
    run.mkdir(parents=True)
    (run / "notes.txt").write_text("nothing")
    with pytest.raises(UnknownFormatError):
        read(run)

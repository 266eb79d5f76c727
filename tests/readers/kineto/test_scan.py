"""The compiled scanner and the decoder in Python make the same columns of the same events."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, get_type_hints
from unittest import mock

import msgspec
import pytest

from tests.readers.kineto.equal import assert_equal
from tests.readers.kineto.writing import annotation, call, kernel, op
from tests.support.manifest import FIXTURES, Expected, each
from traceana.readers.chrome.event_decoder import EventDecoder, UndecodableError
from traceana.readers.compiled import COMPILED
from traceana.readers.kineto import decode, reader, scan
from traceana.readers.kineto.decode import Args, Columns, Event
from traceana.readers.source import silent
from traceana.trace import Trace
from traceana.trace.schema import TABLES

pytestmark = pytest.mark.skipif(
    not COMPILED, reason="the scanner is not compiled: python -m tools.build_scanner"
)


DECODER = scan.DECODER


def is_scanned(text: bytes) -> bool:
    """Return whether the scanner accepts ``text``."""
    assert isinstance(DECODER, scan.ScanningDecoder)
    return DECODER.accepts(text)


def read_in_python(path: Path) -> Trace:
    """Read ``path`` by the decoder in Python."""
    with mock.patch.object(reader, "DECODER", decode.DECODER):
        return reader.read(path, silent)


def assert_read_alike(path: Path, tmp_path: Path) -> None:
    """Assert that the scanner reads all of a gzip file, and inflated, into equal tables."""
    plain = tmp_path / "plain.json"
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    want = read_in_python(path)
    for file in (path, plain):
        with mock.patch.object(EventDecoder, "decode", side_effect=AssertionError):
            found = reader.read(file, silent)
        for table in TABLES:
            assert found.tables[table].equals(want.tables[table]), (file, table)
        assert found.meta.properties == want.meta.properties


@pytest.mark.parametrize("fixture", sorted(FIXTURES.glob("*.json.gz")), ids=lambda path: path.name)
def test_our_own_recordings(fixture: Path, tmp_path: Path) -> None:
    assert_read_alike(fixture, tmp_path)


@pytest.mark.slow
@each("kineto")
def test_recordings_of_others(want: Expected, tmp_path: Path) -> None:
    assert_read_alike(want.path, tmp_path)


VALUES = (
    *("null", "true", "false", "0", "-0", "7", "-7", "007", "7.0", "7.5", "1e3", "-", "+1", ".5"),
    *("9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616"),
    *("-9223372036854775807", "-9223372036854775808", "-9223372036854775809", "1" * 400),
    *("1.5", "1.25", "1.2345", "1.0005", "1.0015", "1.00050001", "-1.0005", "-1.5", "0.0"),
    *("1695835123456.789", "9223372036854774.807", "9223372036854775.808", "0." + "3" * 60),
    *("NaN", "Infinity", "N/A", "", "nul", "tru", "[", "{", "]"),
    *('""', '"7"', '"stream 7"', '"-7"', '"a-7"', '"5-7"', '"--7"', '"0x1f"', '"7 "', '"x"'),
    *('"999999999999999999"', '"9999999999999999999"', '"99999999999999999999"', '"٣"', '"1e3"'),
    *(r'"a\"b\\\/\b\f\n\r\té"', r'"é\u00e9\u20ac\ud83d\ude00"', r'"\ud83d"', r'"\ude00\ud83d"'),
    *(r'"\ude00\ude00"', r'"\u0000"', r'"\q"', r'"\u12g4"', r'"\u12'),
    *('"\x01"', '"\n"', '"\x7f"', "'7'"),
    *("[]", "[1,2,3]", "[ 1 , 2 ]", "[1,2,3,4]", "[1.5,2,3]", '["1",2,3]', "[1,2,3", "[null]"),
    *("[1,]", "[,1]", "[[1,2],[3]]", "{}", '{"a": [1, {"b": null}]}', '{"a": 1,}', '{"a" 1}'),
    *("[" * 50 + "]" * 50, "[" * 70 + "]" * 70, "[" * 2000 + "]" * 2000),
    *('{"a":' * 50 + "1" + "}" * 50, '{"a":' * 70 + "1" + "}" * 70),
    *('"Float"', '"gloo:broadcast"', '"nccl:all_reduce"', '"[memory]"', '"ac2g"', '"X"', '"K"'),
)  # fmt: skip


def event_with(key: str, value: str, category: str, in_args: bool) -> str:
    """Return an event of a category with one value as it is given."""
    fields = {"ph": '"X"', "cat": f'"{category}"', "name": '"k"', "pid": "1", "tid": "2"}
    fields |= {"ts": "10.5", "dur": "2"}
    args = {"In msg nelems": "4"} if category == "kernel" else {}
    (args if in_args else fields)[key] = value
    inner = ", ".join(f'"{name}": {text}' for name, text in args.items())
    outer = ", ".join(f'"{name}": {text}' for name, text in fields.items())
    return f'{{{outer}, "args": {{{inner}}}}}'


def decoded(
    text: bytes, decoder: EventDecoder[Event, Columns], stop: int | None = None
) -> Columns | None:
    """Return the columns of ``text``, None where it cannot be decoded."""
    try:
        return decoder.decode(text, stop)
    except UndecodableError:
        return None


def assert_decoded_alike(text: bytes) -> None:
    """Assert that both decoders make the same of ``text``."""
    found, want = decoded(text, DECODER), decoded(text, decode.DECODER)
    if found is None or want is None:
        assert found is want, text
    else:
        assert_equal(found, want)


KEYS = [
    (field.encode_name, struct is Args)
    for struct in (Event, Args)
    for field in msgspec.structs.fields(struct)
]


@pytest.mark.parametrize(("key", "in_args"), [*KEYS, ("unknown", True)], ids=lambda key: str(key))
def test_any_value_of_any_key(key: str, in_args: bool) -> None:
    categories = ("kernel", "cuda_runtime", "cpu_op", "user_annotation", "Trace")
    events = [
        event_with(key, value, category, in_args).encode()
        for value in VALUES
        for category in categories
    ]
    # All together: each that is refused would be decoded in Python, and prove nothing.
    accepted = [event for event in events if is_scanned(event)]
    text = b", ".join(accepted)
    assert is_scanned(text)
    assert_decoded_alike(text)
    refused = [event for event in events if event not in set(accepted)]
    if key in ("ts", "dur", "pid", "correlation", "name", "grid", "Input Dims", "dtype", "unknown"):
        assert accepted and refused


def test_a_value_that_profilers_write_is_not_refused() -> None:
    for struct in (Event, Args):
        types = get_type_hints(struct)
        for field in msgspec.structs.fields(struct):
            value = '"s"' if types[field.name] in (str, str | None) else "7"
            value = {"args": "{}", "grid": "[1, 2, 3]", "block": "[4]"}.get(field.name, value)
            texts = ("message_type", "collective", "group_name", "group_description", "copy_kind")
            memories = ("source_memory", "destination_memory")
            if field.name in (*texts, *memories, "group_ranks", "annotation", "annotation_text"):
                value = '"Half"'
            event = event_with(field.encode_name, value, "kernel", struct is Args)
            if field.name == "args":
                event = '{"ph": "X", "args": {}}'
            assert is_scanned(event.encode()), field.name


LAUNCH = decode.LAUNCH
EVENTS: list[dict[str, Any]] = [
    kernel("k", 1, 2, grid=[1, 2, 3], block=[4, 5], correlation=9, **{"External id": 3}),
    kernel("nccl", 1, 2, bytes=3, **{"In msg nelems": 5, "dtype": "Half", "Group size": 2}),
    kernel("nccl", 1, 2, bytes=3, **{"In msg nelems": 5, "dtype": "unknown"}),
    kernel(
        "nccl",
        1,
        2,
        **{"In msg nelems": 5, "Out msg nelems": 10, "dtype": "Half", "Process Group Name": "0"},
        **{"Process Group Description": "tp", "Process Group Ranks": "[0, 1]", "Seq": 8},
        **{"Group size": 2, "Dst Rank": 1, "Src Rank": 0, "Collective name": "send"},
    ),
    kernel("nccl", 1, 2, **{"Out msg nelems": 10, "dtype": "Half", "Src Rank": "1"}),
    {**op(LAUNCH, 1, 1), "args": {"External id": 3, "Process Group Name": "0", "Seq": 8}},
    {**op(LAUNCH, 1, 1), "args": {"Process Group Ranks": "[0, ..., 63]", "Dst Rank": 3}},
    {**kernel("é\U0001f600", "1.0", 2), "cat": "Kernel", "ts": 2.0005},
    {**kernel("no name", 1, 2), "tid": "stream 7"},
    {"ph": "X", "cat": "gpu_memcpy", "pid": 0, "tid": 7, "ts": 1, "dur": 1},
    call("cudaLaunchKernel", 1, 1, 5),
    {**call("hipMemcpy", 1, 1, 5), "args": {"external id": 4, "size": "2560"}},
    {**op("aten::mm", 1, 1), "args": {"Input dims": [[1]], "Module Hierarchy": "", "Ev Idx": 1}},
    {**op("aten::mm", 1, 1), "args": {"Input Dims": [], "Input dims": 1, "Module Hierarchy": "a"}},
    {**op("aten::mm", 1, 1), "args": {"Call stack": "a.py(1): f;b.py(2): <module>"}},
    {**op("aten::mm", 1, 1), "args": {"Call stack": "", "Module Hierarchy": "a"}},
    {**op("aten::mm", 1, 1), "args": {"Call stack": 7}},
    annotation("ProfilerStep#1", 1, 1),
    {**annotation("gloo:all_reduce", 1, 1), "args": {"Input Dims": [[8]], "Input type": ["f"]}},
    {**annotation("nccl:all_reduce", 1, 1), "args": {"Input Dims": [[8]], "Input type": ["f"]}},
    {**annotation("other", 1, 1), "args": {"Input Dims": [[8]]}},
    {**annotation("gloo:all_reduce", 1, 1), "cat": "gpu_user_annotation"},
    {"ph": "s", "cat": "fwdbwd", "id": 1, "pid": 1, "tid": 1, "ts": 1},
    {"ph": "f", "cat": "fwdbwd", "id": 1, "pid": 1, "tid": 1, "ts": 2, "bp": "e"},
    {"ph": "t", "cat": "fwdbwd", "id": 1, "pid": 1, "tid": 1, "ts": 2},
    {"ph": "s", "cat": "AC2G", "id": 1, "pid": 1, "tid": 1, "ts": 1},
    {"ph": "s", "id": "0x1", "pid": 1, "tid": 1, "ts": 1},
    {"ph": "M", "name": "process_name", "pid": "python", "args": {"name": "x"}},
    {"ph": "C", "name": "c", "ts": 1, "args": {"v": 1.5}},
    {
        "ph": "C",
        "name": "c",
        "pid": 0,
        "ts": 1,
        "args": {"": 1e3, "é": -2, "s": "1", "d": {"a": []}},
    },
    {"ph": "C", "name": "c (W)", "pid": "GPU 0 Counters", "ts": 2.5, "args": {}},
    {"ph": "C", "name": "c", "pid": "GPU 0 Counters", "ts": 3},
    {"ph": "i", "name": "Iteration Start", "s": "g", "ts": 1},
    {"ph": "i", "name": "[memory]", "ts": 1, "args": {"Device Type": 1, "Bytes": -512}},
    {"ph": "I", "name": "[memory]", "cat": "other", "ts": 1, "args": {"Device Id": 1}},
    {"ph": "X", "cat": "Trace", "name": "PyTorch", "pid": "Spans", "tid": "P", "ts": 1, "dur": 1},
    {"ph": "X", "name": "", "cat": None, "ts": 1},
    {"ph": "X", "cat": "", "ts": 1},
    {"ph": "Z", "cat": "new", "ts": 1},
    {"ph": "", "cat": "kernel"},
]


@pytest.mark.exhaustive(after=12)
@pytest.mark.parametrize("number", range(len(EVENTS)))
def test_an_event_of_each_kind_before_and_after_others(number: int) -> None:
    turned = EVENTS[number:] + EVENTS[:number]
    for events in ([EVENTS[number]], turned, [turned[0], *turned[::-1]]):
        for ascii_ in (True, False):
            text = json.dumps(events, ensure_ascii=ascii_)[1:-1].encode()
            assert_decoded_alike(text)
            assert_decoded_alike(json.dumps(events, indent=2)[1:-1].encode())


TEXTS = (
    *(b"", b" \n\t\r ", b",", b"{}", b'{"ph"', b'{"ph": "X"', b'{"ph": "X"},', b',{"ph": "X"}'),
    *(b'{"ph": "X"} {"ph": "X"}', b'{"ph": "X",}', b'{"ph": "X"}]', b'{"ph": "X"}\x00'),
    *(b"7", b"null", b"[]", b'"X"', b'{"ph": "X"}, 7', b'\xef\xbb\xbf{"ph": "X"}'),
    *(b'{"ph": "X", "ph": "X"}', b'{"ph": "X", "args": {}, "args": {"device": 1}}'),
    *(b'{"ph": "X", "args": {"device": 1, "device": 2}}', b'{"ph": "X", "x": 1, "x": 2}'),
    *(b'{"p\\u0068": "X"}', b'{"ph": "X", "": 1, "\xc3\xa9": 2}', b'{"ph": "\\u0058"}'),
    *(b'{"ph": "X", "args": []}', b'{"ph": "X", "args": null}', b'{"ph": "X", "args": {,}}'),
    *(b'{"ph": "X", "name": "\xff"}', b'{"ph": "X", "name": "\xc3"}'),
    *(b'{"ph": "X", "x": "\xc0\x80"}', b'{"ph": "X", "x": "\xed\xa0\x80"}'),
    *(b'{"ph": "X", "x": "\xf4\x90\x80\x80"}', b'{"ph": "X", "x": "\xe0\x80\x80"}'),
    *(b'{"ph": "X", "x": "\xf0\x9f\x98\x80\xe2\x82\xac"}',),
    b'{"ph": "X", "cat": "\xe2\x84\xaaernel"}',  # K of kelvin, whose lower case is k
)  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_text_that_no_profiler_writes(text: bytes) -> None:
    assert_decoded_alike(text)
    for end in range(len(text)):
        assert_decoded_alike(text[:end])


def test_many_categories_and_many_texts() -> None:
    for count in (100, 300, 5_000):
        categories = [{"ph": "X", "cat": f"c{number % 300}"} for number in range(count)]
        names = [kernel(f'"{number}"\n', number, 1) for number in range(count)]
        assert_decoded_alike(json.dumps(categories)[1:-1].encode())
        assert_decoded_alike(json.dumps(names)[1:-1].encode())


def test_only_the_text_before_the_end_is_scanned() -> None:
    text = b'{"ph": "M"}, {"ph": "M"}'
    for stop in range(-1, len(text) + 3):
        found = decoded(text, DECODER, stop)
        want = decoded(text[: max(stop, 0)], decode.DECODER)
        assert (found is None) == (want is None)
        assert found is None or want is None or found.events == want.events

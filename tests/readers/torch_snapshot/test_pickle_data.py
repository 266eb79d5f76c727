"""Pickles of plain data are decoded, all others are refused, and nothing of them runs."""

from __future__ import annotations

import copyreg
import gzip
import os
import pickle
import pickletools
import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import traceana
from tests.support.allocator import Allocator, frame
from traceana.errors import CorruptError, NotATraceError, TraceanaError
from traceana.readers import read
from traceana.readers.source import ByteSource
from traceana.readers.torch_snapshot import pickle_data
from traceana.readers.torch_snapshot.pickle_data import PROTOCOLS, decode

DATA = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner)
        | st.tuples(inner, inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text(), inner)
    ),
    max_leaves=30,
)
PLAIN = {
    *("PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET"),
    *("LONG_BINGET", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1"),
    *("BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "EMPTY_LIST", "APPEND"),
    *("APPENDS", "EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2"),
    "TUPLE3",
}
"""The opcodes that Python's pickler writes for the data of a snapshot."""
GLOBALS = (
    *("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX"),
    *("EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID"),
)


def decoded(content: bytes, path: Path) -> Any:
    path.write_bytes(content)
    return decode(ByteSource(path), "action", len)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pickles") / "snapshot.pickle"


@given(DATA, st.sampled_from(PROTOCOLS), st.booleans(), st.booleans())
def test_data_is_what_python_reads(
    file: Path, data: Any, protocol: int, is_compressed: bool, in_python: bool
) -> None:
    in_c, of_python = pickle.dumps, vars(pickle)["_dumps"]
    content = (of_python if in_python else in_c)(data, protocol)
    assert decoded(gzip.compress(content) if is_compressed else content, file) == data


def test_shared_objects_are_one(file: Path) -> None:
    shared = [1, 2]
    for protocol in PROTOCOLS:
        result = decoded(pickle.dumps({"a": shared, "b": shared}, protocol), file)
        assert result["a"] is result["b"]


def test_texts_longer_than_a_block(file: Path) -> None:
    # Blocks end within texts and numbers.
    for length in (255, 256, 70_000, (4 << 20) + 17):
        data = ["x" * length, 3**40, "é" * length, 1 << 40]
        assert decoded(pickle.dumps(data * 2), file) == data * 2


@pytest.mark.parametrize("name", sorted({op.name for op in pickletools.opcodes} - PLAIN))
def test_other_opcodes_are_refused(file: Path, name: str) -> None:
    opcode = next(op.code for op in pickletools.opcodes if op.name == name).encode("latin-1")
    for before in (b"", b"\x80\x04", b"\x80\x04]\x94", b"\x80\x04}\x94(\x8c\x08segments"):
        with pytest.raises(NotATraceError, match=name):
            decoded(before + opcode + b"os\nsystem\n" + bytes(16) + b".", file)


class Runs:
    """An object whose pickle runs a function when it is loaded."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.marker}",)


def test_nothing_runs(tmp_path: Path) -> None:
    marker, file = tmp_path / "ran", tmp_path / "snapshot.pickle"
    for protocol in PROTOCOLS:
        for place in ("segments", "other"):
            data = {"segments": [], place: [Runs(marker)]}
            file.write_bytes(pickle.dumps(data, protocol))
            with pytest.raises(NotATraceError, match=r"opcode (STACK_)?GLOBAL.*runs no pickle"):
                traceana.open(file)
    assert not marker.exists()
    pickle.loads(file.read_bytes())
    assert marker.exists(), "the pickle would have run"


def test_extension_codes_are_refused(file: Path) -> None:
    # Python keeps what a code stands for, and then does not ask find_class.
    copyreg.add_extension("os", "system", 0xF0)
    try:
        pickle.loads(b"\x82\xf0.")
        with pytest.raises(NotATraceError, match="EXT1"):
            decoded(b"\x80\x04\x82\xf0.", file)
    finally:
        copyreg.remove_extension("os", "system", 0xF0)


def test_every_opcode_with_a_global_is_among_those_refused() -> None:
    assert {*GLOBALS} <= {op.name for op in pickletools.opcodes} - PLAIN


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_cut_pickle_is_truncated(file: Path, protocol: int) -> None:
    stack = [frame("trän.py", 300), frame("/x.py", 70_000)]
    allocator = Allocator()
    allocator.free(allocator.allocate(70_000, stack))
    allocator.allocate(1 << 40, stack)
    content = pickle.dumps({**allocator.snapshot(), "f": [0.5, -1, 1 << 300, (1, 2)]}, protocol)
    for end in range(2, len(content)):
        with pytest.raises(CorruptError, match="is truncated"):
            decoded(content[:end], file)
    with pytest.raises(CorruptError, match="is truncated"):
        decoded(gzip.compress(content)[:-20], file)


@pytest.mark.parametrize(
    ("what", "content"),
    [
        ("a place far away in the memo", b"\x80\x04Nr\xff\xff\xff\x7f."),
        ("a text of 2^63 bytes", b"\x80\x04\x8d" + b"\xff" * 8 + b"abc."),
        ("a text of 4 GB", b"\x80\x04X\xff\xff\xff\xffabc."),
        ("a reference to nothing", b"\x80\x04j\x05\0\0\0."),
        ("an append to a number", b"\x80\x04K\x01K\x02a."),
        ("a list as a key", b"\x80\x04}]K\x02s."),
        ("an odd number of keys and values", b"\x80\x04}(K\x01u."),
        ("no mark", b"\x80\x04}u."),
        ("an open mark", b"\x80\x04(}."),
        ("two objects", b"\x80\x04}}."),
        ("none", b"\x80\x04."),
        ("bytes that are not UTF-8", b"\x80\x04\x8c\x02\xff\xfe."),
        ("a tuple across a mark", b"\x80\x04K\x01(K\x01\x86."),
        ("keys that collide", b"\x80\x04}(" + b"".join(
            b"\x8a\x0a" + ((2**61 - 1) * number).to_bytes(10, "little") + b"N"
            for number in range(1, 300)
        ) + b"u."),
        ("lists alone", b"\x80\x04" + b"]" * (2 << 20) + b"."),
        ("marks alone", b"\x80\x04" + b"(" * (2 << 20) + b"."),
    ],
)  # fmt: skip
def test_invalid_data_is_one_line(
    file: Path, what: str, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pickle_data, "_FEW", 1 << 16)
    monkeypatch.setattr(pickle_data, "_BLOCK", 1 << 16)
    tracemalloc.start()
    with pytest.raises(CorruptError) as error:
        decoded(content, file)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "\n" not in str(error.value)
    assert most < 16 * len(content) + (16 << 20), what


def test_deep_nesting(file: Path) -> None:
    depth = 200_000
    result = decoded(b"\x80\x04" + b"]" * depth + b"a" * (depth - 1) + b".", file)
    assert len(result) == 1


def sample() -> bytes:
    allocator = Allocator(devices=2, most_events=40)
    stack = [frame("??", 0, "at::empty"), frame("/p/model.py", 3, "forward"), frame("/p/t.py", 9)]
    kept = [allocator.allocate(1000 * size, stack, device=size % 2) for size in range(1, 12)]
    for address in kept[::3]:
        allocator.free(address, at_once=address % 2 == 0)
    allocator.fail(1 << 30, 1 << 20, stack)
    return pickle.dumps(allocator.snapshot())


@pytest.mark.parametrize("count", [400, pytest.param(10_000, marks=pytest.mark.slow)])
def test_damaged_snapshots_are_read_or_refused(tmp_path: Path, count: int) -> None:
    """Damaged files give tables whose events are all accounted for, or one line."""
    content, file = sample(), tmp_path / "snapshot.pickle"
    chooser = random.Random(count)
    outcomes = {"read": 0, "refused": 0}
    for number in range(count):
        damaged = bytearray(content)
        for _ in range(chooser.choice((1, 1, 2, 8))):
            at = chooser.randrange(2, len(damaged))
            match chooser.randrange(4):
                case 0:
                    damaged[at] = chooser.randrange(256)
                case 1:
                    del damaged[at : at + chooser.randrange(1, 30)]
                case 2:
                    other = chooser.randrange(len(damaged))
                    damaged[at:at] = damaged[other : other + chooser.randrange(1, 60)]
                case _:
                    number32 = chooser.choice((0, 1, 2**31, 2**32 - 1))
                    damaged[at : at + 4] = struct.pack("<I", number32)
        file.write_bytes(damaged)
        try:
            trace = read(file)
        except TraceanaError as error:
            assert "\n" not in str(error)
            outcomes["refused"] += 1
            continue
        outcomes["read"] += 1
        ledger = trace.tables.ledger
        excluded = ledger.filter(~ledger["kept"])["count"].sum()
        held = trace.tables.memory.height + trace.tables.memory_blocks.height
        assert trace.meta.events == held + excluded
        if number % 20 == 0:
            whole = traceana.open(file)
            for by in ("device", "line", "stack", "pool", "time"):
                assert str(whole.memory(by=by))
    assert min(outcomes.values()) > count // 20, outcomes

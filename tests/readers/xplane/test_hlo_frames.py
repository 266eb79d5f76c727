"""The Python stack that an instruction of a compiled program comes from."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import traceana
from tests.readers.xplane.hlo_writing import Made, array, computation, module, ran, write_programs
from tests.readers.xplane.writing import message, number, trace_of
from traceana.readers.xplane.hlo_proto import read_module
from traceana.trace import Trace

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures" / "xplane"
X = array(8, 8)


def index(
    files: Sequence[str | bytes],
    functions: Sequence[str | bytes],
    places: Sequence[tuple[int, int, int]],
    stack: Sequence[tuple[int, int]],
) -> bytes:
    """Encode a module's index: ``places`` are (file, function, line), ``stack`` (place, parent)."""
    content = b"".join(message(1, file) for file in files)
    content += b"".join(message(2, function) for function in functions)
    for file, function, line in places:
        content += message(3, number(1, file) + number(2, function) + number(3, line))
    for place, parent in stack:
        content += message(4, number(1, place) + number(2, parent))
    return message(17, content)


def of_frame(frame: int) -> bytes:
    """Encode the metadata of an instruction of a frame."""
    return message(7, number(15, frame))


def at_line(file: str | bytes, line: int | None = None) -> bytes:
    """Encode the metadata of an instruction of a line, without a stack."""
    return message(7, message(3, file) + (b"" if line is None else number(4, line)))


def opened(tmp_path: Path, program: bytes) -> Trace:
    return trace_of(write_programs(tmp_path / "x.pb", ran(("jit_f", 1, "any")), jit_f_1=program))


def frames(tmp_path: Path, *metadata: bytes, stacks: bytes = b"") -> list[str | None]:
    """Return the frames of one instruction for each encoded metadata."""
    made = [Made(key, f"i{key}", "negate", X, more=more) for key, more in enumerate(metadata, 1)]
    table = opened(tmp_path, module(1, computation(1, 1, *made), stacks)).tables.instructions
    assert table["frames"].dtype == pl.Categorical
    return table["frames"].cast(pl.String).to_list()


def lost(trace: Trace) -> int:
    of_stacks = pl.col("detail") == "Python stacks of instructions"
    return int(trace.tables.ledger.filter(of_stacks)["count"].sum())


STACKS = index(
    ["model.py", "train.py"],
    ["Net.__call__", "step", "<module>"],
    [(1, 1, 41), (2, 2, 12), (2, 3, 90), (2, 0, 7), (1, 1, 0)],
    [(3, 0), (2, 1), (1, 2), (4, 1), (5, 0)],
)


def test_a_whole_stack_innermost_first(tmp_path: Path) -> None:
    whole = "model.py(41): Net.__call__;train.py(12): step;train.py(90): <module>"
    outer = "train.py(12): step;train.py(90): <module>"
    found = frames(tmp_path, *(of_frame(frame) for frame in (3, 2, 3, 4, 5, 1)), stacks=STACKS)
    assert found == [
        whole,
        outer,
        whole,
        "train.py(7);train.py(90): <module>",  # a frame without a function
        "model.py: Net.__call__",  # and one without a line
        "train.py(90): <module>",
    ]


def test_a_line_without_a_stack(tmp_path: Path) -> None:
    found = frames(tmp_path, at_line("a.py", 3), at_line("a.py"), at_line("", 3), b"")
    assert found == ["a.py(3)", "a.py", None, None]


def test_the_stack_says_more_than_the_line(tmp_path: Path) -> None:
    both = at_line("a.py", 3) + of_frame(1)
    assert frames(tmp_path, both, stacks=STACKS) == ["train.py(90): <module>"]


@pytest.mark.parametrize("frame", [6, 1_000_000, -1, -(2**31), 2**31 - 1, 2**63 - 1])
def test_a_frame_that_the_index_lacks(frame: int, tmp_path: Path) -> None:
    """The line stands in for it."""
    metadata = of_frame(frame), at_line("a.py", 3) + of_frame(frame)
    assert frames(tmp_path, *metadata, stacks=STACKS) == [None, "a.py(3)"]
    assert frames(tmp_path, *metadata) == [None, "a.py(3)"]
    assert lost(trace_of(tmp_path / "x.pb")) == 2


@pytest.mark.parametrize("wrong", [9, -1, 2**40])
def test_numbers_that_the_index_lacks(wrong: int, tmp_path: Path) -> None:
    stacks = index(
        ["a.py"],
        ["f"],
        [(1, 1, 1), (wrong, 1, 2), (1, wrong, 3), (0, 1, 4), (1, 1, -5)],
        [(1, 0), (wrong, 1), (1, wrong), (2, 1), (3, 1), (4, 1), (5, 1), (0, 1)],
    )
    found = frames(tmp_path, *(of_frame(frame) for frame in range(1, 9)), stacks=stacks)
    # What is known of a stack stays: frames without a file are passed over.
    assert found == [
        "a.py(1): f",
        "a.py(1): f",
        "a.py(1): f",
        "a.py(1): f",
        "a.py(3);a.py(1): f",
        "a.py(1): f",
        "a.py: f;a.py(1): f",
        "a.py(1): f",
    ]
    assert lost(trace_of(tmp_path / "x.pb")) > 0


def test_frames_that_are_their_own_parents_end(tmp_path: Path) -> None:
    stacks = index(["a.py"], ["f", "g"], [(1, 1, 1), (1, 2, 2)], [(1, 1), (1, 3), (2, 2)])
    found = frames(tmp_path, of_frame(1), of_frame(2), of_frame(3), stacks=stacks)
    assert found == ["a.py(1): f", "a.py(1): f;a.py(2): g", "a.py(2): g;a.py(1): f"]
    assert lost(trace_of(tmp_path / "x.pb")) == 3


def test_a_stack_has_at_most_500_frames(tmp_path: Path) -> None:
    stacks = index(
        ["a.py"],
        [],
        [(1, 0, line) for line in range(1, 2001)],
        [(place, place - 1) for place in range(1, 2001)],
    )
    deep, whole = frames(tmp_path, of_frame(2000), of_frame(500), stacks=stacks)
    assert deep == ";".join(f"a.py({line})" for line in range(2000, 1500, -1))
    assert whole == ";".join(f"a.py({line})" for line in range(500, 0, -1))


@pytest.mark.parametrize("parents", [True, False])
@pytest.mark.parametrize("length", [20_000, 1_000_000])
def test_stacks_that_would_fill_the_memory_are_left_out(
    length: int, parents: bool, tmp_path: Path
) -> None:
    stacks = index(
        ["a" * length],
        [],
        [(1, 0, line) for line in range(1, 401)],
        [(place, (place - 1) * parents) for place in range(1, 401)],
    )
    begin = time.perf_counter()
    found = frames(tmp_path, *(of_frame(frame) for frame in range(1, 401)), stacks=stacks)
    assert found[0] == ("a" * length + "(1)" if length < 1 << 16 else None)
    assert found[-1] is None
    assert sum(len(text or "") for text in found) < 150 * (tmp_path / "x.pb").stat().st_size
    assert time.perf_counter() - begin < 20
    assert lost(trace_of(tmp_path / "x.pb")) >= found.count(None)
    assert max(len(text or "") for text in found) <= 1 << 16


def test_hostile_text_comes_out_as_it_is(tmp_path: Path) -> None:
    stacks = index([b"\xff;\x00.py"], ['<b>"\n'], [(1, 1, 2**31 - 1)], [(1, 0)])
    found = frames(tmp_path, of_frame(1), at_line(b"\xfe\n", 1), stacks=stacks)
    assert found == ['\ufffd;\x00.py(2147483647): <b>"\n', "\ufffd\n(1)"]


def test_a_damaged_index_leaves_the_program(tmp_path: Path) -> None:
    metadata = of_frame(1), at_line("a.py", 3) + of_frame(1), at_line("a.py", 3)
    found = frames(tmp_path, *metadata, stacks=message(17, b"\x0a\x7f"))
    assert found == [None, "a.py(3)", "a.py(3)"]
    assert lost(trace_of(tmp_path / "x.pb")) == 2


def test_a_fusion_without_a_stack_has_that_of_its_root(tmp_path: Path) -> None:
    def fused(key: int, root: bytes) -> bytes:
        made = (
            Made(key * 10, f"p{key}", "parameter", X),
            Made(key * 10 + 1, f"root{key}", "add", X, "jit(f)/add", more=root),
        )
        return computation(key, key * 10 + 1, *made)

    main = computation(
        1,
        5,
        Made(2, "of_root", "fusion", X, called=(10,)),
        Made(3, "own", "fusion", X, called=(11,), more=of_frame(1)),
        Made(4, "none", "fusion", X, called=(12,)),
        Made(5, "missing", "fusion", X, called=(99,)),
        Made(6, "call", "call", X, called=(13,)),
        Made(7, "nothing", "fusion", X),
    )
    inner = [fused(10, of_frame(3)), fused(11, of_frame(3)), fused(12, b""), fused(13, of_frame(2))]
    trace = opened(tmp_path, module(1, *inner, main, STACKS))
    found = dict(
        trace.tables.instructions.select("name", pl.col("frames").cast(pl.String)).iter_rows()
    )
    whole = "model.py(41): Net.__call__;train.py(12): step;train.py(90): <module>"
    assert found["of_root"] == found["root10"] == whole
    assert found["own"] == "train.py(90): <module>"
    assert [found[name] for name in ("none", "missing", "call", "nothing")] == [None] * 4


NUMBERS = st.integers(-2, 8)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=6),
    st.lists(st.tuples(NUMBERS, NUMBERS), max_size=6),
    st.lists(NUMBERS, min_size=1, max_size=4),
)
def test_any_numbers_are_read(
    places: list[tuple[int, int, int]], stack: list[tuple[int, int]], asked: list[int]
) -> None:
    stacks = index(["a.py", "", "b.py"], ["f", "g"], places, stack)
    made = [Made(key, "i", "negate", X, more=of_frame(at)) for key, at in enumerate(asked, 1)]
    for computed in read_module(module(1, computation(1, 1, *made), stacks)).computations:
        for instruction in computed.instructions:
            assert instruction.frames.count(";") < 6


def test_a_recorded_training_has_its_stacks() -> None:
    trace = traceana.open(FIXTURES / "alexnet-cpu-jax.xplane.pb")
    table, work = trace.tables.instructions, trace.tables.activities
    with_frames = work.filter(table["frames"].gather(work["instruction"]).is_not_null())
    # XLA drops the metadata of the gradients of weights, which take most of the rest.
    assert int(with_frames["duration"].sum()) > 0.75 * int(work["duration"].sum())
    texts = table["frames"].drop_nulls().cast(pl.String)
    assert texts.str.contains(r"^[^;]+\(\d+\): [^;]+(;[^;]+\(\d+\): [^;]+)*$").all()
    assert texts.str.ends_with("<frozen runpy>(198): _run_module_as_main").all()
    assert lost(trace) == 0

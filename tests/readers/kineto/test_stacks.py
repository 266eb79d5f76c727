"""The Python stack that torch 1.8 to 1.10 write in their operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl
import pytest

from tests.readers.kineto.writing import Event, annotation, kernel, op, write
from traceana.readers.chrome.event_decoder import EventDecoder
from traceana.readers.kineto import decode, reader, scan
from traceana.readers.source import silent

STACK = "model.py(41): forward;torch/nn/modules/module.py(1051): _call_impl;train.py(12): <module>"
DECODERS = [decode.DECODER, scan.DECODER]
"""The same one twice where the scanner is not compiled."""


def stacked(name: str, ts: int, stack: Any) -> Event:
    """Return an operator of 1 µs with a stack."""
    return {**op(name, ts, 1), "args": {"Call stack": stack}}


def frames(path: Path, decoder: EventDecoder[Any, Any]) -> list[str | None]:
    with mock.patch.object(reader, "DECODER", decoder):
        table = reader.read(path, silent).tables.ops
    assert table["frames"].dtype == pl.Categorical
    return table["frames"].cast(pl.String).to_list()


@pytest.mark.parametrize("decoder", DECODERS, ids=["python", "scanner"])
def test_operators_have_their_stack_as_recorded(
    decoder: EventDecoder[Any, Any], tmp_path: Path
) -> None:
    texts = [
        STACK,
        "<built-in function linear>;nn/functional.py(1847): linear",
        'C:\\new\\tab.py(3): "quoted"\n\t;é\U0001f600.py(1): \x00',
        ";;;",
        " ",
        "x" * 60_000,
        STACK,
    ]
    events = [stacked("aten::mm", at, text) for at, text in enumerate(texts, 1)]
    assert frames(write(tmp_path / "x.json", events), decoder) == texts


@pytest.mark.parametrize("decoder", DECODERS, ids=["python", "scanner"])
@pytest.mark.parametrize("value", ["", None, 7, 1.5, True, [], ["a.py(1): f"], {"a": "b"}])
def test_no_stack_and_other_values_are_null(
    value: Any, decoder: EventDecoder[Any, Any], tmp_path: Path
) -> None:
    events = [stacked("a", 1, value), op("b", 3, 1)]
    assert frames(write(tmp_path / "x.json", events), decoder) == [None, None]
    # Beside one that has a stack.
    events.append(stacked("c", 5, STACK))
    assert frames(write(tmp_path / "x.json", events), decoder) == [None, None, STACK]


def test_a_stack_cut_by_the_end_of_the_file_is_lost_with_its_operator(tmp_path: Path) -> None:
    events = [stacked("a", 1, STACK), stacked("b", 3, STACK)]
    path = write(tmp_path / "x.json", events)
    path.write_bytes(path.read_bytes().rpartition(b"train.py")[0])
    assert frames(path, scan.DECODER) == [STACK]


def test_stacks_of_other_events_are_not_read(tmp_path: Path) -> None:
    stack = {"Call stack": STACK}
    events = [
        {**kernel("k", 1, 1), "args": stack},
        {**annotation("range", 1, 1), "args": stack},
        stacked("ProfilerStep#1", 1, STACK),
        {**annotation("gloo:all_reduce", 2, 1), "args": stack},
        op("aten::mm", 2, 1),
    ]
    path = write(tmp_path / "x.json", events)
    trace = reader.read(path, silent)
    assert trace.tables.ops["frames"].null_count() == trace.tables.ops.height == 2
    assert trace.tables.ranges["text"].cast(pl.String).to_list() == ["range", "ProfilerStep#1"]


def test_operators_that_differ_in_their_stack_are_no_duplicates(tmp_path: Path) -> None:
    events = [stacked("a", 1, stack) for stack in ("a.py(1): f", "b.py(1): f")]
    path = write(tmp_path / "x.json.gz", events, compress=True)
    assert frames(path, scan.DECODER) == ["a.py(1): f", "b.py(1): f"]


def test_a_stack_beyond_the_length_of_a_label_is_cut(tmp_path: Path) -> None:
    path = write(tmp_path / "x.json", [stacked("a", 1, "x" * 100_000)])
    ledger = reader.read(path, silent).tables.ledger
    assert ledger.filter(reason="oversized").select("detail", "count").rows() == [("frames", 1)]

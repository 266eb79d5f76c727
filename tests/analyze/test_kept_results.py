"""Results that are kept for a Trace are read-only, whoever holds them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest

from tests.support.traces import cnn_steps
from traceana import Trace
from traceana.analyze.charges import charges
from traceana.analyze.executed_flops import executed_convolutions
from traceana.analyze.roofline import units
from traceana.frozen import FrozenDict, frozen
from traceana.timeline.idle import idle_time
from traceana.timeline.steps import measured_steps, step_windows, steps


def arrays(value: Any) -> Iterator[np.ndarray[Any, Any]]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from arrays(getattr(value, name))
    elif isinstance(value, dict):
        for one in value.values():
            yield from arrays(one)
    elif isinstance(value, list | tuple):
        assert isinstance(value, tuple)
        for one in value:
            yield from arrays(one)


def test_arrays_are_read_only() -> None:
    trace = cnn_steps()
    found = [*arrays(idle_time(trace))]
    assert found
    assert not any(array.flags.writeable for array in found)


@pytest.mark.parametrize(
    "kept", [step_windows, executed_convolutions, lambda trace: units(trace).work]
)
def test_a_frame_that_is_changed_does_not_come_back(kept: Any) -> None:
    trace = cnn_steps()
    before = kept(trace)
    kept(trace).insert_column(0, pl.Series("more", [0] * before.height))
    assert kept(trace).equals(before)


def test_the_frames_of_a_struct_neither() -> None:
    trace = cnn_steps()
    columns = idle_time(trace).gaps.columns
    idle_time(trace).gaps.drop_in_place(columns[0])
    charges(trace, None).coverage.drop_in_place("reason")
    assert idle_time(trace).gaps.columns == columns
    assert "reason" in charges(trace, None).coverage.columns


def test_a_result_is_read_only() -> None:
    trace: Trace = cnn_steps()
    result = steps(trace)
    result.frame[0, "wall_ns"] = 1
    assert steps(trace).frame[0, "wall_ns"] == result.frame[0, "wall_ns"] != 1
    kernels = trace.kernels()
    kernels.frame.drop_in_place("calls")
    assert "calls" in kernels.frame.columns
    with pytest.raises(TypeError, match="read-only"):
        kernels.totals["calls"] = 1  # type: ignore[index]
    assert isinstance(measured_steps(trace).rows, tuple)


def test_frozen_goes_through_containers() -> None:
    array = np.zeros(1)
    made: Any = frozen({"a": [array, {"b": array}]})
    assert isinstance(made, FrozenDict)
    assert isinstance(made["a"], tuple)
    assert isinstance(made["a"][1], FrozenDict)
    assert not array.flags.writeable

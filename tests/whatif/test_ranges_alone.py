"""A trace whose work is NVTX ranges of the host, as nsys records it without a GPU."""

from __future__ import annotations

import re

import pytest

import traceana
from tests.support.manifest import FIXTURES
from traceana.analyze.critical import critical
from traceana.analyze.layers import layers
from traceana.analyze.steps import measured, select
from traceana.trace import Trace
from traceana.whatif.whatif import Model

TRACES = ("alexnet-cpu-nsys-2022.4.sqlite", "alexnet-cpu-nsys-2024.2.sqlite")


@pytest.fixture(scope="module", params=TRACES)
def trace(request: pytest.FixtureRequest) -> Trace:
    return traceana.open(FIXTURES / request.param)


def own_times(part: Trace) -> dict[str, int]:
    return dict(layers(part, costs=False).frame.select("layer", "time_ns").iter_rows())


def test_the_critical_path_is_the_thread_of_the_steps(trace: Trace) -> None:
    assert set(critical(trace).frame["class"]) == {"host"}
    times = dict(critical(trace, by="layer").frame.select("layer", "time_ns").iter_rows())
    for layer, time in own_times(measured(trace)).items():
        if not layer.startswith("("):
            # Nothing else runs: a layer is on the path as long as it runs.
            assert times[layer] == time


@pytest.mark.parametrize("factor", [0.0, 0.25, 0.5])
def test_less_time_in_a_layer_is_less_time_of_the_step(trace: Trace, factor: float) -> None:
    counted = [int(number) for number in re.findall(r"\d+", Model.of(trace).counted or "")]
    steps = range(counted[0], counted[-1] + 1) if counted else trace.steps["number"].to_list()
    time = own_times(select(trace, steps=list(steps)))["fc6"] / len(steps)
    found = trace.whatif(f"layer:fc6 x {factor:g}").frame
    assert found["saving_ns"][0] == pytest.approx((1 - factor) * time, abs=len(steps))

"""Traces of the CPU without operators or without layers: NVTX ranges alone, TensorBoard's JSON."""

from __future__ import annotations

import pytest
from polars.testing import assert_frame_equal

import traceana
from tests.support.manifest import FIXTURES
from tests.support.opened import opened
from tests.support.traces import with_methods
from traceana.analyze.layers import layers
from traceana.timeline.critical import critical
from traceana.timeline.steps import measured, measured_steps, select
from traceana.trace import Trace
from traceana.whatif.whatif import Model

TRACES = ("alexnet-cpu-nsys-2022.4.sqlite", "alexnet-cpu-nsys-2024.2.sqlite")


@pytest.fixture(scope="module", params=TRACES)
def trace(request: pytest.FixtureRequest) -> Trace:
    return opened(FIXTURES / request.param)


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
    # The first step that is replayed does not count.
    steps = [one for one in measured_steps(trace).numbers if one != Model.of(trace).first]
    time = own_times(select(trace, steps=steps))["fc6"] / len(steps)
    found = with_methods(trace).whatif(f"layer:fc6 x {factor:g}").frame
    assert found["saving_ns"][0] == pytest.approx((1 - factor) * time, abs=len(steps))


def test_a_recording_in_two_formats_has_one_answer() -> None:
    """TensorBoard's JSON of an XPlane file has no layers, and the same threads."""
    folder = FIXTURES / "xplane"
    files = ("alexnet-cpu-jax.xplane.pb", "alexnet-cpu-jax.trace.json.gz")
    traces = [traceana.open(folder / name) for name in files]
    scenarios = ("fused x 0.5", "gemm x 0.5", "elementwise x 0")
    first, second = (one.whatif(scenarios).frame.drop("limit", "limit_share") for one in traces)
    assert_frame_equal(first, second)
    assert (first["saving_ns"] > 0).all()
    first, second = (critical(one).frame for one in traces)
    assert_frame_equal(first, second)

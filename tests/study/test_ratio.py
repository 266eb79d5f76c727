"""Speed relative to the first run, in closed form."""

from __future__ import annotations

import polars as pl

from tests.study.conftest import Make
from traceana.study.step_times import ratio_study, scaling_study


def test_speed_is_over_that_of_the_first_run_of_the_network(make: Make) -> None:
    runs = [
        make(framework="Keras", steps_ns=(20_000_000,)),
        make(framework="PyTorch", steps_ns=(10_000_000,)),
        make(framework="PyTorch", network="googlenet", steps_ns=(32_000_000,)),
        make(framework="Keras", network="googlenet", steps_ns=(40_000_000,)),
    ]
    frame = ratio_study(runs).result.frame
    found = {
        (network, run): (reference, speed)
        for network, run, reference, speed in frame.select(
            "network", "run", "reference", "relative_speed"
        ).iter_rows()
    }
    assert found == {
        ("alexnet", "Keras"): ("Keras", 1.0),
        ("alexnet", "PyTorch"): ("Keras", 2.0),
        ("googlenet", "Keras"): ("Keras", 1.0),
        ("googlenet", "PyTorch"): ("Keras", 1.25),
    }


def test_a_network_without_the_first_framework_has_its_own_reference(make: Make) -> None:
    runs = [make(framework="Keras"), make(framework="JAX", network="vgg16")]
    frame = ratio_study(runs).result.frame.filter(pl.col("network") == "vgg16")
    assert frame.select("reference", "relative_speed").rows() == [("JAX", 1.0)]


def test_other_batches_and_devices_are_not_compared(make: Make) -> None:
    runs = [make(), make(framework="JAX", batch=16), make(framework="JAX", device_kind="GPU")]
    study = ratio_study(runs)
    assert study.result.frame["relative_speed"].to_list() == [1.0, 1.0, 1.0]
    assert len(study.missing) == 3
    assert "traceana record" in study.missing[0]


def test_the_reference_is_exactly_as_fast_as_itself(make: Make) -> None:
    for step_ns in range(10_000_001, 10_000_041):
        runs = [make(steps_ns=(step_ns,)), make(framework="JAX", steps_ns=(2 * step_ns,))]
        speeds = ratio_study(runs).result.frame["relative_speed"]
        assert speeds[0] == 1, step_ns


def test_a_run_that_died_has_no_speed(make: Make) -> None:
    dead = make(framework="JAX", complete=False, reason="out of memory", steps_ns=())
    frame = ratio_study([make(), dead]).result.frame
    assert frame.select("status", "relative_speed").rows() == [
        ("ok", 1.0),
        ("out of memory", None),
    ]
    first_died = ratio_study([dead, make()]).result.frame
    assert first_died["relative_speed"].to_list() == [None, None]


def test_without_runs_the_error_names_the_command() -> None:
    study = ratio_study([])
    assert study.result.frame.is_empty()
    assert study.result.notes
    assert "traceana record" in study.missing[0]


def test_runs_without_a_batch_are_counted(make: Make) -> None:
    runs = [make(batch=4), make(batch=None)]
    assert "runs without network or batch size, excluded: 1" in ratio_study(runs).result.notes
    notes = scaling_study(runs, [None, None]).result.notes
    assert "runs without batch size, excluded: 1" in notes

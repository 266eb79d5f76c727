"""The variance between runs in the verdicts of a diff, by the kind of work."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.comparison.shared import diff
from tests.support.command_line import Run
from tests.support.training import KERNELS, training
from traceana import Trace
from traceana.comparison.resampling import between_runs, decided, mean_intervals
from traceana.errors import ExitCode
from traceana.report.pages.diff import differences
from traceana.settings import RUN_TO_RUN_HOST, RUN_TO_RUN_KERNELS, RUN_TO_RUN_PAGEABLE

A = training(seed=1)


def longer(factor: float, seed: int = 2, idle: int = 100_000) -> Trace:
    """Return a run with kernels that take ``factor`` times as long."""
    kernels = {
        layer: [(name, round(time * factor)) for name, time in of] for layer, of in KERNELS.items()
    }
    return training(seed=seed, kernels=kernels, idle=idle)


def test_the_spread_between_runs_widens_the_interval() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(1000, 1, 8), rng.normal(1020, 1, 8)
    for of in ("median", "mean"):
        assert decided(a, b, of, 0.95)[1] <= 0.05
        found, p = decided(a, b, of, 0.95, 20.0)
        assert found.low < 0 < found.high
        assert found.high - found.low == pytest.approx(2 * 1.96 * 20, rel=0.1)
        assert p == pytest.approx(0.32, abs=0.08)
    low, high, p_of = mean_intervals(a[:, None], b[:, None], 0.95, np.array([20.0]))
    assert high[0] - low[0] == pytest.approx(2 * 1.96 * 20, rel=0.1)
    assert p_of[0] > 0.05


def test_a_copy_of_pageable_memory_varies_more_than_a_kernel() -> None:
    shares = {}
    for memory in ("pageable", "pinned"):
        a, b = (training(seed=seed, copies=40, memory=memory) for seed in (1, 2))
        found = diff(a, b)
        low, high = found.step.median.interval.low, found.step.median.interval.high  # type: ignore[union-attr]
        shares[memory] = (high - low) / found.step.median.a
        kinds = found.by("transfer").filter(direction="HtoD").row(0, named=True)
        width = (kinds["high_ns"] - kinds["low_ns"]) / kinds["time_a_ns"]
        assert width == pytest.approx(
            2 * 1.96 * 2**0.5 * (0.09 if memory == "pageable" else 0.02), rel=0.1
        )
    assert shares["pageable"] > 2.5 * shares["pinned"]


def test_the_kernels_have_a_verdict_of_their_own() -> None:
    same, slower = diff(A, longer(1, idle=160_000)), diff(A, longer(1.06))
    assert same.kernel_time is not None and slower.kernel_time is not None
    assert same.kernel_time.verdict == "same"
    assert slower.kernel_time.verdict == "slower"
    assert slower.kernel_time.median.relative == pytest.approx(0.06, abs=0.005)
    (line,) = [
        one for one in repr(differences(slower)).splitlines() if one.startswith("GPU kernels")
    ]
    assert line.endswith("; slower")


def test_the_gate_fails_for_slower_kernels_beside_slow_copies() -> None:
    """A step of which half are pageable copies: 5 % more, in its kernels."""
    kernels = {
        layer: [(name, round(time * 1.1)) for name, time in of] for layer, of in KERNELS.items()
    }
    a = training(seed=1, copies=40, memory="pageable")
    found = diff(a, training(seed=2, copies=40, memory="pageable", kernels=kernels))
    assert found.step.verdict == "inconclusive"
    outcome, reason = found.gated(0.03)
    assert outcome == "failed"
    assert reason.endswith("% of the step, limit 3 %, in GPU kernels")
    assert found.gated(0.06)[0] != "failed"


def test_the_variance_between_runs_is_measured_of_several() -> None:
    rng = np.random.default_rng(1)
    beyond = 0
    for _ in range(400):
        a, b = rng.normal(100, 5, 3), rng.normal(100, 5, 3)
        interval, p = between_runs(a, b, 0.95, 0.0)
        assert (p <= 0.05) == (interval.low > 0 or interval.high < 0)
        beyond += p <= 0.05
    assert beyond / 400 == pytest.approx(0.05, abs=0.025)
    narrow, _ = between_runs(np.array([100.0, 100.1]), np.array([101.0, 101.1]), 0.95, 10.0)
    assert narrow.high - narrow.low == pytest.approx(2 * 1.96 * 10, rel=0.01)


@pytest.mark.exhaustive
def test_several_runs_of_each_program(run: Run, tmp_path: Path) -> None:
    a = [training(seed=seed).save(tmp_path / f"a{seed}") for seed in (1, 2, 3)]
    b = [longer(1.2, seed).save(tmp_path / f"b{seed}") for seed in (4, 5)]
    found = diff(a, b)
    assert found.runs == (3, 2)
    medians = [diff(one, one).step.median.a for one in a]
    assert found.step.median.a == pytest.approx(np.mean(medians))
    assert found.step.verdict == "slower"
    one, other = (",".join(map(str, side)) for side in (a, b))
    shown = run("diff", one, other, "--fail-if-slower", "3%")
    assert shown.exit_code == ExitCode.GATE_FAILED
    assert "first of 3 runs" in shown.stdout
    assert "means of 3 and 2 runs" in shown.stdout
    meta = json.loads(run("diff", one, other, "-f", "json").stdout)["meta"]
    assert meta["runs"] == [3, 2]
    assert meta["kernels"]["verdict"] == "slower"
    assert run("diff", one, b[0]).exit_code == ExitCode.USAGE
    assert run("diff", one, other, "--by", "rank").exit_code == ExitCode.USAGE
    with pytest.raises(ValueError, match="at least 2 runs"):
        diff(a, b[0])
    named = training(seed=1).save(tmp_path / "x,y")
    assert run("diff", named, a[0]).exit_code == ExitCode.OK


def test_the_spreads_are_those_of_predictions() -> None:
    assert (RUN_TO_RUN_KERNELS, RUN_TO_RUN_PAGEABLE, RUN_TO_RUN_HOST) == (0.003, 0.09, 0.08)


def test_on_a_busy_machine_the_hosts_time_decides_less() -> None:
    """The host takes longer. For most of the steps a thread had no processor."""
    slower = training(seed=2, idle=400_000)
    assert diff(A, slower).step.verdict == "slower"
    busy = slower.with_meta(ready_share=0.6)
    found = diff(A, busy)
    assert found.step.verdict == "inconclusive"
    (note,) = (note for note in found.notes if note.startswith("busy machine"))
    assert "0 % of the baseline's steps, 60 % of the candidate's" in note
    # Kernels do not wait for a processor of the host.
    kernels = diff(A, longer(1.5).with_meta(ready_share=0.1))
    assert kernels.step.verdict == "slower"

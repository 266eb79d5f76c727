"""Sibling runs of a sweep over the batch show whether a run's batch is too small."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import traceana
from tests.advise.cases import CASES, kernels
from tests.support.command_line import run
from tests.support.manifest import FIXTURES
from tests.support.opened import opened
from tests.support.runs import write_run
from traceana.advise import Finding, advise
from traceana.errors import SweepWarning
from traceana.report.pages.advise import sentence
from traceana.runs import Axis, Point, StepTimes, Sweep, batch_series
from traceana.runs.run_files import SWEEP_FILE, BatchSeries
from traceana.trace import Trace

FEW_BLOCKS = CASES["small_batch"][0]
FILLED = kernels(("k", {"category": "pooling"}), duration=1_000_000, grid_x=80)


def falling(own: int, images: Mapping[int, Sequence[int]], *, synchronized: bool = True) -> Any:
    """Return the series of runs by batch, given the times per image of their steps."""
    times = {
        batch: StepTimes(steps_ns=tuple(t * batch for t in each), synchronized=synchronized)
        for batch, each in images.items()
    }
    return BatchSeries(own, times)


def small_batch(trace: Trace, series: BatchSeries | None) -> Finding | None:
    found = advise(trace, batches=series).findings
    return next((one for one in found if one.rule.id == "small_batch"), None)


STEADY = (1_000, 1_010, 990, 1_000)
FASTER = (500, 505, 495, 500)


def test_the_time_per_image_that_falls_is_the_evidence(tmp_path: Path) -> None:
    series = falling(4, {2: (2_000,) * 4, 4: STEADY, 8: (700,) * 4, 16: FASTER})
    finding = small_batch(FILLED(tmp_path), series)
    assert finding is not None
    # Steps of 10 ms; half of the images' time is saved.
    assert (finding.saving_ns, finding.saving_share) == (5_000_000, 0.5)
    assert sentence(finding) == (
        "time per example 1.00 µs at batch 4, 500 ns at batch 16 (sweep, unprofiled)"
    )
    rows = finding.evidence.select("batch", "steps", "image_ns", "low_ns", "high_ns").rows()
    assert rows[1] == (4, 4, 1_000, 997, 1_002)
    assert [row[0] for row in rows] == [2, 4, 8, 16]


def test_both_reasons_are_listed(tmp_path: Path) -> None:
    series = falling(4, {4: STEADY, 16: FASTER})
    finding = small_batch(FEW_BLOCKS(tmp_path), series)
    assert finding is not None
    said = sentence(finding)
    assert said.startswith("1 kernel (1.00 ms, 11.1 % of GPU time) have fewer blocks")
    assert said.endswith("at batch 16 (sweep, unprofiled)")
    assert finding.saving_ns == 5_000_000


@pytest.mark.parametrize(
    "larger",
    [
        {8: STEADY},
        {8: (1_200,) * 4, 16: (980,) * 4},
        # 20 % less in the middle, but the steps scatter by more.
        {8: (500, 700, 900, 1_300)},
        {8: (300, 400, 1_200, 800, 800, 1_300)},
    ],
)
def test_it_holds_its_tongue_where_the_time_falls_no_longer(
    larger: Mapping[int, Sequence[int]], tmp_path: Path
) -> None:
    # Independent of the kernels' blocks: it has been measured.
    series = falling(4, {4: (1_000, 1_010, 860, 1_100), **larger})
    assert small_batch(FEW_BLOCKS(tmp_path), series) is None


@pytest.mark.parametrize(
    "images",
    [
        {2: STEADY, 4: FASTER},
        {4: STEADY, 8: ()},
        {4: (1_000, 1_000), 8: (500, 500)},
        {8: FASTER},
    ],
)
def test_where_no_larger_batch_was_measured_the_blocks_tell(
    images: Mapping[int, Sequence[int]], tmp_path: Path
) -> None:
    series = falling(4, images)
    finding = small_batch(FEW_BLOCKS(tmp_path), series)
    assert finding is not None
    assert "per example" not in sentence(finding)
    assert small_batch(FILLED(tmp_path), series) is None


@pytest.mark.profiler_cost
def test_launches_that_limit_the_step_are_not_more_at_a_larger_batch() -> None:
    """ResNet-18 on an H100, without the profiler: four runs of batch 8 took 9.0 to 12.5 ms a step,
    two of batch 16 8.8 and 10.4, two of batch 32 16.7 and 16.8."""
    trace = opened(FIXTURES / "gpu" / "resnet18_b8.json.gz")
    finding = small_batch(trace, None)
    assert finding is not None
    assert "GPU idle 7.75 ms during launches, as many at a larger batch." in sentence(finding)
    each = sum((8.97, 11.38, 11.40, 12.51)) / 4 / 8
    for step, batch in ((sum((8.78, 10.35)) / 2, 16), (sum((16.66, 16.82)) / 2, 32)):
        assert finding.saving_share == pytest.approx(1 - step / batch / each, abs=0.06)


def test_means_of_steps_that_ran_ahead_have_no_scatter(tmp_path: Path) -> None:
    ahead = falling(4, {4: (100, 2_000, 900), 8: (50, 1_500, 250)}, synchronized=False)
    finding = small_batch(FILLED(tmp_path), ahead)
    assert finding is not None
    assert finding.saving_ns == 4_000_000


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Return a sweep over batch and algorithms of runs whose devices are busy."""
    folder = tmp_path / "sweep"
    axes = (Axis(name="algorithms", values=("a", "b")), Axis(name="batch", values=("4", "8", "16")))
    points = tuple(
        Point(folder=f"algorithms={a},batch={b}", values={"algorithms": a, "batch": b})
        for a in axes[0].values
        for b in axes[1].values
    )
    image = {("a", 4): 1_000, ("a", 8): 800, ("a", 16): 100, ("b", 4): 1_000, ("b", 8): 990}
    for point in points:
        algorithms, batch = point.values["algorithms"], int(point.values["batch"])
        each = image.get((algorithms, batch), 100)
        dies = batch == 16 and algorithms == "a"
        write_run(
            folder / point.folder,
            batch=batch,
            # A run that died measured nothing that counts; of the last other options were used.
            steps_ns=(each * batch,) * 4,
            died="out of memory" if dies else None,
            options={"algorithms": algorithms, "threads": 2 if batch == 16 else 1},
            trace=FILLED(tmp_path) if batch == 4 else None,
        )
    made = Sweep(axes=axes, points=points, argv=(), profiler="torch", started_at="")
    (folder / SWEEP_FILE).write_text(json.dumps(msgspec.to_builtins(made)), encoding="utf-8")
    return folder


def test_siblings_differ_in_the_batch_alone(sweep: Path) -> None:
    found = batch_series(sweep / "algorithms=a,batch=4")
    assert found is not None
    assert (found.own, sorted(found.times)) == (4, [4, 8])
    assert found.times[8].step_ns == 6_400
    assert batch_series(sweep) is None
    (sweep / SWEEP_FILE).unlink()
    assert batch_series(sweep / "algorithms=a,batch=4") is None


@pytest.mark.exhaustive(after=2)
@pytest.mark.parametrize(("algorithms", "listed"), [("a", True), ("b", False)])
@pytest.mark.parametrize("command", ["advise", "report"])
def test_a_run_of_a_sweep_is_advised_by_its_siblings(
    command: str, algorithms: str, listed: bool, sweep: Path
) -> None:
    result = run(command, sweep / f"algorithms={algorithms},batch=4")
    assert result.exit_code == 0
    found = "1.00 µs at batch 4, 800 ns at batch 8" in " ".join(result.stdout.split())
    assert found is listed


def test_the_methods_of_a_trace_find_the_siblings_too(sweep: Path) -> None:
    trace = traceana.open(sweep / "algorithms=a,batch=4")
    for result in (trace.report(), trace.advise()):
        assert "1.00 µs at batch 4, 800 ns at batch 8" in " ".join(repr(result).split())
    (sweep / "algorithms=a,batch=8" / "timing.json").write_text("{", encoding="utf-8")
    with pytest.warns(SweepWarning, match="batch sweep ignored"):
        shown = repr(trace.advise())
    assert "time per example" not in shown


def test_a_damaged_sibling_is_left_out_with_a_note(sweep: Path) -> None:
    (sweep / "algorithms=a,batch=8" / "timing.json").write_text("{", encoding="utf-8")
    result = run("advise", sweep / "algorithms=a,batch=4")
    assert result.exit_code == 0
    assert "batch sweep ignored" in result.stderr
    assert "time per example" not in result.stdout

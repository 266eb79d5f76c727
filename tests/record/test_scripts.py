"""Scripts that do not import traceana, recorded on the CPU in three frameworks."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import traceana
from tests.record.conftest import Record, notes
from tests.record.scripts import COMPILED, JAX, KERAS, OWN_PROFILER, TORCH, TWO_MODELS, WAITING
from tests.support.frameworks import needs
from traceana.analyze.layers import layers
from traceana.record.inside.keras_model import KerasModel
from traceana.record.inside.process_report import Report, Settings
from traceana.runs import RecordedRun, Status, read_run
from traceana.runs.layer_manifest import read

pytestmark = pytest.mark.frameworks

Script = Callable[[str], Path]


@dataclass(frozen=True)
class Made:
    """A recorded script: its folder as read again, and what the terminal showed."""

    run: RecordedRun
    done: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def in_torch(record: Record, script: Script, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Record the script in PyTorch, in whose environment there is a ``sitecustomize`` already."""
    needs("torch")
    folder = tmp_path_factory.mktemp("torch")
    (folder / "own").mkdir()
    (folder / "own" / "sitecustomize.py").write_text(
        # The threshold as in tests/support/started, which this one hides.
        "import gc; gc.set_threshold(100_000); print('sitecustomize of the user')\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder / "own"), os.environ["PYTHONPATH"]]),
    }
    options = ("--warm-up", "3", "--steps", "4", "-o", folder / "run")
    command = ("--", sys.executable, script(TORCH), "--steps", "{n}")
    done = record(*options, *command, env=environment)
    return Made(read_run(folder / "run"), done)


@pytest.mark.exhaustive
def test_the_window_is_written_though_the_script_dies_later(in_torch: Made) -> None:
    assert in_torch.done.returncode == 1
    assert in_torch.run.run.status is Status.COMPLETE
    assert in_torch.run.run.exit_status == 1
    assert notes(in_torch.run.run) == (
        "after the recorded steps the program ended: ValueError: the script dies",
    )
    trace = traceana.open(in_torch.run.folder)
    assert trace.tables.steps.height == 4
    assert {"features.0", "features.1", "fc"} <= set(trace.tables.layers["path"])
    assert {"forward", "backward"} <= set(trace.tables.activities["direction"].drop_nulls())


def test_the_layers_are_those_of_the_model(in_torch: Made) -> None:
    assert in_torch.run.layers is not None
    layers = read(in_torch.run.layers)
    assert layers.network == "Net"
    assert [one.path for one in layers.layers] == ["features.0", "features.1", "fc"]
    assert layers.layers[0].inputs == ((4, 3, 16, 16),)


def test_steps_are_timed_without_the_profiler_and_with_it(in_torch: Made) -> None:
    timing = in_torch.run.timing()
    assert timing is not None
    assert timing.images_per_step == 4
    for times, count in ((timing.without_profiler, 3), (timing.with_profiler, 4)):
        assert times is not None
        # The first step's begin is not known.
        assert (len(times.warm_up_ns), len(times.steps_ns)) == (2, count)
        assert min(times.steps_ns) > 0
    assert timing.overhead_interval is not None
    # Three warm-up steps, two that are timed, one for the profiler's warm-up; 11 is not timed, 12
    # is the last one.
    assert timing.with_profiler is not None
    assert timing.with_profiler.first == 7
    numbers = traceana.open(in_torch.run.folder).tables.steps["number"].to_list()
    assert numbers == [7, 8, 9, 10]


def test_the_trace_and_the_clock_mean_the_same_steps(in_torch: Made) -> None:
    timing = in_torch.run.timing()
    assert timing is not None
    assert timing.with_profiler is not None
    steps = traceana.open(in_torch.run.folder).tables.steps["duration"].sum()
    # The profiler's own work between two steps is in one of them only; a busy machine adds to it.
    assert 0.1 < steps / sum(timing.with_profiler.steps_ns) < 10


def test_the_environment_is_the_scripts(in_torch: Made) -> None:
    made = in_torch.run.environment()
    assert made is not None
    assert made.packages["torch"] == made.profiler_version
    assert made.threads == 1
    assert made.python == sys.version.split()[0]


def test_the_terminal_shows_the_scripts_output_and_then_the_run(in_torch: Made) -> None:
    # The process of the DataLoader has it too.
    own = "sitecustomize of the user"
    assert in_torch.done.stdout.splitlines() == [own, own, "trained --steps {n}"]
    lines = in_torch.done.stderr.splitlines()
    assert lines[-1] == f"next: traceana report {in_torch.run.folder}"
    assert any("without a profiler" in line for line in lines)
    assert "ValueError: the script dies" in lines
    assert not [path for path in in_torch.run.folder.parent.iterdir() if "partial" in path.name]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("framework", "content", "layer"),
    [("tensorflow", KERAS, "conv1"), ("jax", JAX, "fc")],
)
def test_a_step_is_a_call_of_what_takes_a_gradient(
    framework: str, content: str, layer: str, record: Record, script: Script, tmp_path: Path
) -> None:
    needs(framework)
    options = ("--no-baseline", "--warm-up", "2", "--steps", "3", "-o", tmp_path / "run")
    done = record(*options, "--", sys.executable, script(content))
    assert done.returncode == 0, done.stderr
    run = read_run(tmp_path / "run")
    assert run.run.profiler == framework
    trace = traceana.open(tmp_path / "run")
    assert trace.tables.steps.height == 3
    assert any(layer in path for path in trace.tables.layers["path"])
    timing = run.timing()
    assert timing is not None
    assert timing.without_profiler is None
    assert timing.with_profiler is not None
    assert len(timing.with_profiler.steps_ns) == 3
    if framework == "tensorflow":
        assert timing.images_per_step == 5
        described = read(tmp_path / "run" / "layers.json")
        assert described.inputs[0].shape == (5, 3, 8, 8)
        assert [layer.type for layer in described.layers] == ["Conv2d", "Flatten", "Linear"]
        rows = layers(trace, model=described).frame
        (flops,) = rows.filter(pl.col("layer").str.ends_with(layer))["flops"]
        outputs = 5 * 6 * 6 * 4
        # In three steps the products and the bias forward, backward the filter's gradient alone.
        assert flops == 3 * (2 * (2 * outputs * 3 * 3 * 3) + outputs)


def test_a_step_of_jax_holds_the_scripts_wait_for_it(
    record: Record, script: Script, tmp_path: Path
) -> None:
    needs("jax")
    for waits in ("wait", "run ahead"):
        folder, seen = tmp_path / waits, tmp_path / f"{waits}.json"
        command = (sys.executable, script(WAITING), waits, seen)
        done = record(
            "--no-baseline", "--warm-up", "5", "--steps", "8", "-o", folder, "--", *command
        )
        assert done.returncode == 0, done.stderr
        timing = read_run(folder).timing()
        assert timing is not None
        assert timing.with_profiler is not None
        times = timing.with_profiler
        assert times.synchronized == (waits == "wait")
        begun = json.loads(seen.read_text())
        own = [1e9 * (after - before) for before, after in itertools.pairwise(begun)]
        if waits == "wait":
            # The starts of the profiler and of the window's first step are in the step before.
            assert times.steps_ns[1:7] == pytest.approx(own[6:12], rel=0.05, abs=100_000)
            steps = traceana.open(folder).tables.steps["duration"].to_list()
            assert steps[1:7] == pytest.approx(own[6:12], rel=0.05, abs=1e5)


@pytest.mark.exhaustive
def test_a_script_with_a_profiler_of_its_own_goes_on_unharmed(
    record: Record, script: Script, tmp_path: Path
) -> None:
    needs("torch")
    options = ("--no-baseline", "-o", tmp_path / "run")
    path = script(OWN_PROFILER)
    done = record(*options, "--", sys.executable, path)
    assert done.returncode == 71
    assert "goes on" in done.stdout
    # With the line that starts it.
    own = f"runs torch.profiler itself ({path}:6), and CUPTI supports one"
    assert own in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.exhaustive
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")
def test_the_code_that_inductor_generated_is_kept(
    record: Record, script: Script, tmp_path: Path
) -> None:
    needs("torch")
    cache = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    options = ("--no-baseline", "--warm-up", "2", "--steps", "2", "-o", tmp_path / "run")
    done = record(*options, "--", sys.executable, script(COMPILED), env=cache)
    assert done.returncode == 0, done.stderr
    run = read_run(tmp_path / "run")
    kept = {path.name for path in (run.folder / "inductor").iterdir()}
    # One graph of the forward pass and one of the backward pass.
    assert len(kept) == 2
    assert kept <= {path.name for path in (tmp_path / "cache").rglob("*.py")}
    trace = traceana.open(run.folder)
    assert set(trace.tables.graph_calls["backward"]) == {False, True}
    assert {"0", "1+2", "3"} <= set(trace.tables.layers["path"])
    # A file of the run finds it too.
    assert (
        traceana.open(run.traces()[0]).tables.graph_calls.height == trace.tables.graph_calls.height
    )


@pytest.mark.exhaustive
def test_a_failure_to_keep_generated_code_is_a_note(
    record: Record, script: Script, tmp_path: Path
) -> None:
    needs("torch")
    broken = TORCH.replace(
        "import torch\n",
        "import torch, types\n"
        "sys.modules['torch._inductor.codecache'] = types.ModuleType('codecache')\n",
        1,
    )
    options = ("--no-baseline", "--warm-up", "2", "--steps", "2", "-o", tmp_path / "run")
    record(*options, "--", sys.executable, script(broken))
    run = read_run(tmp_path / "run")
    assert run.traces()
    assert any("PyCodeCache" in note for note in run.run.notes)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("other", "noted"), [("generator", True), ("critic", False)])
def test_a_model_of_another_optimizer_is_noted(
    other: str, noted: bool, record: Record, script: Script, tmp_path: Path
) -> None:
    needs("torch")
    options = ("--no-baseline", "--warm-up", "2", "--steps", "2", "-o", tmp_path / "run")
    path = script(TWO_MODELS.replace("OTHER", other))
    done = record(*options, "--", sys.executable, path)
    assert done.returncode == 0, done.stderr
    run = read_run(tmp_path / "run")
    assert run.layers is not None
    assert read(run.layers).network == "Critic"
    text = "only the layers of Critic are described: another optimizer trains others"
    assert (text in run.run.notes) is noted


@pytest.mark.parametrize(("others", "noted"), [(["critic"], True), ([], False)])
def test_keras_models_beside_the_largest_are_noted(
    others: list[str], noted: bool, tmp_path: Path
) -> None:
    needs("keras")
    import keras

    widths = {"generator": 8, **dict.fromkeys(others, 2)}
    models = [
        keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(width)], name=name)
        for name, width in widths.items()
    ]
    watched, report = KerasModel(), Report(Settings(str(tmp_path)))
    restore = watched.watch(keras, report)
    try:
        for model in models:
            model(np.ones((3, 4), "float32"))
        watched.describe(tmp_path, report)
    finally:
        restore()
    assert read(tmp_path / "layers.json").network == "generator"
    reports = "".join(path.read_text() for path in tmp_path.glob("process-*.json"))
    note = "only the layers of generator are described: other models were called"
    assert (note in reports) is noted

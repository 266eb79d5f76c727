"""Workloads and sweeps of them, really recorded on the CPU."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import traceana
from tests.record.conftest import Record
from tests.record.scripts import OWN_PROFILER
from tests.support.command_line import Run as Command
from tests.support.frameworks import needs
from traceana.runs import Status, find_runs, read_run, read_sweep
from traceana.runs.layer_manifest import read
from traceana.runs.run_files import RUN_FILE

SMALL = ("--network", "lenet5", "--steps", "2", "--warm-up", "1")


AXES = ("--sweep", "epilogue=default,fused", "--sweep", "batch=2")
WORDS = ("--framework", "pytorch", *AXES, *SMALL, "--no-baseline", "--threads", "1")


@pytest.fixture(scope="module")
def sweep(record: Record, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record a sweep with a point that PyTorch refuses."""
    needs("torch")
    folder = tmp_path_factory.mktemp("sweep") / "epilogues"
    done = record(*WORDS, "-o", folder)
    assert done.returncode == 71, done.stderr
    assert "2 of 2 runs" in done.stderr
    return folder


@pytest.mark.frameworks
def test_runs_of_a_sweep_open_in_order(sweep: Path) -> None:
    runs = find_runs([sweep])
    assert [one.folder.name for one in runs] == [p.folder for p in read_sweep(sweep).points]
    assert runs[0].run.point == {"epilogue": "default", "batch": "2"}
    (one, _) = runs
    assert one.run.status is Status.COMPLETE
    assert one.run.workload is not None
    assert (one.run.workload.framework, one.run.workload.network) == ("PyTorch", "lenet5")
    assert (one.run.workload.batch, one.run.workload.options["threads"]) == (2, 1)
    trace = traceana.open(one.folder)
    assert trace.tables.steps.height == 2
    assert {"c1", "c3", "output"} <= set(trace.tables.layers["path"])
    assert one.layers is not None
    assert read(one.layers).network == "lenet5"
    timing = one.timing()
    assert timing is not None
    assert timing.images_per_step == 2
    assert timing.with_profiler is not None
    assert len(timing.with_profiler.steps_ns) == 2


@pytest.mark.frameworks
def test_a_refused_run_has_a_reason_and_the_sweep_continues(sweep: Path) -> None:
    refused = find_runs([sweep])[1].run
    assert refused.status is Status.FAILED
    assert refused.reason is not None
    assert refused.reason.startswith(
        "rejected its options: PyTorch: --epilogue fused needs torch.compile"
    )
    assert refused.workload is None


@pytest.mark.frameworks
def test_a_sweep_is_resumed_where_runs_are_missing(sweep: Path, run: Command) -> None:
    assert run("record", *WORDS, "-o", sweep).exit_code == 50
    kept = {path: path.stat().st_mtime_ns for path in sweep.glob(f"*/{RUN_FILE}")}
    gone = sweep / "epilogue=fused,batch=2"
    shutil.rmtree(gone)
    done = run("record", *WORDS, "-o", sweep, "--resume")
    assert done.exit_code == 71
    assert "2 of 2 runs" in done.stderr
    now = {path: path.stat().st_mtime_ns for path in sweep.glob(f"*/{RUN_FILE}")}
    assert [path for path in kept if now[path] != kept[path]] == [gone / RUN_FILE]
    other = run("record", "--sweep", "framework=pytorch", *SMALL, "-o", sweep, "--resume")
    assert other.exit_code == 2
    assert "with other values or another command" in other.stderr


@pytest.mark.frameworks
@pytest.mark.exhaustive
def test_memory_that_is_not_there_is_a_result(tmp_path: Path) -> None:
    needs("torch")
    record = [sys.executable, "-m", "traceana", "record", "--framework", "pytorch"]
    record += ["--network", "cifar10_quick", "--threads", "1", "--steps", "1", "--warm-up", "1"]
    record += ["--profiler", "none", "--sweep", "batch=1,16384", "-o", str(tmp_path / "sweep")]
    # Its data, not its address space: the libraries of a CUDA build take 5 GB of that.
    limited = ["sh", "-c", 'ulimit -d 2500000 && exec "$@"', "sh", *record]
    done = subprocess.run(limited, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    one, many = find_runs([tmp_path / "sweep"])
    assert (one.run.status, one.run.traces) == (Status.COMPLETE, ())
    timing = one.timing()
    assert timing is not None
    assert timing.without_profiler is not None
    assert (many.run.status, many.run.reason) == (Status.FAILED, "out of memory")
    assert many.run.workload is not None
    assert many.run.workload.batch == 16384


def test_options_that_a_workload_refuses_leave_nothing(tmp_path: Path, run: Command) -> None:
    needs("jax")
    done = run("record", "--framework", "jax", "--threads", "1", "-o", tmp_path / "run")
    assert done.exit_code == 2
    assert "the workload rejected its options: JAX: JAX has no option for threads" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.frameworks
@pytest.mark.usefixtures("nsys")
def test_nsys_records_ranges_around_layers(record: Record, tmp_path: Path, run: Command) -> None:
    needs("nvtx")
    words = ("--framework", "pytorch", *SMALL, "--batch", "2", "--threads", "1")
    done = record(*words, "--no-baseline", "--profiler", "nsys", "-o", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    made = read_run(tmp_path / "run")
    assert made.run.traces == ("trace.sqlite",)
    environment = made.environment()
    assert environment is not None
    assert environment.profiler_version is not None
    texts = set(traceana.open(tmp_path / "run").tables.ranges["text"])
    assert {"forward: c1", "backward: c1", "iteration 0", "iteration 1"} <= texts
    assert "2 steps" in run("report", tmp_path / "run").stdout
    rows = json.loads(run("layers", tmp_path / "run", "--format", "json").stdout)["rows"]
    times = {row["layer"]: (row["forward_ns"], row["backward_ns"]) for row in rows}
    for layer in ("c1", "c3", "output"):
        assert min(times[layer]) > 0, layer


@pytest.mark.frameworks
@pytest.mark.usefixtures("nsys")
def test_torch_profiler_beside_nsys_is_refused(record: Record, tmp_path: Path) -> None:
    script = tmp_path / "my_train.py"
    script.write_text(OWN_PROFILER)
    options = ("--profiler", "nsys", "--no-baseline", "-o", tmp_path / "run")
    done = record(*options, "--", sys.executable, script)
    assert done.returncode == 71
    assert "runs torch.profiler itself, beside nsys, and CUPTI supports one" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["my_train.py"]

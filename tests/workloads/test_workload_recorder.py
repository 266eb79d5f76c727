"""The command that records fixtures, and the GPU script's machinery on the CPU."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.record.conftest import nsys as nsys
from tests.support.frameworks import needs
from traceana.readers.printed.ncu import known
from workloads.measurements import METRICS
from workloads.options import parse_run_options
from workloads.record_fixtures import main
from workloads.recorder import Recorder
from workloads.recordings import PLANS, Recording, Tool
from workloads.sandbox import HOST_NAME, RecordingError, Sandbox, find_sandbox
from workloads.support import Framework, supported

needs("torch")
pytestmark = pytest.mark.frameworks

SCRIPT = Path(__file__).resolve().parents[2] / "workloads" / "record_gpu.sh"
NSYS = shutil.which("nsys")


def run_script(*words: str) -> subprocess.CompletedProcess[str]:
    # XLA's older way compiles in half the time; what it records is not looked at here.
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false"
    environment = {**os.environ, "PYTHON": sys.executable, "XLA_FLAGS": flags}
    return subprocess.run(
        ["sh", str(SCRIPT), *words], env=environment, capture_output=True, text=True, check=False
    )


def only(folder: Path, *names: str) -> tuple[str, ...]:
    words = ("--device", "cpu", "--output", str(folder))
    return (*words, *(word for name in names for word in ("--only", name)))


def test_the_gpu_script_on_the_cpu_records_both_frameworks(tmp_path: Path) -> None:
    needs("jax")
    torch, jax = "alexnet-smoke-channels_last", "alexnet-smoke-jax-channels_last"
    folder = tmp_path / "new"
    done = run_script(*only(folder, torch, jax))
    assert done.returncode == 0, done.stderr
    assert f"{torch}.json.gz: " in done.stdout
    assert f"2 recorded in {folder}, 0 failed" in done.stdout
    beside = ("layers.json", "provenance.json")
    expected = {f"{torch}.{end}" for end in ("json.gz", *beside)}
    expected |= {f"{jax}.{end}" for end in ("xplane.pb.gz", *beside)}
    assert {path.name for path in folder.iterdir()} == expected
    trace = json.loads(gzip.decompress((folder / f"{torch}.json.gz").read_bytes()))
    assert any(event["name"] == "backward: conv1" for event in trace["traceEvents"])
    facts = json.loads((folder / f"{jax}.provenance.json").read_text("utf-8"))
    assert facts["recorder"]["name"] == "jax.profiler"
    assert facts["output"].startswith("alexnet, batch 1, cpu: ")


def test_the_gpu_script_records_without_namespaces(tmp_path: Path) -> None:
    needs("jax")
    name = "alexnet-smoke-jax-channels_last"
    done = run_script("--open", *only(tmp_path, name))
    assert done.returncode == 0, done.stderr
    assert "Recordings without namespaces contain the host" in done.stdout
    assert (tmp_path / f"{name}.xplane.pb.gz").is_file()


def test_the_gpu_plan_has_every_network_precision_and_layout() -> None:
    names = {recording.name for recording in PLANS["gpu"]}
    for network in ("alexnet", "googlenet", "resnet50"):
        for framework in ("", "jax-"):
            for way in ("fp32", "tf32", "channels_last"):
                assert f"{network}-gpu-{framework}{way}" in names
    for recording in PLANS["gpu"]:
        framework = {"pytorch": "PyTorch", "jax": "JAX"}[recording.tool.workload]
        supported(parse_run_options(recording.arguments), Framework(framework))


def test_without_a_gpu_nothing_is_tried_on_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_gpu(self: Sandbox, command: list[str], *_: object) -> str:
        assert command[:2] == ["python", "-c"]
        raise RecordingError("no GPU")

    monkeypatch.setattr(Sandbox, "run", no_gpu)
    assert main(["--plan", "gpu", "--output", str(tmp_path), "--open"]) == 0
    printed = capsys.readouterr().out
    assert "alexnet-gpu-fp32: skipped, torch.profiler found no GPU" in printed
    assert "0 recorded in" in printed
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--devise", "cpu"], "unknown option --devise"),
        (["--device"], "--device needs a value"),
        (["--device", "tpu"], "--device is cuda or cpu, not tpu"),
    ],
)
def test_the_gpu_script_refuses_unknown_options(words: list[str], message: str) -> None:
    done = run_script(*words)
    assert done.returncode == 2
    assert done.stderr.strip() == f"record_gpu.sh: {message}" or message in done.stderr


def test_every_plan_has_options_that_hold_and_names_of_its_own() -> None:
    names = [recording.name for plan in PLANS.values() for recording in plan]
    assert len(set(names)) == len(names)
    for plan in PLANS.values():
        for recording in plan:
            parse_run_options(recording.arguments).describe_network()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--output", "no-such-directory"], "no such directory: create it first"),
        (["--only", "nothing"], "plan cpu has no nothing: choose from alexnet-cpu-stack"),
        (["--nsys", "no-such-nsys"], "--nsys no-such-nsys: no such executable"),
    ],
)
def test_record_fixtures_refuses(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fixtures").mkdir()
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_a_failed_recording_leaves_no_file(tmp_path: Path) -> None:
    broken = Recording("broken", Tool.TORCH_PROFILER, ("--image-size", "9", "--batch", "1"))
    with pytest.raises(RecordingError, match=r"exit 2: .*does not fit"):
        Recorder(tmp_path, Sandbox(None), {}).record(broken)
    assert not list(tmp_path.iterdir())


def test_an_open_sandbox_has_this_python_and_a_time_limit(tmp_path: Path) -> None:
    sandbox = Sandbox(None)
    assert (
        sandbox.run(["python", "-c", "import sys; print(sys.prefix)"], tmp_path).strip()
        == sys.prefix
    )
    with pytest.raises(RecordingError, match=r"sleep 9: time limit of 0 s exceeded"):
        sandbox.run(["sleep", "9"], tmp_path, timeout=0.1)


@pytest.mark.skipif(not find_sandbox().isolated, reason="no namespaces can be made here")
def test_namespaces_hide_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEANA_TEST_SECRET", "secret")
    command = ["sh", "-c", "hostname; pwd; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline"]
    host, folder, *rest = find_sandbox().run(command, tmp_path).splitlines()
    assert (host, folder) == (HOST_NAME, "/srv/run")
    for word in ("secret", "pytest", str(tmp_path), str(SCRIPT.parent)):
        assert word not in "".join(rest)


def test_without_nsys_its_recordings_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    words = ["--plan", "smoke", "--only", "alexnet-smoke-nsys", "--output", str(tmp_path)]
    assert main(words) == 0
    assert "skipped, nsys is not installed" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


_NCU = """#!/bin/sh
[ "$1" = --version ] && { echo "Version 2099.1.0.0 (build 1)"; exit; }
while [ $# -gt 0 ]; do
    [ "$1" = --log-file ] && log=$2
    [ "$1" = --metrics ] && metrics=$2
    shift
done
echo "what the workload prints"
: > alexnet.layers.json
[ "$metrics" = @METRICS@ ] && printf '%s\\n' '@PRINTED@' > "$log"
"""


@pytest.mark.parametrize(
    ("printed", "message"),
    [
        ('"ID","Process ID","Kernel Name","gpu__time_duration.sum"', None),
        ("==ERROR== ERR_NVGPUCTRPERM - no permission", "measured nothing: .*ERR_NVGPUCTRPERM"),
    ],
)
def test_ncu_gets_its_metrics(printed: str, message: str | None, tmp_path: Path) -> None:
    ncu = tmp_path / "ncu"
    manifest = "alexnet-gpu-ncu-2099.1.layers.json"
    script = _NCU.replace("@METRICS@", ",".join(METRICS)).replace("@PRINTED@", printed)
    ncu.write_text(script.replace("alexnet.layers.json", manifest))
    ncu.chmod(0o755)
    (recording,) = (each for each in PLANS["gpu"] if each.tool is Tool.NCU)
    assert {"--steps", "1", "--cuda-profiler"} <= set(recording.arguments)
    output = tmp_path / "made"
    output.mkdir()
    recorder = Recorder(output, Sandbox(None), {Tool.NCU: ncu})
    if message is not None:
        with pytest.raises(RecordingError, match=message):
            recorder.record(recording)
        assert not list(output.iterdir())
        return
    (made,) = recorder.record(recording)
    assert made.name == "alexnet-gpu-ncu-2099.1.csv"
    facts = json.loads((output / "alexnet-gpu-ncu-2099.1.provenance.json").read_text())
    assert facts["recorder"] == {"name": "ncu", "version": "2099.1.0.0"}
    assert "--profile-from-start off --clock-control none" in facts["commands"][0]


def test_the_reader_has_every_metric() -> None:
    found = known(METRICS)
    assert {name for names in found.values() for name in names} == set(METRICS)


@pytest.mark.usefixtures("nsys")
@pytest.mark.skipif(not find_sandbox().isolated, reason="no namespaces can be made here")
def test_nsys_records_the_ranges(tmp_path: Path) -> None:
    needs("nvtx")
    assert NSYS is not None
    (recording,) = (each for each in PLANS["smoke"] if each.tool is Tool.NSYS)
    (made,) = Recorder(tmp_path, find_sandbox(), {Tool.NSYS: Path(NSYS)}).record(recording)
    database = sqlite3.connect(made)
    query = "SELECT value FROM NVTX_EVENTS JOIN StringIds ON id = textId ORDER BY start"
    texts = [text for (text,) in database.execute(query)]
    database.close()
    assert [text for text in texts if text.startswith(("warm-up", "iteration"))] == [
        "warm-up 0",
        "iteration 0",
        "iteration 1",
    ]
    assert texts.count("forward: conv1") == texts.count("backward: fc8") == 3

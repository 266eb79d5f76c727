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

pytest.importorskip("torch")

from traceana.ingest.ncu.metrics import known
from workloads.measurements import METRICS
from workloads.options import parse_run_options
from workloads.record_fixtures import main
from workloads.recorder import Recorder
from workloads.recordings import PLANS, Recording, Tool
from workloads.room import HOST_NAME, Room, RoomError, find_room
from workloads.support import Framework, served

SCRIPT = Path(__file__).resolve().parents[2] / "workloads" / "record_gpu.sh"
NSYS = shutil.which("nsys")


def run_script(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable}
    return subprocess.run(
        ["sh", str(SCRIPT), *words], env=environment, capture_output=True, text=True, check=False
    )


def only(folder: Path, *names: str) -> tuple[str, ...]:
    words = ("--device", "cpu", "--output", str(folder))
    return (*words, *(word for name in names for word in ("--only", name)))


def test_the_gpu_script_on_the_cpu_records_both_frameworks(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    torch, jax = "alexnet-smoke-channels_last", "alexnet-smoke-jax-channels_last"
    folder = tmp_path / "new"
    done = run_script(*only(folder, torch, jax))
    assert done.returncode == 0, done.stderr
    assert f"{torch}.json.gz: " in done.stdout
    assert f"2 recorded, 0 failed; they are in {folder}" in done.stdout
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
    name = "alexnet-smoke-channels_last"
    done = run_script("--open", *only(tmp_path, name))
    assert done.returncode == 0, done.stderr
    assert "Without namespaces recordings name this host" in done.stdout
    assert (tmp_path / f"{name}.json.gz").is_file()


def test_the_gpu_plan_has_every_network_precision_and_layout() -> None:
    names = {recording.name for recording in PLANS["gpu"]}
    for network in ("alexnet", "googlenet", "resnet50"):
        for framework in ("", "jax-"):
            for way in ("fp32", "tf32", "channels_last"):
                assert f"{network}-gpu-{framework}{way}" in names
    for recording in PLANS["gpu"]:
        framework = {"pytorch": "PyTorch", "jax": "JAX"}[recording.tool.workload]
        served(parse_run_options(recording.arguments), Framework(framework))


def test_without_a_gpu_nothing_is_tried_on_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_gpu(self: Room, command: list[str], *_: object) -> str:
        assert command[:2] == ["python", "-c"]
        raise RoomError("no GPU")

    monkeypatch.setattr(Room, "run", no_gpu)
    assert main(["--plan", "gpu", "--output", str(tmp_path), "--open"]) == 0
    printed = capsys.readouterr().out
    assert "alexnet-gpu-fp32: passed over, torch.profiler finds no GPU here" in printed
    assert "0 recorded, 0 failed" in printed
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--devise", "cpu"], "unknown option --devise"),
        (["--device"], "--device needs a value"),
        (["--device", "tpu"], "--device is cuda or cpu, not tpu"),
    ],
)
def test_the_gpu_script_refuses_what_it_does_not_know(words: list[str], message: str) -> None:
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
        (["--output", "no-such-directory"], "no such directory; make it first"),
        (["--only", "nothing"], "plan cpu has no nothing; it has alexnet-cpu-stack"),
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


def test_what_cannot_be_recorded_leaves_nothing(tmp_path: Path) -> None:
    broken = Recording("broken", Tool.TORCH_PROFILER, ("--image-size", "9", "--batch", "1"))
    with pytest.raises(RoomError, match=r"exit 2: .*does not fit"):
        Recorder(tmp_path, Room(None), {}).record(broken)
    assert not list(tmp_path.iterdir())


def test_an_open_room_knows_its_python_and_stops_in_time(tmp_path: Path) -> None:
    room = Room(None)
    assert (
        room.run(["python", "-c", "import sys; print(sys.prefix)"], tmp_path).strip() == sys.prefix
    )
    with pytest.raises(RoomError, match=r"sleep 9: not done after 0 s"):
        room.run(["sleep", "9"], tmp_path, timeout=0.1)


@pytest.mark.skipif(not find_room().closed, reason="no namespaces can be made here")
def test_a_closed_room_shows_nothing_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEANA_TEST_SECRET", "secret")
    command = ["sh", "-c", "hostname; pwd; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline"]
    host, folder, *rest = find_room().run(command, tmp_path).splitlines()
    assert (host, folder) == (HOST_NAME, "/srv/run")
    for word in ("secret", "pytest", str(tmp_path), str(SCRIPT.parent)):
        assert word not in "".join(rest)


def test_without_nsys_its_recordings_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    words = ["--plan", "smoke", "--only", "alexnet-smoke-nsys", "--output", str(tmp_path)]
    assert main(words) == 0
    assert "passed over, nsys is not installed" in capsys.readouterr().out
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
[ "$metrics" = @METRICS@ ] && printf '%s\\n' '@SAYS@' > "$log"
"""


@pytest.mark.parametrize(
    ("says", "message"),
    [
        ('"ID","Process ID","Kernel Name","gpu__time_duration.sum"', None),
        ("==ERROR== ERR_NVGPUCTRPERM - no permission", "measured nothing: .*ERR_NVGPUCTRPERM"),
    ],
)
def test_ncu_is_told_what_to_measure(says: str, message: str | None, tmp_path: Path) -> None:
    ncu = tmp_path / "ncu"
    manifest = "alexnet-gpu-ncu-2099.1.layers.json"
    script = _NCU.replace("@METRICS@", ",".join(METRICS)).replace("@SAYS@", says)
    ncu.write_text(script.replace("alexnet.layers.json", manifest))
    ncu.chmod(0o755)
    (recording,) = (each for each in PLANS["gpu"] if each.tool is Tool.NCU)
    assert {"--steps", "1", "--cuda-profiler"} <= set(recording.arguments)
    output = tmp_path / "made"
    output.mkdir()
    recorder = Recorder(output, Room(None), {Tool.NCU: ncu})
    if message is not None:
        with pytest.raises(RoomError, match=message):
            recorder.record(recording)
        assert not list(output.iterdir())
        return
    (made,) = recorder.record(recording)
    assert made.name == "alexnet-gpu-ncu-2099.1.csv"
    facts = json.loads((output / "alexnet-gpu-ncu-2099.1.provenance.json").read_text())
    assert facts["recorder"] == {"name": "ncu", "version": "2099.1.0.0"}
    assert "--profile-from-start off" in facts["commands"][0]


def test_the_reader_knows_every_metric() -> None:
    found = known(METRICS)
    assert {name for names in found.values() for name in names} == set(METRICS)


@pytest.mark.usefixtures("nsys")
@pytest.mark.skipif(not find_room().closed, reason="no namespaces can be made here")
def test_nsys_records_the_ranges(tmp_path: Path) -> None:
    pytest.importorskip("nvtx")
    assert NSYS is not None
    (recording,) = (each for each in PLANS["smoke"] if each.tool is Tool.NSYS)
    (made,) = Recorder(tmp_path, find_room(), {Tool.NSYS: Path(NSYS)}).record(recording)
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

"""The command that records fixtures."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.record.conftest import nsys as nsys
from tests.support.frameworks import needs
from traceana.readers.printed.ncu import metrics_by_column
from workloads.measurements import METRICS
from workloads.options import parse_run_options
from workloads.record_fixtures import main
from workloads.recorder import Recorder
from workloads.recordings import PLANS, Recording, Tool
from workloads.sandbox import HOST_NAME, RecordingError, Sandbox, find_sandbox
from workloads.support import Framework, supported

WORKLOADS = Path(__file__).resolve().parents[2] / "workloads"
NSYS = shutil.which("nsys")


@pytest.mark.frameworks
def test_processes_have_a_trace_each_with_layers_and_provenance(tmp_path: Path) -> None:
    needs("torch")
    (recording,) = (each for each in PLANS["smoke"] if each.name == "alexnet-smoke-ranks")
    made = Recorder(tmp_path, Sandbox(None), {}).record(recording)
    names = [f"alexnet-smoke-ranks.rank{rank}" for rank in (0, 1)]
    assert made == [tmp_path / f"{name}.json.gz" for name in names]
    expected = {f"{name}.{end}" for name in names for end in ("json.gz", "provenance.json")}
    assert {each.name for each in tmp_path.iterdir()} == {
        *expected,
        "alexnet-smoke-ranks.layers.json",
    }
    facts = json.loads((tmp_path / f"{names[1]}.provenance.json").read_text("utf-8"))
    assert facts["recorder"]["name"] == "torch.profiler"
    assert facts["output"].startswith("alexnet, batch 2, cpu: ")
    trace = json.loads(gzip.decompress(made[1].read_bytes()))
    assert any(event["name"] == "backward: conv1" for event in trace["traceEvents"])


def test_without_a_gpu_nothing_is_tried_on_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_gpu(self: Sandbox, command: list[str], *_: object) -> str:
        assert command[:2] == ["python", "-c"]
        raise RecordingError("no GPU")

    monkeypatch.setattr(Sandbox, "run", no_gpu)
    assert main(["--plan", "gpu", "--output", str(tmp_path), "--open"]) == 0
    printed = capsys.readouterr().out
    assert "alexnet-gpu-ranks: skipped, torch.profiler found no GPU, 2 needed" in printed
    assert "0 recorded in" in printed
    assert not list(tmp_path.iterdir())


def test_every_plan_has_options_that_hold_and_names_of_its_own() -> None:
    names = [recording.name for plan in PLANS.values() for recording in plan]
    assert len(set(names)) == len(names)
    frameworks = {each.lower(): each for each in Framework}
    for plan in PLANS.values():
        for recording in plan:
            if recording.tool is not Tool.NCU:
                options = parse_run_options(recording.arguments)
                supported(options, frameworks[recording.tool.workload]).describe_network()


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


@pytest.mark.frameworks
@pytest.mark.exhaustive
def test_a_failed_recording_leaves_no_file(tmp_path: Path) -> None:
    needs("torch")
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


def running(text: str) -> list[bytes]:
    """Return the command lines of this machine's processes that contain ``text``."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(file.read_bytes())
    return [command for command in found if text.encode() in command]


@pytest.mark.parametrize("sandbox", [Sandbox(None), find_sandbox()], ids=["open", "found"])
def test_a_stopped_command_leaves_no_process(sandbox: Sandbox, tmp_path: Path) -> None:
    # A profiler starts the program that it records, and may have others beside it.
    seconds = f"{3600 + time.time() % 1000:.6f}"
    with pytest.raises(RecordingError, match="time limit"):
        sandbox.run(["sh", "-c", f"sleep {seconds} & sleep {seconds}"], tmp_path, timeout=0.5)
    # The kernel ends them one after the other.
    until = time.monotonic() + 10
    while running(seconds) and time.monotonic() < until:
        time.sleep(0.05)
    assert not running(seconds)


@pytest.mark.skipif(not find_sandbox().isolated, reason="no namespaces can be made here")
def test_namespaces_hide_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEANA_TEST_SECRET", "secret")
    command = ["sh", "-c", "hostname; pwd; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline"]
    host, folder, *rest = find_sandbox().run(command, tmp_path).splitlines()
    assert (host, folder) == (HOST_NAME, "/srv/run")
    for word in ("secret", "pytest", str(tmp_path), str(WORKLOADS)):
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
    [ "$1" = --out ] && : > "$2"
    shift
done
echo "what the workload prints"
[ "$metrics" = METRICS ] && cat PRINTED > "$log"
exit CODE
"""
_HEAD = '"ID","Kernel Name","gpu__time_duration.sum"\n"","","ns"\n'
_CONVOLUTION = '"0","void winograd_nonfused::winogradForwardData4x4<float, float>","8,288"\n'
_OTHER = '"1","void at::vectorized_elementwise_kernel<4, at::FillFunctor<float>>(int)","960"\n'
_STOPPED = '==ERROR== Failed to profile "fft2d_r2c_16x16" in process 9\n'


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("printed", "code", "message"),
    [
        (_HEAD + _CONVOLUTION, 0, None),
        (_STOPPED + _HEAD + _CONVOLUTION + _OTHER, 1, None),
        (_HEAD + _OTHER, 0, "counted 1 kernels, none of a convolution"),
        (_HEAD, 0, "counted 0 kernels"),
        ("==ERROR== ERR_NVGPUCTRPERM - no permission", 1, "measured nothing: .*ERR_NVGPUCTRPERM"),
    ],
)
def test_ncu_counts_convolutions(
    printed: str, code: int, message: str | None, tmp_path: Path
) -> None:
    (tmp_path / "printed").write_text(printed)
    script = _NCU.replace("METRICS", ",".join(METRICS)).replace("CODE", str(code))
    ncu = tmp_path / "ncu"
    ncu.write_text(script.replace("PRINTED", str(tmp_path / "printed")))
    ncu.chmod(0o755)
    (recording,) = (each for each in PLANS["gpu"] if each.tool is Tool.NCU)
    output = tmp_path / "made"
    output.mkdir()
    recorder = Recorder(output, Sandbox(None), {Tool.NCU: ncu})
    if message is not None:
        with pytest.raises(RecordingError, match=message):
            recorder.record(recording)
        assert not list(output.iterdir())
        return
    (made,) = recorder.record(recording)
    assert made == output / "algorithms" / "alexnet-gpu-counters-2099.1.csv"
    assert made.read_text() == printed
    assert made.with_suffix(".json").is_file()
    facts = json.loads(made.with_suffix(".provenance.json").read_text())
    assert facts["recorder"] == {"name": "ncu", "version": "2099.1.0.0"}
    assert facts["clocks"].startswith("not controlled")
    assert "--profile-from-start off --clock-control none" in facts["commands"][0]


_NSYS = """#!/bin/sh
[ "$1" = --version ] && { echo "NVIDIA Nsight Systems version 2099.1.1.1-abc"; exit; }
[ "$1" = profile ] || exit 1
while [ $# -gt 0 ]; do
    [ "$1" = --output ] && echo stream > "$2.qdstrm"
    [ "$1" = --manifest ] && echo "{}" > "$2"
    shift
done
"""


def test_nsys_without_its_importer_leaves_its_stream(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nsys = tmp_path / "nsys"
    nsys.write_text(_NSYS)
    nsys.chmod(0o755)
    output = tmp_path / "made"
    output.mkdir()
    monkeypatch.setattr("workloads.record_fixtures._missing", lambda *_: None)
    words = ["--plan", "smoke", "--only", "alexnet-smoke-nsys", "--nsys", str(nsys), "--open"]
    assert main([*words, "--output", str(output)]) == 0
    name = "alexnet-smoke-nsys-2099.1"
    assert {path.name for path in output.iterdir()} == {
        f"{name}.{end}" for end in ("qdstrm", "layers.json", "provenance.json")
    }
    later = [
        f"QdstrmImporter -i {name}.qdstrm",
        f"nsys export --type=sqlite --output {name}.sqlite {name}.nsys-rep",
    ]
    assert json.loads((output / f"{name}.provenance.json").read_text())["to_run"] == later
    assert (
        f"{name}.qdstrm: nsys lacks its importer, to run: {' && '.join(later)}"
        in capsys.readouterr().out
    )


def test_the_reader_has_every_metric() -> None:
    found = metrics_by_column(METRICS)
    assert {name for names in found.values() for name in names} == set(METRICS)


@pytest.mark.frameworks
@pytest.mark.usefixtures("nsys")
@pytest.mark.skipif(not find_sandbox().isolated, reason="no namespaces can be made here")
def test_nsys_records_the_ranges(tmp_path: Path) -> None:
    needs("torch", "nvtx")
    assert NSYS is not None
    recording = next(each for each in PLANS["smoke"] if each.tool is Tool.NSYS)
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

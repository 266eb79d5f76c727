"""Makes one recording with its layer manifest and provenance."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from workloads.measurements import METRICS
from workloads.options import Device, RunOptions, parse_run_options
from workloads.provenance import write_provenance
from workloads.recordings import Recording, Tool
from workloads.sandbox import Program, RecordingError, Sandbox

PROGRAMS = (Tool.NSYS, Tool.NCU)
_PACKAGES: Mapping[Tool, tuple[str, ...]] = {
    Tool.TORCH_PROFILER: ("torch",),
    Tool.TF_PROFILER: ("tensorflow-cpu", "tensorflow"),
    Tool.JAX_PROFILER: ("jaxlib",),
}


@dataclass(frozen=True)
class Recorder:
    """Records into the directory ``output``; ``programs`` are nsys and ncu where installed."""

    output: Path
    sandbox: Sandbox
    programs: Mapping[Tool, Path]

    def record(self, recording: Recording) -> list[Path]:
        """Make ``recording`` with its layers and provenance; return the paths of its traces.

        The file names of nsys and ncu contain the tool's version, on which the format depends. The
        output directory gets all files of a recording or none. Raises :class:`RecordingError`.
        """
        options = parse_run_options(recording.arguments)
        tool_version = self._version(recording.tool)
        name = recording.name
        program = None
        if recording.tool in PROGRAMS:
            program = Program(recording.tool.value, self.programs[recording.tool])
            name += "-" + ".".join(tool_version.split(".")[:2])
        manifest = f"{name}.layers.json"
        workload = ["python", "-m", f"workloads.{recording.tool.workload}", *recording.arguments]
        workload += ["--manifest", manifest]
        trace = f"{name}{recording.suffix}"
        commands = _commands(recording.tool, name, trace, workload, options)
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder)
            printed = [self.sandbox.run(command, made, program) for command in commands]
            traces = [trace]
            if recording.tool.writes_xplane:
                _copy_xplane(made, trace, recording.tool)
                if recording.as_json:
                    traces.append(f"{name}.trace.json.gz")
                    commands += self._export_json(made, *traces)
            if not (made / trace).is_file():
                raise RecordingError(f"{recording.tool} did not write {trace}")
            if recording.tool is Tool.NCU:
                _check_measured(made / trace)
            sidecars = [
                write_provenance(
                    made / each,
                    recorder=recording.tool.value,
                    recorder_version=tool_version,
                    commands=commands,
                    options=options,
                    output=_summary_line(printed[0]),
                ).name
                for each in traces
            ]
            target = self.output / recording.folder
            target.mkdir(exist_ok=True)
            for file in (manifest, *sidecars, *traces):
                shutil.copyfile(made / file, target / file)
        return [target / each for each in traces]

    def _version(self, tool: Tool) -> str:
        if tool not in PROGRAMS:
            return installed_version(tool)
        program = self.programs.get(tool)
        if program is None:
            raise RecordingError(f"{tool} is not installed")
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
        found = re.search(r"\d+(\.\d+)+", done.stdout)
        if found is None:
            raise RecordingError(f"{program} --version printed {done.stdout.strip()!r}: no version")
        return found[0]

    def _export_json(self, made: Path, plane: str, trace: str) -> list[list[str]]:
        """Write the run as JSON too; return the commands that were run for it."""
        found = sorted(made.glob("log/plugins/profile/*/*.trace.json.gz"))
        if found:
            shutil.copyfile(found[0], made / trace)
            return []
        convert = ["python", "-m", "workloads.trace_json", plane, trace]
        self.sandbox.run(convert, made)
        return [convert]


def installed_version(tool: Tool) -> str:
    """Return the version of the package that contains a framework's profiler.

    Raises :class:`RecordingError` where it is not installed.
    """
    for package in _PACKAGES[tool]:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    raise RecordingError(f"{_PACKAGES[tool][-1]} is not installed")


def _commands(
    tool: Tool, name: str, trace: str, workload: list[str], options: RunOptions
) -> list[list[str]]:
    match tool:
        case Tool.NSYS:
            return _nsys_commands(name, trace, workload, options)
        case Tool.NCU:
            return [_ncu_command(trace, workload)]
        case Tool.TORCH_PROFILER:
            return [[*workload, "--trace", trace]]
        case Tool.TF_PROFILER | Tool.JAX_PROFILER:
            return [[*workload, "--log", "log"]]


def _nsys_commands(
    name: str, trace: str, workload: list[str], options: RunOptions
) -> list[list[str]]:
    # OS runtime events and samples would make the export many times larger.
    traced = "nvtx,cuda" if options.device is Device.CUDA else "nvtx"
    profile = ["nsys", "profile", f"--trace={traced}", "--sample=none", "--cpuctxsw=none"]
    export = ["nsys", "export", "--type=sqlite", "--output", trace, f"{name}.nsys-rep"]
    return [[*profile, "--output", name, *workload], export]


def _ncu_command(trace: str, workload: Sequence[str]) -> list[str]:
    # ncu by default fixes the clocks at their base, which other programs on the machine feel and
    # which no run has: its times are here at whatever clock there was.
    measure = ["ncu", "--csv", "--page", "raw", "--log-file", trace, "--profile-from-start", "off"]
    measure += ["--clock-control", "none"]
    return [*measure, "--metrics", ",".join(METRICS), *workload]


def _copy_xplane(made: Path, trace: str, tool: Tool) -> None:
    """Copy the XPlane file from the profiler's folders, compressed if ``trace`` ends in .gz."""
    found = sorted(made.glob("log/plugins/profile/*/*.xplane.pb"))
    if len(found) != 1:
        raise RecordingError(f"{tool} wrote {len(found)} XPlane files, not one")
    content = found[0].read_bytes()
    packed = gzip.compress(content, 9, mtime=0) if trace.endswith(".gz") else content
    (made / trace).write_bytes(packed)


def _summary_line(printed: str) -> str:
    """Return the workload's own line among those of the profiler."""
    lines = printed.strip().splitlines()
    return next((line for line in lines if line.endswith(" ms a step")), lines[0] if lines else "")


def _check_measured(table: Path) -> None:
    """Raise :class:`RecordingError` with ncu's message where it measured nothing."""
    lines = table.read_text(encoding="utf-8", errors="replace").splitlines()
    if not any(line.startswith('"ID",') for line in lines):
        messages = [line for line in lines if line.startswith(("==ERROR==", "==WARNING=="))]
        raise RecordingError(f"ncu measured nothing: {messages[0] if messages else 'no message'}")

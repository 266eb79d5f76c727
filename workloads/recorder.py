"""Makes one recording with its layer manifest and provenance."""

from __future__ import annotations

import csv
import gzip
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
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
        tool, name = recording.tool, recording.name
        tool_version = self._version(tool)
        program = None
        if tool in PROGRAMS:
            program = Program(tool.value, self.programs[tool])
            name += "-" + ".".join(tool_version.split(".")[:2])
        # The algorithms write their times beside the counters, networks their layers.
        options = None if tool is Tool.NCU else parse_run_options(recording.arguments)
        beside, option = f"{name}.layers.json", "--manifest"
        if options is None:
            beside, option = f"{name}.json", "--out"
        workload = ["python", "-m", f"workloads.{tool.workload}", *recording.arguments]
        workload += [option, beside]
        if recording.variables:
            workload = ["env", *recording.variables, *workload]
        trace = f"{name}{recording.suffix}"
        commands = [_command(tool, name, trace, workload, options)]
        later: list[list[str]] = []
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder)
            try:
                printed = self.sandbox.run(commands[0], made, program)
            except RecordingError as error:
                # ncu ends the program where it cannot count a kernel, and keeps those before.
                if tool is not Tool.NCU or not (made / trace).is_file():
                    raise
                printed = str(error)
            traces = [trace]
            if tool is Tool.NSYS:
                export = ["nsys", "export", "--type=sqlite", "--output", trace, f"{name}.nsys-rep"]
                if (made / f"{name}.nsys-rep").is_file():
                    commands.append(export)
                    self.sandbox.run(export, made, program)
                elif (made / f"{name}.qdstrm").is_file():
                    # nsys lacks its importer, as in the package for machines that are profiled.
                    traces = [f"{name}.qdstrm"]
                    later = [["QdstrmImporter", "-i", traces[0]], export]
            elif tool.writes_xplane:
                _copy_xplane(made, trace, tool)
                if recording.as_json:
                    traces.append(f"{name}.trace.json.gz")
                    commands += self._export_json(made, *traces)
            elif options is not None and options.processes > 1:
                traces = sorted(each.name for each in made.glob(f"{name}.rank*.json.gz"))
            if not traces or not (made / traces[0]).is_file():
                raise RecordingError(f"{tool} did not write {trace}")
            if tool is Tool.NCU:
                _check_counted(made / trace)
            sidecars = [
                write_provenance(
                    made / each,
                    recorder=tool.value,
                    recorder_version=tool_version,
                    commands=commands,
                    later=later,
                    options=options,
                    output=_summary_line(printed),
                ).name
                for each in traces
            ]
            target = self.output / recording.folder
            target.mkdir(exist_ok=True)
            for file in (beside, *sidecars, *traces):
                if (made / file).is_file():
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


def _command(
    tool: Tool, name: str, trace: str, workload: list[str], options: RunOptions | None
) -> list[str]:
    match tool:
        case Tool.NSYS:
            # OS runtime events and samples would make the export many times larger.
            quiet = ["--sample=none", "--cpuctxsw=none", "--output", name]
            on_gpu = options is not None and options.device is Device.CUDA
            # By default a CUDA graph is one piece of work without kernels.
            traced = (
                ["--trace=nvtx,cuda", "--cuda-graph-trace=node"] if on_gpu else ["--trace=nvtx"]
            )
            return ["nsys", "profile", *traced, *quiet, *workload]
        case Tool.NCU:
            # By default ncu sets the clocks to their base, which other programs on the machine
            # feel. The workload opens a window of CUDA's profiler around each algorithm.
            measure = ["ncu", "--csv", "--page", "raw", "--nvtx", "--log-file", trace]
            measure += ["--profile-from-start", "off", "--clock-control", "none"]
            return [*measure, "--metrics", ",".join(METRICS), *workload]
        case Tool.TORCH_PROFILER:
            return [*workload, "--trace", trace]
        case Tool.TF_PROFILER | Tool.JAX_PROFILER:
            return [*workload, "--log", "log"]


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


def _check_counted(table: Path) -> None:
    """Raise :class:`RecordingError` where ncu counted no kernel, or none of the algorithms'."""
    lines = table.read_text(encoding="utf-8", errors="replace").splitlines()
    first = next((at for at, line in enumerate(lines) if line.startswith('"ID",')), None)
    if first is None:
        messages = [line for line in lines if line.startswith(("==ERROR==", "==WARNING=="))]
        raise RecordingError(f"ncu measured nothing: {messages[0] if messages else 'no message'}")
    rows = csv.DictReader(line for line in lines[first:] if line.startswith('"'))
    kernels = [row["Kernel Name"] for row in rows if row["ID"]]
    if all(map(_PYTORCHS_OWN.search, kernels)):
        raise RecordingError(f"ncu counted {len(kernels)} kernels, none of a convolution")


_PYTORCHS_OWN = re.compile(r"\bat::|elementwise_kernel")

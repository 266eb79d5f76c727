"""Make one recording, with what belongs beside it."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from workloads.measurements import METRICS
from workloads.options import Device, RunOptions, parse_run_options
from workloads.provenance import write_provenance
from workloads.recordings import Recording, Tool
from workloads.room import Program, Room, RoomError


@dataclass(frozen=True)
class Recorder:
    """Records into the directory ``output``; ``programs`` are nsys and ncu where installed."""

    output: Path
    room: Room
    programs: Mapping[Tool, Path]

    def record(self, recording: Recording) -> Path:
        """Make ``recording`` with its layers and provenance; returns the trace's path.

        The name of what nsys or ncu made holds its version: they write as it has it. Nothing is
        left in the output directory unless all of it was made. Raises :class:`RoomError`.
        """
        options = parse_run_options(recording.arguments)
        version = self._version(recording.tool)
        name = recording.name
        program = None
        if recording.tool is not Tool.TORCH_PROFILER:
            program = Program(recording.tool.value, self.programs[recording.tool])
            name += "-" + ".".join(version.split(".")[:2])
        trace, manifest = f"{name}{recording.suffix}", f"{name}.layers.json"
        workload = ["python", "-m", "workloads.pytorch", *recording.arguments]
        workload += ["--manifest", manifest]
        match recording.tool:
            case Tool.NSYS:
                commands = _nsys_commands(name, trace, workload, options)
            case Tool.NCU:
                commands = [_ncu_command(trace, workload)]
            case Tool.TORCH_PROFILER:
                commands = [[*workload, "--trace", trace]]
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder)
            printed = [self.room.run(command, made, program) for command in commands]
            if not (made / trace).is_file():
                raise RoomError(f"{recording.tool} left no {trace}")
            if recording.tool is Tool.NCU:
                _check_measured(made / trace)
            sidecar = write_provenance(
                made / trace,
                recorder=recording.tool.value,
                recorder_version=version,
                commands=commands,
                options=options,
                output=printed[0].splitlines()[0],
            )
            for file in (made / manifest, sidecar, made / trace):
                shutil.copyfile(file, self.output / file.name)
        return self.output / trace

    def _version(self, tool: Tool) -> str:
        if tool is Tool.TORCH_PROFILER:
            return str(torch.__version__)
        program = self.programs.get(tool)
        if program is None:
            raise RoomError(f"{tool} is not installed")
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
        found = re.search(r"\d+(\.\d+)+", said.stdout)
        if found is None:
            raise RoomError(f"{program} --version says no version: {said.stdout.strip()!r}")
        return found[0]


def _nsys_commands(
    name: str, trace: str, workload: list[str], options: RunOptions
) -> list[list[str]]:
    # OS runtime events and samples would make the export many times bigger.
    traced = "nvtx,cuda" if options.device is Device.CUDA else "nvtx"
    profile = ["nsys", "profile", f"--trace={traced}", "--sample=none", "--cpuctxsw=none"]
    export = ["nsys", "export", "--type=sqlite", "--output", trace, f"{name}.nsys-rep"]
    return [[*profile, "--output", name, *workload], export]


def _ncu_command(trace: str, workload: list[str]) -> list[str]:
    measure = ["ncu", "--csv", "--page", "raw", "--log-file", trace, "--profile-from-start", "off"]
    return [*measure, "--metrics", ",".join(METRICS), *workload]


def _check_measured(table: Path) -> None:
    """Raise :class:`RoomError` with what ncu said where it measured nothing."""
    lines = table.read_text(encoding="utf-8", errors="replace").splitlines()
    if not any(line.startswith('"ID",') for line in lines):
        said = [line for line in lines if line.startswith(("==ERROR==", "==WARNING=="))]
        raise RoomError(f"ncu measured nothing: {said[0] if said else 'it does not say why'}")

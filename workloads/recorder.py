"""Make one recording, with what belongs beside it."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from workloads.options import Device, RunOptions, parse_run_options
from workloads.provenance import write_provenance
from workloads.recordings import Recording, Tool
from workloads.room import Room, RoomError


@dataclass(frozen=True)
class Recorder:
    """Records into the directory ``output``; ``nsys`` is its executable where it is installed."""

    output: Path
    room: Room
    nsys: Path | None

    def record(self, recording: Recording) -> Path:
        """Make ``recording`` with its layers and provenance; returns the trace's path.

        An nsys recording has nsys' version in its name: exports differ by version. Nothing is left
        in the output directory unless all of it was made. Raises :class:`RoomError`.
        """
        options = parse_run_options(recording.arguments)
        version = self._version(recording.tool)
        name = recording.name
        if recording.tool is Tool.NSYS:
            name += "-" + ".".join(version.split(".")[:2])
        trace, manifest = f"{name}{recording.suffix}", f"{name}.layers.json"
        workload = ["python", "-m", "workloads.pytorch", *recording.arguments]
        workload += ["--manifest", manifest]
        if recording.tool is Tool.NSYS:
            commands = _nsys_commands(name, trace, workload, options)
        else:
            commands = [[*workload, "--trace", trace]]
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder)
            printed = [self.room.run(command, made, self.nsys) for command in commands]
            if not (made / trace).is_file():
                raise RoomError(f"{recording.tool} left no {trace}")
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
        if self.nsys is None:
            raise RoomError("nsys is not installed")
        said = subprocess.run([self.nsys, "--version"], capture_output=True, text=True, check=False)
        found = re.search(r"\d+(\.\d+)+", said.stdout)
        if found is None:
            raise RoomError(f"{self.nsys} --version says no version: {said.stdout.strip()!r}")
        return found[0]


def _nsys_commands(
    name: str, trace: str, workload: list[str], options: RunOptions
) -> list[list[str]]:
    # OS runtime events and samples would make the export many times bigger.
    traced = "nvtx,cuda" if options.device is Device.CUDA else "nvtx"
    profile = ["nsys", "profile", f"--trace={traced}", "--sample=none", "--cpuctxsw=none"]
    export = ["nsys", "export", "--type=sqlite", "--output", trace, f"{name}.nsys-rep"]
    return [[*profile, "--output", name, *workload], export]

"""Record the fixtures: ``python -m workloads.record_fixtures --output fixtures``.

Plan ``cpu`` is what a machine without a GPU can record, ``gpu`` what a CUDA machine can, ``smoke``
the latter's machinery tried on the CPU. nsys is used where it is installed and passed over, with a
word, where it is not; traceana itself needs neither nsys nor PyTorch.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from workloads.options import parse_run_options
from workloads.provenance import write_provenance
from workloads.recordings import PLANS, Recording, Tool
from workloads.room import RoomError, check_room, run_in_room

# Each is to be committed; a bigger one is a mistake in the plan.
MAXIMUM_BYTES = 1_000_000


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns 0, or 1 when a recording failed."""
    parser = argparse.ArgumentParser("python -m workloads.record_fixtures", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--plan", choices=list(PLANS), default="cpu")
    parser.add_argument("--output", type=Path, default=Path("fixtures"), metavar="DIRECTORY")
    parser.add_argument("--only", metavar="NAME", help="the one recording of this name")
    parser.add_argument("--nsys", help="nsys executable (the one on PATH)")
    arguments = parser.parse_args(argv)
    output: Path = arguments.output
    if not output.is_dir():
        parser.error(f"{output}: no such directory; make it first")
    wanted = [each for each in PLANS[arguments.plan] if arguments.only in (None, each.name)]
    if not wanted:
        names = ", ".join(each.name for each in PLANS[arguments.plan])
        parser.error(f"plan {arguments.plan} has no {arguments.only}; it has {names}")
    if arguments.plan == "gpu" and not torch.cuda.is_available():
        parser.error("plan gpu needs a CUDA device and PyTorch finds none; see --plan smoke")
    nsys = shutil.which(arguments.nsys or "nsys")
    if arguments.nsys and nsys is None:
        parser.error(f"--nsys {arguments.nsys}: no such executable")
    try:
        check_room()
    except RoomError as error:
        parser.error(str(error))
    return _record_all(wanted, output, Path(nsys).absolute() if nsys else None)


def _record_all(wanted: list[Recording], output: Path, nsys: Path | None) -> int:
    failed = 0
    for recording in wanted:
        if recording.tool is Tool.NSYS and nsys is None:
            print(f"{recording.name}: passed over, nsys is not installed")
            continue
        start = time.monotonic()
        try:
            made = record(recording, output, nsys)
        except RoomError as error:
            print(f"{recording.name}: FAILED: {error}")
            failed = 1
            continue
        print(f"{made}: {made.stat().st_size} bytes in {time.monotonic() - start:.1f} s")
    return failed


def record(recording: Recording, output: Path, nsys: Path | None) -> Path:
    """Make ``recording`` in ``output`` with its layers and provenance; returns the trace's path.

    An nsys recording has nsys' version in its name: exports differ by version. Nothing is left in
    ``output`` unless all of it was made. Raises :class:`RoomError`.
    """
    workload = ["python", "-m", "workloads.pytorch", *recording.arguments]
    name, recorder_version = recording.name, str(torch.__version__)
    if recording.tool is Tool.NSYS:
        if nsys is None:
            raise RoomError("nsys is not installed")
        recorder_version = _nsys_version(nsys)
        name += "-" + ".".join(recorder_version.split(".")[:2])
    trace, manifest = f"{name}{recording.suffix}", f"{name}.layers.json"
    workload += ["--manifest", manifest]
    if recording.tool is Tool.NSYS:
        # NVTX alone: OS runtime events would make the export many times bigger.
        profile = ["nsys", "profile", "--trace=nvtx,cuda" if _on_gpu(recording) else "--trace=nvtx"]
        profile += ["--sample=none", "--cpuctxsw=none", "--output", name]
        export = ["nsys", "export", "--type=sqlite", "--output", trace, f"{name}.nsys-rep"]
        commands = [[*profile, *workload], export]
    else:
        commands = [[*workload, "--trace", trace]]
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        printed = [run_in_room(command, room, nsys) for command in commands]
        if not (room / trace).is_file():
            raise RoomError(f"{recording.tool} left no {trace}")
        if (size := (room / trace).stat().st_size) > MAXIMUM_BYTES:
            raise RoomError(f"{trace} has {size} bytes, more than {MAXIMUM_BYTES}; use fewer steps")
        sidecar = write_provenance(
            room / trace,
            recorder=recording.tool.value,
            recorder_version=recorder_version,
            commands=commands,
            options=parse_run_options(recording.arguments),
            output=printed[0].splitlines()[0],
        )
        for file in (room / manifest, sidecar, room / trace):
            shutil.copyfile(file, output / file.name)
    return output / trace


def _on_gpu(recording: Recording) -> bool:
    return "cuda" in recording.arguments


def _nsys_version(nsys: Path) -> str:
    said = subprocess.run([nsys, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"\d+(\.\d+)+", said)
    if found is None:
        raise RoomError(f"{nsys} --version says no version: {said.strip()!r}")
    return found[0]


if __name__ == "__main__":
    sys.exit(main())

"""Record the fixtures: ``python -m workloads.record_fixtures --output fixtures``.

Plan ``cpu`` is what a machine without a GPU can record, ``gpu`` what a CUDA machine can, ``smoke``
the latter's machinery tried on the CPU. nsys and ncu are used where they are installed and passed
over, with a word, where they are not; traceana itself needs neither of them, nor PyTorch.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

import torch

from workloads.recorder import Recorder
from workloads.recordings import PLANS, Recording, Tool
from workloads.room import Room, RoomError, find_room

# Each is to be committed; a bigger one is a mistake in the plan.
MAXIMUM_BYTES = 1_000_000
_PROGRAMS = (Tool.NSYS, Tool.NCU)


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns 0, or 1 when a recording failed."""
    parser = argparse.ArgumentParser("python -m workloads.record_fixtures", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--plan", choices=list(PLANS), default="cpu")
    parser.add_argument("--output", type=Path, default=Path("fixtures"), metavar="DIRECTORY")
    parser.add_argument("--only", metavar="NAME", help="the one recording of this name")
    parser.add_argument("--open", action="store_true", help="without namespaces of their own")
    for tool in _PROGRAMS:
        parser.add_argument(f"--{tool}", help=f"{tool} executable (the one on PATH)")
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
    programs: dict[Tool, Path] = {}
    for tool in _PROGRAMS:
        given: str | None = getattr(arguments, tool)
        found = shutil.which(given or tool)
        if found is not None:
            programs[tool] = Path(found).absolute()
        elif given:
            parser.error(f"--{tool} {given}: no such executable")
    room = Room(None) if arguments.open else find_room()
    recorder = Recorder(output, room, programs)
    return _record_all(wanted, recorder)


def _record_all(wanted: list[Recording], recorder: Recorder) -> int:
    if not recorder.room.closed:
        print("Without namespaces recordings name this host: look at them before publishing.")
    failed = 0
    for recording in wanted:
        if recording.tool in _PROGRAMS and recording.tool not in recorder.programs:
            print(f"{recording.name}: passed over, {recording.tool} is not installed")
            continue
        if recording.tool is Tool.NSYS and not recorder.room.closed:
            print(f"{recording.name}: passed over, nsys would record every process' environment")
            continue
        start = time.monotonic()
        try:
            made = recorder.record(recording)
        except RoomError as error:
            print(f"{recording.name}: FAILED: {error}")
            failed = 1
            continue
        size = made.stat().st_size
        big = f", TOO BIG to commit (over {MAXIMUM_BYTES})" if size > MAXIMUM_BYTES else ""
        print(f"{made}: {size} bytes in {time.monotonic() - start:.1f} s{big}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())

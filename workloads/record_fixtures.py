"""Record the fixtures: ``python -m workloads.record_fixtures --output fixtures``.

Plan ``cpu`` is what a machine without a GPU can record, ``gpu`` what a CUDA machine can, ``smoke``
the latter's machinery tried on the CPU. Frameworks, nsys and ncu are used where they are installed
and passed over, with a word, where they are not; traceana itself needs none of them.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from workloads.options import Device, parse_run_options
from workloads.recorder import PROGRAMS, Recorder, installed_version
from workloads.recordings import PLANS, Recording, Tool
from workloads.room import Room, RoomError, find_room

# Each is to be committed; a bigger one is a mistake in the plan.
MAXIMUM_BYTES = 1_000_000
# What says whether a framework finds a GPU.
_LOOKS = {
    Tool.TORCH_PROFILER: "import torch; assert torch.cuda.is_available()",
    Tool.TF_PROFILER: "import tensorflow; assert tensorflow.config.list_physical_devices('GPU')",
    Tool.JAX_PROFILER: "import jax; jax.devices('gpu')",
}


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns 0, or 1 when a recording failed."""
    parser = argparse.ArgumentParser("python -m workloads.record_fixtures", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--plan", choices=list(PLANS), default="cpu")
    parser.add_argument("--output", type=Path, default=Path("fixtures"), metavar="DIRECTORY")
    parser.add_argument("--only", metavar="NAME", action="append", help="these alone")
    parser.add_argument("--open", action="store_true", help="without namespaces of their own")
    for tool in PROGRAMS:
        parser.add_argument(f"--{tool}", help=f"{tool} executable (the one on PATH)")
    arguments = parser.parse_args(argv)
    output: Path = arguments.output
    if not output.is_dir():
        parser.error(f"{output}: no such directory; make it first")
    plan = {each.name: each for each in PLANS[arguments.plan]}
    for name in arguments.only or ():
        if name not in plan:
            parser.error(f"plan {arguments.plan} has no {name}; it has {', '.join(plan)}")
    wanted = [plan[name] for name in arguments.only or plan]
    programs: dict[Tool, Path] = {}
    for tool in PROGRAMS:
        given: str | None = getattr(arguments, tool)
        found = shutil.which(given or tool)
        if found is not None:
            programs[tool] = Path(found).absolute()
        elif given:
            parser.error(f"--{tool} {given}: no such executable")
    room = Room(None) if arguments.open else find_room()
    return _record_all(wanted, Recorder(output, room, programs))


def _record_all(wanted: Iterable[Recording], recorder: Recorder) -> int:
    if not recorder.room.closed:
        print("Without namespaces recordings name this host: look at them before publishing.")
    hindrance = cache(lambda tool, device: _hindrance(tool, device, recorder))
    done = failed = 0
    for recording in wanted:
        why = hindrance(recording.tool, parse_run_options(recording.arguments).device)
        if why is not None:
            print(f"{recording.name}: passed over, {why}")
            continue
        start = time.monotonic()
        try:
            made = recorder.record(recording)
        except RoomError as error:
            print(f"{recording.name}: FAILED: {error}")
            failed += 1
            continue
        done += 1
        for file in made:
            size = file.stat().st_size
            big = f", TOO BIG to commit (over {MAXIMUM_BYTES})" if size > MAXIMUM_BYTES else ""
            print(f"{file}: {size} bytes in {time.monotonic() - start:.1f} s{big}", flush=True)
    print(f"{done} recorded, {failed} failed; they are in {recorder.output}")
    return 1 if failed else 0


def _hindrance(tool: Tool, device: Device, recorder: Recorder) -> str | None:
    """Why nothing can be recorded with ``tool`` here, None where it can."""
    if tool in PROGRAMS:
        if tool not in recorder.programs:
            return f"{tool} is not installed"
        if tool is Tool.NSYS and not recorder.room.closed:
            return "nsys would record every process' environment"
        tool = Tool.TORCH_PROFILER
    try:
        installed_version(tool)
    except RoomError as error:
        return str(error)
    if device is Device.CUDA:
        with tempfile.TemporaryDirectory() as folder:
            try:
                recorder.room.run(["python", "-c", _LOOKS[tool]], Path(folder))
            except RoomError:
                return f"{tool} finds no GPU here"
    return None


if __name__ == "__main__":
    sys.exit(main())

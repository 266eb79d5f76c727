"""Record the fixtures: ``python -m workloads.record_fixtures --output fixtures``.

Plan ``cpu`` needs no GPU, ``gpu`` needs a CUDA machine, ``smoke`` is plan ``gpu`` in small on the
CPU. Recordings whose framework, nsys or ncu is not installed are skipped with a message.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from workloads.options import Device, parse_run_options
from workloads.provenance import provenance_path
from workloads.recorder import PROGRAMS, Recorder, installed_version
from workloads.recordings import PLANS, Recording, Tool
from workloads.sandbox import RecordingError, Sandbox, find_sandbox

# Each recording is committed; a larger one is a mistake in the plan.
MAXIMUM_BYTES = 1_000_000
# Programs that print the number of GPUs that a framework finds.
_GPU_COUNTS = {
    Tool.TORCH_PROFILER: "import torch; print(torch.cuda.device_count())",
    Tool.TF_PROFILER: "import tensorflow as t; print(len(t.config.list_physical_devices('GPU')))",
    Tool.JAX_PROFILER: "import jax; print(len(jax.devices('gpu')))",
}


def main(argv: list[str] | None = None) -> int:
    """Run the command; return 0, or 1 when a recording failed."""
    parser = argparse.ArgumentParser("python -m workloads.record_fixtures", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--plan", choices=list(PLANS), default="cpu")
    parser.add_argument("--output", type=Path, default=Path("fixtures"), metavar="DIRECTORY")
    parser.add_argument(
        "--only", metavar="NAME", action="append", help="only this one; may be repeated"
    )
    parser.add_argument("--open", action="store_true", help="record without separate namespaces")
    for tool in PROGRAMS:
        parser.add_argument(f"--{tool}", help=f"{tool} executable (the one on PATH)")
    arguments = parser.parse_args(argv)
    output: Path = arguments.output
    if not output.is_dir():
        parser.error(f"{output}: no such directory: create it first")
    plan = {each.name: each for each in PLANS[arguments.plan]}
    for name in arguments.only or ():
        if name not in plan:
            parser.error(f"plan {arguments.plan} has no {name}: choose from {', '.join(plan)}")
    wanted = [plan[name] for name in arguments.only or plan]
    programs: dict[Tool, Path] = {}
    for tool in PROGRAMS:
        given: str | None = getattr(arguments, tool)
        found = shutil.which(given or tool)
        if found is not None:
            programs[tool] = Path(found).absolute()
        elif given:
            parser.error(f"--{tool} {given}: no such executable: check the path")
    sandbox = Sandbox(None) if arguments.open else find_sandbox()
    return _record_all(wanted, Recorder(output, sandbox, programs))


def _record_all(wanted: Iterable[Recording], recorder: Recorder) -> int:
    if not recorder.sandbox.isolated:
        print("Recordings without namespaces contain the host's name: check before publishing.")
    missing = cache(lambda tool, gpus: _missing(tool, gpus, recorder))
    done = failed = 0
    for recording in wanted:
        options = parse_run_options(recording.arguments)
        on_gpu = options.device is Device.CUDA or recording.tool is Tool.NCU
        why = missing(recording.tool, options.processes if on_gpu else 0)
        if why is not None:
            print(f"{recording.name}: skipped, {why}")
            continue
        start = time.monotonic()
        try:
            made = recorder.record(recording)
        except RecordingError as error:
            print(f"{recording.name}: FAILED: {error}")
            failed += 1
            continue
        done += 1
        for file in made:
            size = file.stat().st_size
            big = f", too large to commit (limit {MAXIMUM_BYTES})" if size > MAXIMUM_BYTES else ""
            print(f"{file}: {size} bytes in {time.monotonic() - start:.1f} s{big}", flush=True)
            later = json.loads(provenance_path(file).read_text("utf-8")).get("to_run")
            if later:
                print(f"{file.name}: nsys lacks its importer, to run: {' && '.join(later)}")
    print(f"{done} recorded in {recorder.output}, {failed} failed")
    return 1 if failed else 0


def _missing(tool: Tool, gpus: int, recorder: Recorder) -> str | None:
    """Return the reason why ``tool`` cannot record on ``gpus`` GPUs, None where it can."""
    if tool in PROGRAMS:
        if tool not in recorder.programs:
            return f"{tool} is not installed"
        if tool is Tool.NSYS and not recorder.sandbox.isolated:
            return "nsys would record the environment of every process"
        tool = Tool.TORCH_PROFILER
    try:
        installed_version(tool)
    except RecordingError as error:
        return str(error)
    if not gpus:
        return None
    with tempfile.TemporaryDirectory() as folder:
        try:
            printed = recorder.sandbox.run(["python", "-c", _GPU_COUNTS[tool]], Path(folder))
            found = int(printed.split()[-1])
        except (RecordingError, IndexError, ValueError):
            found = 0
    return None if found >= gpus else f"{tool} found {found or 'no'} GPU, {gpus} needed"


if __name__ == "__main__":
    # The exception ends the processes of a recording.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    sys.exit(main())

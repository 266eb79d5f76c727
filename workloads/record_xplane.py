"""Record the XPlane fixtures: ``python -m workloads.record_xplane --output fixtures/xplane``.

Run by a Python that has TensorFlow and JAX; they need not be beside PyTorch.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from workloads.options import parse_run_options
from workloads.provenance import write_provenance
from workloads.room import Room, RoomError, find_room

_RUN = ("--batch", "4", "--steps", "3", "--warm-up", "2")
_WORKLOADS = {
    # framework: (package that records, its profiler, further options)
    "keras": ("tensorflow-cpu", "tf.profiler", ("--threads", "2")),
    "jax": ("jaxlib", "jax.profiler", ()),
}


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns 0, or 1 when a recording failed."""
    parser = argparse.ArgumentParser("python -m workloads.record_xplane", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--output", type=Path, default=Path("fixtures/xplane"))
    parser.add_argument("--open", action="store_true", help="without namespaces of their own")
    arguments = parser.parse_args(argv)
    room = Room(None) if arguments.open else find_room()
    try:
        for framework in _WORKLOADS:
            for made in record(framework, room, arguments.output):
                print(f"{made}: {made.stat().st_size} bytes", flush=True)
    except RoomError as error:
        print(f"FAILED: {error}")
        return 1
    return 0


def record(framework: str, room: Room, output: Path) -> list[Path]:
    """Record AlexNet in ``framework`` and return the two traces of the run, XPlane and JSON.

    Raises :class:`RoomError`.
    """
    package, profiler, own = _WORKLOADS[framework]
    name = f"alexnet-cpu-{framework}"
    words = (*_RUN, *own)
    plane, trace, layers = f"{name}.xplane.pb", f"{name}.trace.json.gz", f"{name}.layers.json"
    workload = ["python", "-m", f"workloads.{framework}", *words]
    workload += ["--log", "log", "--manifest", layers]
    convert = ["python", "-m", "workloads.trace_json", plane, trace]
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        printed = room.run(workload, made)
        found = sorted(made.glob("log/plugins/profile/*/*"))
        for file in found:
            ending = ".xplane.pb" if file.name.endswith(".pb") else ".trace.json.gz"
            shutil.copyfile(file, made / f"{name}{ending}")
        if not (made / plane).is_file():
            raise RoomError(f"{profiler} left no XPlane file")
        commands = [workload]
        if not (made / trace).is_file():
            room.run(convert, made)
            commands.append(convert)
        for file_name in (plane, trace):
            write_provenance(
                made / file_name,
                recorder=profiler,
                recorder_version=version(package),
                commands=commands,
                options=parse_run_options(words),
                output=printed.strip().splitlines()[-1],
            )
        for file in made.glob(f"{name}.*"):
            shutil.copyfile(file, output / file.name)
    return [output / plane, output / trace]


if __name__ == "__main__":
    sys.exit(main())

"""Whole commands on traces of three sizes: CPU time, peak memory, growth, share of each phase.

Every command runs in a new process. The exponent of growth is the slope of the logarithm of CPU
time over that of the number of events, by least squares; the time of the same command on ten
kernels, which is starting and importing, is subtracted before. Sizes are relative: 1 is a Kineto
trace of 1 GB, an XPlane file of 0.4 GB, and databases of 5 million kernels, as many calls and 1.9
million ranges; the other shapes have a fifth of that.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.generate_database import SHAPES, WRITERS
from benchmarks.measure import FailedError, Run, run, significant
from benchmarks.outcome import Outcome, Target
from benchmarks.phases import PHASES, START
from benchmarks.source import SCRATCH

COMMANDS: Final = ("report", "layers", "transfers", "idle", "diff")
FORMATS: Final = ("kineto", "nsys", "nvprof", "xplane")
SIZES: Final = (0.1, 1.0, 3.0)
_REPETITION: Final = "training"
_XPLANE_GB: Final = 0.4
_KERNELS: Final = 5_000_000
_KERNELS_OF_SHAPES: Final = 1_000_000
_STEEPEST: Final = 1.1


@dataclass(frozen=True, slots=True)
class Trace:
    """A generated trace."""

    path: Path
    events: int


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a command on a trace."""

    trace: Trace
    runs: Sequence[Run]

    @property
    def cpu_s(self) -> float:
        """User and system time of the whole process, the median of all rounds."""
        return statistics.median(one.user_s + one.system_s for one in self.runs)

    @property
    def peak_bytes(self) -> int:
        """Greatest memory of all rounds."""
        return max(one.peak_bytes for one in self.runs)

    def share(self, phase: str) -> float:
        """Return the share of ``phase`` in the CPU time, the median of all rounds."""
        by_phase: list[dict[str, float]] = [one.printed["seconds"] for one in self.runs]
        return statistics.median(one[phase] / sum(one.values()) for one in by_phase)


def trace(form: str, shape: str, size: float, folder: Path) -> Trace:
    """Write a trace of the relative ``size`` and return it; a complete file is reused.

    In a process of its own: memory of this one would count in the peak memory of later ones.
    """
    python = [sys.executable, "-m"]
    if form in WRITERS:
        whole = _KERNELS if shape == _REPETITION else _KERNELS_OF_SHAPES
        made = ["benchmarks.generate_database", "--format", form, "--shape", shape]
        made += ["--kernels", str(round(whole * size))]
    elif form == "kineto":
        made = ["benchmarks.generate_kineto", "--size", str(size)]
    else:
        made = ["benchmarks.generate_xplane", "--size", str(_XPLANE_GB * size)]
    printed = run([*python, *made, "--scratch", folder]).printed
    return Trace(Path(printed["path"]), printed["events"])


def cost(command: str, of: Trace, rounds: int, limit_s: float) -> Cost:
    """Return the cost of ``command``; raises :class:`~benchmarks.measure.FailedError`."""
    inputs = [str(of.path)] * (2 if command == "diff" else 1)
    words = [sys.executable, "-m", "benchmarks.phases", command, *inputs]
    return Cost(of, [run(words, limit_s) for _ in range(rounds)])


def exponent(costs: Sequence[Cost], fixed_s: float) -> float | None:
    """Return the slope of log CPU time, less ``fixed_s``, over log events; None of fewer than two.

    A time that does not exceed twice the fixed one says nothing about growth, and is left out.
    """
    points = [
        (math.log(one.trace.events), math.log(one.cpu_s - fixed_s))
        for one in costs
        if one.cpu_s > 2 * fixed_s
    ]
    if len({events for events, _ in points}) < 2:
        return None
    slope, _ = statistics.linear_regression(*zip(*points, strict=True))
    return slope


def measure(
    inputs: Sequence[tuple[str, str]],
    commands: Sequence[str],
    sizes: Sequence[float],
    rounds: int,
    limit_s: float,
    folder: Path,
    *,
    keep: bool = True,
) -> Outcome:
    """Return the costs of ``commands`` on ``inputs``, pairs of a format and a shape.

    Traces are removed after their last command unless ``keep``.
    """
    smallest = trace("nsys", "many steps", 10 / _KERNELS_OF_SHAPES, folder)
    fixed = {one: cost(one, smallest, rounds, limit_s).cpu_s for one in commands}
    costs: dict[tuple[str, str, str], list[Cost]] = {}
    rows: list[dict[str, Any]] = []
    for form, shape in inputs:
        for size in sizes:
            of = trace(form, shape, size, folder)
            for command in commands:
                try:
                    found = cost(command, of, rounds, limit_s)
                except FailedError as error:
                    rows.append({**_named(form, shape, of, command), "CPU s": str(error)})
                else:
                    costs.setdefault((form, shape, command), []).append(found)
                    rows.append({**_named(form, shape, of, command), **_figures(found)})
                print(rows[-1], file=sys.stderr)
            if not keep:
                of.path.unlink()
    growth = {key: exponent(found, fixed[key[2]]) for key, found in costs.items()}
    for row in rows:
        slope = growth.get((row["format"], row["shape"], row["command"]))
        row["exponent"] = None if slope is None else significant(slope)
    return Outcome(
        "commands",
        {"sizes": ", ".join(f"{size:g}" for size in sizes), "rounds": rounds},
        rows,
        list(_targets(growth)),
        [
            "CPU s: user and system time of the whole process; MB: its peak memory",
            "phases: shares of that time; exponent: of growth, over all sizes of the row's input",
            "subtracted before: "
            + ", ".join(f"{one} {significant(spent)} s" for one, spent in fixed.items()),
        ],
    )


def _named(form: str, shape: str, of: Trace, command: str) -> dict[str, Any]:
    return {"format": form, "shape": shape, "events": of.events, "command": command}


def _figures(found: Cost) -> dict[str, Any]:
    shares = {phase: found.share(phase) for phase in PHASES}
    return {
        "CPU s": significant(found.cpu_s),
        "wall s": significant(statistics.median(one.wall_s for one in found.runs)),
        "MB": round(found.peak_bytes / 1e6),
        "B/event": round(found.peak_bytes / found.trace.events),
        "exponent": None,
        **{phase: f"{share:.0%}" for phase, share in shares.items() if phase != START},
    }


def _targets(growth: dict[tuple[str, str, str], float | None]) -> Iterator[Target]:
    for (form, shape, command), slope in growth.items():
        if slope is not None:
            yield Target(f"exponent of {command}, {form}, {shape}", _STEEPEST, slope)


def main() -> None:
    """Generate the traces, run every command on each, and print the costs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.commands", description=main.__doc__)
    parser.add_argument("--size", type=float, default=1.0, help="factor of all sizes")
    parser.add_argument("--sizes", type=float, nargs="+", default=SIZES)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=tuple(SHAPES))
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=COMMANDS)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--limit", type=float, default=900, help="time limit of a command, seconds")
    parser.add_argument("--remove", action="store_true", help="remove each trace after its use")
    parser.add_argument("--scratch", type=Path, default=SCRATCH, help="folder to write to")
    options = parser.parse_args()
    inputs = [(form, _REPETITION) for form in options.formats if _REPETITION in options.shapes]
    if "nsys" in options.formats:
        inputs += [("nsys", shape) for shape in options.shapes if shape != _REPETITION]
    try:
        result = measure(
            inputs,
            options.commands,
            [options.size * size for size in options.sizes],
            options.rounds,
            options.limit,
            options.scratch.resolve(),
            keep=not options.remove,
        )
    except FailedError as error:
        sys.exit(str(error))
    result.show()
    result.save(options.scratch / "results")


if __name__ == "__main__":
    main()

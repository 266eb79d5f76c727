"""The step time after a change, compared with HolisticTraceAnalysis' critical path.

``python -m benchmarks.whatif FILE...`` prints two tables in Markdown: programs of a simulated
machine, whose time with the change is known, and the second step of Kineto traces. HTA has no
scenarios: edges of its graph get other weights, and its longest path is computed again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import traceana
from benchmarks.peers import CRITICAL_PYTHON
from tests.support.synthetic.kineto import write_kineto
from tests.timeline.critical import simulation
from tests.whatif.test_closed_forms import PROGRAMS, Program, ran
from traceana import Trace
from traceana.errors import NoSuchSelectionError

_PEER: Final = Path(__file__).with_name("contender_whatif.py")
_SCALE: Final = 1_000
"""The machine's nanoseconds become microseconds: HTA reads whole ones."""

Change = tuple[str, str, float]
"""``kernel``, ``memcpy`` or ``data``, a regular expression of names, and a factor."""

CHANGES: Final[tuple[Change, ...]] = (
    ("kernel", ".", 0.5),
    ("kernel", "(?i)conv|gemm", 0.5),
    ("data", ".", 0.0),
)


def scenario(change: Change) -> str:
    """Return the scenario of traceana."""
    what, pattern, factor = change
    return f"kernel:{pattern} x {factor:g}" if what == "kernel" else f"{what} x {factor:g}"


def peer(file: Path, step: int, changes: list[Change]) -> list[dict[str, Any]] | str:
    """Return HTA's paths of a step before and after each change (µs), or its error."""
    command = [str(CRITICAL_PYTHON), str(_PEER), str(file), str(step), json.dumps(changes)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        return (ended.stderr.strip().splitlines() or ["?"])[-1][:120]
    found: list[dict[str, Any]] = json.loads(ended.stdout)["changes"]
    return found


def own(trace: Trace, change: Change) -> tuple[float, float] | None:
    """Return the step and what it becomes (µs), None where the trace has nothing to change."""
    try:
        (found,) = trace.whatif(scenario(change)).frame.to_dicts()
    except NoSuchSelectionError:
        return None
    return found["step_ns"] / 1_000, found["predicted_ns"] / 1_000


def simulated(program: Program, folder: Path) -> Path:
    """Write what the machine recorded of ``program``, in microseconds for nanoseconds."""
    path = write_kineto(ran(program).run, folder / f"{program.__name__}.json")
    whole = json.loads(path.read_text("utf-8"))
    for event in whole["traceEvents"]:
        event.update({key: event[key] * _SCALE for key in ("ts", "dur") if key in event})
    path.write_text(json.dumps(whole), "utf-8")
    return path


def of_programs() -> Iterator[str]:
    """Yield the rows of the simulated programs: what each change takes off the step."""
    simulation.RESUME = 0
    yield "| program | change | step | machine | traceana | HTA | HTA's path |"
    yield "|---|---|--:|--:|--:|--:|--:|"
    for program in PROGRAMS:
        changes: list[Change] = [("kernel", ".", 0.5), ("kernel", ".", 4.0)]
        if program.__name__ in ("two_streams_and_an_event", "copy_bound"):
            changes.append(("memcpy", ".", 0.5))
        with tempfile.TemporaryDirectory() as folder:
            file = simulated(program, Path(folder))
            trace, theirs = traceana.open(file), peer(file, 0, changes)
            for number, change in enumerate(changes):
                what, _, factor = change
                after = ran(program, **{"kernels" if what == "kernel" else "copies": factor}).now
                figures = own(trace, change)
                assert figures is not None
                step, predicted = figures
                cells = (
                    *(program.__name__.replace("_", " "), f"`{scenario(change)}`", f"{step:,.0f}"),
                    *(f"{after - ran(program).now:+,}", f"{predicted - step:+,.0f}"),
                    *_theirs(theirs, number),
                )
                yield f"| {' | '.join(cells)} |"


def of_traces(files: list[Path]) -> Iterator[str]:
    """Yield the rows of the second steps of recorded traces, in µs.

    The first step of a capture also waits for work that was launched before it, which no change
    shortens. Traces of one step have no other.
    """
    yield "| trace | change | step | traceana | HTA | HTA's path |"
    yield "|---|---|--:|--:|--:|--:|"
    for file in files:
        trace = traceana.open(file)
        step = min(1, trace.tables.steps.height - 1)
        one = trace.select(steps=[trace.tables.steps["number"][step]])
        theirs = peer(file, step, list(CHANGES))
        for number, change in enumerate(CHANGES):
            figures = own(one, change)
            if figures is None:
                continue
            before, predicted = figures
            cells = (
                *(f"`{file.name.partition('.')[0]}`", f"`{scenario(change)}`".replace("|", "\\|")),
                *(f"{before:,.0f}", f"{predicted - before:+,.0f}", *_theirs(theirs, number)),
            )
            yield f"| {' | '.join(cells)} |"


def _theirs(found: list[dict[str, Any]] | str, number: int) -> tuple[str, str]:
    if isinstance(found, str):
        return found, ""
    before, after = found[number]["before"], found[number]["after"]
    return f"{after - before:+,.0f}", f"{before:,.0f}"


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.whatif", description=__doc__)
    parser.add_argument("traces", type=Path, nargs="*")
    files = parser.parse_args().traces
    for row in of_programs():
        print(row, flush=True)
    print()
    for row in of_traces(files) if files else ():
        print(row, flush=True)


if __name__ == "__main__":
    main()

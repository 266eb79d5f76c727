"""Record two programs in turn: ``python -m benchmarks.backtest.recording FOLDER JSON``.

Both programs are started once. Then they are recorded in turn, because the speed of a machine that
others use changes within seconds. The first recordings of a process are slower than the others:
they are made and not used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

import traceana
from benchmarks.backtest import jax_programs, keras_programs, torch_programs
from benchmarks.backtest.jax_programs import JaxProgram
from benchmarks.backtest.keras_programs import KerasProgram
from benchmarks.backtest.torch_programs import Program

ROUNDS: Final = 3
"""Recordings of each program that are used."""
WARM_UP: Final = 4
STEPS: Final = 10

AnyProgram = Program | KerasProgram | JaxProgram

_TRAINING: Final[dict[type, Callable[[Any], Any]]] = {
    Program: torch_programs.training,
    KerasProgram: keras_programs.training,
    JaxProgram: jax_programs.training,
}


def record(programs: Sequence[AnyProgram], folder: Path) -> None:
    """Record ``programs`` in turn; the folders have the numbers of program and round, from 0 (not
    used) to :data:`ROUNDS`."""
    started = [_TRAINING[type(program)](program) for program in programs]
    for turn in range(ROUNDS + 1):
        for number, (model, run) in enumerate(started):
            path = folder / f"{number}-{turn}"
            with traceana.recorder(path, warm_up=WARM_UP, steps=STEPS, model=model) as recorder:
                run(recorder, WARM_UP + STEPS)


if __name__ == "__main__":
    record(msgspec.json.decode(sys.argv[2], type=list[AnyProgram]), Path(sys.argv[1]))

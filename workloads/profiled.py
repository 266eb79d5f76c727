"""Shared by the workloads of TensorFlow and JAX: command line and recorded steps."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from workloads.command import add_output_options, carry_out
from workloads.options import RunOptions, add_run_options
from workloads.step_times import StepTimes
from workloads.support import Framework


def run(
    framework: Framework,
    description: str | None,
    train: Callable[[RunOptions, Path | None], StepTimes],
    words: list[str] | None = None,
) -> int:
    """Run the command; return the exit code (2: invalid options).

    ``train`` records into the folder that it gets.
    """
    program = f"python -m workloads.{framework.lower()}"
    parser = argparse.ArgumentParser(program, description=description)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_run_options(parser)
    add = parser.add_argument_group("recording").add_argument
    add("--log", type=Path, metavar="FOLDER", help="record into FOLDER/plugins/profile/")
    add_output_options(parser)
    arguments = parser.parse_args(words)
    return carry_out(parser, arguments, framework, lambda options: train(options, arguments.log))


@dataclass(frozen=True)
class Profiler:
    """A framework's profiler, which records into a folder; ``mark`` is a step's range."""

    start: Callable[[str], object]
    mark: Callable[[int], AbstractContextManager[Any]]
    stop: Callable[[], object]


def take_steps(
    options: RunOptions, step: Callable[[], object], profiler: Profiler, log: Path | None
) -> StepTimes:
    """Call ``step`` for each step of ``options``; return the time of each call.

    The steps after the warm-up are marked with their numbers, and recorded into the folder ``log``.
    """
    times = StepTimes()
    for number in range(-options.warm_up, options.steps):
        if number == 0 and log is not None:
            profiler.start(str(log))
        mark = nullcontext() if number < 0 else profiler.mark(number)
        start = perf_counter_ns()
        with mark:
            step()
        times.add(number, perf_counter_ns() - start)
    if log is not None:
        profiler.stop()
    return times

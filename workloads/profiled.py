"""The command line that the workloads of TensorFlow and JAX have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

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
    """Run the command; returns the exit code (2: options that cannot be served).

    ``train`` records into the folder that it is given.
    """
    program = f"python -m workloads.{framework.lower()}"
    parser = argparse.ArgumentParser(program, description=description)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_run_options(parser)
    add = parser.add_argument_group("its recording").add_argument
    add("--log", type=Path, metavar="FOLDER", help="record into FOLDER/plugins/profile/")
    add_output_options(parser)
    arguments = parser.parse_args(words)
    return carry_out(parser, arguments, framework, lambda options: train(options, arguments.log))

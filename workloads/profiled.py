"""The command line that the workloads of TensorFlow and JAX have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from workloads.manifest import layer_manifest
from workloads.network import NetworkError
from workloads.options import OptionError, RunOptions, add_run_options, run_options
from workloads.support import Framework, served


def run(
    framework: Framework,
    description: str | None,
    train: Callable[[RunOptions, Path | None], list[int]],
    words: list[str] | None = None,
) -> int:
    """Run the command; returns the exit code (2: options that cannot be served).

    ``train`` records into the folder that it is given and returns the steps' times in ns.
    """
    program = f"python -m workloads.{framework.lower()}"
    parser = argparse.ArgumentParser(program, description=description)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_run_options(parser)
    add = parser.add_argument_group("its recording").add_argument
    add("--log", type=Path, metavar="FOLDER", help="record into FOLDER/plugins/profile/")
    add("--manifest", type=Path, metavar="FILE", help="write the layers with their shapes as JSON")
    arguments = parser.parse_args(words)
    try:
        options = served(run_options(arguments), framework)
        times = train(options, arguments.log)
    except (OptionError, NetworkError) as error:
        parser.error(str(error))
    if arguments.manifest is not None:
        layer_manifest(options).write(arguments.manifest)
    print(summary(options, times))
    return 0


def summary(options: RunOptions, times: Sequence[int]) -> str:
    """What a run prints: the time of each step, given in ns."""
    milliseconds = ", ".join(f"{time / 1e6:.2f}" for time in times)
    return f"{options.network}, batch {options.batch}, {options.device}: {milliseconds} ms a step"

"""The command line that the workloads of TensorFlow and JAX have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from workloads.manifest import layer_manifest
from workloads.network import NetworkError
from workloads.options import OptionError, RunOptions, add_run_options, run_options


def run(
    program: str,
    description: str | None,
    train: Callable[[RunOptions, Path | None], list[int]],
    words: list[str] | None = None,
) -> int:
    """Run the command; returns the exit code (2: options that cannot be served).

    ``train`` records into the folder that it is given and returns the steps' times in ns.
    """
    parser = argparse.ArgumentParser(program, description=description)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_run_options(parser)
    add = parser.add_argument_group("its recording").add_argument
    add("--log", type=Path, metavar="FOLDER", help="record into FOLDER/plugins/profile/")
    add("--manifest", type=Path, metavar="FILE", help="write the layers with their shapes as JSON")
    arguments = parser.parse_args(words)
    try:
        options = run_options(arguments)
        times = train(options, arguments.log)
    except (OptionError, NetworkError) as error:
        parser.error(str(error))
    if arguments.manifest is not None:
        layer_manifest(options).write(arguments.manifest)
    milliseconds = ", ".join(f"{time / 1e6:.2f}" for time in times)
    print(f"{options.network}, batch {options.batch}, {options.device}: {milliseconds} ms a step")
    return 0

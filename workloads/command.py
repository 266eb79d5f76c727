"""Shared by the command lines of all frameworks: options in, layers and step times out."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from workloads.files import write_by_line
from workloads.manifest import layer_manifest
from workloads.network import NetworkError
from workloads.options import OptionError, RunOptions, run_options
from workloads.step_times import StepTimes
from workloads.support import Framework, supported


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Add to ``parser`` the options for files written beside a trace."""
    add = parser.add_argument_group("files beside a recording").add_argument
    add("--manifest", type=Path, metavar="FILE", help="write the layers with their shapes as JSON")
    add("--report", type=Path, metavar="FILE", help="write options and step times as JSON")


def carry_out(
    parser: argparse.ArgumentParser,
    arguments: argparse.Namespace,
    framework: Framework,
    train: Callable[[RunOptions], StepTimes],
) -> int:
    """Train with the options in ``arguments``; return the exit code.

    Invalid options end the process with code 2 and the parser's message. The report is written
    before the first step, so that a run that fails leaves its options.
    """
    report: Path | None = arguments.report
    manifest: Path | None = arguments.manifest
    facts: dict[str, object] = {"framework": framework.value}
    try:
        for file in (manifest, report):
            if file is not None and not file.parent.is_dir():
                raise OptionError(f"{file}: directory {file.parent} does not exist")
        options = supported(run_options(arguments), framework)
        facts |= {"options": asdict(options)}
        _write(report, facts)
        times = train(options)
    except (OptionError, NetworkError) as error:
        if report is not None and report.parent.is_dir():
            _write(report, {**facts, "refused": str(error)})
        parser.error(str(error))
    _write(report, {**facts, "times": asdict(times)})
    if manifest is not None:
        write_by_line(manifest, layer_manifest(options), "layers")
    print(summary(options, times))
    return 0


def summary(options: RunOptions, times: StepTimes) -> str:
    """Return the printed line of a run: the time of each step after the warm-up."""
    milliseconds = ", ".join(f"{time / 1e6:.2f}" for time in times.steps_ns)
    return f"{options.network}, batch {options.batch}, {options.device}: {milliseconds} ms a step"


def _write(report: Path | None, facts: dict[str, object]) -> None:
    if report is not None:
        report.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")

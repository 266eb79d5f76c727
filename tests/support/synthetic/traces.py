"""Scenarios opened by traceana, written and read as users' files are."""

from __future__ import annotations

from pathlib import Path

import traceana
from tests.support.synthetic.kineto import write_kineto
from tests.support.synthetic.nsys import write_nsys
from tests.support.synthetic.scenario import Scenario
from traceana import Trace


def nsys(scenario: Scenario, folder: Path) -> Trace:
    """Return ``scenario`` as nsys recorded it."""
    return traceana.open(write_nsys(scenario, folder / "scenario.sqlite"))


def kineto(scenario: Scenario, folder: Path) -> Trace:
    """Return ``scenario`` as torch.profiler recorded it."""
    return traceana.open(write_kineto(scenario, folder / "scenario.json"))


def both(scenario: Scenario, folder: Path) -> list[Trace]:
    """Return ``scenario`` in both profilers' formats, with equal results."""
    return [nsys(scenario, folder), kineto(scenario, folder)]

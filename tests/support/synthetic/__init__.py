"""Runs that never ran: described in Python, written as recordings, every figure of them known."""

from __future__ import annotations

from tests.support.synthetic.kineto import write_kineto
from tests.support.synthetic.nsys import write_nsys
from tests.support.synthetic.records import GPU
from tests.support.synthetic.scenario import Scenario, overlapping, waiting_for_another_device
from tests.support.synthetic.traces import both, kineto, nsys

__all__ = [
    "GPU",
    "Scenario",
    "both",
    "kineto",
    "nsys",
    "overlapping",
    "waiting_for_another_device",
    "write_kineto",
    "write_nsys",
]

"""The profiler's own cost: how much less the host takes for a step without it.

torch.profiler records every operator and, by CUPTI, every call on the thread that makes them. The
host takes a multiple of its own time by what is recorded; waits for the device and stretches
without any event stay as they are. Fitted to 158 recordings of 35 programs on an H100 and an
H200 with PyTorch 2.11, each with its step times without the profiler (docs/whatif.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from traceana.columns.distinct import Texts
from traceana.columns.nesting import NONE, Flags, Ints
from traceana.enrich.launches import KERNEL_LAUNCH
from traceana.settings import (
    LONGEST_DISPATCH_NS,
    PREDICTION_DEVIATE,
    RUN_TO_RUN_HOST,
    UNPROFILED_LEAST,
    UNPROFILED_MOST,
)

if TYPE_CHECKING:
    from traceana.timeline.graph import Graph
    from traceana.timeline.threads import Floats
    from traceana.trace import Trace

SLOWDOWN: Final = {
    (False, False): 1.48,
    (True, False): 1.54,
    (False, True): 1.69,
    (True, True): 1.81,
}
"""How many times as long the host takes with the profiler: by whether shapes and stacks are
recorded. ``profile_memory`` and ``with_modules`` add nothing that can be measured."""
_CALLS_ALONE: Final = 1.12
"""The same where CUDA's calls are recorded and no operators."""
_OF_OPERATOR_NS, _OF_SHAPES_NS, _OF_LAUNCH_NS, _OF_PYTHON_NS = 1600, 700, 2500, 1400
"""Cost of an event where a kernel launch is recorded with :data:`_USUAL_LAUNCH_NS`."""
_USUAL_LAUNCH_NS: Final = 6000
_LARGEST_SHARE_OF_COST: Final = 1.25
"""The host takes at most so many times the cost of its events longer."""


class ProfilerCost(msgspec.Struct, frozen=True):
    """The host's own work takes ``factor`` times as long without the profiler: from ``least`` to
    ``most`` times that, with 90 %. ``measured``: the step was timed without the profiler."""

    factor: float
    least: float
    most: float
    measured: bool = False


def profiler_cost(trace: Trace) -> ProfilerCost | None:
    """Return the cost of the profiler of ``trace``; None where it is not known.

    It is known of torch.profiler, and of work on a GPU: on a CPU the operators compute.
    """
    if trace.meta.producer != "torch.profiler" or trace.on_cpu or trace.tables.steps.is_empty():
        return None
    if trace.tables.ops.is_empty():
        return ProfilerCost(1 / _CALLS_ALONE, UNPROFILED_LEAST, UNPROFILED_MOST)
    shapes = trace.tables.ops["input_shapes"].is_not_null().any()
    stacks = (trace.tables.ranges["kind"] == "python").any()
    slower = SLOWDOWN[bool(shapes), bool(stacks)]
    return ProfilerCost(1 / slower, UNPROFILED_LEAST, UNPROFILED_MOST)


def fitted(
    cost: ProfilerCost, measured_ns: float, step_ns: Callable[[float], float]
) -> ProfilerCost:
    """Return ``cost`` with the factor at which the step takes ``measured_ns``, as timed without the
    profiler; ``step_ns`` returns the step for a multiple of the factor."""
    low, high = _LEAST_MULTIPLE, 1 / cost.factor
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if step_ns(middle) < measured_ns else (low, middle)
    return replace(_measured(cost), factor=cost.factor * (low + high) / 2)


_LEAST_MULTIPLE: Final = 0.2
_HALVINGS: Final = 8
"""To 0.5 % of the multiple."""


def cost_removed(recorded: Trace) -> ProfilerCost | None:
    """Return the cost that was removed from ``recorded``, with the interval of what is left of the
    host's time; that of a run that was timed without the profiler varies from run to run alone."""
    cost = profiler_cost(recorded.whole)
    timed = recorded.meta.unprofiled_step_ns is not None
    return None if cost is None else _measured(cost) if timed else cost


def _measured(cost: ProfilerCost) -> ProfilerCost:
    spread = PREDICTION_DEVIATE * RUN_TO_RUN_HOST
    return ProfilerCost(cost.factor, 1 - spread, 1 + spread, measured=True)


def is_slowed(graph: Graph) -> Flags:
    """Return which pieces of the graph's host time the profiler slowed: in long ones no event
    begins or ends."""
    return graph.host.end - graph.host.begin <= LONGEST_DISPATCH_NS


def host_factors(trace: Trace, graph: Graph, cost: ProfilerCost) -> Floats:
    """Return how many times as long each piece of the graph's host time takes without the profiler.

    Slowed pieces go with the factor, but the host gains at most as much as its events cost. A cut
    has the factor of the recording that it was cut from.
    """
    host = graph.host
    slowed = is_slowed(graph)
    for rank, process, factor in trace.meta.host_factors:
        if (rank, process) == (graph.steps["rank"][0], graph.steps["process"][0]):
            return np.where(slowed, factor, 1.0)
    slowed_time = int((host.end - host.begin)[slowed].sum())
    launches = Texts.of(trace.tables.calls["name"]).matching(KERNEL_LAUNCH)
    calls_with_time = _occurring(host.call, trace.tables.calls.height)
    launched = calls_with_time[launches[calls_with_time]]
    shapes = trace.tables.ops["input_shapes"].is_not_null().any()
    python = (trace.tables.ranges["kind"] == "python").to_numpy()
    ranges = _occurring(host.range, trace.tables.ranges.height)
    events = len(_occurring(host.op, trace.tables.ops.height)) * (
        _OF_OPERATOR_NS + (_OF_SHAPES_NS if shapes else 0)
    )
    events += len(launched) * _OF_LAUNCH_NS + int(python[ranges].sum()) * _OF_PYTHON_NS
    if len(launched):
        usual = float(np.median(trace.tables.calls["duration"].to_numpy()[launched]))
        events = round(events * usual / _USUAL_LAUNCH_NS)
    removed = slowed_time * (1 - cost.factor)
    if not cost.measured:
        removed = min(removed, _LARGEST_SHARE_OF_COST * events)
    return np.where(slowed, 1 - removed / max(slowed_time, 1), 1.0)


def _occurring(rows: Ints, height: int) -> Ints:
    """Return the distinct row numbers in ``rows``, below ``height``, without ``NONE``."""
    # np.unique hashes or sorts; a piece of host time has a row, and there are millions of pieces.
    occurs = np.zeros(height, dtype=np.bool_)
    occurs[rows[rows != NONE]] = True
    return np.flatnonzero(occurs)

"""The plan: the recommended changes, each replayed on top of those before, the best one first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from traceana.advise.rule import Finding, Stage
from traceana.settings import LEAST_SAVING

if TYPE_CHECKING:
    from traceana.advise.rule import Found
    from traceana.advise.simulation import Simulator

_MOST_STAGES: Final = 3


def plan(
    simulator: Simulator, findings: Sequence[Finding], later: Mapping[str, Found]
) -> tuple[Stage, ...]:
    """Return the plan of the simulated ``findings``.

    Each stage is the change that saves most on top of those before; a change that saves less than
    ``least_saving`` of the step there is in no stage. The rules ``later`` are for after the change
    of another one.
    """
    scale = simulator.model.scale
    whole = simulator.base.mean_ns * scale
    scenarios = {
        finding.rule.id: finding.simulation.scenario
        for finding in findings
        if finding.simulation is not None
    }
    left = [*scenarios]
    scenarios |= {rule: str(one.scenario) for rule, one in later.items()}
    # The first stage is known from the savings of the single changes.
    steps = {finding.rule.id: whole - finding.saving_ns for finding in findings}
    step_ns, median_ns, made = whole, round(simulator.base.median_ns * scale), ""
    stages: list[Stage] = []
    while left and len(stages) < _MOST_STAGES:
        if made:
            after = {rule: simulator.mean_step_ns(f"{made} + {scenarios[rule]}") for rule in left}
            steps = {rule: step_ns if mean is None else mean for rule, mean in after.items()}
        best = min(left, key=lambda rule: (steps[rule], rule))
        saved = step_ns - steps[best]
        if saved < LEAST_SAVING * whole:
            break
        left.remove(best)
        left += [rule for rule, one in later.items() if one.after == best]
        made = f"{made} + {scenarios[best]}" if made else scenarios[best]
        reached = simulator.step(made)
        assert reached is not None
        stages.append(
            Stage(
                best,
                made,
                median_ns,
                reached.median_ns,
                reached.low_ns,
                reached.high_ns,
                round(saved),
                saved / whole,
            )
        )
        step_ns, median_ns = steps[best], reached.median_ns
    return tuple(stages)

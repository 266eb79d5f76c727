"""The plan: the recommended changes, each replayed on top of those before, the best one first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from traceana.advise.rule import Finding, Stage
from traceana.settings import LEAST_SAVING

if TYPE_CHECKING:
    from traceana.advise.bottleneck import Bottleneck
    from traceana.advise.rule import Found
    from traceana.advise.simulation import Simulator

_MOST_STAGES: Final = 3
_ALIKE: Final = 0.5
"""Least part of the largest saving that a change has which is preferred to the best."""


def plan(
    simulator: Simulator,
    findings: Sequence[Finding],
    later: Mapping[str, Found],
    limit: Bottleneck | None,
) -> tuple[Stage, ...]:
    """Return the plan of the simulated ``findings``.

    Each stage is the change that saves most on top of those before; a change that saves less than
    ``least_saving`` of the step there is in no stage. Of changes whose savings cannot be told
    apart, the first stage is one that shortens the ``limit`` of the run. The rules ``later`` are
    for after the change of another one.
    """
    scale = simulator.model.scale
    whole = simulator.base.mean_ns * scale
    scenarios = {
        finding.rule.id: finding.simulation.scenario
        for finding in findings
        if finding.simulation is not None
    }
    of_rule = {finding.rule.id: finding for finding in findings}
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
        if not made and limit is not None:
            alike = [
                finding.rule.id
                for finding in findings
                if finding.saving_ns >= LEAST_SAVING * whole
                and limit.shortened_by(finding.rule.id)
                and _alike(finding, of_rule[best])
            ]
            best = min(alike, key=lambda rule: (steps[rule], rule), default=best)
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
                simulator.excess_reason(scenarios[best], saved, of_rule[best].estimate_ns)
                if best in of_rule
                else None,
            )
        )
        step_ns, median_ns = steps[best], reached.median_ns
    return tuple(stages)


def _alike(one: Finding, best: Finding) -> bool:
    """Return whether ``one`` saves about as much as the ``best``: the saving of each is inside the
    interval of the other."""
    return one.saving_ns >= _ALIKE * best.saving_ns and all(
        first.simulation is not None
        and first.simulation.low_ns <= second.saving_ns <= first.simulation.high_ns
        for first, second in ((one, best), (best, one))
    )

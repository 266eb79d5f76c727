"""Recommendations for a run: rules over the analyses' tables, by estimated saving."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl
from msgspec.structs import replace

from traceana.advise import (  # noqa: F401  # these modules register their rules
    convolution_algorithms,
    device_utilization,
    fusion,
    gpu_idle,
    host_copies,
    measurement,
)
from traceana.advise.bottleneck import bottleneck
from traceana.advise.figures import Figures, program
from traceana.advise.rule import RULES, Advice, Finding, Rule, Simulation, Stage
from traceana.settings import (
    LEAST_SAVING,
    LOW_UTILIZATION,
    UNRECORDED_SHARE,
)
from traceana.trace import per_trace

if TYPE_CHECKING:
    from traceana.advise.rule import Found
    from traceana.advise.simulation import Simulator
    from traceana.runs.run_files import BatchSeries
    from traceana.trace import Trace

__all__ = ["RULES", "Advice", "Finding", "Rule", "advise", "advised"]

_LATER: Final = ("upper bound", "time per example")
"""Kinds of savings that come after those of a step."""


@per_trace
def advise(trace: Trace, *, batches: BatchSeries | None = None) -> Advice:
    """Return the findings on ``trace``, and the plan.

    Savings are per measured step and device; without steps per device, over the capture; simulated
    ones per step, of all its devices. They overlap: two findings may cover the same time.
    ``batches`` are the step times of the runs of a sweep that differ from this run in the batch
    only.
    Of a printed summary they are those of :func:`traceana.advise.on_summaries.advise_summary`.
    """
    if trace.is_summary:
        from traceana.advise.on_summaries import advise_summary

        return advise_summary(trace, program(trace))
    if batches is None and trace.kept_advice is not None:
        from traceana.advise import kept

        if (found := kept.read(trace.kept_advice)) is not None:
            return found
    return advised(Figures(trace, batches))


def advised(figures: Figures) -> Advice:
    """Return the findings on ``figures``, like :func:`advise` on a trace."""
    if not figures.work_ns:
        return Advice((), ("no device activity: no findings",))
    whole = "step" if figures.stepped else "capture"
    # With kernels missing, the lost time has no known cause.
    known = figures.unrecorded < UNRECORDED_SHARE
    rules = [one for one in RULES if known or one.kind == "measurement validity"]
    holding = [(rule, one) for rule in rules if (one := rule.find(figures)) is not None]
    found: list[Finding] = []
    small: list[Finding] = []
    later: dict[str, Found] = {}
    for rule, one in holding:
        estimate = figures.each(one.saving_ns)
        share = one.saving_ns / figures.window_ns if figures.window_ns else 0.0
        adapted = rule.adapted(figures.program, one)
        finding = Finding(
            adapted,
            estimate,
            share,
            whole,
            estimate,
            one.figures,
            per_step(one.evidence, figures),
            predicted_by=one.predicted_by if adapted.change.pytorch else (),
            line=figures.line_of(one.evidence) if "culprit" not in one.figures else None,
        )
        enough = True
        # A replay costs time and imports, and is for what can be replayed.
        simulator = None if one.scenario is None else figures.simulator
        if one.after is not None:
            later[rule.id] = one
            enough = False
        elif simulator is not None:
            finding = _simulated(finding, str(one.scenario), simulator)
            enough = finding.simulation is None or finding.saving_share >= LEAST_SAVING
        (found if enough else small).append(finding)
    limit = bottleneck(figures)
    stages: tuple[Stage, ...] = ()
    simulated = [finding for finding in (*found, *small) if finding.simulation is not None]
    if simulated and figures.simulator is not None:
        from traceana.advise.plan import plan

        stages = plan(figures.simulator, simulated, later, limit)
    place = {stage.rule: at for at, stage in enumerate(stages)}
    for finding in small:
        if finding.rule.id in place:
            one = later.get(finding.rule.id)
            if one is not None and figures.simulator is not None:
                finding = _simulated(finding, str(one.scenario), figures.simulator)
            found.append(finding)
    small = [finding for finding in small if finding.rule.id not in {*place, *later}]

    def order(finding: Finding) -> tuple[int, bool, int, int, str]:
        """Return the sort key: the plan, then by kind and saving, last what saves nothing.

        What would save more than the first change of the plan comes before it.
        """
        at = place.get(finding.rule.id, len(place))
        if at == len(place) and finding.kind in ("estimate", "upper bound") and stages:
            at = -1 if finding.saving_share > stages[0].saving_share else at
        kind = _LATER.index(finding.kind) + 1 if finding.kind in _LATER else 0
        return at, not finding.saving_ns, kind, -finding.saving_ns, finding.rule.id

    found.sort(key=order)
    return Advice(tuple(found), _notes(figures, found), limit, tuple(small), stages)


def _simulated(finding: Finding, scenario: str, simulator: Simulator) -> Finding:
    """Return ``finding`` with the saving of ``scenario``; as it is where that changes nothing."""
    by = simulator.saving(scenario)
    if by is None:
        return finding
    reason = simulator.excess_reason(scenario, by.time_ns, finding.estimate_ns)
    return replace(
        finding,
        saving_ns=by.time_ns,
        saving_share=by.share,
        simulation=Simulation(scenario, by.low_ns, by.high_ns, reason),
    )


def _notes(figures: Figures, found: list[Finding]) -> tuple[str, ...]:
    whole = "step" if figures.stepped else "capture"
    if figures.unrecorded >= UNRECORDED_SHARE:
        lost = f"{figures.unrecorded:.1%}".replace("%", " %")
        what = (
            "no kernels" if figures.unrecorded == 1 else f"not the work of {lost} of the launches"
        )
        return (f"no recommendations: {what} in the recording",)
    if not found:
        return (f"no findings above {LEAST_SAVING:.0%} of the {whole}".replace("%", " %"),)
    mean = "mean " if figures.stepped and figures.measured.height > 1 else ""
    unit = "step and device" if figures.stepped else "device, over the capture"
    notes = [f"savings: estimates per {mean}{unit}; they overlap, do not add them"]
    if any(one.simulation for one in found) and (simulator := figures.simulator) is not None:
        per = f"per {mean}step" if figures.stepped else "over the capture"
        notes = [f"savings: {per}, by simulation or estimate; they overlap, the plan adds them up"]
        if figures.busy.height > 1:
            notes.append(
                "simulated savings: of the longest process of each step, for all its devices; "
                "estimates: mean of the devices"
            )
        notes += [note] if (note := simulator.model.part.note) else []
    if (
        not figures.on_cpu
        and figures.kernels.height
        and figures.busy_ns < LOW_UTILIZATION * figures.window_ns
    ):
        utilization = 100 * figures.busy_ns / figures.window_ns
        notes.append(
            f"GPU utilization {utilization:.0f} %: savings of kernel time may become idle time, "
            "not a shorter step"
        )
    if figures.program.compiled and any(
        "torch.compile" in one.rule.change.pytorch for one in found
    ):
        notes.append(
            "part of the program is compiled: torch.compile is recommended for the rest, which "
            "TORCH_LOGS=graph_breaks,recompiles shows"
        )
    return tuple(notes)


def per_step(evidence: pl.DataFrame, figures: Figures) -> pl.DataFrame:
    """Return ``evidence`` with ``step_ns``: its ``time_ns`` per measured step and device.

    A row of one device is divided by that device's own steps.
    """
    if not figures.stepped or "time_ns" not in evidence.columns or "step_ns" in evidence.columns:
        return evidence
    at = evidence.get_column_index("time_ns") + 1
    units: pl.Series | int = figures.units
    if "device" in evidence.columns:
        own = figures.device_units
        units = pl.Series([own.get(one, 1) for one in evidence["device"]], dtype=pl.Int64)
    return evidence.clone().insert_column(
        at, (evidence["time_ns"] // units).cast(pl.Int64).alias("step_ns")
    )

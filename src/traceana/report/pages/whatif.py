"""``whatif``: the predicted step time of scenarios."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl
from msgspec.structs import replace

from traceana.analyze.unrecorded import needs_device
from traceana.errors import NoSuchSelectionError
from traceana.report import display_names, numbers
from traceana.report.page import Axis, Block, Chart, Facts, Marks, Page, Table
from traceana.report.pages.single_table import data_of, notes_of, source_of, table_of
from traceana.report.result import CommandResult
from traceana.result import Arranged, Result
from traceana.settings import PREDICTION_LEVEL
from traceana.table import Column, Kind, conformed

if TYPE_CHECKING:
    from traceana.trace import Trace
    from traceana.whatif.scenario import Scenario
    from traceana.whatif.whatif import Model, Replay

_INTERVAL: Final = f"{numbers.level(PREDICTION_LEVEL)} interval"


def whatif(
    trace: Trace,
    scenario: str | Scenario | Sequence[str | Scenario] = (),
    *,
    sweep: bool = False,
    replay: bool = False,
) -> CommandResult:
    """Return the predicted step time of each ``scenario``, without one of some usual ones.

    With ``replay`` return one row: a replay of ``trace`` without a change. Scenarios of ranks have
    no interval and no critical path; a table of a job's operations has them as its usual ones.
    """
    needs_device(trace, "whatif")
    if replay:
        return _replay(trace)
    from traceana.whatif.equal_ranks import equal_ranks, is_of_ranks
    from traceana.whatif.whatif import BoundScenario, Model, curves, usual
    from traceana.whatif.whatif import whatif as analysis

    given = (
        scenario if isinstance(scenario, Sequence) and not isinstance(scenario, str) else [scenario]
    )
    if any(is_of_ranks(text) for text in given) or not (
        given or trace.tables.operations.is_empty()
    ):
        return CommandResult.of(equal_ranks(trace, given), partial(_page_of_ranks, trace))
    model = Model.of(trace)
    asked = [BoundScenario.of(model, change) for change in given] or usual(model)
    if not asked or not model.processes:
        raise NoSuchSelectionError("no work in the trace that a scenario could change")
    result, path = analysis(model, asked)
    if not given:
        ordered = result.frame.sort("predicted_ns", maintain_order=True)
        result = Result(ordered, result.totals, result.notes, result.columns)
    curve = curves(model, asked) if sweep else None
    facts = _facts(model, result.frame)

    def pictures() -> list[Block]:
        return [*intervals(result.frame), *(() if curve is None else by_factor(curve))]

    make = partial(_page, trace, facts, path, curve, not given)
    return CommandResult.of(result, make, pictures=pictures)


def _facts(model: Model, frame: pl.DataFrame) -> Facts:
    """Return the lines above the table: the step that was replayed, and the table's statistics."""
    step = numbers.duration(int(frame["step_ns"][0]))
    if model.trace.tables.steps.is_empty():
        return Facts((("Capture", step), ("Table", f"capture after the change, {_INTERVAL}")))
    several = len(model.processes)
    longest = f" · longest of {several} processes" if several > 1 else ""
    return Facts(
        (
            ("Step time", f"{step} median{longest}"),
            ("Table", f"median step after the change, {_INTERVAL} · saving: of the mean"),
        )
    )


def _page(
    trace: Trace,
    facts: Facts,
    path: pl.DataFrame,
    curve: pl.DataFrame | None,
    usual: bool,
    shown: Arranged,
) -> Page:
    """Return the page; the default scenarios (``usual``) have the display names of classes, which
    ``--scenario`` takes as well."""
    from traceana.whatif.whatif import CURVE, PATH

    table = table_of(shown)
    if trace.tables.steps.is_empty():
        columns = tuple(
            replace(column, group="capture") if "step" in column.group else column
            for column in table.columns
        )
        table = replace(table, columns=columns)
    if usual:
        names = shown.frame["scenario"].map_elements(_displayed, pl.String)
        table = replace(table, frame=table.frame.with_columns(names))
    sections = {"path": Result(path, columns=PATH)}
    blocks: list[Block] = [facts, table]
    if shown.frame.height == 1:
        blocks.append(_paths(path))
    if curve is not None:
        sections["curve"] = Result(curve, columns=CURVE)
        wide = curve.pivot("factor", index="scenario", values="predicted_ns")
        if usual:
            wide = wide.with_columns(pl.col("scenario").map_elements(_displayed, pl.String))
        factors = [name for name in wide.columns if name != "scenario"]
        columns = (
            Column("scenario", Kind.TEXT),
            *(
                Column(
                    factor,
                    Kind.TIME,
                    title=f"{float(factor):g}",
                    scale="predicted",
                    group="step by factor",
                )
                for factor in factors
            ),
        )
        blocks.append(Table(wide, columns, dropped=tuple(factors[1::2])))
    return Page(
        "whatif", (*blocks, *notes_of(shown.notes)), data_of(shown, source_of(trace), sections)
    )


def _page_of_ranks(trace: Trace, shown: Arranged) -> Page:
    step = numbers.duration(int(shown.frame["step_ns"][0]))
    ranks = numbers.counted(trace.whole.tables.activities["rank"].n_unique(), "rank")
    facts = Facts(
        (
            ("Step time", f"{step} median of the job, {ranks}"),
            ("Table", "median step after the change · saving: of the mean"),
        )
    )
    blocks: tuple[Block, ...] = (facts, table_of(shown), *notes_of(shown.notes))
    return Page("whatif", blocks, data_of(shown, source_of(trace)))


def _displayed(scenario: str) -> str:
    """Return ``scenario`` with the display name of its class: ``convolution x 0.5``."""
    name, times, factor = scenario.partition(" x ")
    return f"{display_names.CATEGORIES.get(name, name)}{times}{factor}"


def _paths(path: pl.DataFrame) -> Table:
    """Return the table of the critical path before and after the one scenario."""
    before, after = (
        path.filter(of).select("of", pl.col("time_ns").alias(name))
        for of, name in (
            (pl.col("scenario").is_null(), "before_ns"),
            (pl.col("scenario").is_not_null(), "after_ns"),
        )
    )
    both = (
        before.join(after, on="of", how="full", coalesce=True, maintain_order="left_right")
        .with_columns(pl.col("before_ns", "after_ns").fill_null(0))
        .with_columns((pl.col("after_ns") - pl.col("before_ns")).alias("change_ns"))
    )
    group = "time on it, mean per step"
    return Table(
        both,
        (
            Column("of", Kind.CATEGORY, title="critical path"),
            Column("before_ns", Kind.TIME, scale="path", group=group),
            Column("after_ns", Kind.TIME, scale="path", group=group),
            Column("change_ns", Kind.TIME, scale="path", group=group),
        ),
    )


def _replay(trace: Trace) -> CommandResult:
    from msgspec.structs import asdict

    from traceana.whatif.whatif import REPLAY, replay

    replayed = replay(trace)
    result = Result(conformed(pl.DataFrame([asdict(replayed)]), REPLAY), columns=REPLAY)
    return CommandResult.of(result, partial(_replayed, trace, replayed))


def _replayed(trace: Trace, replayed: Replay, shown: Arranged) -> Page:
    facts = Facts(
        (
            ("Replay", f"{replayed.events:,} events of devices and host threads"),
            ("All steps", f"{numbers.duration(replayed.measured_ns)} recorded, "
             f"{numbers.duration(replayed.replayed_ns)} replayed"),
            ("Maximum error", f"{replayed.largest_error_ns:,} ns (event end)"),
        )
    )  # fmt: skip
    return Page("whatif", (facts,), data_of(shown, source_of(trace)))


_MOST_LINES: Final = 8


def intervals(frame: pl.DataFrame) -> list[Chart]:
    """Return the predicted step of each scenario in ``frame``, with its interval beside the
    measured step; empty without scenarios."""
    if frame.is_empty():
        return []
    step = int(frame["step_ns"][0])
    ends = pl.concat(
        frame.select("scenario", pl.col(end).alias("step_ns")) for end in ("low_ns", "high_ns")
    )
    middle = frame.select("scenario", pl.col("predicted_ns").alias("step_ns"))
    first, last = frame["scenario"][0], frame["scenario"][-1]
    rule = pl.DataFrame({"scenario": [first, last], "step_ns": [step] * 2}).with_columns(
        pl.lit("measured").alias("rule")
    )
    least = frame.row(frame["predicted_ns"].arg_min() or 0, named=True)
    return [
        Chart(
            f"Predicted step time and its {_INTERVAL}, beside the measured",
            f"{numbers.duration(step)} measured; shortest prediction: {least['scenario']}, "
            f"{numbers.duration(least['predicted_ns'])}.",
            Axis("step time", Kind.TIME),
            Axis("", Kind.TEXT),
            (
                Marks(ends, "line", "step_ns", "scenario", colour="scenario"),
                Marks(middle, "point", "step_ns", "scenario"),
                Marks(rule, "rule", "step_ns", "scenario", colour="rule"),
            ),
        )
    ]


def by_factor(curve: pl.DataFrame) -> list[Chart]:
    """Return the predicted step by factor, for the scenarios of ``curve`` that change it most.

    There are as many lines as distinct colours.
    """
    most = (
        curve.filter(pl.col("factor") == 0)
        .sort("predicted_ns", maintain_order=True)["scenario"]
        .head(_MOST_LINES)
    )
    steps = curve.filter(pl.col("scenario").is_in(most.implode())).rename(
        {"predicted_ns": "step_ns"}
    )
    return [
        Chart(
            "Predicted step time by the factor of what changes",
            f"{numbers.counted(len(most), 'scenario')}, factors from 0 to 1.",
            Axis("factor", Kind.NUMBER),
            Axis("step time", Kind.TIME),
            (Marks(steps, "line", "factor", "step_ns", colour="scenario"),),
        )
    ]

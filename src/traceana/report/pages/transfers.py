"""``transfers``: copies by direction, and collectives by message size."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from traceana.analyze.summaries import needs_timeline
from traceana.errors import UsageError
from traceana.report import display_names, numbers
from traceana.report.page import Block, Chart, Facts, Notes, Table
from traceana.report.pages.analysis_pictures import bandwidths
from traceana.report.pages.single_table import (
    device_title,
    notes_of,
    per_step_result,
    table_result,
    with_values,
)
from traceana.result import Result
from traceana.table import Column, Kind, chosen, hiding
from traceana.timeline.copies import HOST_DIRECTIONS

if TYPE_CHECKING:
    from traceana.analyze.per_step import Basis
    from traceana.report.result import CommandResult
    from traceana.result import Arranged
    from traceana.trace import Trace
    from traceana.vocabulary.option_words import TransfersBy

Row = dict[str, Any]

MOST_LATE: Final = 3
"""Ranks that are named as the last to arrive."""
MOST_PARTNERS: Final = 16
"""Ranks with a column."""

MOST_NOTES: Final = 3
LEAST_SHARE: Final = 0.01
"""Rows below this share of the copy time over the host link have no note."""


def transfers(
    trace: Trace,
    *,
    by: TransfersBy = "direction",
    collectives: bool = False,
    sum: bool = False,  # noqa: A002
) -> CommandResult:
    """Return one row per direction and kind of host memory, and per item of ``by``.

    With ``collectives`` there is one row per collective and message size. Screens show means per
    measured step, with ``sum`` and by step sums.
    """
    if collectives:
        if by != "direction":
            raise UsageError("--collectives has no groups: leave out --by")
        needs_timeline(trace, "transfers --collectives")
        return all_collectives(trace, sum=sum)
    from traceana.analyze import transfers as analysis

    def shown(part: Trace, result: Result, basis: Basis | None) -> CommandResult:
        def pictures() -> list[Chart]:
            if part.is_summary:
                return []
            sizes = result.frame
            if by != "size":
                of_part = analysis.transfers(part, "size")
                sizes = (of_part if basis is None else basis.means(of_part)).frame
            return bandwidths(sizes)

        def below(rows: Arranged) -> tuple[Block, ...]:
            each = "" if basis is None else f" {basis.per}"
            copies = tuple(copy_notes(rows.frame, each)) if by == "direction" else ()
            return (Notes(copies),) if copies else ()

        if basis is not None:
            # Then the columns of sums have these figures.
            columns = hiding(result.columns, ("step_count", "step_bytes"))
            notes = tuple(note for note in result.notes if not note.startswith(analysis.ON_STEPS))
            result = Result(result.frame, result.totals, notes, columns)
        return table_result(
            *("transfers", result, part),
            summed=by != "step",
            below=below,
            screenful=40,
            pictures=pictures,
            basis=basis,
        )

    keys = (*([] if by == "direction" else [by]), "direction", "host_memory")
    return per_step_result(
        *(trace, partial(analysis.transfers, by=by), shown),
        keys=keys,
        sums=sum or by == "step",
    )


def all_collectives(trace: Trace, *, sum: bool = False) -> CommandResult:  # noqa: A002
    """Return one row per collective and message size; the page also has the waits by rank.

    Screens show means per measured step, with ``sum`` sums over the capture.
    """
    from traceana.analyze.collective_ranks import by_rank
    from traceana.analyze.communication import MESSAGE_KEYS, by_message

    def shown(part: Trace, result: Result, basis: Basis | None) -> CommandResult:
        ranks = by_rank(part)
        apart = ranks.frame.height > 0
        # A rank has each step once.
        steps = None if basis is None else part.tables.steps["number"].n_unique()
        return table_result(
            *("transfers", result, part),
            summed=True,
            below=lambda _: _by_rank(ranks, steps) if apart else (),
            sections=lambda: {"ranks": ranks} if apart else {},
            screenful=40,
            basis=basis,
        )

    return per_step_result(trace, by_message, shown, keys=MESSAGE_KEYS, sums=sum)


def wait_and_transfer(trace: Trace, units: int) -> str:
    """Return the time of collectives and its part of waiting for other ranks; "" if not known.

    Times are means over ``units``.
    """
    from traceana.analyze.collective_ranks import by_rank

    frame = by_rank(trace).frame
    if frame.is_empty() or frame["wait_ns"].null_count():
        return ""
    time, wait = (int(frame[name].sum()) // units for name in ("time_ns", "wait_ns"))
    return _split(time, wait)


def _split(time: int, wait: int) -> str:
    unit = numbers.scale([time], numbers.TIME)
    whole, waiting, rest = (unit.write(part) for part in (time, wait, time - wait))
    return f"{whole} {unit.unit} = {waiting} wait + {rest} transfer"


def last_to_arrive(trace: Trace, steps: int | None) -> str:
    """Return which rank arrives last at collectives and how long the others wait; "" without any.

    Waits are means per other rank and step, ``steps`` being their number; None: of the capture.
    """
    from traceana.analyze.collective_ranks import by_rank

    result = by_rank(trace)
    if result.frame.is_empty():
        return ""
    of, rows = _partners(result)
    of_partner = _by_partner(rows).sort("others_wait_ns", "last_count", descending=True)
    # With one rank left, the others of its collectives are lost.
    if of_partner.height < 2:
        return "not determined: collectives are not matched across the ranks"
    partner, _, last, count, caused = of_partner.row(0)
    each = caused // ((of_partner.height - 1) * (steps or 1))
    often = f"{of} {partner} in {numbers.count(last)} of {numbers.counted(count, 'collective')}"
    if not caused:
        return f"no waits in {numbers.counted(count, 'collective')}"
    per = "" if steps is None else " per step"
    others = of_partner.height - 1
    wait = numbers.duration(each)
    waits = f"the {others} others wait {wait} each" if others > 1 else f"the other waits {wait}"
    return f"{often}; {waits}{per}"


def _partners(result: Result) -> tuple[str, pl.DataFrame]:
    """Return the title of the partners (``rank``, ``rank/GPU`` or ``GPU``) and the rows with waits.

    Their column ``partner`` has the number of each.
    """
    ranked = result.frame["rank"].null_count() == 0
    one_each = result.frame.select("rank", "device").unique()["rank"].is_unique().all()
    partner = ["rank"] if ranked and one_each else ["rank", "device"] if ranked else ["device"]
    label = pl.concat_str(partner, separator="/").alias("partner")
    return device_title(partner), result.frame.with_columns(label).drop_nulls("wait_ns")


def _by_partner(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.group_by("partner", maintain_order=True).agg(
        pl.col("wait_ns", "last_count", "count", "others_wait_ns").sum()
    )


def _by_rank(result: Result, steps: int | None) -> tuple[Block, ...]:
    """Return how often each rank arrived last, and the wait of each collective by rank.

    Times are means over ``steps``; None: sums.
    """
    divisor, per = steps or 1, "" if steps is None else " per step"
    of, rows = _partners(result)
    if rows.is_empty():
        return notes_of(result.notes)
    of_partner = _by_partner(rows)
    order = of_partner.sort("last_count", "wait_ns", descending=[True, False])
    late = ", ".join(
        f"{of} {partner} in {numbers.count(last)} of {numbers.count(count)} "
        f"(others waited {numbers.duration(caused // divisor)}{per})"
        for partner, _, last, count, caused in order.head(MOST_LATE).iter_rows()
        if last
    )
    most = of_partner["partner"].to_list()[:MOST_PARTNERS]
    keys = ["collective", "message_bytes"]
    frame = rows.group_by(keys, maintain_order=True).agg(
        pl.col("count").max() if steps is None else pl.col("count").max() / steps,
        *(
            (pl.when(partner=partner).then("wait_ns").sum() // divisor).alias(f"wait_ns {partner}")
            for partner in most
        ),
    )
    columns = (
        *with_values(frame, chosen(result.columns, keys)),
        Column("count", Kind.COUNT, title="calls per rank"),
        *(
            Column(
                f"wait_ns {partner}", Kind.TIME, title=partner, scale="wait", group=f"wait by {of}"
            )
            for partner in most
        ),
    )
    totals = {f"wait_ns {partner}": int(frame[f"wait_ns {partner}"].sum()) for partner in most}
    left_out = of_partner.height - len(most)
    notes = (*result.notes, *([f"{left_out} more in the JSON"] if left_out else []))
    table = Table(frame, columns, totals, tuple(reversed(most)))
    summed = _split(*(int(rows[name].sum()) // divisor for name in ("time_ns", "wait_ns")))
    split = ("collectives", f"{summed}, sum over {of_partner.height} {of}s{per}")
    facts = (Facts((split, *([("last to arrive", late)] if late else []))),)
    return (*facts, table, *notes_of(notes))


def copy_notes(frame: pl.DataFrame, each: str = "") -> list[tuple[str, str]]:
    """Return notes, with label and text, on rows of ``frame`` with costly copies.

    ``frame`` is the result of :func:`transfers` by direction. There are at most three notes, most
    time first, on copies over the host link that are small, from or to pageable memory or blocking,
    or that take most of the copy time, exposed. ``each`` is the divisor of means: `` per step``.
    """
    of_host = pl.col("direction").is_in(HOST_DIRECTIONS)
    rows = frame.filter(of_host, pl.col("time_ns").is_not_null()).to_dicts()
    whole = sum(row["time_ns"] for row in rows)
    costly = [
        (row, traits)
        for row in rows
        if row["time_ns"] >= LEAST_SHARE * whole
        and ((traits := _traits(row)) or _leads(row, whole))
    ]
    return [_note(row, traits, each) for row, traits in costly[:MOST_NOTES]]


def _leads(row: Row, whole: int) -> bool:
    exposed = row["exposed_ns"] or 0
    return bool(whole) and row["time_ns"] > whole / 2 and exposed > row["time_ns"] / 2


def _traits(row: Row) -> list[str]:
    traits = []
    if row["small"]:
        traits.append("small copies")
    if row["host_memory"] == "pageable":
        traits.append("pageable memory")
    if row["blocking"] == "yes":
        traits.append("blocking calls" if row["count"] > 1 else "blocking call")
    return traits


def _note(row: Row, traits: list[str], each: str) -> tuple[str, str]:
    copies = f"{numbers.whole(row['count'])} {'copy' if row['count'] == 1 else 'copies'}{each}"
    if row["mean_bytes"] is not None:
        copies += f" of {numbers.size(row['mean_bytes'])}{' on average' * (row['count'] != 1)}"
    if row["bytes_per_s"] is not None:
        copies += f" at {numbers.rate(row['bytes_per_s'])}"
    if row["peak_share"] is not None:
        copies += f" ({numbers.share(row['peak_share'])} of the {row['link']} peak)"
    parts = [copies]
    if row["exposed_ns"] is not None:
        exposed, whole = (numbers.duration(row[name]) for name in ("exposed_ns", "time_ns"))
        parts.append(f"{exposed} of {whole} exposed")
    return display_names.part(row["direction"]), ", ".join((*parts, *traits))

"""A file of the program with the work, waits and host time of its lines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.lines import COLUMNS as OF_LINES
from traceana.analyze.lines import SUMMED, by_frame, with_calls
from traceana.errors import NoSuchSelectionError, suggested
from traceana.result import Result, share_of, sums
from traceana.runs.source_files import source_lines
from traceana.table import CODE, NUMBER, Column, by_name, completed, conformed, laid_out
from traceana.timeline.work import work_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceana.trace import Trace

_FIGURES: Final = ("calls", "time_ns", "total_ns", "share", "idle_ns", "host_ns", "flops")
COLUMNS: Final = laid_out(
    (
        Column("line", NUMBER, "number of the line; null between regions of the file"),
        *(by_name(OF_LINES)[name] for name in _FIGURES),
        Column("text", CODE, "the line itself; null where the recording does not keep the file"),
    ),
    dropped="flops calls host_ns share",
    bars="time_ns",
)
_AROUND: Final = 2
"""Lines before and after one with work, waits or host time."""


def source_listing(trace: Trace, file: str) -> Result:
    """Return the regions of ``file`` that have work, waits or host time, in its order.

    The columns are :data:`COLUMNS`. ``file`` is its name in the trace, or the end of it. Raises
    :class:`~traceana.errors.NoSuchSelectionError` where no file, or several, are called so.
    """
    name = _named(files_by_time(trace), file)
    figures = [name for name in _FIGURES if name in SUMMED]
    of_lines = (
        by_frame(trace)
        .filter(pl.col("file") == name)
        .group_by("line")
        .agg(pl.col(figures).sum(), pl.col("text").first().alias("executed"))
        .join(
            with_calls(trace, ("file", "line")).filter(pl.col("file") == name).drop("file"),
            on="line",
            how="full",
            coalesce=True,
        )
        .filter(pl.any_horizontal(pl.col(*figures, "total_ns") != 0))
    )
    text = source_lines(Path(trace.meta.source).parent, [name]).get(name)
    notes = () if text is not None else (f"the recording does not keep the text of {name}",)
    shown = _regions(of_lines["line"].to_list(), len(text or ()))
    numbers = pl.Series("line", shown, dtype=pl.Int64)
    texts = [None if line is None or text is None else text[line - 1].rstrip() for line in shown]
    frame = (
        pl.DataFrame({"line": numbers, "text": pl.Series(texts, dtype=pl.String)})
        .join(of_lines, on="line", how="left", maintain_order="left")
        .with_columns(pl.coalesce("text", "executed").alias("text"))
        .with_columns(share_of(work_ns(trace)))
    )
    frame = conformed(completed(frame, COLUMNS), COLUMNS)
    return Result(frame, sums(frame, *figures), notes, COLUMNS)


def files_by_time(trace: Trace) -> pl.DataFrame:
    """Return the program's own files: ``file``, ``time_ns``, ``idle_ns``, most time first."""
    return (
        by_frame(trace)
        .filter("own")
        .group_by("file")
        .agg(pl.col("time_ns", "idle_ns").sum())
        .sort("time_ns", "idle_ns", "file", descending=[True, True, False])
    )


def _named(files: pl.DataFrame, wanted: str) -> str:
    """Return the one of ``files`` that is called ``wanted``."""
    names: list[str] = files["file"].to_list()
    if wanted in names:
        return wanted
    ending = [name for name in names if name.endswith(f"/{wanted.removeprefix('./')}")]
    if len(ending) == 1:
        return ending[0]
    if ending:
        raise NoSuchSelectionError(f"several files end with {wanted}: {', '.join(ending[:5])}")
    if not names:
        raise NoSuchSelectionError(
            f"no file {wanted}: the recording has no lines of the program (traceana lines)"
        )
    raise NoSuchSelectionError(
        f"no file {wanted} with work{suggested(wanted, names)}: {', '.join(names[:5])}"
    )


def _regions(lines: list[int], last: int) -> Sequence[int | None]:
    """Return the numbers of ``lines`` and of those around them up to ``last``, in order; None
    between regions."""
    around = {
        number
        for line in lines
        for number in range(max(line - _AROUND, 1), line + _AROUND + 1)
        if number <= last or number == line
    }
    shown: list[int | None] = []
    for number in sorted(around):
        if shown and shown[-1] != number - 1:
            shown.append(None)
        shown.append(number)
    return shown

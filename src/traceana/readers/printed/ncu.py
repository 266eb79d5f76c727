"""Reads tables of Nsight Compute (``ncu --csv``, or printed text) into the table of counters."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
import polars as pl

from traceana.errors import CorruptError
from traceana.readers.kernel_names import demangle
from traceana.readers.printed.quantities import decimal_mark, numbers
from traceana.readers.printed.tables import (
    csv_rows,
    distinct,
    find_tables,
    printed_lines,
    split_csv,
)
from traceana.readers.printed.text import NCU_HEADER, plain_text
from traceana.readers.printed.titles import titles
from traceana.readers.source import ByteSource, Progress
from traceana.trace import Ledger, Tables, Trace, TraceMeta
from traceana.trace.schema import COUNTERS

_ID: Final = "ID"
_NAME: Final = "Kernel Name"
_METRIC, _UNIT, _VALUE = "Metric Name", "Metric Unit", "Metric Value"
_NUMBERS: Final = {
    # column of `counters`: of the file
    "launch": _ID,
    "process": "Process ID",
    "device": "Device",
    "context": "Context",
    "stream": "Stream",
}
_SIZES: Final = {"grid": "Grid Size", "block": "Block Size"}
_REPEATED: Final = (*_NUMBERS.values(), *_SIZES.values(), _NAME)
"""The facts of a launch that each of its rows has."""
_FACTS: Final = frozenset(
    (*_REPEATED, "Process Name", "Host Name", "Kernel Time", "CC", "Section Name")
)
_THREE: Final = r"\(\s*(\d+),\s*(\d+),\s*(\d+)\s*\)"
_NVTX: Final = ":PL_Type:"
"""In the titles of the columns that ``--nvtx`` adds."""
_ROW: Final = r'^"\d*","'
"""The number of the launch; empty in the row of units."""
_MESSAGE: Final = re.compile(rb"^==(WARNING|ERROR)== *(\S.*?) *$", re.MULTILINE)
_MOST_UNREAD: Final = 50
_MOST_MESSAGES: Final = 10
_LONGEST_MESSAGE: Final = 300
_INCOMPLETE: Final = "rows without all cells, or with zero bytes"
_BROKEN_TITLES: Final = "rows below a header that is not valid CSV"
_NO_TITLES: Final = "headers that are not valid CSV"
_BROKEN_HEADER: Final = "zero bytes in the header"
_NOT_UTF8: Final = "rows with text that is not UTF-8"
MISSING: Final = "launches without a metric that others have"
CONTRADICTION: Final = "launches with rows that contradict each other"
JOINED: Final = "rows with a metric and advice"


def read(path: Path, progress: Progress) -> Trace:
    """Return the Trace of the output of ``ncu --csv``, page ``raw`` or ``details``, or of its text.

    It holds counters only: Nsight Compute replays each kernel several times, serialized, without
    timestamps. ``meta.events`` counts launches. Values have the printed digits;
    ``--print-units base`` prints all of them. Raises ``CorruptError`` and ``NotFoundError``.
    """
    source = ByteSource(path, progress)
    content = plain_text(b"".join(source.blocks()))
    ledger = Ledger()
    lines = printed_lines(content)["line"]
    parts = _csv_tables(lines, ledger, ended=content.endswith(b"\n"))
    if not parts and (page := _page(lines)).height:
        parts = [_Rows(page)]
    if not parts:
        raise CorruptError(
            f"{path} has no readable Nsight Compute table (no metrics): "
            "write it again with 'ncu --import REPORT --csv --page raw'"
        )
    if len(parts) > 1:
        ledger.add("several_reports", len(parts), table="counters", kept=True)
    tables, events, unread = [], 0, []
    for part in parts:
        launches, unread_in_part = _launches(part, ledger)
        tables.append(launches.filter(pl.all_horizontal(pl.col("launch", "name").is_not_null())))
        unread += unread_in_part
        # On the page `details`, a row is a metric of a launch.
        lost = 0 if _VALUE in part.cells.columns else part.malformed
        events += launches.height + lost
        ledger.add("malformed", launches.height - tables[-1].height, table="counters")
        ledger.add(
            "malformed", part.malformed, table="counters", kept=lost == 0, detail=_INCOMPLETE
        )
    whole = pl.concat(tables, how="diagonal")
    ledger.add("damaged", int(source.damaged), table="-", kept=True)
    truncated = source.truncated or any(part.truncated for part in parts)
    ledger.add("truncated", int(truncated), table="counters", kept=True)
    messages = list(dict.fromkeys(_MESSAGE.findall(content)))[:_MOST_MESSAGES]
    properties = {
        "metrics_not_read": list(dict.fromkeys(unread))[:_MOST_UNREAD],
        "counters_messages": [
            f"{kind.decode().lower()}: {text[:_LONGEST_MESSAGE].decode(errors='replace')}"
            for kind, text in messages
        ],
    }
    meta = TraceMeta(
        source=str(path),
        format="ncu",
        producer="NVIDIA Nsight Compute",
        truncated=truncated,
        bytes_read=source.bytes_read,
        bytes_total=source.bytes_total,
        events=events,
        properties={name: values for name, values in properties.items() if values},
    )
    measured = whole.select(pl.col("name").unique(maintain_order=True))
    return Trace(meta, Tables({"counters": whole, "names": measured, "ledger": ledger.frame()}))


class _Rows(msgspec.Struct, frozen=True):
    """The complete rows of a table as texts, and the count of the others.

    ``truncated`` is whether the file ends within a row.
    """

    cells: pl.DataFrame
    malformed: int = 0
    truncated: bool = False


def _csv_tables(lines: pl.Series, ledger: Ledger, *, ended: bool) -> list[_Rows]:
    """Return the tables in ``lines``: a log of several runs has the table of each, with titles and
    units of its own. ``ended`` is whether the last line ends.

    Rows of the page ``details`` end behind the metric's value; some of advice have one cell more
    than the header. Rows before the first header are lost.
    """
    tables = []
    for number, table in enumerate(find_tables(lines, f"^{NCU_HEADER}")):
        titles = distinct(split_csv(table.header, strict=True))
        if not titles:
            below = int(table.rows.str.contains(_ROW).sum())
            ledger.add("malformed", below, table="counters", detail=_BROKEN_TITLES)
            ledger.add("damaged", 1, table="counters", kept=True, detail=_NO_TITLES)
            continue
        least, most = len(titles), len(titles)
        if _VALUE in titles:
            least, most = titles.index(_VALUE) + 1, len(titles) + 1
        before = lines[: table.at * (number == 0)]
        separators = before.str.count_matches('","', literal=True)
        malformed = int((before.str.contains(_ROW) & (separators > len(titles) // 2)).sum())
        rows, is_part, is_piece = _whole_rows(table.rows)
        # Every cell has quotes; on the page `details` a comma may follow the last.
        ends = rows.str.ends_with('"')
        if most > least:
            ends |= rows.str.ends_with(",")
        broken = rows.str.contains("\0", literal=True) | ~ends
        is_row = pl.repeat(True, len(rows), dtype=pl.Boolean, eager=True)
        cells, lost = csv_rows(rows, titles, is_row, widths=range(least, most + 1))
        cells, lost = cells.filter(~broken.filter(~lost)).fill_null(""), lost | broken
        truncated = False
        if table.is_last and not ended and len(table.rows):
            truncated = is_piece[-1] or (is_part[-1] and lost[-1])
        malformed += int(is_piece.sum()) + int(lost.sum()) - truncated
        tables.append(_Rows(cells, malformed, truncated))
        not_utf8 = int(rows.str.contains("\ufffd", literal=True).sum())
        ledger.add("damaged", not_utf8, table="counters", kept=True, detail=_NOT_UTF8)
        zeros = int("\0" in table.header)
        ledger.add("damaged", zeros, table="counters", kept=True, detail=_BROKEN_HEADER)
    return tables


def _whole_rows(lines: pl.Series) -> tuple[pl.Series, pl.Series, pl.Series]:
    """Join the lines of each row; return the rows, a mask of their lines, and a mask of fragments.

    A row begins with the number of a launch; a cell of advice may have ends of lines. Fragments are
    other lines with quotes or zero bytes, from damaged rows.
    """
    begins, quotes = lines.str.contains(_ROW), lines.str.count_matches('"', literal=True)
    is_piece = (quotes > 0) | lines.str.contains("\0", literal=True)
    is_piece &= ~begins & ~lines.str.starts_with("==")
    if not is_piece.any() and not (quotes % 2 == 1).any():
        return lines.filter(begins), begins, is_piece
    number, before = pl.col("number"), pl.col("quotes").cum_sum().over("number") - pl.col("quotes")
    marked = pl.DataFrame({"line": lines, "number": begins.cum_sum(), "quotes": quotes})
    is_open = marked.select((number > 0) & (before % 2 == 1)).to_series()
    parts = marked.filter(begins | is_open).group_by(number, maintain_order=True)
    rows = parts.agg(pl.col("line").str.join(" "))["line"]
    return rows, begins | is_open, is_piece & ~is_open


def _launches(table: _Rows, ledger: Ledger) -> tuple[pl.DataFrame, list[str]]:
    """Return the counters of the launches in ``table``, and its metrics without a column."""
    cells = table.cells
    if {_METRIC, _UNIT, _VALUE} <= {*cells.columns}:
        complete = not (table.malformed or table.truncated)
        launches, metrics, unread = _details(cells, ledger, complete=complete)
    else:
        launches, metrics, unread = _raw(cells, ledger)
    facts = [column for column in _NUMBERS if _NUMBERS[column] in launches.columns]
    sizes = [what for what in _SIZES if _SIZES[what] in launches.columns]
    plain = demangle(launches[_NAME].drop_nulls().unique())
    values = launches.with_columns(combined(metrics))
    counters = values.select(
        *(
            pl.col(_NUMBERS[column]).cast(COUNTERS[column], strict=False).alias(column)
            for column in facts
        ),
        pl.col(_NAME).replace(plain.names).alias("name"),
        *(
            pl.col(_SIZES[what])
            .str.extract(_THREE, group)
            .cast(pl.Int32, strict=False)
            .alias(f"{what}_{axis}")
            for what in sizes
            for group, axis in enumerate("xyz", 1)
        ),
        *(column for column in COUNTERS if column in values.columns),
    )
    plain.count_failures(ledger)
    for column in facts[1:]:
        _count_unread(launches[_NUMBERS[column]], counters[column], _NUMBERS[column], ledger)
    for what in sizes:
        _count_unread(launches[_SIZES[what]], counters[f"{what}_x"], _SIZES[what], ledger)
    return counters, unread


Measured = tuple[pl.DataFrame, dict[str, list[str]], list[str]]
"""Launches with facts as text and known metrics in base units as float64, the metrics of each
column of ``counters``, metrics without a column."""


def _raw(cells: pl.DataFrame, ledger: Ledger) -> Measured:
    """Read the page ``raw``: a column per metric, and a first row of units."""
    named = [c for c in cells.columns if c not in _FACTS and _NVTX not in c]
    row = cells.filter(pl.col(_ID) == "").head(1)
    # Without a row of units, no value can be read.
    units = {name: row[name][0] if row.height else "" for name in named}
    factors = {name: factor(units[name]) if row.height else None for name in named}
    metrics = metrics_by_column(name for name in named if factors[name] is not None)
    used = {name for names in metrics.values() for name in names}
    # A column without a unit may be text.
    marks = [decimal_mark(cells[n]) for n in named if units[n] and factors[n] is not None]
    mark = "," if "," in marks else "."
    rows = cells.filter(pl.col(_ID) != "")
    launches = rows.with_columns(
        numbers(pl.col(name), mark) * factors[name] for name in sorted(used)
    )
    for name in sorted(name for names in metrics_by_column(named).values() for name in names):
        values = launches[name] if name in used else pl.repeat(None, rows.height, eager=True)
        _count_unread(rows[name], values, name, ledger)
    return launches, metrics, [name for name in named if name not in used]


def _details(cells: pl.DataFrame, ledger: Ledger, *, complete: bool) -> Measured:
    """Read the page ``details``: a row per metric of each launch.

    Nsight Compute repeats the facts of a launch in each of its rows, has a row of each metric for
    every launch, and one value of a metric that stands in two sections; rows that differ are
    damaged. ``complete`` is whether no row is lost.
    """
    unit = pl.col(_UNIT).replace_strict(
        {text: factor(text) for text in cells[_UNIT].unique()},
        default=None,
        return_dtype=pl.Float64,
    )
    mark = decimal_mark(cells.filter(unit.is_not_null(), pl.col(_UNIT) != "")[_VALUE])
    named = [name for name in cells[_METRIC].unique(maintain_order=True) if name]
    metrics = metrics_by_column(named)
    used = sorted(name for names in metrics.values() for name in names)
    read = cells.filter(pl.col(_METRIC).is_in(used))
    value = numbers(pl.col(_VALUE), mark or ".") * unit
    _count_unread(read[_VALUE], read.select(value).to_series(), _VALUE, ledger)
    # The advice of Nsight Compute's rules stands behind the value, in rows without a metric: a row
    # with both is two halves of others.
    advice = cells.columns[cells.columns.index(_VALUE) + 1 :]
    joined = cells.filter(pl.any_horizontal(pl.col(advice) != "", False), pl.col(_METRIC) != "")
    ledger.add("damaged", joined.height, table="counters", kept=True, detail=JOINED)
    keys = [column for column in ("Process ID", _ID) if column in cells.columns]
    facts = [c for c in cells.columns if c in _FACTS and c not in keys]
    again = [column for column in facts if column in _REPEATED]
    is_metric = {name: pl.col(_METRIC) == name for name in used}
    launches = (
        cells.with_columns(value.alias("value"))
        .group_by(keys, maintain_order=True)
        .agg(
            *(pl.col(fact).first() for fact in facts),
            *(
                pl.col("value").filter(is_metric[name]).drop_nulls().first().alias(name)
                for name in used
            ),
            (~pl.all_horizontal(*(is_metric[name].any() for name in used), True)).alias("lacks"),
        )
    )
    lacks = int(launches["lacks"].sum()) if complete else 0
    ledger.add("damaged", lacks, table="counters", kept=True, detail=MISSING)
    valued = cells.filter(pl.col(_VALUE) != "")
    alike = [(cells, again), *((valued.filter(is_metric[name]), [_VALUE]) for name in used)]
    # The rows of a launch stand together.
    same = pl.all_horizontal(pl.col(key) == pl.col(key).shift() for key in keys)
    contradicting = [
        rows.filter(same & pl.any_horizontal(pl.col(c) != pl.col(c).shift() for c in columns))
        for rows, columns in alike
    ]
    count = pl.concat(rows.select(keys) for rows in contradicting).n_unique()
    ledger.add("damaged", count, table="counters", kept=True, detail=CONTRADICTION)
    return launches, metrics, [name for name in named if name not in used]


def _count_unread(text: pl.Series, read: pl.Series, what: str, ledger: Ledger) -> None:
    """Count the cells of ``text`` with a digit for which ``read`` is null, as ``lost_field``."""
    lost = text.filter(read.is_null()).str.contains(r"\d").sum()
    ledger.add("lost_field", int(lost), table="counters", kept=True, detail=what)


_LAUNCH: Final = re.compile(
    r"(.+?)(?:, \d{4}-\w{3}-\d{2} \d{2}:\d{2}:\d{2})?"
    r"(?: (\(\d+, \d+, \d+\))x(\(\d+, \d+, \d+\)))?"
    r", Context (\d+), Stream (\d+)(?:, Device (\d+))?(?:, CC [\d.]+)?"
)
_PROCESS: Final = re.compile(r"\[(\d+)\] .+@.+")
_PRINTED_METRIC: Final = re.compile(r"(\S(?:\S| (?! ))*?)(?: {2,}(\S+))? {2,}(\S+)")
_RULER: Final = re.compile(r"-{5,}(?: -{5,})*")
_COLUMNS: Final = (
    *(_ID, "Process ID", _NAME, "Grid Size", "Block Size", "Context", "Stream", "Device"),
    *("Section Name", _METRIC, _UNIT, _VALUE),
)


def _page(lines: pl.Series) -> pl.DataFrame:
    """Return a row for each metric of each launch on a page of text, with the titles of the CSV."""
    rows: list[tuple[str | None, ...]] = []
    launch: tuple[str | None, ...] = ()
    process, section, in_table, number, first = None, None, False, -1, 0
    for line in lines.str.strip_chars(" \t"):
        if not line:
            continue
        if match := _PROCESS.fullmatch(line):
            process = match[1]
        elif match := _LAUNCH.fullmatch(line):
            number += 1
            launch = (str(number), process, *match.groups())
            section, in_table = None, False
        elif line.startswith("Section: "):
            section, in_table = line.removeprefix("Section: "), False
        elif _RULER.fullmatch(line):
            # One before the rows or the titles, and one behind the rows.
            in_table = section is not None and not (in_table and len(rows) > first)
            first = len(rows)
        elif not (in_table and launch) or line.startswith(_METRIC):
            continue
        elif match := _PRINTED_METRIC.fullmatch(line):  # other lines are the program's
            rows.append((*launch, section, match[1], match[2] or "", match[3]))
    table = pl.DataFrame(rows, schema=dict.fromkeys(_COLUMNS, pl.String), orient="row")
    return table.with_columns(pl.all().fill_null(""))


_COLUMN_OF: Final = {title: described.column for title, described in titles("ncu").items()}
_TENSOR_OPS: Final = re.compile(r"(sm__ops_path_tensor_\w+)\.sum")
_BY_TYPE: Final = "sm__ops_path_tensor_src_"
_PREFIXES: Final = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_SECONDS: Final = {
    # to nanoseconds; long forms: Nsight Compute before 2024
    **dict.fromkeys(("ns", "nsecond"), 1.0),
    **dict.fromkeys(("us", "usecond"), 1e3),
    **dict.fromkeys(("ms", "msecond"), 1e6),
    **dict.fromkeys(("s", "second"), 1e9),
}
_COUNTED: Final = re.compile(r"([KMGTP]?)(?:byte|inst|ops?|FLOPs?)?")


def factor(unit: str) -> float | None:
    """Return the factor from ``unit`` to nanoseconds, bytes, counts or percent.

    None for other units, rates among them.
    """
    if unit == "%":
        return 1.0
    if unit in _SECONDS:
        return _SECONDS[unit]
    counted = _COUNTED.fullmatch(unit)
    return None if counted is None else _PREFIXES[counted[1]]


def metrics_by_column(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the metrics among ``names`` for each column of ``counters``.

    The first that is not null counts; those of ``tensor_ops`` are summed. A metric that another
    includes (``…_src_fp16_dst_fp32`` in ``…_src_fp16``) is left out, as are the counts by
    instruction (``…_op_hmma_…``) where there are counts by type, which include them.
    """
    listed = list(names)
    metrics: dict[str, list[str]] = {}
    for name, column in _COLUMN_OF.items():
        if name in listed:
            metrics.setdefault(column, []).append(name)
    tensor = {m[1]: name for name in listed if (m := _TENSOR_OPS.fullmatch(name))}
    if any(stem.startswith(_BY_TYPE) for stem in tensor):
        tensor = {stem: name for stem, name in tensor.items() if stem.startswith(_BY_TYPE)}
    parts = [
        name
        for stem, name in tensor.items()
        if not any(stem.startswith(f"{shorter}_") for shorter in tensor)
    ]
    if parts:
        metrics["tensor_ops"] = parts
    return metrics


def combined(metrics: dict[str, list[str]]) -> list[pl.Expr]:
    """Return the columns of ``counters`` for the result of :func:`metrics_by_column`."""
    columns = []
    for column, names in metrics.items():
        if column == "tensor_ops":
            some = pl.any_horizontal(pl.col(name).is_not_null() for name in names)
            value: pl.Expr = pl.when(some).then(pl.sum_horizontal(names))
        else:
            value = pl.coalesce(names)
        if column != "tensor_active_percent":
            value = value.round().cast(pl.Int64, strict=False)
        columns.append(value.alias(column))
    sides = ("dram_read_bytes", "dram_write_bytes")
    if "dram_bytes" not in metrics and all(side in metrics for side in sides):
        columns.append(
            pl.sum_horizontal(
                *(
                    pl.coalesce(metrics[side]).round().cast(pl.Int64, strict=False)
                    for side in sides
                ),
                ignore_nulls=False,
            ).alias("dram_bytes")
        )
    return columns

"""Reads the traces that nvprof and Nsight Systems print, as text or CSV, into the canonical tables.

The rows are those of ``nvprof --print-gpu-trace`` and ``--print-api-trace``, or of ``nsys stats``
with the reports ``cuda_gpu_trace`` and ``cuda_api_trace``. A log has the program's own output
before, between and behind them, several tables where several processes ran, lines that are indented
or coloured, and cells in two layouts: padded columns, and CSV with a line of units. Rows are
therefore found by their beginning, a time, behind a header.

Times and sizes have the printed digits: CSV has six decimals of a unit that it chooses by column,
columns of text five digits. Sizes are in binary units: nvprof's KB are 1,024 bytes. Nsight Systems
prints nanoseconds, and megabytes of a million bytes with three decimals.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec
import polars as pl

from traceana.errors import CorruptError, NotATraceError
from traceana.readers.cupti import copy_name, devices_of_work, set_name
from traceana.readers.integrity import rebase, screen
from traceana.readers.kernel_names import NameTable, distinct_values
from traceana.readers.printed.quantities import quantities
from traceana.readers.printed.tables import (
    PrintedTable,
    count_few_digits,
    csv_rows,
    distinct,
    find_tables,
    merge_tables,
    padded_rows,
    printed_lines,
    raw_lines,
    ruled_rows,
    split_csv,
)
from traceana.readers.printed.text import NSYS_COLUMNS, NVPROF_TITLES, plain_text
from traceana.readers.printed.titles import titles
from traceana.readers.source import ByteSource, Progress
from traceana.trace import Ledger, Tables, Trace, TraceMeta
from traceana.trace.schema import ACTIVITIES, ActivityKind, CopyKind, MemoryKind, empty

_TITLES: Final = titles("timeline")
_DECIMAL: Final = {"KB": "10^3 B", "MB": "10^6 B", "GB": "10^9 B"}
"""Units in titles of Nsight Systems, as those of decimal sizes."""
_UNITS_OF: Final[dict[str, dict[str, float]]] = {
    "time": {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9},
    "size": {
        **{"B": 1.0, "byte": 1.0, "bytes": 1.0, "KB": 2.0**10, "MB": 2.0**20, "GB": 2.0**30},
        **{unit: 10.0 ** (3 * at) for at, unit in enumerate(_DECIMAL.values(), 1)},
    },
}
_COLUMNS: Final = {
    title.column: pl.Int64 if title.unit == "size" else pl.String for title in _TITLES.values()
}
_PROCESS: Final = re.compile(rb"==(\d{1,18})== ")
_COPY: Final = r"^\[?(?:CUDA )?(?:Unified Memory )?[Mm]emcpy (?:Unified )?(\w+)"
_SIDES: Final = r"^(\[CUDA .*\b[HDP])\w*-to-([HDP])\w*\]$"
"""A copy as newer versions of Nsight Systems name it: ``[CUDA memcpy Host-to-Device]``."""
_SET: Final = r"^\[?(?:CUDA )?[Mm]emset"
_UNIFIED: Final = r"^\[(?:CUDA )?(?:memcpy Unified|Unified Memory)\b"
_CALL: Final = r"^cu(?:da)?(?:[A-Z]\w*|$)"
_LAUNCH: Final = r"\[(\d+)\]\)?$"
_THREE: Final = r"\((\d+) (\d+) (\d+)\)"
_DEVICE: Final = re.compile(r"(.*?)(?: \(([0-9]+)\))?$")
_LARGEST_DEVICE: Final = 2**31 - 1
_SAID: Final = re.compile(
    rb"^[ \t#>]*(?:(?:==\d+==|={8}) (?:Error: |Warning: )?|(?=No ))"
    rb"(No kernels were profiled|No events/metrics were profiled|Application re[^\r\n]*"
    rb"|Internal profiling error[^\r\n]*)|^\"?Err:5\d\d\b",
    re.MULTILINE,
)
"""Why nvprof has no table: nothing ran, or the application or nvprof ended early."""
_LONGEST_REASON: Final = 100


def read(path: Path, progress: Progress) -> Trace:
    """Return the Trace of the output of ``nvprof --print-gpu-trace`` or ``--print-api-trace``.

    Other lines are the program's output. Raises ``NotATraceError`` without a table,
    ``CorruptError`` where times have no unit, ``NotFoundError``.
    """
    source = ByteSource(path, progress)
    content = plain_text(b"".join(source.blocks()))
    layouts, malformed, not_utf8 = _rows(content)
    if not layouts:
        raise without_table(path, content)
    ledger = Ledger()
    cells = pl.concat([_typed(path, rows) for rows in layouts], how="diagonal")
    work, calls = _split(cells, ledger)
    devices = _devices(work["device"])
    numbers = {text: device["device"] for text, device in devices.items()}
    number = work["device"].replace_strict(numbers, default=0, return_dtype=pl.Int32)
    work = work.with_columns(number.alias("number"))
    processes = {int(number) for number in _PROCESS.findall(content)}
    processes |= set(calls["process"].drop_nulls().cast(pl.Int64, strict=False).to_list())
    names = NameTable(ledger)
    # A printed start of 0 is a time.
    activities, called = (
        screen(table, name, ledger, repeats=True, zero_is_lost=False)
        for name, table in (("activities", _activities(work, names)), ("calls", _calls(calls)))
    )
    if len(processes) == 1:
        process = pl.lit(processes.pop(), pl.Int64).alias("process")
        activities, called = (
            table.with_columns(process) if table.height else table for table in (activities, called)
        )
    if len(processes) > 1:
        ledger.add("several_reports", len(processes), table="-", kept=True, detail="processes")
    ledger.add("malformed", malformed, table="activities", detail="rows with other cells")
    detail = "rows with text that is not UTF-8"
    ledger.add("damaged", not_utf8, table="-", kept=True, detail=detail)
    for column, unit in (("start", "ns"), ("duration", "ns"), ("bytes", "bytes")):
        if f"{column}_step" in work.columns:
            steps = work[f"{column}_step"].filter(work[column] > 0)
            count_few_digits(ledger, "activities", column, unit, steps)
    ledger.add("damaged", content.count(b"\0"), table="-", kept=True, detail="zero bytes")
    ledger.add("damaged", int(source.damaged), table="-", kept=True)
    ledger.add("truncated", int(source.truncated), table="-", kept=True)
    tables, _ = rebase({"activities": activities, "calls": called}, ledger)
    tables["names"] = names.frame()
    tables["devices"] = devices_of_work(
        [{**row, "vendor": "NVIDIA"} for row in devices.values()], tables["activities"]["device"]
    )
    tables["ledger"] = ledger.frame()
    is_nsys = any(rows.is_nsys for rows in layouts)
    as_csv = any(rows.units and rows.is_csv for rows in layouts)
    meta = TraceMeta(
        source=str(path),
        format="nsys" if is_nsys else "nvprof",
        producer="NVIDIA Nsight Systems" if is_nsys else "NVIDIA nvprof",
        truncated=source.truncated,
        bytes_read=source.bytes_read,
        bytes_total=source.bytes_total,
        events=cells.height + malformed,
        properties={"printed": "CSV" if as_csv else "text"},
    )
    return Trace(meta, Tables(tables))


def without_table(path: Path, content: bytes) -> NotATraceError:
    """Return the error on output of nvprof, ``content``, that has no activities."""
    message = _SAID.search(content)
    why = "it has no table with starts and durations"
    if message:
        reason = message[1] or b"a spreadsheet replaced its lines by Err:5xx"
        why = re.sub(r"[^ -~]", "?", reason.decode("latin-1"))[:_LONGEST_REASON].rstrip(".")
    return NotATraceError(
        f"{path} is output of nvprof without activities ({why}): record it again with "
        "nvprof --print-gpu-trace --csv --log-file FILE"
    )


def _typed(path: Path, rows: Rows) -> pl.DataFrame:
    """Return the columns of one layout, times in nanoseconds, sizes in bytes, others as text.

    ``*_step`` is what the last printed digit is worth.
    """
    title_of = {_TITLES[title].column: title for title in rows.cells.columns if title in _TITLES}
    if "start" not in title_of or "duration" not in title_of:
        raise CorruptError(f"{path} has a table without starts and durations: record it again")
    texts = rows.cells.select(
        pl.col(title).str.strip_chars(" ").alias(column) for column, title in title_of.items()
    )
    typed: list[pl.Expr] = []
    for column, title in title_of.items():
        if (factors := _UNITS_OF.get(_TITLES[title].unit)) is None:
            continue
        unit = rows.units.get(title)
        if unit is not None and unit not in factors:
            # A page fault has its place in the program where a migration has its size.
            if column != "migrated":
                raise CorruptError(f"{path}: the unit {unit!r} of {title} is not known")
            unit = None
        typed += quantities(column, factors, unit)
    typed_cells = texts.with_columns(typed)
    for column in ("start", "duration"):
        if typed_cells[column].null_count() == typed_cells.height > texts[column].null_count():
            raise CorruptError(
                f"{path} has times without a unit: the line behind the header has it"
            )
    if rows.is_nsys and "name" in title_of:
        typed_cells = typed_cells.with_columns(pl.col("name").str.replace(_SIDES, "${1}to$2]"))
    if rows.is_nsys and "bytes" in title_of:
        # Sizes that three decimals round to 0 are not known.
        rounded = (pl.col("bytes") == 0) & (pl.col("bytes_step") > 1)
        typed_cells = typed_cells.with_columns(pl.when(~rounded).then("bytes").alias("bytes"))
    if "migrated" in title_of:
        sizes = ("bytes", "bytes_step") if "bytes" in title_of else ()
        step = pl.col("migrated_step")
        if sizes:
            step = pl.when(pl.col("bytes").is_null()).then(step).otherwise("bytes_step")
        typed_cells = typed_cells.with_columns(
            pl.coalesce(*sizes[:1], "migrated").alias("bytes"), step.alias("bytes_step")
        ).drop("migrated", "migrated_step")
    return typed_cells


def _split(cells: pl.DataFrame, ledger: Ledger) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows of activities, and those of calls; others are counted."""
    name = pl.col("name")
    copy = name.str.contains(_COPY)
    without_device = pl.col("device").is_null() & pl.col("stream").is_null()
    is_call = name.str.contains(_CALL) | pl.col("result").is_not_null()
    cut = name.str.starts_with("[") & ~name.str.contains("]", literal=True)
    counter = name.str.contains(_UNIFIED) & (pl.col("duration").is_null() | ~copy)
    every = cells.with_columns(
        pl.lit(None, dtype).alias(column)
        for column, dtype in _COLUMNS.items()
        if column not in cells.columns
    )
    sort = (
        pl.when(cut.fill_null(False))
        .then(pl.lit("cut"))
        .when(counter.fill_null(False))
        .then(pl.lit("counter"))
        .when((without_device & is_call).fill_null(False))
        .then(pl.lit("call"))
        .otherwise(pl.lit("work"))
    )
    sorts = every.select(sort.alias("sort")).to_series()
    detail = "rows cut within the name"
    ledger.add("malformed", int((sorts == "cut").sum()), table="activities", detail=detail)
    detail = "unified memory: faults, and copies without end"
    ledger.add("counter", int((sorts == "counter").sum()), table="-", detail=detail)
    return every.filter(sorts == "work"), every.filter(sorts == "call")


def _calls(cells: pl.DataFrame) -> pl.DataFrame:
    if cells.is_empty():
        return empty("calls")
    return cells.select(
        pl.col("name").str.extract(r"^(\w+)", 1).cast(pl.Categorical()).alias("name"),
        "start",
        "duration",
        pl.coalesce("correlation", pl.col("name").str.extract(_LAUNCH, 1))
        .cast(pl.Int64, strict=False)
        .alias("correlation"),
        *(pl.col(name).cast(pl.Int64, strict=False) for name in ("process", "thread")),
    )


def _activities(cells: pl.DataFrame, names: NameTable) -> pl.DataFrame:
    """Return ``activities`` of rows of a device. A name ends in its correlation id where no column
    has it."""
    if cells.is_empty():
        return empty("activities")
    name, kind = pl.col("name"), pl.col("kind")
    is_copy = name.str.contains(_COPY).fill_null(False)
    is_set = name.str.contains(_SET).fill_null(False)
    frame = cells.with_columns(
        pl.coalesce("correlation", name.str.extract(r" \[(\d+)\]$", 1)).alias("correlation"),
        pl.when(name.str.starts_with("["))
        .then(name)
        .otherwise(name.str.replace(r" \[\d+\]$", ""))
        .alias("name"),
        pl.when(is_copy)
        .then(pl.lit("memcpy"))
        .when(is_set)
        .then(pl.lit("memset"))
        .otherwise(pl.lit("kernel"))
        .cast(ActivityKind)
        .alias("kind"),
        pl.when(is_copy)
        .then(name.str.extract(_COPY, 1).cast(CopyKind, strict=False).fill_null("unknown"))
        .alias("copy_kind"),
        *(
            pl.when(name.str.contains(_UNIFIED))
            .then(pl.lit("managed"))
            .otherwise(pl.col(side).str.to_lowercase().str.replace_all(" ", "_"))
            .cast(MemoryKind, strict=False)
            .alias(side)
            for side in ("source_memory", "destination_memory")
        ),
        pl.col("number").alias("device"),
        *(
            pl.coalesce(f"{what}_{axis}", pl.col(what).str.extract(_THREE, at)).alias(
                f"{what}_{axis}"
            )
            for what in ("grid", "block")
            for at, axis in enumerate("xyz", 1)
        ),
        pl.when(~is_copy & ~is_set & pl.any_horizontal(pl.col("static", "dynamic").is_not_null()))
        .then(pl.sum_horizontal("static", "dynamic", ignore_nulls=True))
        .alias("shared_memory"),
    )
    memory_name = (
        pl.when(kind == "memcpy").then(copy_name()).when(kind == "memset").then(set_name())
    )
    texts = frame.select(memory_name.otherwise("name")).to_series()
    return frame.select(
        *(
            pl.col(column).cast(dtype, strict=False)
            for column, dtype in ACTIVITIES.items()
            if column in frame.columns
        ),
        names.ids(texts).alias("name_id"),
    )


def _devices(texts: pl.Series) -> dict[str, dict[str, int | str | None]]:
    """Return number and name of each device by its text: ``GeForce GTX 980 (0)``.

    Without a printed number devices are numbered in the order of their texts.
    """
    devices = {}
    for place, text in enumerate(distinct_values(texts)):
        name, printed = match.groups() if (match := _DEVICE.match(text)) else (None, None)
        # Eleven digits suffice to see that a number is too large; Python refuses thousands.
        number = int(printed[:11]) if printed else place
        devices[text] = {"device": number if number <= _LARGEST_DEVICE else place, "name": name}
    return devices


_FIRST_TIME: Final = r'^(?:"?[\d.]+"?,|[\d.]+(?:ns|us|ms|s) )'
_PADDED_TIME: Final = r"^[\d.]+(?:ns|us|ms|s) "
_UNITS: Final = r"^(?:[a-zA-Z/%]*,)+[a-zA-Z/%]*$"
_PADDED_UNITS: Final = r"^(?:ns|us|ms|s) +(?:ns|us|ms|s)(?: +[KMG]?B(?:/s)?)* *$"
"""The units below padded titles: ``nvprof --normalized-time-unit``."""
_NAME: Final = "Name"
_OWN_UNIT: Final = re.compile(r"(.*?) ?\((ns|us|ms|s|bytes?|[KMG]B)\)")
"""A title of the Visual Profiler, or of Nsight Systems: ``Duration(ns)``, ``Bytes (MB)``."""
_GROUPED: Final = r"^\d{1,3}(?:[.,'\u{a0}\u{202f} ]?\d{3})*$|^\d+$"
"""A whole number, also in groups of digits."""
_TEXTS: Final = ("Name", "Device", "SrcMemKd", "DstMemKd", "Result", "Thread Name")
"""Columns of Nsight Systems that are not of numbers."""
_MOST_LAYOUTS: Final = 64
"""Layouts of a file that are read; a log has one or two."""
_LONGEST_HEADER: Final = 1 << 16
_MOST_TITLES: Final = 500
"""Columns of a table that is read; the Visual Profiler's has one for each of a hundred counters."""


class Rows(msgspec.Struct, frozen=True):
    """The rows of one layout: ``cells`` has a column of texts per title, null where it is empty.

    ``units`` has the unit of the columns whose cells are numbers without one.
    """

    cells: pl.DataFrame
    units: dict[str, str]
    is_csv: bool

    @property
    def is_nsys(self) -> bool:
        """Whether Nsight Systems has printed the table."""
        return bool({"CorrId", "CorrID"} & set(self.cells.columns))


def _rows(content: bytes) -> tuple[list[Rows], int, int]:
    """Return the rows of all tables in ``content``, and two counts: of lines that begin as rows do
    and have other cells, and of lines with bytes that are not UTF-8.
    """
    layouts: list[Rows] = []
    malformed = not_utf8 = 0
    lines = printed_lines(content)["line"]
    below = f"{_UNITS}|{_PADDED_UNITS}"
    for table in merge_tables(find_tables(lines.filter(lines != ""), f"^{NVPROF_TITLES}", below)):
        if not content.isascii():
            not_utf8 += int(table.rows.str.contains("\ufffd", literal=True).sum())
        is_csv = "," in table.header
        titles: list[str] = []
        if len(layouts) < _MOST_LAYOUTS and len(table.header) <= _LONGEST_HEADER:
            titles = split_csv(table.header) if is_csv else re.split(" {2,}", table.header)
        if not 0 < len(titles) <= _MOST_TITLES:
            malformed += len(table.rows)
            continue
        titles = distinct(titles)
        if is_csv:
            begins = table.rows.str.contains(_FIRST_TIME if titles[0] != _NAME else ",")
            cells, lost = csv_rows(table.rows, titles, begins, _NAME)
            units = dict(zip(titles, table.below.split(","), strict=False))
        else:
            cells, lost = padded_rows(table.rows, titles)
            lost &= table.rows.str.contains(_PADDED_TIME)
            units = _padded_units(titles, table)
        malformed += int(lost.sum())
        layouts.append(_layout(cells, units, is_csv=is_csv))
    if not re.search(NSYS_COLUMNS.encode(), content):
        return layouts, malformed, not_utf8
    for table in merge_tables(find_tables(raw_lines(content)["line"], NSYS_COLUMNS, "-")):
        titles = re.split(" {2,}", table.header.strip(" \t#>|\r"))
        ruled = ruled_rows(table.rows, titles, table.below)
        if ruled is None or _NAME not in titles:
            continue
        begins = ruled[titles[0]].str.contains(_GROUPED)
        whole = begins & ruled[titles[1]].str.contains(_GROUPED) & ruled[_NAME].str.contains(r"\S")
        malformed += int((begins & ~whole).sum())
        cells = ruled.filter(whole).select(_ungrouped(title) for title in titles)
        layouts.append(_layout(cells, {}, is_csv=False))
    return layouts, malformed, not_utf8


def _layout(cells: pl.DataFrame, units: dict[str, str], *, is_csv: bool) -> Rows:
    """Return the rows with ``cells``; the unit of a column may stand in its title."""
    matches = {title: match for title in cells.columns if (match := _OWN_UNIT.fullmatch(title))}
    units = units | {match[1]: _DECIMAL.get(match[2], match[2]) for match in matches.values()}
    return Rows(
        cells.rename({title: match[1] for title, match in matches.items()}),
        {title: unit for title, unit in units.items() if unit},
        is_csv,
    )


def _ungrouped(title: str) -> pl.Expr:
    """Return the column ``title``, null where it is empty, its numbers without marks of groups.

    Numbers of times are whole, those of sizes have three decimals.
    """
    text = pl.col(title)
    digits = text.str.replace_all(r"\D", "")
    if title.endswith("B)"):
        decimal = digits.str.replace(r"(\d{3})$", ".$1")
        text = pl.when(text.str.contains(r"[.,]\d{3}$")).then(decimal).otherwise(digits)
    elif title not in _TEXTS:
        text = digits
    return pl.when(text != "").then(text)


def _padded_units(titles: list[str], table: PrintedTable) -> dict[str, str]:
    """Return the unit of each of ``titles`` by the line of units below them.

    A unit ends where its title does. What stands before the first of them is not there, and the
    first title has a unit.
    """
    ends: dict[str, int] = {}
    at = 0
    for title in titles:
        at = max(table.header.find(title, at), at) + len(title)
        ends[title] = at
    words = list(re.finditer(r"\S+", table.below))
    shift = ends[titles[0]] - words[0].end() if words else 0
    return {
        min(titles, key=lambda title: abs(ends[title] - word.end() - shift)): word[0]
        for word in words
    }

"""The tables of summaries in a text: their titles, their rows as cells, and what stands around.

A log has the program's own output before, between and behind them, a report has many tables, and
a paste is indented, in Markdown, or cut. A table begins at a header, a line of titles that one of
the profilers prints; its rows are the lines behind it whose cells are numbers where they must be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from itertools import chain, islice
from typing import Final

import msgspec
import polars as pl

from traceana.readers.printed.quantities import (
    SIZE,
    TIME,
    Quantity,
    count,
    decimal_mark,
    percent,
    quantity,
)
from traceana.readers.printed.tables import joined, printed_lines, split_csv
from traceana.readers.printed.text import SUMMARY_TITLES
from traceana.readers.printed.titles import titles

Cells = dict[str, str]
"""The cells of a row by the figure that each holds."""


class Profiler(Enum):
    """The profiler that prints a table; its value is the format of the trace."""

    NVPROF = "nvprof"
    NSYS = "nsys"
    ROCPROF = "rocprof"
    TORCH = "torch"
    MXNET = "mxnet"


class SummaryColumn(msgspec.Struct):
    """A printed column."""

    figure: str
    """The column of ``titles.tsv``; empty where it is not read."""
    unit: str | None
    """The unit of cells that are printed without one."""
    is_percent: bool
    may_be_empty: bool = False
    """Whether cells without text are printed: an operator without a stack has no location."""


class SummaryTable(msgspec.Struct):
    """A summary: its columns, its rows, and what the lines around it say about them."""

    profiler: Profiler
    columns: list[SummaryColumn]
    separator: str
    section: str
    """The last title of a section before the table."""
    process: int | None = None
    """The process that nvprof names before the table."""
    device: tuple[int, str] | None = None
    """The device that nvprof names before the table."""
    row_kind: str = "kernels"
    """What the rows of Nsight Systems are: ``kernels`` (or copies), ``calls``, ``ranges``, or
    ``host`` events of MPI, OpenMP and OpenACC."""
    on_cpu: bool = False
    """Whether the times are the host's."""
    rows: list[Cells] = msgspec.field(default_factory=list)
    cuts: int = 0
    """Marks of lines that were left out."""
    malformed: int = 0
    """Lines that begin as a row does, and are cut."""
    total: Quantity | None = None
    """The sum in nanoseconds that torch prints below the table."""
    cpu_total: Quantity | None = None
    """The sum of the CPU times that torch prints below the table."""
    device_total: Quantity | None = None
    """The sum of the device times, where ``on_cpu`` makes ``total`` that of the CPU."""
    divided_by: str | None = None
    """The column by which the table divides rows that other tables have as one, or adds up rows
    that others divide."""
    inclusive: bool = False
    """Whether all device times include those of inner operators."""
    mark: str | None = None
    """The decimal mark, None where the numbers do not show it."""
    repeated: int = 0
    """Rows that an earlier table of the same run has too."""
    run: int = 1
    """The number of the run in the text: a comparison of two programs prints a table for each."""
    annotations_ns: int = 0
    """The part of ``total`` that is not work: annotations on the device, which torch before 2.4
    adds to its kernels."""

    @property
    def has_sizes(self) -> bool:
        """Whether the table has sizes of copies instead of times."""
        return any(column.figure == "bytes" for column in self.columns)


_TITLES: Final = titles("summary")
_TIMES: Final = ("total", "mean", "median", "min", "max", "deviation")
_DEVICE_TITLE: Final = re.compile(r"(self )?(cuda|xpu|hpu|mtia|privateuse1|gpu)( .*)?")
_UNIT: Final = re.compile(r"(.*?) ?\((\w+)\)")
_UNITS_LINE: Final = re.compile(r"(?:[a-zA-Z/%]*[,;])+[a-zA-Z/%]*")
_UNIT_WORDS: Final = r"%?(?: *\b(?:ns|us|ms|s)\b)+"
"""The units below the titles of ``nvprof --normalized-time-unit``: of the share, and of times."""
_RULER: Final = re.compile(r"[-=+|: \t]+")
_SECTION: Final = re.compile(
    r"(?:==\d+== |={8} )?(?:Profiling result|API calls|NVTX result|CPU profiling result"
    r"|Unified Memory profiling result|(?:Metric|Event) result|Dependency Analysis"
    r"|Open(?:ACC|MP)(?= \((?:ex|in)cl\)))(?: \([\w ]+\))?:?"
    r"|(?:Generating )?[A-Z][\w /&()-]{0,60}Statistics(?: \([\w ]+\))?(?::|\.\.\.)?"
    r"|\[\d+/\d+\] Executing .* stats report.*|Processing \[.*\].*"
    r"|[*]* ?[A-Z][\w /&()-]{0,60} \([\w:]+\):"
    r'|\w+_SUMMARY\w*:|ROCPROFV3 (?:.+ )?SUMMARY:|(?:==\d+== |={8} )?Device "[^"]*\(\d+\)"'
)
"""Whole lines: the program prints others that begin so, between the rows of a table."""
_DOMAIN_SECTION: Final = re.compile(r"ROCPROFV3 .+ SUMMARY:")
"""The section of one domain or group of rocprofv3, before that of all."""
_PROCESS: Final = re.compile(r"==(\d{1,18})== ")
_DEVICE: Final = re.compile(r'(?:==\d+== |={8} )?(?:Device )?"?([^"]*?) \((\d+)\)"?')
_GROUPED_NUMBER: Final = re.compile(r"-?\d{1,3}(?: \d{3})+(?:[.,]\d+)?")
"""A number with spaces between groups of digits, in columns two spaces apart."""
_CUT_MARK: Final = re.compile(r"[^\w\"]*(?:\.\.\.|\u2026)[^\w\"]*(?:<? ?snip.*)?|<? ?snip ?>?")
_TYPE: Final = re.compile(r"([A-Za-z][\w ()]*?):\s+(?=[\d.]+(?:%|\s+[\d.]))")
_TOTAL: Final = re.compile(r"(?:Self )?([A-Z]\w{1,30}) time total: +(\S+)")
_SELF_DEVICE: Final = re.compile(r"\bSelf (?!CPU\b)([A-Z]\w{1,30})\b")
"""The name that torch prints for its device: ``CUDA``, or that of a backend, ``NPU``."""
_OTHER_HEADER: Final = re.compile(
    r'"?(?:Time\(%\)"?[\s,]+"?Time"?[\s,]+"?Name|Invocations|Start"?[\s,]+"?Duration|'
    r'Count\s+Avg Size|Device","(?:Count|Kernel))'
)
"""Headers of other tables of nvprof: samples of the CPU, counters, timelines, unified memory."""
_COUNTER: Final = re.compile(
    r'(?:"[^"]*\(\d+\)",)?\d*,?\s*.*(?:[Ff]ault|To (?:Host|Device)|thrash|Memory: )'
)
_WITH_UNITS: Final = r"(?:\D*\((?:[num\u00b5\u03bc]?s(?:ec)?|[KMG]i?B)\)){2}\D*"
"""The header of another report of Nsight Systems, which ends a table: units and no digit."""
_SEPARATORS: Final = ((",", 3), (";", 3), ("|", 2), ("\t", 3))
"""Separators, and how many a header has at least."""
_UNITS: Final = {"": 1, **TIME, **SIZE}
_MEMORY: Final = re.compile(r"-?[\d.]+ [KMGT]?[Bb]")
"""Memory as torch prints it, its unit apart: ``24.59 Gb``."""
_SHARE: Final = re.compile(r"\d{1,3}\.\d\d%")
_MEMORY_UNIT: Final = re.compile(r"[KMGT]?[Bb]")
_PRINT_BRACKETS: Final = (Profiler.NVPROF, Profiler.NSYS)
_LONGEST_NUMBER: Final = 10
"""Digits from which on a number is not that of a device."""
_FEWEST_ALIKE: Final = 2
"""Names that two tables without sums have in common, with equal rows, if they are of one run."""
_MOST_TITLES: Final = 64
_LONGEST_TITLE: Final = 5
"""Words of the longest title."""
_LONGEST_MARK: Final = 300
"""Bytes of the longest line that is a mark or a section."""
_LONGEST_LINE: Final = 1 << 17
_LINES_OF_SECTION: Final = 50
"""Lines before the first header that may name its section and process."""


def read_tables(content: bytes) -> tuple[list[SummaryTable], int]:
    """Return the summaries in ``content``, and the number of rows of memory counters."""
    lines = printed_lines(content)["line"]
    headers = lines.str.contains(
        rf"^(?:{SUMMARY_TITLES}|(?:Self )?[A-Z]\w+ time total: )"
    ).arg_true()
    begin = max(0, headers[0] - _LINES_OF_SECTION) if len(headers) else len(lines)
    reader = _LineReader()
    for line in lines[begin:].str.strip_chars("` \t"):
        if 0 < len(line) < _LONGEST_LINE:
            reader.take(line)
    tables = reader.tables
    # Nsight Systems prints in the user's locale.
    nsys_tables = [table for table in tables if table.profiler is Profiler.NSYS]
    texts = ("name", "type", "device")
    numbers = [
        [cell for cells in table.rows for figure, cell in cells.items() if figure not in texts]
        for table in nsys_tables
    ]
    common_mark = decimal_mark(pl.Series(chain(*numbers), dtype=pl.String))
    for table, printed in zip(nsys_tables, numbers, strict=True):
        table.mark = decimal_mark(pl.Series(printed, dtype=pl.String)) or common_mark
    torch_tables = [table for table in tables if table.profiler is Profiler.TORCH]
    for table in torch_tables:
        # Old versions print the columns of the device wherever it was to be profiled, all 0, and
        # the oldest only times that include inner operators: these are tables of the CPU.
        figures = {column.figure for column in table.columns}
        if not table.on_cpu and "self_cpu" in figures:
            table.inclusive = "total" not in figures
            no_device_time = table.total is not None and not table.total.value
            table.on_cpu = table.inclusive or no_device_time
        if not table.on_cpu:
            continue
        # The sum below a table of the CPU shows which rows it lacks.
        table.device_total, table.total = table.total, table.cpu_total
        for cells in table.rows:
            cells.pop("share", None)
            cells["total"] = cells.get("self_cpu", cells.get("total", "-"))
    _separate_runs(torch_tables)
    return tables, reader.memory_counters


class _LineReader:
    """The tables of the lines so far, and the section, process and device of the next table."""

    def __init__(self) -> None:
        self.tables: list[SummaryTable] = []
        self.memory_counters = 0
        self._table: SummaryTable | None = None
        """The table to which rows belong."""
        self._in_other_table = False
        """Whether the last header is that of a table which is not read."""
        self._section = ""
        self._process: int | None = None
        self._device: tuple[int, str] | None = None

    def take(self, line: str) -> None:
        """Read the next line: a title, a unit, a row, a sum, or the program's own output."""
        table = self._table
        is_short = len(line) < _LONGEST_MARK
        if re.match(SUMMARY_TITLES, line):
            self._table = _empty_table(line, self._section, self._process, self._device)
            self._in_other_table = self._table is None
            if self._table is not None:
                self.tables.append(self._table)
        elif table is not None and not table.rows and _set_units(table, line):
            pass
        elif total := _TOTAL.fullmatch(line):
            self._table = None
            self._take_total(is_cpu=total[1] == "CPU", time=quantity(total[2], TIME, None))
        elif _OTHER_HEADER.match(line):
            self._table, self._in_other_table = None, True
        elif table is not None and (cells := _row(line, table)) is not None:
            table.rows.append(cells)
        elif is_short and _SECTION.fullmatch(line):
            self._take_section(line)
        elif table is None:
            self.memory_counters += bool(self._in_other_table and is_short and _COUNTER.match(line))
        elif table.profiler is Profiler.NSYS and re.fullmatch(_WITH_UNITS, line):
            self._table = None
        elif is_short and _CUT_MARK.fullmatch(line):
            table.cuts += 1
        elif _is_cut_row(line, table):
            table.malformed += 1

    def _take_total(self, *, is_cpu: bool, time: Quantity | None) -> None:
        """Set the sum of the table above; without one, add a table without rows."""
        if time is None:
            return
        last = self.tables[-1] if self.tables else None
        if (
            last is None
            or last.profiler is not Profiler.TORCH
            or (last.cpu_total if is_cpu else last.total) is not None
        ):
            columns = [SummaryColumn(name, None, is_percent=False) for name in ("name", "total")]
            last = SummaryTable(Profiler.TORCH, columns, " ", self._section)
            self.tables.append(last)
        if is_cpu:
            last.cpu_total = time
        else:
            last.total = time

    def _take_section(self, line: str) -> None:
        """Take the device that a line of nvprof names, or begin another section."""
        if 'evice "' in line and (device := device_of(line)):
            self._device = device
            return
        self._table, self._section, self._device = None, line, None
        if process := _PROCESS.match(line):
            self._process = int(process[1])


def _set_units(table: SummaryTable, line: str) -> bool:
    """Set the units of the columns from the line below the titles; False: it is another line."""
    if _UNITS_LINE.fullmatch(line):
        for column, unit in zip(table.columns, line.split(table.separator), strict=False):
            if unit not in ("", "%"):
                column.unit = column.unit or unit
        return True
    if re.fullmatch(_UNIT_WORDS, line):
        times = [column for column in table.columns if column.figure in _TIMES]
        for column, unit in zip(times, line.removeprefix("%").split(), strict=False):
            column.unit = unit
        return True
    return False


def _separate_runs(tables: list[SummaryTable]) -> None:
    """Number the runs of torch's tables, and merge the tables of each run.

    Scripts print a run in several orders, by CPU time and by device time, each up to a limit of
    rows: what the later tables repeat counts once. Tables that show no difference stay one run.
    """
    runs: list[SummaryTable] = []
    for table in tables:
        first = next((first for first in runs if _are_of_one_run(first, table)), None)
        if first is not None:
            _merge(first, table)
            table.run = first.run
        elif not runs or _differ(runs[0], table):
            runs.append(table)
            table.run = len(runs)


def _merge(first: SummaryTable, table: SummaryTable) -> None:
    """Move the rows of ``table`` to ``first``, a table of the same run in another order."""
    names = {cells["name"] for cells in first.rows}
    new_rows = [cells for cells in table.rows if cells["name"] not in names]
    table.repeated = len(table.rows) - len(new_rows)
    first.rows += new_rows
    first.cuts += table.cuts
    first.total = first.total or table.total
    table.rows, table.cuts, table.total, table.device_total = [], 0, None, None


def _printed_sums(
    first: SummaryTable, second: SummaryTable
) -> list[tuple[Quantity | None, Quantity | None]]:
    """Return the sums of the CPU and of the device that both tables have."""
    sums = [(first.cpu_total, second.cpu_total)]
    if first.on_cpu:
        sums.append((first.device_total, second.device_total))
    else:
        sums.append((first.total, second.total))
    return [pair for pair in sums if all(total and total.value for total in pair)]


def _common_names(first: SummaryTable, second: SummaryTable) -> set[str]:
    return {cells["name"] for cells in first.rows} & {cells["name"] for cells in second.rows}


def _are_of_one_run(first: SummaryTable, second: SummaryTable) -> bool:
    """Return whether two tables of torch have equal sums, or without sums equal rows."""
    if first.on_cpu != second.on_cpu or not first.rows or not second.rows:
        return False
    if printed := _printed_sums(first, second):
        return all(first_total == second_total for first_total, second_total in printed)
    common = _common_names(first, second)

    def common_rows(table: SummaryTable) -> list[list[tuple[str, str]]]:
        return sorted(sorted(cells.items()) for cells in table.rows if cells["name"] in common)

    return len(common) >= _FEWEST_ALIKE and common_rows(first) == common_rows(second)


def _differ(first: SummaryTable, second: SummaryTable) -> bool:
    """Return whether two tables that are not of one run show a difference.

    Pieces of one table have neither sums nor names in common, and sums alone have no rows.
    """
    if not first.rows or not second.rows:
        return bool(first.rows)
    return bool(_printed_sums(first, second) or _common_names(first, second))


def device_of(text: str) -> tuple[int, str] | None:
    """Return number and name of the device in ``text``: ``Tesla K80 (0)``."""
    match = _DEVICE.fullmatch(text)
    if match is None or len(match[2]) >= _LONGEST_NUMBER:
        return None
    return int(match[2]), match[1]


def _empty_table(
    header: str, section: str, process: int | None, device: tuple[int, str] | None
) -> SummaryTable | None:
    """Return the table whose titles are in ``header``, None without a column of names or times."""
    if header.startswith("Name") and (backend := _SELF_DEVICE.search(header)):
        header = re.sub(rf"\b{backend[1]}\b", "CUDA", header)
    separator = next((mark for mark, least in _SEPARATORS if header.count(mark) >= least), " ")
    titles = _split(header, separator)
    if separator == " ":
        single_spaced = (title for text in titles for title in _single_spaced_titles(text))
        titles = list(islice(single_spaced, _MOST_TITLES + 1))
    if not 2 <= len(titles) <= _MOST_TITLES:
        return None
    lower = [title.lower() for title in titles]
    profiler = _profiler(lower)
    on_cpu = profiler is Profiler.TORCH and not any(map(_DEVICE_TITLE.fullmatch, lower))
    columns: list[SummaryColumn] = []
    for title in titles:
        figure, unit = _figure(title)
        # Of several columns with one figure, the first is read.
        if any(column.figure == figure for column in columns):
            figure = ""
        described = _TITLES.get(title.lower())
        # Padded cells have no quotes: three numbers in one column are three words.
        words = 3 if separator == " " and described and described.unit == "axes" else 1
        may_be_empty = title.lower() == "source location"
        columns += [
            SummaryColumn(figure, unit, title.endswith("%"), may_be_empty) for _ in range(words)
        ]
    figures = [column.figure for column in columns]
    if profiler is Profiler.NSYS and lower[0].split(" (")[0] == "total":
        columns[0].figure = figures[0] = "bytes"
    if on_cpu and "self_cpu" in figures:
        self_cpu = figures.index("self_cpu")
        columns[self_cpu].figure = figures[self_cpu] = "total"
    has_figures = "total" in figures or "bytes" in figures or profiler is Profiler.TORCH
    if "name" not in figures or not has_figures:
        return None
    row_kind = "kernels"
    if profiler is Profiler.NSYS and "bytes" not in figures:
        without_units = {title.split(" (")[0] for title in lower}
        if {"calls", "num calls"} & without_units:
            row_kind = "calls"
        # MPI events have a source; kernels have instances, and copies an operation.
        elif "source" in without_units or {"count", "name"} <= without_units:
            row_kind = "host"
        elif "range" in without_units:
            row_kind = "ranges"
    dividing = ["hostname", "gridxyz", *(["category"] if profiler is Profiler.NSYS else [])]
    divided_by = next((title for title in dividing if title in lower), None)
    if _DOMAIN_SECTION.match(section):
        divided_by = "domain"
    return SummaryTable(
        profiler,
        columns,
        separator,
        section,
        process,
        device,
        row_kind=row_kind,
        on_cpu=on_cpu,
        divided_by=divided_by,
    )


def _profiler(titles: list[str]) -> Profiler:
    """Return the profiler that prints a table with ``titles``, in lower case."""
    if any(_DEVICE_TITLE.fullmatch(title) or "cpu" in title for title in titles):
        return Profiler.TORCH
    if "total count" in titles:
        return Profiler.MXNET
    if any(title.startswith(("totalduration", "duration", "sum")) for title in titles):
        return Profiler.ROCPROF
    if any(title.startswith("total") for title in titles):
        return Profiler.NSYS
    return Profiler.NVPROF


def _figure(title: str) -> tuple[str, str | None]:
    """Return the figure below ``title``, empty for others, and the unit in the title."""
    text = " ".join(title.lower().split())
    if (described := _TITLES.get(text)) and described.column:
        return described.column, "ns" if described.unit == "ns" else None
    if match := _DEVICE_TITLE.fullmatch(text):
        figures = {"self ": "total", "self %": "share", "self time total": "total"}
        return figures.get((match[1] or "") + (match[3] or "").strip(), ""), None
    if match := _UNIT.fullmatch(title):
        return _figure(match[1])[0], match[2]
    return "", None


def _single_spaced_titles(text: str) -> Iterator[str]:
    """Yield the titles in ``text``; single spaces separate those that are known."""
    words = text.split(" ")
    begin = 0
    while begin < len(words):
        # The longest known title that begins here, else one word.
        for end in range(min(len(words), begin + _LONGEST_TITLE), begin, -1):
            title = " ".join(words[begin:end])
            lower = title.lower()
            of_device = _DEVICE_TITLE.fullmatch(lower) and end - begin < 5 and "# of" not in lower
            with_unit = _UNIT.fullmatch(lower)
            is_known = lower in _TITLES or (with_unit and with_unit[1] in _TITLES)
            if end == begin + 1 or of_device or is_known:
                yield title
                begin = end
                break


def _split(line: str, separator: str) -> list[str]:
    if separator == " ":
        return re.split(r"\s{2,}|\t", line.strip())
    if separator == ",":
        return split_csv(line)
    if separator == "|":
        return [cell.strip("* `") for cell in line.strip().strip("|").split("|")]
    return [cell.strip().strip('"') for cell in line.split(separator)]


def _row(line: str, table: SummaryTable) -> Cells | None:
    """Return the cells of ``line`` by figure, None where it is not a row of ``table``."""
    if _RULER.fullmatch(line):
        return None
    for division in _divisions(line, table):
        cells = {
            column.figure: cell.strip()
            for column, cell in zip(table.columns, division, strict=True)
            if column.figure and cell.strip()
        }
        if _is_valid(cells, table):
            return cells
    return None


def _divisions(line: str, table: SummaryTable) -> Iterator[list[str]]:
    """Yield the ways to divide ``line`` into as many cells as ``table`` has columns."""
    figures = [column.figure for column in table.columns]
    width, name_at = len(figures), figures.index("name")
    begins_with_type = figures[0] == "type"
    if table.separator != " ":
        cells = _split(line, table.separator)
        # The first cell, if it is empty, went with the spaces before the line.
        if table.separator in "|\t" and begins_with_type and len(cells) == width - 1:
            cells = ["", *cells]
        if len(cells) >= width and (whole := joined(cells, width, name_at)):
            yield whole
        return
    type_cell = []
    if begins_with_type:
        match = _TYPE.match(line)
        type_cell, width, name_at = [match[1] if match else ""], width - 1, name_at - 1
        line = line[match.end() :] if match else line
    padded = re.split(r"\s{2,}|\t", line)
    by_padding = joined(padded, width, name_at, "  ")
    if name_at == width - 1:
        by_words = re.split(r"[ \t]+", line.strip(), maxsplit=name_at)
        # Single spaces separate cells, but for those that separate groups of digits.
        spaced = [cell for cell in padded[:name_at] if " " in cell]
        divisions = [by_words, by_padding]
        if spaced and all(map(_GROUPED_NUMBER.fullmatch, spaced)):
            divisions.reverse()
    else:
        by_words = line.rsplit(None, width - 1)
        divisions = [by_padding, [] if any(map(_MEMORY_UNIT.fullmatch, by_words)) else by_words]
        if not by_padding and len(padded) > 1 and name_at == 0:
            yield _right_aligned(padded, table)
        filled = [column for column in table.columns if not column.may_be_empty]
        if len(filled) < width and (by_filled := joined(padded, len(filled), name_at, "  ")):
            texts = iter(by_filled)
            divisions.insert(
                1, ["" if column.may_be_empty else next(texts) for column in table.columns]
            )
    yield from ([*type_cell, *cells] for cells in divisions if cells and len(cells) == width)


def _right_aligned(cells: list[str], table: SummaryTable) -> list[str]:
    """Return the cells of a row whose first figures are empty, empty ones for another line.

    The figures stand in the last columns. A row that is cut has other figures there.
    """
    name, *figures = cells
    first = len(table.columns) - len(figures)
    for cell, column in zip(figures, table.columns[first:], strict=True):
        if column.figure == "calls":
            fits = count(cell) is not None
        elif column.is_percent:
            fits = cell.endswith("%")
        elif column.figure:
            fits = quantity(cell, TIME, None) is not None
        else:
            fits = not cell.isdecimal() and not cell.endswith("%")
        if not fits:
            return [""] * len(table.columns)
    return [name, *[""] * (first - 1), *figures]


def _is_valid(cells: Cells, table: SummaryTable) -> bool:
    """Return whether a row has a name, and numbers where they must be."""
    name = cells.get("name", "")
    # The names of copies and memsets are in brackets.
    if not name or (table.profiler in _PRINT_BRACKETS and name[0] == "[" and "]" not in name):
        return False
    for figure in ("share", "calls", "total", "bytes", "self_cpu"):
        text = cells.get(figure)
        # Shares of no time at all are NaN.
        if text is None or text in ("-", "NaN", "nan"):
            continue
        if figure == "share":
            is_number = percent(text) is not None
        elif figure == "calls":
            is_number = count(text) is not None
        else:
            is_number = quantity(text, _UNITS, "") is not None
        if not is_number:
            return False
    if table.profiler is Profiler.TORCH:
        return bool({"total", "self_cpu", "cpu"} & cells.keys())
    return bool({"total", "bytes"} & cells.keys()) and "calls" in cells


def _is_cut_row(line: str, table: SummaryTable) -> bool:
    """Return whether ``line`` begins with the figures of a row and ends before the last."""
    first_figure = table.columns[0].figure
    if first_figure == "name":
        _, *cells = _split(line, table.separator)
        if not 0 < len(cells) < len(table.columns) - 1:
            return False
        # The last cell may be cut within its number.
        if table.profiler is Profiler.TORCH:
            figures = [
                percent(cell) or quantity(cell, TIME, None) or _MEMORY.fullmatch(cell)
                for cell in cells[:-1]
            ]
            return (len(figures) > 1 and None not in figures) or bool(_SHARE.fullmatch(cells[0]))
        calls, *others = cells
        times = [quantity(cell, TIME, "ns") for cell in others[:-1]]
        return calls.isdecimal() and bool(others) and None not in times
    if first_figure not in ("share", "type"):
        return False
    if table.separator == " ":
        match = _TYPE.match(line)
        words = line[match.end() if match else 0 :].split(None, 4)
    else:
        words = [cell.strip() for cell in _split(line, table.separator)]
        words = words[1:] if first_figure == "type" else words
    if len(words) < 2:
        return False
    share, time, *others = words
    if table.profiler is Profiler.NVPROF and table.separator == " ":
        unit = None if others else "ns"
        return share.endswith("%") and quantity(time, TIME, unit) is not None
    return (
        len(words) > 3
        and percent(share) is not None
        and quantity(time, TIME, "ns") is not None
        and count(others[0]) is not None
    )

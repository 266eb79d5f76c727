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


class SummaryTable(msgspec.Struct):
    """One table.

    ``titles`` are the figures of its columns, empty text for others; ``units`` the units of those
    whose cells have none; ``percents`` whether each column is of percentages. ``section`` is the
    last title of a section before it, ``process`` the process that nvprof names there, ``device``
    the device, if not in a column. ``of`` is what the rows of Nsight Systems are: ``kernels`` (or
    copies), ``calls`` of the host, ``ranges``, ``host`` events of MPI, OpenMP and OpenACC. The
    times of a table ``on_cpu`` are the host's. ``cuts`` counts marks of left out lines,
    ``malformed`` lines that begin as a row does and are none; ``total`` and ``cpu_total`` are the
    sums that torch prints below, in nanoseconds; of a table ``on_cpu``, ``total`` is that of the
    CPU, and ``device_total`` the other. ``divided_by`` is the column by which the table divides
    what others have in one row, or adds kinds that others have apart. ``inclusive`` is whether all
    times of the device include inner operators. ``mark`` is the decimal mark of its numbers, None
    where they do not show it. ``repeated`` counts rows that an earlier table of the same run has.
    """

    profiler: Profiler
    titles: list[str]
    units: list[str | None]
    separator: str
    section: str
    process: int | None = None
    device: tuple[int, str] | None = None
    of: str = "kernels"
    on_cpu: bool = False
    rows: list[Cells] = msgspec.field(default_factory=list)
    cuts: int = 0
    malformed: int = 0
    total: Quantity | None = None
    cpu_total: Quantity | None = None
    device_total: Quantity | None = None
    divided_by: str | None = None
    inclusive: bool = False
    percents: list[bool] = msgspec.field(default_factory=list)
    mark: str | None = None
    repeated: int = 0

    @property
    def sizes(self) -> bool:
        """Whether the table has sizes of copies instead of times."""
        return "bytes" in self.titles


_TITLES: Final = titles("summary")
_TIMES: Final = ("total", "mean", "median", "min", "max", "deviation")
_OF_DEVICE: Final = re.compile(r"(self )?(cuda|xpu|hpu|mtia|privateuse1|gpu)( .*)?")
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
_OF_DOMAIN: Final = re.compile(r"ROCPROFV3 .+ SUMMARY:")
"""The section of one domain or group of rocprofv3, before that of all."""
_PROCESS: Final = re.compile(r"==(\d{1,18})== ")
_DEVICE: Final = re.compile(r'(?:==\d+== |={8} )?(?:Device )?"?([^"]*?) \((\d+)\)"?')
_SPACED: Final = re.compile(r"-?\d{1,3}(?: \d{3})+(?:[.,]\d+)?")
"""A number with spaces between groups of digits, in columns two spaces apart."""
_CUT: Final = re.compile(r"[^\w\"]*(?:\.\.\.|\u2026)[^\w\"]*(?:<? ?snip.*)?|<? ?snip ?>?")
_TYPE: Final = re.compile(r"([A-Za-z][\w ()]*?):\s+(?=[\d.]+(?:%|\s+[\d.]))")
_TOTAL: Final = re.compile(r"(?:Self )?([A-Z]\w{1,30}) time total: +(\S+)")
_SELF_DEVICE: Final = re.compile(r"\bSelf (?!CPU\b)([A-Z]\w{1,30})\b")
"""The name that torch prints for its device: ``CUDA``, or that of a backend, ``NPU``."""
_ANOTHER: Final = re.compile(
    r'"?(?:Time\(%\)"?[\s,]+"?Time"?[\s,]+"?Name|Invocations|Start"?[\s,]+"?Duration|'
    r'Count\s+Avg Size|Device","(?:Count|Kernel))'
)
"""Headers of other tables of nvprof: samples of the CPU, counters, timelines, unified memory."""
_COUNTER: Final = re.compile(
    r'(?:"[^"]*\(\d+\)",)?\d*,?\s*.*(?:[Ff]ault|To (?:Host|Device)|thrash|Memory: )'
)
_WITH_UNITS: Final = r"(?:\D*\((?:[num\u00b5\u03bc]?s(?:ec)?|[KMG]i?B)\)){2}\D*"
"""The header of another report of Nsight Systems, which ends a table: units and no digit."""
_FORMS: Final = ((",", 3), (";", 3), ("|", 2), ("\t", 3))
"""Separators, and how many a header has at least."""
_UNITS: Final = {"": 1, **TIME, **SIZE}
_MEMORY: Final = re.compile(r"-?[\d.]+ [KMGT]?[Bb]")
"""Memory as torch prints it, its unit apart: ``24.59 Gb``."""
_SHARE: Final = re.compile(r"\d{1,3}\.\d\d%")
_MEMORY_UNIT: Final = re.compile(r"[KMGT]?[Bb]")
_BRACKETS: Final = (Profiler.NVPROF, Profiler.NSYS)
_LONGEST_NUMBER: Final = 10
"""Digits from which on a number is not that of a device."""
_FEWEST_ALIKE: Final = 2
"""Names that two tables without sums have in common, with equal rows, if they are of one run."""
_MOST_TITLES: Final = 64
_LONGEST_TITLE: Final = 5
"""Words of the longest title."""
_SHORT: Final = 300
"""Bytes of the longest line that is a mark or a section."""
_LONGEST_LINE: Final = 1 << 17
_LINES_OF_SECTION: Final = 50
"""Lines before the first header that may name its section and process."""


def read_tables(content: bytes) -> tuple[list[SummaryTable], int]:
    """Return the tables of summaries in ``content``, and the number of rows that are counters of
    memory."""
    found: list[SummaryTable] = []
    table: SummaryTable | None = None
    section, process, device = "", None, None
    other = False
    counters = 0
    lines = printed_lines(content)["line"]
    headers = lines.str.contains(
        rf"^(?:{SUMMARY_TITLES}|(?:Self )?[A-Z]\w+ time total: )"
    ).arg_true()
    begin = max(0, headers[0] - _LINES_OF_SECTION) if len(headers) else len(lines)
    for line in lines[begin:].str.strip_chars("` \t"):
        if not 0 < len(line) < _LONGEST_LINE:
            continue
        if re.match(SUMMARY_TITLES, line):
            table = _header(line, section, process, device)
            other = table is None
            if table is not None:
                found.append(table)
            continue
        if table is not None and not table.rows and _UNITS_LINE.fullmatch(line):
            given = line.split(table.separator)[: len(table.titles)]
            for at, unit in enumerate(given):
                if unit not in ("", "%"):
                    table.units[at] = table.units[at] or unit
        elif table is not None and not table.rows and re.fullmatch(_UNIT_WORDS, line):
            of_times = [at for at, title in enumerate(table.titles) if title in _TIMES]
            for at, unit in zip(of_times, line.removeprefix("%").split(), strict=False):
                table.units[at] = unit
        elif total := _TOTAL.fullmatch(line):
            table = None
            if (time := quantity(total[2], TIME, None)) is None:
                continue
            # A sum without a table above it is a table without rows.
            sums = found[-1] if found and found[-1].profiler is Profiler.TORCH else None
            if sums is None or (sums.cpu_total if total[1] == "CPU" else sums.total) is not None:
                sums = SummaryTable(Profiler.TORCH, ["name", "total"], [None, None], " ", section)
                found.append(sums)
            if total[1] == "CPU":
                sums.cpu_total = time
            else:
                sums.total = time
        elif _ANOTHER.match(line):
            table, other = None, True
        elif table is not None and (cells := _row(line, table)) is not None:
            table.rows.append(cells)
        elif len(line) < _SHORT and _SECTION.fullmatch(line):
            if 'evice "' in line and (found_device := device_of(line)):
                device = found_device
            else:
                table, section, device = None, line, None
                if match := _PROCESS.match(line):
                    process = int(match[1])
        elif (
            table is not None
            and table.profiler is Profiler.NSYS
            and re.fullmatch(_WITH_UNITS, line)
        ):
            table = None
        elif table is not None and len(line) < _SHORT and _CUT.fullmatch(line):
            table.cuts += 1
        elif table is not None and _begins_as_row(line, table):
            table.malformed += 1
        elif other and table is None and len(line) < _SHORT and _COUNTER.match(line):
            counters += 1
    _set_marks(found)
    for one in found:
        _without_device(one)
    _join_orders([one for one in found if one.profiler is Profiler.TORCH])
    return found, counters


def _without_device(table: SummaryTable) -> None:
    """Make a table of torch without own times of the device one of the CPU.

    Old versions print the columns of the device wherever it was to be profiled, all 0, and the
    oldest only times that include inner operators. What is missing of a table of the CPU is known
    from the sum that stands below it.
    """
    if table.profiler is not Profiler.TORCH:
        return
    if not table.on_cpu and "self_cpu" in table.titles:
        table.inclusive = "total" not in table.titles
        no_work = table.total is not None and not table.total.value
        table.on_cpu = table.inclusive or no_work
    if not table.on_cpu:
        return
    table.device_total, table.total = table.total, table.cpu_total
    for cells in table.rows:
        cells.pop("share", None)
        cells["total"] = cells.get("self_cpu", cells.get("total", "-"))


def _join_orders(found: list[SummaryTable]) -> None:
    """Move rows of tables of torch to the table before, if both are of one run.

    Scripts print a run in several orders, by time of the CPU and of the device, each up to a limit
    of rows: what the later tables repeat counts once.
    """
    before: SummaryTable | None = None
    for table in found:
        if before is None or not _same_run(before, table):
            before = table
            continue
        known = {cells["name"] for cells in before.rows}
        others = [cells for cells in table.rows if cells["name"] not in known]
        table.repeated = len(table.rows) - len(others)
        before.rows += others
        before.cuts += table.cuts
        before.total = before.total or table.total
        table.rows, table.cuts, table.total, table.device_total = [], 0, None, None


def _same_run(one: SummaryTable, other: SummaryTable) -> bool:
    """Return whether two tables of torch have the sums of one run, or without them its rows."""
    if one.on_cpu != other.on_cpu or not one.rows or not other.rows:
        return False
    device = "device_total" if one.on_cpu else "total"
    sums = [[getattr(table, name) for name in ("cpu_total", device)] for table in (one, other)]
    known = [pair for pair in zip(*sums, strict=True) if all(sum_ and sum_.value for sum_ in pair)]
    if known:
        return all(first == second for first, second in known)
    names = {cells["name"] for cells in one.rows} & {cells["name"] for cells in other.rows}
    rows = [[c for c in table.rows if c["name"] in names] for table in (one, other)]
    alike = [sorted(sorted(cells.items()) for cells in own) for own in rows]
    return len(names) >= _FEWEST_ALIKE and alike[0] == alike[1]


def _set_marks(found: list[SummaryTable]) -> None:
    """Set the decimal marks of the tables of Nsight Systems, which prints in the user's locale."""
    of_locale = [table for table in found if table.profiler is Profiler.NSYS]
    numbers = [
        [
            cell
            for cells in table.rows
            for title, cell in cells.items()
            if title not in ("name", "type", "device")
        ]
        for table in of_locale
    ]
    of_all = decimal_mark(pl.Series(chain(*numbers), dtype=pl.String))
    for table, own in zip(of_locale, numbers, strict=True):
        table.mark = decimal_mark(pl.Series(own, dtype=pl.String)) or of_all


def device_of(text: str) -> tuple[int, str] | None:
    """Return number and name of the device in ``text``: ``Tesla K80 (0)``."""
    match = _DEVICE.fullmatch(text)
    return (int(match[2]), match[1]) if match and len(match[2]) < _LONGEST_NUMBER else None


def _header(
    line: str, section: str, process: int | None, device: tuple[int, str] | None
) -> SummaryTable | None:
    """Return the empty table whose header ``line`` is, None where it has no names or times."""
    if line.startswith("Name") and (match := _SELF_DEVICE.search(line)):
        line = re.sub(rf"\b{match[1]}\b", "CUDA", line)
    separator = next((mark for mark, least in _FORMS if line.count(mark) >= least), " ")
    texts = _split(line, separator)
    if separator == " ":
        titled = (title for text in texts for title in _known(text))
        texts = list(islice(titled, _MOST_TITLES + 1))
    if not 2 <= len(texts) <= _MOST_TITLES:
        return None
    titles: list[str] = []
    units: list[str | None] = []
    percents: list[bool] = []
    names = [text.lower() for text in texts]
    for text, name in zip(texts, names, strict=True):
        figure, unit = _figure(text)
        has_axes = name in _TITLES and _TITLES[name].unit == "axes"
        words = 3 if separator == " " and has_axes else 1
        titles += ["" if figure in titles else figure] * words
        units += [unit] * words
        percents += [text.endswith("%")] * words
    profiler = _profiler(names)
    if profiler is Profiler.NSYS and names[0].split(" (")[0] == "total":
        titles[0] = "bytes"
    on_cpu = profiler is Profiler.TORCH and not any(_OF_DEVICE.fullmatch(name) for name in names)
    if on_cpu and "self_cpu" in titles:
        titles[titles.index("self_cpu")] = "total"
    if "name" not in titles or not ({"total", "bytes"} & {*titles} or profiler is Profiler.TORCH):
        return None
    bare = {name.split(" (")[0] for name in names}
    of = "kernels"
    if profiler is Profiler.NSYS and "bytes" not in titles:
        of = "ranges" if "range" in bare else of
        # MPI events have a source; kernels have instances, and copies an operation.
        of = "host" if "source" in bare or {"count", "name"} <= bare else of
        of = "calls" if {"calls", "num calls"} & bare else of
    dividing = ("hostname", "gridxyz", *(["category"] if profiler is Profiler.NSYS else []))
    divided_by = next((one for one in dividing if one in names), None)
    if _OF_DOMAIN.match(section):
        divided_by = "domain"
    return SummaryTable(
        profiler,
        titles,
        units,
        separator,
        section,
        process,
        device,
        of=of,
        on_cpu=on_cpu,
        divided_by=divided_by,
        percents=percents,
    )


def _profiler(titles: list[str]) -> Profiler:
    if any(_OF_DEVICE.fullmatch(one) or "cpu" in one for one in titles):
        return Profiler.TORCH
    if "total count" in titles:
        return Profiler.MXNET
    if any(one.startswith(("totalduration", "duration", "sum")) for one in titles):
        return Profiler.ROCPROF
    if any(one.startswith("total") for one in titles):
        return Profiler.NSYS
    return Profiler.NVPROF


def _figure(title: str) -> tuple[str, str | None]:
    """Return the figure of the column ``title``, empty for others, and the unit in the title."""
    text = " ".join(title.lower().split())
    if (known := _TITLES.get(text)) and known.column:
        return known.column, "ns" if known.unit == "ns" else None
    if match := _OF_DEVICE.fullmatch(text):
        what = (match[1] or "") + (match[3] or "").strip()
        of = {"self ": "total", "self %": "share", "self time total": "total"}
        return of.get(what, ""), None
    if match := _UNIT.fullmatch(title):
        return _figure(match[1])[0], match[2]
    return "", None


def _known(text: str) -> Iterator[str]:
    """Yield the titles in ``text``, in which single spaces may stand between known ones."""
    words = text.split(" ")
    at = 0
    while at < len(words):
        for end in range(min(len(words), at + _LONGEST_TITLE), at, -1):
            title = " ".join(words[at:end])
            lower = title.lower()
            of_device = _OF_DEVICE.fullmatch(lower) and end - at < 5 and "# of" not in lower
            match = _UNIT.fullmatch(lower)
            is_known = lower in _TITLES or of_device or (match and match[1] in _TITLES)
            if end == at + 1 or is_known:
                yield title
                at = end
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
    """Return the cells of ``line`` by figure, None where it is no row of ``table``."""
    if _RULER.fullmatch(line):
        return None
    for candidate in _candidates(line, table):
        cells = {
            title: cell.strip()
            for title, cell in zip(table.titles, candidate, strict=True)
            if title and cell.strip()
        }
        if _valid(cells, table):
            return cells
    return None


def _candidates(line: str, table: SummaryTable) -> Iterator[list[str]]:
    """Yield the ways to divide ``line`` into as many cells as ``table`` has titles."""
    width, at = len(table.titles), table.titles.index("name")
    if table.separator != " ":
        cells = _split(line, table.separator)
        # The first cell, if it is empty, went with the spaces before the line.
        if table.separator in "|\t" and table.titles[0] == "type" and len(cells) == width - 1:
            cells = ["", *cells]
        if len(cells) >= width and (whole := joined(cells, width, at)):
            yield whole
        return
    first = []
    if table.titles[0] == "type":
        match = _TYPE.match(line)
        first, width, at = [match[1] if match else ""], width - 1, at - 1
        line = line[match.end() :] if match else line
    parts = re.split(r"\s{2,}|\t", line)
    apart = joined(parts, width, at, "  ")
    if at == width - 1:
        # Single spaces separate cells, but for those that separate groups of digits.
        cells = re.split(r"[ \t]+", line.strip(), maxsplit=at)
        spaced = [cell for cell in parts[:at] if " " in cell]
        ways = [apart, cells] if spaced and all(map(_SPACED.fullmatch, spaced)) else [cells, apart]
    else:
        cells = line.rsplit(None, width - 1)
        ways = [apart, [] if any(map(_MEMORY_UNIT.fullmatch, cells)) else cells]
        if not apart and len(parts) > 1 and at == 0:
            yield _from_the_right(parts, table)
    yield from ([*first, *way] for way in ways if way and len(way) == width)


def _from_the_right(parts: list[str], table: SummaryTable) -> list[str]:
    """Return the cells of a row whose first cells are empty, empty ones where it is another.

    The others stand in the last columns: a row that is cut has other cells there.
    """
    name, *left = parts
    first = len(table.titles) - len(left)
    for cell, title, is_percent in zip(
        left, table.titles[first:], table.percents[first:], strict=True
    ):
        if title == "calls":
            fits = count(cell) is not None
        elif is_percent:
            fits = cell.endswith("%")
        elif title:
            fits = quantity(cell, TIME, None) is not None
        else:
            fits = not cell.isdecimal() and not cell.endswith("%")
        if not fits:
            return [""] * len(table.titles)
    return [name, *[""] * (first - 1), *left]


def _valid(cells: Cells, table: SummaryTable) -> bool:
    """Return whether a row has a name, and numbers where they must be."""
    name = cells.get("name", "")
    # The names of copies and memsets are in brackets.
    if not name or (table.profiler in _BRACKETS and name[0] == "[" and "]" not in name):
        return False
    for figure in ("share", "calls", "total", "bytes", "self_cpu"):
        text = cells.get(figure)
        # Shares of no time at all are NaN.
        if text is None or text in ("-", "NaN", "nan"):
            continue
        known: object = quantity(text, _UNITS, "")
        if figure == "share":
            known = percent(text)
        elif figure == "calls":
            known = count(text)
        if not known:
            return False
    if table.profiler is Profiler.TORCH:
        return bool({"total", "self_cpu", "cpu"} & cells.keys())
    return bool({"total", "bytes"} & cells.keys()) and "calls" in cells


def _begins_as_row(line: str, table: SummaryTable) -> bool:
    """Return whether ``line`` begins with the figures of a row: it is one that is cut."""
    if table.titles[0] == "name":
        _, *cells = _split(line, table.separator)
        if not 0 < len(cells) < len(table.titles) - 1:
            return False
        if table.profiler is Profiler.TORCH:
            known = [
                percent(cell) or quantity(cell, TIME, None) or _MEMORY.fullmatch(cell)
                for cell in cells[:-1]
            ]
            return (len(known) > 1 and None not in known) or bool(_SHARE.fullmatch(cells[0]))
        of_calls, *others = cells
        known = [quantity(cell, TIME, "ns") for cell in others[:-1]]
        return of_calls.isdecimal() and bool(others) and None not in known
    if table.titles[0] not in ("share", "type"):
        return False
    if table.separator == " ":
        match = _TYPE.match(line)
        words = line[match.end() if match else 0 :].split(None, 4)
    else:
        words = [cell.strip() for cell in _split(line, table.separator)]
        words = words[1:] if table.titles[0] == "type" else words
    if len(words) < 2:
        return False
    share, time, *others = words
    if table.profiler is Profiler.NVPROF and table.separator == " ":
        unit = None if others else "ns"
        return share.endswith("%") and quantity(time, TIME, unit) is not None
    of_row = (percent(share), quantity(time, TIME, "ns"), count(others[0]) if others else None)
    return len(words) > 3 and None not in of_row

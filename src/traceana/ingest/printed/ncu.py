"""Reads tables of Nsight Compute (``ncu --csv``, or printed text) into the table of counters."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceana.errors import CorruptError
from traceana.ingest.kernel_names import demangle
from traceana.ingest.printed.ncu_rows import Rows, complete_rows, end_of_table, is_whole
from traceana.ingest.printed.text import NCU_HEADER, plain_text
from traceana.ingest.printed.tables import printed_lines
from traceana.ingest.source import ByteSource, Progress
from traceana.trace import Ledger, Tables, Trace, TraceMeta
from traceana.trace.schema import COUNTERS

_NUMBERS: Final = {
    # column of `counters`: of the file
    "launch": "ID",
    "process": "Process ID",
    "device": "Device",
    "context": "Context",
    "stream": "Stream",
}

_SIZES: Final = {"grid": "Grid Size", "block": "Block Size"}
_THREE: Final = r"\(\s*(\d+),\s*(\d+),\s*(\d+)\s*\)"
_MOST_UNREAD: Final = 50
_MESSAGE: Final = re.compile(rb"^==(WARNING|ERROR)== *(\S.*?) *$", re.MULTILINE)
_MOST_MESSAGES: Final = 10
_LONGEST_MESSAGE: Final = 300
_INCOMPLETE: Final = "rows without all cells, or with zero bytes"
_BROKEN_HEADER: Final = "zero bytes in the header"
_NOT_UTF8: Final = "rows with text that is not UTF-8"
_SEPARATOR: Final = b'","'
_ROW: Final = re.compile(rb'"\d+","')
_LAST_SPACES: Final = re.compile(rb'" +$', re.MULTILINE)
_NEXT_HEADER: Final = b'\n"ID",'
_ID: Final = "ID"
_NAME: Final = "Kernel Name"
_METRIC: Final = ("Metric Name", "Metric Unit", "Metric Value")
_NVTX: Final = ":PL_Type:"
"""In the titles of the columns that ``--nvtx`` adds."""
_FACTS: Final = frozenset(
    (
        "ID",
        "Process ID",
        "Process Name",
        "Host Name",
        "Kernel Name",
        "Kernel Time",
        "Context",
        "Stream",
        "Block Size",
        "Grid Size",
        "Device",
        "CC",
        "Section Name",
    )
)


def read(path: Path, progress: Progress) -> Trace:
    """Return the Trace of the output of ``ncu --csv``, page ``raw`` or ``details``, or of its text.

    It holds counters only: Nsight Compute replays each kernel several times, serialized, without
    timestamps. ``meta.events`` counts launches. Values have the printed digits;
    ``--print-units base`` prints all of them. Raises ``CorruptError`` and ``NotFoundError``.
    """
    source = ByteSource(path, progress)
    content = plain_text(b"".join(source.blocks()))
    if b" \n" in content:
        content = _LAST_SPACES.sub(b'"', content)
    ledger = Ledger()
    if NCU_HEADER.search(content):
        parts = [_counters(*table_rows(path, part), ledger) for part in _tables(content)]
    else:
        cells = printed_cells(content)
        if cells.is_empty():
            raise _without_table(path, ValueError("no metrics"))
        parts = [_counters(Rows(b"", 0, False, 0), cells, ledger)]
    if len(parts) > 1:
        ledger.add("several_reports", len(parts), table="counters", kept=True)
    whole = pl.concat([part.table for part in parts], how="diagonal")
    ledger.add("damaged", int(source.damaged), table="-", kept=True)
    truncated = source.truncated or any(part.truncated for part in parts)
    ledger.add("truncated", int(truncated), table="counters", kept=True)
    unread = list(dict.fromkeys(name for part in parts for name in part.unread))
    messages = list(dict.fromkeys(_MESSAGE.findall(content)))[:_MOST_MESSAGES]
    found = {
        "metrics_not_read": unread[:_MOST_UNREAD],
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
        events=sum(part.events for part in parts),
        properties={name: values for name, values in found.items() if values},
    )
    measured = whole.select(pl.col("name").unique(maintain_order=True))
    return Trace(meta, Tables({"counters": whole, "names": measured, "ledger": ledger.frame()}))


class _Part(msgspec.Struct, frozen=True):
    """What one table of a file has: ``unread`` are metrics without a column."""

    table: pl.DataFrame
    events: int
    unread: list[str]
    truncated: bool


def _tables(content: bytes) -> list[bytes]:
    """Return the tables in ``content``, the first with what precedes it.

    A log of several runs has the table of each, with titles and units of its own.
    """
    starts = [0]
    first = NCU_HEADER.search(content)
    at = content.find(_NEXT_HEADER, first.end() if first else 0)
    while at >= 0:
        if NCU_HEADER.match(content, at + 1):
            starts.append(at + 1)
        at = content.find(_NEXT_HEADER, at + 1)
    if len(starts) == 1:
        return [content]
    return [content[start:end] for start, end in pairwise((*starts, len(content)))]


def _counters(rows: Rows, cells: pl.DataFrame, ledger: Ledger) -> _Part:
    """Return the counters of one table, of ``rows`` with ``cells``."""
    launches, found, unread = by_launch(
        cells, ledger, complete=not (rows.malformed or rows.truncated)
    )
    values = launches.with_columns(combined(found))
    numbers = [
        pl.col(source).cast(COUNTERS[column], strict=False).alias(column)
        for column, source in _NUMBERS.items()
        if source in launches.columns
    ]
    names = launches[_NAME]
    plain = demangle(names.drop_nulls().unique())
    table = values.select(
        *numbers,
        names.replace(plain.names).alias("name"),
        *(size for what in _SIZES for size in _three(what, launches.columns)),
        *(column for column in COUNTERS if column in values.columns),
    )
    plain.count_failures(ledger)
    for column, title in (*_NUMBERS.items(), *((f"{what}_x", _SIZES[what]) for what in _SIZES)):
        if title in launches.columns and column != "launch":
            count_unread(launches[title], table[column], title, ledger)
    whole = table.filter(pl.col("launch").is_not_null() & pl.col("name").is_not_null())
    ledger.add("malformed", table.height - whole.height, table="counters")
    # On the page `details`, a row is a metric of a launch.
    lost_launches = 0 if _METRIC[2] in cells.columns else rows.malformed
    kept = lost_launches == 0
    ledger.add("malformed", rows.malformed, table="counters", kept=kept, detail=_INCOMPLETE)
    ledger.add("damaged", rows.not_utf8, table="counters", kept=True, detail=_NOT_UTF8)
    broken_header = int(b"\0" in rows.table[: rows.table.find(b"\n")])
    ledger.add("damaged", broken_header, table="counters", kept=True, detail=_BROKEN_HEADER)
    return _Part(whole, table.height + lost_launches, unread, rows.truncated)


def _three(what: str, present: list[str]) -> list[pl.Expr]:
    if _SIZES[what] not in present:
        return []
    return [
        pl.col(_SIZES[what])
        .str.extract(_THREE, group)
        .cast(pl.Int32, strict=False)
        .alias(f"{what}_{axis}")
        for group, axis in enumerate("xyz", 1)
    ]


def table_rows(path: Path, content: bytes) -> tuple[Rows, pl.DataFrame]:
    """Return the rows of the table in ``content`` and their cells as text.

    Lines before and after the table are left out. Rows before the header are malformed. Raises
    ``CorruptError`` without a table.
    """
    start = NCU_HEADER.search(content)
    begin = start.start() if start else len(content)
    # With the end of its last line, which a truncated table lacks.
    table = content[begin : end_of_table(content) + 1]
    lost = _rows_before(content[:begin], table)
    try:
        cells = _cells(table)
        if is_whole(table, cells):
            return Rows(table, malformed=lost, truncated=False, not_utf8=0), cells
    except pl.exceptions.PolarsError:
        pass
    try:
        rows = complete_rows(table)
        cells = _cells(rows.table)
    except (csv.Error, StopIteration, pl.exceptions.PolarsError) as error:
        raise _without_table(path, error) from error
    return msgspec.structs.replace(rows, malformed=rows.malformed + lost), cells


def _rows_before(content: bytes, table: bytes) -> int:
    """Return how many rows of a launch are in ``content``, which comes before ``table``.

    The program may print other tables there.
    """
    cells = table[: table.find(b"\n")].count(_SEPARATOR)
    lines = (line for line in content.splitlines() if _ROW.match(line))
    return sum(line.count(_SEPARATOR) > cells // 2 for line in lines)


def _cells(table: bytes) -> pl.DataFrame:
    return pl.read_csv(
        io.BytesIO(table), infer_schema=False, truncate_ragged_lines=True, encoding="utf8-lossy"
    )


def _without_table(path: Path, error: Exception) -> CorruptError:
    what = (str(error) or "no header").splitlines()[0]
    return CorruptError(
        f"{path} has no readable Nsight Compute table ({what}): "
        "write it again with 'ncu --import REPORT --csv --page raw'"
    )


def by_launch(
    cells: pl.DataFrame, ledger: Ledger, *, complete: bool
) -> tuple[pl.DataFrame, dict[str, list[str]], list[str]]:
    """Return (launches, metrics of each column of ``counters``, metrics without a column).

    Launches have facts as text and known metrics in base units as float64. The page
    ``details`` has a row per metric, the page ``raw`` a column per metric and a first row of units.
    """
    if all(column in cells.columns for column in _METRIC):
        return _details(cells, ledger, complete=complete)
    return _raw(cells, ledger)


def _raw(
    cells: pl.DataFrame, ledger: Ledger
) -> tuple[pl.DataFrame, dict[str, list[str]], list[str]]:
    named = [c for c in cells.columns if c not in _FACTS and _NVTX not in c]
    row = cells.filter(pl.col(_ID).fill_null("") == "").head(1)
    units = {name: (row[name][0] if row.height else None) or "" for name in named}
    # Without a row of units, no value can be read.
    factors = {name: factor(units[name]) if row.height else None for name in named}
    found = known(name for name in named if factors[name] is not None)
    used = {name for names in found.values() for name in names}
    # A column without a unit may be text.
    numbers = [name for name in named if units[name] and factors[name] is not None]
    comma = any(has_decimal_comma(cells[name]) for name in numbers)
    values = [number(pl.col(name), decimal_comma=comma) * factors[name] for name in sorted(used)]
    rows = cells.filter(pl.col(_ID).fill_null("") != "")
    launches = rows.with_columns(values)
    for name in sorted(name for names in known(named).values() for name in names):
        values_read = launches[name] if name in used else pl.repeat(None, rows.height, eager=True)
        count_unread(rows[name], values_read, name, ledger)
    return launches, found, [name for name in named if name not in used]


def _details(
    cells: pl.DataFrame, ledger: Ledger, *, complete: bool
) -> tuple[pl.DataFrame, dict[str, list[str]], list[str]]:
    name, unit, value = (pl.col(column) for column in _METRIC)
    units = cells.select(unit.fill_null("").unique()).to_series().to_list()
    factors = {text: factor(text) for text in units}
    has_unit = cells.filter(unit.replace_strict(factors, default=None).is_not_null(), unit != "")
    comma = has_decimal_comma(has_unit[_METRIC[2]])
    scaled = cells.with_columns(
        number(value, decimal_comma=comma)
        * unit.fill_null("").replace_strict(factors, default=None, return_dtype=pl.Float64)
    )
    # The advice of Nsight Compute's rules has rows without a metric.
    named = cells.select(name.drop_nulls().unique(maintain_order=True)).to_series().to_list()
    found = known(named)
    used = {name for names in found.values() for name in names}
    keys = [column for column in ("Process ID", _ID) if column in cells.columns]
    facts = [pl.col(c).first() for c in cells.columns if c in _FACTS and c not in keys]
    values = [
        value.filter(name == metric).drop_nulls().first().alias(metric) for metric in sorted(used)
    ]
    launches = scaled.group_by(keys, maintain_order=True).agg(*facts, *values)
    is_used = cells[_METRIC[0]].is_in(sorted(used))
    count_unread(
        cells.filter(is_used)[_METRIC[2]], scaled.filter(is_used)[_METRIC[2]], _METRIC[2], ledger
    )
    count_advice(cells, _METRIC[0], _METRIC[2], ledger)
    rows, launch = together(scaled, keys, launches.height)
    metrics = [(rows[_METRIC[0]] == metric).fill_null(False) for metric in sorted(used)]
    repeated = [c for c in (*_NUMBERS.values(), *_SIZES.values(), _NAME) if c in cells.columns]
    facts_again = [column for column in repeated if column not in keys]
    count_contradictions(rows, launch, facts_again, _METRIC[2], metrics, ledger)
    if complete:
        count_missing(launch, metrics, ledger)
    return launches, found, [metric for metric in named if metric and metric not in used]


_LAUNCH: Final = re.compile(
    r"(.+?)(?:, \d{4}-\w{3}-\d{2} \d{2}:\d{2}:\d{2})?"
    r"(?: (\(\d+, \d+, \d+\))x(\(\d+, \d+, \d+\)))?"
    r", Context (\d+), Stream (\d+)(?:, Device (\d+))?(?:, CC [\d.]+)?"
)
_PROCESS: Final = re.compile(r"\[(\d+)\] .+@.+")
_PRINTED_METRIC: Final = re.compile(r"(\S(?:\S| (?! ))*?)(?: {2,}(\S+))? {2,}(\S+)")
_RULER: Final = re.compile(r"-{5,}(?: -{5,})*")
_TITLE: Final = "Metric Name"
_COLUMNS: Final = (
    *("ID", "Process ID", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size", "Device"),
    *("Section Name", "Metric Name", "Metric Unit", "Metric Value"),
)


def printed_cells(content: bytes) -> pl.DataFrame:
    """Return a row for each metric of each launch in ``content``, with the titles of the CSV."""
    rows: list[tuple[str | None, ...]] = []
    launch: tuple[str | None, ...] = ()
    process, section, in_table, number = None, None, False, -1
    first = 0
    lines = printed_lines(content)["line"].str.strip_chars(" \t")
    for line in lines.filter(lines != ""):
        if match := _PROCESS.fullmatch(line):
            process = match[1]
        elif match := _LAUNCH.fullmatch(line):
            number += 1
            name, grid, block, context, stream, device = match.groups()
            launch = (str(number), process, name, context, stream, block, grid, device)
            section, in_table = None, False
        elif line.startswith("Section: "):
            section, in_table = line.removeprefix("Section: "), False
        elif _RULER.fullmatch(line):
            # One before the rows or the titles, and one behind the rows.
            in_table = section is not None and not (in_table and len(rows) > first)
            first = len(rows)
        elif not (in_table and launch) or line.startswith(_TITLE):
            continue
        elif match := _PRINTED_METRIC.fullmatch(line):  # other lines are the program's
            rows.append((*launch, section, match[1], match[2] or "", match[3]))
    return pl.DataFrame(rows, schema=dict.fromkeys(_COLUMNS, pl.String), orient="row")


MISSING: Final = "launches without a metric that others have"
CONTRADICTION: Final = "launches with rows that contradict each other"
JOINED: Final = "rows with a metric and advice"
_DIGIT: Final = r"\d"

Numbers = NDArray[np.int64]


def together(
    cells: pl.DataFrame, keys: Sequence[str], launches: int
) -> tuple[pl.DataFrame, Numbers]:
    """Return ``cells`` with the rows of each launch together, and the number of each row's launch.

    Rows of a launch have equal ``keys``; there are so many ``launches``. Nsight Compute prints the
    rows of a launch together.
    """
    number: Numbers = np.cumsum(_changes(cells, keys), dtype=np.int64)
    if number[-1:].tolist() <= [launches]:
        return cells, number
    cells = cells.sort(keys, maintain_order=True)
    return cells, np.cumsum(_changes(cells, keys), dtype=np.int64)


def count_contradictions(
    cells: pl.DataFrame,
    launch: Numbers,
    facts: Iterable[str],
    value: str,
    metrics: Iterable[pl.Series],
    ledger: Ledger,
) -> None:
    """Count the launches whose rows differ in a fact, or that have two values of a metric.

    ``cells`` and ``launch`` are those of :func:`together`, ``facts`` and ``value`` columns of it;
    each of ``metrics`` is whether a row is of one. Nsight Compute repeats the facts of a launch in
    each of its rows, and a metric that stands in two sections has one value.
    """
    # Every row has the facts, so an empty cell beside a full one differs; a value may be missing.
    found = [launch[1:][_changes(cells, facts)[1:] & (launch[1:] == launch[:-1])]]
    values, has_value = cells[value], cells[value].is_not_null()
    for is_metric in metrics:
        rows = is_metric & has_value
        known, of = values.filter(rows), launch[rows.to_numpy()]
        differs = known[1:].ne(known[:-1]).to_numpy()
        found.append(of[1:][differs & (of[1:] == of[:-1])])
    count = len(np.unique(np.concatenate(found)))
    ledger.add("damaged", count, table="counters", kept=True, detail=CONTRADICTION)


def _changes(cells: pl.DataFrame, columns: Iterable[str]) -> NDArray[np.bool_]:
    """Return whether each row differs from the one before it in one of ``columns``.

    Hashes of 64 bits are compared, which takes half the time of comparing texts.
    """
    changed = np.zeros(cells.height, np.bool_)
    changed[:1] = True
    for name in columns:
        hashes = cells[name].hash().to_numpy()
        changed[1:] |= hashes[1:] != hashes[:-1]
    return changed


def count_missing(launch: Numbers, metrics: Iterable[pl.Series], ledger: Ledger) -> None:
    """Count the launches without a row of one of ``metrics``: each is whether a row is of one.

    Nsight Compute has a row of each metric for every launch, ``n/a`` where it has no value.
    """
    missing = np.zeros(int(launch[-1]) if len(launch) else 0, np.bool_)
    for is_metric in metrics:
        without = np.ones(len(missing), np.bool_)
        without[launch[is_metric.to_numpy()] - 1] = False
        missing |= without
    ledger.add("damaged", int(missing.sum()), table="counters", kept=True, detail=MISSING)


def count_advice(cells: pl.DataFrame, metric: str, value: str, ledger: Ledger) -> None:
    """Count the rows with a name in the column ``metric`` and text behind the column ``value``.

    The columns behind the value hold the advice of Nsight Compute's rules, in rows without a
    metric: such a row is two halves of others.
    """
    advice = cells.columns[cells.columns.index(value) + 1 :]
    has_advice = pl.repeat(False, cells.height, dtype=pl.Boolean, eager=True)
    for name in advice:
        has_advice |= (cells[name] != "").fill_null(False)
    joined = has_advice & (cells[metric] != "")
    ledger.add("damaged", int(joined.sum()), table="counters", kept=True, detail=JOINED)


def count_unread(text: pl.Series, read: pl.Series, what: str, ledger: Ledger) -> None:
    """Count the cells of ``text`` with a digit for which ``read`` is null, as ``lost_field``."""
    lost = text.filter(read.is_null()).str.contains(_DIGIT).sum()
    ledger.add("lost_field", int(lost), table="counters", kept=True, detail=what)


_OPERATIONS: Final = {
    f"{letter}{operation}": f"fp{bits}_{operation}"
    for letter, bits in (("d", 64), ("f", 32), ("h", 16))
    for operation in ("add", "mul", "fma")
}
COLUMNS: Final = {
    # metric name, or label of the details page: column
    "gpu__time_duration.sum": "duration",
    "gpu__time_duration.avg": "duration",
    "gpu__time_duration.max": "duration",
    "Duration": "duration",
    "dram__bytes.sum": "dram_bytes",
    "dram__bytes_read.sum": "dram_read_bytes",
    "dram__bytes_write.sum": "dram_write_bytes",
    # since Blackwell
    "dram__bytes_op_read.sum": "dram_read_bytes",
    "dram__bytes_op_write.sum": "dram_write_bytes",
    "sm__inst_executed_pipe_tensor.sum": "tensor_instructions",
    "smsp__inst_executed_pipe_tensor.sum": "tensor_instructions",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": "tensor_active_percent",
    # The same counter once per multiprocessor, once per quarter of one.
    **{
        f"{unit}__sass_thread_inst_executed_op_{operation}_pred_on.sum": column
        for unit in ("sm", "smsp")
        for operation, column in _OPERATIONS.items()
    },
}
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
_OTHER_LOCALE: Final = r"^-?[0-9.]*,(?:[0-9]{1,2}|[0-9]{4,})$|^[0-9]{1,3}(?:\.[0-9]{3}){2,}(?:,|$)"
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


def known(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the metrics among ``names`` for each column of ``counters``.

    The first that is not null counts; those of ``tensor_ops`` are summed. A metric that another
    includes (``…_src_fp16_dst_fp32`` in ``…_src_fp16``) is left out, as are the counts by
    instruction (``…_op_hmma_…``) where there are counts by type, which include them.
    """
    listed = list(names)
    found: dict[str, list[str]] = {}
    for name in COLUMNS:
        if name in listed:
            found.setdefault(COLUMNS[name], []).append(name)
    tensor = {m[1]: name for name in listed if (m := _TENSOR_OPS.fullmatch(name))}
    if any(stem.startswith(_BY_TYPE) for stem in tensor):
        tensor = {stem: name for stem, name in tensor.items() if stem.startswith(_BY_TYPE)}
    parts = [
        name
        for stem, name in tensor.items()
        if not any(stem.startswith(f"{other}_") for other in tensor)
    ]
    if parts:
        found["tensor_ops"] = parts
    return found


def number(text: pl.Expr, *, decimal_comma: bool) -> pl.Expr:
    """Return the values of ``text`` as float64: ``1,234.50``, null for ``n/a`` and the like.

    With ``decimal_comma`` they are ``1.234,50``.
    """
    thousands = "." if decimal_comma else ","
    plain = text.str.replace_all(thousands, "", literal=True)
    if decimal_comma:
        plain = plain.str.replace(",", ".", literal=True)
    value = plain.cast(pl.Float64, strict=False)
    return pl.when(value.is_finite()).then(value)


def has_decimal_comma(values: pl.Series) -> bool:
    """Return whether ``values``, all of a table, were printed with a decimal comma.

    ``ncu`` prints in the machine's locale. ``1.234`` is ambiguous; percentages (``65,77``) and
    numbers above a million (``2.508.800``) are not.
    """
    return bool(values.str.contains(_OTHER_LOCALE).any())


def combined(found: dict[str, list[str]]) -> list[pl.Expr]:
    """Return the columns of ``counters`` for the result of :func:`known`."""
    columns = []
    for column, names in found.items():
        if column == "tensor_ops":
            some = pl.any_horizontal(pl.col(name).is_not_null() for name in names)
            value: pl.Expr = pl.when(some).then(pl.sum_horizontal(names))
        else:
            value = pl.coalesce(names)
        if column != "tensor_active_percent":
            value = value.round().cast(pl.Int64, strict=False)
        columns.append(value.alias(column))
    sides = ("dram_read_bytes", "dram_write_bytes")
    if "dram_bytes" not in found and all(side in found for side in sides):
        columns.append(
            pl.sum_horizontal(
                *(pl.coalesce(found[side]).round().cast(pl.Int64, strict=False) for side in sides),
                ignore_nulls=False,
            ).alias("dram_bytes")
        )
    return columns

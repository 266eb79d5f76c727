"""Reads the summaries that profilers print into the table ``summary``.

A summary has no timeline: names, calls and times. Times have the printed digits; what a table does
not print stays null.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any, Final

import polars as pl

from traceana.errors import CorruptError, NotATraceError
from traceana.readers.cupti import copy_name, set_name
from traceana.readers.integrity import LARGEST_SUM
from traceana.readers.kernel_names import NameTable, plain_names
from traceana.readers.printed.quantities import (
    SIZE,
    TIME,
    Quantity,
    count,
    percent,
    quantity,
    unit_of,
)
from traceana.readers.printed.tables import count_few_digits
from traceana.readers.printed.text import nsys_summaries, plain_text
from traceana.readers.printed.timelines import without_table
from traceana.readers.printed.titled_tables import (
    Cells,
    Profiler,
    SummaryTable,
    device_of,
    read_tables,
)
from traceana.readers.source import ByteSource, Progress
from traceana.settings import PERCENT_ROUNDING
from traceana.trace import Ledger, Tables, Trace, TraceMeta
from traceana.trace.schema import CPU_DEVICE, TABLES, CopyKind, MemoryKind

_PRODUCERS: Final = {
    Profiler.NVPROF: "NVIDIA nvprof",
    Profiler.NSYS: "NVIDIA Nsight Systems",
    Profiler.ROCPROF: "AMD rocprof",
    Profiler.TORCH: "torch.profiler",
    Profiler.MXNET: "MXNet profiler",
}
_FRAMEWORKS: Final = {Profiler.TORCH: "PyTorch", Profiler.MXNET: "MXNet"}
_TIMES: Final = ("mean", "median", "min", "max", "deviation")
_WHOLE: Final = ("min", "max")
"""Times that are whole nanoseconds where nanoseconds are printed."""
_SECTION_UNIT: Final = re.compile(r"\((?:by size in )?(nanoseconds|[KMG]i?B|bytes)\)")
_WORK: Final = ("kernel", "memcpy", "memset", "op")
_MEMORY_ROWS: Final = "memory: faults, migrations, storage in use"
_LEFT_OUT: Final = {
    # kind of row: reason in the ledger, detail
    "range": ("repeated", "annotations and ranges"),
    "domain": ("repeated", "sums of other rows"),
    "system": ("system_call", None),
    "memory": ("counter", _MEMORY_ROWS),
    "host": ("unknown_category", "MPI, OpenMP and OpenACC"),
}
_KEPT: Final = tuple(name for name in TABLES["summary"] if name not in ("name_id", "rank"))
_STEPS: Final = ("calls_step", "bytes_step")
_Row = dict[str, Any]


def read(path: Path, progress: Progress) -> Trace:
    """Return the Trace of the summaries in ``path``, a file or the folder of the reports of
    ``nsys stats``; other lines are the program's output.

    Raises ``NotATraceError`` where no table has a row, ``CorruptError`` where times have no unit,
    ``NotFoundError``.
    """
    sources = [ByteSource(file, progress) for file in nsys_summaries(path) or [path]]
    contents = [plain_text(b"".join(source.blocks())) for source in sources]
    if path.is_dir():
        # The report is in the name of its file alone.
        contents = [
            b"Processing [%s]\n%s" % (source.path.name.encode(), content)
            for source, content in zip(sources, contents, strict=True)
        ]
    content = b"\n".join(contents)
    printed, counters = read_tables(content)
    if not any(table.rows or table.total for table in printed):
        if b"nvprof" in content or b"NVPROF" in content or b"==" in content:
            raise without_table(path, content)
        raise NotATraceError(
            f"{path} has the header of a summary and no rows: paste the whole table"
        )
    events = counters + sum(len(table.rows) + table.malformed + table.repeated for table in printed)
    ledger = Ledger()
    other_runs = _count_other_runs(printed, ledger)
    printed = [table for table in printed if table.run == 1]
    rows = _rows(path, printed, ledger)
    ledger.add("counter", counters, table="-", detail=_MEMORY_ROWS)
    names = NameTable(ledger)
    frame = _summary(rows, names, ledger)
    ledger.add("damaged", sum(source.damaged for source in sources), table="-", kept=True)
    truncated = sum(source.truncated for source in sources)
    ledger.add("truncated", truncated, table="-", kept=True)
    profiler = printed[0].profiler
    is_padded = all(table.separator == " " for table in printed)
    properties: dict[str, Any] = {"printed": "text" if is_padded else "table"}
    device_totals = [table.device_total if table.on_cpu else table.total for table in printed]
    totals = [total.value for total in device_totals if total is not None and total.value]
    if any(table.inclusive for table in printed):
        properties["device_times"] = "inclusive"
    if totals:
        properties["printed_total_ns"] = sum(totals)
    if annotations_ns := sum(table.annotations_ns for table in printed):
        properties["printed_annotations_ns"] = annotations_ns
    if other_runs:
        properties["other_runs"] = other_runs
    properties |= _data_loading(printed)
    meta = TraceMeta(
        source=str(path),
        format=profiler.value,
        producer=_PRODUCERS[profiler],
        framework=_FRAMEWORKS.get(profiler),
        truncated=truncated > 0,
        bytes_read=sum(source.bytes_read for source in sources),
        bytes_total=sum(source.bytes_total for source in sources),
        events=events,
        properties=properties,
    )
    devices: dict[int, str] = {}
    for table in printed:
        in_rows = [device_of(cells.get("device", "")) for cells in table.rows]
        devices |= dict(device for device in [table.device, *in_rows] if device is not None)
    return Trace(
        meta,
        Tables(
            {
                "summary": frame,
                "names": names.frame(),
                "devices": pl.DataFrame(
                    [(number, name, "NVIDIA") for number, name in sorted(devices.items())],
                    {name: TABLES["devices"][name] for name in ("device", "name", "vendor")},
                    orient="row",
                ),
                "ledger": ledger.frame(),
            }
        ),
    )


def _count_other_runs(printed: list[SummaryTable], ledger: Ledger) -> list[str]:
    """Count the tables of all runs but the first in the ledger.

    Returns each of these runs with the time below its table. A sum over two runs would be the time
    of no program.
    """
    others = []
    for number in sorted({table.run for table in printed} - {1}):
        tables = [table for table in printed if table.run == number]
        rows = sum(len(table.rows) + table.malformed + table.repeated for table in tables)
        # A paste may have the sum without its table.
        ledger.add("other_run", rows or 1, table="summary", kept=not rows, detail=f"run {number}")
        time = ""
        if (total := tables[0].total) is not None:
            time = f": {total.value / 1e6:,.3f} ms {'CPU' if tables[0].on_cpu else 'GPU'} time"
        others.append(f"run {number}{time}")
    return others


def _data_loading(printed: list[SummaryTable]) -> dict[str, int]:
    """Return the time in PyTorch's data loader on the CPU, and the sum of all CPU times."""
    loading = [
        quantity(cells.get("self_cpu", cells.get("total", "-")), TIME, None, whole=True)
        for table in printed
        if table.profiler is Profiler.TORCH
        for cells in table.rows
        if _DATA_LOADER.match(cells["name"])
    ]
    loading_ns = sum(time.value for time in loading if time is not None)
    if loading_ns <= 0:
        return {}
    totals = [table.cpu_total.value for table in printed if table.cpu_total is not None]
    return {"data_loader_ns": loading_ns} | ({"printed_cpu_ns": sum(totals)} if totals else {})


def _rows(path: Path, printed: list[SummaryTable], ledger: Ledger) -> list[_Row]:
    """Return the rows of work and of calls; the ledger counts the others."""
    # A report of Nsight Systems may stand there again with other options: base names of the same
    # kernels.
    first_options: dict[str, str] = {}
    is_repeated = []
    for table in printed:
        report = _REPORT.search(table.section) if table.profiler is Profiler.NSYS else None
        is_repeated.append(
            report is not None and first_options.setdefault(report[1], report[2]) != report[2]
        )
    # Copies and memsets are one group: a report has both in one table.
    groups = {"memset": "memcpy"}
    kinds_of_tables = [
        [] if table.has_sizes or repeated else kinds(table)
        for table, repeated in zip(printed, is_repeated, strict=True)
    ]
    # Which tables have the rows of each profiler and group: others repeat them, for a report may
    # have kernels alone, by grid, and together with copies.
    counted: dict[tuple[Profiler, str], str | None] = {}
    for table, row_kinds in zip(printed, kinds_of_tables, strict=True):
        if table.divided_by == "category" and any(
            row.get("type", "").startswith("CUDA_API") for row in table.rows
        ):
            table.divided_by = "category, with calls"
        for kind in row_kinds:
            key = table.profiler, groups.get(kind, kind)
            counted[key] = table.divided_by and counted.get(key, table.divided_by)
    rows: list[_Row] = []
    size_tables = []
    for number, (table, row_kinds) in enumerate(zip(printed, kinds_of_tables, strict=True)):
        ledger.add("malformed", table.malformed, table="summary", detail="rows that are cut")
        ledger.add("repeated", table.repeated, table="summary", detail=_ANOTHER_ORDER)
        if table.inclusive:
            ledger.add("lost_field", len(table.rows), table="summary", kept=True, detail=_INCLUSIVE)
        if is_repeated[number]:
            ledger.add("repeated", len(table.rows), table="summary", detail=_ANOTHER_FORM)
            continue
        if table.has_sizes:
            size_tables.append((number, table))
            continue
        kept = []
        ranges_ns = 0
        for kind, cells in zip(row_kinds, table.rows, strict=True):
            if counted[table.profiler, groups.get(kind, kind)] != table.divided_by:
                ledger.add("repeated", 1, table="summary", detail="rows by device or kind")
            elif kind in _LEFT_OUT:
                reason, detail = _LEFT_OUT[kind]
                ledger.add(reason, 1, table="summary", detail=detail)
                if kind == "range" and table.on_cpu:
                    ranges_ns += _row(path, cells, kind, table, number)["total_ns"] or 0
            else:
                kept.append(_row(path, cells, kind, table, number))
        _count_once(kept, table)
        _note_cut(kept, table, ledger, ranges_ns)
        rows += kept
    # A report may have sizes before the times of its copies.
    for number, table in size_tables:
        _add_sizes(path, table, number, rows, ledger)
    lost = sum(row["lost"] for row in rows)
    ledger.add("lost_field", lost, table="summary", kept=True, detail="times below 0, or too large")
    # Reports that are added up: tables of the same device, or of several processes.
    with_work = {row["table"] for row in rows if row["kind"] in ("kernel", "op")}
    work_tables = [table for number, table in enumerate(printed) if number in with_work]
    processes = {table.process for table in work_tables if table.process is not None}
    tables_of_device = max(Counter(table.device for table in work_tables).values(), default=0)
    reports = max(tables_of_device, len(processes))
    if reports > 1:
        detail = f"of {len(processes)} processes" if len(processes) > 1 else None
        ledger.add("several_reports", reports, table="summary", kept=True, detail=detail)
    return rows


_REPORT: Final = re.compile(r"\b(\w+sum)(?:\.py)?((?::[\w=-]+)*)")
"""The name of a report of Nsight Systems and its options: ``cuda_gpu_kern_sum:base``."""
_INCLUSIVE: Final = "times of the device, which include those of inner operators"
_ANOTHER_FORM: Final = "the same report in another form"
_ANOTHER_ORDER: Final = "the same run in another order"


def _row(path: Path, cells: Cells, kind: str, table: SummaryTable, number: int) -> _Row:
    """Return the columns of one row of ``table``."""
    if kind == "call" and table.profiler is Profiler.TORCH and not table.on_cpu:
        # torch gives calls the time of the work that no operator launched, and of what follows.
        host_time = cells.get("self_cpu", "-")
        cells = {figure: cells[figure] for figure in ("name", "calls") if figure in cells}
        cells["total"] = host_time
    units = {column.figure: column.unit for column in table.columns}
    # nvprof's row of units has one for each column; the times of Nsight Systems are nanoseconds.
    default = None if table.profiler is Profiler.NVPROF else "ns"

    def time(figure: str) -> Quantity | None:
        whole = figure in ("total", *_WHOLE)
        unit = units.get(figure) or default
        printed = quantity(cells.get(figure, "-"), TIME, unit, whole=whole, mark=table.mark)
        return printed if printed is None or printed.value >= 0 else None

    total, text = time("total"), cells.get("total", "-")
    # A time that is negative, as of an operator that others outlast, or too large, has a unit.
    lost = total is None and text != "-"
    if lost and (unit_of(text) or units.get("total") or default) not in TIME:
        raise CorruptError(f"{path} has times without a unit: the line behind the header has it")
    calls = count(cells["calls"], table.mark) if "calls" in cells else None
    share = percent(cells["share"]) if "share" in cells else None
    device = device_of(cells["device"]) if "device" in cells else table.device
    name = cells["name"]
    direction = copy_of(name) if kind == "memcpy" else None
    copy_kind = direction if direction in CopyKind.categories else "unknown"
    times = {f"{figure}_ns": time(figure) for figure in _TIMES}
    return {
        "name": name,
        "kind": kind,
        "counted": kind in _WORK,
        "copy_kind": copy_kind if direction else None,
        **memories(name, kind),
        "process": table.process,
        "device": CPU_DEVICE if table.on_cpu else device and device[0],
        "calls": calls and calls.value,
        "calls_step": calls and calls.step,
        "total_ns": total and total.value,
        "precision_ns": total and total.step,
        **{column: printed and printed.value for column, printed in times.items()},
        "bytes": None,
        "bytes_step": None,
        "share_percent": share and share[0],
        "share": share,
        "lost": lost,
        "table": number,
    }


def _add_sizes(
    path: Path, table: SummaryTable, number: int, rows: list[_Row], ledger: Ledger
) -> None:
    """Add the sizes in ``table`` to the first row with the copy's name and number of calls.

    Copies whose times are in no table get a row without a time.
    """
    unit = next(column.unit for column in table.columns if column.figure == "bytes")
    if unit is None and (match := _SECTION_UNIT.search(table.section)):
        unit = match[1]
    for cells in table.rows:
        size = quantity(cells["bytes"], SIZE, unit, mark=table.mark)
        calls = count(cells["calls"], table.mark)
        name = cells["name"]
        kind = "memset" if _SET.fullmatch(name) else "memcpy" if copy_of(name) else ""
        timed = [row for row in rows if row["name"] == name and row["total_ns"] is not None]
        without_size = [row for row in timed if row["bytes"] is None]
        of_as_many = (row for row in without_size if calls and row["calls"] == calls.value)
        row = next(of_as_many, None)
        if size is None or size.value < 0:
            ledger.add("lost_field", 1, table="summary", detail="sizes without a known unit")
            continue
        if row is not None:
            detail = "copies by size: columns of their rows"
            ledger.add("repeated", 1, table="summary", detail=detail)
        elif timed or not kind:
            ledger.add("unmatched", 1, table="summary", detail="sizes of copies without times")
            continue
        else:
            without_bytes = {figure: cells[figure] for figure in ("name", "calls")}
            row = _row(path, without_bytes, kind, table, number)
            rows.append(row)
        # 0.000 MB are less than the last digit, not none.
        rounded_to_0 = size.value == 0 and size.step > 1 and calls and calls.value > 0
        row["bytes"], row["bytes_step"] = None if rounded_to_0 else size.value, size.step


def _count_once(rows: list[_Row], table: SummaryTable) -> None:
    """Set which rows of a table of torch count: its operators, or its kernels and copies.

    A kernel's time is in its own row and in that of the operator that launched it. A table without
    all rows may lack operators or kernels: those count that add up to more, kernels if the sums
    are equal.
    """
    if table.profiler is not Profiler.TORCH or table.on_cpu:
        return

    def summed(*kinds: str) -> int:
        return sum(row["total_ns"] or 0 for row in rows if row["kind"] in kinds)

    operator_ns, kernel_ns = summed("op"), summed("kernel", "memcpy", "memset")
    count_operators = operator_ns > kernel_ns
    if table.total is not None and operator_ns > table.total.value + table.total.step * len(rows):
        count_operators = False
    for row in rows:
        is_operator = row["kind"] == "op"
        # An operator without own time has launched nothing itself.
        launched_nothing = is_operator and row["total_ns"] == 0
        is_chosen = is_operator == count_operators
        row["counted"] = row["kind"] in _WORK and is_chosen and not launched_nothing


def _note_cut(rows: list[_Row], table: SummaryTable, ledger: Ledger, ranges_ns: int) -> None:
    """Count ``table`` as cut if its rows do not add up to the printed total or to 100 %.

    ``ranges_ns`` is the CPU time of ranges outside their operators, a part of the total.
    """
    counted = [row for row in rows if row["counted"]]
    printed = sum(row["total_ns"] or 0 for row in counted) + ranges_ns + table.annotations_ns
    missing_percent = 0.0
    whole = "CPU time" if table.on_cpu else "GPU time"
    if table.total is not None and table.total.value > 0:
        rounding = sum(row["precision_ns"] or 0 for row in counted) + table.total.step
        missing = table.total.value - printed
        if missing > rounding / 2:
            missing_percent = 100 * missing / table.total.value
    elif counted and table.profiler is not Profiler.TORCH:
        # nvprof's shares are of the rows of a type, those of other profilers of the whole table.
        shares = [row["share"] for row in counted]
        if table.profiler is not Profiler.NVPROF:
            shares = [percent(cells.get("share", "")) for cells in table.rows]
            if any(row["kind"] == "call" for row in rows):
                whole = "time"
        readable = [share for share in shares if share is not None]
        if len(readable) == len(shares):
            rounding = sum(step for _, step in readable) / 2
            missing = 100.0 - sum(share for share, _ in readable)
            if missing > rounding + PERCENT_ROUNDING:
                missing_percent = missing
    if missing_percent:
        detail = f"rows with {missing_percent:.1f} % of the {whole} not printed"
        ledger.add("cut_table", 1, table="summary", kept=True, detail=detail)
    elif table.cuts:
        ledger.add("cut_table", 1, table="summary", kept=True, detail="rows left out")


def _summary(rows: list[_Row], names: NameTable, ledger: Ledger) -> pl.DataFrame:
    """Return ``rows`` as the table ``summary``."""
    schema = {
        **{name: TABLES["summary"][name] for name in _KEPT},
        **dict.fromkeys(_STEPS, pl.Int64),
    }
    frame = pl.DataFrame(rows, schema=schema) if rows else pl.DataFrame(schema=schema)
    for column in ("calls", "total_ns", "bytes"):
        # Sums of larger numbers would exceed int64.
        large = pl.col(column) > LARGEST_SUM // max(frame.height, 1)
        if lost := int(frame.select(large.sum()).item()):
            ledger.add("lost_field", lost, table="summary", kept=True, detail=column)
            frame = frame.with_columns(pl.when(~large).then(column).alias(column))
    frame = frame.with_columns(plain_names(frame["name"]))
    kind = pl.col("kind").cast(pl.String)
    texts = frame.select(
        pl.when(kind == "memcpy").then(copy_name()).when(kind == "memset").then(set_name())
        .otherwise("name")
    ).to_series()  # fmt: skip
    is_work = frame.select(kind.is_in(_WORK)).to_series()
    ids = pl.Series("name_id", [None] * frame.height, dtype=pl.UInt32)
    if is_work.any():
        ids = ids.scatter(is_work.arg_true(), names.ids(texts.filter(is_work)))
    counted = frame.filter("counted")
    for column, step, unit in (
        ("total_ns", "precision_ns", "ns"),
        ("calls", "calls_step", "calls"),
        ("bytes", "bytes_step", "bytes"),
    ):
        steps = counted.filter(pl.col(column) > 0)[step]
        count_few_digits(ledger, "summary", column.removesuffix("_ns"), unit, steps)
    return frame.with_columns(ids).select(*_KEPT, "name_id")


_CALL: Final = re.compile(
    r"_{0,2}(?:cu(?:da)?[A-Z]\w*|hip[A-Z]\w*|hsa_\w+|nvtx\w+|roctx\w+|cudnn[A-Z]\w*|cublas\w+"
    r"|nccl(?!Dev|Kernel)[A-Z]\w*|ur[A-Z]\w*|ze[A-Z]\w*)"
)
"""Functions of runtimes and drivers (CUDA, HIP, Unified Runtime, Level Zero), and of libraries,
without arguments."""
_COPY: Final = re.compile(
    r"(?i)\[?(?:CUDA )?(?:Unified Memory |Unified )?(?:memcpy (?:Unified )?|MEMORY_COPY_|Copy)"
    r"(Host|Device|Peer|Array|[HDPAM])[-_ ]?(?:to|2)[-_ ]?(Host|Device|Peer|Array|[HDPAM])\b.*"
)
_MXNET_COPY: Final = re.compile(r"(?:(?:Sync)?Copy|_copyto_)(CPU(?=2GPU)|GPU)2([CG]PU)")
_SET: Final = re.compile(r"(?i)\[?(?:CUDA )?(?:Unified Memory )?(?:memset|MEMORY_SET)\b.*")
_ANY_COPY: Final = re.compile(r"(?i)\[?(?:CUDA )?(?:Unified Memory )?(?:memcpy|MEMORY_COPY)\b.*")
_UNIFIED: Final = re.compile(r"(?i)\[?(?:CUDA )?(?:memcpy )?Unified")
_MEMORIES: Final = re.compile(r"\((?:([\w ]+(?:\(\w+\))?) -> )?([\w ]+)\)")
_DOMAINS: Final = re.compile(
    r"(?:KERNEL_DISPATCH|MEMORY_COPY|MEMORY_ALLOCATION|SCRATCH_MEMORY|MARKER_API|RCCL_API"
    r"|HIP_(?:RUNTIME_)?API(?:_EXT)?|HIP_COMPILER_API(?:_EXT)?|HSA_\w*API|ROCDECODE_API)"
)
"""Rows of rocprofv3's statistics of domains: sums of the rows of the others."""
_ALLOCATION: Final = re.compile(r"(?:MEMORY_ALLOCATION|SCRATCH_MEMORY)_\w+")
_RANGE: Final = "Range"
_RANGE_SECTION: Final = re.compile(r"NVTX|OpenACC|OpenMP")
"""Sections of nvprof and Nsight Systems whose rows are not work of the device."""
_WHOLE_SHARE: Final = 100.5
"""Percent of the printed total that no kernel has, with what rounding adds."""
_LIKE_KERNEL: Final = re.compile(
    r"(?i)[<(]|^_Z|kernel|gemm|gemv|conv|cudnn|cutlass|nccl|triton|reduce|elementwise|\dx\d|sm_?\d\d"
)
"""Names of kernels, not of annotations: templates, mangled names, and words of libraries."""
_OPERATOR: Final = re.compile(
    r"(?:aten|torch|torchvision|autograd|prims|quantized|nccl|c10d|record_param_comms)::?.*"
    r"|\w+Backward\d*"
)
_COLLECTIVE_ANNOTATION: Final = re.compile(r"(?:nccl|xccl|hccl|gloo|ucc|mpi):\w.*")
"""c10d's annotation of a collective: on the device it covers the kernel."""
_DATA_LOADER: Final = re.compile(
    r"enumerate\(DataLoader\)|\[pl\]\[profile\].*\b(?:[a-z]+_)?dataloader"
)
"""The ranges of PyTorch's data loader, and of Lightning around it."""
_ANNOTATION: Final = re.compile(
    r"ProfilerStep[*#].*|Optimizer\.(?:step|zero_grad)#.*|enumerate\(DataLoader\)#.*"
    r"|\[pl\]\[\w+\].*|DistributedDataParallel\.forward"
    r"|## Call CompiledFxGraph.*|Torch-Compiled Region.*|PyTorch Profiler \(\d+\)"
)


def copy_of(name: str) -> str | None:
    """Return the direction of the copy ``name``, ``unknown`` without one; None: not a copy."""
    if match := _COPY.fullmatch(name):
        # Intel's M is memory that no allocator of the device knows: the host's.
        source, target = (side[0].upper().replace("M", "H") for side in match.groups())
        return f"{source}to{target}"
    if match := _MXNET_COPY.fullmatch(name):
        return "to".join("H" if side == "CPU" else "D" for side in match.groups())
    return "unknown" if _ANY_COPY.fullmatch(name) else None


def kinds(table: SummaryTable) -> list[str]:
    """Return the kind of each row of ``table``.

    Kinds are those of the table ``summary``; ``range`` are annotations, ``domain`` sums of others,
    ``system`` calls of the operating system, ``host`` events of MPI, OpenMP and OpenACC,
    ``memory`` MXNet's storage in use, which old versions print in columns of time, and rocprofv3's
    allocations.
    """
    if table.profiler is Profiler.TORCH:
        if table.on_cpu:
            return ["range" if _ANNOTATION.fullmatch(row["name"]) else "op" for row in table.rows]
        return _torch_kinds(table)
    row_kinds = []
    printed_type = ""
    for row in table.rows:
        # A type is printed in the first of its rows.
        printed_type = row.get("type") or printed_type
        row_kinds.append(_kind(row["name"], printed_type, table))
    return row_kinds


def _kind(name: str, printed_type: str, table: SummaryTable) -> str:
    """Return the kind of a row of another profiler than torch, by its name, type and table."""
    if table.profiler is Profiler.MXNET:
        if name.startswith("Memory: "):
            return "memory"
        return "memcpy" if copy_of(name) else "call" if name.startswith("MX") else "op"
    if table.row_kind == "host":
        return "host"
    if (
        printed_type.startswith(_RANGE)
        or table.row_kind == "ranges"
        or _RANGE_SECTION.search(table.section)
    ):
        return "range"
    if printed_type.upper().startswith(("API", "CUDA_API", "HIP_")):
        return "call"
    if _SET.fullmatch(name):
        return "memset"
    if copy_of(name):
        return "memcpy"
    if table.profiler is Profiler.ROCPROF and _DOMAINS.fullmatch(name):
        return "domain"
    if table.profiler is Profiler.ROCPROF and _ALLOCATION.fullmatch(name):
        return "memory"
    if printed_type.startswith(("GPU", "CUDA_KERNEL", "KERNEL")):
        return "kernel"
    if printed_type:  # OpenACC, OpenMP
        return "range"
    if "API calls" in table.section or _CALL.fullmatch(name):
        return "call"
    if table.profiler is Profiler.NSYS and table.row_kind == "calls":
        return "system"
    return "kernel"


def _torch_kinds(table: SummaryTable) -> list[str]:
    """Return the kinds of rows of ``key_averages()``: operators, and what ran on the device.

    Rows of the device have no time of the CPU. Annotations have rows on both sides; those of the
    device cover its kernels.
    """
    rows = table.rows
    host = {row["name"] for row in rows if not _is_zero(row.get("self_cpu"))}
    row_kinds = []
    for row in rows:
        name = row["name"]
        on_host = _is_on_host(row)
        if _ANNOTATION.fullmatch(name):
            row_kinds.append("range")
        elif _SET.fullmatch(name):
            row_kinds.append("memset")
        elif copy_of(name):
            row_kinds.append("memcpy")
        elif _CALL.fullmatch(name):
            row_kinds.append("call")
        elif not on_host and _COLLECTIVE_ANNOTATION.fullmatch(name):
            row_kinds.append("range")
        elif on_host or _OPERATOR.fullmatch(name):
            row_kinds.append("op")
        elif name in host:
            row_kinds.append("range")
        else:
            row_kinds.append("op" if _is_zero(row.get("total")) else "kernel")
    _find_annotations(table, row_kinds)
    return row_kinds


def _find_annotations(table: SummaryTable, row_kinds: list[str]) -> None:
    """Change ``kernel`` to ``range`` for annotations that exceed the printed total.

    The host's row of an annotation may be cut off, or nested. The total has kernels and copies
    alone, so neither one kernel nor all of them can take longer. Where it is the sum of both, the
    part of the annotations is ``table.annotations_ns``.
    """
    shares = [percent(row.get("share", "")) for row in table.rows]
    for at, share in enumerate(shares):
        if row_kinds[at] == "kernel" and share is not None and share[0] > _WHOLE_SHARE:
            row_kinds[at] = "range"
    if table.total is None:
        return
    times = [quantity(row.get("total", "-"), TIME, None, whole=True) for row in table.rows]
    timed = [(time.value, at) for at, time in enumerate(times) if time and time.value >= 0]
    work = [value for value, at in timed if row_kinds[at] in ("kernel", "memcpy", "memset")]
    excess = sum(work) - table.total.value - table.total.step * len(work)
    for value, at in sorted(timed, reverse=True):
        if excess <= 0:
            break
        if row_kinds[at] == "kernel" and not _LIKE_KERNEL.search(table.rows[at]["name"]):
            row_kinds[at] = "range"
            excess -= value
    annotations = [
        value for value, at in timed if row_kinds[at] == "range" and not _is_on_host(table.rows[at])
    ]
    missing = table.total.value - sum(work) - sum(annotations)
    if abs(missing) <= table.total.step * (len(work) + len(annotations) + 1) / 2:
        table.annotations_ns = sum(annotations)


def _is_on_host(row: Cells) -> bool:
    """Return whether a row of torch has times of the CPU."""
    return not _is_zero(row.get("self_cpu")) or not _is_zero(row.get("cpu"))


def _is_zero(text: str | None) -> bool:
    return text is None or not re.search("[1-9]", text)


def memories(name: str, kind: str) -> dict[str, str | None]:
    """Return the kinds of memory of the copy or memset ``name``, as torch.profiler names them."""
    sides: tuple[str | None, ...] = (None, None)
    if kind in ("memcpy", "memset"):
        if _UNIFIED.match(name):
            sides = ("managed", "managed")
        elif match := _MEMORIES.search(name):
            words = [(side or "").lower().replace(" ", "_") for side in match.groups()]
            sides = tuple(word if word in MemoryKind.categories else None for word in words)
    return dict(zip(("source_memory", "destination_memory"), sides, strict=True))

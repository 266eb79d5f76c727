"""Writes summaries as the profilers print them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Row:
    """A row of a summary: ``kind`` is kernel, memcpy, memset or call."""

    name: str
    calls: int
    total_ns: int
    kind: str = "kernel"

    @property
    def mean_ns(self) -> int:
        """The mean time of a call."""
        return self.total_ns // self.calls


ROWS: Final = (
    Row("void cudnn::detail::implicit_convolve_sgemm<float, bool=0>(int, float)", 104, 91_234_567),
    Row("[CUDA memcpy HtoD]", 13, 6_957_100, "memcpy"),
    Row("volta_sgemm_128x64_nn", 7, 4_270_912),
    Row("[CUDA memset]", 2, 1_344, "memset"),
    Row("cudaLaunchKernel", 111, 2_001_340, "call"),
    Row("cudaFree", 3, 1_500_000_001, "call"),
)  # fmt: skip
PROCESS: Final = """\
==308== NVPROF is profiling process 308, command: python train.py
epoch 1: loss 0.25
==308== Profiling application: python train.py
"""


def five_digits(ns: int) -> str:
    """Return ``ns`` as nvprof prints it in text: five significant digits, six of seconds."""
    for unit, factor in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if ns >= factor:
            whole = ns // factor
            decimals = max({1: 4, 2: 3}.get(len(str(whole)), 2) + (unit == "s"), 0)
            return f"{ns / factor:.{decimals}f}{unit}"
    return f"{ns}ns"


def _parts(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    work = [row for row in rows if row.kind != "call"]
    return work, [row for row in rows if row.kind == "call"]


def _share(row: Row, of: Sequence[Row]) -> float:
    return 100 * row.total_ns / max(sum(one.total_ns for one in of), 1)


def nvprof_text(rows: Sequence[Row]) -> str:
    """Return nvprof's table since CUDA 9: activities and calls in one."""
    lines = ["==308== Profiling result:", _nvprof_header("            Type  ")]
    for part, title in zip(_parts(rows), (" GPU activities:", "      API calls:"), strict=True):
        for row in part:
            lines.append(f"{title if row is part[0] else '':16}  {_nvprof_cells(row, part)}")
    return PROCESS + "\n".join(lines) + "\n"


def nvprof_old(rows: Sequence[Row]) -> str:
    """Return nvprof's two tables before CUDA 9."""
    work, calls = _parts(rows)
    text = PROCESS + "==308== Profiling result:\n"
    text += "\n".join([_nvprof_header(), *(_nvprof_cells(row, work) for row in work)])
    if calls:
        text += "\n\n==308== API calls:\n"
        text += "\n".join([_nvprof_header(), *(_nvprof_cells(row, calls) for row in calls)])
    return text + "\n"


def _nvprof_header(first: str = "") -> str:
    titles = ("Time(%)", "Time", "Calls", "Avg", "Min", "Max")
    return first + f"{titles[0]:>7}  " + "  ".join(f"{one:>8}" for one in titles[1:]) + "  Name"


def _nvprof_cells(row: Row, of: Sequence[Row]) -> str:
    times = (row.total_ns, row.mean_ns, row.mean_ns, row.mean_ns)
    total, *others = (f"{five_digits(ns):>8}" for ns in times)
    return "  ".join([f"{_share(row, of):6.2f}%", total, f"{row.calls:8}", *others, row.name])


def nvprof_csv(rows: Sequence[Row]) -> str:
    """Return nvprof's CSV, with a unit for each column."""
    lines = [
        *PROCESS.splitlines(),
        "==308== Profiling result:",
        '"Type","Time(%)","Time","Calls","Avg","Min","Max","Name"',
        ",%,ms,,us,us,us,",
    ]
    for part, title in zip(_parts(rows), ("GPU activities", "API calls"), strict=True):
        for row in part:
            mean = f"{row.mean_ns / 1e3:.6f}"
            cells = (f'"{title}"', f"{_share(row, part):.6f}", f"{row.total_ns / 1e6:.6f}")
            lines.append(",".join([*cells, str(row.calls), mean, mean, mean, f'"{row.name}"']))
    return "\n".join(lines) + "\n"


def _sections(rows: Sequence[Row]) -> tuple[list[Row], list[Row], list[Row]]:
    work, calls = _parts(rows)
    return calls, [r for r in work if r.kind == "kernel"], [r for r in work if r.kind != "kernel"]


def _columns(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(titles, *lines, strict=True)]
    shown = [
        "  ".join(f"{cell:>{width}}" for cell, width in zip(cells[:-1], widths, strict=False))
        + f"  {cells[-1]}"
        for cells in (titles, ["-" * width for width in widths], *lines)
    ]
    return "\n".join(f" {line}" for line in shown) + "\n"


def nsys_2019(rows: Sequence[Row]) -> str:
    """Return what ``nsys profile --stats=true`` printed in 2019 and 2020."""
    text = "Generating CUDA API Statistics...\n"
    for part, title, calls in zip(
        _sections(rows),
        ("CUDA API", "CUDA Kernel", "CUDA Memory Operation"),
        ("Calls", "Instances", "Operations"),
        strict=True,
    ):
        if part:
            titles = ("Time(%)", "Total Time", calls, "Average", "Minimum", "Maximum", "Name")
            text += (
                f"{title} Statistics (nanoseconds)\n\n{_columns(titles, _nsys(part, plain))}\n\n"
            )
    return text


def nsys_2023(rows: Sequence[Row], write: Callable[[int], str] | None = None) -> str:
    """Return what ``nsys stats`` prints since 2022, its numbers by ``write``."""
    text = ""
    for part, report, calls, name in zip(
        _sections(rows),
        ("cuda_api_sum", "cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum"),
        ("Num Calls", "Instances", "Count"),
        ("Name", "Name", "Operation"),
        strict=True,
    ):
        if part:
            titles = (
                "Time (%)",
                "Total Time (ns)",
                calls,
                "Avg (ns)",
                "Min (ns)",
                "Max (ns)",
                name,
            )
            text += f"[4/8] Executing '{report}' stats report\n\n"
            text += _columns(titles, _nsys(part, write or "{:,}".format)) + "\n"
    return text


def plain(number: int) -> str:
    """Return ``number`` without separators."""
    return str(number)


def _nsys(rows: Sequence[Row], write: Callable[[int], str]) -> list[list[str]]:
    return [
        [
            f"{_share(row, rows):.1f}",
            *(write(one) for one in (row.total_ns, row.calls)),
            write(row.mean_ns) + (",0" if "." in write(10**6) else ".0"),
            *(write(row.mean_ns),) * 2,
            row.name,
        ]
        for row in rows
    ]


def nsys_csv(rows: Sequence[Row]) -> str:
    """Return the CSV of ``nsys stats --format csv`` of several reports, one below the other."""
    text = ""
    for part, calls, name in zip(
        _sections(rows), ("Num Calls", "Instances", "Count"), ("Name", "Name", "Operation"),
        strict=True,
    ):  # fmt: skip
        if part:
            text += f"Processing [run.sqlite] with [cuda_{calls}.py]...\n"
            text += f"Time (%),Total Time (ns),{calls},Avg (ns),Min (ns),Max (ns),{name}\n"
            text += "".join(
                ",".join([*cells[:-1], f'"{cells[-1]}"']) + "\n" for cells in _nsys(part, plain)
            )
            text += "\n"
    return text


def rocprof_csv(rows: Sequence[Row]) -> str:
    """Return the statistics of kernels, copies and calls of rocprof, one below the other."""
    names = {"[CUDA memcpy HtoD]": "CopyHostToDevice", "[CUDA memset]": "MEMORY_SET"}
    text = ""
    for part in _sections(rows):
        if part:
            text += '"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n'
            for row in part:
                call = row.name.replace("cuda", "hip") if row.kind == "call" else row.name
                name = names.get(row.name, call)
                cells = (row.calls, row.total_ns, row.mean_ns, _share(row, part))
                text += ",".join([f'"{name}"', *map(str, cells)]) + "\n"
    return text


def rocpd_text(rows: Sequence[Row]) -> str:
    """Return the summary of kernels of rocpd."""
    _, kernels, _ = _sections(rows)
    titles = ("Name", "Calls", "DURATION (nsec)", "AVERAGE (nsec)", "PERCENT (INC)")
    text = "KERNELS_SUMMARY:\n"
    width = max(len(row.name) for row in (*kernels, Row("Name", 1, 1)))
    text += f"{titles[0]:>{width}}  " + "  ".join(titles[1:]) + "\n"
    for row in kernels:
        mean, share = f"{row.mean_ns:.6f}", f"{_share(row, kernels):.6f}"
        cells = (f"{row.calls:5}", f"{row.total_ns:15}", f"{mean:>14}", f"{share:>13}")
        text += f"{row.name:>{width}}  " + "  ".join(cells) + "\n"
    return text


def torch_time(ns: int) -> str:
    """Return ``ns`` as torch prints it: three decimals of its unit."""
    for unit, factor in (("s", 10**9), ("ms", 10**6)):
        if ns >= factor:
            return f"{ns / factor:.3f}{unit}"
    return f"{ns / 1000:.3f}us"


def torch_table(rows: Sequence[Row], limit: int | None = None) -> str:
    """Return the table of ``key_averages()``: an operator above each kernel, calls of CUDA."""
    work, calls = _parts(rows)
    total = sum(row.total_ns for row in work)
    titles = (
        *("Name", "Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg"),
        *("Self CUDA", "Self CUDA %", "CUDA total", "CUDA time avg", "# of Calls"),
    )
    lines = []
    zero = ("0.00%", "0.000us", "0.00%", "0.000us", "0.000us")
    host = ("1.00%", "10.000us", "2.00%", "20.000us", "20.000us")
    for at, row in enumerate(work):
        time = (torch_time(row.total_ns), f"{_share(row, work):.2f}%", torch_time(row.total_ns))
        rest = (*time, torch_time(row.mean_ns), str(row.calls))
        lines += [[f"aten::operator_{at}", *host, *rest], [row.name, *zero, *rest]]
    none = ("0.000us", "0.00%", "0.000us", "0.000us")
    lines += [[row.name, *host, *none, str(row.calls)] for row in calls]
    shown = lines[: limit or len(lines)]
    widths = [max(len(cell), 12) for cell in titles]
    widths[0] = max(len(cells[0]) for cells in (titles, *shown))
    ruler = "  ".join("-" * width for width in widths)
    table = [
        "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)) + "  "
        for cells in (titles, *shown)
    ]
    ends = ["Self CPU time total: 80.160ms", f"Self CUDA time total: {torch_time(total)}", ""]
    return "\n".join([ruler, table[0], ruler, *table[1:], ruler, *ends])


def mxnet_table(rows: Sequence[Row]) -> str:
    """Return what MXNet's ``profiler.dumps()`` returns, the rows as operators."""
    text = "Profile Statistics:\n\tNote the difference in units for different entries.\n"
    memory = ("Min Use  (kB)", "Max Use  (kB)", "Avg Use  (kB)")
    text += "Device Storage\n=================\n"
    text += f"{'Name':25}          Total Count    " + "    ".join(memory) + "\n"
    text += "Memory: cpu/0                           3          96.0600          96.0760"
    text += "           0.0080\n\noperator\n=================\n"
    times = ("Time (ms)", "Min Time (ms)", "Max Time (ms)", "Avg Time (ms)")
    text += f"{'Name':25}          Total Count        " + "    ".join(times) + "\n"
    for row in rows:
        mean = f"{row.mean_ns / 1e6:16.4f}"
        text += f"{row.name:25}  {row.calls:19}  {row.total_ns / 1e6:17.4f} {mean} {mean} {mean}\n"
    return text

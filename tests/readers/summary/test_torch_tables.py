"""Tables of torch.profiler as programs print them: stacks, annotations, several runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import polars as pl
import pytest

from tests.readers.summary.writing import torch_time
from tests.support.command_line import Run
from tests.support.traces import with_methods
from traceana import Trace
from traceana.readers import read
from traceana.readers.source import silent


class Line(NamedTuple):
    """A row of the table: self times of the CPU and of the device in microseconds, and the stack
    that torch prints below the row."""

    name: str
    cpu_us: int
    device_us: int
    calls: int = 1
    stack: Sequence[str] = ()


TITLES: Final = (
    *("Name", "Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg"),
    *("Self CUDA", "Self CUDA %", "CUDA total", "CUDA time avg", "# of Calls"),
)


def table(
    lines: Sequence[Line], *, cpu_us: int, device_us: int, stacks: bool = False, flops: bool = False
) -> str:
    """Return a table of ``key_averages()`` with the sums that torch prints below it."""
    titles = (*TITLES, *(["Source Location"] * stacks), *(["Total GFLOPs"] * flops))
    rows: list[list[str]] = []
    for line in lines:
        cpu, device = torch_time(line.cpu_us * 1000), torch_time(line.device_us * 1000)
        shares = [f"{100 * line.cpu_us / cpu_us:.2f}%", f"{100 * line.device_us / device_us:.2f}%"]
        cells = [line.name, shares[0], cpu, shares[0], cpu, cpu, device, shares[1], device, device]
        location = [line.stack[0] if line.stack else ""] * stacks
        rows.append([*cells, str(line.calls), *location, *(["--"] * flops)])
        # torch prints the rest of a stack in the last column, and an empty line behind it.
        rest = [*line.stack[1:], ""] if line.stack else []
        rows += [[*[""] * (len(titles) - 1), entry] for entry in rest]
    widths = [max(len(cells[at]) for cells in (titles, *rows)) + 2 for at in range(len(titles))]
    ruler = "  ".join("-" * width for width in widths)
    padded = [
        "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)) + "  "
        for cells in (titles, *rows)
    ]
    ends = [f"Self {name} time total: {torch_time(1000 * us)}" for name, us in
            (("CPU", cpu_us), ("CUDA", device_us))]  # fmt: skip
    return "\n".join([ruler, padded[0], ruler, *padded[1:], ruler, *ends, ""])


def written(path: Path, text: str) -> Trace:
    path.write_text(text)
    return with_methods(read(path, silent))


def counted_ns(trace: Trace) -> int:
    return int(trace.tables.summary.filter("counted")["total_ns"].sum())


def problems(trace: Trace) -> list[str]:
    return trace.tables.ledger.filter(pl.col("severity") == "problem")["reason"].to_list()


STACKED: Final = (
    Line("aten::mm", 20, 600, 2, ("train.py(41): forward", "train.py(88): step", "<module>")),
    Line("aten::convolution", 20, 400, 2, ("torch/nn/modules/conv.py(456): _conv_forward",)),
    Line("ampere_sgemm_128x64_nn", 0, 600, 2),
    Line("Memcpy HtoD (Pinned -> Device)", 0, 400, 2),
)


@pytest.mark.parametrize("flops", [False, True])
def test_stacks_of_torch_are_part_of_the_table(tmp_path: Path, *, flops: bool) -> None:
    text = table(STACKED, cpu_us=1000, device_us=1000, stacks=True, flops=flops)
    trace = written(tmp_path / "a.txt", text)
    rows = trace.tables.summary.select("name", "calls", "total_ns").rows()
    assert rows == [(line.name, line.calls, 1000 * line.device_us) for line in STACKED]
    assert problems(trace) == []


NCCL: Final = (
    Line("c10d::allreduce_", 100, 0),
    Line("record_param_comms", 200, 20, 2),
    Line("nccl:all_reduce", 0, 20),
    Line("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevK...", 0, 20),
    Line("cudaLaunchKernelExC", 400, 0),
)


@pytest.mark.parametrize("in_total", [True, False])
def test_the_annotation_of_a_collective_is_not_counted_beside_its_kernel(
    tmp_path: Path, run: Run, *, in_total: bool
) -> None:
    """torch before 2.4 adds the device's annotations to the sum below the table."""
    text = table(NCCL, cpu_us=1000, device_us=40 if in_total else 20)
    trace = written(tmp_path / "a.txt", text)
    assert counted_ns(trace) == 20_000
    assert problems(trace) == []
    shown = run("report", tmp_path / "a.txt").stdout
    total = "40.00 µs printed total including 20.00 µs of annotations"
    assert f"20.00 µs of {total if in_total else '20.00 µs printed total'}" in shown
    assert "not printed" not in shown


LOADED: Final = (
    Line("enumerate(DataLoader)#_SingleProcessDataLoaderIter._...", 78_632_000, 0, 100),
    Line("[pl][profile][Strategy]SingleDeviceStrategy.training_...", 1_000_000, 0, 100),
    Line("ProfilerStep*", 500_000, 0, 100),
    Line("aten::cudnn_convolution", 177_000, 4_000_000, 12_000),
)


def test_the_report_begins_with_the_data_loader(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "a.txt"
    trace = written(path, table(LOADED, cpu_us=88_710_000, device_us=4_000_000))
    assert trace.tables.summary["name"].to_list() == ["aten::cudnn_convolution"]
    first = run("report", path).stdout.splitlines()[1]
    assert first.split() == "CPU time 88.71 s · DataLoader 78.63 s (88.6 %)".split()


def test_ranges_of_a_table_of_the_cpu_are_no_operators(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "a.txt"
    host = [line._replace(device_us=0) for line in LOADED]
    text = table(host, cpu_us=sum(line.cpu_us for line in host), device_us=1)
    trace = written(path, text.replace("total: 1.000us", "total: 0.000us"))
    assert trace.on_cpu
    assert trace.tables.summary["name"].to_list() == ["aten::cudnn_convolution"]
    assert counted_ns(trace) == 177_000_000
    assert problems(trace) == []
    assert "DataLoader 78.63 s (97.9 %)" in run("report", path).stdout


FIRST: Final = (Line("aten::addmm", 116, 60_000, 2400), Line("aten::mm", 2, 40_000, 50))
SECOND: Final = (Line("aten::addmm", 165, 30_000, 2400), Line("aten::mm", 2, 10_000, 50))


def test_two_runs_of_one_text_are_not_added_up(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "a.md"
    first = table(FIRST, cpu_us=653_000, device_us=100_000)
    second = table(SECOND, cpu_us=1_250_000, device_us=40_000)
    trace = written(path, f"# FP32\n{first}\n# FP16\n{second}\n# FP16, by CPU time\n{second}")
    assert counted_ns(trace) == 100_000_000
    assert trace.meta.events == 6
    other = trace.tables.ledger.filter(reason="other_run").select("count", "kept", "detail")
    assert other.rows() == [(4, False, "run 2")]
    alone = written(tmp_path / "b.md", first).tables
    assert trace.tables.summary.equals(alone.summary)
    shown = run("report", path).stdout
    assert "2 runs in the file, the first is shown · run 2: 40.000 ms GPU time" in shown
    assert "traceana diff" in shown

"""Tables of torch.profiler as programs print them: stacks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import polars as pl
import pytest

from tests.readers.summary.writing import torch_time
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
    return read(path, silent)


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

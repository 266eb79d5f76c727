"""Tables of a run with steps have means per measured step; the machine formats have the sums."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import polars as pl
import pytest

from tests.support.manifest import FIXTURES
from tests.support.opened import opened
from tests.support.traces import TraceBuilder, cnn_steps
from traceana.report.page import Page, Table
from traceana.report.pages.kernels import kernels
from traceana.report.pages.layers import flops, layers
from traceana.report.pages.report import report
from traceana.report.pages.transfers import transfers
from traceana.report.render import Format, render
from traceana.report.result import CommandResult
from traceana.report.terminal import render as as_text
from traceana.timeline.steps import measured, measured_steps
from traceana.trace import Trace

COMMANDS: Any = [
    kernels,
    partial(kernels, by="category"),
    partial(kernels, by="shape"),
    layers,
    partial(layers, by="type"),
    partial(layers, direction=True),
    partial(layers, tree=True),
    flops,
    partial(flops, by="class"),
    partial(flops, by="shape"),
    partial(flops, by="gemm"),
    transfers,
    partial(transfers, by="layer"),
    partial(transfers, by="size"),
]
FILES = ["alexnet_b128", "resnet18_b8", "streams_copies", "alexnet_b128_prefetch"]


def table(page: Page, title: str = "") -> Table:
    tables = [block for block in page.blocks if isinstance(block, Table)]
    return next(block for block in tables if block.columns[0].title.startswith(title))


@pytest.mark.parametrize("file", FILES)
def test_the_tables_have_the_figures_of_the_report(file: str) -> None:
    trace = opened(FIXTURES / f"gpu/{file}.json.gz")
    page = report(trace).page()
    titles = [block.columns[0].title for block in page.blocks if isinstance(block, Table)]
    if any(title.startswith("Transfers") for title in titles):
        copies = table(page, "Transfers").frame
        of_copies = ["direction", "count", "bytes", "mean_bytes", "time_ns", "exposed_ns"]
        alone = table(transfers(trace).page()).frame
        assert alone.select(of_copies).head(copies.height).equals(copies.select(of_copies))
    make: Callable[[Trace], CommandResult] = layers
    title, keys = "Slowest layers", ["layer", "forward_ns", "backward_ns"]
    if not any(shown.startswith(title) for shown in titles):
        title, make, keys = "Slowest kernels", kernels, ["name", "calls"]
    slowest = table(page, title).frame.select(*keys, "time_ns", "share")
    rows = table(make(trace).page()).frame.select(*keys, "time_ns", "share")
    assert rows.head(slowest.height).equals(slowest)
    classes = table(page, "GPU time by class").frame
    whole = classes.filter(~pl.col("class").str.starts_with(" "))["time_ns"].sum()
    assert table(flops(trace, by="class").page()).totals["time_ns"] == pytest.approx(whole, abs=50)
    assert table(layers(trace).page()).totals["time_ns"] == pytest.approx(whole, abs=50)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("file", ["", *FILES[:2]])
def test_the_columns_per_step_are_the_means_on_screens(command: Any, file: str) -> None:
    trace = opened(FIXTURES / f"gpu/{file}.json.gz") if file else cnn_steps()
    result: CommandResult = command(trace)
    if result.frame.is_empty():
        return
    steps = len(measured_steps(trace).rows)
    shown, summed = table(result.page()).frame, table(command(trace, sum=True).page()).frame
    count = "count" if "host_memory" in shown.columns else "calls"
    pairs = {"step_count": count, "step_ns": "time_ns", "step_flops": "flops"}
    # Both have most time first, by which other rows may come first.
    for mean, of in pairs.items():
        if mean not in result.frame.columns or of not in shown.columns:
            continue
        outside = result.frame.filter(pl.col(mean) > 0)[mean].sort()
        assert outside.to_list() == pytest.approx(shown.filter(pl.col(of) > 0)[of].sort().to_list())
    assert summed["time_ns"].to_list() == result.frame["time_ns"].to_list()
    on_part = command(measured(trace)).frame["time_ns"].sum() or 0
    assert (shown["time_ns"].sum() or 0) == pytest.approx(on_part / steps, abs=shown.height)
    assert result.page().data.rows.frame.equals(result.frame)
    assert result.frame.height == summed.height


@pytest.mark.parametrize("command", COMMANDS)
def test_without_steps_there_are_no_means(command: Any) -> None:
    trace = one_kernel()
    result: CommandResult = command(trace)
    means = [name for name in result.frame.columns if name.startswith("step_")]
    assert {"step_count", "step_ns"} <= {*means}
    assert all(result.frame[name].null_count() == result.frame.height for name in means)
    if result.frame.is_empty():
        return
    assert "sums over the capture" in as_text(result.page())


def one_kernel() -> Trace:
    b = TraceBuilder(framework="PyTorch")
    b.kernel("k", 0, 1000, layer=b.layer("fc", "Linear"))
    b.copy("HtoD", 2000, 1000, bytes=8)
    return b.build()


def test_machine_formats_have_sums_and_means_beside_them() -> None:
    result = kernels(cnn_steps())
    rows = json.loads(render(result.page(), Format.JSON))["rows"]
    scudnn = next(row for row in rows if row["name"] == "scudnn")
    assert (scudnn["calls"], scudnn["time_ns"]) == (6, 9000)
    assert (scudnn["step_count"], scudnn["step_ns"]) == (2, 3000)
    csv = pl.read_csv(io.BytesIO(render(result.page(), Format.CSV)))
    assert csv.filter(name="scudnn").select("calls", "time_ns", "step_count", "step_ns").row(0) == (
        (6, 9000, 2, 3000)
    )
    text = as_text(result.page())
    assert "scudnn" in text
    assert " 2  3.000 " in text


def test_a_workbook_has_the_sums(tmp_path: Any) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    file = kernels(cnn_steps()).save(tmp_path / "k.xlsx")
    book = openpyxl.load_workbook(file)
    (name, _, _, _, calls, time, *_) = next(book["name"].iter_rows(min_row=2, values_only=True))
    assert (name, calls, time) == ("scudnn", 6, 9000)
    assert "sums over the capture" in book["summary"]["B1"].value


def test_a_filter_compares_the_figures_of_its_table() -> None:
    result = kernels(cnn_steps())
    chosen = result.page(filter="time > 1 us")
    assert table(chosen).frame["name"].to_list() == ["scudnn"]
    assert table(chosen).totals["time_ns"] == 3000
    assert table(chosen).totals["calls"] == 2
    assert chosen.data.rows.frame["name"].to_list() == ["scudnn", "winograd"]
    assert chosen.data.totals["time_ns"] == 10_800


def test_work_outside_the_steps_is_in_no_mean() -> None:
    b = TraceBuilder(framework="PyTorch")
    b.name("conv", category="conv")
    b.name("late", category="elementwise")
    for number in range(2):
        step = b.step(number, 10_000 * number, 10_000)
        b.kernel("conv", 10_000 * number, 4000, step=step)
    b.kernel("late", 30_000, 8000)
    result = kernels(b.build())
    assert table(result.page()).frame["name"].to_list() == ["conv"]
    assert result.frame.select("name", "time_ns", "step_count", "step_ns").rows() == [
        ("conv", 8000, 1.0, 4000),
        ("late", 8000, 0.0, 0),
    ]
    assert "50.0 % of GPU time is outside these steps" in as_text(result.page())

"""The terminal output to the letter, at fixed widths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.golden import check
from tests.support.traces import TraceBuilder, cnn_steps
from traceana.report import markdown, notebook
from traceana.report.page import Page
from traceana.report.pages.info import info
from traceana.report.pages.kernels import kernels
from traceana.report.pages.layers import layers
from traceana.report.pages.report import report
from traceana.report.result import CommandResult
from traceana.report.terminal import Terminal, render
from traceana.trace import Trace

GOLDEN = Path(__file__).parent / "golden"


def hostile() -> Trace:
    """Return a truncated trace whose every text tries something."""
    evil = "[red]\x1b[2J\u202e|=cmd()\n"
    builder = TraceBuilder(
        source=f"/tmp/{evil}.json", framework=evil, truncated=True, bytes_read=1, bytes_total=3
    )
    builder.name(evil, category="conv", algorithm="winograd")
    builder.kernel(evil, 0, 1000, layer=builder.layer(evil, evil))
    builder.row("devices", device=0, name=evil)
    builder.kernel("k" * 300, 1000, 900, layer=builder.layer("x." * 90))
    builder.ledger.add("no_launch", 2, table="activities", kept=True, time_ns=1900, detail=evil)
    return builder.build()


def empty() -> Trace:
    return TraceBuilder(format_version="1").build()


def cpu() -> Trace:
    builder = TraceBuilder(framework="PyTorch")
    builder.name("aten::convolution", category="conv", algorithm="unknown")
    builder.operator("aten::convolution", 0, 900_000, layer=builder.layer("conv1", "Conv2d"))
    builder.operator("aten::relu", 900_000, 100_000, layer=builder.layer("relu1", "ReLU"))
    return builder.build()


def two_devices() -> Trace:
    builder = TraceBuilder(rank=1, world_size=2)
    for device in (0, 1):
        builder.row("devices", device=device, name="NVIDIA H100")
        builder.name("ncclAllReduce", category="collective", function="all_reduce")
        builder.kernel("ncclAllReduce", 0, 3_000_000, device=device)
        builder.kernel("k", 5_000_000, 1_000_000 * (1 + device), device=device)
    return builder.build()


TRACES: dict[str, Callable[[], Trace]] = {
    "cnn": cnn_steps,
    "hostile": hostile,
    "empty": empty,
    "cpu": cpu,
    "two_devices": two_devices,
}


def page(command: str, trace: Trace) -> Page:
    commands: dict[str, Callable[[Trace], CommandResult]]
    commands = {"report": report, "kernels": kernels, "layers": layers, "info": info}
    return commands[command](trace).page(limit=3 if command == "kernels" else None)


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("command", ["report", "kernels", "layers", "info"])
def test_the_table_is_to_the_letter(command: str, name: str) -> None:
    text = render(page(command, TRACES[name]()), Terminal(100))
    check(text, GOLDEN / f"{command}_{name}.txt")
    assert not any(character < " " for character in text if character != "\n")
    assert "\u202e" not in text


@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_report_fits_other_widths(width: int) -> None:
    text = render(page("report", cnn_steps()), Terminal(width))
    assert max(map(len, text.splitlines())) <= width
    check(text, GOLDEN / f"report_cnn_{width}.txt")


def test_colours_are_on_terminals_with_colours_alone() -> None:
    shown = page("report", cnn_steps())
    assert "\x1b" not in render(shown, Terminal(100, colour=False))
    assert "\x1b[" in render(shown, Terminal(100, colour=True))


@pytest.mark.parametrize("command", ["report", "layers"])
def test_markdown_is_to_the_letter(command: str) -> None:
    check(markdown.render(page(command, cnn_steps())), GOLDEN / f"{command}_cnn.md")


@pytest.mark.parametrize("command", ["report", "kernels", "layers", "info"])
def test_html_shows_the_same_cells_and_escapes_what_is_hostile(command: str) -> None:
    check(notebook.render(page("kernels", cnn_steps())), GOLDEN / "kernels_cnn.html")
    text = notebook.render(page(command, hostile_html()))
    assert "<script>alert" not in text
    assert text.count("<script") <= 1  # That of the frame's height.
    assert "&lt;script&gt;" in text
    assert "\u202e" not in text


def hostile_html() -> Trace:
    """Return a trace whose every text is HTML."""
    evil = "<script>alert('&')</script>\u202e"
    builder = TraceBuilder(source=evil, framework=evil)
    builder.name(evil, category="conv", algorithm=evil)
    builder.kernel(evil, 0, 1000, layer=builder.layer(evil, evil))
    builder.row("devices", device=0, name=evil)
    return builder.build()

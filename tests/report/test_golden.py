"""The terminal output to the letter, at fixed widths."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.golden import check
from tests.support.traces import TraceBuilder, cnn_steps
from traceana.analyze.facts import as_table, facts
from traceana.analyze.kernels import kernels
from traceana.analyze.layers import layers
from traceana.cli import kernels as kernels_verb
from traceana.cli import layers as layers_verb
from traceana.report.document import Document, Paper
from traceana.report.formats import Format
from traceana.report.overview import overview
from traceana.report.render import render
from traceana.result import arrange
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


TRACES = {
    "cnn": cnn_steps,
    "hostile": hostile,
    "empty": empty,
    "cpu": cpu,
    "two_devices": two_devices,
}


def document(verb: str, trace: Trace) -> Document:
    match verb:
        case "report":
            whole = overview(trace)
            return Document(verb, arrange(whole.breakdown), overview=whole)
        case "kernels":
            return Document(
                verb,
                arrange(kernels(trace), limit=3),
                columns=kernels_verb.COLUMNS,
                optional=kernels_verb.OPTIONAL,
            )
        case "layers":
            columns = tuple(c for c in layers_verb.COLUMNS if c != "direction")
            return Document(
                verb, arrange(layers(trace)), columns=columns, optional=layers_verb.OPTIONAL
            )
        case _:
            known = facts(trace)
            return Document(verb, arrange(as_table(known)), facts=known)


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("verb", ["report", "kernels", "layers", "info"])
def test_the_table_is_to_the_letter(verb: str, name: str) -> None:
    shown = document(verb, TRACES[name]())
    text = render(shown, Format.TABLE, Paper(100)).decode()
    check(text, GOLDEN / f"{verb}_{name}.txt")
    assert not any(character < " " for character in text if character != "\n")
    assert "\u202e" not in text


@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_report_fits_other_widths(width: int) -> None:
    text = render(document("report", cnn_steps()), Format.TABLE, Paper(width)).decode()
    check(text, GOLDEN / f"report_cnn_{width}.txt")


def test_colours_are_on_colour_paper_alone() -> None:
    shown = document("report", cnn_steps())
    plain = render(shown, Format.TABLE, Paper(100, colour=False))
    assert b"\x1b" not in plain
    assert b"\x1b[" in render(shown, Format.TABLE, Paper(100, colour=True))


@pytest.mark.parametrize("verb", ["report", "layers"])
def test_markdown_is_to_the_letter(verb: str) -> None:
    text = render(document(verb, cnn_steps()), Format.MARKDOWN, Paper()).decode()
    check(text, GOLDEN / f"{verb}_cnn.md")

"""Every view is drawn as a file: its values, units and legend, and what is refused."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.report.html.test_document import HOSTILE, hostile
from tests.support import charts, manifest
from tests.support.charts import texts
from tests.support.command_line import Run
from tests.support.command_line import run as run_command
from tests.support.opened import opened
from tests.support.traces import TraceBuilder, cnn_steps
from traceana import Trace, compare, diff
from traceana.errors import CannotWriteError, ExitCode, NoSuchSelectionError
from traceana.plain_text import plain
from traceana.report.charts.plot import page_file, page_specification
from traceana.report.charts.spans import icicle_view
from traceana.report.page import Chart, Icicle, Panels, pictures_of
from traceana.report.result import CommandResult

FIXTURES = Path(__file__).parents[3] / "fixtures"
FIXTURE = FIXTURES / "alexnet-cpu-ranges.json.gz"
OTHER = FIXTURES / "alexnet-cpu-stack.json.gz"
# The second smallest of each folder: the smallest have few rows to draw. That of the fixture is
# drawn by itself.
DRAWN = [file for file in manifest.small_traces_at_hand(slice(1, 2)) if file != FIXTURE]

VIEWS = {
    "report": {"CPU time by class, mean per step", "Timeline of step 4", "convolution"},
    "layers": {"time per step (ms)", "fc6", "GEMM"},
    "layers --by type": {"Time by layer", "Conv2d", "time per step (ms)"},
    "kernels": {"time per step (ms)", "aten::mm", "convolution"},
    "idle": {"Idle time by cause, mean per step", "idle time per step (ms)", "host"},
    "critical": {
        "Critical path by kernel, operator and wait, mean per step",
        "time on the critical path per step (ms)",
    },
    "flops": {"Operators with most FLOPs", "FLOPs per step (GFLOP)", "aten::mm"},
    "flops --by class": {"rate (FLOP/s)", "arithmetic intensity (FLOP/B)", "convolution"},
}


@cache
def drawn(command: str) -> bytes:
    """Return what ``command`` draws of the fixture."""
    name, *options = command.split()
    with TemporaryDirectory() as folder:
        file = Path(folder) / "view.svg"
        assert run_command(name, FIXTURE, *options, "--plot", file).exit_code == 0
        return file.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("command", VIEWS)
def test_a_view_is_drawn_with_titles_units_and_names(command: str) -> None:
    assert VIEWS[command] <= texts(drawn(command))


@pytest.mark.parametrize("command", ["diff", "compare"])
def test_two_runs_are_drawn(run: Run, tmp_path: Path, command: str) -> None:
    file = tmp_path / "runs.svg"
    assert run(command, FIXTURE, OTHER, "--plot", file).exit_code == 0
    wanted = {
        "diff": {
            "Steps of both runs and their median",
            "candidate",
            "wall time (ms)",
        },
        "compare": {"Step time", "Time by class", "alexnet-cpu-stack"},
    }
    assert wanted[command] <= texts(file.read_bytes())


def test_copies_and_memory_are_drawn(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.copy("HtoD", 0, 1_000_000, bytes=4_000_000, source_memory="pinned")
    builder.copy("DtoH", 2_000_000, 1_000_000, bytes=2_000, source_memory="pinned")
    file = builder.build().transfers().plot(tmp_path / "transfers.svg")
    assert {"Bandwidth by size of the copy", "bandwidth (B/s)"} <= texts(file.read_bytes())


def test_a_png_has_pixels(tmp_path: Path) -> None:
    content = cnn_steps().kernels().plot(tmp_path / "kernels.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 10_000


def test_nothing_is_replaced_without_force(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.svg"
    file.write_text("mine")
    refused = run("kernels", FIXTURE, "--plot", file)
    assert refused.exit_code == ExitCode.CANNOT_WRITE
    assert file.read_text() == "mine"
    assert run("kernels", FIXTURE, "--plot", file, "--force").exit_code == 0
    assert file.read_text() != "mine"
    with pytest.raises(CannotWriteError):
        cnn_steps().kernels().plot(file)


def test_endings_are_refused_before_anything_is_read(run: Run, tmp_path: Path) -> None:
    refused = run("kernels", tmp_path / "none", "--plot", tmp_path / "a.pdf")
    assert refused.exit_code == ExitCode.CANNOT_WRITE
    assert refused.stderr == "traceana: a.pdf: plots end with .png or .svg\n"
    refused = run("kernels", tmp_path / "none", "-o", tmp_path / "a.png")
    assert refused.exit_code == ExitCode.CANNOT_WRITE
    assert refused.stderr == "traceana: a.png: pictures are written with --plot\n"


def test_what_has_no_picture_is_an_error(run: Run, tmp_path: Path) -> None:
    with pytest.raises(NoSuchSelectionError, match="nothing to plot"):
        cnn_steps().info().plot(tmp_path / "info.svg")
    result = run("transfers", FIXTURE, "--plot", tmp_path / "none.svg")
    assert result.exit_code == ExitCode.EMPTY_SELECTION
    assert "nothing to plot: transfers has no picture of this input" in result.stderr
    assert not (tmp_path / "none.svg").exists()


def views_of(result: CommandResult) -> list[Mapping[str, Any]]:
    return [*charts.views(page_specification(result.illustrated()))]


def test_the_bars_have_the_lengths_of_the_values() -> None:
    kernels = cnn_steps().kernels()
    (view,) = views_of(kernels)
    (layer,) = view["layer"]
    (title,) = layer["encoding"]["x"]["title"]
    unit = {"µs": 1e3, "ms": 1e6}[title.split("(")[1].rstrip(")")]
    times = sorted(time / unit for time in kernels.frame["step_ns"])
    bars = charts.columns(layer)
    assert sorted(bars["x"]) == pytest.approx(times)
    assert {"convolution", "activation"} <= {*bars["colour"]}


def test_the_nodes_of_an_icicle_are_as_wide_as_their_times() -> None:
    trace = opened(FIXTURE)
    view = next(one for one in views_of(trace.layers()) if len(one["layer"]) == 3)
    boxes = view["layer"][0]["data"]["values"]
    whole = int(trace.layers().frame["step_ns"].sum()) / 1e6
    # Less the line between two of them.
    widths = [box["x_end"] - box["x"] for box in boxes if box["y"] == 0]
    assert widths == pytest.approx([whole], rel=0.002)
    second = sorted((box for box in boxes if box["y"] == 1), key=lambda box: box["x"])
    assert second[-1]["x_end"] - second[0]["x"] == pytest.approx(whole, rel=0.01)
    assert all(one["x_end"] <= other["x"] + whole / 1_000 for one, other in pairwise(second))


def test_an_icicle_has_a_line_between_nodes_and_grey_for_narrow_ones() -> None:
    tree = {
        "parent": [-1, 0, 0, 0, 0],
        "time_ns": [1_000_000, 600_000, 399_000, 500, 500],
        "category": [0, 1, 2, 1, 2],
        "categories": ["", "pale", "dark"],
        "colours": ["#808080", "#ffffff", "#000000"],
        "label": ["whole", "first", "second", "third", "fourth"],
        "steps": 1,
    }
    boxes, names, _ = (charts.columns(layer) for layer in icicle_view(tree, 1_000)["layer"])
    # The line is a thousandth of the width, as is the narrowest node.
    assert boxes["x"] == pytest.approx([0, 0, 0.6, 0.999])
    assert boxes["x_end"] == pytest.approx([0.999, 0.599, 0.998, 1])
    assert boxes["colour"] == ["#808080", "pale", "dark", "#d5dbe1"]
    assert names["text"] == ["whole", "first", "second"]
    assert names["ink"] == ["#000000", "#000000", "#ffffff"]


def test_events_of_no_known_depth_are_drawn() -> None:
    builder = TraceBuilder()
    builder.name("k", category="conv")
    builder.kernel("k", 0, 1_000)
    for depth, name in ((None, "async"), (0, "outer"), (1, "inner")):
        builder.row("ops", name=name, start=0, duration=900, process=1, thread=1, depth=depth)
    labels = [
        label
        for view in views_of(builder.build().report())
        for label in charts.columns(view["layer"][-1]).get("text", ())
    ]
    assert "thread 1 operators" in labels


@pytest.mark.exhaustive(after=1)
@pytest.mark.slow
@pytest.mark.parametrize("file", DRAWN, ids=lambda file: file.name)
def test_the_report_of_a_trace_is_drawn(file: Path) -> None:
    assert texts(page_file(opened(file).report().illustrated(limit=10), "svg"))


@pytest.mark.slow
def test_equal_pages_make_equal_files(tmp_path: Path) -> None:
    again = opened(FIXTURE).report().plot(tmp_path / "report.svg")
    assert again.read_bytes() == drawn("report")


def rated_layers(device: str = "Tesla V100-SXM2-16GB") -> Trace:
    """Return the forward passes of two linear layers, and the work of a third without shapes."""
    builder = TraceBuilder(framework="PyTorch")
    builder.row("devices", device=0, name=device, vendor="NVIDIA")
    builder.name("sgemm", category="gemm", precision="fp32", tensor_core=False)
    start = 0
    for at, size in enumerate((16, 512)):
        layer = builder.layer(f"fc{at}", "Linear")
        op = builder.row(
            "ops", name="aten::mm", start=start, duration=1_000, process=1, thread=1, depth=0,
            layer=layer, input_shapes=f"[[{size}, {size}], [{size}, {size}]]",
            input_types='["float", "float"]',
        )  # fmt: skip
        builder.kernel("sgemm", start + 100, 800, layer=layer, op=op, direction="forward")
        start += 1_000
    builder.kernel("relu", start, 800, layer=builder.layer("relu", "ReLU"), direction="forward")
    return builder.build()


def test_layers_have_a_roofline_below_the_peaks_of_the_device() -> None:
    layers = rated_layers().layers()
    (chart,) = (one for one in pictures_of(layers.illustrated()) if isinstance(one, Chart))
    _, points, names = charts.drawn(chart)
    rates = dict(layers.frame.select("arithmetic_intensity", "flops_per_s").head(2).iter_rows())
    assert set(zip(points["x"], points["y"], strict=True)) == set(rates.items())
    assert len(rates) == 2
    assert "FP32" in names["text"]
    found = texts(page_file(layers.illustrated(), "svg"))
    assert {"arithmetic intensity (FLOP/B)", "rate (FLOP/s)", "FP32"} <= found


def test_layers_of_a_device_without_known_peaks_have_no_roofline() -> None:
    layers = rated_layers("Tesla Unknown").layers()
    assert layers.frame["flops_per_s"].count() == 2
    assert [type(one) for one in pictures_of(layers.illustrated())] == [Icicle]


def test_layers_without_flops_have_no_roofline() -> None:
    layers = cnn_steps().layers()
    assert layers.frame["flops_per_s"].count() == 0
    assert [type(one) for one in pictures_of(layers.illustrated())] == [Icicle]


def test_text_of_a_trace_is_text() -> None:
    page = hostile(*HOSTILE).report().illustrated()
    page_svg = page_file(page, "svg")
    tree = ElementTree.fromstring(page_svg)
    allowed = {"svg", "g", "path", "text", "tspan", "defs", "clipPath", "rect", "line"}
    svg = "{http://www.w3.org/2000/svg}"
    found = {one.tag.removeprefix(svg) for one in tree.iter() if str(one.tag).startswith(svg)}
    assert found <= allowed
    shown = "".join(texts(page_svg))
    assert all(plain(text)[:10] in shown for text in HOSTILE)


def test_both_runs_of_a_comparison_have_bars() -> None:
    page = compare([opened(FIXTURE), opened(OTHER)], by="kernel").illustrated()
    (picture,) = pictures_of(page)
    assert b"alexnet-cpu-stack" in page_file(page, "svg")
    assert picture.title == "2 runs side by side"
    assert isinstance(picture, Panels)
    assert picture.charts[0].title == "Step time"


def test_layers_of_a_comparison_have_their_names() -> None:
    traces = []
    for name in "ab":
        builder = TraceBuilder(source=f"{name}.json")
        layer = builder.layer("block_1.conv_2", "Conv2d")
        builder.kernel("k", 0, 1_000, layer=layer, direction="forward")
        traces.append(builder.build())
    (picture,) = pictures_of(compare(traces, by="layer").illustrated())
    assert isinstance(picture, Panels)
    assert charts.drawn(picture.charts[1])[0]["y"] == ["block_1.conv_2 Conv2d"] * 2


def test_a_diff_is_plotted_by_its_method(tmp_path: Path) -> None:
    found = diff(opened(FIXTURE), opened(OTHER))
    assert found.plot(tmp_path / "diff.svg").exists()


def test_the_legend_has_each_class_with_a_colour_of_its_own(run: Run, tmp_path: Path) -> None:
    result = run("layers", FIXTURE, "--plot", tmp_path / "out.svg")
    assert result.exit_code == 0, result.stderr
    shown = texts((tmp_path / "out.svg").read_bytes())
    assert {"elementwise", "activation", "bias"} <= set(shown)

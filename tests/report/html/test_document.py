"""A page is one file that needs nothing else, and text of a trace is never markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.support import charts
from tests.support.traces import TraceBuilder, cnn_steps
from traceana import Trace
from traceana import open as open_trace
from traceana.advise import RULES, advise
from traceana.errors import MissingDependencyError, how_to_install
from traceana.flops.peaks import Peaks
from traceana.plain_text import plain
from traceana.report.charts.colours import CLASS_COLOURS, EVENT_COLOURS
from traceana.report.charts.specification import specification
from traceana.report.html import html_file
from traceana.report.html.elements import grid, terms
from traceana.report.page import (
    Axis,
    Chart,
    Columns,
    Data,
    Facts,
    Finding,
    Findings,
    Heading,
    Illustration,
    Marks,
    Page,
    Rows,
    Section,
    Table,
    in_order,
)
from traceana.report.pages.advise import SECTIONS
from traceana.report.pages.advise import advised as advice
from traceana.report.pages.analysis_pictures import bandwidths, roofline_chart
from traceana.report.pages.kernels import kernels
from traceana.report.pages.report import report
from traceana.report.text import cut_path
from traceana.table import Column, Kind
from traceana.timeline.idle_gaps import CAUSES
from traceana.trace.taxonomy import CATEGORIES

FIXTURE = Path(__file__).parents[3] / "fixtures" / "alexnet-cpu-ranges.json.gz"
WIDE = 40
HOSTILE = tuple(
    text + "p" * (WIDE - len(plain(text)))
    for text in (
        "<script>alert(1)</script>",
        "</script><img src=x onerror=alert(1)>",
        "\"'><b>",
        "{{ 7 * 7 }}{% raw %}",
        "\x1b[31m\u202e\u2028<!--",
        "]]></style><style>*{display:none}",
    )
)
"""Of one length as shown: long texts are broken into lines."""
HARMLESS = "p" * WIDE


@cache
def hostile(*texts: str) -> Trace:
    """Return a trace whose every name is one of ``texts``, and whose every text is a name."""
    whole = "".join(texts)
    builder = TraceBuilder(source=f"{whole}.json", framework=whole)
    for device, text in enumerate(texts):
        builder.name(text, category="conv", algorithm="winograd")
        layer = builder.layer(f"a.{text}", text)
        builder.kernel(text, 0, 1_000_000, layer=layer, device=device)
        builder.row("devices", device=device, name=text)
        builder.ledger.add("no_launch", 2, table="activities", kept=True, time_ns=1900, detail=text)
    return builder.build()


@cache
def page(trace: Trace) -> str:
    return html_file.render(report(trace).illustrated())


def scripts(text: str) -> list[str]:
    """Return the scripts that run, as a browser's parser finds them."""
    return re.findall(r"<script>(.*?)</script>", text, re.DOTALL)


def test_the_policy_allows_exactly_the_scripts_of_the_page() -> None:
    text = page(cnn_steps())
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    allowed = re.findall(r"sha256-([A-Za-z0-9+/=]+)", policy[1])
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts(text)]
    assert allowed == [base64.b64encode(digest).decode() for digest in digests]
    assert "default-src 'none'" in policy[1].replace("&#39;", "'")
    assert "unsafe-eval" not in policy[1]


def test_nothing_is_loaded_from_elsewhere() -> None:
    markup = re.sub(r"<script.*?</script>", "", page(cnn_steps()), flags=re.DOTALL)
    assert not re.search(r"""(?:src|href|action)\s*=\s*(?!["']#)""", markup)
    assert not re.search(r"url\(|@import", markup)


def test_no_element_has_an_event_handler() -> None:
    markup = re.sub(r"<script.*?</script>", "", page(cnn_steps()), flags=re.DOTALL)
    assert not re.search(r"<[a-z][^>]*\son\w+\s*=", markup, re.IGNORECASE)


@pytest.mark.exhaustive(after=2)
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_text_of_a_trace_adds_no_element(text: str) -> None:
    def elements(of: str) -> list[str]:
        return re.findall(r"<(/?[a-zA-Z!][\w-]*)", of)

    assert elements(page(hostile(text))) == elements(page(hostile(HARMLESS)))


@pytest.mark.slow
def test_a_long_name_is_cut() -> None:
    assert len(page(hostile("k" * 300_000))) - len(page(hostile("k"))) < 100_000


def pictures(text: str) -> list[dict[str, Any]]:
    """Return the data of the pictures of a page."""
    data = re.search(r'<script type="application/json" id="pictures">(.*?)</script>', text)
    assert data is not None
    found: list[dict[str, Any]] = json.loads(data[1])
    return found


def test_the_pictures_are_json_with_the_exact_times() -> None:
    text = page(cnn_steps())
    found = re.search(r'<script type="application/json" id="pictures">(.*?)</script>', text)
    assert found is not None
    (icicle,) = (one for one in json.loads(found[1]) if one["kind"] == "icicle")
    assert icicle["time_ns"][0] == 2 * 4400, "of the measured steps"
    assert icicle["parent"][0] == -1


def drawn(trace: Trace, title: str) -> dict[str, Any]:
    """Return the data of the picture whose caption begins with ``title``."""
    text = page(trace)
    found = re.search(r'data-picture="(\d+)">\s*<figcaption>' + title, text)
    assert found is not None
    return pictures(text)[int(found[1])]


def ranks(steps: tuple[int, ...]) -> Trace:
    builder = TraceBuilder()
    builder.name("k", category="conv")
    for step in steps:
        for rank in range(2):
            start = step * 10_000
            builder.step(step, start, 1_000 + rank, process=10 + rank, rank=rank)
            builder.kernel("k", start + 100, 200, device=rank, rank=rank)
    return builder.build()


@pytest.mark.slow
def test_the_steps_of_ranks_are_bars_side_by_side() -> None:
    def named(steps: tuple[int, ...]) -> list[str]:
        (bars,) = drawn(ranks(steps), "Step time")["specification"]["layer"]
        return [*dict.fromkeys(charts.columns(bars)["x"])]

    assert named((3,)) == ["rank 0", "rank 1"]
    assert len(named((3, 4))) == 4
    assert named((3, 4))[0] == "rank 0, step 3"


def test_the_headline_has_two_figures_and_the_bottleneck() -> None:
    text = page(advised())
    large = re.findall(r"<div><dt>(.*?)</dt><dd>(.*?)</dd></div>", text)
    plain_ = [re.sub("<.*?>", "", label) for label, _ in large]
    assert plain_ == ["step time", "GPU utilization"]
    lead = re.search(r'<p class="lead">(.*?)</p>', text)
    assert lead is not None
    assert lead[1].endswith("kernels 11.5 %")
    assert '<th scope="row">Bottleneck</th>' not in text


def test_each_fact_of_the_first_screen_stands_once() -> None:
    b = TraceBuilder(framework="PyTorch")
    b.name("k", category="elementwise")
    for number, wall in enumerate((9_000_000, 9_912_300, 9_990_000, 9_950_000)):
        row = b.step(number, number * 20_000_000, wall)
        b.kernel("k", number * 20_000_000, wall * 9 // 10, step=row)
    shown = report(b.build()).illustrated()
    facts = [block for block in shown.blocks if isinstance(block, Facts)]
    rows = [row for block in facts for row in block.rows]
    assert dict(facts[0].large) == {"step time": "9.931 ms", "GPU utilization": "90.0 %"}
    assert not any("9.931" in value or "90.0 %" in value for _, value in rows)
    assert ("Bottleneck", "GPU-bound: kernels take most of the step") in rows


def test_terms_of_the_field_have_a_tooltip_and_text_of_a_trace_stays_text() -> None:
    assert terms("exposed <b>") == (
        '<abbr title="not overlapped with compute: no kernel runs at the same time">exposed</abbr>'
        " &lt;b&gt;"
    )


def test_the_only_step_of_ranks_has_no_others() -> None:
    assert "<figcaption>Timeline of step 3 <span" in page(ranks((3,)))


def test_work_of_a_cpu_is_on_tracks_of_threads() -> None:
    builder = TraceBuilder()
    builder.name("aten::add", category="elementwise")
    builder.operator("aten::add", 0, 900, stream=11)
    (window,) = drawn(builder.build(), "Timeline")["windows"]
    assert {"of": "thread 11", "kind": "self CPU time"} in window["tracks"]


def test_rows_of_a_class_are_indented_below_it() -> None:
    builder = TraceBuilder()
    for at, algorithm in enumerate(("winograd", "implicit_gemm")):
        builder.name(algorithm, category="conv", algorithm=algorithm)
        builder.kernel(algorithm, at * 1_000, 900)
    text = page(builder.build())
    assert "<td>  Winograd" in text
    assert ".data td { white-space: pre; }" in text


def test_only_columns_of_long_texts_are_broken_into_lines() -> None:
    def table(name: str) -> str:
        return html_file.render(kernels(hostile(name)).page())

    assert 'class="long"' not in table("short")
    assert 'class="long"' in table("a kernel " * 9)


@pytest.mark.parametrize("more", [2, 16])
def test_layers_differ_by_the_ends_of_their_paths(more: int) -> None:
    """Also in a table of many columns, which has room for 28 characters of a path."""
    paths = [f"DistributedDataParallel_0.ResNet_0.Sequential_0.Block.Conv2d_{n}" for n in range(9)]
    frame = pl.DataFrame({"layer": paths, **{f"count_{n}": range(9) for n in range(more)}})
    counts = (Column(name, Kind.COUNT, title=name) for name in frame.columns[1:])
    columns = (Column("layer", Kind.PATH), *counts)
    shown = [row[0].text for row in grid(Table(frame, columns)).rows]
    longest = 28 if more > 11 else 64
    assert shown == [cut_path(path, longest) for path in paths]
    assert len(set(shown)) == 9
    assert all(text.endswith(f"Conv2d_{n}") for n, text in enumerate(shown))


def advised() -> Trace:
    """Return a trace with findings: copies from pageable memory, all exposed."""
    builder = TraceBuilder()
    builder.name("k", category="conv", algorithm="winograd")
    layer = builder.layer("a")
    for step in range(3):
        builder.step(step, step * 10_000_000, 9_000_000)
        builder.kernel("k", step * 10_000_000 + 6_000_000, 1_000_000, layer=layer)
        start = step * 10_000_000 + 1_000_000
        builder.copy("HtoD", start, 4_000_000, bytes=20_000_000, source_memory="pageable")
    return builder.build()


def test_recommendations_are_above_the_tables_and_link_to_their_evidence() -> None:
    text = page(advised())
    summary = text[text.index('<section id="summary">') : text.index('<section id="timeline">')]
    assert summary.index('<ol class="findings"') < summary.index('<table class="data"')
    links = re.findall(r'<a href="#(recommendation-\w+)">Evidence</a>', summary)
    assert links == ["recommendation-pageable_copies"]
    evidence = text[text.index('<section id="recommendations">') :]
    assert all(f'<li id="{link}">' in evidence for link in links)
    assert '<a href="#transfers">Transfers</a>' in evidence
    assert "<summary>Evidence</summary>" in evidence
    assert '<section id="transfers">' in text


@pytest.mark.slow
def test_evidence_has_as_many_rows_as_other_tables_and_names_the_command_with_the_rest() -> None:
    trace = open_trace(FIXTURE)
    every = {one.rule.id: one.evidence.height for one in advise(trace).findings}["host_bound"]
    assert every > 30
    whole = report(trace)

    def evidence(limit: int | None) -> str:
        text = html_file.render(whole.illustrated(limit=limit))
        item = text[text.index('<li id="recommendation-host_bound">') :]
        return item[: item.index("</details>")]

    assert len(re.findall("^<tr><td", evidence(None), re.MULTILINE)) == every
    assert "more row" not in evidence(None)
    cut = evidence(30)
    assert len(re.findall("^<tr><td", cut, re.MULTILINE)) == 30
    assert f"… {every - 30} more rows (traceana advise --format json)</p>" in cut


def test_recommendations_are_above_the_tables_also_if_there_are_none() -> None:
    b = TraceBuilder()
    b.kernel("k", 0, 100)
    text = page(b.build())
    assert text.index("no findings above 1 %") < text.index("GPU time by class")


def test_the_critical_path_has_the_names_of_its_table() -> None:
    categories = drawn(advised(), "Timeline")["windows"][0]["categories"]
    # Device work has the class and the colour of its stream, so the legend has it once.
    assert "copies" in categories
    assert not {"copy", "memcpy", "critical: copies"} & set(categories)
    assert len(categories) == len(set(categories))


def test_every_rule_has_a_section_of_the_report() -> None:
    sections = {one.name for one in report(advised()).illustrated().sections} | {"summary"}
    b = TraceBuilder()
    b.name("reduce", category="collective", function="all_reduce")
    b.kernel("reduce", 0, 100)
    sections |= {one.name for one in report(b.build()).illustrated().sections}
    assert set(SECTIONS) == {rule.id for rule in RULES}
    assert set(SECTIONS.values()) <= sections


def test_the_page_of_one_command_names_the_file_and_links_to_no_section() -> None:
    text = html_file.render(advice(advised(), advise(advised())).illustrated())
    assert '<p class="remark">built.json</p>' in text
    assert 'href="#transfers"' not in text


def test_without_layers_there_is_no_icicle() -> None:
    assert '<figure class="icicle"' not in page(ranks((3,)))
    assert '<figure class="icicle"' in page(advised())


def roofline_rows(*categories: str) -> pl.DataFrame:
    whole = {"arithmetic_intensity": 10.0, "flops_per_s": 1e12, "flops": 5_000, "time_ns": 5}
    return pl.DataFrame([{**whole, "category": one} for one in categories])


def roofline(rows: pl.DataFrame, peaks: Peaks | None = None) -> list[Any]:
    return [*roofline_chart(rows, "category", peaks, "class", ())]


def test_a_class_has_one_colour_in_all_pictures() -> None:
    icicle = drawn(cnn_steps(), "Layers")
    colours = dict(zip(icicle["categories"], icicle["colours"], strict=True))
    (chart,) = roofline(roofline_rows("conv", "memcpy"))
    (points,) = charts.drawn(chart)
    assert points["colours"].keys() == {"convolution", "copies"}
    assert points["colours"].items() <= colours.items()


def lab(colour: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return CIELAB (1976) of ``#rrggbb``, white D65."""
    parts = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    x, y, z = np.cbrt(to_xyz @ linear / np.array([0.95047, 1.0, 1.08883]))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize(
    "colours", [CLASS_COLOURS, EVENT_COLOURS["idle"], EVENT_COLOURS["critical"]], ids=range(3)
)
def test_colours_of_a_legend_can_be_told_apart(colours: dict[str, str]) -> None:
    # A difference of 2.3 is just noticeable between patches side by side.
    near = [
        (one, other)
        for one, other in combinations(colours, 2)
        if np.linalg.norm(lab(colours[one]) - lab(colours[other])) < 12
    ]
    assert near == []


def test_waits_on_the_critical_path_have_no_colour_of_a_class() -> None:
    for wait, colour in EVENT_COLOURS["critical"].items():
        nearest = min(np.linalg.norm(lab(colour) - lab(one)) for one in CLASS_COLOURS.values())
        assert nearest > 15, wait


def test_waits_have_no_colour_of_other_events_of_the_timeline() -> None:
    idle, stream = EVENT_COLOURS["idle"], EVENT_COLOURS["stream"]
    work = {**CLASS_COLOURS, **stream}
    for wait in ("copy", "collective", "queued", "synchronization"):
        nearest = min(np.linalg.norm(lab(idle[wait]) - lab(one)) for one in work.values())
        assert nearest > 15, wait
    assert np.linalg.norm(lab(work["memcpy"]) - lab(work["memset"])) > 30


def test_pale_waits_have_an_edge() -> None:
    window = drawn(advised(), "Timeline")["windows"][0]
    outlined = {
        name for name, edge in zip(window["categories"], window["outlined"], strict=True) if edge
    }
    assert outlined == {"critical: gap"}


def test_integrity_problems_have_their_part_of_the_time_and_a_link() -> None:
    b = TraceBuilder()
    b.kernel("k", 0, 10_000)
    b.ledger.add("no_launch", 3, table="activities", kept=True, time_ns=2_500)
    text = page(b.build())
    assert "3 (25.0 % of GPU time): device work whose launch was lost" in text
    assert 'was lost (<a href="#trace">Trace and integrity</a>)' in text


def test_every_class_and_cause_of_idle_time_has_a_colour() -> None:
    assert CLASS_COLOURS.keys() == set(CATEGORIES)
    assert EVENT_COLOURS["idle"].keys() == set(CAUSES)


def test_a_table_of_many_columns_has_no_bars() -> None:
    columns = tuple(Column(f"c{at}", Kind.COUNT, title=f"c{at}") for at in range(14))
    frame = pl.DataFrame({column.name: [1, 2] for column in columns})
    assert grid(Table(frame, columns, bars="c0")).bars == []
    assert grid(Table(frame, columns[:5], bars="c0")).bars == [0.5, 1.0]


def test_ceilings_of_the_roofline_are_level_without_a_memory_bandwidth() -> None:
    peaks = Peaks("x", "datasheet", "y", {"fp16_tensor": 2e12})
    (chart,) = roofline(roofline_rows("conv"), peaks)
    assert chart.title == "Roofline by class, peaks of x"
    (rule,) = (one for one in charts.drawn(chart) if one["shape"] == "rule")
    assert rule["y"] == [2e12, 2e12, 2e12]
    assert min(rule["x"]) < 10 < max(rule["x"])
    (name,) = (one for one in charts.drawn(chart) if one["shape"] == "text")
    assert name["text"] == ["FP16 tensor"]


def test_commands_of_the_terminal_are_links_to_their_sections() -> None:
    text = page(advised())
    assert '<span class="remark"><a href="#recommendations">Evidence</a></span>' in text
    assert "traceana advise" not in text.split('<section id="summary">')[1].split("</section>")[0]


def test_the_page_itself_has_the_places_of_its_links() -> None:
    brief = Findings((Finding("slow", "", "text", section="one"),), brief=True)
    whole = Findings((Finding("slow", "", "text", section="place", anchor="one"),))
    section = Section("place", "Place", (whole,), command="other")
    text = html_file.render(
        Page(
            *("some", (Heading("title"), Heading("head", "(traceana other: more)"), brief)),
            *(Data(Rows(pl.DataFrame())), (section,)),
        )
    )
    assert '<a href="#place">Place</a></span></h3>' in text
    assert '<a href="#one">Evidence</a>' in text
    assert '<li id="one">' in text


def test_a_plot_without_a_roof_is_not_called_a_roofline() -> None:
    (chart,) = roofline(roofline_rows("conv"))
    assert chart.title == "FLOP/s and arithmetic intensity by class"


def test_rows_that_are_no_points_of_the_roofline_are_counted_below_it() -> None:
    rows = roofline_rows("conv", "gemm", "loss", "layout", "bias", "rnn").with_columns(
        time_ns=pl.Series([5_000, 5_000, 1, 4_999, 4_000, 1_000]),
        arithmetic_intensity=pl.Series([10.0, 20.0, 0.5, 1e-6, None, None]),
        flops=pl.Series([6_000, 3_000, 1, 499, 500, None]),
        flops_per_s=pl.Series([1e12, 1e12, 1e12, 1e12, 1e12, None]),
    )
    chart, notes = roofline(rows)
    (points,) = charts.drawn(chart)
    assert points["x"] == [10.0, 20.0]
    assert notes.rows[0] == (
        "rows not drawn",
        "1 below 0.1 % of time and of FLOPs (<0.1 % of time, <0.1 % of FLOPs); "
        "1 below 0.01 FLOP/B (25.0 % of time, 5.0 % of FLOPs); "
        "1 with unknown bytes (20.0 % of time, 5.0 % of FLOPs); "
        "1 without a FLOP rate (5.0 % of time, 0.0 % of FLOPs)",
    )


def test_a_row_of_little_time_and_many_flops_is_a_point() -> None:
    rows = roofline_rows("conv", "gemm").with_columns(time_ns=pl.Series([1_000_000, 1]))
    (chart,) = roofline(rows)
    assert len(charts.drawn(chart)[0]["x"]) == 2


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.5, 2e3], [1, 10, 100, 1_000]),
        ([1.5e8, 2.5e9], [2e8, 5e8, 1e9, 2e9]),
        ([0.0], []),
    ],
)
def test_ticks_of_a_logarithmic_axis_are_round(values: list[float], ticks: list[float]) -> None:
    frame = pl.DataFrame({"x": values, "y": values})
    axis = Axis("x", Kind.RATIO, log=True)
    made = specification(Chart("t", "", axis, axis, (Marks(frame, "point", "x", "y"),)))
    shown = made["layer"][0]["encoding"]["x"]["axis"].get("values", [])
    assert shown == pytest.approx(ticks)


def test_bandwidths_have_the_peak_of_each_known_link() -> None:
    sizes = pl.DataFrame(
        {
            "direction": ["HtoD", "HtoD", "DtoD"],
            "host_memory": ["pinned", "pinned", None],
            "size": [1_024, 65_536, 1_024],
            "bytes_per_s": [1e9, 2e9, 5e10],
            "time_ns": [10, 20, 30],
            "link": ["PCIe 3 x16", "PCIe 3 x16", None],
            "peak_bytes_per_s": [16_000_000_000, 16_000_000_000, None],
        }
    )
    (chart,) = bandwidths(sizes)
    lines, labels, _ = charts.drawn(chart)
    assert sorted(zip(lines["x"], lines["y"], strict=True)) == [(512, 16e9), (131_072, 16e9)]
    assert labels["text"] == ["peak of PCIe 3 x16"]


def test_the_peak_is_a_line_also_if_all_copies_have_one_size() -> None:
    sizes = pl.DataFrame(
        {
            **{"direction": ["HtoD"], "host_memory": ["pinned"], "size": [1_024]},
            **{"bytes_per_s": [1e9], "time_ns": [10]},
            **{"link": ["PCIe 3 x16"], "peak_bytes_per_s": [16_000_000_000]},
        }
    )
    (chart,) = bandwidths(sizes)
    line, *_ = charts.drawn(chart)
    assert sorted(line["x"]) == [512, 2_048]


def test_a_page_without_charts_has_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "vl_convert", None)
    assert "vegaEmbed(" not in "".join(scripts(html_file.render(kernels(cnn_steps()).page()))[:1])


def test_without_the_extra_the_error_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "vl_convert", None)
    with pytest.raises(MissingDependencyError, match=re.escape(how_to_install("html"))):
        html_file.render(report(cnn_steps()).illustrated())


def test_the_plan_stands_beside_its_picture_and_facts_stand_once() -> None:
    file = Path(__file__).parents[3] / "fixtures" / "gpu" / "alexnet_b128.json.gz"
    page = open_trace(file).report().illustrated()
    columns, tables = (block for block in page.blocks if isinstance(block, Columns))
    assert [block.title for block in columns.right if isinstance(block, Illustration)] == [
        "Step time by the plan",
        "Step 4, the median one",
    ]
    titles = [block.columns[0].title for block in in_order([tables]) if isinstance(block, Table)]
    assert titles == [
        "GPU time by class, per step", "Slowest layers, per step", "Transfers, per step",
    ]  # fmt: skip
    assert len(tables.left) == 1
    # The bars of the classes are those of their table.
    assert "GPU time by class, mean per step" not in html_file.render(page)
    plan = next(block for block in columns.left if isinstance(block, Findings))
    (marks,) = next(block for block in columns.right if isinstance(block, Chart)).marks
    assert marks.frame["change"].to_list()[1:-1] == [item.title for item in plan.items]
    ends = marks.frame["step_ns"].to_list()
    assert marks.frame["from_ns"].to_list()[1:-1] == ends[:-2]
    facts = [block for block in page.blocks if isinstance(block, Facts)]
    shown = [(label, value) for block in facts for label, value in (*block.rows, *block.large)]
    assert sum("24.86 ms" in value for _, value in shown) == 1
    assert sum("97.9 %" in value for _, value in shown) == 1


@pytest.mark.parametrize("ahead", [False, True])
def test_steps_without_exact_times_are_not_drawn(ahead: bool) -> None:
    trace = open_trace(FIXTURE).with_meta(steps_run_ahead=ahead)
    (timeline, *_) = report(trace).illustrated(limit=None, exact=False).sections
    titles = [block.title for block in timeline.blocks if isinstance(block, Chart)]
    assert ("Step time by part" in titles) == (not ahead)

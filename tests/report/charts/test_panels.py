"""Charts side by side: complete files with the given values, for any text."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest
import vl_convert

from tests.support import charts
from tests.support.charts import texts
from traceana.errors import MissingDependencyError, how_to_install
from traceana.report.charts.colours import series_colours
from traceana.report.charts.plot import page_file, page_specification
from traceana.report.charts.specification import specification
from traceana.report.page import Axis, Chart, Data, Facts, Marks, Page, Panels, Rows
from traceana.report.pages.bars import grouped_bars
from traceana.table import Kind

EVIL = "$\\frac{a$_b\n\x1b[2J\u202e<b>&\"'--\ufffe$"
Row = tuple[str, str, int | None, str | None, bool]


def bars(*rows: Row, axis: str = "time", title: str = "forward", **more: Any) -> Chart:
    """Return bars of rows: series, item, time, reason of a failure, whether published."""
    schema = {"series": pl.String, "item": pl.String, "time_ns": pl.Int64, "failed": pl.String}
    frame = pl.DataFrame(rows, schema={**schema, "published": pl.Boolean}, orient="row")
    shared = Axis(axis, Kind.TIME, extent=more.pop("extent", None))
    return grouped_bars(frame, title, "time_ns", shared, series_colours(frame["series"]), **more)


def row(series: str, item: str, time: int | None, note: str | None = None) -> Row:
    return series, item, time, note, False


def line(name: str, axis: str = "batch", title: str = "t") -> Chart:
    frame = pl.DataFrame({"batch": [1, 2], "time_ns": [10, 20], "name": [name] * 2})
    x, y = Axis(axis, Kind.NUMBER, log=True), Axis(axis, Kind.TIME, log=True)
    marks = Marks(frame, "line", "batch", "time_ns", colour="name")
    return Chart(title, "", x, y, (marks,), colours=series_colours([name]))


def page(*shown: Chart, title: str = "runs", columns: int = 2) -> Page:
    """Return a page with a picture of the charts alone."""
    return Page("study", (Panels(title, shown, columns),), Data(Rows(pl.DataFrame())))


def test_every_bar_has_the_number_that_was_given_at_its_end() -> None:
    rows = [row("A", "x", 3_000_000), row("B", "x", 1_000_000), row("B", "y", 2_000_000)]
    chart = bars(*rows)
    found, values = charts.drawn(chart)
    for marks in (found, values):
        drawn = {*zip(marks["colour"], marks["y"], marks["x"], strict=True)}
        assert drawn == {("A", "x", 3.0), ("B", "x", 1.0), ("B", "y", 2.0)}
    assert values["text"] == ["3.00", "1.00", "2.00"]
    encodings = [one["encoding"] for one in specification(chart)["layer"]]
    assert encodings[0]["x"]["title"] == ["time (ms)"]
    # Beside each other, in the order of the legend.
    assert all(one["yOffset"]["scale"]["domain"] == ["A", "B"] for one in encodings)


def test_a_bar_of_its_own_row_takes_the_whole_row() -> None:
    for layer in specification(bars(row("A", "x", 1), row("B", "y", 2)))["layer"]:
        assert "yOffset" not in layer["encoding"]


def test_many_bars_have_no_numbers() -> None:
    _, values = charts.drawn(bars(*(row("A", f"layer {at}", at) for at in range(200))))
    assert "text" not in values


def test_published_bars_are_pale() -> None:
    published = ("p", "x", 1, None, True)
    found, _ = charts.drawn(bars(row("ours", "x", 1), published))
    assert found["faint"] == [False, True]


def test_a_reason_stands_where_a_bar_is_missing() -> None:
    chart = bars(row("A", "x", 1_000), row("A", "y", None, "out of memory"))
    found, values = charts.drawn(chart)
    assert found["y"] == ["x"]
    assert [*zip(values["y"], values["x"], values["text"], strict=True)] == [
        ("x", 1.0, "1.00"),
        ("y", 0, "out of memory"),
    ]
    assert "out of memory" in texts(page_file(page(chart), "svg"))


def test_the_reference_is_a_dashed_line() -> None:
    *_, rule = charts.drawn(bars(row("A", "x", 1_000), reference=500))
    assert (rule["shape"], rule["x"]) == ("rule", [0.5])


def test_charts_that_share_an_axis_have_one_unit_and_length() -> None:
    for value in (2_000, 9_000_000):
        encoding = specification(bars(row("A", "x", value), extent=(2_000, 9_000_000)))["layer"][0]
        x = encoding["encoding"]["x"]
        assert x["title"] == ["time (ms)"]
        assert 9.0 < x["scale"]["domainMax"] < 11


def test_logarithmic_axes_that_are_shared_have_the_same_ticks_and_ends() -> None:
    frame = pl.DataFrame({"x": [1], "y": [2_000_000]})
    y = Axis("time", Kind.TIME, log=True, extent=(1_000_000, 100_000_000))
    chart = Chart("t", "", Axis("x", Kind.NUMBER), y, (Marks(frame, "line", "x", "y"),))
    encoding = specification(chart)["layer"][0]["encoding"]["y"]
    assert encoding["axis"]["values"] == [1, 10, 100]
    assert (encoding["scale"]["domainMin"], encoding["scale"]["domainMax"]) == (1, 100)
    assert encoding["title"] == ["time (ms)"]


def test_a_panel_with_the_title_of_the_picture_does_not_repeat_it() -> None:
    drawn = page_specification(page(bars(row("A", "x", 1), title="runs"), line("A")))
    assert [view.get("title", {}).get("text") for view in charts.views(drawn)] == [None, "t"]


def test_facts_are_lines_below_the_title() -> None:
    facts = Facts((("1 fp32", "Tesla T4"), ("", "5 steps")))
    shown = Page("compare", (facts, *page(line("A")).blocks), Data(Rows(pl.DataFrame())))
    assert page_specification(shown)["title"]["subtitle"] == ["1 fp32: Tesla T4", "5 steps"]


@pytest.mark.parametrize(("columns", "rows"), [(1, [1, 1, 1]), (2, [2, 1]), (3, [3])])
def test_panels_stand_side_by_side(columns: int, rows: list[int]) -> None:
    drawn = page_specification(page(*map(line, "ABC"), columns=columns))
    assert [len(one["hconcat"]) for one in drawn["vconcat"]] == rows


def test_a_mark_has_its_names_and_values_to_look_up() -> None:
    found, _ = charts.drawn(bars(row("fp32", "conv1", 1_500_000)))
    assert found["tips"] == ["conv1\nfp32\ntime: 1.50 ms"]
    (points,) = charts.drawn(line("A", "batch size"))
    assert points["tips"] == [
        "A\nbatch size: 1\nbatch size: 10 ns",
        "A\nbatch size: 2\nbatch size: 20 ns",
    ]


@pytest.mark.exhaustive(after=3)
@pytest.mark.parametrize(
    "hostile", [EVIL, "_hidden", "$x$", "datum.value", "", "名" * 200, "a" * 5000]
)
@pytest.mark.parametrize("format_", ["svg", "png"])
def test_no_text_breaks_a_picture(hostile: str, format_: str) -> None:
    rows = [row(hostile, hostile, 1), row(hostile, "b", None, hostile)]
    shown = page(line(hostile, hostile, hostile), bars(*rows, axis=hostile), title=hostile)
    content = page_file(shown, format_)
    if format_ == "png":
        assert content.startswith(b"\x89PNG")
        return
    assert b"\x1b" not in content
    reported = texts(content)
    if hostile in ("$x$", "_hidden", "datum.value"):
        assert hostile in reported


def test_the_same_figures_give_the_same_file() -> None:
    assert page_file(page(line("A")), "svg") == page_file(page(line("A")), "svg")


def test_without_vl_convert_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(MissingDependencyError, match=re.escape(how_to_install("html"))):
        page_file(page(line("A")), "png")


@pytest.mark.parametrize("name", ["a.b", "a[0]", "datum.x", "'", '"', "\\"])
def test_a_name_is_a_value_and_no_path_of_fields(name: str) -> None:
    for chart in (line(name), bars(row(name, name, 1), row(name, "b", 2))):
        assert name in texts(page_file(page(chart), "svg"))


def test_titles_are_in_no_expression() -> None:
    title = '\\" + (1 + 1) + "'
    for chart in (line("A", title), bars(row("A", "x", 1), axis=title, reference=1.0)):
        compiled = vl_convert.vegalite_to_vega(specification(chart))
        assert not [text for text in signals(compiled) if "1 + 1" in text]


def signals(vega: Any) -> Iterator[str]:
    """Yield the expressions of a specification of Vega."""
    if isinstance(vega, dict):
        for key, value in vega.items():
            if key in ("signal", "expr", "update", "test", "init") and isinstance(value, str):
                yield value
            yield from signals(value)
    elif isinstance(vega, list):
        for value in vega:
            yield from signals(value)


@pytest.mark.parametrize(("names", "level"), [(["0", "1"], True), (["0 to 9"] * 9, False)])
def test_names_below_a_chart_are_level_where_they_fit(names: list[str], level: bool) -> None:
    steps = [f"{name}{at}" for at, name in enumerate(names)]
    frame = pl.DataFrame({"step": steps, "rank": ["rank 0"] * len(names)})
    marks = Marks(frame, "cell", "step", "rank")
    (layer,) = specification(
        Chart("t", "", Axis("step", Kind.TEXT), Axis("", Kind.TEXT), (marks,))
    )["layer"]
    assert (layer["encoding"]["x"]["axis"]["labelAngle"] == 0) is level


def test_long_names_on_an_axis_stay_different() -> None:
    rows = [row("A", f"{'a' * 60}{at}{'b' * 60}", at) for at in range(1, 4)]
    params = specification(bars(*rows))["params"]
    given = {one["name"]: one["value"] for one in params if "value" in one}
    assert len(set(given["names"])) == len(set(given["short"])) == 3
    assert max(map(len, given["short"])) <= 20

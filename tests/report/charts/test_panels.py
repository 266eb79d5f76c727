"""Pictures: complete files with the given values, for any text."""

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
from traceana.report.charts.colours import PALETTE
from traceana.report.charts.panels import panel_charts
from traceana.report.charts.plot import page_file
from traceana.report.charts.specification import specification
from traceana.report.page import Data, Page, Rows
from traceana.report.panels import Axis, Bars, Failure, Line, Panel, Panels

EVIL = "$\\frac{a$_b\n\x1b[2J\u202e<b>&\"'--\ufffe$"
X, Y = Axis("batch", log=2), Axis("time (ms)", log=10)


def lines(*panels: list[Line]) -> Panels:
    drawn_panels = [Panel(f"panel {place}", X, Y, lines=own) for place, own in enumerate(panels)]
    return Panels("Time by batch", ["a machine"], drawn_panels)


def bars(*series: Bars, rows: tuple[str, ...] = ("conv1", "conv2")) -> Panels:
    return Panels(
        "Time by layer", [], [Panel("forward", Axis("time (ms)"), rows=rows, bars=series)]
    )


def picture_file(picture: Panels, form: str) -> bytes:
    """Return the file of a page with ``picture`` alone."""
    return page_file(Page("study", (picture,), Data(Rows(pl.DataFrame()))), form)


def made(picture: Panels) -> list[list[dict[str, Any]]]:
    """Return what each chart of ``picture`` draws, by marks."""
    return [charts.drawn(chart) for chart in panel_charts(picture)]


def test_every_line_has_the_numbers_that_were_given() -> None:
    one = Line("PyTorch", [1, 2, 4], [8.0, 4.0, 2.5], [7.0, 3.0, 2.0], [9.0, 5.0, 3.0])
    two = Line("JAX", [1, 2], [6.0, 3.0])
    (chart,) = panel_charts(lines([one, two]))
    points = {one["shape"]: one for one in charts.drawn(chart)}["line"]
    found = set(zip(points["colour"], points["x"], points["y"], strict=True))
    assert found == {
        *(("PyTorch", 1, 8.0), ("PyTorch", 2, 4.0), ("PyTorch", 4, 2.5)),
        *(("JAX", 1, 6.0), ("JAX", 2, 3.0)),
    }
    shown = specification(chart)["layer"][0]["encoding"]
    assert [shown[of]["scale"]["type"] for of in "xy"] == ["log", "log"]
    assert [shown[of]["title"] for of in "xy"] == [["batch"], ["time (ms)"]]
    assert shown["x"]["axis"]["values"] == [1, 2, 4]


def test_all_layers_have_the_titles_of_the_axes() -> None:
    model = Line("model", [1, 2], [1.0, 1.5], dash="--")
    measured = Line("A", [1, 2], [1.0, 1.4], failures=[Failure(4, "died")])
    found = texts(picture_file(lines([model, measured]), "svg"))
    assert {"batch", "time (ms)"} <= found


def test_a_series_looks_the_same_in_every_panel() -> None:
    one, two = Line("A", [1], [1.0]), Line("B", [1], [2.0])
    first, second = made(lines([one, two], [two]))
    assert first[0]["colours"]["B"] == second[0]["colours"]["B"] != first[0]["colours"]["A"]


def test_a_failure_is_a_cross_with_its_reason_and_no_point() -> None:
    line = Line("A", [1, 2], [1.0, 2.0], failures=[Failure(4, "out of memory"), Failure(8, "died")])
    ((points, crosses),) = made(lines([line]))
    assert crosses["x"] == [4, 8]
    assert crosses["text"] == ["out of memory \u00d7", "died \u00d7"]
    assert points["x"] == [1, 2]


def test_failures_of_two_series_are_not_printed_over_each_other() -> None:
    failed = [Line(name, [1], [1.0], failures=[Failure(4, name)]) for name in "AB"]
    (chart,) = panel_charts(lines(failed))
    heights = [one["encoding"]["y"].get("value") for one in specification(chart)["layer"]]
    assert len(set(heights) - {None}) == 2


def test_only_failures_still_make_a_picture() -> None:
    line = Line("A", [], [], failures=[Failure(4, "out of memory")])
    assert "out of memory \u00d7" in texts(picture_file(lines([line]), "svg"))


def test_a_model_is_no_series() -> None:
    model = Line("model O(N-1)", [1, 2], [1.0, 1.5], dash="--")
    measured = Line("batch 8", [1, 2], [1.0, 1.4])
    ((rule, _, points),) = made(lines([model, measured]))
    assert (rule["shape"], rule["colour"]) == ("rule", ["model O(N-1)"] * 2)
    assert points["colours"] == {"batch 8": PALETTE[0]}


def test_every_bar_has_the_number_that_was_given() -> None:
    ((found, values),) = made(bars(Bars("A", [3.0, None]), Bars("B", [1.0, 2.0])))
    assert [*zip(found["colour"], found["y"], found["x"], strict=True)] == [
        ("A", "conv1", 3.0), ("B", "conv1", 1.0), ("B", "conv2", 2.0)
    ]  # fmt: skip
    assert values["text"] == ["3.00", "1.00", "2.00"]


def test_what_a_paper_printed_is_pale() -> None:
    ((found, _),) = made(bars(Bars("ours", [1.0, 1.0]), Bars("p", [1.0, 1.0], printed=True)))
    assert found["faint"] == [False, True, False, True]


def test_a_reason_stands_where_a_bar_is_missing() -> None:
    assert "out of memory" in texts(
        picture_file(bars(Bars("A", [1.0, None], [None, "out of memory"])), "svg")
    )


def test_panels_of_one_scale_have_bars_of_comparable_lengths() -> None:
    panels = [Panel("p", Axis("ms"), rows=["a"], bars=[Bars("A", [value])]) for value in (1.0, 9.0)]
    for chart in panel_charts(Panels("runs", (), panels, one_scale=True)):
        assert specification(chart)["layer"][0]["encoding"]["x"]["scale"]["domainMax"] > 9.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "hostile", [EVIL, "_hidden", "$x$", "datum.value", "", "名" * 200, "a" * 5000]
)
@pytest.mark.parametrize("format_", ["svg", "png"])
def test_no_text_breaks_a_picture(hostile: str, format_: str) -> None:
    axis = Axis(hostile)
    line = Line(hostile, [1, 2], [1.0, 2.0], failures=[Failure(3, hostile)])
    some = Bars(hostile, [1.0, None], [None, hostile])
    panels = [
        Panel(hostile, axis, axis, lines=[line]),
        Panel(hostile, axis, rows=[hostile, "b"], bars=[some]),
    ]
    picture = Panels(hostile, [hostile], panels)
    content = picture_file(picture, format_)
    if format_ == "png":
        assert content.startswith(b"\x89PNG")
        return
    assert b"\x1b" not in content
    reported = texts(content)
    if hostile in ("$x$", "_hidden", "datum.value"):
        assert hostile in reported


def test_the_same_figures_give_the_same_file() -> None:
    picture = lines([Line("A", [1, 2], [1.0, 2.0])])
    assert picture_file(picture, "svg") == picture_file(picture, "svg")


def test_without_vl_convert_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(MissingDependencyError, match=re.escape(how_to_install("html"))):
        picture_file(lines([Line("A", [1], [1.0])]), "png")


@pytest.mark.parametrize("name", ["a.b", "a[0]", "datum.x", "'", '"', "\\"])
def test_a_name_is_a_value_and_no_path_of_fields(name: str) -> None:
    one = Line(name, [1, 2], [1.0, 2.0])
    other = bars(Bars(name, [1.0, 2.0]), rows=(name, "b"))
    assert name in texts(picture_file(lines([one]), "svg"))
    assert name in texts(picture_file(other, "svg"))


def test_titles_are_in_no_expression() -> None:
    axis = Axis('\\" + (1 + 1) + "')
    for picture in (
        Panels("t", (), [Panel("p", axis, axis, lines=[Line("A", [1, 2], [1.0, 2.0])])]),
        Panels("t", (), [Panel("p", axis, rows=["a"], bars=[Bars("A", [1.0])], mark=1.0)]),
    ):
        for chart in panel_charts(picture):
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


def test_long_names_on_an_axis_stay_different() -> None:
    rows = tuple(f"{'a' * 60}{at}{'b' * 60}" for at in range(3))
    (chart,) = panel_charts(bars(Bars("A", [1.0, 2.0, 3.0]), rows=rows))
    given = {one["name"]: one["value"] for one in specification(chart)["params"] if "value" in one}
    assert len(set(given["names"])) == len(set(given["short"])) == 3
    assert max(map(len, given["short"])) <= 20

"""Pictures: complete files with the given values, for any text."""

from __future__ import annotations

import builtins
import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from typing import Any

import polars as pl
import pytest

from traceana.errors import MissingDependencyError, how_to_install
from traceana.report.page import Data, Page, Rows
from traceana.report.panels import Axis, Bars, Failure, Line, Panel, Panels
from traceana.report.plots.draw import drawing, drawn, number, of_series, panels_figure, rounded
from traceana.report.plots.page_pictures import page_file

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


def made(picture: Panels) -> Any:
    """Return the figure, drawn; what its artists hold is for the tests to ask."""
    with drawing():
        found = panels_figure(picture)
        found.draw_without_rendering()
    return found


def texts(svg: bytes) -> set[str]:
    tree = ElementTree.fromstring(svg.decode())
    return {"".join(text.itertext()) for text in tree.iter("{http://www.w3.org/2000/svg}text")}


def test_every_line_has_the_numbers_that_were_given() -> None:
    one = Line("PyTorch", [1, 2, 4], [8.0, 4.0, 2.5], [7.0, 3.0, 2.0], [9.0, 5.0, 3.0])
    two = Line("JAX", [1, 2], [6.0, 3.0])
    axes = made(lines([one, two])).axes[0]
    found = {str(line.get_label()): line.get_xydata() for line in axes.lines}
    assert [tuple(point) for point in found["PyTorch"]] == [(1, 8.0), (2, 4.0), (4, 2.5)]
    assert [tuple(point) for point in found["JAX"]] == [(1, 6.0), (2, 3.0)]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("batch", "time (ms)")
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "2", "4"]


def test_a_series_looks_the_same_in_every_panel() -> None:
    one, two = Line("A", [1], [1.0]), Line("B", [1], [2.0])
    first, second = made(lines([one, two], [two])).axes
    assert first.lines[1].get_color() == second.lines[0].get_color() == of_series(1)["color"]
    assert first.lines[0].get_marker() != first.lines[1].get_marker()


def test_a_failure_is_a_cross_with_its_reason_and_no_point() -> None:
    line = Line("A", [1, 2], [1.0, 2.0], failures=[Failure(4, "out of memory"), Failure(8, "died")])
    axes = made(lines([line])).axes[0]
    (crosses,) = axes.collections
    assert [point[0] for point in crosses.get_offsets()] == [4, 8]
    assert [text.get_text() for text in axes.texts] == ["out of memory", "died"]
    assert len(axes.lines[0].get_xydata()) == 2


def test_only_failures_still_make_a_picture() -> None:
    line = Line("A", [], [], failures=[Failure(4, "out of memory")])
    assert picture_file(lines([line]), "svg")


def test_a_model_is_no_series() -> None:
    model = Line("model O(N-1)", [1, 2], [1.0, 1.5], dash="--")
    measured = Line("batch 8", [1, 2], [1.0, 1.4])
    axes = made(lines([model, measured])).axes[0]
    assert axes.lines[0].get_linestyle() == "--"
    assert axes.lines[0].get_marker() == "None"
    assert axes.lines[1].get_color() == of_series(0)["color"]


def test_every_bar_has_the_number_that_was_given() -> None:
    axes = made(bars(Bars("A", [3.0, None]), Bars("B", [1.0, 2.0]))).axes[0]
    found = {
        str(container.get_label()): [bar.get_width() for bar in container]
        for container in axes.containers
    }
    assert found == {"A": [3.0], "B": [1.0, 2.0]}
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["conv1", "conv2"]
    assert {text.get_text() for text in axes.texts} == {"3", "1", "2"}


def test_bars_of_a_group_do_not_overlap_and_stand_at_its_name() -> None:
    axes = made(bars(Bars("A", [1.0, None]), Bars("B", [1.0, 1.0]))).axes[0]
    spans = sorted((bar.get_y(), bar.get_y() + bar.get_height()) for bar in axes.patches)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    alone = spans[-1]
    assert sum(alone) / 2 == pytest.approx(1.0)


def test_what_a_paper_printed_is_hatched() -> None:
    axes = made(bars(Bars("ours", [1.0, 1.0]), Bars("theirs", [1.0, 1.0], printed=True))).axes[0]
    hatches = [bar.get_hatch() for bar in axes.patches]
    assert hatches == [None, None, "//////", "//////"]


def test_a_reason_stands_where_a_bar_is_missing() -> None:
    axes = made(bars(Bars("A", [1.0, None], [None, "out of memory"]))).axes[0]
    assert "out of memory" in {text.get_text() for text in axes.texts}


@pytest.mark.slow
@pytest.mark.parametrize("hostile", [EVIL, "_hidden", "$x$", "", "名" * 200, "a" * 5000, "\x00"])
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
    if hostile == "$x$":
        assert "$x$" in reported
    if hostile == "_hidden":
        assert " _hidden" in reported or "_hidden" in {text.strip() for text in reported}


def test_the_same_figures_give_the_same_file() -> None:
    picture = lines([Line("A", [1, 2], [1.0, 2.0])])
    assert picture_file(picture, "svg") == picture_file(picture, "svg")


def test_settings_of_the_user_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib as mpl

    picture = lines([Line("$A$", [1, 2], [1.0, 2.0])])
    before = picture_file(picture, "svg")
    monkeypatch.setitem(mpl.rcParams, "font.size", 40)
    monkeypatch.setitem(mpl.rcParams, "text.parse_math", True)
    assert picture_file(picture, "svg") == before
    assert mpl.rcParams["font.size"] == 40


def test_without_matplotlib_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match=re.escape(how_to_install("plots"))):
        picture_file(lines([Line("A", [1], [1.0])]), "png")


@pytest.mark.parametrize(
    ("value", "written"),
    [(0, "0"), (0.05, "0.05"), (1, "1"), (1500, "1,500"), (2.5, "2.5"), (1e-9, "1e-09")],
)
def test_numbers_are_plain(value: float, written: str) -> None:
    assert number(value) == written
    assert rounded(1234.567) == "1,230"


def test_text_is_cut_at_its_start() -> None:
    assert drawn("a" * 50 + "b", 10) == "…" + "a" * 8 + "b"

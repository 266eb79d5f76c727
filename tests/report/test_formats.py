"""The formats for machines: exact, documented, and safe for any names."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import polars as pl
import pytest

from tests.support.traces import TraceBuilder, cnn_steps
from traceana.analyze.facts import facts
from traceana.errors import UsageError
from traceana.report.page import Page
from traceana.report.pages.info import info
from traceana.report.pages.kernels import kernels
from traceana.report.pages.layers import layers
from traceana.report.pages.overview import overview
from traceana.report.pages.report import report
from traceana.report.pages.single_table import table_result
from traceana.report.render import Format, render
from traceana.result import Result
from traceana.table import COUNT, KERNEL, Column

NAMES = ['a,"b"', "tab\there", "line\nend\r", "=1+1", "+1", "-1", "@x", "\x1b[2J", "|pipe|", "x'"]
JSON_DOCS = Path(__file__).parents[2] / "docs" / "json.md"


def of_names(names: list[str]) -> Page:
    frame = pl.DataFrame({"name": names, "calls": range(len(names))})
    rows = Result(frame, columns=(Column("name", KERNEL), Column("calls", COUNT)))
    return table_result("classify", rows).page()


def out(page: Page, form: Format) -> str:
    return render(page, form).decode()


def test_csv_has_one_line_a_row_and_no_formulas() -> None:
    text = out(of_names(NAMES), Format.CSV)
    rows = list(csv.reader(io.StringIO(text)))
    assert rows[0] == ["name", "calls"]
    assert [row[0] for row in rows[1:]] == [
        'a,"b"',
        r"tab\there",
        r"line\nend\r",
        "'=1+1",
        "'+1",
        "'-1",
        "'@x",
        r"\x1b[2J",
        "|pipe|",
        "x'",
    ]
    assert len(text.splitlines()) == len(NAMES) + 1


def test_tsv_is_a_line_a_row_and_a_tab_a_column() -> None:
    lines = out(of_names(NAMES), Format.TSV).split("\n")
    assert lines[0] == "name\tcalls"
    assert lines[-1] == ""
    cells = [line.split("\t") for line in lines[1:-1]]
    assert [len(row) for row in cells] == [2] * len(NAMES)
    assert [row[0] for row in cells][:4] == ['a,"b"', r"tab\there", r"line\nend\r", "=1+1"]


def test_json_holds_text_and_numbers_as_they_are() -> None:
    text = out(of_names([*NAMES, "µ畳"]), Format.JSON)
    assert text.isascii()
    whole = json.loads(text)
    assert [row["name"] for row in whole["rows"]] == [*NAMES, "µ畳"]


def test_markdown_keeps_its_cells() -> None:
    text = out(of_names(["|pipe|", "<b>", "`x`", "[a](b)"]), Format.MARKDOWN)
    assert [line.replace("\\|", "").count("|") for line in text.splitlines()] == [3] * 6
    assert "<b>" not in text


def test_parquet_is_the_frame(tmp_path: Path) -> None:
    result = kernels(cnn_steps())
    file = tmp_path / "k.parquet"
    file.write_bytes(render(result.page(), Format.PARQUET))
    assert pl.read_parquet(file).equals(result.frame)


def test_the_meta_of_a_table() -> None:
    trace = cnn_steps()
    whole = json.loads(out(layers(trace).page(limit=2), Format.JSON))
    meta = whole["meta"]
    assert list(whole) == ["meta", "rows"]
    assert meta["schema_version"] == 3
    assert meta["command"] == "layers"
    assert meta["file"] == "built.json"
    assert meta["format"] == "kineto"
    assert meta["units"] == {
        "step_ns": "ns",
        "step_flops": "FLOP",
        "step_bytes": "B",
        "forward_ns": "ns",
        "backward_ns": "ns",
        "optimizer_ns": "ns",
        "other_ns": "ns",
        "time_ns": "ns",
        "share": "fraction of 1",
        "flops": "FLOP",
        "executed_flops": "FLOP",
        "flops_per_s": "FLOP/s",
        "of_peak": "fraction of 1",
        "bytes": "B",
        "arithmetic_intensity": "FLOP/B",
        "of_attainable": "fraction of 1",
        "layout_ns": "ns",
        "bias_ns": "ns",
        "activation_ns": "ns",
        "measured_flops": "FLOP",
        "measured_flops_per_s": "FLOP/s",
        "dram_bytes": "B",
    }
    assert meta["totals"]["time_ns"] == meta["total_ns"] == 13_200
    assert meta["rows_total"] == 6
    assert len(whole["rows"]) == 2


def test_the_report_holds_its_sections() -> None:
    trace = cnn_steps()
    whole = json.loads(out(report(trace).page(), Format.JSON))
    assert whole["rows"] == whole["sections"]["breakdown"]
    assert list(whole["sections"]) == [*overview(trace).sections, "plan", "findings"]
    assert sum(row["time_ns"] for row in whole["rows"]) == whole["meta"]["total_ns"]


def test_facts_are_one_object() -> None:
    page = info(cnn_steps()).page()
    whole = json.loads(out(page, Format.JSON))
    assert whole["memcpy"] == {"HtoD": 3}
    assert whole["schema_version"] == 3
    assert "fact,value\n" in out(page, Format.CSV)
    assert "memcpy.HtoD\t3\n" in out(page, Format.TSV)


def test_figures_that_json_cannot_hold_never_get_there() -> None:
    builder = TraceBuilder()
    builder.copy("HtoD", 0, 0, bytes=0)  # no time: no throughput, no share
    builder.kernel("k", 0, 0)
    whole = json.loads(out(report(builder.build()).page(), Format.JSON))
    assert [row["share"] for row in whole["rows"]] == [None, None]
    assert whole["sections"]["transfers"][0]["bytes_per_s"] is None


@pytest.mark.parametrize("section", ["info", "kernels", "layers", "report", "classify"])
def test_every_key_of_the_json_is_documented(section: str) -> None:
    text = JSON_DOCS.read_text(encoding="utf-8")
    trace = cnn_steps()
    sections = overview(trace).sections.values()
    keys: list[str] = {
        "info": list(facts(trace)),
        "kernels": kernels(trace).frame.columns,
        "layers": [
            *(*layers(trace).frame.columns, "direction"),
            *layers(trace, tree=True).frame.columns,
        ],
        "report": [c for result in sections for c in result.frame.columns],
        "classify": ["name", "reason", "file", "head", "also_matched"],
    }[section]
    meta = json.loads(out(kernels(trace).page(), Format.JSON))
    missing = [key for key in [*keys, *meta["meta"]] if f"`{key}`" not in text]
    assert not missing


def test_a_tree_is_indented_on_the_terminal_only() -> None:
    found = layers(cnn_steps(), tree=True)
    node = found.frame.filter(depth=1)["node"][0]
    assert f"\n\u00a0\u00a0{node} " in out(found.page(), Format.TABLE)
    assert node in [row["node"] for row in json.loads(out(found.page(), Format.JSON))["rows"]]
    assert f"\n{found.frame['layer'][1]} " in out(found.page(sort="time"), Format.TABLE)


def test_a_tree_has_neither_types_nor_directions() -> None:
    with pytest.raises(UsageError, match="--tree has a row per node"):
        layers(cnn_steps(), tree=True, by="type")

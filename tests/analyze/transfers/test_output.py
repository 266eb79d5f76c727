"""How transfers come out: to the letter, in every format, with every key documented."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import polars as pl
import pytest
from typer.testing import Result

from tests.support import command_line
from tests.support.golden import check
from tests.support.synthetic import Scenario, overlapping, write_nsys
from traceana.report.pages.transfers import copy_notes
from traceana.vocabulary.option_words import TransfersBy as By

GOLDEN = Path(__file__).parent / "golden"
JSON_DOCS = Path(__file__).parents[3] / "docs" / "json.md"


def run(*words: object) -> Result:
    return command_line.run("transfers", *words)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return two steps: 120 small pageable copies, one pinned copy hidden by 37 %, a DtoD copy."""
    scenario = Scenario()
    for number in range(2):
        at = number * 1_000_000
        scenario.step(number, at, at + 1_000_000)
        for copy in range(120):
            begins = at + 1_000 + 2_000 * copy
            scenario.copy(
                "HtoD", 1_200, at=begins - 500, begins=begins, duration=1_500, memory="pageable"
            )
        kernel = scenario.launch(at=at + 300_000, begins=at + 400_000, duration=200_000)
        scenario.copy(
            "DtoH",
            1 << 20,
            at=at + 310_000,
            begins=overlapping(kernel, 100_000, 37),
            duration=100_000,
            stream=9,
        )
        scenario.copy("DtoD", 1 << 24, at=at + 700_000, begins=at + 800_000, duration=30_000)
    return write_nsys(scenario, tmp_path_factory.mktemp("output") / "run.sqlite")


@pytest.mark.parametrize("by", get_args(By))
def test_the_table_is_to_the_letter(file: Path, by: By) -> None:
    result = run(file, "--by", by)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert max(map(len, result.stdout.splitlines())) <= 100
    check(result.stdout, GOLDEN / f"by_{by}.txt")


@pytest.mark.parametrize("format_", ["csv", "tsv", "json", "md"])
@pytest.mark.parametrize("by", get_args(By))
def test_every_format_holds_the_same_rows(file: Path, by: By, format_: str) -> None:
    result = run(file, "--by", by, "--format", format_)
    assert result.exit_code == 0
    whole = json.loads(run(file, "--by", by, "-f", "json").stdout)
    rows = whole["rows"]
    if format_ in ("csv", "tsv"):
        assert len(result.stdout.splitlines()) == len(rows) + 1
    text = JSON_DOCS.read_text(encoding="utf-8")
    assert not [key for row in rows for key in row if f"`{key}`" not in text]
    assert whole["meta"]["totals"]["exposed_ns"] == 2 * (120 * 1_500 + 63_000 + 30_000)


def test_the_units_are_shown(file: Path) -> None:
    units = json.loads(run(file, "--by", "size", "-f", "json").stdout)["meta"]["units"]
    assert units["size"] == units["bytes"] == units["step_bytes"] == "B"
    assert units["median_bytes_per_s"] == units["peak_bytes_per_s"] == "B/s"
    assert units["peak_share"] == units["step_share"] == "fraction of 1"
    assert units["exposed_ns"] == units["step_ns"] == "ns"


def test_the_sentence_has_the_values_of_the_row(file: Path) -> None:
    text = " ".join(run(file).stdout.split())
    assert (
        "HtoD: 120 copies per step of 1.20 kB on average at 800.0 MB/s (2.5 % of the PCIe 4 x16 "
        "peak), 180.0 µs of 180.0 µs exposed, small copies, pageable memory"
    ) in text
    assert "DtoH:" not in text, "nothing to say of that row"


ROW = {
    **{"direction": "HtoD", "host_memory": "pinned", "count": 4, "small": False, "blocking": "no"},
    **{"time_ns": 1_000_000, "exposed_ns": 0, "mean_bytes": 1e8, "bytes_per_s": 4e11},
    **{"peak_share": None, "link": None},
}


def test_rows_without_a_finding_have_no_sentence() -> None:
    assert copy_notes(pl.DataFrame([ROW])) == []


def test_exposed_copies_have_a_sentence_and_empty_ones_do_not() -> None:
    filling = {**ROW, "exposed_ns": 900_000}
    tiny = {**ROW, "host_memory": "pageable", "small": True, "time_ns": 50}
    assert copy_notes(pl.DataFrame([filling, tiny])) == [
        (
            "HtoD",
            "4 copies of 100.0 MB on average at 400.0 GB/s, 900.0 µs of 1.00 ms exposed",
        )
    ]


def test_steps_are_selected_and_unknown_words_refused(file: Path) -> None:
    rows = json.loads(run(file, "--step", "1", "-f", "json").stdout)["rows"]
    assert {row["direction"]: row["count"] for row in rows} == {"HtoD": 120, "DtoH": 1, "DtoD": 1}
    assert run(file, "--by", "colour").exit_code == 2
    assert run(file, "--step", "9").exit_code != 0

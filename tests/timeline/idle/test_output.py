"""How idle time comes out: to the letter, in every format, with every key documented."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import Result

from tests.support import command_line
from tests.support.golden import check
from tests.support.synthetic import Scenario, write_kineto
from traceana.timeline.idle_gaps import CAUSES
from traceana.vocabulary.option_words import IdleBy as By

GOLDEN = Path(__file__).parent / "golden"
DOCS = Path(__file__).parents[3] / "docs"


def run(*words: object) -> Result:
    """Run the command on the times of the synthetic programs, which no profiler slowed."""
    return command_line.run("idle", *words, "--as-recorded")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return two steps: 600 µs of loading, a copy, 4 kernels of which 2 are launch-bound."""
    scenario = Scenario()
    for number in range(2):
        at = number * 2_000_000
        scenario.step(number, at, at + 2_000_000)
        scenario.data_loader(at, at + 600_000)
        scenario.copy("HtoD", 1 << 20, at=at + 610_000, begins=at + 620_000, duration=100_000)
        for kernel in range(2):
            begin = at + 730_000 + 20_000 * kernel
            scenario.operator("aten::relu", begin - 8_000, begin + 5_000)
            scenario.launch(at=begin, begins=begin + 9_000, duration=2_000, call=6_000)
        scenario.launch(at=at + 762_000, begins=at + 800_000, duration=900_000)
        scenario.collective(20, at=at + 770_000, begins=at + 1_600_000, duration=200_000)
        scenario.sync(at + 780_000, at + 1_810_000)
    return write_kineto(scenario, tmp_path_factory.mktemp("output") / "run.json")


@pytest.mark.parametrize("by", get_args(By))
def test_the_table_is_to_the_letter(file: Path, by: By) -> None:
    result = run(file, "--by", by)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert max(map(len, result.stdout.splitlines())) <= 100
    check(result.stdout, GOLDEN / f"by_{by}.txt")


@pytest.mark.parametrize("devices", [1, 2])
def test_no_launch_is_before_the_capture_in_a_trace_without_calls(
    tmp_path: Path, devices: int
) -> None:
    scenario = Scenario()
    for at in (0, 500_000):
        for device in range(devices):
            scenario.launch(at=at, begins=at, duration=200_000, call=1_000, device=device)
    file = write_kineto(scenario, tmp_path / "run.json")
    recorded = json.loads(file.read_text())
    recorded["traceEvents"] = [
        one for one in recorded["traceEvents"] if one.get("cat") in (None, "kernel")
    ]
    file.write_text(json.dumps(recorded))
    for command in ("idle", "critical"):
        text = command_line.run(command, file).stdout
        assert "launched before capture" not in text
        assert "not recorded" in text


@pytest.mark.parametrize("format_", ["csv", "tsv", "json", "md"])
@pytest.mark.parametrize("by", get_args(By))
def test_every_format_holds_the_same_rows(file: Path, by: By, format_: str) -> None:
    result = run(file, "--by", by, "--format", format_)
    assert result.exit_code == 0
    whole = json.loads(run(file, "--by", by, "-f", "json").stdout)
    rows = whole["rows"]
    if format_ in ("csv", "tsv"):
        assert len(result.stdout.splitlines()) == len(rows) + 1
    text = (DOCS / "json.md").read_text(encoding="utf-8")
    section = text.split("### idle\n")[1].split("\n### ")[0]
    places = whole["sections"]["devices"]
    assert not [key for row in (*rows, *places) for key in row if f"`{key}`" not in section]
    assert sum(row["time_ns"] for row in rows) == sum(place["idle_ns"] for place in places)


def test_every_cause_is_documented() -> None:
    for page in ("idle.md", "json.md"):
        text = (DOCS / page).read_text(encoding="utf-8")
        assert not [cause for cause in CAUSES if f"`{cause}`" not in text]


def test_the_figures_of_the_device(file: Path) -> None:
    (place,) = json.loads(run(file, "-f", "json").stdout)["sections"]["devices"]
    assert place["span_ns"] == 4_000_000
    assert place["busy_ns"] == 2 * (100_000 + 2 * 2_000 + 1_000_000)
    assert place["kernel_ns"] == 2 * (2 * 2_000 + 1_000_000)
    assert place["copy_ns"] == place["copy_exposed_ns"] == place["memops_only_ns"] == 200_000
    assert (place["collective_ns"], place["collective_exposed_ns"]) == (400_000, 200_000)
    assert (place["launches"], place["step_launches"]) == (10, 5.0)
    assert (place["launch_bound"], place["launch_bound_ns"]) == (4, 8_000)
    assert place["launch_bound_share"] == 0.5
    # Launch to kernel: 3,000 twice, 37,900 and 829,900 in each step.
    assert (place["launch_delay_median_ns"], place["launch_delay_p95_ns"]) == (3_000, 829_900)


def test_the_steps(file: Path) -> None:
    rows = json.loads(run(file, "--by", "cause", "-f", "json").stdout)["rows"]
    loading = next(row for row in rows if row["cause"] == "data_loader")
    # The first step's is from its begin; the second's gap began in the first, 200 µs before.
    assert (loading["count"], loading["time_ns"], loading["max_ns"]) == (2, 1_440_000, 820_000)
    assert (loading["step_count"], loading["step_ns"]) == (1.5, 720_000)
    alone = json.loads(run(file, "--step", "1", "-f", "json").stdout)
    (row,) = (row for row in alone["rows"] if row["cause"] == "data_loader")
    assert (row["time_ns"], row["share"]) == (620_000, 0.31)
    assert alone["sections"]["devices"][0]["span_ns"] == 2_000_000


def test_unknown_words_are_refused(file: Path) -> None:
    assert run(file, "--by", "colour").exit_code == 2
    assert run(file, "--step", "9").exit_code != 0

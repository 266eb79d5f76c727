"""``traceana whatif`` from the command line, and as a method."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import traceana
from tests.support.command_line import run
from tests.support.synthetic import Scenario, write_kineto
from tests.support.traces import cnn_steps
from traceana.errors import ExitCode

DOCS = (Path(__file__).parents[2] / "docs" / "json.md").read_text(encoding="utf-8")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two steps of 2,000 ns, in which the host waits for a kernel of 1,000 ns."""
    run = Scenario()
    for number in range(2):
        at = number * 2_000
        run.step(number, at, at + 2_000)
        run.operator("aten::mm", at + 50, at + 400)
        run.launch(at=at + 100, begins=at + 300, duration=1_000)
        run.sync(at + 420, at + 1_400, "stream", stream=7)
    return write_kineto(run, tmp_path / "run.json")


def test_json(file: Path) -> None:
    words = ("--scenario", "kernel:. x 0.5", "--scenario", "host x 1", "--sweep", "-f", "json")
    result = run("whatif", file, *words)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    half, same = found["rows"]
    assert (half["step_ns"], half["predicted_ns"]) == (2_000, 1_500)
    assert half["relative"] == -0.25
    assert half["at_most_ns"] == 500
    assert half["low_ns"] <= 1_500 <= half["high_ns"]
    assert (same["predicted_ns"], same["relative"], same["at_most_ns"]) == (2_000, 0, 0)
    curve = found["sections"]["curve"]
    assert len(curve) == 2 * 11
    path = found["sections"]["path"]
    whole = {name: sum(p["time_ns"] for p in path if p["scenario"] == name) for name in
             (None, "kernel:. x 0.5", "host x 1")}  # fmt: skip
    assert whole == {None: 2_000, "kernel:. x 0.5": 1_500, "host x 1": 2_000}
    shorter = {p["scenario"]: p["time_ns"] for p in path if p["of"] == "gemm"}
    assert shorter == {None: 1_000, "kernel:. x 0.5": 500, "host x 1": 1_000}
    assert [row["predicted_ns"] for row in curve if row["scenario"] == half["scenario"]][
        -1
    ] == 2_000
    documented = DOCS.split("### whatif")[1].split("\n### ")[0]
    keys = set(re.findall(r"`(\w+)`", documented))
    assert keys >= {*half, *curve[0]}


@pytest.mark.parametrize("words", [(), ("--scenario", "host x 0.5")])
def test_a_trace_of_ranges_alone_has_nothing_to_replay(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    # As NCCL's profiler plugin writes them.
    event = {"name": "Group", "cat": "GROUP", "id": 0, "pid": 7, "tid": 1}
    path = tmp_path / "ranges.json"
    path.write_text(json.dumps([{**event, "ph": "b", "ts": 0}, {**event, "ph": "e", "ts": 5}]))
    result = run("whatif", path, *words)
    assert result.exit_code == ExitCode.EMPTY_SELECTION, result.output
    assert "no work in the trace that a scenario could change" in result.output


def test_the_curve_of_what_is_removed_begins_with_its_prediction(file: Path) -> None:
    words = ("--scenario", "operator:aten::mm x 0", "--scenario", "no kernel:.", "--sweep")
    found = json.loads(run("whatif", file, *words, "-f", "json").stdout)
    curve = found["sections"]["curve"]
    first = {row["scenario"]: row["predicted_ns"] for row in curve if row["factor"] == 0}
    last = {row["scenario"]: row["predicted_ns"] for row in curve if row["factor"] == 1}
    for row in found["rows"]:
        assert first[row["scenario"]] == row["predicted_ns"] < 2_000
        assert last[row["scenario"]] == 2_000


def test_default_scenarios_have_display_names_which_are_taken_too(file: Path) -> None:
    assert "GEMM x 0.5" in run("whatif", file).stdout
    (row,) = json.loads(run("whatif", file, "--scenario", "GEMM x 0.5", "-f", "json").stdout)[
        "rows"
    ]
    assert row["predicted_ns"] == 1_500
    assert "\ngemm x 0.5" in run("whatif", file, "--scenario", "gemm x 0.5").stdout


def test_replay(file: Path) -> None:
    result = run("whatif", file, "--replay", "--format", "json")
    (row,) = json.loads(result.stdout)["rows"]
    assert row["measured_ns"] == row["replayed_ns"] == 4_000
    assert row["largest_error_ns"] == 0
    assert row["events"] > 4
    assert "0 ns (event end)" in run("whatif", file, "--replay").stdout


def test_without_a_scenario_some_are_asked(file: Path) -> None:
    rows = json.loads(run("whatif", file, "-f", "json").stdout)["rows"]
    assert {"host x 0.5", "launch x 0.5", "cuda-graphs"} <= {row["scenario"] for row in rows}
    predicted = [row["predicted_ns"] for row in rows]
    assert predicted == sorted(predicted)


@pytest.mark.parametrize(
    ("scenario", "code", "says"),
    [
        ("fast", ExitCode.USAGE, "is not a scenario"),
        ("conv x much", ExitCode.USAGE, "is not a factor"),
        ("none.toml", ExitCode.USAGE, "cannot read the scenario"),
        ("rnn x 0.5", ExitCode.EMPTY_SELECTION, "no work of class 'rnn' in the trace: it has"),
        ("gem x 0.5", ExitCode.USAGE, "'gem' is not a known word (did you mean gemm?): use conv, "),
        ("fused-optimiser", ExitCode.USAGE, "is not a scenario (did you mean fused-optimizer?)"),
        ("sync x 0.5", ExitCode.USAGE, "a wait for the device has no factor: use 'no sync'"),
        ("range:logging x 0", ExitCode.EMPTY_SELECTION, "no annotation 'logging'"),
        ("no data", ExitCode.EMPTY_SELECTION, "no waits for the next batch"),
        ("\x1b[31m\nx", ExitCode.USAGE, "is not a scenario"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    file: Path, scenario: str, code: ExitCode, says: str
) -> None:
    result = run("whatif", file, "--scenario", scenario)
    assert result.exit_code == code
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert "\x1b" not in result.stderr


def test_a_mistyped_layer_has_a_suggestion(tmp_path: Path) -> None:
    saved = cnn_steps().save(tmp_path / "cnn")
    names = traceana.open(saved).tables.layers["path"]
    result = run("whatif", saved, "--scenario", f"layer:{names[0]}x x 0")
    assert result.exit_code == ExitCode.EMPTY_SELECTION
    assert f"did you mean layer:{names[0]}?" in result.stderr


def test_the_method_has_what_the_command_prints(file: Path) -> None:
    found = traceana.open(file).whatif("kernel:. x 0.5")
    assert found.frame["predicted_ns"].to_list() == [1_500]
    assert "kernel:. x 0.5" in found._repr_html_()


@pytest.mark.parametrize("name", ["conv", "convolution", "Convolution"])
def test_a_class_is_called_as_screens_call_it(name: str) -> None:
    found = cnn_steps().whatif(f"{name} x 0.5").frame
    assert found["scenario"].to_list() == [f"{name} x 0.5"]
    assert found["at_most_ns"].to_list() == [1_800]


def test_pictures_have_the_values_of_the_table(file: Path) -> None:
    from traceana.report.page import Chart, Page

    found = traceana.open(file).whatif(["kernel:. x 0.5", "host x 1"], sweep=True)
    page: Page = found.illustrated()
    intervals, curve = (block for block in page.blocks if isinstance(block, Chart))
    ends, middle, measured = (marks.frame for marks in intervals.marks)
    assert middle["step_ns"].to_list() == [1_500, 2_000]
    assert measured["step_ns"].to_list() == [2_000, 2_000]
    assert ends["step_ns"].to_list() == [*found.frame["low_ns"], *found.frame["high_ns"]]
    (lines,) = curve.marks
    assert set(lines.frame["factor"]) == {one / 10 for one in range(11)}

"""``traceana compare`` from end to end: views, formats, screens to the letter, errors."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import traceana
from tests.support.command_line import Run
from tests.support.golden import check
from tests.support.runs import write_run
from tests.support.traces import TraceBuilder
from tests.support.training import KERNELS, LAYERS, training
from traceana.errors import ExitCode

GOLDEN = Path(__file__).parent / "golden"
DOCS = Path(__file__).parents[2] / "docs"
VIEWS = ("summary", "layer", "class", "algorithm", "kernel", "gemm", "epilogue", "transfer")
TABLED = ("table", "csv", "tsv", "json", "md")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    other = {**KERNELS, "conv2": (("implicit", 700_000), ("bias", 20_000)), "fc": (("hgemm", 90),)}
    renamed = [(f"net/{path}", kind) for path, kind in LAYERS if path != "relu1"]
    hostile = {"conv1\x1b[31m|`x`": "Conv2d"}
    copies = TraceBuilder()
    copies.copy("DtoH", 0, 10, bytes=5)
    sync = TraceBuilder()
    sync.sync(0, 10)
    kept = {f"net/{path}": KERNELS[path] for path, _ in LAYERS}
    saved = {
        "before": training(seed=1),
        "after": training(seed=2, kernels=other, copies=3, memory="pageable"),
        "renamed": training(seed=3, layers=renamed, kernels=kept),
        "hostile": training(
            layers=list(hostile.items()), kernels=dict.fromkeys(hostile, KERNELS["conv1"])
        ),
        "copies": copies.build(),
        "no_work": sync.build(),
    }
    return {name: trace.save(folder / name) for name, trace in saved.items()}


@pytest.fixture
def three(runs: dict[str, Path]) -> list[Path]:
    return [runs[name] for name in ("before", "after", "renamed")]


@pytest.mark.slow
@pytest.mark.parametrize("by", VIEWS)
def test_screens_to_the_letter(run: Run, three: list[Path], by: str) -> None:
    result = run("compare", *three, "--by", by)
    assert result.exit_code == ExitCode.OK
    assert max(map(len, result.stdout.splitlines())) <= 100
    check(result.stdout, GOLDEN / f"compare_{by}.txt")


def test_the_summary_is_one_screen(run: Run, three: list[Path]) -> None:
    assert len(run("compare", *three).stdout.splitlines()) <= 40


def test_runs_that_do_not_fit_stand_below_each_other(run: Run, three: list[Path]) -> None:
    result = run("compare", *three, *three, *three, "--by", "layer")
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert sum(line.startswith("layer") for line in lines) > 2
    for number in range(1, 10):
        assert sum(f" {number} " in f" {line}" and "──" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("by", "format_"), [*((by, "md") for by in VIEWS), *(("layer", one) for one in TABLED)]
)
def test_views_come_in_every_format(run: Run, three: list[Path], by: str, format_: str) -> None:
    result = run("compare", *three, "--by", by, "--format", format_)
    assert result.exit_code == ExitCode.OK
    for name in ("before", "after", "renamed"):
        assert name in result.stdout


def test_markdown_to_the_letter(run: Run, three: list[Path]) -> None:
    check(run("compare", *three, "--by", "layer", "-f", "md").stdout, GOLDEN / "compare_layer.md")


def test_the_json_has_one_row_a_run_and_item(run: Run, three: list[Path]) -> None:
    reported = json.loads(run("compare", *three, "--by", "gemm", "--format", "json").stdout)
    meta, rows = reported["meta"], reported["rows"]
    assert (meta["command"], meta["by"], meta["ratio_of"]) == ("compare", "gemm", "step_ns")
    assert [one["run"] for one in meta["runs"]] == ["before", "after", "renamed"]
    assert {"file", "framework", "devices", "libraries", "steps", "batch"} <= set(meta["runs"][0])
    assert len({(row["run"], row["item"], row["library"]) for row in rows}) == len(rows)
    assert meta["units"]["step_ns"] == "ns"
    assert meta["total_ns"] is None
    assert {row["run"] for row in rows if row["precision"] == "fp16"} == {"after"}


@pytest.mark.parametrize("by", VIEWS)
def test_every_key_of_the_json_is_documented(run: Run, three: list[Path], by: str) -> None:
    page = (DOCS / "json.md").read_text(encoding="utf-8")
    section = page.split("\n### compare\n")[1].split("\n### ")[0]
    reported = json.loads(run("compare", *three, "--by", by, "--format", "json").stdout)
    for key in (*reported["rows"][0], "by", "runs", "ratio_of"):
        assert f"`{key}`" in section, f"{key} of --by {by} is not in docs/json.md"


def test_parquet_holds_the_rows(run: Run, three: list[Path], tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    assert run("compare", *three, "--by", "layer", "-o", file).exit_code == ExitCode.OK
    frame = pl.read_parquet(file)
    assert frame["run"].unique().sort().to_list() == ["after", "before", "renamed"]
    assert {"item", "path", "confidence", "step_forward_ns", "to_first"} <= set(frame.columns)


def test_labels_can_be_given(run: Run, three: list[Path]) -> None:
    result = run(
        "compare", *three[:2], "--label", "x y", "--label", "=cmd()", "--by", "class", "-f", "csv"
    )
    assert {line.split(",")[0] for line in result.stdout.splitlines()[1:]} == {"x y", "'=cmd()"}
    for words in (["--label", "a"], ["--label", "a", "--label", "a"]):
        refused = run("compare", *three[:2], *words)
        assert refused.exit_code == ExitCode.USAGE
        assert "different labels" in refused.stderr


def test_limit_counts_items_and_sort_takes_a_column(run: Run, three: list[Path]) -> None:
    text = run("compare", *three, "--by", "class", "--limit", "2").stdout
    assert "more rows (--limit 0: all)" in text
    rows = run(
        "compare", *three, "--by", "class", "-f", "csv", "--sort", "step_ns"
    ).stdout.splitlines()
    at = rows[0].split(",").index("step_ns")
    times = [int(row.split(",")[at]) for row in rows[1:]]
    assert times == sorted(times, reverse=True)


def test_steps_are_chosen_in_all_runs(run: Run, three: list[Path]) -> None:
    reported = json.loads(run("compare", *three, "--step", "2-3", "--format", "json").stdout)
    assert [one["selected_steps"] for one in reported["meta"]["runs"]] == [[2, 3]] * 3
    assert [row["steps"] for row in reported["rows"]] == [2, 2, 2]


def test_names_cannot_steer_the_terminal_or_the_markup(run: Run, runs: dict[str, Path]) -> None:
    for format_ in TABLED:
        words = ["--by", "layer", "--label", "\x1b[2J|`", "--label", "b", "-f", format_]
        assert "\x1b" not in run("compare", runs["hostile"], runs["before"], *words).stdout


@pytest.mark.slow
def test_recorded_runs_are_labelled_by_folder_and_have_a_batch(run: Run, tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / f"batch={batch}", batch=batch, trace=training(seed=batch))
        for batch in (4, 8)
    ]
    reported = json.loads(run("compare", *folders, "--format", "json").stdout)
    for row, batch in zip(reported["rows"], (4, 8), strict=True):
        assert (row["run"], row["batch"]) == (f"batch={batch}", batch)
        assert row["image_ns"] == row["wall_ns"] // batch
    assert "batch sizes differ: times are per step, not per image" in reported["meta"]["notes"]
    assert traceana.compare(folders).frame["batch"].to_list() == [4, 8]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded") / "sweep"
    for batch in (4, 8):
        write_run(folder / f"run {batch}", batch=batch, trace=training(seed=batch, steps=4))
    write_run(folder / "run 16", batch=16, died="out of memory")
    return folder


@pytest.mark.slow
def test_a_folder_of_runs_stands_for_its_runs(run: Run, sweep: Path) -> None:
    result = run("compare", sweep, "--format", "json")
    assert result.exit_code == ExitCode.OK
    reported = json.loads(result.stdout)
    assert [row["run"] for row in reported["rows"]] == ["batch=4", "batch=8"]
    assert [row["batch"] for row in reported["rows"]] == [4, 8]
    assert "skipped" in result.stderr
    assert "run 16: out of memory" in result.stderr
    assert traceana.compare(sweep).frame["run"].to_list() == ["batch=4", "batch=8"]


def test_a_sweep_beside_another_run_is_labelled_by_folders(
    run: Run, sweep: Path, runs: dict[str, Path]
) -> None:
    reported = json.loads(run("compare", runs["before"], sweep, "--format", "json").stdout)
    assert [row["run"] for row in reported["rows"]] == ["before", "run 4", "run 8"]


def test_equal_runs_of_two_folders_are_labelled_by_folder(run: Run, tmp_path: Path) -> None:
    for name in ("old", "new"):
        write_run(tmp_path / name / "run", trace=training(steps=4))
    reported = json.loads(
        run("compare", tmp_path / "old", tmp_path / "new", "--format", "json").stdout
    )
    assert [row["run"] for row in reported["rows"]] == ["old", "new"]


def test_a_folder_of_one_run_is_too_few(run: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "sweep" / "batch=1", trace=training(steps=4))
    result = run("compare", tmp_path / "sweep")
    assert result.exit_code == ExitCode.USAGE
    assert "needs two or more runs" in result.stderr


def layer_pairs(reported: dict[str, list[dict[str, object]]], first: str, other: str) -> object:
    rows = [row for row in reported["rows"] if row["role"] == "layer"]
    items = {row["item"]: row["path"] for row in rows if row["run"] == first}
    return {
        items[row["item"]]: row["path"]
        for row in rows
        if row["run"] == other and row["item"] in items
    }


def test_pairs_of_layers_can_be_forced(
    run: Run, runs: dict[str, Path], three: list[Path], tmp_path: Path
) -> None:
    forced = tmp_path / "pairs.toml"
    forced.write_text('"relu1" = "net/conv1"')
    words = ("--by", "layer", "--format", "json")
    two = (runs["before"], runs["renamed"])
    plain = layer_pairs(json.loads(run("compare", *two, *words).stdout), "before", "renamed")
    assert plain["conv1"] == "net/conv1"  # type: ignore[index]
    reported = json.loads(run("compare", *two, *words, "--map", forced).stdout)
    assert layer_pairs(reported, "before", "renamed")["relu1"] == "net/conv1"  # type: ignore[index]
    unknown = run("compare", *three, *words, "--map", forced)
    assert unknown.exit_code == ExitCode.INVALID_FILE
    assert "no layer 'net/conv1' with work in after" in unknown.stderr
    none = tmp_path / "none.csv"
    none.write_text("a,b\n")
    reported = json.loads(run("compare", *three, *words, "--map", none, "--map", forced).stdout)
    assert layer_pairs(reported, "before", "renamed")["relu1"] == "net/conv1"  # type: ignore[index]
    assert run("compare", *two, "--map", forced).exit_code == ExitCode.USAGE


def test_the_layers_of_the_models_can_be_named(run: Run, three: list[Path], tmp_path: Path) -> None:
    bad = tmp_path / "layers.json"
    bad.write_text("{}")
    assert run("compare", *three, "--model", bad).exit_code == ExitCode.INVALID_FILE
    result = run("compare", *three, "--model", bad, "--model", bad)
    assert result.exit_code == ExitCode.USAGE
    assert "one per run" in result.stderr


def test_one_run_is_too_few(run: Run, runs: dict[str, Path]) -> None:
    result = run("compare", runs["before"])
    assert result.exit_code == ExitCode.USAGE
    assert "needs two or more runs" in result.stderr
    assert (
        run(
            "compare",
        ).exit_code
        == ExitCode.USAGE
    )


def test_a_missing_run_is_named_in_the_error(
    run: Run, runs: dict[str, Path], tmp_path: Path
) -> None:
    missing = run("compare", runs["before"], tmp_path / "nothing.json")
    assert missing.exit_code == ExitCode.NOT_FOUND
    assert "nothing.json" in missing.stderr
    broken = tmp_path / "broken.json"
    broken.write_text("no trace")
    unreadable = run("compare", runs["before"], broken)
    assert unreadable.exit_code == ExitCode.UNRECOGNIZED_FORMAT
    assert "broken.json" in unreadable.stderr
    for failed in (missing, unreadable):
        assert failed.stdout == ""
        assert "Traceback" not in failed.stderr
        assert len(failed.stderr.splitlines()) == 1


def test_a_run_without_work_shows_nothing(run: Run, runs: dict[str, Path]) -> None:
    result = run("compare", runs["before"], runs["no_work"])
    assert result.exit_code == ExitCode.EMPTY_SELECTION
    assert result.stdout == ""
    assert "nothing to show" in result.stderr


@pytest.mark.parametrize(
    ("by", "why"),
    [
        ("layer", "copies: no layers"),
        ("gemm", "copies: no GEMMs"),
        ("epilogue", "copies: no bias additions or activations"),
        ("summary", "no steps marked in copies: totals of whole recordings, no ratios"),
    ],
)
def test_a_run_without_rows_in_a_table_has_a_note(
    run: Run, runs: dict[str, Path], by: str, why: str
) -> None:
    result = run("compare", runs["before"], runs["copies"], "--by", by)
    assert result.exit_code == ExitCode.OK
    assert why in result.stdout


def test_the_input_is_never_written_over(run: Run, three: list[Path], tmp_path: Path) -> None:
    taken = tmp_path / "taken.csv"
    taken.write_text("kept")
    assert run("compare", *three, "-o", taken).exit_code == ExitCode.CANNOT_WRITE
    assert taken.read_text() == "kept"


def test_a_column_that_the_page_makes_of_the_rows_cannot_sort_them(
    run: Run, three: list[Path]
) -> None:
    result = run("compare", *three, "--by", "layer", "--sort", "ratio")
    assert result.exit_code == ExitCode.EMPTY_SELECTION
    assert "cannot sort by ratio" in result.stderr

"""Histories of runs: methods apart, changes with their cause, gates, and the rows of a store."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import traceana
from benchmarks.history_store import write_store
from tests.support.command_line import Run
from traceana.comparison import run_store
from traceana.comparison.history import History, items, run_history
from traceana.comparison.run_rows import ROW, run_row
from traceana.comparison.run_store import FILE, Rows, StoredRun, find_stored, rows_of, state_of
from traceana.comparison.verdicts import Criteria
from traceana.errors import ExitCode, NoSuchSelectionError, NotFoundError, UsageError
from traceana.report.pages import history as history_page

GPU = Path(__file__).parents[2] / "fixtures" / "gpu"
STEP = 20_000_000


def steps_of(name: str) -> list[int]:
    """Return the unprofiled step times of a recorded variant."""
    lines = (GPU / "variants.jsonl").read_text().splitlines()
    return next(row["steps_ns"] for row in map(json.loads, lines) if row["name"] == name)


def row(step: float, number: int, **facts: Any) -> dict[str, Any]:
    dated = {"date": f"2026-01-01T{number // 60:02}:{number % 60:02}:00Z", "devices": "H100"}
    return {"step_ns": round(step), "usual_ns": STEP // 100, **dated, **facts}


def past(rows: list[dict[str, Any]], order: Any = "date", paths: Any = None) -> History:
    runs = tuple(StoredRun(Path(f"run{number}")) for number in range(len(rows)))
    runs = runs if paths is None else tuple(StoredRun(Path(path)) for path in paths)
    frame = pl.DataFrame(rows, schema=ROW)
    return run_history(Rows(runs, frame, ()), [run.path.name for run in runs], Criteria(), order)


def noisy(levels: list[tuple[float, int]], seed: int = 0) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return runs of each level, relative to the step, with 1 % of noise."""
    rng = np.random.default_rng(seed)
    each = np.concatenate([np.full(count, level) for level, count in levels])
    return np.asarray(STEP * each * (1 + 0.01 * rng.standard_normal(len(each))))


def test_a_new_driver_is_another_line() -> None:
    steps = noisy([(1.0, 14), (1.05, 16)])
    history = past(
        [row(step, n, driver="570" if n < 14 else "580") for n, step in enumerate(steps)]
    )
    (change,) = history.changes.to_dicts()
    assert (change["kind"], change["run"], change["number"]) == ("method", "run14", 15)
    assert change["method"] == "driver: 570 → 580"
    assert change["low_ns"] <= 0.05 * STEP <= change["high_ns"]
    assert [len(line.places) for line in history.lines] == [14, 16]


def test_machines_that_alternate_are_two_lines_of_one_change() -> None:
    steps = noisy([(1.0, 40)])
    devices = ["H100", "A100"]
    rows = [row(step * (1 + n % 2), n, devices=devices[n % 2]) for n, step in enumerate(steps)]
    history = past(rows)
    assert history.changes["kind"].to_list() == ["method"]
    assert history.frame["line"].to_list() == [1, 2] * 20


def test_a_level_has_its_runs_and_interval() -> None:
    steps = noisy([(1.0, 30), (1.05, 20)])
    history = past([row(step, n) for n, step in enumerate(steps)])
    (change,) = history.changes.to_dicts()
    assert (change["kind"], change["run"], change["last"]) == ("step", "run30", "run29")
    assert (change["runs_before"], change["runs_after"]) == (30, 20)
    assert history.frame["level_ns"].n_unique() == 2
    assert history.noise == pytest.approx(0.01, rel=0.3)


def test_intervals_have_the_planted_change_as_often_as_said() -> None:
    inside = 0
    for seed in range(60):
        steps = noisy([(1.0, 30), (1.05, 20)], seed)
        changes = past([row(step, n) for n, step in enumerate(steps)]).changes
        largest = changes.sort("p").row(0, named=True)
        inside += largest["low_ns"] < 0.05 * STEP < largest["high_ns"]
    assert 52 <= inside < 60


@pytest.mark.parametrize(
    ("newest", "outcome"), [(1.0, "passed"), (1.04, "failed"), (0.9, "passed")]
)
def test_the_newest_run_is_judged_by_the_level_before_it(newest: float, outcome: str) -> None:
    """The level is that after the last change, and the newest run is not a part of it."""
    steps = [*noisy([(0.8, 20), (1.0, 20)]), STEP * newest]
    judged = past([row(step, n) for n, step in enumerate(steps)]).judged()
    assert judged.before == tuple(range(20, 40))
    assert judged.newest == (40,)
    assert judged.gated(0.02)[0] == outcome


def test_other_runs_of_the_newest_commit_count_with_it() -> None:
    steps = [*noisy([(1.0, 20)]), *noisy([(1.03, 4)], 1)]
    rows = [row(step, n, commit=f"{min(n, 20):040x}") for n, step in enumerate(steps)]
    judged = past(rows).judged()
    assert judged.newest == (20, 21, 22, 23)
    assert judged.gated(0.02)[0] == "failed"


def test_the_gate_needs_runs_of_one_method() -> None:
    steps = noisy([(1.0, 20)])
    rows = [row(step, n, batch=64 if n < 19 else 128) for n, step in enumerate(steps)]
    outcome, reason = past(rows).judged().gated(0.02)
    assert outcome == "inconclusive"
    assert reason == "0 runs of its method before it, 3 needed"


def test_the_level_of_a_folder() -> None:
    steps = [*noisy([(1.0, 10)]), *noisy([(1.2, 10)], 1), STEP * 1.2]
    paths = [f"{'main' if n < 10 else 'topic'}/run{n}" for n in range(21)]
    history = past([row(step, n) for n, step in enumerate(steps)], paths=paths)
    assert history.judged("main").before == tuple(range(10))
    assert history.judged("main").gated(0.1)[0] == "failed"
    assert history.judged("topic").gated(0.1)[0] == "passed"
    with pytest.raises(NoSuchSelectionError, match="--against nothing: no run"):
        history.judged("nothing")


def test_how_many_runs_show_a_change() -> None:
    """Drawn runs are judged slower as often as planned."""
    history = past([row(step, n) for n, step in enumerate(noisy([(1.0, 30)]))])
    needed = history.runs_until(0.02, 30)
    assert needed is not None
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(100):
        steps = STEP * (1 + history.noise * rng.standard_normal(30 + needed))
        steps[30:] *= 1.02
        rows = [row(step, n, commit=f"{min(n, 30):040x}") for n, step in enumerate(steps)]
        found += past(rows).judged().step.interval.low > 0  # type: ignore[union-attr]
    assert found >= 65
    assert history.runs_until(0.0001, 30) is None


def test_pinned_copies_in_resampled_steps() -> None:
    """Medians of steps drawn from those of a recording: one change, at its run."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        place = int(rng.integers(5, 30))
        names = ["alexnet_b128"] * place + ["alexnet_b128_pinned"] * (35 - place)
        steps = [float(np.median(rng.choice(steps_of(name), 5))) for name in names]
        changes = past([row(step, n, usual_ns=860_000) for n, step in enumerate(steps)]).changes
        assert changes["number"].to_list() == [place + 1]


def test_repeated_recordings_have_no_change() -> None:
    rng = np.random.default_rng(2)
    alarms = 0
    for _ in range(50):
        steps = [float(np.median(rng.choice(steps_of("alexnet_b128"), 5))) for _ in range(40)]
        rows = [row(step, n, usual_ns=860_000) for n, step in enumerate(steps)]
        alarms += past(rows).changes.height
    assert alarms <= 1


def test_items_have_their_last_change() -> None:
    rng = np.random.default_rng(0)
    rows = []
    for number in range(30):
        times = {"conv": 10_000_000, "copies": 4_000_000 if number < 20 else 1_000_000}
        listed = [
            {"by": "class", "item": item, "time_ns": round(time * (1 + 0.01 * rng.normal()))}
            for item, time in times.items()
        ]
        if number >= 10:
            listed.append({"by": "class", "item": "new", "time_ns": 2_000_000 + number % 3})
        listed.append({"by": "kernel", "item": "k", "time_ns": 1})
        rows.append(row(STEP, number, items=listed))
    history = past(rows)
    stored = Rows(history.runs, pl.DataFrame(rows, schema=ROW), ())
    frame = items(history, stored, "class")
    assert frame["item"].to_list() == ["conv", "new", "copies"]
    assert frame["run"].to_list() == [None, "run10", "run20"]
    assert frame["before_ns"].to_list()[1:] == [0, pytest.approx(4_000_000, rel=0.02)]
    assert frame["relative"][1] is None
    assert frame["share"].to_list() == pytest.approx([10 / 13, 2 / 13, 1 / 13], rel=0.02)


@pytest.mark.parametrize(
    ("order", "expected"), [("given", [0, 1, 2]), ("label", [2, 1, 0]), ("date", [1, 2, 0])]
)
def test_the_order_of_runs(order: str, expected: list[int]) -> None:
    rows = [row(STEP, 5), row(STEP, 1), row(STEP, 3)]
    history = past(rows, order, ["run10", "run9", "run1"])
    labels = ["run10", "run9", "run1"]
    assert history.frame["run"].to_list() == [labels[place] for place in expected]


def test_runs_without_a_date_need_another_order() -> None:
    with pytest.raises(UsageError, match="run1 has no date: --order given"):
        past([row(STEP, 0), row(STEP, 1) | {"date": None}])
    undated = past([row(STEP, 0) | {"date": None}, row(STEP, 1) | {"date": None}])
    assert undated.frame["run"].to_list() == ["run0", "run1"]


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
    made = subprocess.run(
        ["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return made.stdout.strip()


def test_the_order_of_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    commits = []
    for number in range(6):
        git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", str(number))
        commits.append(git(tmp_path, "rev-parse", "HEAD"))
    git(tmp_path, "checkout", "--quiet", "-b", "topic")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", "new")
    commits.append(git(tmp_path, "rev-parse", "HEAD"))
    monkeypatch.chdir(tmp_path)
    # Recorded in another order than committed; a description by git describe, and one shortened.
    named = [f"v1-3-g{commits[6][:12]}-dirty", *commits[:5], commits[5][:10]]
    rows = [row(STEP, n, commit=commit) for n, commit in enumerate(named)]
    history = past(rows, "commit")
    assert history.frame["commit"].to_list() == [*named[1:], named[0]]
    assert history.judged("main").before == tuple(range(6))
    with pytest.raises(UsageError, match="commit abcdef0123 is not in this repository"):
        past([row(STEP, 0, commit="abcdef0123")], "commit")
    with pytest.raises(UsageError, match="run 1 has no commit"):
        past([row(STEP, 0, commit="--all")], "commit")
    with pytest.raises(NoSuchSelectionError):
        history.judged("--all")


def test_one_slow_run_of_five_is_an_outlier() -> None:
    steps = [STEP * factor for factor in (1.0, 1.004, 1.3, 0.997, 1.001)]
    history = past([row(step, n) for n, step in enumerate(steps)])
    (change,) = history.changes.to_dicts()
    assert (change["kind"], change["run"], change["runs_before"]) == ("outlier", "run2", 4)
    assert change["relative"] == pytest.approx(0.3, abs=0.01)
    assert change["low_ns"] > 0
    (pair,) = history.pairs
    assert pair.after == 2


# In ms: two slow runs after three on a busy machine, and with a third one; two of very different
# size; the newest of eight; noise.
@pytest.mark.parametrize(
    ("steps", "first", "count"),
    [
        ((157, 125, 137, 301, 339), 3, 2),
        ((157, 125, 137, 301, 339, 321), 3, 3),
        ((130, 147, 142, 222, 493), 3, 2),
        ((100, 101, 99, 100, 102, 101, 99, 80), 7, 1),
        ((157, 125, 137, 164, 127), 0, 0),
    ],
)
def test_few_newest_runs_are_a_possible_change(
    steps: tuple[int, ...], first: int, count: int
) -> None:
    usual = {"usual_ns": 100_000_000 if steps[0] > 100 else 1_000_000}
    history = past([row(1e6 * step, n) | usual for n, step in enumerate(steps)])
    possible = history.changes.filter(kind="possible").to_dicts()
    assert [change["number"] - 1 for change in possible] == [first] * bool(count)
    settled = np.array(steps[: len(steps) - count])
    assert history.frame["level_ns"].unique().to_list() == [round(1e6 * settled.mean())]
    for change in possible:
        assert (change["runs_before"], change["runs_after"]) == (first, count)
        assert change["relative"] == pytest.approx(
            np.mean(steps[first:]) / np.mean(steps[:first]) - 1
        )
        assert not history.frame["outlier"].any()


def test_newest_runs_within_the_smallest_effect_are_of_the_level() -> None:
    steps = [STEP, STEP * 1.0001, STEP * 0.9999, STEP, STEP * 1.005, STEP * 1.005]
    history = past([row(step, n) for n, step in enumerate(steps)])
    assert history.newest.apart == 0
    assert history.changes.is_empty()
    assert history.frame["level_ns"][-1] > STEP * 1.001


def test_the_level_of_the_gate_is_that_of_the_page() -> None:
    """Both exclude the runs that are apart."""
    history = past([row(1e6 * step, n) for n, step in enumerate((130, 147, 142, 222, 493))])
    assert round(history.judged().step.a) == history.frame["level_ns"][-1]
    assert history.judged().before == (0, 1, 2)


def test_a_level_counts_its_own_runs() -> None:
    """The line of the level leaves out the outlier, and the note names it."""
    history = past([row(STEP * f, n) for n, f in enumerate((1, 1.01, 1.3, 0.99, 1.002))])
    lines = dict(history_page._head(history))
    assert lines["Level"].endswith("mean of 4 runs, run0 to run4")
    assert any(text.endswith("level: run2") for text in history_page._notes(history))


def recorded_store(folder: Path, *variants: tuple[str, int]) -> Path:
    """Return a folder of recordings of ``variants``, so many of each; steps are drawn from theirs.

    The row of each variant is computed once.
    """
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for name, count in variants:
        made: dict[str, Any] = {}
        for _ in range(count):
            file = folder / f"run-{len(rows):02}.json.gz"
            shutil.copy(GPU / f"{name}.json.gz", file)
            made = made or run_row(traceana.open(file))
            drawn = round(float(np.median(rng.choice(steps_of(name), 5))))
            facts = {"step_ns": drawn, "date": f"2026-01-{len(rows) + 1:02}T00:00:00Z"}
            rows.append({"name": file.name, "state": state_of(file), **made, **facts})
    schema = {"name": pl.String, "state": pl.String, **ROW}
    pl.DataFrame(rows, schema=schema).write_parquet(folder / FILE)
    return folder


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten recordings of one program, then five with pinned copies."""
    folder = tmp_path_factory.mktemp("store")
    return recorded_store(folder, ("alexnet_b128", 10), ("alexnet_b128_pinned", 5))


def test_precision_and_layout_are_changes_of_method(tmp_path: Path, run: Run) -> None:
    variants = ("alexnet_b128", 5), ("alexnet_b128_tf32", 5), ("alexnet_b128_nhwc_tf32", 5)
    recorded_store(tmp_path, *variants)
    reported = json.loads(run("history", tmp_path, "-f", "json").stdout)
    changes = [change for change in reported["sections"]["changes"] if change["kind"] == "method"]
    assert [(change["run"], change["method"]) for change in changes] == [
        ("run-05", "precision: fp32 → tf32"),
        ("run-10", "memory format: contiguous → channels_last"),
    ]
    assert changes[0]["relative"] == pytest.approx(-0.33, abs=0.05)
    assert changes[0]["high_ns"] < 0
    causes = {(cause["run"], cause["change"]) for cause in reported["sections"]["causes"]}
    assert {("run-05", "precision"), ("run-10", "memory_format")} <= causes
    assert len(reported["meta"]["methods"]) == 3


def test_a_change_has_its_cause(store: Path, run: Run) -> None:
    result = run("history", store)
    assert result.exit_code == ExitCode.OK
    assert "1. level from run-10 on (run 11)" in result.stdout
    assert "HtoD host memory pageable → pinned" in result.stdout
    reported = json.loads(run("history", store, "-f", "json").stdout)
    (change,) = reported["sections"]["changes"]
    assert (change["run"], change["kind"]) == ("run-10", "step")
    kinds = {
        cause["change"] for cause in reported["sections"]["causes"] if cause["run"] == "run-10"
    }
    assert "host_memory" in kinds
    assert reported["meta"]["methods"][0]["driver"] is None


@pytest.mark.parametrize("by", ["class", "layer", "kernel"])
def test_the_history_of_items(store: Path, run: Run, by: str) -> None:
    reported = json.loads(run("history", store, "--by", by, "--no-diff", "-f", "json").stdout)
    changed = {row["item"]: row["run"] for row in reported["rows"] if row["run"]}
    if by == "class":
        assert changed["memcpy: HtoD"] == "run-10"
    # The step is shorter than the summed time where work overlaps.
    assert sum(row["share"] for row in reported["rows"]) == pytest.approx(1, abs=0.02)
    assert set(changed.values()) <= {"run-10"}


@pytest.mark.parametrize("format_", ["csv", "md", "html"])
def test_a_history_in_other_formats(store: Path, run: Run, format_: str) -> None:
    assert "run-10" in run("history", store, "--no-diff", "-f", format_).stdout


def test_the_gate_of_the_command(store: Path, run: Run) -> None:
    words = ["history", store, "--no-diff", "--order", "label", "--fail-if-slower", "3%"]
    assert run(*words).exit_code == ExitCode.OK
    # The newest run of the slow program.
    slow = [store / f"run-{number:02}.json.gz" for number in (12, 13, 14, 0)]
    failed = run(
        "history", *slow, "--no-diff", "--order", "given", "--fail-if-slower", "3%",
        "--on-inconclusive", "fail",
    )  # fmt: skip
    assert failed.exit_code == ExitCode.GATE_FAILED
    assert "slower by" in failed.stderr
    few = run("history", *slow[2:], "--no-diff", "--order", "given", "--fail-if-slower", "3%")
    assert few.exit_code == ExitCode.OK
    assert "1 runs of its method before it, 3 needed: passed" in few.stderr
    assert run("history", store, "--against", "main").exit_code == ExitCode.USAGE


def test_rows_are_kept_and_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = GPU.parent / "alexnet-cpu-ranges.json.gz"
    for name in ("a.json.gz", "b.json.gz"):
        shutil.copy(source, tmp_path / name)
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "notes.txt").write_text("no trace")
    runs = find_stored([tmp_path])
    assert [run.path.name for run in runs] == ["a.json.gz", "b.json.gz", "broken.json"]
    rows = rows_of(runs)
    assert rows.frame.height == 2
    assert rows.left_out[0].startswith(str(tmp_path / "broken.json"))
    opened: list[Path] = []

    def made(path: Path) -> dict[str, Any]:
        opened.append(path)
        return run_row(traceana.open(path))

    monkeypatch.setattr(run_store, "_row", made)
    again = rows_of(runs[:2], items=True)
    assert not opened
    assert again.frame.drop("items").equals(rows.frame)
    assert all(again.frame["items"].list.len())
    (tmp_path / "a.json.gz").write_bytes(source.read_bytes() + b"")
    (tmp_path / "c.json.gz").write_bytes(source.read_bytes())
    rows_of([run for run in find_stored([tmp_path]) if run.path.suffix == ".gz"])
    assert {path.name for path in opened} == {"a.json.gz", "c.json.gz"}
    # Damaged rows are made again.
    (tmp_path / FILE).write_bytes(b"PAR1 nothing")
    opened.clear()
    rows_of(runs[:1])
    assert [path.name for path in opened] == ["a.json.gz"]


def test_bundles_keep_what_they_were_recorded_with(tmp_path: Path) -> None:
    bundle = traceana.open(GPU / "run_alexnet").save(tmp_path / "store" / "night1")
    facts = rows_of(find_stored([tmp_path / "store"])).frame.row(0, named=True)
    assert facts["driver"] == "580.159.04"
    assert facts["framework"] == "PyTorch 2.11.0"
    assert (tmp_path / "store" / FILE).exists()
    again = traceana.open(bundle).save(tmp_path / "anonymous", anonymize=True)
    assert rows_of([StoredRun(again)]).frame["driver"].item() is None


def test_many_kept_runs_are_read_without_their_traces(tmp_path: Path) -> None:
    places = write_store(tmp_path, 500, changes=3)
    result = traceana.history(tmp_path)
    assert result.frame.height == 500
    assert result.summary.changes["number"].to_list() == pytest.approx(places, abs=1)


def test_no_run_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(NoSuchSelectionError, match="no run with a step time"):
        traceana.history(tmp_path)
    with pytest.raises(NotFoundError):
        traceana.history(tmp_path / "nothing")
    with pytest.raises(UsageError, match="1 labels for 2 runs"):
        traceana.history(
            [GPU / "alexnet_b128.json.gz", GPU / "alexnet_b64.json.gz"], labels=["one"]
        )


def test_runs_that_were_timed_without_a_profiler(tmp_path: Path) -> None:
    for number in range(3):
        shutil.copytree(GPU / "sweep_alexnet" / "batch=4", tmp_path / f"night{number}")
    result = traceana.history(tmp_path)
    assert result.frame["step_ns"].to_list() == [4_475_483] * 3
    assert result.frame["batch"].to_list() == [4] * 3
    assert result.frame["profiler"].to_list() == ["none"] * 3
    by_layer = traceana.history(tmp_path, by="layer")
    assert by_layer.frame.is_empty()
    assert by_layer.notes[0] == "no time by layer in the runs of the newest method"


def test_rows_from_elsewhere_are_checked(tmp_path: Path) -> None:
    shutil.copytree(GPU / "sweep_alexnet" / "batch=4", tmp_path / "night")
    runs = find_stored([tmp_path])
    rows_of(runs)
    kept = pl.read_parquet(tmp_path / FILE)
    for value in (None, -1, 0):
        changed = kept.with_columns(pl.lit(value, pl.Int64).alias("step_ns"))
        changed.write_parquet(tmp_path / FILE)
        assert rows_of(runs).frame["step_ns"].item() == 4_475_483
    kept.drop("step_ns").write_parquet(tmp_path / FILE)
    assert rows_of(runs).frame["step_ns"].item() == 4_475_483


def test_a_single_run(run: Run) -> None:
    text = run("history", GPU / "alexnet_b128.json.gz").stdout
    assert text.startswith("Runs    1 run, alexnet_b128")
    assert "Changes  none" in text.replace("   ", "  ")


@pytest.mark.parametrize(
    "hostile", ["\x1b[31mred", "=cmd()", "<script>x</script>", "\u202e" + "x" * 500]
)
def test_hostile_labels(store: Path, run: Run, hostile: str) -> None:
    files = sorted(store.glob("run-*.gz"))[:2]
    words = ["history", *files, "--label", hostile, "--label", "b", "--no-diff"]
    for format_ in ("table", "md", "html", "csv"):
        text = run(*words, "-f", format_).stdout
        assert "\x1b" not in text
        assert format_ != "html" or "<script>x" not in text

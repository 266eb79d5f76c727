"""``traceana ranks``: the sums of every rank, waits, clocks and stragglers of jobs made for it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import traceana
from tests.job.jobs import TRANSFER_NS, Job, even
from tests.support.command_line import Run
from tests.support.manifest import FIXTURES, TRACES
from tests.support.opened import opened
from traceana.analyze.collective_ranks import by_rank
from traceana.analyze.devices import devices
from traceana.errors import ExitCode, NotFoundError
from traceana.job import rank_summary, ranks
from traceana.job.rank_summary import FACTS, TABLES
from traceana.job.ranks import _status
from traceana.report.page import Chart, Facts, pictures_of

pytestmark = pytest.mark.usefixtures("in_threads")

DLRM = TRACES / "kineto" / "dlrm_8xv100"


@pytest.fixture
def keep(tmp_path: Path) -> Path:
    return tmp_path / "kept"


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a job whose rank 2 is late in each step, and the folder that keeps its summaries."""
    compute = even(4, 12, 1, spread=0)
    compute[2] += 1_000_000
    folder = tmp_path_factory.mktemp("late")
    Job(compute).write(folder / "job")
    return folder / "job", folder / "kept"


def document(run: Run, *words: object) -> Any:
    result = run("ranks", *words, "-f", "json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_a_straggler_its_cause_and_what_the_others_wait(late: tuple[Path, Path], run: Run) -> None:
    job, keep = late
    found = document(run, job, "--keep", keep, "--workers", 1)
    rows = {row["rank"]: row for row in found["rows"]}
    assert [row["rank"] for row in found["rows"]] == [2, 0, 1, 3]
    for rank, row in rows.items():
        is_late = rank == 2
        assert (row["status"], row["kernels"], row["steps"]) == ("ok", 12 * 3, 12)
        assert row["compute_ns"] == 12 * (11_000_000 if is_late else 10_000_000)
        assert row["wait_ns"] == (0 if is_late else 12 * 1_000_000)
        assert row["communication_ns"] == row["wait_ns"] + 12 * TRANSFER_NS
        assert row["exposed_communication_ns"] == row["communication_ns"]
        assert row["step_median_ns"] == 11_000_000 + TRANSFER_NS
        assert row["last_count"] == (12 if is_late else 0)
        assert row["delay_ns"] == (12 * 1_000_000 if is_late else 0)
        assert row["straggler"] is is_late
    (straggler, *_) = found["sections"]["stragglers"]
    assert (straggler["rank"], straggler["excess_ns"], straggler["longest"]) == (2, 1_000_000, 12)
    assert straggler["excess_share"] == pytest.approx(1_000_000 / (10_000_000 + TRANSFER_NS))
    assert straggler["cause"] == "compute: kernels of equal number take 1.10 times as long"
    (reduced,) = found["sections"]["collectives"]
    assert (reduced["collective"], reduced["message_bytes"]) == ("all_reduce", 4000)
    assert (reduced["count"], reduced["last_rank"], reduced["last_count"]) == (12, 2, 12)
    assert reduced["transfer_ns"] == 4 * 12 * TRANSFER_NS
    (group,) = found["sections"]["groups"]
    assert (group["group_size"], group["ranks"], group["bytes"]) == (4, 4, 4 * 12 * 4000)


@pytest.mark.slow
def test_clocks_are_compared_by_the_ends_of_collectives(tmp_path: Path, keep: Path) -> None:
    ahead = {1: 250_000, 2: -40_000, 3: 3_000}
    Job(even(5, 10, 2), clock_ns=ahead).write(tmp_path / "job")
    frame = traceana.ranks(tmp_path / "job", keep=keep, workers=1).frame
    for row in frame.iter_rows(named=True):
        expected = ahead.get(row["rank"], 0)
        assert abs(row["clock_offset_ns"] - expected) <= row["clock_uncertainty_ns"]
        assert row["clock_uncertainty_ns"] < 10_000


# A parameter, so that the worker that has opened this trace for other tests runs it.
@pytest.mark.exhaustive
@pytest.mark.parametrize("folder", [DLRM], ids=lambda folder: folder.name)
@pytest.mark.skipif(not DLRM.is_dir(), reason="no shared traces")
def test_the_figures_are_those_of_one_trace_of_all_ranks(folder: Path, keep: Path) -> None:
    frame = traceana.ranks(folder, keep=keep).frame.sort("rank")
    whole = opened(folder)
    kernels = (
        whole.tables.activities.filter(pl.col("kind") == "kernel")
        .group_by("rank")
        .agg(pl.len().alias("kernels"), pl.col("duration").sum().alias("kernel_ns"))
        .sort("rank")
    )
    assert frame["kernels"].to_list() == kernels["kernels"].to_list()
    assert frame["kernel_ns"].to_list() == kernels["kernel_ns"].to_list()
    by_device = devices(whole).frame.sort("rank")
    for own, other in (
        ("span_ns", "span_ns"),
        ("busy_ns", "busy_ns"),
        ("communication_ns", "collective_ns"),
        ("exposed_communication_ns", "collective_exposed_ns"),
        ("copy_ns", "copy_ns"),
        ("exposed_copy_ns", "copy_exposed_ns"),
    ):
        assert frame[own].to_list() == by_device[other].to_list(), own
    waits = by_rank(whole).frame.group_by("rank").agg(pl.col("wait_ns", "last_count").sum())
    waits = waits.sort("rank")
    assert frame["wait_ns"].to_list() == waits["wait_ns"].to_list()
    assert frame["last_count"].to_list() == waits["last_count"].to_list()


def test_ranks_that_cannot_be_read_have_a_row(tmp_path: Path, keep: Path, run: Run) -> None:
    files = Job(even(5, 8, 3)).write(tmp_path / "job")
    files[1].unlink()
    files[3].write_bytes(b"")
    whole = files[4].read_bytes()
    files[4].write_bytes(whole[: len(whole) // 2])
    result = run("ranks", tmp_path / "job", "--keep", keep, "--workers", 1, "-f", "json")
    assert result.exit_code == 0, result.stderr
    rows = {row["rank"]: row for row in json.loads(result.stdout)["rows"]}
    assert {rank: row["status"] for rank, row in rows.items()} == {
        0: "ok",
        1: "missing",
        2: "ok",
        3: "not read",
        4: "damaged",
    }
    assert rows[1]["kernels"] is None
    assert "empty" in rows[3]["reason"]
    assert rows[4]["reason"] == "truncated file"
    assert 0 < rows[4]["kernels"] < rows[0]["kernels"]
    assert "rank 3 not read: " in result.stderr
    assert "1 rank missing, without a file: 1" in result.stderr
    # What is missing has nothing to show.
    assert json.loads(result.stdout)["rows"][-1]["rank"] == 1
    shown = run("ranks", tmp_path / "job", "--keep", keep, "--workers", 1).stdout
    assert "1 missing: 1" in shown
    assert "no file of this rank" not in shown
    strict = run("ranks", tmp_path / "job", "--keep", keep, "--workers", 1, "--strict")
    assert strict.exit_code == ExitCode.DAMAGED_INPUT


def test_work_launched_before_the_capture_is_no_damage() -> None:
    assert _status(rank_summary.Facts(source="x", problems={"no_launch": 64})) == ("ok", None)
    status, reason = _status(
        rank_summary.Facts(source="x", problems={"no_launch": 64, "duplicate": 2})
    )
    assert status == "damaged"
    assert reason == "integrity problems: 2: events recorded twice, identical"


@pytest.mark.slow
def test_a_truncated_rank_does_not_hide_the_straggler(tmp_path: Path, keep: Path, run: Run) -> None:
    compute = even(5, 30, 6)
    compute[1] += 1_000_000
    ahead = {3: 70_000}
    files = Job(compute, clock_ns=ahead).write(tmp_path / "job")
    whole = files[3].read_bytes()
    files[3].write_bytes(whole[: len(whole) // 5])
    found = document(run, tmp_path / "job", "--keep", keep, "--workers", 1)
    rows = {row["rank"]: row for row in found["rows"]}
    assert [rank for rank, row in rows.items() if row["straggler"]] == [1]
    assert found["sections"]["stragglers"][0]["steps"] == 30
    assert rows[0]["wait_ns"] > 29 * 900_000
    # Clocks are compared by what the truncated rank has.
    assert abs(rows[3]["clock_offset_ns"] - 70_000) <= rows[3]["clock_uncertainty_ns"]
    assert rows[3]["wait_ns"] is None
    assert (
        "own time, waits, last to arrive: without 1 rank with few steps: 3"
        in found["meta"]["notes"]
    )


def test_without_a_rank_that_can_be_read(tmp_path: Path, keep: Path, run: Run) -> None:
    (tmp_path / "rank0.json").write_bytes(b"")
    file = tmp_path / "rank0.json"
    result = run("ranks", file, "--keep", keep, "--workers", 1)
    assert result.exit_code == ExitCode.DAMAGED_INPUT
    assert f"rank 0 not read: {file} is empty" in result.stderr
    assert result.stderr.count(str(file)) == 1


@pytest.mark.exhaustive
def test_a_saved_bundle_of_all_ranks_has_the_same_rows(
    late: tuple[Path, Path], tmp_path: Path
) -> None:
    job, keep = late
    files = sorted(job.iterdir())
    traceana.open(job).save(tmp_path / "bundle")
    columns = ["rank", "kernels", "kernel_ns", "busy_ns", "step_median_ns", "wait_ns"]
    each = traceana.ranks(files, keep=keep, workers=1).frame.select(columns)
    assert traceana.ranks(tmp_path / "bundle", keep=keep).frame.select(columns).equals(each)


@pytest.mark.parametrize(
    ("fixture", "host"),
    [("alexnet-cpu-nsys-2024.2.sqlite", "traceana"), ("alexnet-cpu-ranges.json.gz", None)],
)
def test_the_host_of_a_rank_where_it_is_recorded(
    fixture: str, host: str | None, keep: Path
) -> None:
    assert traceana.ranks(FIXTURES / fixture, keep=keep).frame["host"].to_list() == [host]


@pytest.mark.slow
def test_many_ranks_are_put_together_as_a_tree(
    tmp_path: Path, keep: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = even(5, 10, 6)
    compute[4] += 1_000_000
    Job(compute, clock_ns={3: 5_000}).write(tmp_path / "job")
    words = ("ranks", tmp_path / "job", "--keep", keep, "--workers", 1, "-f", "json")
    direct = run(*words).stdout_bytes
    merged: list[Path] = []
    merge = ranks._merge

    def counted(
        parts: Sequence[tuple[int | None, Path]], names: Sequence[str], target: Path
    ) -> None:
        assert len(parts) <= 2
        merged.append(target)
        merge(parts, names, target)

    monkeypatch.setattr(ranks, "_merge", counted)
    monkeypatch.setattr(ranks, "FEW", 2)
    monkeypatch.setattr(ranks, "AT_ONCE", 2)
    assert run(*words).stdout_bytes == direct
    # Five ranks are put together as three and two, and so are their kernels, which only the cause
    # of a straggler needs.
    assert len(merged) == 2 * (3 + 2)
    assert not any(target.exists() for target in merged)


def test_a_process_that_dies_while_they_are_put_together_is_not_missed(
    late: tuple[Path, Path], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, keep = late
    words = ("ranks", job, "--keep", keep, "--workers", 1, "-f", "json")
    direct = run(*words).stdout_bytes
    monkeypatch.setattr(ranks, "FEW", 2)
    monkeypatch.setattr(ranks, "AT_ONCE", 2)

    def died(*_: object) -> None:
        raise BrokenProcessPool

    monkeypatch.setattr(ranks, "_merge", died)
    assert run(*words).stdout_bytes == direct


@pytest.mark.slow
def test_a_summary_is_used_again_until_its_file_changes(tmp_path: Path, keep: Path) -> None:
    files = Job(even(2, 8, 5)).write(tmp_path / "job")
    before = traceana.ranks(files, keep=keep, workers=1).frame
    written = {path: path.stat().st_mtime_ns for path in keep.rglob("*.parquet")}
    assert len(written) == 2 * len(TABLES)
    # What is not as it was written is made anew.
    (damaged, *_) = sorted(keep.glob("*/*/kernels.parquet"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert traceana.ranks(files, keep=keep, workers=1).frame.equals(before)
    now = {path: path.stat().st_mtime_ns for path in keep.rglob("*.parquet")}
    changed = {path.parent for path in now if written[path] != now[path]}
    assert changed == {damaged.parent}
    # So is that of a version with other columns.
    (other, *_) = sorted(keep.glob(f"*/*/{FACTS}"))
    facts = json.loads(other.read_text())
    other.write_text(json.dumps({**facts, "layout": facts["layout"] + 1}))
    assert traceana.ranks(files, keep=keep, workers=1).frame.equals(before)
    assert json.loads(other.read_text()) == facts
    Job(even(2, 9, 5)).write(tmp_path / "job")
    assert traceana.ranks(files, keep=keep, workers=1).frame["steps"].to_list() == [9, 9]


@pytest.mark.slow
def test_shards_add_up_to_the_whole(tmp_path: Path, keep: Path, run: Run) -> None:
    Job(even(4, 8, 6)).write(tmp_path / "job")
    (tmp_path / "job" / "rank3.json").write_bytes(b"")
    whole = run("ranks", tmp_path / "job", "--keep", keep, "--workers", 2, "-f", "json")
    shards = tmp_path / "shards"
    for number in (2, 1, 3):
        words = ("--shard", f"{number}/3", "--keep", shards, "--workers", 1)
        done = run("ranks", tmp_path / "job", *words)
        assert done.exit_code == 0, done.stderr
    merged = run("ranks", "--merge", shards, "-f", "json")
    assert merged.exit_code == 0
    assert merged.stdout == whole.stdout


@pytest.mark.parametrize("shard", ["0/3", "4/3", "1", "a/b", "1/0", "-1/2", ""])
def test_a_shard_is_i_of_n(shard: str, tmp_path: Path, keep: Path, run: Run) -> None:
    Job(even(1, 1, 6)).write(tmp_path / "job")
    result = run("ranks", tmp_path / "job", f"--shard={shard}", "--keep", keep)
    assert result.exit_code == ExitCode.USAGE
    assert "use i/N with i from 1 to N" in result.stderr


def test_nothing_to_read_or_to_merge(tmp_path: Path, run: Run) -> None:
    with pytest.raises(NotFoundError):
        traceana.ranks([])
    assert run("ranks", tmp_path / "none").exit_code == ExitCode.NOT_FOUND
    assert run("ranks", "--merge", tmp_path).exit_code == ExitCode.NOT_FOUND
    assert run("ranks", tmp_path, "--shard", "1/2").exit_code == ExitCode.USAGE
    assert run("ranks", tmp_path, "--merge", tmp_path).exit_code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--rules", "none.toml"), ExitCode.NOT_FOUND),
        (("--rules", "bad.toml"), ExitCode.INVALID_FILE),
        (("--step-marker", "("), ExitCode.USAGE),
    ],
)
def test_wrong_options_are_one_line(
    words: tuple[str, str],
    code: ExitCode,
    tmp_path: Path,
    keep: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Job(even(2, 4, 7)).write(tmp_path / "job")
    (tmp_path / "bad.toml").write_text("[")
    monkeypatch.chdir(tmp_path)
    result = run("ranks", tmp_path / "job", "--keep", keep, "--workers", 1, *words)
    assert result.exit_code == code
    assert len(result.stderr.splitlines()) == 1


def test_two_files_of_one_rank_are_refused(
    late: tuple[Path, Path], tmp_path: Path, run: Run
) -> None:
    job, keep = late
    # A summary is that of the file that a link leads to.
    shutil.copytree(job, tmp_path / "job", copy_function=os.symlink)
    shutil.copy(tmp_path / "job" / "rank0.json", tmp_path / "job" / "rank5.json")
    result = run("ranks", tmp_path / "job", "--keep", keep, "--workers", 1)
    assert result.exit_code == ExitCode.USAGE
    assert "are both rank 0" in result.stderr


def test_the_first_screen(
    late: tuple[Path, Path], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, keep = late
    shown = run("ranks", job, "--keep", keep, "--workers", 1).stdout
    text = " ".join(shown.split())
    assert "Ranks 4 of 4 read" in text
    assert (
        "Stragglers rank 2 arrives last in 12 of 12 collectives, the others wait 1.00 ms per step; "
        "own time 1.00 ms (9.6 %) above the median rank's compute: kernels of equal number take"
    ) in text
    assert "48 of 48 matched across ranks" in shown
    # 1 of 10.4 ms is between 5 and 10 %.
    heat = shown[shown.index("own time, steps 0 to 11") :].splitlines()[1:5]
    assert [line.split() for line in heat] == [
        [rank, ("▒" if rank == "2" else "·") * 12] for rank in "0123"
    ]
    assert max(map(len, shown.splitlines())) <= 100
    assert "the largest of" not in shown
    monkeypatch.setattr("traceana.report.pages.ranks.MOST_CELLS", 6)
    shown = run("ranks", job, "--keep", keep, "--workers", 1).stdout
    assert "above the step's median rank, the largest of 2 steps" in shown
    monkeypatch.setattr("traceana.report.pages.ranks.MOST_ROWS", 2)
    shown = run("ranks", job, "--keep", keep, "--workers", 1).stdout
    heat = shown[shown.index("own time, steps 0 to 11") :].splitlines()[1:3]
    assert [line.split() for line in heat] == [["0-1", "0", "·" * 6], ["2-3", "2", "▒" * 6]]
    assert "above the step's median rank, the largest of 2 ranks and 2 steps" in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("delays", "line"),
    [
        # Two steps are too few for a verdict, and the rank that is early is not the slow one.
        (
            {1: -4_000_000, 3: 2_000_000},
            "not determined: 2 steps, at least 3 needed · rank 3 arrives last in 2 of 2 "
            "collectives, the others wait 3.33 ms per step",
        ),
        # A wait of 0.1 % of the step is not worth a line.
        ({3: 10_000}, "not determined: 2 steps, at least 3 needed"),
    ],
)
def test_who_arrives_last_is_told_without_a_straggler(
    delays: dict[int, int], line: str, tmp_path: Path, keep: Path
) -> None:
    compute = even(4, 2, 1, spread=0)
    for rank, delay in delays.items():
        compute[rank] += delay
    Job(compute).write(tmp_path / "job")
    found = traceana.ranks(tmp_path / "job", keep=keep, workers=1)
    (facts,) = (block for block in found.page().blocks if isinstance(block, Facts))
    assert dict(facts.rows)["Stragglers"] == line
    assert found.frame["rank"][0] == 3


def test_pictures_have_the_figures_of_the_rows(late: tuple[Path, Path]) -> None:
    job, keep = late
    found = traceana.ranks(job, keep=keep, workers=1)
    parts, exposed, cells, steps, types = pictures_of(found.illustrated())
    assert types.title == "Time of each rank by type of work"
    assert isinstance(parts, Chart)
    assert isinstance(cells, Chart)
    assert isinstance(steps, Chart)
    assert isinstance(exposed, Chart)
    (bars,), (shades,), (lines,) = parts.marks, cells.marks, steps.marks
    each = found.page().data.sections["steps"].frame
    assert shades.frame["excess_share"].sort().to_list() == each["excess_share"].sort().to_list()
    summed = bars.frame.group_by("rank").agg(pl.col("time_ns").sum()).sort("rank")
    spans = found.frame.sort("rank")["span_ns"]
    assert summed["time_ns"].to_list() == spans.to_list()
    waits = exposed.marks[0].frame.group_by("rank").agg(pl.col("time_ns").sum()).sort("rank")
    communication = found.frame.sort("rank")["exposed_communication_ns"]
    assert waits["time_ns"].to_list() == communication.to_list()
    assert set(lines.frame["of"]) == {*(f"rank {number}" for number in range(4)), "median rank"}
    walls = found.frame["step_max_ns"].max()
    assert lines.frame.filter(pl.col("own_ns") > walls).is_empty()


def test_a_picture_is_written(late: tuple[Path, Path], tmp_path: Path, run: Run) -> None:
    job, keep = late
    target = tmp_path / "ranks.svg"
    words = ("--keep", keep, "--workers", 1, "--plot", target, "-o", tmp_path / "ranks.html")
    assert run("ranks", job, *words).exit_code == 0
    assert "rank 1" in target.read_text("utf-8")
    assert "rank 1" in (tmp_path / "ranks.html").read_text("utf-8")

"""The files of a distributed run are one Trace, with the rank of every row and one clock."""

from __future__ import annotations

import gzip
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

import traceana
from tests.readers.kineto.writing import annotation, call, kernel, op, write
from tests.support.command_line import Run
from tests.support.manifest import TRACES
from traceana.analyze.devices import busy
from traceana.errors import (
    CorruptError,
    ExitCode,
    ManifestWarning,
    NoSuchSelectionError,
    NotATraceError,
    NotFoundError,
    UnknownFormatError,
    UsageError,
)
from traceana.report.pages.info import info
from traceana.report.terminal import Terminal, render
from traceana.timeline.steps import select
from traceana.trace import Trace

BASE = 1_700_000_000 * 10**9


def rank_file(path: Path, rank: int | None, *, late_us: int = 0, name: str = "k") -> Path:
    """Write a trace whose first event is ``late_us`` after the common start."""
    events = [
        annotation("ProfilerStep#4", 100 + late_us, 50),
        op("aten::relu", 101 + late_us, 10),
        call("cudaLaunchKernel", 102 + late_us, 2, 9),
        kernel(name, 110 + late_us, 5, correlation=9),
    ]
    if rank is None:
        return write(path, events, baseTimeNanoseconds=BASE)
    reported = {"rank": rank, "world_size": 2}
    return write(path, events, baseTimeNanoseconds=BASE, distributedInfo=reported)


def layer_of(trace: Trace) -> list[str]:
    return trace.tables.layers["path"].gather(trace.tables.activities["layer"]).to_list()


def test_rows_carry_their_rank_and_their_references(tmp_path: Path) -> None:
    rank_file(tmp_path / "a.json", 1, late_us=30, name="late")
    rank_file(tmp_path / "b.json", 0, name="early")
    trace = traceana.open(tmp_path)
    rows = trace.tables.activities.sort("rank")
    names = trace.tables.names["name"].gather(rows["name_id"]).to_list()
    assert list(zip(rows["rank"], names, rows["start"], strict=True)) == [
        (0, "early", 10_000),
        (1, "late", 40_000),
    ]
    for table, column in (("calls", "call"), ("ops", "op"), ("ranges", "range"), ("steps", "step")):
        assert trace.tables[table]["rank"].gather(rows[column]).to_list() == [0, 1]
    assert layer_of(trace) == ["relu_0", "relu_0"]
    assert trace.tables.layers.height == 1
    assert trace.meta.epoch_ns == BASE + 100_000
    assert trace.meta.world_size == 2
    assert list(trace.meta.properties["ranks"]) == ["1", "0"]


def test_process_groups_are_those_of_their_rank(tmp_path: Path) -> None:
    for rank in (0, 1):
        group = {"Process Group Name": str(rank), "Process Group Ranks": "[0, 1]", "Group size": 2}
        write(
            tmp_path / f"rank{rank}.json",
            [kernel("ncclDevKernel_AllReduce(x)", 1, 1, **group)],
            distributedInfo={"rank": rank, "world_size": 2},
        )
    trace = traceana.open(tmp_path)
    rows = trace.tables.activities.sort("rank")
    assert trace.tables.process_groups["rank"].gather(rows["process_group"]).to_list() == [0, 1]
    assert trace.tables.process_groups["name"].gather(rows["process_group"]).to_list() == ["0", "1"]


def test_ranks_by_name_and_by_order(tmp_path: Path) -> None:
    named = [rank_file(tmp_path / f"run_rank{i}.json", None) for i in (10, 2)]
    assert set(traceana.open(named).tables.activities["rank"]) == {10, 2}
    plain = [rank_file(tmp_path / f"{host}.json", None) for host in ("alpha", "beta")]
    assert traceana.open(plain).tables.activities["rank"].to_list() == [0, 1]


def test_numbers_that_cannot_be_ranks_give_way_to_the_file_names(tmp_path: Path) -> None:
    rank_file(tmp_path / "rank4.json", 2**31)
    rank_file(tmp_path / "rank5.json", -1)
    trace = traceana.open(tmp_path)
    assert trace.meta.properties["rank_source"] == "file names"
    assert sorted(trace.tables.activities["rank"].unique()) == [4, 5]


def test_an_epoch_that_no_clock_shows_is_unknown(tmp_path: Path) -> None:
    events = [kernel("k", 10, 5)]
    for rank, base in enumerate((BASE, 2**63 - 1, -(2**63))):
        told = {"rank": rank, "world_size": 3}
        path = tmp_path / f"{rank}.json"
        write(path, events, baseTimeNanoseconds=base, distributedInfo=told)
    trace = traceana.open(tmp_path)
    assert trace.tables.activities["start"].to_list() == [0, 0, 0]
    ledger = trace.tables.ledger.filter(trace.tables.ledger["reason"] == "no_epoch")
    assert ledger["count"].to_list() == [2]


YEAR_US = 364 * 24 * 3600 * 10**6
TOO_LARGE = "times or bytes whose sum with those of the other ranks exceeds 64 bits"


def test_ranks_whose_times_cannot_be_added_up_are_left_out(tmp_path: Path) -> None:
    many = [kernel("k", 10 + i, YEAR_US, stream=i) for i in range(100)]
    for rank, events in enumerate((many, [kernel("k", 10, 5)], many, many)):
        told = {"rank": rank, "world_size": 4}
        path = tmp_path / f"{rank}.json"
        write(path, events, baseTimeNanoseconds=BASE, distributedInfo=told)
    trace = traceana.open(tmp_path)
    durations = trace.tables.activities["duration"]
    assert durations.sum() == sum(durations.to_list()) > 0
    assert trace.tables.activities["rank"].unique().sort().to_list() == [0, 1]
    lost = trace.tables.ledger.filter(pl.col("reason") == "skipped_file")["detail"].to_list()
    assert lost == [f"{tmp_path / name}: {TOO_LARGE}" for name in ("2.json", "3.json")]


def test_ranks_whose_idle_time_cannot_be_added_up_are_left_out(tmp_path: Path) -> None:
    far = [kernel("k", at, 5, device=device) for at in (10, YEAR_US) for device in range(100)]
    for rank, events in enumerate((far, far, far, [kernel("k", 10, 5)])):
        told = {"rank": rank, "world_size": 4}
        path = tmp_path / f"{rank}.json"
        write(path, events, baseTimeNanoseconds=BASE, distributedInfo=told)
    trace = traceana.open(tmp_path)
    assert trace.tables.activities["rank"].unique().sort().to_list() == [0, 3]
    spans = busy(trace).frame["span_ns"]
    assert spans.sum() == sum(spans.to_list()) > 0


def test_a_rank_of_another_decade_has_no_epoch(tmp_path: Path) -> None:
    for rank, base in enumerate((BASE, BASE + 10**9, BASE + 20 * 365 * 24 * 3600 * 10**9)):
        told = {"rank": rank, "world_size": 3}
        path = tmp_path / f"{rank}.json"
        write(path, [kernel("k", 10, 5)], baseTimeNanoseconds=base, distributedInfo=told)
    trace = traceana.open(tmp_path)
    assert trace.tables.activities["start"].to_list() == [0, 10**9, 0]
    assert trace.tables.ledger.filter(pl.col("reason") == "no_epoch")["count"].to_list() == [1]


def test_two_files_of_one_rank_are_two_runs(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        rank_file(tmp_path / name, 0)
    with pytest.raises(UsageError, match="rank 0"):
        traceana.open(tmp_path)


@pytest.mark.parametrize("end", ["json", "json.gz"])
def test_two_recordings_of_one_process_are_not_two_ranks(tmp_path: Path, end: str) -> None:
    """``tensorboard_trace_handler`` writes a file for each repetition of the schedule."""
    for process, time in ((100, 1700000000000), (100, 1700000005000), (101, 1700000000001)):
        written = rank_file(tmp_path / "a.json", None)
        content = written.read_bytes()
        written.unlink()
        file = tmp_path / f"host_{process}.{time}.pt.trace.{end}"
        file.write_bytes(gzip.compress(content) if end.endswith("gz") else content)
    with pytest.raises(UsageError, match="of one process at the same time: pass one of them"):
        traceana.open(tmp_path)
    file.with_name(f"host_100.1700000005000.pt.trace.{end}").unlink()
    assert traceana.open(tmp_path).tables.activities["rank"].to_list() == [0, 1]


def test_a_file_given_twice_is_not_two_ranks(tmp_path: Path) -> None:
    file = rank_file(tmp_path / "a.json", None)
    (tmp_path / "linked").symlink_to(file)
    for again in (file, tmp_path / "linked"):
        with pytest.raises(UsageError, match="are the same file"):
            traceana.open([file, again])


def test_a_link_to_a_trace_beside_it_is_not_another(tmp_path: Path) -> None:
    file = rank_file(tmp_path / "run3.json", None)
    (tmp_path / "latest.json").symlink_to(file)
    assert traceana.open(tmp_path).tables.activities.height == 1
    # A hidden folder is not looked into.
    (tmp_path / ".blobs").mkdir()
    file.rename(tmp_path / ".blobs" / "3")
    (tmp_path / "latest.json").unlink()
    (tmp_path / "latest.json").symlink_to(tmp_path / ".blobs" / "3")
    assert traceana.open(tmp_path).tables.activities.height == 1


def test_a_bundle_stands_for_the_traces_beside_it_that_it_was_saved_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = tmp_path / "one"
    one.mkdir()
    rank_file(one / "run.json", None)
    monkeypatch.chdir(one)
    traceana.open("run.json").save("saved")
    trace = traceana.open(one)
    assert trace.tables.activities.height == 1
    # The bundle of all ranks, moved with them.
    several = tmp_path / "several"
    several.mkdir()
    for rank in (0, 1):
        rank_file(several / f"{rank}.json", rank)
    traceana.open(several).save(several / "all.traceana")
    moved = several.rename(tmp_path / "moved")
    assert traceana.open(moved).tables.activities["rank"].to_list() == [0, 1]


def test_an_export_is_no_rank(tmp_path: Path, run: Run) -> None:
    file = rank_file(tmp_path / "run.json", None)
    exported = tmp_path / "run.perfetto.json"
    assert run("export", str(file), "-o", str(exported)).exit_code == 0
    assert traceana.open(tmp_path).tables.activities.height == 1
    with pytest.raises(NotATraceError, match="is an export of traceana"):
        traceana.open(exported)


def test_the_same_device_number_in_two_ranks_is_two_devices(tmp_path: Path) -> None:
    rank_file(tmp_path / "a.json", 0)
    rank_file(tmp_path / "b.json", 1, late_us=2)
    trace = traceana.open(tmp_path)
    assert busy(trace).frame.select("rank", "device", "busy_ns").rows() == [
        (0, 0, 5000),
        (1, 0, 5000),
    ]
    only = select(trace, ranks=[1])
    assert only.tables.activities["rank"].to_list() == [1]
    assert only.tables.steps["rank"].to_list() == [1]
    assert only.tables.activities["step"].to_list() == [0]
    with pytest.raises(NoSuchSelectionError, match="rank 5"):
        select(trace, ranks=[5])


def test_one_bad_file_among_many_is_in_the_ledger(tmp_path: Path) -> None:
    rank_file(tmp_path / "rank0.json", 0)
    good = rank_file(tmp_path / "rank1.json", 1)
    (tmp_path / "rank2.json").write_bytes(good.read_bytes()[:30])
    (tmp_path / "rank3.json").touch()
    (tmp_path / "rank4.json").write_bytes(b"\x87\xff" + good.read_bytes()[2:])
    (tmp_path / "notes.txt").write_text("no trace")
    (tmp_path / "layers.json").write_text('{"layers": []}')
    with pytest.warns(ManifestWarning, match="not a layer manifest"):
        trace = traceana.open(tmp_path)
    assert sorted(trace.tables.activities["rank"]) == [0, 1]
    skipped = trace.tables.ledger.filter(pl.col("reason") == "skipped_file")
    assert skipped.height == 3
    for number, detail in enumerate(skipped["detail"], 2):
        assert f"rank{number}.json" in detail


def test_info_shows_the_rank_of_ledger_entries(tmp_path: Path) -> None:
    rank_file(tmp_path / "rank0.json", 0)
    events = [kernel("k", 110, 5), kernel("k", 120, 5)]
    reported = {"rank": 1, "world_size": 2}
    whole = write(tmp_path / "rank1.json", events, distributedInfo=reported).read_bytes()
    (tmp_path / "rank1.json").write_bytes(whole[:-20])
    text = render(info(traceana.open(tmp_path)).page(), Terminal(200))
    assert "problem: 1 of rank 1, excluded: the file is truncated" in text


def test_a_folder_or_a_list_without_any_trace(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no trace")
    with pytest.raises(UnknownFormatError):
        traceana.open(tmp_path)
    (tmp_path / "x.json").write_text('{"a": 1}')
    with pytest.raises(NotATraceError):
        traceana.open(tmp_path)
    (tmp_path / "x.json").write_text("")
    with pytest.raises(CorruptError):
        traceana.open([tmp_path / "x.json", tmp_path / "x.json"])


def test_of_two_recordings_of_one_thing_the_fuller_is_read(tmp_path: Path) -> None:
    rank_file(tmp_path / "host.json", None)
    traceana.open(tmp_path / "host.json").save(tmp_path / "host.traceana")
    trace = traceana.open(tmp_path)
    assert trace.tables.activities.height == 1


def test_a_folder_with_one_trace_is_that_trace(tmp_path: Path) -> None:
    file = rank_file(tmp_path / "deep.json", 3)
    (tmp_path / "sub").mkdir()
    shutil.move(file, tmp_path / "sub" / file.name)
    trace = traceana.open(tmp_path)
    assert trace.meta.rank == 3
    assert trace.meta.source.endswith("deep.json")


@pytest.mark.slow
@pytest.mark.skipif(not (TRACES / "kineto").is_dir(), reason="no shared traces")
def test_eight_ranks_add_up_to_their_files() -> None:
    folder = TRACES / "kineto" / "dlrm_8xv100"
    trace = traceana.open(folder)
    singles = [traceana.open(file) for file in sorted(folder.iterdir())]
    for column in ("duration", "bytes"):
        assert trace.tables.activities[column].sum() == sum(
            s.tables.activities[column].sum() for s in singles
        )
    by_rank = trace.tables.activities.group_by("rank").agg(pl.len()).sort("rank")
    assert by_rank["len"].to_list() == [single.tables.activities.height for single in singles]
    for rank, single in enumerate(singles):
        mine = trace.tables.activities.filter(pl.col("rank") == rank)
        for table, column in (("names", "name_id"), ("ops", "op"), ("layers", "layer")):
            name = "path" if table == "layers" else "name"
            here = trace.tables[table][name].cast(pl.String).gather(mine[column])
            there = (
                single.tables[table][name].cast(pl.String).gather(single.tables.activities[column])
            )
            assert here.to_list() == there.to_list()


def test_no_files_at_all_are_an_error_of_traceana() -> None:
    with pytest.raises(NotFoundError, match="no input"):
        traceana.open([])


def test_a_rank_that_is_no_trace_is_in_the_ledger_and_other_json_is_not(tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path / f"rank{rank}.json", [kernel("k", 5, 2)])
    (tmp_path / "rank2.json").write_text('[{"args": [[[]]]}]')
    (tmp_path / "model.json").write_text('{"layers": []}')
    trace = traceana.open(tmp_path)
    (entry,) = trace.tables.ledger.filter(reason="skipped_file").to_dicts()
    assert "rank2.json" in entry["detail"]


def skipped(trace: Trace) -> list[str]:
    return trace.tables.ledger.filter(reason="skipped_file")["detail"].to_list()


def test_a_linked_folder_is_read_once(tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    for folder in (run, elsewhere):
        folder.mkdir()
    rank_file(run / "rank0.json", 0)
    rank_file(elsewhere / "rank1.json", 1)
    (run / "linked").symlink_to(elsewhere)
    (run / "again").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(run)
    trace = traceana.open(run)
    assert sorted(trace.tables.activities["rank"]) == [0, 1]
    assert skipped(trace) == []


def test_a_link_to_nothing_is_in_the_ledger(tmp_path: Path) -> None:
    rank_file(tmp_path / "rank0.json", 0)
    (tmp_path / "rank1.json").symlink_to(tmp_path / "moved.json")
    (detail,) = skipped(traceana.open(tmp_path))
    assert "rank1.json" in detail


@pytest.mark.parametrize("name", ["rank1.json.zst", "rank1.pt.trace.json.zip", "rank1.JSON"])
def test_a_rank_in_a_file_that_cannot_be_read_is_in_the_ledger(tmp_path: Path, name: str) -> None:
    rank_file(tmp_path / "rank0.json", 0)
    (tmp_path / name).write_bytes(b"\x28\xb5\x2f\xfd" + bytes(range(200)))
    (tmp_path / "rank0.png").write_bytes(b"\x89PNG")
    (detail,) = skipped(traceana.open(tmp_path))
    assert name in detail


def test_a_damaged_file_with_the_name_of_a_rank_is_in_the_ledger(tmp_path: Path) -> None:
    for rank in (0, 1):
        rank_file(tmp_path / f"rank{rank}", rank)
    (tmp_path / "rank2").write_bytes(bytes(500))
    (tmp_path / "notes").write_bytes(bytes(500))
    (detail,) = skipped(traceana.open(tmp_path))
    assert "rank2" in detail


def test_a_second_recording_of_a_rank_is_noted(tmp_path: Path) -> None:
    for rank in (0, 1):
        rank_file(tmp_path / f"rank{rank}.json", rank)
    rank_file(tmp_path / "rank1.pt.trace.json", 7)
    trace = traceana.open(tmp_path)
    (entry,) = trace.tables.ledger.filter(reason="other_recording").to_dicts()
    assert entry["severity"] == "note"
    assert "rank1.json" in entry["detail"]
    assert "rank1.pt.trace.json" in entry["detail"]


def test_ranks_of_the_run_that_are_not_in_the_folder_are_noted(tmp_path: Path) -> None:
    for rank in (0, 3):
        events = [kernel("k", 5, 2)]
        path = tmp_path / f"rank{rank}.json"
        write(path, events, distributedInfo={"rank": rank, "world_size": 6})
    trace = traceana.open(tmp_path)
    (entry,) = trace.tables.ledger.filter(reason="missing_rank").to_dicts()
    assert (entry["count"], entry["severity"]) == (4, "note")
    assert entry["detail"] == "1-2, 4-5"


def test_recordings_of_two_hours_are_not_the_ranks_of_one_run(tmp_path: Path) -> None:
    files = [
        rank_file(tmp_path / "workers0.json", None),
        rank_file(tmp_path / "workers4.json", None, late_us=19 * 3_600_000_000),
    ]
    message = r"workers0\.json and workers4\.json were recorded 19\.0 hours apart"
    for given in (files, files[::-1], tmp_path):
        with pytest.raises(UsageError, match=message):
            traceana.open(given)
    # Clocks of ranks that communicate may differ by minutes.
    for file, late_us in zip(files, (0, 300_000_000), strict=True):
        rank_file(file, None, late_us=late_us, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    assert traceana.open(files).tables.activities["rank"].to_list() == [0, 1]


@pytest.mark.slow
def test_recordings_that_do_not_overlap_and_have_no_collectives_are_not_one_run(
    tmp_path: Path, run: Run
) -> None:
    """Two programs, one after the other on one GPU."""
    for folder, names in (("plain", ("alexnet", "resnet")), ("named", ("rank0", "rank1"))):
        (tmp_path / folder).mkdir()
        for number, name in enumerate(names):
            rank_file(tmp_path / folder / f"{name}.json", None, late_us=number * 2_000_000)
    apart = "were recorded 2.0 seconds apart and have no collectives, not as ranks of one run"
    for command in ("report", "ranks"):
        refused = run(command, tmp_path / "plain")
        assert refused.exit_code == ExitCode.USAGE
        assert f"alexnet.json and resnet.json {apart}" in refused.stderr
        assert "traceana diff" in refused.stderr
    # Whoever names the ranks may have clocks that differ.
    assert f"rank0.json and rank1.json {apart}" in flat(run("ranks", tmp_path / "named").stdout)
    (entry,) = traceana.open(tmp_path / "named").tables.ledger.filter(reason="apart").to_dicts()
    assert apart in entry["detail"]
    assert "whose captures do not overlap" in flat(run("report", tmp_path / "named").stdout)


def flat(text: str) -> str:
    return " ".join(text.split())


def test_operators_of_a_rank_without_device_work_are_not_added_to_the_gpus_of_others(
    tmp_path: Path, run: Run
) -> None:
    rank_file(tmp_path / "rank0.json", None)
    write(tmp_path / "rank1.json", [op("aten::mm", 100, 50)], baseTimeNanoseconds=BASE)
    trace = traceana.open(tmp_path)
    assert set(trace.tables.activities["rank"]) == {0}
    (entry,) = trace.tables.ledger.filter(reason="skipped_file").to_dicts()
    assert entry["detail"].endswith("rank1.json: no device work, which other ranks have")
    result = run("kernels", tmp_path)
    assert "aten::mm" not in result.stdout
    assert "rank1.json: no device work, which other ranks have" in result.stderr


def test_recordings_of_two_gpu_models_are_not_the_ranks_of_one_run(tmp_path: Path) -> None:
    for name, gpu in (("a", "NVIDIA A100"), ("b", "NVIDIA H100")):
        device = {"id": 0, "name": gpu}
        write(tmp_path / f"{name}.json", [kernel("k", 110, 5)], deviceProperties=[device])
    with pytest.raises(UsageError, match=r"a\.json \(NVIDIA A100\) and b\.json \(NVIDIA H100\)"):
        traceana.open(tmp_path)


def test_a_database_of_another_program_does_not_stand_for_the_trace_beside_it(
    tmp_path: Path,
) -> None:
    rank_file(tmp_path / "trace.json", None)
    with closing(sqlite3.connect(tmp_path / "trace.sqlite")) as database:
        database.execute("CREATE TABLE bookmarks (url TEXT)")
    assert traceana.open(tmp_path).meta.format == "kineto"


def test_a_link_to_itself_is_a_file_that_is_not_there(tmp_path: Path) -> None:
    rank_file(tmp_path / "rank0.json", None)
    (tmp_path / "rank1.json").symlink_to(tmp_path / "rank1.json")
    trace = traceana.open(tmp_path)
    assert set(trace.tables.activities["rank"]) == {0}
    assert trace.tables.ledger.filter(reason="skipped_file").height == 1

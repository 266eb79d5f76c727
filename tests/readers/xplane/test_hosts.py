"""A profile folder with a file for each host is one Trace: ranks, names of hosts, one clock."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import traceana
from tests.readers.xplane.writing import on_another_host
from tests.support.command_line import run
from traceana.errors import ExitCode

FIXTURE = (
    Path(__file__).resolve().parents[3] / "fixtures" / "xplane" / "alexnet-cpu-keras.xplane.pb"
)
LATER_NS = 40_000_123
RUN = Path("plugins", "profile", "2026_11_21_10_00_00")


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    """Return a log directory with one run of two hosts, the second of which began later."""
    folder = tmp_path / RUN
    folder.mkdir(parents=True)
    content = FIXTURE.read_bytes()
    (folder / "alpha.xplane.pb").write_bytes(content)
    (folder / "beta.xplane.pb").write_bytes(on_another_host(content, "beta-host", LATER_NS))
    return tmp_path


@pytest.mark.parametrize("named", [Path(), RUN], ids=["logdir", "run"])
def test_the_hosts_of_a_run_are_ranks_on_one_clock(logdir: Path, named: Path) -> None:
    trace = traceana.open(logdir / named)
    single = traceana.open(FIXTURE)
    assert trace.meta.format == "xplane"
    assert trace.meta.events == 2 * (single.meta.events or 0)
    assert trace.meta.properties["hosts"] == {"0": "traceana", "1": "beta-host"}
    for table in ("activities", "ops", "ranges", "steps"):
        ranked = trace.tables[table]
        assert ranked["rank"].unique().sort().to_list() == [0, 1]
        for rank, later in ((0, 0), (1, LATER_NS)):
            mine = ranked.filter(pl.col("rank") == rank)
            alone = single.tables[table]
            assert mine["duration"].equals(alone["duration"])
            assert mine["start"].equals(alone["start"] + later)
    assert trace.meta.epoch_ns == single.meta.epoch_ns


def test_a_command_reads_one_of_the_hosts(logdir: Path) -> None:
    shown = run("info", logdir)
    assert shown.exit_code == ExitCode.OK
    assert "0: traceana, 1: beta-host" in shown.stdout
    assert run("report", logdir, "--rank", "1").exit_code == ExitCode.OK
    none = run("report", logdir, "--rank", "2")
    assert none.exit_code == ExitCode.EMPTY_SELECTION


@pytest.mark.parametrize(
    "bad",
    [b"", b"\x0a\x20\x08\x01\x12\x0d/device:GPU:0", b"\x0a\x0e\x12\x08/host:CPU\x0f\x0f\x0f\x0f"],
    ids=["empty", "cut", "damaged"],
)
def test_a_bad_file_among_the_hosts_is_in_the_ledger(logdir: Path, bad: bytes) -> None:
    (logdir / RUN / "gamma.xplane.pb").write_bytes(bad)
    shown = run("info", logdir)
    assert "0: traceana, 1: beta-host" in shown.stdout
    if bad.endswith(b"GPU:0"):  # what is there can be read: an empty plane
        assert shown.exit_code == ExitCode.DAMAGED_INPUT
        return
    assert shown.exit_code == ExitCode.DAMAGED_INPUT
    (line,) = shown.stderr.splitlines()
    assert line.startswith("traceana: skipped: ")
    assert "gamma.xplane.pb" in line


def test_of_two_runs_the_newest_is_read(logdir: Path) -> None:
    other = logdir / RUN.parent / "2026_11_21_11_00_00"
    other.mkdir()
    (other / "alpha.xplane.pb").write_bytes(FIXTURE.read_bytes())
    trace = traceana.open(logdir)
    assert trace.meta.rank is None
    assert trace.meta.source == str(other / "alpha.xplane.pb")
    (note,) = trace.tables.ledger.filter(reason="other_recording")["detail"]
    assert note == f"{RUN.name} beside 2026_11_21_11_00_00"

"""Every command on every available trace: equal bytes in two processes, one value per figure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.every_command import COMMANDS, as_json, digest
from tests.support.manifest import FIXTURES, small_traces_at_hand, traces_at_hand

pytestmark = pytest.mark.slow

FILES = traces_at_hand()
# Running all of them twice takes minutes: the smallest of each folder.
REPEATED = small_traces_at_hand(slice(1))


class Commands:
    """The commands' JSON output for a file, each run once."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.text = cache(lambda command: as_json(command, file))
        self._parsed = cache(lambda command: json.loads(self.text(command)))

    def __getitem__(self, command: str) -> dict[str, Any]:
        found: dict[str, Any] = self._parsed(command)
        return found

    def total(self, command: str, column: str) -> Any:
        return self[command]["meta"]["totals"].get(column)

    def notes(self, command: str, label: str) -> list[str]:
        return [note for note in self[command]["meta"]["notes"] if label in note]


class OtherProcess:
    """The same commands beside this process, with another seed for hashes and more threads."""

    def __init__(self, errors: Path) -> None:
        environment = {**os.environ, "PYTHONHASHSEED": "1", "POLARS_MAX_THREADS": "2"}
        self._errors = errors
        with errors.open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.every_command"],
                cwd=FIXTURES.parent,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._files, self._digests = self._process.stdin, self._process.stdout

    def begin(self, file: Path) -> None:
        """Let it run the commands on ``file``."""
        self._files.write(f"{file}\n")
        self._files.flush()

    def digests(self) -> dict[str, str]:
        """Return the digests of the file it began, once they are there."""
        line = self._digests.readline()
        assert line, self._errors.read_text()[-2000:]
        found: dict[str, str] = json.loads(line)
        return found

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="session")
def other_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OtherProcess]:
    other = OtherProcess(tmp_path_factory.mktemp("commands") / "errors")
    yield other
    other.end()


@pytest.fixture(scope="module", params=FILES, ids=lambda file: file.name)
def commands(request: pytest.FixtureRequest) -> Commands:
    return Commands(request.param)


@pytest.mark.parametrize("commands", REPEATED, indirect=True, ids=lambda file: file.name)
def test_two_processes_print_the_same_bytes(
    commands: Commands, other_process: OtherProcess
) -> None:
    other_process.begin(commands.file)
    first = {command: digest(commands.text(command)) for command in COMMANDS}
    assert first == other_process.digests()


def by_key(rows: list[dict[str, Any]], *keys: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {tuple(row[key] for key in keys): row for row in rows}


def test_the_time_and_the_flops_of_all_work(commands: Commands) -> None:
    layers, flops, by_class = (commands[name] for name in ("layers", "flops", "flops --by class"))
    sections = commands["report"]["sections"]
    work = {sum(row["time_ns"] for row in sections["breakdown"])}
    work |= {sum(row["time_ns"] for row in sections["layers"])}
    work |= {sum(row["time_ns"] or 0 for row in one["rows"]) for one in (layers, flops, by_class)}
    assert len(work) == 1
    assert sum(row["sum_ns"] for row in sections["busy"]) <= work.pop()
    counted = {commands.total(name, "flops") for name in ("layers", "flops")}
    if not commands.notes("flops --by class", "FLOPs without a class"):
        counted.add(commands.total("flops --by class", "flops"))
    assert len(counted) == 1


def test_the_time_without_flop_counts(commands: Commands) -> None:
    for label in ("FLOP counts", "causal attention", "1 multiply-accumulate", "no FLOPs"):
        reported = [commands.notes(name, label) for name in ("layers", "flops", "flops --by class")]
        assert reported[0] == reported[1] == reported[2]


def test_layers_in_the_report_are_those_of_layers(commands: Commands) -> None:
    ours = by_key(commands["layers"]["rows"], "layer", "role")
    shown = by_key(commands["report"]["sections"]["layers"], "layer", "role")
    if commands.notes("layers", "layer manifest"):
        # The manifest names layers identified by position; the report has no manifest.
        return
    columns = ("calls", "time_ns", "share", "forward_ns", "backward_ns", "other_ns", "algorithm")
    for key, row in shown.items():
        assert [row[name] for name in columns] == [ours[key][name] for name in columns]


def test_classes_in_the_report_are_those_of_flops(commands: Commands) -> None:
    ours = by_key(commands["flops --by class"]["rows"], "category", "part")
    for key, row in by_key(commands["report"]["sections"]["breakdown"], "category", "part").items():
        for name in ("calls", "time_ns", "share"):
            assert row[name] == ours[key][name]


def test_busy_and_idle_time(commands: Commands) -> None:
    report = by_key(commands["report"]["sections"]["busy"], "rank", "device")
    idle = by_key(commands["idle"]["sections"]["devices"], "rank", "device")
    assert report.keys() == idle.keys()
    columns = ("span_ns", "busy_ns", "kernel_ns", "memops_only_ns", "idle_ns")
    for place, row in report.items():
        assert [row[name] for name in columns] == [idle[place][name] for name in columns]
        causes = [r for r in commands["idle"]["rows"] if (r["rank"], r["device"]) == place]
        assert sum(cause["time_ns"] for cause in causes) == row["idle_ns"]


def test_copies(commands: Commands) -> None:
    rows = commands["transfers"]["rows"]
    report, facts = commands["report"]["sections"]["transfers"], commands["info"]
    assert rows[: len(report)] == report
    assert sum(row["time_ns"] for row in rows) == facts["memcpy_ns"]
    classes = commands["report"]["sections"]["breakdown"]
    copies = sum(row["time_ns"] for row in classes if row["category"] == "memcpy")
    # AMD's runtime copies by kernels, too.
    by_kernels = sum(
        row["time_ns"] for row in commands["kernels"]["rows"] if row["category"] == "memcpy"
    )
    assert copies == facts["memcpy_ns"] + by_kernels


def test_kernels_and_steps(commands: Commands) -> None:
    facts = commands["info"]
    sets = facts["memset_ns"] + facts["memcpy_ns"]
    work = sum(row["time_ns"] for row in commands["report"]["sections"]["breakdown"])
    graphs = work - sets - commands.total("kernels", "time_ns")
    assert graphs >= 0
    steps = {row["step"] for row in commands["report"]["sections"]["steps"]}
    assert len(steps) == facts["steps"]


def test_unknown_is_null(commands: Commands) -> None:
    for row in commands["flops"]["rows"]:
        assert row["flops"] is not None or row["bytes"] is None
        assert row["time_ns"] != 0 or not row["flops"]
    for command in ("layers", "flops --by class"):
        for row in commands[command]["rows"]:
            assert row["flops_per_s"] is None or row["flops"]
            assert row["flops_per_s"] != 0

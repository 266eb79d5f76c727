"""The history of benchmarks: a line per figure, each once."""

from __future__ import annotations

import csv
from pathlib import Path

from benchmarks import machine
from benchmarks.history import COLUMNS, FILE, add
from benchmarks.outcome import Outcome, Target


def read(file: Path) -> list[dict[str, str]]:
    """Return the lines of a history by column."""
    with file.open(encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text, delimiter="\t", quoting=csv.QUOTE_NONE))


def test_each_figure_has_one_line(tmp_path: Path) -> None:
    targets = [Target("read / json.loads", 0.25, 0.1999), Target("faster\tthan a peer", 2, 3, True)]
    file = tmp_path / "history.tsv"

    def measured(commit: str) -> None:
        facts = {**machine.facts(), "commit": commit}
        size = {"size": "1 GB", "events": 4}
        Outcome("scanner", size, [], targets, machine=facts).save(tmp_path)

    measured("abc1234")
    assert add(tmp_path, file) == 2
    assert add(tmp_path, file) == 0
    measured("def5678")
    assert add(tmp_path, file) == 2
    lines = read(file)
    assert [line["commit"] for line in lines] == ["abc1234"] * 2 + ["def5678"] * 2
    assert lines[0]["input"] == "size 1 GB, events 4"
    assert (lines[0]["reached"], lines[0]["target"]) == ("0.2", "at most 0.25")
    assert (lines[1]["figure"], lines[1]["target"]) == ("faster than a peer", "at least 2")


def test_the_history_of_the_repository_is_whole() -> None:
    lines = read(FILE)
    assert lines
    assert all(tuple(line) == COLUMNS and all(line.values()) for line in lines)

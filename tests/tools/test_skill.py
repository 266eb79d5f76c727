"""The skill for coding agents: its commands run, its keys and exit codes exist."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.command_line import run
from tests.support.traces import cnn_steps
from traceana.errors import EXIT_CODES, ExitCode

TEXT: Final = (Path(__file__).parents[2] / "docs" / "skill" / "SKILL.md").read_text()
COMMANDS: Final = re.findall(r"^ *(traceana .*)$", TEXT, re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the two runs that the skill names."""
    folder = tmp_path_factory.mktemp("skill")
    for name in ("run", "baseline"):
        cnn_steps().save(folder / name)
    return folder


@pytest.fixture(autouse=True)
def in_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def test_the_front_matter_has_name_and_description() -> None:
    front = TEXT.split("---\n")[1]
    assert re.fullmatch(r"name: traceana\ndescription: \S.{50,1000}\n", front)


def test_there_are_commands() -> None:
    assert len(COMMANDS) > 8


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs(command: str) -> None:
    result = run(*shlex.split(command)[1:])
    assert result.exit_code == 0, result.output
    if "--format json" in command:
        assert json.loads(result.stdout)


def _cells(title: str) -> list[list[str]]:
    section = TEXT.split(f"## {title}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


@pytest.mark.parametrize("row", _cells("Reading the JSON"), ids=lambda row: row[0])
def test_the_keys_exist(row: list[str]) -> None:
    command = row[0].strip("`")
    found: Any = json.loads(run(command, "run", "--format", "json").stdout)
    assert set(re.findall(r"`(\w+)`", row[1])) <= found["rows"][0].keys()


def test_the_exit_codes_exist() -> None:
    numbers = [int(one) for row in _cells("Exit codes") for one in row[0].split(",")]
    assert len(numbers) > 5
    assert all(ExitCode(one) in EXIT_CODES for one in numbers)

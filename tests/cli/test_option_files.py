"""The files that options name: pipes, devices, deep nesting and endless length are refused."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command_line import Run
from traceana import files
from traceana.errors import ExitCode

Words = Callable[[Path, Path], list[object]]
OPTIONS: dict[str, Words] = {
    "rules": lambda bundle, file: ["kernels", bundle, "--rules", file],
    "rules of names": lambda _, file: ["classify", "k", "--rules", file],
    "model": lambda bundle, file: ["layers", bundle, "--model", file],
    "model of a diff": lambda bundle, file: ["diff", bundle, bundle, "--model-b", file],
    "pairs of a diff": lambda bundle, file: ["diff", bundle, bundle, "--map", file],
    "pairs of a comparison": lambda bundle, file: [
        "compare", bundle, bundle, "--by", "layer", "--map", file,
    ],
    "counters": lambda bundle, file: ["kernels", bundle, "--counters", file],
    "timed algorithms": lambda _, file: ["study", "algorithms", file],
    "trace": lambda _, file: ["report", file],
}  # fmt: skip
OF_TEXT = ("rules", "model", "pairs of a diff")


@pytest.fixture(params=["pipe", "device", "socket"])
def special(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a pipe without a writer, a device without an end, or a socket."""
    path = tmp_path / "special"
    if request.param == "device":
        return Path("/dev/zero")
    if request.param == "socket":
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(os.fspath(path))
        return path
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("option", OPTIONS)
def test_pipes_and_devices_are_refused(run: Run, bundle: Path, special: Path, option: str) -> None:
    result = run(*OPTIONS[option](bundle, special))
    assert result.exit_code == ExitCode.NOT_FOUND
    assert "is a pipe or a device, not a file" in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize("option", OF_TEXT)
@pytest.mark.parametrize("nested", ["[", '{"a":', "a=[", "a={a=", "a.", "[a."])
def test_deep_nesting_is_a_clear_error(
    run: Run, bundle: Path, tmp_path: Path, option: str, nested: str
) -> None:
    file = tmp_path / "nested"
    file.write_text(nested + 100_000 * nested.removeprefix("a="))
    result = run(*OPTIONS[option](bundle, file))
    assert result.exit_code in (ExitCode.INVALID_FILE, ExitCode.UNRECOGNIZED_FORMAT,
                                ExitCode.DAMAGED_INPUT)  # fmt: skip
    assert result.stderr.startswith("traceana: ")
    assert result.stderr.count("\n") == 1
    assert "internal error" not in result.stderr


@pytest.mark.parametrize("option", OF_TEXT)
def test_a_file_without_end_is_not_read_whole(
    run: Run, bundle: Path, tmp_path: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LONGEST_CONTENT", 1 << 20)
    file = tmp_path / "long"
    with file.open("wb") as made:
        made.truncate((1 << 20) + 1)
    result = run(*OPTIONS[option](bundle, file))
    assert result.exit_code == ExitCode.NOT_FOUND
    assert "longer than 1 MiB" in result.stderr


def test_a_pairs_file_of_many_lines_is_read_in_linear_time(
    run: Run, bundle: Path, tmp_path: Path
) -> None:
    file = tmp_path / "pairs.toml"
    file.write_text("".join(f'"layer {i}" = "layer {i}"\n' for i in range(100_000)))
    result = run("diff", bundle, bundle, "--map", file)
    assert result.exit_code == ExitCode.INVALID_FILE
    assert "line 1: no layer 'layer 0'" in result.stderr


@pytest.mark.parametrize("numbers", ["0-99999999999", "0-9,5-88888888888"])
def test_a_range_of_numbers_is_not_counted_up(run: Run, bundle: Path, numbers: str) -> None:
    result = run("kernels", bundle, "--step", numbers)
    assert result.exit_code == ExitCode.USAGE
    assert "more than 1,000,000 numbers" in " ".join(result.stderr.split())

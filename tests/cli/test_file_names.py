"""Files with hostile names are read, and their names are shown escaped."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from tests.support.command_line import Run
from tests.support.every_command import OF_TWO
from tests.support.synthetic import Scenario, write_kineto, write_nsys
from traceana.errors import ExitCode

FIXTURES = Path(__file__).parents[2] / "fixtures"
NAMES = {
    "not UTF-8": b"run\xff\xfe",
    "escape sequences": b"run\x1b[2J\x1b]0;title\x07",
    "line ends": b"run\r\nfake: 0 problems\x0b\x85",
    "bidirectional": "run\u202egpj\u2066".encode(),
    "patterns": b"run[0-9]*?{a,b}%20%2f'\"\\",
    "markup": b"run[bold]<script>alert(1)<|`#&amp;",
}
# In two names of files and folders: where one is not UTF-8, all of it may be handled otherwise.
TOGETHER = {
    "not UTF-8": NAMES["not UTF-8"],
    "others": b"".join(name for kind, name in NAMES.items() if kind != "not UTF-8"),
}
FORBIDDEN = set("\x00\x07\x0b\r\x1b\x85\u202e\u2066\ufffd")


@pytest.fixture(params=TOGETHER)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a folder with a hostile name; the files in it get the same name."""
    made = tmp_path / os.fsdecode(TOGETHER[request.param])
    made.mkdir()
    return made


def scenario() -> Scenario:
    run = Scenario()
    run.step(1, 0, 3_000)
    run.operator("aten::mm", 20, 400)
    run.launch(at=100, begins=300, duration=1_000, name="kernel")
    run.copy("HtoD", 64, at=1_500, begins=1_600, duration=100, memory="pageable", synchronous=True)
    return run


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with a name that has all of them."""
    name = os.fsdecode(b"".join(NAMES.values())[:200])
    return write_kineto(scenario(), tmp_path_factory.mktemp("names") / name)


@pytest.mark.parametrize("form", ["table", "md", "csv", "tsv", "json"])
def test_every_command_reads_and_escapes_the_name(run: Run, file: Path, form: str) -> None:
    for command in ("report", "info", "memory", "idle --by operator", "compare", "diff"):
        given = (file, file) if command in OF_TWO else (file,)
        result = run(*command.split(), *given, "--format", form)
        assert "internal error" not in result.stderr, result.stderr
        assert result.exit_code in (ExitCode.OK, ExitCode.EMPTY_SELECTION), result.stderr
        assert not FORBIDDEN & set(result.stdout + result.stderr)
        if form == "json":
            json.dumps(json.loads(result.stdout)).encode()


def nsys(folder: Path) -> Path:
    return write_nsys(scenario(), folder / f"{folder.name}.sqlite")


def rank_files(folder: Path) -> Path:
    for rank in range(2):
        write_kineto(scenario(), folder / f"{folder.name}{rank}.json")
    return folder


def nsys_tables(folder: Path) -> Path:
    made = folder / folder.name
    made.mkdir()
    database = nsys(folder)
    with closing(sqlite3.connect(database)) as opened:
        for (table,) in opened.execute("SELECT name FROM sqlite_master WHERE type = 'table'"):
            rows = opened.execute(f'SELECT * FROM "{table}"')
            columns = [column for column, *_ in rows.description]
            frame = pl.DataFrame(rows.fetchall(), schema=columns, orient="row")
            with (made / f"{table}.parquet").open("wb") as file:
                frame.write_parquet(file)
    database.unlink()
    return made


@pytest.mark.exhaustive(after=3)
@pytest.mark.parametrize("write", [nsys, nsys_tables, rank_files])
def test_every_kind_of_input_is_read(run: Run, folder: Path, write: object) -> None:
    path = write(folder)  # type: ignore[operator]
    result = run("info", path)
    assert result.exit_code == ExitCode.OK, result.stderr
    assert not FORBIDDEN & set(result.stdout + result.stderr)
    saved = run("save", path, "-o", folder / f"{folder.name} saved")
    assert saved.exit_code == ExitCode.OK, saved.stderr
    opened = run("report", folder / f"{folder.name} saved")
    assert opened.exit_code == ExitCode.OK, opened.stderr
    assert "1,000" in opened.stdout or "kernel" in opened.stdout


@pytest.mark.parametrize("fixture", ["*.pb", "legacy/*.json.gz"])
def test_recorded_formats_are_read(run: Run, folder: Path, fixture: str) -> None:
    found = sorted(FIXTURES.rglob(fixture))
    path = folder / f"{folder.name}{found[0].suffix}"
    shutil.copy(found[0], path)
    result = run("info", path)
    assert "internal error" not in result.stderr
    assert result.exit_code in (ExitCode.OK, ExitCode.UNRECOGNIZED_FORMAT), result.stderr
    assert not FORBIDDEN & set(result.stdout + result.stderr)


@pytest.mark.parametrize("option", ["--rules", "--model", "--counters", "-o"])
def test_options_name_such_files(run: Run, bundle: Path, folder: Path, option: str) -> None:
    missing = folder / f"{folder.name}.json"
    result = run("kernels", bundle, option, missing)
    expected = ExitCode.OK if option == "-o" else ExitCode.NOT_FOUND
    assert result.exit_code == expected, result.stderr
    if option == "-o":
        assert missing.is_file()
        assert run("kernels", bundle, option, missing).exit_code == ExitCode.CANNOT_WRITE
    assert not FORBIDDEN & set(result.stdout + result.stderr)
    assert result.stderr.count("\n") == 1


def test_text_given_as_argument_may_be_no_utf8(run: Run, bundle: Path) -> None:
    text = os.fsdecode(b"sgemm\xff")
    for words in (
        ["classify", text],
        ["compare", bundle, bundle, "--label", text, "--label", "b"],
        ["report", bundle, "--device-model", text],
        ["kernels", bundle, "--sort", text],
        ["advise", bundle, "--rule", text],
    ):
        result = run(*words)
        assert "internal error" not in result.stderr, result.stderr
        assert "\udcff" not in result.stdout + result.stderr

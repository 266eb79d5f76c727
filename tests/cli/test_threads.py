"""The number of threads follows from the size of the files, and no figure depends on it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from traceana.cli import main

FIXTURES = Path(__file__).parents[2] / "fixtures"
VARIABLES = ("POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS")


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without the variables, and restore them."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that monkeypatch restores it
        monkeypatch.delenv(name)


def chosen(*words: str) -> tuple[str | None, str | None]:
    """Return the threads of polars and of OpenBLAS that the command line ``words`` leads to."""
    main.choose_threads(words)
    return os.environ.get(VARIABLES[0]), os.environ.get(VARIABLES[1])


def file(path: Path, size: int) -> str:
    """Make a file of ``size`` bytes that takes no space, and return its name."""
    with path.open("wb") as opened:
        opened.truncate(size)
    return str(path)


def test_a_small_file_is_read_with_one_thread(tmp_path: Path) -> None:
    assert chosen("report", file(tmp_path / "a.json", main.SMALL - 1)) == ("1", "1")


def test_a_large_file_is_read_with_all_threads(tmp_path: Path) -> None:
    assert chosen("report", file(tmp_path / "a.json", main.SMALL)) == (None, "1")


def test_two_files_count_together(tmp_path: Path) -> None:
    half = [file(tmp_path / name, main.SMALL // 2) for name in ("a.json", "b.json")]
    assert chosen("diff", *half) == (None, "1")


def test_a_compressed_file_counts_as_what_it_holds(tmp_path: Path) -> None:
    assert chosen("report", file(tmp_path / "a.json.gz", main.SMALL // 10)) == (None, "1")


@pytest.mark.parametrize(("size", "of_polars"), [(main.SMALL // 4, "1"), (main.SMALL // 2, None)])
def test_the_files_of_a_folder_count_together(
    tmp_path: Path, size: int, of_polars: str | None
) -> None:
    (tmp_path / "within").mkdir()
    for name in ("a.csv", "within/b.csv"):
        file(tmp_path / name, size)
    assert chosen("study", str(tmp_path)) == (of_polars, "1")


def test_a_folder_of_many_files_counts_as_large(tmp_path: Path) -> None:
    for number in range(1_002):
        (tmp_path / str(number)).touch()
    assert chosen("report", str(tmp_path)) == (None, "1")


@pytest.mark.parametrize("word", ["missing", "a\0b", "x" * 5000])
def test_words_that_are_no_files_do_not_count(word: str) -> None:
    assert chosen(word) == ("1", "1")


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POLARS_MAX_THREADS", "3")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    assert chosen("report", file(tmp_path / "a.json", 1)) == ("3", "2")


def test_the_peak_of_the_processor_is_that_of_all_cores(tmp_path: Path) -> None:
    assert chosen("layers", "--calibrate", file(tmp_path / "a.json", 1)) == (None, None)


_CORES = """
import os
from traceana.cli.main import main
os.sched_setaffinity(0, range(os.cpu_count()))
most = len(os.sched_getaffinity(0))
try:
    main()
except SystemExit:
    from traceana.cores import cores
    print(most, cores(), len(os.sched_getaffinity(0)))
"""


def _may_choose_cores() -> bool:
    try:
        os.sched_setaffinity(0, os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return False
    return True


@pytest.mark.exhaustive(after=1)
@pytest.mark.skipif(
    not _may_choose_cores(), reason="the system does not let processes choose cores"
)
@pytest.mark.parametrize(
    ("command", "size", "alone"),
    [("info", 10, True), ("info", main.SMALL, False), ("ranks", 10, False)],
)
def test_a_small_file_is_read_on_one_core(
    tmp_path: Path, command: str, size: int, *, alone: bool
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _CORES, command, file(tmp_path / "a.json", size)],
        capture_output=True,
        check=True,
        text=True,
    )
    most, known, used = ran.stdout.split()[-3:]
    assert known == most
    assert used == ("1" if alone else most)


@pytest.mark.slow
@pytest.mark.exhaustive(after=1)
@pytest.mark.parametrize(
    "name", ["alexnet-cpu-ranges.json.gz", "alexnet-cpu-nsys-2024.2.sqlite"], ids=str
)
def test_figures_do_not_depend_on_the_number_of_threads(name: str) -> None:
    outputs = set()
    for count in ("1", "2", "4"):
        ran = subprocess.run(
            [sys.executable, "-m", "traceana", "report", "--format", "json", FIXTURES / name],
            env={**os.environ, "POLARS_MAX_THREADS": count},
            capture_output=True,
            check=True,
        )
        outputs.add(ran.stdout)
    assert len(outputs) == 1

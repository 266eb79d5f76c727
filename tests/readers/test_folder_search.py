"""Which files of a folder are opened, and where the search of a large one ends."""

from __future__ import annotations

import time
from pathlib import Path
from unittest import mock

import pytest

import traceana
from tests.readers.kineto.writing import kernel, write
from traceana.errors import UnknownFormatError
from traceana.readers import folder_search, folder_traces, inputs
from traceana.readers.detect import detect


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return the folder of a project with one trace."""
    for name in ("src/model.py", "data/0.png", "data/1.png", "notes", "README.md"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("text")
    (tmp_path / "results").mkdir()
    write(tmp_path / "results" / "run.pt.trace.json", [kernel("k", 1, 5)])
    return tmp_path


def opened_in(folder: Path) -> set[str]:
    """Return the names of the files that opening ``folder`` looks into."""
    looked_into: set[str] = set()

    def detected(path: Path) -> object:
        looked_into.add(path.name)
        return detect(path)

    with mock.patch.object(folder_traces, "detect", detected):
        assert traceana.open(folder).tables.activities.height == 1
    return looked_into


def test_where_a_trace_is_named_so_other_names_are_not_opened(project: Path) -> None:
    assert opened_in(project) == {"run.pt.trace.json"}


def test_a_trace_of_any_name_is_found_where_none_is_named_so(project: Path) -> None:
    (project / "results" / "run.pt.trace.json").rename(project / "results" / "recording")
    assert opened_in(project) == {"recording", "README.md", "notes"}


@pytest.mark.parametrize(
    "place", ["env/lib/python3.11", "tools/node_modules/pkg", "lib/site-packages", "conda/lib"]
)
def test_installed_packages_are_not_searched(project: Path, place: str) -> None:
    folder = project / place
    folder.mkdir(parents=True)
    write(folder / "other.pt.trace.json", [kernel("other", 1, 5)])
    (project / "env").mkdir(exist_ok=True)
    (project / "env" / "pyvenv.cfg").write_text("home = /usr/bin")
    (project / "conda" / "conda-meta").mkdir(parents=True)
    assert opened_in(project) == {"run.pt.trace.json"}
    # The folder itself can be given.
    assert traceana.open(folder).tables.activities.height == 1


def test_a_bound_names_what_was_not_opened(tmp_path: Path) -> None:
    for number in range(8):
        folder = tmp_path / f"part{number}"
        folder.mkdir()
        (folder / "text").write_text("text")
    with (
        mock.patch.object(folder_search, "_MOST_OPENED", 2),
        pytest.raises(UnknownFormatError) as error,
    ):
        traceana.open(tmp_path)
    named = ", ".join(str(tmp_path / f"part{number}") for number in (3, 4, 5))
    assert str(error.value) == (
        f"{tmp_path}: opened 3 files that are no traces, and did not search {named} and 2 more "
        "folders: pass the trace, or the folder of the traces"
    )


def test_a_bound_names_what_was_not_listed(project: Path) -> None:
    with (
        mock.patch.object(folder_search, "_MOST_LISTED", 3),
        pytest.raises(UnknownFormatError, match=r"listed \d+ files and folders, and did not"),
    ):
        traceana.open(project)


def test_a_bound_names_a_trace_that_was_found(project: Path) -> None:
    write(project / "run.trace.json", [kernel("k", 1, 5)])
    with (
        mock.patch.object(folder_search, "_MOST_LISTED", 3),
        pytest.raises(UnknownFormatError, match=r"of the traces, such as .*/run.trace.json$"),
    ):
        traceana.open(project)


def test_files_of_many_ranks_are_no_bound(tmp_path: Path) -> None:
    for rank in range(8):
        told = {"rank": rank, "world_size": 8}
        write(tmp_path / f"{rank}.json", [kernel("k", 1, 5)], distributedInfo=told)
    with (
        mock.patch.object(folder_search, "_MOST_OPENED", 2),
        mock.patch.object(folder_search, "_FEW_OPENED", 0),
        mock.patch.object(folder_search, "_MOST_SECONDS", 0),
    ):
        assert traceana.open(tmp_path).tables.activities.height == 8


def test_labels_of_a_data_set_are_no_traces(project: Path) -> None:
    (project / "data" / "0.json").write_text('[{"label": 3}, {"label": 4}]')
    assert inputs.resolve(project).files == [project / "results" / "run.pt.trace.json"]


@pytest.mark.slow
def test_a_folder_of_a_hundred_thousand_files_takes_two_seconds(project: Path) -> None:
    for number in range(100_000):
        folder = project / "data" / str(number // 1000)
        if number % 1000 == 0:
            folder.mkdir()
        (folder / f"{number}.txt").touch()
    begun = time.process_time()
    assert inputs.resolve(project).files == [project / "results" / "run.pt.trace.json"]
    assert time.process_time() - begun < 2
    (project / "results" / "run.pt.trace.json").unlink()
    begun = time.process_time()
    with pytest.raises(UnknownFormatError, match="and did not search"):
        inputs.resolve(project)
    assert time.process_time() - begun < 2

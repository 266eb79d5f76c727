"""A trace is never written, and reading imports only its own reader."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.readers.nsys.writing import KERNEL, RUNTIME, call, export, kernel, trace_of
from traceana.readers.sqlite import read_only_uri


@pytest.mark.parametrize(
    "name", ["a.sqlite", "a b?mode=rwc#x%41.sqlite", "é&immutable=0.sqlite", "'\";--.sqlite", "%2e"]
)
def test_reading_changes_nothing(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "with space?&#"
    folder.mkdir()
    path = export(folder / name, {KERNEL: [kernel(1, 2)], RUNTIME: [call(1, 2)]})
    path.chmod(0o444)
    before = (path.read_bytes(), path.stat().st_mtime_ns)

    assert trace_of(path).tables.activities.height == 1

    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert [entry.name for entry in folder.iterdir()] == [name]


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(tmp_path / "a.sqlite", {KERNEL: [kernel(1, 2)], RUNTIME: [call(1, 2)]})
    monkeypatch.chdir(tmp_path)
    assert trace_of(Path("a.sqlite")).tables.activities.height == 1


def test_the_uri_escapes_what_would_end_the_path() -> None:
    uri = read_only_uri(Path("/a b/?#%&=.sqlite"))
    assert uri == "file:/a%20b/%3F%23%25%26%3D.sqlite?mode=ro&immutable=1"


def test_the_driver_is_imported_by_reading_only_and_pyarrow_never(tmp_path: Path) -> None:
    path = export(tmp_path / "a.sqlite", {KERNEL: [kernel(1, 2)], RUNTIME: [call(1, 2)]})
    code = (
        "import sys, pathlib, traceana.readers as r, traceana.readers.sqlite\n"
        "assert not any(m.startswith('adbc') for m in sys.modules)\n"
        "r.read(pathlib.Path(sys.argv[1]), lambda done, total: None)\n"
        "assert 'adbc_driver_sqlite' in sys.modules and 'pyarrow' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)

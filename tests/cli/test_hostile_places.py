"""Outputs, caches and words of the environment that somebody else chose."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from unittest import mock

import polars as pl
import pytest

from tests.readers.kineto.writing import kernel, write
from tests.support.command_line import Run
from tests.support.manifest import FIXTURES
from traceana import cache
from traceana.enrich.steps import matches_marker
from traceana.errors import ExitCode, UsageError
from traceana.report.charts import specification
from traceana.report.charts.specification import short

TRACE = FIXTURES / "alexnet-cpu-ranges.json.gz"
ROOT = Path(__file__).parents[2]


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path, run: Run) -> None:
    pipe = tmp_path / "out.csv"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    assert run("kernels", TRACE, "-o", pipe, "--force").exit_code == 0
    reader.join(10)
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert read[0].startswith(b"name,")
    assert run("kernels", TRACE, "-o", pipe).exit_code == ExitCode.CANNOT_WRITE


def test_a_link_is_followed(tmp_path: Path, run: Run) -> None:
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "kept.csv", tmp_path / "out.csv"
    target.write_text("before")
    link.symlink_to(target)
    assert run("kernels", TRACE, "-o", link, "--force").exit_code == 0
    assert link.is_symlink()
    assert target.read_text().startswith("name,")


@pytest.mark.parametrize("change", [0o666, "folder", "owner"])
def test_a_cache_that_others_may_write_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: int | str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache.write("classes", "file", "key", b"content")
    assert cache.read("classes", "file", "key") == b"content"
    if change == "owner":
        with mock.patch.object(os, "geteuid", lambda: os.getuid() + 1):
            assert cache.read("classes", "file", "key") is None
        return
    path = cache.folder("classes") / "file"
    if isinstance(change, int):
        path.chmod(change)
    else:
        path.parent.chmod(0o777)
    assert cache.read("classes", "file", "key") is None
    path.parent.chmod(0o775)
    path.chmod(0o664)
    assert cache.read("classes", "file", "key") == b"content"


def test_step_markers_are_matched_in_linear_time() -> None:
    texts = pl.Series(["a" * 50_000 + "b"])
    assert matches_marker(texts, "(a+)+$").to_list() == [False]
    for invalid, reason in (("(?=a)", "look-around"), ("(a", "unclosed"), (r"(a)\1", "backref")):
        with pytest.raises(UsageError, match=f"invalid regular expression: .*{reason}"):
            matches_marker(texts, invalid)


def test_formulas_of_spreadsheets_have_an_apostrophe(tmp_path: Path, run: Run) -> None:
    names = ["=1+1", "\uff1d1+1", " =1", "+1", "@x", "plain"]
    events = [kernel(name, 10 * n + 10, 5) for n, name in enumerate(names)]
    file = write(tmp_path / "t.json", events)
    rows = run("kernels", file, "--format", "csv").stdout.splitlines()[1:]
    begins = {row.strip('"')[:2] for row in rows}
    assert {"'=", "'\uff1d", "' ", "'+", "'@", "pl"} == begins


@pytest.mark.parametrize("name", ["toString", "__proto__", "constructor"])
def test_names_that_objects_of_javascript_have(name: str) -> None:
    assert short(name) == f"{name}\u200b"
    assert short(f"{name}s") == f"{name}s"


@pytest.mark.parametrize("threads", ["0", "00", "", "x", "100000", "9" * 5000])
def test_no_threads_for_polars_are_its_default(threads: str) -> None:
    """And no more are started than there are processors, or 64."""
    done = subprocess.run(
        [sys.executable, "-OO", "-m", "traceana", "layers", TRACE],
        env={**os.environ, "POLARS_MAX_THREADS": threads},
        capture_output=True,
        check=True,
    )
    assert b"conv" in done.stdout


@pytest.mark.parametrize("words", [["--help"], [TRACE, "--help"]])
def test_the_gate_takes_no_option_for_a_trace(tmp_path: Path, words: list[str]) -> None:
    done = subprocess.run(
        ["sh", ROOT / "ci" / "gate.sh", *words], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 2
    assert b"an option, not a trace" in done.stderr


NAMES = ("toString", "__proto__", "constructor")


@pytest.mark.parametrize("form", ["svg", "png"])
def test_names_that_objects_of_javascript_have_are_drawn(
    tmp_path: Path, run: Run, form: str
) -> None:
    pytest.importorskip("vl_convert")
    events = [kernel(name, 10 * n + 10, 5) for n, name in enumerate(NAMES)]
    picture = tmp_path / f"out.{form}"
    result = run("kernels", write(tmp_path / "t.json", events), "--plot", picture)
    assert result.exit_code == 0
    if form == "svg":
        assert all(name in picture.read_text() for name in NAMES)
    assert picture.stat().st_size > 5_000


def test_a_picture_that_vega_does_not_draw_is_an_error(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vl_convert")
    monkeypatch.setattr(specification, "_OF_EVERY_OBJECT", frozenset())
    trace = write(tmp_path / "t.json", [kernel("toString", 10, 5), kernel("k", 20, 5)])
    result = run("kernels", trace, "--plot", tmp_path / "out.png")
    assert result.exit_code == ExitCode.CANNOT_WRITE
    assert result.stderr.startswith("traceana: the picture cannot be drawn (it is empty)")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out.png").exists()
    assert run("kernels", trace, "-f", "html").exit_code == 0

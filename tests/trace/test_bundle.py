"""A saved trace comes back as it was, whole or not at all, and nothing of the user's is lost."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from tests.support.traces import cnn_steps
from traceana.errors import BundleVersionError, CannotWriteError
from traceana.opening import open_trace
from traceana.trace import Trace
from traceana.trace.bundle import MANIFEST
from traceana.trace.schema import TABLES


def test_every_table_and_fact_comes_back(tmp_path: Path) -> None:
    trace = cnn_steps()
    path = trace.save(tmp_path / "deep" / "run.traceana")
    again = open_trace(path)
    assert again.meta == trace.meta
    for name in TABLES:
        assert_frame_equal(again.table(name), trace.table(name))
    assert list(path.parent.iterdir()) == [path]


def test_tables_are_read_when_asked_for(tmp_path: Path) -> None:
    path = cnn_steps().save(tmp_path / "run")
    trace = Trace.from_bundle(path)
    (path / "activities.parquet").unlink()
    assert trace.layers.height > 0
    with pytest.raises(FileNotFoundError):
        _ = trace.activities


def test_an_existing_bundle_is_replaced_only_on_request(tmp_path: Path) -> None:
    path = cnn_steps().save(tmp_path / "run")
    with pytest.raises(CannotWriteError, match="exists already"):
        cnn_steps().save(path)
    changed = cnn_steps().with_tables(steps=pl.DataFrame())
    changed.save(path, overwrite=True)
    assert Trace.from_bundle(path).steps.is_empty()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_no_bundle_is_never_touched(tmp_path: Path, overwrite: bool) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter1.tex").write_text("x")
    with pytest.raises(CannotWriteError, match="not a traceana bundle"):
        cnn_steps().save(folder, overwrite=overwrite)
    assert (folder / "chapter1.tex").read_text() == "x"


def test_a_failed_write_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    with pytest.raises(CannotWriteError, match="No space left"):
        cnn_steps().save(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    path = cnn_steps().save(tmp_path / "run")
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["schema_version"] += 1
    (path / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(BundleVersionError, match="schema version"):
        Trace.from_bundle(path)


@pytest.mark.parametrize(
    "damage", ["missing", "garbage", "other columns", "fewer rows", "manifest"]
)
def test_a_damaged_bundle_is_refused(tmp_path: Path, damage: str) -> None:
    path = cnn_steps().save(tmp_path / "run")
    file = path / "steps.parquet"
    match damage:
        case "missing":
            file.unlink()
        case "garbage":
            file.write_bytes(b"PAR1nonsense")
        case "other columns":
            pl.DataFrame({"x": [1]}).write_parquet(file)
        case "fewer rows":
            pl.read_parquet(file).head(1).write_parquet(file)
        case "manifest":
            (path / MANIFEST).write_text("{")
    with pytest.raises(BundleVersionError, match="save it again"):
        Trace.from_bundle(path)

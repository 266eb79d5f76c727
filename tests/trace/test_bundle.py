"""A saved trace comes back as it was, whole or not at all, and nothing of the user's is lost."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from tests.support.traces import cnn_steps
from traceana.errors import (
    CannotWriteError,
    CorruptError,
    NotFoundError,
    UnknownFormatError,
)
from traceana.opening import open_trace
from traceana.trace import bundle
from traceana.trace.bundle import MANIFEST, load
from traceana.trace.schema import TABLES


def test_every_table_and_fact_comes_back(tmp_path: Path) -> None:
    trace = cnn_steps()
    path = trace.save(tmp_path / "deep" / "run.traceana")
    again = open_trace(path)
    assert again.meta == msgspec.structs.replace(trace.meta, opened=(str(path),))
    for name in TABLES:
        assert_frame_equal(again.tables[name], trace.tables[name])
    assert list(path.parent.iterdir()) == [path]


def test_a_bundle_that_is_open_stays_whole(tmp_path: Path) -> None:
    path = cnn_steps().save(tmp_path / "run")
    trace = load(path)
    cnn_steps().with_tables(activities=pl.DataFrame()).save(path, overwrite=True)
    assert trace.tables.activities.equals(cnn_steps().tables.activities)
    shutil.rmtree(path)
    assert trace.tables.layers.equals(cnn_steps().tables.layers)


def test_an_existing_bundle_is_replaced_only_on_request(tmp_path: Path) -> None:
    path = cnn_steps().save(tmp_path / "run")
    with pytest.raises(CannotWriteError, match="exists already"):
        cnn_steps().save(path)
    changed = cnn_steps().with_tables(
        layers=cnn_steps().tables.layers.with_columns(type=pl.lit("new"))
    )
    changed.save(path, overwrite=True)
    assert load(path).tables.layers["type"].unique().to_list() == ["new"]
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

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(CannotWriteError, match="No space left"):
        cnn_steps().save(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    path = cnn_steps().save(tmp_path / "run")
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["schema_version"] += 1
    (path / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(UnknownFormatError, match="schema version"):
        load(path)


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
    with pytest.raises(CorruptError, match="save it again"):
        load(path)


def test_every_changed_byte_of_a_bundle_is_noticed(tmp_path: Path) -> None:
    path = cnn_steps().save(tmp_path / "run")
    rng = random.Random(0)
    files = sorted(path.iterdir())
    for number in range(60):
        file = files[number % len(files)]
        whole = file.read_bytes()
        content = bytearray(whole)
        at = rng.randrange(len(content))
        # White space of the manifest has no meaning; a letter there does not parse.
        content[at] = content[at] ^ 1 if content[at : at + 1].isalnum() else ord("Q")
        file.write_bytes(content)
        with pytest.raises(CorruptError, match="save it again"):
            load(path)
        file.write_bytes(whole)
    assert load(path).tables.activities.height


def test_a_table_of_another_bundle_is_refused(tmp_path: Path) -> None:
    path = cnn_steps().save(tmp_path / "run")
    rows = cnn_steps().tables.activities.with_columns(name_id=pl.lit(1 << 20, pl.UInt32))
    assert rows.schema == cnn_steps().tables.activities.schema
    rows.write_parquet(path / "activities.parquet")
    with pytest.raises(CorruptError, match=r"activities\.parquet is damaged: save it again"):
        load(path)


def test_a_full_disk_leaves_the_earlier_bundle(tmp_path: Path) -> None:
    path = cnn_steps().save(tmp_path / "run")
    # Larger files raise an error, as a full disk does.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(CannotWriteError, match=r"cannot write .*run: File too large"):
            cnn_steps().save(path, overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == [path]
    assert_frame_equal(load(path).tables.activities, cnn_steps().tables.activities)


@pytest.mark.exhaustive
def test_savers_that_are_killed_leave_a_whole_bundle(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.trace.interrupted_saves", str(tmp_path), "5", "1"]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("5 rounds")


def test_recorded_run_opens_again(tmp_path: Path) -> None:
    run = Path(__file__).parents[2] / "fixtures" / "gpu" / "run_alexnet"
    trace = open_trace(run)
    bundle.save(trace, tmp_path / "bundle")
    again = open_trace(tmp_path / "bundle")
    assert again.meta.unprofiled_step_ns == trace.meta.unprofiled_step_ns is not None


def resealed(path: Path, name: str, change: pl.Expr) -> None:
    """Change a table of a bundle, and make its checksums right again."""
    manifest = msgspec.json.decode((path / MANIFEST).read_bytes(), type=bundle.Manifest)
    table = pl.read_parquet(path / f"{name}.parquet").with_columns(change)
    checksums = bundle.write_tables(path, {name: table})
    checksums = {**manifest.checksums, **checksums}
    again = msgspec.structs.replace(manifest, checksums=checksums).checked()
    (path / MANIFEST).write_bytes(msgspec.json.encode(again))


def test_a_row_number_out_of_range_is_damage(tmp_path: Path) -> None:
    path = cnn_steps().save(tmp_path / "run")
    resealed(path, "activities", pl.lit(10**6, pl.UInt32).alias("layer"))
    with pytest.raises(CorruptError, match="table activities of the bundle is damaged"):
        _ = open_trace(path).tables.activities


@pytest.mark.parametrize("member", [MANIFEST, "activities.parquet", "ops.parquet"])
@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_members_are_regular_files_in_the_bundle(tmp_path: Path, member: str, kind: str) -> None:
    path = cnn_steps().save(tmp_path / "run")
    (path / member).rename(tmp_path / "moved")
    if kind == "pipe":
        os.mkfifo(path / member)
    else:
        (path / member).symlink_to(tmp_path / "moved")
    if kind == "pipe" and member == MANIFEST:
        pytest.skip("a folder without a manifest is no bundle")
    with pytest.raises(NotFoundError, match=f"{member} is no regular file"):
        open_trace(path)

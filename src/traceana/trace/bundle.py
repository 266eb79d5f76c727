"""A bundle: a trace as a directory of Parquet files with a manifest, reopened lazily."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from traceana.errors import BundleVersionError, CannotWriteError
from traceana.files import replace_folder, umask
from traceana.trace.meta import TraceMeta
from traceana.trace.schema import SCHEMA_VERSION, TABLES

if TYPE_CHECKING:
    from collections.abc import Mapping

MANIFEST: Final = "manifest.json"


class Manifest(msgspec.Struct, kw_only=True):
    """``manifest.json`` of a bundle; written last, so a directory without it is incomplete."""

    traceana: str = "bundle"
    schema_version: int
    meta: TraceMeta
    rows: dict[str, int]


def is_bundle(path: Path) -> bool:
    """Return whether ``path`` is a complete bundle."""
    return (path / MANIFEST).is_file()


def save(
    meta: TraceMeta,
    tables: Mapping[str, pl.DataFrame],
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
) -> Path:
    """Write ``tables`` and ``meta`` to the directory ``path`` and return it.

    The write is atomic: a temporary directory beside the target is renamed. An existing bundle is
    replaced with ``overwrite``; anything else at the path is left alone.
    Raises :class:`~traceana.errors.CannotWriteError`.
    """
    target = Path(path)
    if target.exists():
        if not is_bundle(target):
            raise CannotWriteError(
                f"{target} exists and is not a traceana bundle: choose another name"
            )
        if not overwrite:
            raise CannotWriteError(f"{target} exists already: choose another name, or --force")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise CannotWriteError(f"cannot write {target}: {error.strerror}") from error
    try:
        rows: dict[str, int] = {}
        for name, table in tables.items():
            rows[name] = table.height
            table.write_parquet(scratch / f"{name}.parquet", compression="zstd")
        manifest = Manifest(schema_version=SCHEMA_VERSION, meta=meta, rows=rows)
        (scratch / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
        scratch.chmod(0o777 & ~umask())
        replace_folder(scratch, target)
    except OSError as error:
        raise CannotWriteError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def load(path: Path) -> tuple[TraceMeta, dict[str, pl.LazyFrame]]:
    """Return the meta and the tables of a bundle; each is read when it is collected.

    Raises :class:`~traceana.errors.BundleVersionError` if the schema version differs, or a
    file is missing or not a Parquet file.
    """
    again = "save it again from the original trace"
    try:
        manifest = msgspec.json.decode((path / MANIFEST).read_bytes(), type=Manifest)
    except (msgspec.DecodeError, OSError) as error:
        raise BundleVersionError(f"{path}: its {MANIFEST} cannot be read: {again}") from error
    if manifest.schema_version != SCHEMA_VERSION:
        raise BundleVersionError(
            f"{path} has schema version {manifest.schema_version}, this traceana reads "
            f"{SCHEMA_VERSION}: {again}"
        )
    tables = {name: _scan(path, name, manifest.rows.get(name), again) for name in TABLES}
    return manifest.meta, tables


def _scan(path: Path, name: str, rows: int | None, again: str) -> pl.LazyFrame:
    file = path / f"{name}.parquet"
    if not file.is_file():
        raise BundleVersionError(f"{path}: {file.name} is missing: {again}")
    try:
        frame = pl.scan_parquet(file)
        schema = dict(frame.collect_schema())
        height = frame.select(pl.len()).collect().item()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise BundleVersionError(f"{path}: {file.name} cannot be read: {again}") from error
    if list(schema.items()) != list(TABLES[name].items()) or height != rows:
        raise BundleVersionError(f"{path}: {file.name} does not match the manifest: {again}")
    return frame

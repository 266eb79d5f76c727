"""A bundle: a trace as a directory of Parquet files with a manifest, reopened lazily. It keeps the
recommendations too.

The manifest has a checksum of every file and of itself. All files are read and checked when the
bundle is opened, so that readers of a bundle that is replaced meanwhile have the earlier or the
later one; a table is decoded when it is asked for.
"""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from traceana.errors import CannotWriteError, CorruptError, NotFoundError, UnknownFormatError
from traceana.files import UNDECODABLE, crc32, replace_folder, scratch_folder, scratch_prefix, umask
from traceana.runs.run_files import LAYERS_FILE
from traceana.trace.schema import SCHEMA_VERSION, TABLES
from traceana.trace.tables import Tables
from traceana.trace.trace import Trace, TraceMeta

if TYPE_CHECKING:
    from collections.abc import Mapping

MANIFEST: Final = "manifest.json"
_ADVICE: Final = "advice"
_ADVICE_FILE: Final = "advice.msgpack"
_ATTEMPTS: Final = 100
"""To read a bundle that other processes replace over and over."""


class Manifest(msgspec.Struct, kw_only=True):
    """``manifest.json`` of a bundle; written last, so a directory without it is incomplete.

    ``checksums`` are the CRC-32 of the tables' files and of the recommendations, ``checksum`` that
    of the manifest without it.
    """

    traceana: str = "bundle"
    schema_version: int
    meta: TraceMeta
    rows: dict[str, int]
    checksums: dict[str, int]
    checksum: int = 0

    def checked(self) -> Manifest:
        """Return the manifest with its checksum."""
        without = msgspec.structs.replace(self, checksum=0)
        return msgspec.structs.replace(self, checksum=crc32(msgspec.json.encode(without)))


def is_bundle(path: Path) -> bool:
    """Return whether ``path`` is a complete bundle."""
    return (path / MANIFEST).is_file()


def sources(bundle: Path) -> list[str]:
    """Return the paths of the files that ``bundle`` was saved from, as they were given.

    Empty where the manifest cannot be read: :func:`load` has the error.
    """
    try:
        meta = msgspec.json.decode((bundle / MANIFEST).read_bytes(), type=_Sources).meta
    except (OSError, *UNDECODABLE):
        return []
    ranks = meta.properties.get("ranks")
    of_ranks = ranks.values() if isinstance(ranks, dict) else ()
    windows = meta.properties.get("windows")
    of_windows = windows if isinstance(windows, dict) else ()
    return [one for one in (meta.source, *of_ranks, *of_windows) if isinstance(one, str)]


class _SourceMeta(msgspec.Struct):
    source: str = ""
    properties: dict[str, object] = {}


class _Sources(msgspec.Struct):
    meta: _SourceMeta


def save(
    trace: Trace,
    path: str | os.PathLike[str],
    *,
    advice: bytes | None = None,
    overwrite: bool = False,
) -> Path:
    """Write ``trace`` to the directory ``path`` and return it.

    ``advice`` are the recommendations on the trace, of :mod:`traceana.advise.kept`.

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
        with scratch_folder(scratch_prefix(target.name), target.parent) as scratch:
            _write(scratch, trace, advice)
            replace_folder(scratch, target, replace=overwrite)
    except OSError as error:
        raise CannotWriteError(f"cannot write {target}: {error.strerror or error}") from error
    return target


def _write(folder: Path, trace: Trace, advice: bytes | None) -> None:
    if trace.manifest is not None:
        (folder / LAYERS_FILE).write_text(trace.manifest.to_json(), encoding="utf-8")
    checksums = write_tables(folder, trace.tables)
    if advice is not None:
        checksums[_ADVICE] = crc32(advice)
        (folder / _ADVICE_FILE).write_bytes(advice)
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        meta=trace.meta.saved(),
        rows={name: table.height for name, table in trace.tables.items()},
        checksums=checksums,
    )
    # As it will be read: a whole number may be given for one with decimals.
    manifest = msgspec.json.decode(msgspec.json.encode(manifest), type=Manifest).checked()
    (folder / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
    folder.chmod(0o777 & ~umask())


def write_tables(folder: Path, tables: Mapping[str, pl.DataFrame]) -> dict[str, int]:
    """Write ``tables`` as Parquet into ``folder``; return their checksums. Raises ``OSError``."""
    checksums = {}
    for name, table in tables.items():
        encoded = io.BytesIO()
        table.write_parquet(encoded, compression="zstd")
        checksums[name] = crc32(encoded.getbuffer())
        (folder / f"{name}.parquet").write_bytes(encoded.getbuffer())
    return checksums


def load(path: Path) -> Trace:
    """Return the trace in a bundle, whose tables are decoded on first access.

    Raises :class:`~traceana.errors.UnknownFormatError` if the schema version differs,
    :class:`~traceana.errors.CorruptError` if a file is missing or not what was written, and
    :class:`~traceana.errors.NotFoundError` if one is no regular file or cannot be read.
    """
    for _ in range(_ATTEMPTS):
        before = _version(path)
        try:
            return _loaded(path)
        except (CorruptError, NotFoundError, UnknownFormatError):
            # Another process replaced the bundle between two files.
            if _version(path) == before:
                raise
    return _loaded(path)


def _version(path: Path) -> tuple[int, int, int] | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns


def _loaded(path: Path) -> Trace:
    again = "save it again from the original trace"
    try:
        manifest = msgspec.json.decode(_member(path / MANIFEST, again), type=Manifest)
    except UNDECODABLE as error:
        raise CorruptError(f"{path}: its {MANIFEST} cannot be read: {again}") from error
    if manifest.schema_version != SCHEMA_VERSION:
        raise UnknownFormatError(
            f"{path} has schema version {manifest.schema_version}, this traceana reads "
            f"{SCHEMA_VERSION}: {again}"
        )
    if manifest != manifest.checked():
        raise CorruptError(f"{path}: its {MANIFEST} is damaged: {again}")
    tables = {name: _table(path, name, manifest, again) for name in TABLES}
    kept = _ADVICE in manifest.checksums
    advice = _content(path / _ADVICE_FILE, manifest.checksums[_ADVICE], again) if kept else None
    held = Tables(tables, heights=manifest.rows)
    return Trace(manifest.meta, held, kept_advice=advice)


def _content(file: Path, checksum: int | None, again: str) -> bytes:
    """Return the content of a file of a bundle, after a check."""
    content = _member(file, again)
    if crc32(content) != checksum:
        raise CorruptError(f"{file.parent}: {file.name} is damaged: {again}")
    return content


def _member(file: Path, again: str) -> bytes:
    """Return the content of a regular file in the folder of a bundle.

    A link may lead to any file of the machine, and a pipe or a device may have no end.
    """
    try:
        if not stat.S_ISREG(file.lstat().st_mode):
            raise NotFoundError(
                f"{file.parent}: {file.name} is no regular file, but a link, a pipe or a device: "
                "copy the bundle with its files"
            )
        return file.read_bytes()
    except FileNotFoundError as error:
        raise CorruptError(f"{file.parent}: {file.name} is missing: {again}") from error
    except OSError as error:
        raise NotFoundError(f"{file.parent}: {file.name} cannot be read: {again}") from error


def _table(path: Path, name: str, manifest: Manifest, again: str) -> pl.LazyFrame:
    file = path / f"{name}.parquet"
    content = _content(file, manifest.checksums.get(name), again)
    try:
        frame = pl.scan_parquet(io.BytesIO(content))
        schema = dict(frame.collect_schema())
        height = frame.select(pl.len()).collect().item()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise CorruptError(f"{path}: {file.name} cannot be read: {again}") from error
    if list(schema.items()) != list(TABLES[name].items()) or height != manifest.rows.get(name):
        raise CorruptError(f"{path}: {file.name} does not match the manifest: {again}")
    return frame

"""Reads reports of Nsight Systems (.nsys-rep, .qdrep, .qdstrm), exported by the installed nsys.

Exports are kept in a cache folder, so that each report is exported once.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

import msgspec

from traceana import cache
from traceana.errors import CannotWriteError, CorruptError, MissingDependencyError
from traceana.files import scratch_folder
from traceana.readers.nsys.reader import read_tables
from traceana.readers.source import Progress
from traceana.readers.sqlite import Database
from traceana.trace import Tables, Trace
from traceana.trace.schema import TABLES

_PERCENT: Final = re.compile(rb"\[[=\s]*(\d{1,3})%")
_LINE_END: Final = re.compile(rb"[\r\n]+")
_LAST_LINES: Final = 5
_LONGEST_LINE: Final = 300
_FULL_DISK: Final = 1 << 20
"""A program that fails with fewer free bytes failed for want of space."""
_ANOTHER_CACHE: Final = "set XDG_CACHE_HOME to a writable folder with free space"


def read_stream(path: Path, progress: Progress) -> Trace:
    """Return the Trace of a ``.qdstrm``, which is imported first; else as :func:`read`."""
    return read(path, progress, stream=True)


def read(path: Path, progress: Progress, *, stream: bool = False) -> Trace:
    """Return the Trace of a report; ``stream``: a ``.qdstrm``, which is imported first.

    ``progress`` runs from 0 to the end for each program, and again for the reading. Raises
    ``MissingDependencyError``, ``CannotWriteError`` and the errors of the reader of
    exports.
    """

    def make(target: Path) -> None:
        if not stream:
            _export(path, target, progress)
            return
        with scratch_folder(".", target.parent) as scratch:
            report = scratch / "report.nsys-rep"
            _import(path, report, progress)
            _export(report, target, progress)

    export = _cached(path, make)
    try:
        trace = _read_export(export, progress)
    except CorruptError:
        # A damaged export in the cache is replaced.
        export.unlink(missing_ok=True)
        export = _cached(path, make)
        try:
            trace = _read_export(export, progress)
        except CorruptError as error:
            export.unlink(missing_ok=True)
            raise CannotWriteError(
                f"the export of {path} is damaged after nsys wrote it to {export.parent} "
                f"({_free(export.parent)}): {_ANOTHER_CACHE}"
            ) from error
    size = path.stat().st_size
    meta = msgspec.structs.replace(trace.meta, source=str(path), bytes_read=size, bytes_total=size)
    return Trace(meta, Tables({name: trace.tables[name] for name in TABLES}))


def _read_export(path: Path, progress: Progress) -> Trace:
    with Database(path) as database:
        if database.damage is not None:
            raise CorruptError(f"{path} is damaged ({database.damage})")
        return read_tables(database, progress)


def _export(report: Path, target: Path, progress: Progress) -> None:
    options = ["export", "--type", "sqlite"]
    nsys = shutil.which("nsys")
    if nsys is None:
        shown = shlex.join(["nsys", *options, str(report)])
        raise MissingDependencyError(
            f"{report} needs nsys to be exported, and nsys is not on the PATH: install it, or "
            f"run '{shown}' on a machine that has it, and pass the export"
        )
    command = [nsys, *options, "--output", str(target), str(report.resolve())]
    _run(command, report, target, progress)


def _import(stream: Path, report: Path, progress: Progress) -> None:
    name = "QdstrmImporter"
    importers = [shutil.which(name)]
    if nsys := shutil.which("nsys"):
        # nsys is in bin or target-…, its importer in host-…, of the same installation.
        home = Path(nsys).resolve().parents[1]
        importers += [str(path) for path in sorted(home.glob(f"host-*/{name}"))]
    importer = next((path for path in importers if path), None)
    if importer is None:
        shown = shlex.join([name, "--input-file", str(stream)])
        raise MissingDependencyError(
            f"{stream} needs Nsight Systems' {name} to be imported, which is neither on the PATH "
            f"nor beside nsys: run '{shown}' on a machine that has it, and pass the report"
        )
    command = [importer, "--input-file", str(stream.resolve()), "--output-file", str(report)]
    _run(command, stream, report, progress)


def _run(command: list[str], source: Path, target: Path, progress: Progress) -> None:
    """Run ``command``, which converts ``source`` to ``target``, and wait for its end.

    ``progress`` gets the percentage that the program prints, as bytes of ``source``. Raises
    ``MissingDependencyError`` with the last lines of its output where it fails or writes nothing.
    """
    total = source.stat().st_size
    progress(0, total)
    last: deque[bytes] = deque(maxlen=_LAST_LINES)
    try:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            assert process.stdout is not None
            try:
                for line in _lines(process.stdout):
                    if shown := _PERCENT.search(line):
                        progress(total * min(int(shown[1]), 100) // 100, total)
                    else:
                        last.append(line)
            except BaseException:
                process.kill()
                raise
    except OSError as error:
        raise MissingDependencyError(
            f"{command[0]} cannot be run ({error.strerror}): check the installation of Nsight "
            "Systems"
        ) from error
    if process.returncode or not target.is_file():
        printed = [line.decode("utf-8", "replace").strip()[:_LONGEST_LINE] for line in last]
        if shutil.disk_usage(target.parent).free < _FULL_DISK:
            raise CannotWriteError(
                f"the export of {source} cannot be written to {target.parent} "
                f"({_free(target.parent)}): {_ANOTHER_CACHE}"
            )
        status = f"exit status {process.returncode}" if process.returncode else "no file written"
        raise MissingDependencyError(
            f"{Path(command[0]).name} cannot read {source} ({'; '.join([status, *printed])}): "
            "export it with the nsys that recorded it, or copy it again"
        )


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a program; its progress bar ends them with carriage returns."""
    rest = b""
    while block := stream.read1(1 << 16):  # type: ignore[attr-defined]
        *lines, rest = _LINE_END.split(rest + block)
        yield from (line for line in lines if line.strip())
    if rest.strip():
        yield rest


def _cached(source: Path, make: Callable[[Path], None]) -> Path:
    """Return the export of ``source``; ``make`` writes it to the path that it gets.

    The export is made unless one for the path, size and modification time of ``source`` exists. It
    is complete or absent; exports of earlier versions of ``source`` are deleted. Raises
    ``CannotWriteError``.
    """
    facts = source.stat()
    path_digest = _digest(os.fsencode(source.resolve()))
    version_digest = _digest(f"{facts.st_size} {facts.st_mtime_ns}".encode())
    target = cache.folder("nsys") / f"{path_digest}-{version_digest}.sqlite"
    if target.is_file() and cache.is_ours(target):
        return target
    try:
        cache.made("nsys")
        with scratch_folder(".", target.parent) as scratch:
            export = scratch / "export.sqlite"
            make(export)
            export.replace(target)
        for old in target.parent.glob(f"{path_digest}-*.sqlite"):
            if old != target:
                old.unlink(missing_ok=True)
    except OSError as error:
        raise CannotWriteError(
            f"the export of {source} cannot be written to {target.parent} ({error.strerror}): "
            f"{_ANOTHER_CACHE}"
        ) from error
    return target


def _free(folder: Path) -> str:
    return f"{shutil.disk_usage(folder).free / 1e9:,.1f} GB free"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]

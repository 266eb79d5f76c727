"""Reports of Nsight Systems to the canonical tables, by way of an export that is kept."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

import msgspec

from traceana.errors import CannotWriteError, CorruptError, MissingToolError, ToolFailedError
from traceana.ingest.source import Progress
from traceana.ingest.sqlite import read as read_sqlite
from traceana.trace import Trace
from traceana.trace.schema import TABLES

_PERCENT: Final = re.compile(rb"\[[=\s]*(\d{1,3})%")
_LINE_END: Final = re.compile(rb"[\r\n]+")
_LONGEST_LINE: Final = 300


def read(path: Path, progress: Progress, *, stream: bool = False) -> Trace:
    """Read a report; ``stream`` for a ``.qdstrm``, which becomes a report first.

    ``progress`` goes from 0 to the whole once a program runs, and once more for the reading.
    Raises ``MissingToolError``, ``ToolFailedError``, ``CannotWriteError`` and what the reader of
    exports raises.
    """

    def make(target: Path) -> None:
        if not stream:
            _export(path, target, progress)
            return
        with tempfile.TemporaryDirectory(prefix=".", dir=target.parent) as scratch:
            report = Path(scratch) / "report.nsys-rep"
            options = ["--input-file", str(path.resolve()), "--output-file"]
            shown = ["QdstrmImporter", *options[:1], str(path)]
            _run([_importer(shown), *options, str(report)], path, progress)
            _export(report, target, progress)

    export = _kept(path, make)
    try:
        trace = read_sqlite(export, progress)
    except CorruptError:
        # Whatever happened to it, it is ours, and can be made again.
        export.unlink(missing_ok=True)
        trace = read_sqlite(_kept(path, make), progress)
    size = path.stat().st_size
    meta = msgspec.structs.replace(trace.meta, source=str(path), bytes_read=size, bytes_total=size)
    return Trace(meta, {name: trace.table(name) for name in TABLES})


def _export(report: Path, target: Path, progress: Progress) -> None:
    options = ["export", "--type", "sqlite"]
    shown = ["nsys", *options, str(report)]
    command = [_nsys(shown), *options, "--output", str(target), str(report.resolve())]
    _run(command, report, progress)


def _nsys(command: list[str]) -> str:
    """Return the path of ``nsys``.

    Raises ``MissingToolError`` that tells to run ``command`` on a machine that has it.
    """
    found = shutil.which("nsys")
    if found is None:
        raise MissingToolError(
            "reports of Nsight Systems are read by its own nsys, which is not on the PATH: install "
            f"it, or run '{shlex.join(command)}' where it is, and give that file"
        )
    return found


def _importer(command: list[str]) -> str:
    """Return the path of ``QdstrmImporter``, which lies beside ``nsys`` as a rule.

    Raises ``MissingToolError`` that tells to run ``command`` on a machine that has it.
    """
    name = "QdstrmImporter"
    places = [shutil.which(name)]
    if tool := shutil.which("nsys"):
        # nsys is in bin or target-…, its importer in host-…, of the same installation.
        home = Path(tool).resolve().parents[1]
        places += [str(place) for place in sorted(home.glob(f"host-*/{name}"))]
    found = next((place for place in places if place), None)
    if found is None:
        raise MissingToolError(
            f"a .qdstrm becomes a report by Nsight Systems' {name}, which is neither on the PATH "
            f"nor beside nsys: run '{shlex.join(command)}' where it is, and give that file"
        )
    return found


def _run(command: list[str], source: Path, progress: Progress) -> None:
    """Run ``command``, one of the above on the file ``source``, and wait until it is done.

    ``progress`` gets the share that the program shows, as bytes of ``source``. Raises
    ``ToolFailedError`` with the program's last line where it fails.
    """
    total = source.stat().st_size
    progress(0, total)
    last = b""
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
                        last = line
            except BaseException:
                process.kill()
                raise
    except OSError as error:
        raise ToolFailedError(f"{command[0]} cannot be run: {error.strerror}") from error
    if process.returncode:
        said = last.decode("utf-8", "replace").strip()[:_LONGEST_LINE]
        raise ToolFailedError(
            f"{Path(command[0]).name} cannot read {source} ({said or process.returncode}): "
            "export it with the nsys that recorded it, or copy it again"
        )


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a program that draws a bar, which ends them with carriage returns."""
    rest = b""
    while block := stream.read1(1 << 16):  # type: ignore[attr-defined]
        *lines, rest = _LINE_END.split(rest + block)
        yield from (line for line in lines if line.strip())
    if rest.strip():
        yield rest


def cache_folder() -> Path:
    """Return the folder of the exports, by the XDG Base Directory Specification."""
    told = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(told) if Path(told).is_absolute() else Path.home() / ".cache"
    return home / "traceana" / "nsys"


def _kept(source: Path, make: Callable[[Path], None]) -> Path:
    """Return the export of ``source``, which ``make`` writes to the path it is given.

    It is made when there is none of a file of that path, size and time of change. It appears whole
    or not at all; exports of what the file was before are deleted. Raises ``CannotWriteError``.
    """
    facts = source.stat()
    of_path = _digest(os.fsencode(source.resolve()))
    of_content = _digest(f"{facts.st_size} {facts.st_mtime_ns}".encode())
    target = cache_folder() / f"{of_path}-{of_content}.sqlite"
    if target.is_file():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=target.parent) as scratch:
            made = Path(scratch) / "export.sqlite"
            make(made)
            made.replace(target)
        for old in target.parent.glob(f"{of_path}-*.sqlite"):
            if old != target:
                old.unlink(missing_ok=True)
    except OSError as error:
        raise CannotWriteError(
            f"the export of {source} cannot be kept in {target.parent} ({error.strerror}): set "
            "XDG_CACHE_HOME to a folder with room"
        ) from error
    return target


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]

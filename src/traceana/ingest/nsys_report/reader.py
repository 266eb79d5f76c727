"""Reports of Nsight Systems to the canonical tables, by way of an export that is kept."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from traceana.errors import CorruptError
from traceana.ingest.nsys_report import cache, tools
from traceana.ingest.progress import Progress
from traceana.ingest.sqlite.reader import read as read_sqlite
from traceana.trace import Trace
from traceana.trace.schema import TABLES


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
            tools.run([tools.importer(shown), *options, str(report)], path, progress)
            _export(report, target, progress)

    export = cache.kept(path, make)
    try:
        trace = read_sqlite(export, progress)
    except CorruptError:
        # Whatever happened to it, it is ours, and can be made again.
        export.unlink(missing_ok=True)
        trace = read_sqlite(cache.kept(path, make), progress)
    size = path.stat().st_size
    meta = msgspec.structs.replace(trace.meta, source=str(path), bytes_read=size, bytes_total=size)
    return Trace(meta, {name: trace.table(name) for name in TABLES})


def _export(report: Path, target: Path, progress: Progress) -> None:
    options = ["export", "--type", "sqlite"]
    shown = ["nsys", *options, str(report)]
    command = [tools.nsys(shown), *options, "--output", str(target), str(report.resolve())]
    tools.run(command, report, progress)

"""One task a rank: every file is read in a process of its own pool, and its summaries are kept.

Processes come from an executor of ``concurrent.futures``. A process that dies takes its file with
it: the files that were being read are read again, each alone in a fresh process, and what dies
again is not read. Nothing here imports polars, so that a process sets its threads before it does.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Final

import msgspec

from traceana import __version__
from traceana.errors import BadRulesError, BadStepMarkerError, TraceanaError

_BASE_BYTES: Final = 400_000_000
"""Memory of a process with polars and a small trace."""
_BYTES_A_BYTE: Final = 3
_COMPRESSED_BYTES_A_BYTE: Final = 25
"""Memory for a byte of the file, as measured on Kineto's files, plain and gzip."""
_SHARE_OF_MEMORY: Final = 0.7

Done = Callable[[int, int], object]
"""Called with (files done, files in all)."""


class Reading(msgspec.Struct, frozen=True):
    """How files are opened: the options of :func:`traceana.open` that change what is read."""

    step_marker: str | None = None
    device_model: str | None = None
    rules: str | None = None


class Kept(msgspec.Struct, frozen=True):
    """Where the summaries of one file are: a folder for each rank in it, in order."""

    file: Path
    folders: tuple[Path, ...]


def kept_or_read(
    files: Sequence[Path], reading: Reading, folder: Path, *, workers: int, done: Done
) -> list[Kept]:
    """Return the summaries of ``files`` in their order; those in ``folder`` are not read again.

    A file that cannot be read has one summary with the reason, which the next run tries again.
    Raises ``OSError`` where ``folder`` cannot be written, and the errors of options that are wrong
    for every file.
    """
    targets = {file: folder / identity(file, reading) for file in files}
    known = {file: whole for file, target in targets.items() if (whole := _whole(target))}
    open_ = [file for file in files if file not in known]
    count = len(known)
    done(count, len(files))
    for file in _run(open_, reading, targets, workers):
        known[file] = _folders(targets[file])
        count += 1
        done(count, len(files))
    return [Kept(file, known[file]) for file in files]


def _whole(target: Path) -> tuple[Path, ...]:
    """Return the summaries in ``target`` if all are there as written; else none."""
    from traceana.job.summary import read_facts

    folders = _folders(target) if (target / _WHOLE).is_file() else ()
    return folders if all(read_facts(one) for one in folders) else ()


def _folders(target: Path) -> tuple[Path, ...]:
    return tuple(sorted(target.glob("[0-9]*")))


def identity(file: Path, reading: Reading) -> str:
    """Return a name that changes with the file's content, how it is read, and the version."""
    parts = [__version__, msgspec.json.encode(reading).decode(), str(file.resolve())]
    inside = sorted(file.rglob("*")) if file.is_dir() else [file]
    for one in inside:
        try:
            facts = one.stat()
        except OSError:
            continue
        parts.append(f"{one.name} {facts.st_size} {facts.st_mtime_ns} {facts.st_ino}")
    if reading.rules is not None:
        parts.append(hashlib.sha256(Path(reading.rules).read_bytes()).hexdigest())
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()[:24]


def default_workers(files: Sequence[Path]) -> int:
    """Return the number of processes: one a core, fewer where the files need more memory."""
    sizes = sorted((_needed(file) for file in files), reverse=True)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    most = max(1, min(cores or 1, len(files)))
    memory = _available()
    while most > 1 and memory is not None and sum(sizes[:most]) > _SHARE_OF_MEMORY * memory:
        most -= 1
    return most


def _needed(file: Path) -> int:
    inside = file.rglob("*") if file.is_dir() else [file]
    sizes = ((one.suffix, one.stat().st_size) for one in inside if one.is_file())
    factors = {".gz": _COMPRESSED_BYTES_A_BYTE}
    return _BASE_BYTES + sum(factors.get(ending, _BYTES_A_BYTE) * size for ending, size in sizes)


def _available() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


_WHOLE: Final = "whole"
"""The file that says that all ranks of a file have their summaries."""


def _run(
    files: Sequence[Path], reading: Reading, targets: dict[Path, Path], workers: int
) -> Iterator[Path]:
    """Yield the files whose summaries have been written."""
    waiting, alone = list(reversed(files)), list[Path]()
    while waiting:
        running: dict[Future[None], Path] = {}
        with _pool(workers) as pool:
            try:
                while waiting or running:
                    # No more than there are processes: what dies is known.
                    while waiting and len(running) < workers:
                        file = waiting.pop()
                        running[_submitted(pool, file, reading, targets)] = file
                    finished, _ = wait(running, return_when=FIRST_COMPLETED)
                    for one in finished:
                        one.result()
                        yield running.pop(one)
            except BrokenProcessPool:
                alone += running.values()
    for file in alone:
        with _pool(1) as pool:
            try:
                _submitted(pool, file, reading, targets).result()
            except BrokenProcessPool:
                _not_read(file, "its process was ended twice: out of memory?", targets[file])
        yield file


def _pool(workers: int) -> Executor:
    # A process that is forked has the threads of polars without their locks.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_begin)


def _begin() -> None:
    os.environ["POLARS_MAX_THREADS"] = "1"
    # Ctrl-C ends the process that shows the rows, with a message; its readers end without.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _submitted(
    pool: Executor, file: Path, reading: Reading, targets: dict[Path, Path]
) -> Future[None]:
    return pool.submit(_summarized, file, reading, targets[file])


def _summarized(file: Path, reading: Reading, target: Path) -> None:
    """Write the summaries of ``file`` into the folder ``target``, or the reason why there are
    none."""
    from traceana.job import summary
    from traceana.opening import open_trace

    options: dict[str, Any] = msgspec.to_builtins(reading)
    try:
        each = summary.summaries(open_trace(file, **options))
    except (BadRulesError, BadStepMarkerError):
        raise
    except TraceanaError as error:
        _not_read(file, str(error), target)
        return
    except MemoryError:
        _not_read(file, "out of memory", target)
        return
    except Exception as error:  # noqa: BLE001  # one rank's failure is not the job's
        _not_read(file, f"internal error, please report it: {error!r}", target)
        return
    _written(each, target)
    (target / _WHOLE).touch()


def _not_read(file: Path, reason: str, target: Path) -> None:
    from traceana.files import as_unicode
    from traceana.job import summary

    _written([summary.unread(as_unicode(str(file)), reason)], target)


def _written(each: Sequence[Any], target: Path) -> None:
    from traceana.job import summary

    shutil.rmtree(target, ignore_errors=True)
    for number, one in enumerate(each):
        summary.write(one, target / f"{number:06}")

"""One task a rank: every file is read in a process of its own pool, and its summaries are kept.

Processes come from an executor of ``concurrent.futures``: of this machine, or of a Dask scheduler
(:class:`Cluster`). A process that dies takes its file with it: the files that were being read are
read again, each alone in a fresh process, and what dies again is not read. Nothing here imports
polars, so that a process sets its threads before it does.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from traceana.cores import cores
from traceana.errors import (
    CannotWriteError,
    MissingDependencyError,
    TraceanaError,
    how_to_install,
)
from traceana.job.sources import Source, fetched, name_of, sizes, state
from traceana.version import __version__

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

    file: str
    folders: tuple[Path, ...]


class Engine(Protocol):
    """Where tasks run: ``workers`` at once; ``died`` are the errors of tasks whose process died."""

    @property
    def workers(self) -> int:
        """The number of tasks at once."""

    @property
    def died(self) -> tuple[type[BaseException], ...]:
        """The errors of tasks whose process died."""

    def pool(self) -> AbstractContextManager[Executor]:
        """Return a fresh executor."""


class Processes(msgspec.Struct, frozen=True):
    """Processes of this machine."""

    workers: int
    died: tuple[type[BaseException], ...] = (BrokenProcessPool,)

    def pool(self) -> Executor:
        """Return a fresh pool of processes."""
        return process_pool(self.workers)


def kept_or_read(
    files: Sequence[Source], reading: Reading, folder: Path, engine: Engine, done: Done
) -> list[Kept]:
    """Return the summaries of ``files`` in their order; files with one in ``folder`` are not read
    again.

    A file that cannot be read has one summary with the reason, which the next run tries again.
    Raises ``OSError`` where ``folder`` cannot be written, and the errors of options that are wrong
    for every file; ``CannotWriteError`` where the engine's processes have another ``folder``.
    """
    from traceana.job.rank_summary import read_facts

    targets = {file: folder / identity(file, reading) for file in files}
    kept: dict[Source, tuple[Path, ...]] = {}
    for file, target in targets.items():
        folders = _folders(target) if (target / _WHOLE).is_file() else ()
        if folders and all(read_facts(folder) for folder in folders):
            kept[file] = folders
    unread = [file for file in files if file not in kept]
    done(len(kept), len(files))
    for file in _run(unread, reading, targets, engine):
        kept[file] = _folders(targets[file])
        if not kept[file]:
            raise CannotWriteError(
                f"the workers did not write into {folder}: give --keep a folder that they share"
            )
        done(len(kept), len(files))
    return [Kept(name_of(file), kept[file]) for file in files]


def _folders(target: Path) -> tuple[Path, ...]:
    return tuple(sorted(target.glob("[0-9]*")))


def identity(file: Source, reading: Reading) -> str:
    """Return a name that changes with the file's content, how it is read, and the version."""
    parts = [__version__, msgspec.json.encode(reading).decode(), *state(file)]
    if reading.rules is not None:
        parts.append(hashlib.sha256(Path(reading.rules).read_bytes()).hexdigest())
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()[:24]


def default_workers(files: Sequence[Source]) -> int:
    """Return the number of processes: one a core, fewer where the files need more memory."""
    most = max(1, min(cores(), len(files)))
    try:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return most
    factors = {".gz": _COMPRESSED_BYTES_A_BYTE}
    needed = [
        _BASE_BYTES + sum(factors.get(ending, _BYTES_A_BYTE) * size for ending, size in sizes(file))
        for file in files
    ]
    needed.sort(reverse=True)
    while most > 1 and sum(needed[:most]) > _SHARE_OF_MEMORY * free:
        most -= 1
    return most


_WHOLE: Final = "whole"
"""The file that marks that all ranks of a file have their summaries."""


def _run(
    files: Sequence[Source], reading: Reading, targets: Mapping[Source, Path], engine: Engine
) -> Iterator[Source]:
    """Yield the files whose summaries have been written."""
    waiting, alone = list(reversed(files)), list[Source]()
    while waiting:
        running: dict[Future[None], Source] = {}
        broken = False
        with engine.pool() as pool:
            while running or (waiting and not broken):
                # No more than there are processes: what dies is known. A cluster may grow.
                most = engine.workers
                while waiting and not broken and len(running) < most:
                    file = waiting.pop()
                    try:
                        running[_submitted(pool, file, reading, targets)] = file
                    except engine.died:
                        waiting.append(file)
                        broken = True
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    file = running.pop(future)
                    try:
                        future.result()
                    except engine.died:
                        alone.append(file)
                        broken = True
                    else:
                        yield file
    for file in alone:
        with engine.pool() as pool:
            try:
                _submitted(pool, file, reading, targets).result()
            except engine.died:
                _not_read(file, "its process was ended twice: out of memory?", targets[file])
        yield file


def process_pool(workers: int) -> Executor:
    """Return ``workers`` processes that run no script of the caller."""
    return ProcessPoolExecutor(workers, mp_context=_Context(), initializer=_begin)


_OF_SCRIPT: Final = ("__file__", "__spec__")
"""Attributes of the main module that make a new process run it again."""


class _Process(SpawnProcess):
    """A process that does not run the caller's script, which may have no guard against that."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802
        script: dict[str, Any] = vars(sys.modules["__main__"])
        saved: dict[str, Any] = {name: script[name] for name in _OF_SCRIPT if name in script}
        script.update(dict.fromkeys(_OF_SCRIPT))
        try:
            return SpawnProcess._Popen(process_obj)
        finally:
            for name in _OF_SCRIPT:
                del script[name]
            script.update(saved)


class _Context(SpawnContext):
    """A process that is forked would have the threads of polars without their locks."""

    Process = _Process


def _begin() -> None:
    os.environ["POLARS_MAX_THREADS"] = "1"
    # Ctrl-C ends the process that shows the rows, with a message; its readers end without.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _submitted(
    pool: Executor, file: Source, reading: Reading, targets: Mapping[Source, Path]
) -> Future[None]:
    return pool.submit(_summarized, file, reading, targets[file])


def _summarized(file: Source, reading: Reading, target: Path) -> None:
    """Write the summaries of ``file`` into the folder ``target``, or the reason why there are
    none."""
    from traceana.job import rank_summary
    from traceana.opening import open_trace

    options: dict[str, Any] = msgspec.to_builtins(reading)
    try:
        with fetched(file) as path:
            trace = open_trace(path, **options)
            each = rank_summary.summaries(trace.with_meta(source=name_of(file)))
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


def _not_read(file: Source, reason: str, target: Path) -> None:
    from traceana.job import rank_summary

    _written([rank_summary.unread(name_of(file), reason)], target)


def _written(each: Sequence[Any], target: Path) -> None:
    from traceana.job import rank_summary

    shutil.rmtree(target, ignore_errors=True)
    for number, summary in enumerate(each):
        rank_summary.write(summary, target / f"{number:06}")


_WAIT_S: Final = 60
"""For the scheduler, and for its first worker."""
_LOGGERS: Final = ("distributed", "distributed.client", "tornado", "tornado.application")
_AHEAD: Final = 2
"""Tasks for each thread of the workers, so that none waits for the next."""


class Cluster:
    """A Dask scheduler at ``address``: ``tcp://host:port``, or a scheduler file.

    Workers need this version of traceana, the files of the ranks at the same paths or URLs, and the
    folder of the summaries. Dask starts a task again elsewhere when its worker dies, as often as
    its ``distributed.scheduler.allowed-failures`` allows.
    """

    def __init__(self, address: str) -> None:
        """Raises ``MissingDependencyError`` without Dask, and where no scheduler answers."""
        try:
            from distributed import Client, scheduler
        except ImportError as error:
            raise MissingDependencyError(
                f"--scheduler needs Dask: {how_to_install('ranks')}"
            ) from error
        self._address = address
        self.died: tuple[type[BaseException], ...] = (scheduler.KilledWorker,)
        # An error of one line replaces their messages.
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        connect: Any = Client
        is_file = Path(address).is_file()
        where: Any = {"scheduler_file": address} if is_file else {"address": address}
        try:
            self._client: Any = connect(timeout=_WAIT_S, **where)
        except (OSError, ValueError, TypeError) as error:
            raise MissingDependencyError(
                f"no Dask scheduler at {address}: give tcp://host:port of one that runs, or its "
                "scheduler file"
            ) from error
        try:
            self._client.wait_for_workers(1, timeout=_WAIT_S)
        except (OSError, TimeoutError) as error:
            self._client.close()
            raise MissingDependencyError(
                f"the Dask scheduler at {address} has no workers: start some with dask worker"
            ) from error

    @property
    def workers(self) -> int:
        """The number of tasks at once."""
        threads: int = sum(self._client.nthreads().values())
        return max(1, _AHEAD * threads)

    @contextmanager
    def pool(self) -> Iterator[Executor]:
        """Give an executor whose tasks the workers run.

        Raises ``MissingDependencyError`` where the scheduler goes away.
        """
        # A task writes into a folder: its result is not of its arguments alone.
        pool = self._client.get_executor(pure=False)
        try:
            yield pool
        except (CancelledError, OSError) as error:
            raise MissingDependencyError(
                f"the Dask scheduler at {self._address} went away: the same command goes on with "
                "the ranks that are left"
            ) from error
        finally:
            pool.shutdown(wait=False)

    def close(self) -> None:
        """Leave the scheduler, which stays."""
        self._client.close()

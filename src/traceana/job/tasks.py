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
import threading
import time
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
from functools import partial
from multiprocessing import parent_process, resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, NoReturn, ParamSpec, Protocol, TypeVar

import msgspec

from traceana.cores import cores
from traceana.errors import (
    CannotWriteError,
    MissingDependencyError,
    TraceanaError,
    how_to_install,
)
from traceana.files import undisturbed
from traceana.job.sources import Source, fetched, name_of, sizes, state
from traceana.version import __version__

_BASE_BYTES: Final = 400_000_000
"""Memory of a process with polars and a small trace."""
_BYTES_A_BYTE: Final = 3
_COMPRESSED_BYTES_A_BYTE: Final = 25
"""Memory for a byte of the file, as measured on Kineto's files, plain and gzip."""
_SHARE_OF_MEMORY: Final = 0.7

_Parameters = ParamSpec("_Parameters")
_Returned = TypeVar("_Returned")

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
    """Return ``workers`` processes that run no script of the caller, and end with this process."""
    return _Pool(workers)


class _Pool(ProcessPoolExecutor):
    """Worker processes; an exception that leaves the ``with`` block ends them."""

    def __init__(self, workers: int) -> None:
        _start_tracker()
        self._context = _Context()
        super().__init__(workers, mp_context=self._context, initializer=_begin)

    def submit(
        self,
        fn: Callable[_Parameters, _Returned],
        /,
        *args: _Parameters.args,
        **kwargs: _Parameters.kwargs,
    ) -> Future[_Returned]:
        """Run ``fn`` in a process."""
        return super().submit(_run_task, partial(fn, *args, **kwargs))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait for the processes; after an exception end them."""
        if kind is not None:
            self._context.end()
        self.shutdown(cancel_futures=kind is not None)


_OF_SCRIPT: Final = ("__file__", "__spec__")
"""Attributes of the main module that make a new process run it again."""
_AGAIN_S: Final = 0.1
"""Until the end of a process comes again where Python dropped it."""
_GRACE_S: Final = 1.0
"""For a process that is ended, to remove its scratch files."""


class _Process(SpawnProcess):
    """A process that does not run the caller's script, which may have no guard against that."""

    def start(self) -> None:
        """Start it; it never sees Ctrl-C, which goes to all processes of a terminal."""
        script: dict[str, Any] = vars(sys.modules["__main__"])
        saved: dict[str, Any] = {name: script[name] for name in _OF_SCRIPT if name in script}
        with undisturbed(), _blocked_interrupt():
            script.update(dict.fromkeys(_OF_SCRIPT))
            try:
                super().start()
            finally:
                for name in _OF_SCRIPT:
                    del script[name]
                script.update(saved)


def _start_tracker() -> None:
    """Start the process that removes semaphores of this one when it is killed, without a warning
    that it has."""
    options = sys.warnoptions
    options.append("ignore::UserWarning:multiprocessing.resource_tracker")
    try:
        with undisturbed():
            resource_tracker.ensure_running()
    finally:
        options.pop()


@contextmanager
def _blocked_interrupt() -> Iterator[None]:
    """Block SIGINT in this thread: a new process inherits that, and has no traceback of it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Context(SpawnContext):
    """A process that is forked would have the threads of polars without their locks."""

    def __init__(self) -> None:
        super().__init__()
        self._processes: list[_Process] = []

    def Process(self, *args: Any, **kwargs: Any) -> _Process:  # type: ignore[override]  # noqa: N802
        """Return a new process."""
        self._processes.append(_Process(*args, **kwargs))
        return self._processes[-1]

    def end(self) -> None:
        """End all processes that were started."""
        started = [process for process in self._processes if process.pid is not None]
        for process in started:
            process.terminate()
        until = time.monotonic() + _GRACE_S
        for process in started:
            process.join(max(0.0, until - time.monotonic()))
            process.kill()


class _Ended(BaseException):
    """The parent of the process is gone, or ends it."""


def _begin() -> None:
    """Prepare a worker process: threads, signals, and its end with its parent's."""
    os.environ["POLARS_MAX_THREADS"] = "1"
    # Ctrl-C and a closed terminal end the process that shows the rows, and that ends the workers.
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _exit)
    sys.unraisablehook = _unraisable
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _exit(_number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(1)


def _end_task(_number: int, _frame: FrameType | None) -> NoReturn:
    raise _Ended


def _unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """Let the end come again where it came in a callback, in which Python drops exceptions."""
    if unraisable.exc_type is not _Ended:
        sys.__unraisablehook__(unraisable)
    elif hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, _end_task)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
    else:
        os._exit(1)


def _run_task(task: Callable[[], _Returned]) -> _Returned:
    """Return the result of ``task``; SIGTERM ends it and the process, without scratch files."""
    try:
        signal.signal(signal.SIGTERM, _end_task)
        return task()
    except _Ended:
        os._exit(1)
    finally:
        signal.signal(signal.SIGTERM, _exit)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)


def _end_with_parent() -> None:
    """End this process when its parent is gone, killed or not."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os._exit(1)


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

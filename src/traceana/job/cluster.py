"""The workers of a Dask scheduler, as an executor of ``concurrent.futures``."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from traceana.errors import MissingExtraError, SchedulerError

_WAIT_S: Final = 60
"""For the scheduler, and for its first worker."""
_LOGGERS: Final = ("distributed", "distributed.client", "tornado", "tornado.application")
_AHEAD: Final = 2
"""Tasks for each thread of the workers, so that none waits for the next."""


class Cluster:
    """A Dask scheduler at ``address`` (``tcp://host:port``), or that of a scheduler file.

    Workers need this version of traceana, the files of the ranks at the same paths or URLs, and the
    folder of the summaries. Dask starts a task again elsewhere when its worker dies, as often as
    its ``distributed.scheduler.allowed-failures`` says.
    """

    def __init__(self, address: str) -> None:
        """Raises ``MissingExtraError`` without Dask, ``SchedulerError`` where none answers."""
        try:
            from distributed import Client, scheduler
        except ImportError as error:
            raise MissingExtraError(
                "--scheduler needs Dask: pip install 'traceana[ranks]'"
            ) from error
        self._address = address
        self.died: tuple[type[BaseException], ...] = (scheduler.KilledWorker,)
        # What they say is said by an error of one line.
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        connect: Any = Client
        is_file = Path(address).is_file()
        where: Any = {"scheduler_file": address} if is_file else {"address": address}
        try:
            self._client: Any = connect(timeout=_WAIT_S, **where)
        except (OSError, ValueError, TypeError) as error:
            raise SchedulerError(
                f"no Dask scheduler at {address}: give tcp://host:port of one that runs, or its "
                "scheduler file"
            ) from error
        try:
            self._client.wait_for_workers(1, timeout=_WAIT_S)
        except (OSError, TimeoutError) as error:
            self._client.close()
            raise SchedulerError(
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

        Raises ``SchedulerError`` where the scheduler goes away.
        """
        # A task writes into a folder: its result is not of its arguments alone.
        pool = self._client.get_executor(pure=False)
        try:
            yield pool
        except (CancelledError, OSError) as error:
            raise SchedulerError(
                f"the Dask scheduler at {self._address} went away: the same command goes on with "
                "the ranks that are left"
            ) from error
        finally:
            pool.shutdown(wait=False)

    def close(self) -> None:
        """Leave the scheduler, which stays."""
        self._client.close()

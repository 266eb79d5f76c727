"""Functions that run in processes of their own, forked where a framework is imported already.

Importing Keras with TensorFlow takes five seconds, PyTorch with its optimizers three. What a
process does with it stays there: its names of layers, its options, its devices and its profiler are
of no other.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from functools import cache
from multiprocessing import forkserver
from multiprocessing.forkserver import ForkServer
from pathlib import Path
from typing import Any
from unittest import mock


def with_keras(log: Path, function: Callable[..., object], *given: Any) -> None:
    """Call ``function`` in a process of its own; a failure of it, written to ``log``, is raised."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    _forked("tests.support.keras_alone", log, function, given)


def with_torch(log: Path, function: Callable[..., object], *given: Any) -> None:
    """Do as :func:`with_keras` with PyTorch."""
    _forked("tests.support.torch_alone", log, function, given)


def _forked(
    module: str, log: Path, function: Callable[..., object], given: tuple[Any, ...]
) -> None:
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_called, args=(log, function, given))
    # multiprocessing has one server; those of two frameworks are two.
    connect = _server(module).connect_to_new_process
    with mock.patch.object(forkserver, "connect_to_new_process", connect):
        process.start()
    process.join()
    assert process.exitcode == 0, log.read_text() if log.exists() else process.exitcode


@cache
def _server(module: str) -> ForkServer:
    server = ForkServer()
    server.set_forkserver_preload([module])
    return server


def _called(log: Path, function: Callable[..., object], given: tuple[Any, ...]) -> None:
    try:
        function(*given)
    except BaseException:
        log.write_text(traceback.format_exc())
        raise


def script(source: str, *words: str) -> None:
    """Run ``source`` as ``python -c`` does, with ``words`` as its arguments."""
    sys.argv[1:] = words
    exec(compile(source, "-c", "exec"), {"__name__": "__main__"})  # noqa: S102  # of the tests

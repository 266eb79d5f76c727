"""Functions that run in processes of their own, forked where Keras is imported already.

Importing Keras with TensorFlow takes five seconds. What a process does with it stays there: its
names of layers, its options and its devices are of no other.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def with_keras(log: Path, function: Callable[..., object], *given: Any) -> None:
    """Call ``function`` in a process of its own; a failure of it, written to ``log``, is raised."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.keras_alone"])
    process = context.Process(target=_called, args=(log, function, given))
    process.start()
    process.join()
    assert process.exitcode == 0, log.read_text() if log.exists() else process.exitcode


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

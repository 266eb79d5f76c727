"""Panics of a decoder: caught, without their report on standard error."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Final

from polars.exceptions import PanicException

_STDERR: Final = 2
_LOCK: Final = RLock()


@contextmanager
def quiet_panics() -> Iterator[None]:
    """Withhold what is printed to standard error if the body raises ``PanicException``.

    Rust reports a panic on standard error before Python can catch it. What is printed otherwise
    appears when the body ends.
    """
    with _LOCK:
        try:
            kept = os.dup(_STDERR)
        except OSError:  # standard error is closed
            yield
            return
        with tempfile.TemporaryFile() as printed:
            os.dup2(printed.fileno(), _STDERR)
            panicked = False
            try:
                yield
            except PanicException:
                panicked = True
                raise
            finally:
                os.dup2(kept, _STDERR)
                os.close(kept)
                if not panicked:
                    printed.seek(0)
                    if text := printed.read():
                        os.write(_STDERR, text)

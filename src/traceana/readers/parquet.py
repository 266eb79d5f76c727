"""Reads Parquet files that may be damaged or hostile.

The decoder allocates what a length in the file asks for, and aborts the process where memory is
short. Lengths are behind compression, so a helper process decodes the file first, and ends in place
of this one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import Final

import polars as pl
from polars.exceptions import PanicException

from traceana.errors import CorruptError

MAGIC: Final = b"PAR1"
"""The first bytes of a Parquet file."""


class ParquetFiles:
    """Reads Parquet files after a trial in a helper process, which all of them share."""

    def __init__(self) -> None:
        """Start no process until a file is read."""
        self._trial: subprocess.Popen[str] | None = None

    def columns(self, file: Path) -> tuple[str, ...]:
        """Return the names of the columns of ``file``. Raises ``CorruptError``."""
        with damage(file), file.open("rb") as opened:
            return tuple(pl.read_parquet_schema(opened))

    def read(self, file: Path, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Return ``columns`` of ``file``, None for all. Raises ``CorruptError``."""
        names = None if columns is None else list(columns)
        self._try(file, names)
        # polars takes no path that is not UTF-8, and expands "*".
        with damage(file), file.open("rb") as opened:
            return pl.read_parquet(opened, columns=names)

    def _try(self, file: Path, columns: list[str] | None) -> None:
        """Raise ``CorruptError`` where decoding ``columns`` of ``file`` aborts."""
        if self._trial is None:
            self._trial = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("parquet_trial.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            weakref.finalize(self, _end, self._trial)
        asked, answered = self._trial.stdin, self._trial.stdout
        assert asked is not None
        assert answered is not None
        with suppress(BrokenPipeError):
            asked.write(json.dumps([str(file.absolute()), columns]) + "\n")
            asked.flush()
        if not answered.readline():
            self._trial = None
            raise CorruptError(f"{file} is damaged (it cannot be decoded): export it again")


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(BrokenPipeError):
                stream.close()


@contextmanager
def damage(file: Path) -> Iterator[None]:
    """Raise ``CorruptError`` where the body cannot decode ``file``."""
    try:
        with quiet_panics():
            yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CorruptError(f"{file} is damaged ({reason}): export it again") from error


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

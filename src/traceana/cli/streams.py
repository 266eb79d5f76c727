"""The standard streams, which may be closed, full, or a pipe without reader; ``-`` as a file.

A stream that cannot be written swallows what follows, and remembers why: every writer, such as the
help of the command line, is spared the error, and the exit code is decided in one place.

Standard input as a trace: ``-`` stands for it where a command takes a file. Readers map and seek
their files, so it is written to a temporary one, which has its name wherever it is shown.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

from traceana.errors import CannotWriteError, ExitCode, NotFoundError

LONGEST_LINE: Final = 1 << 20
"""Bytes of the longest line that is read from standard input."""


class _Output(io.RawIOBase):
    """A raw stream that swallows what cannot be written; ``error`` is the first error."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        while self.error is None:
            try:
                if self._raw is None:
                    raise OSError(errno.EBADF, "it is closed")
                written: int | None = self._raw.write(data)
                if written is not None:
                    return written
                select.select([], [self._raw], [])  # a pipe that does not block is full
            except OSError as error:
                self.error = error
        return len(data)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._raw is not None and bool(self._raw.isatty())

    def fileno(self) -> int:
        if self._raw is None:
            raise io.UnsupportedOperation("fileno")
        return int(self._raw.fileno())


def install() -> None:
    """Replace ``sys.stdout`` and ``sys.stderr``; text is written in UTF-8."""
    # A closed standard stream opens the null device, or a file of ours would get its number.
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = _text(sys.stdout)
    sys.stderr = _text(sys.stderr)


def _text(stream: Any) -> io.TextIOWrapper:
    if stream is not None:
        # What was printed before, by a sitecustomize for example, would else follow at the end.
        with suppress(OSError):
            stream.flush()
    buffer = None if stream is None else stream.buffer
    output = _Output(getattr(buffer, "raw", buffer))
    return io.TextIOWrapper(
        io.BufferedWriter(output), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )


def exit_code(code: int) -> int:
    """Return the exit code of a command that ended with ``code``, after its output is written.

    Output that could not be written is an error, unless the reader of a pipe closed it.
    """
    sys.stdout.flush()
    error = getattr(getattr(sys.stdout.buffer, "raw", None), "error", None)
    if error is None or error.errno == errno.EPIPE:
        return code
    message(f"cannot write standard output: {error.strerror}; write to a file with -o")
    return ExitCode.CANNOT_WRITE


_bars: list[tuple[Any, Callable[[], None]]] = []


def bar() -> Any:
    """Return what the progress bar on the terminal shows, None without a bar."""
    return _bars[0][0] if _bars else None


def show_bar(shown: Any, stop: Callable[[], None]) -> None:
    """Keep ``stop``, which ends the progress bar of ``shown``."""
    _bars.append((shown, stop))


def remove_bar() -> None:
    """Remove the progress bar, before the answer is written."""
    while _bars:
        _, stop = _bars.pop()
        stop()


def message(text: str) -> None:
    """Print ``text`` as a line on stderr, with control characters escaped."""
    from traceana.plain_text import plain

    if sys.stderr is not None:
        from traceana.files import shown

        sys.stderr.write(f"traceana: {plain(shown(text))}\n")
        sys.stderr.flush()


def note(text: str) -> None:
    """Print ``text`` like :func:`message`, except with ``--quiet``."""
    if not _verbosity.quiet:
        message(text)


def detail(text: str) -> None:
    """Print ``text`` like :func:`message`, with ``--verbose`` only."""
    if _verbosity.verbose:
        message(text)


class _Verbosity:
    quiet = False
    verbose = False


_verbosity: Final = _Verbosity()


def set_verbosity(*, quiet: bool, verbose: bool) -> None:
    """Choose what :func:`note` and :func:`detail` print."""
    _verbosity.quiet, _verbosity.verbose = quiet, verbose


def is_quiet() -> bool:
    """Return whether notes and the progress bar are left out."""
    return _verbosity.quiet


def is_verbose() -> bool:
    """Return whether phases and warnings are printed whole."""
    return _verbosity.verbose


def lines_of_input() -> Iterator[str]:
    """Yield the lines of standard input, without their ends.

    A line is not cut at other characters that Python treats as line ends. Raises
    ``NotFoundError`` if standard input is closed or cannot be read, or a line is longer than
    :data:`LONGEST_LINE`.
    """
    if sys.stdin is None:
        raise NotFoundError("standard input is closed: give names as arguments")
    source: BinaryIO = sys.stdin.buffer
    try:
        while line := source.readline(LONGEST_LINE + 1):
            if len(line) > LONGEST_LINE:
                raise NotFoundError(
                    f"standard input has a line longer than {LONGEST_LINE:,} bytes: give one name "
                    "per line"
                )
            yield line.removesuffix(b"\n").removesuffix(b"\r").decode(errors="replace")
    except OSError as error:
        raise NotFoundError(f"standard input cannot be read: {error.strerror}") from error


@contextmanager
def spooled() -> Iterator[Path]:
    """Give a file with the bytes of standard input; it is removed at the end.

    Raises ``NotFoundError`` if standard input is a terminal, closed, or cannot be read,
    ``CannotWriteError``.
    """
    from traceana.files import STANDARD_INPUT, scratch_folder, show_as

    if sys.stdin is None or sys.stdin.isatty():
        raise NotFoundError(
            "standard input is closed or a terminal: pipe the profiler's output into traceana"
        )
    with ExitStack() as until_end:
        try:
            path = until_end.enter_context(scratch_folder()) / STANDARD_INPUT
            show_as(path, STANDARD_INPUT)
            with path.open("wb") as target:
                for block in iter(_block, b""):
                    target.write(block)
        except OSError as error:
            raise CannotWriteError(f"no room for standard input: {error.strerror}") from error
        yield path


def _block() -> bytes:
    try:
        return sys.stdin.buffer.read(1 << 20)
    except OSError as error:
        raise NotFoundError(f"standard input cannot be read: {error.strerror}") from error

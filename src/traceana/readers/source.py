"""Reads the bytes of a file, inflated where it is gzip, and reports progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from traceana.errors import CorruptError, NotFoundError

Progress = Callable[[int, int], None]
"""Called with (units done, units in all); units are bytes of the file or rows of the database."""
_GZIP: Final = b"\x1f\x8b"
_COMPRESSED_BLOCK: Final = 256 << 10
"""Inflates to some megabytes as a rule."""
BLOCK: Final = 4 << 20
"""Most bytes of a block, unless the reader asks for others."""
_FIRST: Final = 1 << 20
"""Bytes of the first block of a file that is not compressed: what it is of is searched in it."""
_MOST_TIMES: Final = 500
"""A larger file inflates to at most so many times its size: traces to 10 to 40 times."""
_LARGEST: Final = 1 << 30
_FEWEST: Final = 4
"""A block but the last has at least a part of the most bytes, one in so many: members of a gzip
file may be of single bytes."""


def is_text(content: bytes) -> bool:
    """Return whether ``content`` is UTF-8."""
    try:
        return content.isascii() or bool(content.decode())
    except UnicodeDecodeError:
        return False


def silent(done: int, total: int) -> None:
    """Report no progress."""


@runtime_checkable
class Phased(Protocol):
    """A progress that is also told what begins after reading."""

    def enter(self, phase: str) -> None:
        """Take the name of the phase that begins."""


def enter(progress: Progress, phase: str) -> None:
    """Tell ``progress`` that ``phase`` begins, if it is told phases."""
    if isinstance(progress, Phased):
        progress.enter(phase)


class ByteSource:
    """Reads a file once, front to back.

    After :meth:`blocks` is exhausted, ``truncated`` is whether a gzip stream ended early.
    ``damaged`` is whether it could not be inflated or failed its checksum; a damaged stream is not
    read to its end. ``bytes_read`` counts bytes on disk; ``compressed`` is whether they are gzip.
    """

    def __init__(self, path: Path, progress: Progress = silent) -> None:
        """Prepare to read ``path``; raises ``NotFoundError`` where it cannot be opened."""
        self.path = path
        self.truncated = False
        self.damaged = False
        self.compressed = False
        self.bytes_read = 0
        try:
            self.bytes_total = path.stat().st_size
        except OSError as error:
            raise NotFoundError(
                f"{path} cannot be read ({error.strerror}): check the file and its permissions"
            ) from error
        self._progress = progress

    def blocks(self, most: int = BLOCK) -> Iterator[bytes]:
        """Yield the content in blocks of about ``most`` bytes, of a compressed file from a quarter
        of that on; the first and the last may be smaller."""
        try:
            with self.path.open("rb") as file:
                self.compressed = file.read(2) == _GZIP
                file.seek(0)
                size = _COMPRESSED_BLOCK if self.compressed else most
                first = file.read(min(size, _FIRST))
                raw = self._raw(chain([first] if first else [], iter(lambda: file.read(size), b"")))
                if self.compressed:
                    yield from _gathered(self._inflated(raw), most // _FEWEST)
                else:
                    yield from raw
        except OSError as error:
            raise NotFoundError(
                f"{self.path} cannot be read ({error.strerror}): check the file and its permissions"
            ) from error

    def _raw(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        for part in parts:
            self.bytes_read += len(part)
            self._progress(self.bytes_read, self.bytes_total)
            yield part

    def _inflated(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        from traceana.files import InflateError, decompressobj

        inflater = decompressobj(wbits=31)
        whole = 0
        for part in parts:
            rest = part
            while rest:
                if whole > max(_LARGEST, _MOST_TIMES * self.bytes_read):
                    raise CorruptError(
                        f"{self.path} inflates to more than {_MOST_TIMES} times its size: "
                        "no profiler writes that"
                    )
                if inflater.eof:  # another member of the file, or padding after the last
                    rest = rest.lstrip(b"\0")
                    if not rest:
                        break
                    inflater = decompressobj(wbits=31)
                try:
                    inflated = inflater.decompress(rest, BLOCK)
                    whole += len(inflated)
                    yield inflated
                    # A member may hold more output than one block when its input is used up.
                    while len(inflated) == BLOCK and not (inflater.unconsumed_tail or inflater.eof):
                        inflated = inflater.decompress(b"", BLOCK)
                        whole += len(inflated)
                        yield inflated
                except InflateError:  # type: ignore[misc]  # isal's stub types it as an instance
                    self.truncated = self.damaged = True
                    return
                rest = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
        self.truncated = not inflater.eof


def _gathered(parts: Iterator[bytes], least: int) -> Iterator[bytes]:
    """Yield ``parts`` joined to at least ``least`` bytes."""
    held: list[bytes] = []
    size = 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size >= least:
            yield b"".join(held)
            held.clear()
            size = 0
    if size:
        yield b"".join(held)

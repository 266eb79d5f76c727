"""Reads the bytes of a file, inflated where it is gzip, and reports progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from traceana.errors import UnreadableError

Progress = Callable[[int, int], None]
"""Called with (units done, units in all); units are bytes of the file or rows of the database."""
_GZIP: Final = b"\x1f\x8b"
_COMPRESSED_BLOCK: Final = 256 << 10
"""Inflates to some megabytes as a rule, to 256 MiB at most."""
_BLOCK: Final = 4 << 20


def silent(done: int, total: int) -> None:
    """Report no progress."""


class ByteSource:
    """Reads a file once, front to back.

    After :meth:`blocks` is exhausted, ``truncated`` is whether a gzip stream ended early.
    ``damaged`` is whether it could not be inflated or failed its checksum; a damaged stream is not
    read to its end. ``bytes_read`` counts bytes on disk; ``compressed`` is whether they are gzip.
    """

    def __init__(self, path: Path, progress: Progress = silent) -> None:
        """Prepare to read ``path``; raises ``UnreadableError`` where it cannot be opened."""
        self.path = path
        self.truncated = False
        self.damaged = False
        self.compressed = False
        self.bytes_read = 0
        try:
            self.bytes_total = path.stat().st_size
        except OSError as error:
            raise UnreadableError(
                f"{path} cannot be read ({error.strerror}): check the file and its permissions"
            ) from error
        self._progress = progress

    def blocks(self) -> Iterator[bytes]:
        """Yield the content in blocks of some megabytes."""
        try:
            with self.path.open("rb") as file:
                self.compressed = file.read(2) == _GZIP
                file.seek(0)
                size = _COMPRESSED_BLOCK if self.compressed else _BLOCK
                raw = self._raw(iter(lambda: file.read(size), b""))
                yield from self._inflated(raw) if self.compressed else raw
        except OSError as error:
            raise UnreadableError(
                f"{self.path} cannot be read ({error.strerror}): check the file and its permissions"
            ) from error

    def _raw(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        for part in parts:
            self.bytes_read += len(part)
            self._progress(self.bytes_read, self.bytes_total)
            yield part

    def _inflated(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        # isal inflates about three times as fast as zlib, and reads the same streams.
        from isal.isal_zlib import IsalError, decompressobj

        inflater = decompressobj(wbits=31)
        for part in parts:
            rest = part
            while rest:
                if inflater.eof:  # another member of the file, or padding after the last
                    rest = rest.lstrip(b"\0")
                    if not rest:
                        break
                    inflater = decompressobj(wbits=31)
                try:
                    yield inflater.decompress(rest)
                except IsalError:  # type: ignore[misc]  # the stub types it as an instance
                    self.truncated = self.damaged = True
                    return
                rest = inflater.unused_data if inflater.eof else b""
        self.truncated = not inflater.eof

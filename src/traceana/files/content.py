"""The content of a file that a user named."""

from __future__ import annotations

from pathlib import Path

from traceana.errors import IsDirectoryError, NotFoundError, UnreadableError


def content(source: Path, what: str) -> bytes:
    """Return the bytes of ``source``, which was to be a ``what`` (``layer manifest``).

    Raises ``NotFoundError``, ``IsDirectoryError`` or ``UnreadableError`` where it cannot be read.
    """
    try:
        return source.read_bytes()
    except FileNotFoundError:
        raise NotFoundError(f"{source}: no such file; give {_article(what)} {what}") from None
    except IsADirectoryError:
        raise IsDirectoryError(f"{source} is a directory; give the {what} in it") from None
    except OSError as error:
        raise UnreadableError(f"{source}: the {what} cannot be read ({error.strerror})") from error


def _article(what: str) -> str:
    return "an" if what[0] in "aeiou" else "a"

"""traceana's cache: files that save time, made again where they are missing or not as written.

It is in the user's cache folder, by the XDG Base Directory Specification. ``traceana doctor`` shows
its size, and clears it.
"""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from traceana.errors import CannotWriteError
from traceana.files import digest, write_whole

FOLDERS: Final = ("classes", "nsys", "peaks", "ranks", "vega")
"""Classes of kernel names, exports of nsys reports, measured peaks, summaries of ranks, the library
that draws charts."""


def folder(name: str) -> Path:
    """Return the folder ``name``, one of :data:`FOLDERS`."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
    return home / "traceana" / name


def read(name: str, file: str, key: str) -> bytes | None:
    """Return the content of ``file`` in the folder ``name``; None unless it was written for ``key``
    and is as it was written, by this user (:func:`is_ours`)."""
    path = folder(name) / file
    try:
        if not is_ours(path):
            return None
        known, _, content = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    return content if known == _seal(key, content) else None


def is_ours(path: Path) -> bool:
    """Return whether this user owns a file of the cache and its folders, and no other may write
    them; a group may. Classes and scripts of the cache are trusted. Raises ``OSError``."""
    if not hasattr(os, "geteuid"):
        return True
    owner = os.geteuid()
    facts = [path.lstat(), path.parent.stat(), path.parent.parent.stat()]
    return all(fact.st_uid == owner and not fact.st_mode & stat.S_IWOTH for fact in facts)


def write(name: str, file: str, key: str, content: bytes) -> None:
    """Keep ``content`` for :func:`read`; without a place to write, it is made again next time."""
    with suppress(OSError):
        folder(name).mkdir(parents=True, exist_ok=True)
        write_whole(folder(name) / file, _seal(key, content) + b"\n" + content)


def _seal(key: str, content: bytes) -> bytes:
    return digest((key.encode(), content)).encode()


def sizes() -> dict[str, int]:
    """Return the bytes of each folder that has some."""
    each = {
        name: sum(file.stat().st_size for file in folder(name).rglob("*") if file.is_file())
        for name in FOLDERS
    }
    return {name: size for name, size in each.items() if size}


def clear() -> None:
    """Delete the folders; raise ``CannotWriteError`` where that is not possible."""
    for name in FOLDERS:
        one = folder(name)
        try:
            if one.is_dir() and not one.is_symlink():
                shutil.rmtree(one)
        except OSError as error:
            raise CannotWriteError(
                f"cannot delete {error.filename or one}: {error.strerror or error}"
            ) from error

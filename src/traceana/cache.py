"""traceana's cache: files that save time, made again where they are missing or not as written.

It is in the user's cache folder, by the XDG Base Directory Specification. ``traceana doctor`` shows
its size, and clears it.
"""

from __future__ import annotations

import errno
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
    own = home / "traceana"
    # What is missing or cannot be read is reported where it is made.
    with suppress(OSError):
        if not is_private(own):
            # Users share the cache folder, and another one was first.
            own = home / f"traceana-{os.geteuid()}"
    return own / name


def made(name: str) -> Path:
    """Return :func:`folder`, made where it is missing; others cannot read it. Raises ``OSError``,
    also where another user may write it."""
    path = folder(name)
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.mkdir(exist_ok=True)
    if not (is_private(path.parent) and is_private(path)):
        raise PermissionError(errno.EPERM, "another user may write it")
    return path


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
    return is_private(path) and is_private(path.parent) and is_private(path.parent.parent)


def is_private(path: Path) -> bool:
    """Return whether this user owns ``path`` and no other may write it; a group may. Raises
    ``OSError``."""
    if not hasattr(os, "geteuid"):
        return True
    facts = path.stat()
    return facts.st_uid == os.geteuid() and not facts.st_mode & stat.S_IWOTH


def write(name: str, file: str, key: str, content: bytes) -> None:
    """Keep ``content`` for :func:`read`; without a place to write, it is made again next time."""
    with suppress(OSError):
        write_whole(made(name) / file, _seal(key, content) + b"\n" + content)


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

"""File access: reading with typed errors, inflating, atomic writing."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

import msgspec

from traceana.errors import CannotWriteError, NotFoundError, UnknownFormatError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

# isal inflates about three times as fast as zlib and reads the same streams. It has no wheels for
# Windows on ARM.
try:
    from isal.isal_zlib import IsalError
    from isal.isal_zlib import crc32 as crc32
    from isal.isal_zlib import decompressobj as decompressobj
except ImportError:
    from zlib import crc32 as crc32
    from zlib import decompressobj as decompressobj  # type: ignore[assignment]
    from zlib import error as IsalError  # type: ignore[assignment]  # noqa: N812
InflateError = IsalError

_EXCHANGE: Final = 2
"""RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS."""
_ATTEMPTS: Final = 1000
_SCRATCH: Final = ".traceana-tmp"
"""How the names of temporary files and folders end."""
_LONGEST_PREFIX: Final = 40
_MOST_ENTRIES: Final = 10_000
"""Entries of a folder among which temporary files are searched that were left behind."""
UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What ``msgspec.json.decode`` raises: on other text, bytes that are not UTF-8, deep nesting."""
LONGEST_CONTENT: Final = 256 << 20
"""Bytes of the largest file that is read as a whole; a manifest of 100,000 layers has 50 MB."""


def content(source: Path, what: str) -> bytes:
    """Return the bytes of ``source``; ``what`` names its kind in messages (``layer manifest``).

    Raises ``UnknownFormatError`` for a folder, and ``NotFoundError`` if it cannot be read, is a
    pipe or a device, or is longer than :data:`LONGEST_CONTENT`.
    """
    try:
        check_regular(source)
        with source.open("rb") as file:
            read = file.read(LONGEST_CONTENT + 1)
    except FileNotFoundError:
        raise NotFoundError(f"{source}: no such file; give {_article(what)} {what}") from None
    except IsADirectoryError:
        raise UnknownFormatError(f"{source}: is a directory; give the {what} in it") from None
    except OSError as error:
        raise NotFoundError(f"{source}: the {what} cannot be read ({error.strerror})") from error
    except ValueError as error:  # a null character in the path
        raise NotFoundError(f"{source}: no such file; give {_article(what)} {what}") from error
    if len(read) > LONGEST_CONTENT:
        raise NotFoundError(
            f"{source}: longer than {LONGEST_CONTENT >> 20} MiB; give {_article(what)} {what}"
        )
    return read


def text_content(source: Path, what: str) -> str:
    """Return the text of ``source``: :func:`content`, decoded.

    Raises ``UnicodeDecodeError`` where it is not UTF-8.
    """
    return content(source, what).decode("utf-8-sig")


def check_regular(path: Path) -> None:
    """Raise ``NotFoundError`` if ``path`` is a pipe, a socket or a device.

    A pipe blocks until a writer opens it, and can be read only once; a device may have no end.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise NotFoundError(
            f"{path} is a pipe or a device, not a file: write its content to a file"
        )


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether ``entry`` is a folder or a link to one; a link to itself is not."""
    return Path(entry.path).is_dir() if entry.is_symlink() else entry.is_dir()


def _article(what: str) -> str:
    return "an" if what[0] in "aeiou" else "a"


def write_whole(path: Path, content: bytes | Iterable[bytes], *, replace: bool = True) -> None:
    """Write ``content``, whole or in parts, to ``path`` atomically, as the user's umask permits.

    Raises ``OSError``, and ``FileExistsError`` if the file exists and ``replace`` is false.
    ``path`` is unchanged after an error. What a killed process left in its folder is deleted.
    """
    scratch = lock = None
    descriptor = -1

    def make() -> Path:
        nonlocal descriptor
        prefix = scratch_prefix(path.name)
        descriptor, name = tempfile.mkstemp(prefix=prefix, suffix=_SCRATCH, dir=path.parent)
        return Path(name)

    try:
        with undisturbed():
            scratch, lock = _made(make)
        _delete_left(path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            os.fsync(file.fileno())
        scratch.chmod(0o666 & ~umask())
        if replace:
            scratch.replace(path)
        else:
            path.hardlink_to(scratch)
    finally:
        if scratch is not None:
            scratch.unlink(missing_ok=True)
        if lock is not None:
            os.close(lock)


@contextmanager
def scratch_folder(prefix: str = "traceana-", parent: Path | None = None) -> Iterator[Path]:
    """Give a new folder that is gone at the end, at whatever moment an interrupt comes.

    It is in ``parent``, by default in the system's folder of temporary files. Raises ``OSError``.
    """
    folder = lock = None
    try:
        with undisturbed():
            folder, lock = _made(
                lambda: Path(tempfile.mkdtemp(prefix=prefix, suffix=_SCRATCH, dir=parent))
            )
        _delete_left(folder.parent)
        yield folder
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def scratch_prefix(name: str) -> str:
    """Return the beginning of the name of a temporary file or folder beside the output ``name``."""
    return f".{name[:_LONGEST_PREFIX]}."


def _made(make: Callable[[], Path]) -> tuple[Path, int | None]:
    """Return a new file or folder of ``make``, and the descriptor whose lock shows it is in use.

    The system removes the lock with the process. None where it has none.
    """
    for _ in range(_ATTEMPTS):
        path = make()
        try:
            return path, _lock(path)
        except BlockingIOError:
            # Another process has taken it for one that was left behind, and deletes it.
            continue
        except OSError:
            return path, None
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))


def _lock(path: Path) -> int | None:
    """Return a descriptor with the lock of a file or folder; None on Windows.

    Raises ``BlockingIOError`` where another process has it, or has deleted the path, and
    ``OSError`` where the disk has no locks.
    """
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise BlockingIOError(*error.args) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not path.exists():
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _delete_left(parent: Path) -> None:
    """Delete temporary files and folders in ``parent`` whose process was killed.

    Only this user's: the lock of another's shows nothing where it cannot be opened.
    """
    if sys.platform == "win32":
        return
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in islice(entries, _MOST_ENTRIES):
            if not entry.name.endswith(_SCRATCH):
                continue
            path = Path(entry.path)
            facts = path.lstat()
            is_folder = stat.S_ISDIR(facts.st_mode)
            if facts.st_uid != os.geteuid() or not (is_folder or stat.S_ISREG(facts.st_mode)):
                continue
            with suppress(OSError), ExitStack() as until_end:
                lock = _lock(path)
                assert lock is not None
                until_end.callback(os.close, lock)
                if is_folder:
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Delay the exception of an interrupt to the end, so that no new file or process is left."""
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread is interrupted.
        yield
        return
    delayed: list[tuple[int, FrameType | None]] = []
    handlers = {}
    try:
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and callable(handler := signal.getsignal(number)):
                handlers[number] = handler
                signal.signal(number, lambda *signalled: delayed.append(signalled))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number, frame in delayed[:1]:
            handlers[signal.Signals(number)](number, frame)


def config_folder() -> Path:
    """Return traceana's folder of the user's configuration, by the XDG Base Directory
    Specification.
    """
    configured = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    home = configured if configured.is_absolute() else Path("~/.config").expanduser()
    return home / "traceana"


def check_free(path: Path, *, force: bool, reads: Sequence[Path] = ()) -> None:
    """Raise ``CannotWriteError`` if an output must not be written to ``path``.

    It must not be one of the inputs ``reads``, a directory, or, without ``force``, an existing
    file.
    """
    if path.exists() and any(read.exists() and path.samefile(read) for read in reads):
        raise CannotWriteError(f"{path} is the input: choose another name")
    if path.is_dir():
        raise CannotWriteError(f"{path} is a directory: name a file in it")
    if path.exists() and not force:
        raise CannotWriteError(f"{path} exists already: choose another name, or --force")


def write_output(path: Path, content: bytes | Iterable[bytes], *, force: bool) -> None:
    """Write an output that the user named, raising ``CannotWriteError``.

    A regular file is written by :func:`write_whole`, also behind a link. A pipe or a device, which
    ``force`` allows, stays what it is and is written to. Neither may be another user's in a folder
    such as /tmp.
    """
    try:
        if force and _is_planted(path):
            raise PermissionError(errno.EPERM, "another user put it into a folder for all")
        if force and path.exists() and not path.is_file():
            with path.open("wb") as file:
                file.writelines([content] if isinstance(content, bytes) else content)
            return
        write_whole(path.resolve() if force else path, content, replace=force)
    except OSError as error:
        raise CannotWriteError(f"cannot write {path}: {error.strerror or error}") from error


def _is_planted(path: Path) -> bool:
    """Return whether ``path`` is a link or a pipe of another user in a folder that all may write.

    As Linux's ``protected_symlinks`` and ``protected_fifos``, which see no resolved path.
    """
    if not os.path.lexists(path) or not hasattr(os, "geteuid"):
        return False
    facts, around = path.lstat(), path.absolute().parent.stat()
    is_for_all = bool(around.st_mode & stat.S_IWOTH and around.st_mode & stat.S_ISVTX)
    is_other = facts.st_uid not in (os.geteuid(), around.st_uid)
    return is_for_all and is_other and not stat.S_ISREG(facts.st_mode)


def replace_folder(new: Path, target: Path, *, replace: bool = True) -> None:
    """Rename the folder ``new`` to ``target``; the old content is deleted after the rename.

    At every moment ``target`` is the old folder or the new one, where the system can exchange two
    folders (Linux, macOS). Raises ``OSError``, and ``FileExistsError`` if the folder exists and
    ``replace`` is false; ``target`` is unchanged after an error.
    """
    for _ in range(_ATTEMPTS):
        try:
            # Fails where the target exists and is not empty.
            new.rename(target)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            if not replace:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from error
        try:
            if _exchange(new, target):
                shutil.rmtree(new, ignore_errors=True)
                return
            with scratch_folder(scratch_prefix(target.name), target.parent) as aside:
                target.rename(aside / "old")
                try:
                    new.rename(target)
                except OSError:
                    (aside / "old").rename(target)
                    raise
            return
        except FileNotFoundError:
            # Another process moved the target away.
            continue
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two folders in one step; return whether the system and its disk can.

    Raises ``OSError``.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    names = (os.fsencode(first), os.fsencode(second))
    if hasattr(libc, "renameat2"):
        here = -100  # AT_FDCWD
        failed = libc.renameat2(here, names[0], here, names[1], _EXCHANGE)
    elif hasattr(libc, "renamex_np"):
        failed = libc.renamex_np(*names, _EXCHANGE)
    else:
        return False
    if not failed:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number))


def umask() -> int:
    """Return the process's file mode creation mask."""
    current = os.umask(0)
    os.umask(current)
    return current


STANDARD_INPUT: Final = "standard input"
"""The source of a trace that was read from there."""
_SHOWN: dict[str, str] = {}


def show_as(path: Path, name: str) -> None:
    """Have ``path`` shown as ``name`` in messages and as the source of traces."""
    _SHOWN[str(path)] = name


def shown(text: str) -> str:
    """Return ``text`` with the names of :func:`show_as` in place of their paths."""
    for path, name in _SHOWN.items():
        text = text.replace(path, name)
    return text


def digest(parts: Iterable[bytes]) -> str:
    """Return a digest of ``parts`` and of where one ends and the next begins."""
    import hashlib  # not for --help

    whole = hashlib.blake2b()
    for part in parts:
        whole.update(hashlib.blake2b(part).digest())
    return whole.hexdigest()


def code_in(folder: Traversable) -> Iterator[bytes]:
    """Yield name and content of the files of code and data in a package's ``folder``, by name."""
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if file.name.endswith((".py", ".toml", ".csv")):
            yield file.name.encode()
            yield file.read_bytes()

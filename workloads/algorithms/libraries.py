"""Finds and loads the shared libraries that are measured."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from ctypes.util import find_library
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


class LibraryError(RuntimeError):
    """A library is not installed, has an unsupported version, or does not work on this machine."""


def load(path: Path | None, packages: Iterable[str], stem: str, advice: str) -> ctypes.CDLL:
    """Return the library at ``path``, or else ``lib{stem}.so``.

    The library that this process has already loaded (PyTorch's cuDNN) comes first, then that of a
    wheel, then the system's.

    Raises :class:`LibraryError`, with ``advice``, where no library can be loaded.
    """
    if path is not None:
        return _loaded(str(path.absolute()), f"{path} cannot be loaded")
    for found in (*_in_process(stem), *_in_wheels(packages, stem)):
        return _loaded(str(found), f"{found.name} cannot be loaded")
    name = find_library(stem)
    if name is None:
        raise LibraryError(f"lib{stem} is not installed: {advice}")
    return _loaded(name, f"{name} cannot be loaded")


def _in_process(stem: str) -> Iterator[Path]:
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return
    for line in maps.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        # Address, rights, offset, device, inode, and the path where there is one.
        columns = line.split(maxsplit=5)
        if len(columns) == 6 and Path(columns[5]).name.startswith(f"lib{stem}.so"):
            yield Path(columns[5])


def _in_wheels(packages: Iterable[str], stem: str) -> Iterator[Path]:
    for package in packages:
        try:
            files = distribution(package).files or ()
        except PackageNotFoundError:
            continue
        # libcudnn.so.9 and libdnnl.so.3; not libcudnn_ops.so.9, and no copies.
        named = (file for file in files if file.name.startswith(f"lib{stem}.so"))
        for file in sorted(named, key=lambda each: len(each.name)):
            yield Path(str(file.locate())).resolve()


def _loaded(name: str, failure: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise LibraryError(f"{failure}: {error}") from error

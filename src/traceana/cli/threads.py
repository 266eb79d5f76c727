"""Number of threads of polars and OpenBLAS, which both read it when they are first used."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

SMALL: Final = 32_000_000
"""Bytes of JSON or SQLite below which one thread is chosen.

A report of a small trace makes a thousand queries of well under a millisecond. With several
threads, most of their CPU time is waiting for each other: on two cores, one thread takes 0.8 of
the CPU time and 0.9 of the time at 60 kB, and the times are equal at 60 MB.
"""

_COMPRESSED: Final = (".gz", ".zst", ".parquet", ".arrow")
_RATIO: Final = 10
_MOST_FILES: Final = 1_000


def choose(words: Iterable[str]) -> None:
    """Set one thread for polars if the files named in ``words`` are small, and one for OpenBLAS.

    traceana multiplies no large matrices, so OpenBLAS needs no more. Variables that the user has
    set stay. A folder of more than a thousand files counts as large.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if sum(map(_size, words)) < SMALL:
        os.environ.setdefault("POLARS_MAX_THREADS", "1")


def _size(word: str) -> int:
    """Return about how many bytes the file ``word`` has uncompressed, or the files of a folder; 0
    without such a file."""
    path = Path(word)
    try:
        return _of_folder(path) if path.is_dir() else _of_file(path)
    except (OSError, ValueError):
        return 0


def _of_folder(folder: Path) -> int:
    total = 0
    for number, file in enumerate(folder.rglob("*")):
        total += _of_file(file)
        if total >= SMALL or number >= _MOST_FILES:
            return SMALL
    return total


def _of_file(path: Path) -> int:
    return path.stat().st_size * (_RATIO if path.suffix in _COMPRESSED else 1)

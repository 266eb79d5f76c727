"""Which rank a file is of: by what it says itself, by its name, or by its place."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from traceana.errors import AmbiguousRanksError

_IN_NAME: Final = re.compile(r"(?i)(?:rank|worker|gpu|proc|process|node)[-_.]?(\d{1,6})(?!\d)")


def ranks(files: Sequence[Path], told: Sequence[int | None]) -> tuple[list[int], str]:
    """Return the rank of every file, and how it is known.

    ``told`` is what the files say (``distributedInfo``). Where not all say it, the names decide
    (``rank3``, ``worker0``); where they do not either, files are numbered in their order. Raises
    ``AmbiguousRanksError`` when two files are of one rank: they are of two runs.
    """
    said = [(file, rank) for file, rank in zip(files, told, strict=True) if rank is not None]
    numbers = _distinct([file for file, _ in said], [rank for _, rank in said])
    if len(said) == len(files):
        return numbers, "as the files say"
    named = [_rank_in(file) for file in files]
    by_name = [rank for rank in named if rank is not None]
    if len(by_name) == len(files):
        return _distinct(files, by_name), "by the files' names"
    return list(range(len(files))), "in the order of the files' names"


def _rank_in(file: Path) -> int | None:
    found = _IN_NAME.search(file.name)
    return int(found[1]) if found else None


def _distinct(files: Sequence[Path], ranks: list[int]) -> list[int]:
    for rank, count in Counter(ranks).most_common(1):
        if count > 1:
            twice = [str(file) for file, its in zip(files, ranks, strict=True) if its == rank]
            raise AmbiguousRanksError(
                f"{' and '.join(twice[:2])} are both of rank {rank}: name the files of one run"
            )
    return ranks

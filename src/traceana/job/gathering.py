"""The tables of all ranks, from their summaries.

Of many ranks processes put the summaries of some together, then what that gives, and so on until
few are left: a tree, whose root is read here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from itertools import repeat
from pathlib import Path
from typing import Final, TypeAlias

import polars as pl

from traceana.job.summary import TABLES, read_table
from traceana.job.tasks import Processes, cores

FEW: Final = 256
"""Summaries that are read directly: to start processes takes longer."""
AT_ONCE: Final = 64
"""Summaries that a task puts together."""

_Part: TypeAlias = tuple[int | None, Path]
"""A folder with tables, and the rank that it is of; None where the tables have ranks."""


def gathered(folders: Mapping[int, Path], *names: str) -> dict[str, pl.DataFrame]:
    """Return the tables ``names`` of all ranks, with ``rank``, in order of the ranks.

    ``folders`` are the summaries by rank.
    """
    parts: list[_Part] = sorted(folders.items())
    if len(parts) <= FEW:
        return {name: _together(parts, name) for name in names}
    engine = Processes(cores())
    with tempfile.TemporaryDirectory(prefix="traceana-") as scratch:
        try:
            with engine.pool() as pool:
                root = _root(pool, parts, names, Path(scratch))
        except engine.died:
            root = parts
        return {name: _together(root, name) for name in names}


def _root(pool: Executor, parts: list[_Part], names: Sequence[str], scratch: Path) -> list[_Part]:
    level = 0
    while len(parts) > AT_ONCE:
        level += 1
        groups = list(_groups(parts))
        targets = [scratch / f"{level}-{number}" for number in range(len(groups))]
        list(pool.map(_merge, groups, repeat(names), targets))
        parts = [(None, target) for target in targets]
    return parts


def _groups(parts: Sequence[_Part]) -> Iterator[Sequence[_Part]]:
    for first in range(0, len(parts), AT_ONCE):
        yield parts[first : first + AT_ONCE]


def _merge(parts: Sequence[_Part], names: Sequence[str], target: Path) -> None:
    target.mkdir()
    for name in names:
        _together(parts, name).write_parquet(target / f"{name}.parquet", compression="lz4")


def _together(parts: Sequence[_Part], name: str) -> pl.DataFrame:
    empty = pl.DataFrame(schema={"rank": pl.Int64, **TABLES[name]})
    return pl.concat([empty, *(_table(rank, folder, name) for rank, folder in parts)])


def _table(rank: int | None, folder: Path, name: str) -> pl.DataFrame:
    table = read_table(folder, name)
    if rank is None:
        return table
    return table.select(pl.lit(rank, pl.Int64).alias("rank"), pl.all())

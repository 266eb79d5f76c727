"""Generated nested ranges on several threads and launches within them, with known results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

_STEP: Final = 10
"""Nanoseconds by which a range of the chain begins after, and ends before, its parent."""
_SLOT: Final = 1000
_LEAF: Final = 600
_FAN: Final = (1, 3, 9, 27)


@dataclass(frozen=True, slots=True)
class Timeline:
    """Ranges and launches, nanoseconds; ``expected`` is each launch's innermost range."""

    range_key: Ints
    range_start: Ints
    range_duration: Ints
    launch_key: Ints
    launch_time: Ints
    expected: Ints


@dataclass(frozen=True, slots=True)
class Unit:
    """The repeated part of a thread: its ranges, and the innermost one at each time."""

    length: int
    start: Ints
    duration: Ints
    innermost: Ints  # by nanosecond of the unit


def chain(depth: int) -> Unit:
    """Return ``depth`` ranges, one within the other."""
    start = np.arange(depth, dtype=np.int64) * _STEP
    length = 2 * depth * _STEP
    return _unit(length, start, length - 2 * start)


def tree() -> Unit:
    """Return 40 ranges four deep: three children each, with self time after the children."""
    starts, durations = [], []
    length = _SLOT * _FAN[-1]
    for depth, many in enumerate(_FAN):
        slot = length // many
        starts.append(np.arange(many, dtype=np.int64) * slot + depth)
        own = _LEAF if many == _FAN[-1] else slot - 2 * depth
        durations.append(np.full(many, own, dtype=np.int64))
    return _unit(length, np.concatenate(starts), np.concatenate(durations))


def _unit(length: int, start: Ints, duration: Ints) -> Unit:
    innermost = np.full(length, -1, dtype=np.int64)
    for row, (begin, span) in enumerate(zip(start, duration, strict=True)):
        innermost[begin : begin + span] = row  # outer ranges come first
    return Unit(length, start, duration, innermost)


def timeline(
    unit: Unit,
    ranges: int,
    launches: int,
    threads: int,
    *,
    shuffled: bool = False,
    seed: int = 0,
) -> Timeline:
    """Return about ``ranges``, in units on ``threads``, with ``launches`` at random times in them.

    Rows are in order of time over all threads, as in most traces, unless ``shuffled``.
    """
    random = np.random.default_rng(seed)
    each = len(unit.start)
    units = max(threads, ranges // each)
    unit_of = np.repeat(np.arange(units, dtype=np.int64), each)
    # Threads run at the same time: the n-th unit of each begins with that of the others.
    start = unit_of // threads * unit.length + np.tile(unit.start, units)
    order = random.permutation(len(start)) if shuffled else np.argsort(start, kind="stable")
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    chosen = random.integers(0, units, launches)
    offset = random.integers(0, unit.length, launches)
    time = chosen // threads * unit.length + offset
    if not shuffled:
        in_time = np.argsort(time, kind="stable")
        chosen, offset, time = chosen[in_time], offset[in_time], time[in_time]
    inner = unit.innermost[offset]
    return Timeline(
        (unit_of % threads)[order],
        start[order],
        np.tile(unit.duration, units)[order],
        chosen % threads,
        time,
        np.where(inner < 0, -1, position[chosen * each + inner]),
    )

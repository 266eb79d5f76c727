"""Layers of device work whose launch is not in the trace, inferred from repetitions of it.

Training repeats a sequence of kernels. If the recording started after a kernel's launch, the
kernel at the same position of another repetition has the layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
import numpy as np
import polars as pl

from traceana.enrich.nesting import NONE, Flags, Ints
from traceana.settings import LONGEST_CONTEXT, SHORTEST_CONTEXT

_STREAM: Final = ("rank", "device", "context", "stream")
_SIZES: Final = ("grid_x", "grid_y", "grid_z", "bytes")
_KINDS: Final = ("kernel", "memcpy", "memset")


def repeated(activities: pl.DataFrame, known: Ints, wanted: pl.Series) -> Ints:
    """Return the row of an activity at the same position of the sequence for each, or NONE.

    ``known`` is the known layer of each activity (NONE: unknown), ``wanted`` selects the activities
    to infer. A context is a run of 2^n activities of one stream (n = 3 … 12) that begins with, ends
    with or surrounds the activity. Activities are compared by name, and by grid and bytes if these
    are recorded without the launch (not on ROCm). The longest context that occurs at activities
    with a known layer decides, if all of these agree. If they differ, the result is NONE, because
    shorter contexts are less certain.
    """
    answer = np.full(activities.height, NONE, dtype=np.int64)
    if not wanted.any():
        return answer
    order, symbol, stream_end = _sequence(activities, _signature(activities.filter(wanted)))
    fact, wanted_ = known[order], wanted.to_numpy()[order]
    views = [_View.of(shift, fact, wanted_) for shift in _SHIFTS]
    found = np.full(len(order), NONE, dtype=np.int64)
    run = symbol
    for level in range(1, LONGEST_CONTEXT.bit_length()):
        shorter, run = run, _doubled(run, 1 << (level - 1), stream_end)
        if not (run != NONE).any():
            break
        answers = [view.find(shorter, run, 1 << level) for view in views]
        if 1 << level >= SHORTEST_CONTEXT:
            decided = _agreed(answers, fact)
            found = np.where(decided == NONE, found, decided)
    answer[order] = np.where(found < 0, NONE, order[found])
    return answer


_DISPUTED: Final = -2
_SHIFTS: Final[tuple[Callable[[int], int], ...]] = (
    lambda _: 0,
    lambda length: length - 1,
    lambda length: length // 2,
)
"""Offset of the activity from the start of its context: first, last, in the middle."""


class _View(msgspec.Struct):
    """One position of the activity in its context, and the range of layers that are possible."""

    shift: Callable[[int], int]
    fact: Ints
    wanted_: Flags
    least: Ints
    most: Ints

    @classmethod
    def of(cls, shift: Callable[[int], int], fact: Ints, wanted_: Flags) -> _View:
        highest = np.int64(fact.max(initial=0)) + 1
        return cls(
            shift, fact, wanted_, np.full(len(fact), highest), np.full(len(fact), NONE, np.int64)
        )

    def find(self, shorter: Ints, run: Ints, length: int) -> Ints:
        """Return the first position with the same context of ``length``, NONE, or _DISPUTED.

        An activity whose context is truncated by the end of the stream, and equal up to there, may
        be at the same position. It must agree too, also for all longer contexts.
        """
        before, now = _shifted(shorter, self.shift(length // 2)), _shifted(run, self.shift(length))
        sources = self.fact != NONE
        cut = self._facts(before, sources & (now == NONE))
        self.least = np.minimum(self.least, np.where(cut.least == NONE, self.least, cut.least))
        self.most = np.maximum(self.most, cut.most)
        whole = self._facts(now, sources)
        least, most = np.minimum(whole.least, self.least), np.maximum(whole.most, self.most)
        return np.where(
            whole.least == NONE, NONE, np.where(least == most, whole.position, _DISPUTED)
        )

    def _facts(self, context: Ints, sources: Flags) -> _Facts:
        """Return the first source of each activity's context, and the range of known layers."""
        queries = self.wanted_ & (context != NONE)
        sources = sources & (context != NONE)
        sources &= np.isin(context, np.unique(context[queries]))
        found = [np.full(len(context), NONE, dtype=np.int64) for _ in range(3)]
        if not sources.any():
            return _Facts(*found)
        answers = (
            pl.DataFrame(
                {"context": context, "fact": self.fact, "position": np.arange(len(context))}
            )
            .filter(pl.Series(sources))
            .group_by("context")
            .agg(
                pl.col("position").min(),
                pl.col("fact").min().alias("least"),
                pl.col("fact").max().alias("most"),
            )
        )
        joined = (
            pl.DataFrame({"context": context[queries]})
            .join(answers, on="context", how="left", maintain_order="left")
            .fill_null(NONE)
        )
        for column, name in zip(found, ("position", "least", "most"), strict=True):
            column[queries] = joined[name].to_numpy()
        return _Facts(*found)


class _Facts(NamedTuple):
    """For each activity: the first source, and least and greatest layer; NONE without a source."""

    position: Ints
    least: Ints
    most: Ints


def _agreed(answers: list[Ints], fact: Ints) -> Ints:
    """Return the common answer of all views, _DISPUTED where they differ."""
    found = answers[0]
    for other in answers[1:]:
        conflict = (found >= 0) & (other >= 0) & (fact[found] != fact[other])
        found = np.where(
            (found == _DISPUTED) | (other == _DISPUTED) | conflict,
            _DISPUTED,
            np.where(found == NONE, other, found),
        )
    return found


def _signature(wanted: pl.DataFrame) -> tuple[str, ...]:
    """Return the columns that distinguish activities and that the wanted ones have."""
    kernels = wanted.filter(pl.col("kind") == "kernel")
    return ("name_id",) if kernels["grid_x"].null_count() else ("name_id", *_SIZES)


def _sequence(activities: pl.DataFrame, signature: tuple[str, ...]) -> tuple[Ints, Ints, Ints]:
    """Return the rows of device work by stream and time, the number of each row's signature, and
    the position after the last row of its stream."""
    frame = (
        activities.lazy()
        .with_row_index("row")
        .filter(pl.col("kind").is_in(_KINDS))
        .select("row", "start", *_STREAM, pl.struct(signature).rank("dense").alias("symbol"))
        .sort(*_STREAM, "start", "row")
        .with_columns(pl.struct(_STREAM).rle_id().alias("run"))
        .collect()
    )
    run = frame["run"].to_numpy()
    end = np.searchsorted(run, run, side="right")
    return (
        frame["row"].to_numpy().astype(np.int64),
        frame["symbol"].to_numpy().astype(np.int64),
        end,
    )


def _doubled(run: Ints, length: int, stream_end: Ints) -> Ints:
    """Return a number for each run of ``2 * length``, from those of ``length``.

    NONE where the stream ends before the run does.
    """
    position = np.arange(len(run))
    whole = position + 2 * length <= stream_end
    second = run[np.minimum(position + length, len(run) - 1)]
    pairs = run[whole] * (np.int64(run.max()) + 1) + second[whole]
    doubled = np.full(len(run), NONE, dtype=np.int64)
    doubled[whole] = np.unique(pairs, return_inverse=True)[1]
    return doubled


def _shifted(run: Ints, by: int) -> Ints:
    """Return the run that began ``by`` positions earlier, NONE before the first position.

    A run ends within its stream, so a run that reaches the position is of the same stream.
    """
    shifted = np.full(len(run), NONE, dtype=np.int64)
    if by < len(run):
        shifted[by:] = run[: len(run) - by]
    return shifted

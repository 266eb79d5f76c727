"""Time of threads, cut where what the thread is at changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from traceana.analyze.events.ended import distinct
from traceana.enrich.nesting import Ints, Nesting


def cut(
    key: Ints, begin: Ints, end: Ints, whole: npt.NDArray[np.bool_], nests: Sequence[Nesting]
) -> tuple[Ints, Ints, Ints]:
    """Return the pieces of intervals of threads: the interval that each is of, its begin and end.

    An interval is cut wherever something of ``nests`` begins or ends on its thread (``key``), but
    for those that are to stay ``whole``. The pieces of an interval are in order, without gaps.
    """
    of = np.unique(key)
    here = [np.isin(nest.key, of) for nest in nests]
    mark_key = np.concatenate([np.repeat(n.key[h], 2) for n, h in zip(nests, here, strict=True)])
    mark = np.concatenate(
        [np.stack((n.start[h], n.end[h]), axis=1).ravel() for n, h in zip(nests, here, strict=True)]
    )
    # Ranks of the moments: threads can be laid end to end whatever the times are.
    moments = distinct(np.sort(np.concatenate((mark, begin, end))))
    of_mark, of_begin, of_end = (np.searchsorted(moments, part) for part in (mark, begin, end))
    width = len(moments)
    marks = distinct(np.sort(mark_key * width + of_mark))
    first = np.searchsorted(marks, key * width + of_begin, side="right")
    behind = np.searchsorted(marks, key * width + of_end, side="left")
    inside = np.where(whole, 0, np.maximum(behind - first, 0))
    interval = np.repeat(np.arange(len(key)), inside + 1)
    place = np.arange(len(interval)) - np.repeat(np.cumsum(inside + 1) - inside - 1, inside + 1)
    at = first[interval] + place
    moment = np.append(moments[marks % width], 0) if len(marks) else np.zeros(1, dtype=np.int64)
    from_mark, to_mark = place > 0, place < inside[interval]
    return (
        interval,
        np.where(from_mark, moment[np.where(from_mark, at - 1, 0)], begin[interval]),
        np.where(to_mark, moment[np.where(to_mark, at, 0)], end[interval]),
    )

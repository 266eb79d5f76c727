"""The walk: from the end of a window back to its beginning, along what each thing waited for."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import Final

from traceana.analyze.critical.device import BY_LAUNCH, UNKNOWN, Device
from traceana.analyze.critical.host import Host

WORK, GAP, LAUNCH, SYNC, HOST = range(5)
"""What a stretch of the path is: device work; the time before work, since what it waited for had
ended; the time before work since its launch; the rest of a call after what it waited for had ended;
time of a thread."""

_NOBODY: Final = -1
_NOWHERE: Final[tuple[list[int], list[int]]] = ([], [])


@dataclass(slots=True)
class Stretches:
    """The path of one window, last stretch first, as columns.

    ``of`` is the row in :class:`Device` of the work (WORK, GAP, LAUNCH), the row of the call (SYNC)
    or the key of the thread (HOST; -1 where none is known).
    """

    begin: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    what: list[int] = field(default_factory=list)
    of: list[int] = field(default_factory=list)

    def add(self, begin: int, end: int, what: int, of: int) -> None:
        """Append a stretch, unless it lasts no time."""
        if begin < end:
            self.begin.append(begin)
            self.end.append(end)
            self.what.append(what)
            self.of.append(of)


class Walk:
    """The paths of one process."""

    def __init__(self, device: Device, host: Host) -> None:
        """Take what both sides waited for."""
        self._start = device.start.tolist()
        self._end = device.end.tolist()
        self._before = device.before.tolist()
        self._why = device.why.tolist()
        self._returned = device.returned.tolist()
        self._launching = device.thread.tolist()
        self._host = host

    def window(self, begin: int, end: int, host_end: int, thread: int) -> Stretches:
        """Return the path of a window: stretches without gaps from ``end`` back to ``begin``.

        It ends with the last work of a device, where that ended when the window does, else on
        ``thread``. Each stretch of work is in front of the one before it in the order of
        :class:`Device`, and each stretch of a thread is not empty: the walk ends.
        """
        path = Stretches()
        last = bisect_right(self._end, end) - 1
        if last >= 0 and self._end[last] == end >= host_end:
            at, thread, limit = self._along_device(path, begin, last)
        else:
            at, limit = end, len(self._end)
        while at > begin:
            work = self._along_host(path, begin, at, thread, limit)
            if work == _NOBODY:
                break
            at, thread, limit = self._along_device(path, begin, work)
        return path

    def _along_device(self, path: Stretches, begin: int, work: int) -> tuple[int, int, int]:
        """Follow the device from the end of ``work`` back to a launch or to ``begin``.

        Returns the moment, the thread that launched, and the work that was launched.
        """
        while True:
            start = self._start[work]
            path.add(max(start, begin), self._end[work], WORK, work)
            why = self._why[work]
            if start <= begin:
                return begin, _NOBODY, work
            if why == BY_LAUNCH:
                returned = self._returned[work]
                path.add(max(returned, begin), start, LAUNCH, work)
                return returned, self._launching[work], work
            before = self._before[work]
            if why == UNKNOWN:
                before = min(bisect_right(self._end, start), work) - 1
            ended = self._end[before] if before >= 0 else begin
            path.add(max(ended, begin), start, GAP, work)
            if ended <= begin:
                return begin, _NOBODY, work
            work = before

    def _along_host(self, path: Stretches, begin: int, at: int, thread: int, limit: int) -> int:
        """Follow the host from ``at`` back to where a thread waited for the device.

        Returns the work that it waited for, in front of ``limit``, or -1 when ``begin`` is reached.
        """
        left = at
        while at > begin:
            begins, ends = self._host.spans.get(thread, _NOWHERE)
            place = bisect_left(begins, at) - 1
            if place >= 0 and at <= ends[place]:
                wait = self._waited(thread, begins[place], at, limit)
                if wait is None:
                    at = begins[place]
                    continue
                returned, call, work = wait
                path.add(max(returned, begin), left, HOST, thread)
                ended = self._end[work]
                path.add(max(ended, begin), min(returned, left), SYNC, call)
                return work if ended > begin else _NOBODY
            # The thread was at nothing. It may have waited for another that ended meanwhile.
            idle_since = ends[place] if place >= 0 else begin
            other = bisect_right(self._host.handing_end, at) - 1
            if other >= 0 and self._host.handing_end[other] > idle_since:
                at = max(self._host.handing_end[other], begin)
                path.add(at, left, HOST, thread)
                left, thread = at, self._host.handing_thread[other]
            elif place < 0 and not self._host.spans:
                work = min(bisect_right(self._end, at), limit) - 1
                ended = max(self._end[work], begin) if work >= 0 else begin
                path.add(ended, left, HOST, _NOBODY)
                return work if ended > begin else _NOBODY
            else:
                at = idle_since
        path.add(begin, left, HOST, thread)
        return _NOBODY

    def _waited(self, thread: int, since: int, at: int, limit: int) -> tuple[int, int, int] | None:
        """Return the last wait of a thread that ended in (``since``, ``at``]: when its call
        returned, the call, and the work in front of ``limit`` that it waited for."""
        waits = self._host.waits.get(thread)
        if waits is None:
            return None
        place = bisect_right(waits.end, at) - 1
        while place >= 0 and waits.end[place] > since:
            if waits.work[place] < limit:
                return waits.end[place], waits.call[place], waits.work[place]
            place -= 1
        return None

"""A host and its streams, simulated forward, with the true wait of each work."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.support.synthetic import Scenario
from tests.support.synthetic.records import Event

CALL, LATENCY, RETURN, RESUME, STAGED, SETUP = 100, 1, 7, 2_500, 61, 13
"""How long a call takes that waits for nothing; from there to the begin of work on a free stream;
from the end of what a call waited for to its return; from an event to the begin of what is behind
it, long enough for work of other streams to end meanwhile; from the begin of a call that blocks to
the begin of its copy on a free stream, from the begin of a staged copy to the return of its call;
from the end of what is before it to the begin of such a copy."""


@dataclass(frozen=True)
class Work:
    """``before``: the work that it waited for, None where its launch came last."""

    start: int
    end: int
    returned: int
    kind: str
    before: Work | None
    reason: str


@dataclass
class Machine:
    """Does one thing after the other; ``moments`` are those at which work can begin."""

    run: Scenario = field(default_factory=Scenario)
    now: int = 0
    _last: dict[int, Work] = field(default_factory=dict)
    _awaited: dict[int, Work] = field(default_factory=dict)
    _waits: list[tuple[int, Work]] = field(default_factory=list)
    moments: list[int] = field(default_factory=list)

    def idle(self, time: int) -> None:
        """Let the host be at nothing."""
        self.now += time

    def work(self, kind: str, stream: int, duration: int) -> None:
        """Launch a kernel or a copy."""
        at, returned = self.now, self.now + CALL
        self.now = returned
        made = self._begun(stream, duration, kind, returned, returned + LATENCY)
        self.moments += [made.end, returned, returned + LATENCY]
        if kind == "kernel":
            self.run.launch(stream, at=at, begins=made.start, duration=duration, call=CALL)
        else:
            self.run.copy("HtoD", 64, at=at, begins=made.start, duration=duration, stream=stream)

    def blocking(self, stream: int, duration: int, *, staged: bool = False) -> None:
        """Copy pageable memory: the call waits for its stream from its begin on.

        It returns when the copy has ended; where the copy is ``staged``, while that goes on for
        longer than it was in the call: by two clocks, a shorter rest is none.
        """
        at = self.now
        made = self._begun(stream, duration, "copy", at, at + STAGED, SETUP)
        waited = made
        self.now = made.end + RETURN
        if staged and made.start + 2 * STAGED <= made.end:
            self.now = made.start + STAGED
            waited = made.before or made
        self.moments += [made.end, at, at + STAGED, self.now]
        if waited.end < self.now:
            self._waits.append((self.now, waited))
        self.run.copy(
            "HtoD" if staged else "DtoH", 64, at=at, begins=made.start, duration=duration,
            stream=stream, memory="pageable", call=self.now - at,
        )  # fmt: skip

    def _begun(
        self, stream: int, duration: int, kind: str, asked: int, free: int, setup: int = 0
    ) -> Work:
        """Return work that was ``asked`` for and begins when ``free``, or else when it may."""
        start, before, reason = free, None, "launch"
        last, awaited = self._last.get(stream), self._awaited.pop(stream, None)
        held = asked
        if last is not None and last.end > asked:
            held, start = last.end, max(last.end + setup, free)
            before, reason = last, "stream"
        if awaited is not None and awaited.end > held:
            start, before, reason = awaited.end + RESUME, awaited, "event"
        made = Work(start, start + duration, asked, kind, before, reason)
        self._last[stream] = made
        return made

    def event(self, of: int, waiting: int) -> None:
        """Let the next work on a stream wait for the work launched so far on another."""
        work = self._last.get(of)
        event: Event = self.run.record_event(
            of, at=self.now, completed=self.now if work is None else work.end
        )
        self.run.wait_event(event, waiting, at=self.now + CALL)
        self.now += 2 * CALL
        if work is not None:
            before = self._awaited.get(waiting, work)
            self._awaited[waiting] = max(before, work, key=lambda each: each.end)

    def synchronize(self, stream: int) -> None:
        """Let the host wait for a stream."""
        at, work = self.now, self._last.get(stream)
        self.now = at + CALL
        if work is not None and work.end > at:
            self.now = work.end + RETURN
            self._waits.append((self.now, work))
        self.run.sync(at, self.now, "stream", stream=stream)

    def drain(self, call: str) -> None:
        """Let the host wait for all streams in an unrecorded ``call``."""
        at = self.now
        self.now = at + CALL
        work = max(self._last.values(), key=lambda work: work.end, default=None)
        if work is not None and work.end > at:
            self.now = work.end + RETURN
            self._waits.append((self.now, work))
        self.run.call(call, at, self.now)

    def ends(self) -> list[int]:
        """Return the ends of the last work of the streams."""
        return [work.end for work in self._last.values()]

    def expected(self) -> Counter[str]:
        """Return how long which kinds of segments are on the path."""
        found: Counter[str] = Counter()
        last = max(self._last.values(), key=lambda work: work.end, default=None)
        at, work = self.now, None
        if last is not None and last.end >= at:
            at, work = last.end, last
        while True:
            while work is not None:
                found[work.kind] += work.end - work.start
                at = work.returned
                if work.before is None:
                    found["launch"] += work.start - work.returned
                else:
                    found["gap"] += work.start - work.before.end
                work = work.before
            waited = max((wait for wait in self._waits if wait[0] <= at), default=None, key=_time)
            if waited is None:
                found["host"] += at
                return Counter({k: v for k, v in found.items() if v})
            found["host"] += at - waited[0]
            work = waited[1]
            found["sync"] += waited[0] - work.end


def _time(wait: tuple[int, Work]) -> int:
    return wait[0]

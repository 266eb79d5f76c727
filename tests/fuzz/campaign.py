"""The campaign: inputs by number, several processes at a time, outcomes counted and grouped."""

from __future__ import annotations

import gc
import os
import pickle
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.fuzz import seeds
from tests.fuzz.answers import Facts, Outcome
from tests.fuzz.child import Child, Done, readable
from tests.fuzz.imports import everything
from tests.fuzz.mutations import Input, made
from tests.fuzz.seeds import Seed

BATCH: Final = 60
"""Inputs for each forked process: starting one costs as much as opening a small trace."""
KINDS: Final = (
    "read", "ledger", "refused", "traceback", "abort", "hang", "memory", "silent",
)  # fmt: skip


@dataclass(frozen=True)
class Failure:
    """An input that broke the promise."""

    format: str
    number: int
    given: Input
    outcome: Outcome


@dataclass
class Tally:
    """The outcomes by format, the failures, and what they cost."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    codes: dict[str, Counter[int]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    cpu_seconds: float = 0
    wall_seconds: float = 0
    peak_bytes: int = 0
    interrupted: bool = False

    def add(self, done: Done, format_: str) -> None:
        """Count the outcome of one input."""
        self.counts[format_][done.outcome.kind] += 1
        if done.outcome.kind == "refused":
            self.codes[format_][done.outcome.code] += 1
        self.cpu_seconds += done.cpu_seconds
        self.peak_bytes = max(self.peak_bytes, done.peak_bytes)
        if done.outcome.failed:
            self.failures.append(Failure(format_, done.number, done.given, done.outcome))

    @property
    def inputs(self) -> int:
        """The number of inputs that were run."""
        return sum(counter.total() for counter in self.counts.values())

    def groups(self) -> list[tuple[tuple[str, str, str], list[Failure]]]:
        """Return the failures by what they share, largest group first."""
        found: dict[tuple[str, str, str], list[Failure]] = {}
        for failure in self.failures:
            found.setdefault(failure.outcome.group, []).append(failure)
        return sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))


class Campaign:
    """Seeds, their facts, and a number that everything follows from."""

    def __init__(
        self, seed: int, formats: Sequence[str] = (), jobs: int = 2, analyze: int = 1
    ) -> None:
        """Make the seeds, and open each as it is; raises ``ValueError`` on an unknown format.

        Every ``analyze``-th input is run through every command, the others are only read.
        """
        everything()
        self._analyze = analyze
        self.seed = seed
        self.jobs = jobs
        self.seeds = _in_a_child(seeds.all_seeds)
        known = list(dict.fromkeys(one.format for one in self.seeds))
        if unknown := set(formats) - set(known):
            raise ValueError(f"no format {', '.join(sorted(unknown))}; formats: {', '.join(known)}")
        self.formats = list(formats) or known
        # Neighbours read alike: a step of one would give the turn to neighbours only.
        self._shifts = {one: 7 * place for place, one in enumerate(known)}
        self._analyzed: set[str] = set()
        # A collection in a child would touch, and copy, every object of the parent.
        gc.collect()
        gc.freeze()
        self._references = self._of_seeds()

    def untouched(self) -> dict[str, deque[tuple[int, Input]]]:
        """Return the seeds as inputs, by format."""
        found: dict[str, deque[tuple[int, Input]]] = {one: deque() for one in self.formats}
        for number, seed in enumerate(self.seeds):
            if seed.format in found:
                name = next(iter(seed.damaged or seed.files))
                given = Input(seed, seed.files, name, "untouched", damage=False)
                found[seed.format].append((number, given))
        return found

    def _of_seeds(self) -> dict[str, dict[str, Facts]]:
        """Return the facts of each seed; raises ``AssertionError`` where one cannot be read."""
        facts: dict[str, dict[str, Facts]] = {one: {} for one in self.formats}
        for done, format_ in self._run(self.untouched(), {}, analyze=0):
            seed = done.given.seed
            if done.outcome.kind not in ("read", "ledger"):
                raise AssertionError(f"seed {format_} {seed.name}: {done.outcome}")
            facts[format_][seed.name] = done.outcome.facts
        return facts

    def input(self, format_: str, number: int) -> Input:
        """Return input ``number`` of a format."""
        return made(self.seeds, self.seed, format_, number)

    def run(
        self,
        count: int,
        *,
        first: int = 0,
        seconds: float | None = None,
        watch: Callable[[Tally], None] = lambda tally: None,
    ) -> Tally:
        """Run ``count`` inputs, the formats in turn, for at most ``seconds``.

        ``watch`` is called after each.
        """
        tally = Tally(
            {one: Counter() for one in self.formats}, {one: Counter() for one in self.formats}
        )
        begun = time.monotonic()
        share = -(-count // len(self.formats))
        waiting = {one: _Numbers(self, one, range(first, first + share)) for one in self.formats}
        until = None if seconds is None else begun + seconds
        try:
            for done, format_ in self._run(waiting, self._references, until):
                tally.add(done, format_)
                tally.wall_seconds = time.monotonic() - begun
                watch(tally)
        except KeyboardInterrupt:
            tally.interrupted = True
        return tally

    def each(
        self, inputs: Mapping[str, Sequence[tuple[int, Input]]], *, analyze: int
    ) -> Iterator[Done]:
        """Yield the outcome of every one of ``inputs``, numbered, by format.

        Every ``analyze``-th number is run through the commands, none where it is 0.
        """
        waiting = {format_: deque(some) for format_, some in inputs.items()}
        for done, _ in self._run(waiting, self._references, analyze=analyze):
            yield done

    def alone(self, format_: str, given: Input, number: int = 0) -> Done:
        """Return the outcome of one input in a process of its own."""
        found = list(self._run({format_: deque([(number, given)])}, self._references, fresh=True))
        return found[0][0]

    def _run(
        self,
        waiting: Mapping[str, deque[tuple[int, Input]] | _Numbers],
        references: Mapping[str, Mapping[str, Facts]],
        until: float | None = None,
        *,
        fresh: bool = False,
        analyze: int | None = None,
    ) -> Iterator[tuple[Done, str]]:
        """Yield the outcome and the format of every input that waits.

        An input that fails beside others is run again alone, and only that outcome counts.
        """
        turn = deque(waiting)
        again: deque[tuple[str, int, Input]] = deque()
        children: dict[Child, tuple[str, bool]] = {}
        try:
            while True:
                late = until is not None and time.monotonic() > until
                while len(children) < self.jobs and (again or not late):
                    if again:
                        format_, number, given = again.popleft()
                        batch, alone = [(number, given)], True
                    else:
                        format_ = next((one for one in turn if waiting[one]), "")
                        if not format_:
                            break
                        turn.rotate(-1 - turn.index(format_))
                        queue = waiting[format_]
                        batch = [queue.popleft() for _ in range(min(BATCH, len(queue)))]
                        alone = len(batch) == 1
                    known = references.get(format_, {})
                    # What was analyzed elsewhere is analyzed again where an input runs alone.
                    analyzed = set() if fresh or alone else self._analyzed
                    every = self._analyze if analyze is None else analyze
                    child = Child(batch, known, analyzed, every, self._shifts[format_])
                    children[child] = (format_, alone)
                if not children:
                    return
                for child, done in _heard(list(children)):
                    format_, alone = children[child]
                    for one in done:
                        if one.outcome.failed and not alone:
                            again.append((format_, one.number, one.given))
                            continue
                        if one.outcome.seen:
                            self._analyzed.add(one.outcome.seen)
                        yield one, format_
                    if child.pipe < 0:
                        del children[child]
                        # Those after a failure, or after one that took much memory.
                        queue = waiting[format_]
                        queue.extendleft(reversed(child.inputs))
        finally:
            for child in children:
                child.kill()


def _heard(children: list[Child]) -> Iterator[tuple[Child, list[Done]]]:
    """Yield what each child has to report; the inputs that it has left are in ``inputs``."""
    ready = readable(children, 0.1)
    for child in children:
        if child in ready:
            yield child, child.read()
        elif (over := child.check()) is not None:
            yield child, [over]


class _Numbers:
    """A queue of inputs that are made when they are taken."""

    def __init__(self, campaign: Campaign, format_: str, numbers: range) -> None:
        self._campaign = campaign
        self._format = format_
        self._numbers = deque(numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def popleft(self) -> tuple[int, Input]:
        number = self._numbers.popleft()
        return number, self._campaign.input(self._format, number)

    def extendleft(self, inputs: Iterator[tuple[int, Input]]) -> None:
        self._numbers.extendleft(number for number, _ in inputs)


def _in_a_child(make: Callable[[], list[Seed]]) -> list[Seed]:
    """Return what ``make`` returns in a forked process: it may run queries of polars."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reading)
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(make(), pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        content = pipe.read()
    _, status = os.waitpid(pid, 0)
    if status:
        raise RuntimeError("the seeds cannot be made")
    made_: list[Seed] = pickle.loads(content)
    return made_

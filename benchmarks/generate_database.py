"""Databases of Nsight Systems and nvprof of any size, in shapes that recordings rarely have.

A step is made once and repeated: kernels that are launched inside nested NVTX ranges, a copy at its
beginning. The shapes differ in one thing each: depth of the ranges, number of threads, of steps,
of names, of layers, and in how much of it repeats.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from benchmarks.source import SCRATCH

Ints = npt.NDArray[np.int64]

_PROCESS: Final = 4242
_ORIGIN: Final = 1_700_000_000_000_000_000
_LAUNCH_NS: Final = 5_000
_GAP_NS: Final = 10_000
"""From one launch to the next."""
_BLOCK: Final = 100_000
"""Rows that are written at a time."""
_GRIDS: Final = 8
_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Shape:
    """What a step has, and what differs from step to step."""

    kernels: int = 1000
    """Kernels of a step; a twentieth of them outside all layers."""
    layers: int = 190
    """Ranges of a step that are side by side, each with kernels of its own."""
    depth: int = 3
    """Ranges around a kernel, the step's among them."""
    threads: int = 1
    names: int | None = 60
    """Distinct names of kernels; None: one for each kernel."""
    steps: int | None = None
    """Steps, however many kernels: a step then has as many more kernels and layers."""
    random: bool = False
    """Whether kernels come in random order, so that no sequence of them repeats."""
    lost: float = 0.0
    """Share of the first launches that were not recorded."""


SHAPES: Final = {
    "training": Shape(),
    "distinct names": Shape(names=None),
    "1,000 deep": Shape(kernels=5000, layers=1, depth=1000),
    "many steps": Shape(kernels=10, layers=2, depth=2),
    "many layers": Shape(steps=3),
    "1,000 threads": Shape(kernels=100, layers=19, threads=1000),
    "nothing repeats": Shape(names=10_000, random=True, lost=0.1),
    "everything repeats": Shape(kernels=100, layers=19, names=1, lost=0.1),
}
"""``training`` has one thread."""


@dataclass(frozen=True, slots=True)
class Step:
    """Ranges and launches of one step, in nanoseconds from its beginning."""

    length: int
    range_start: Ints
    range_end: Ints
    range_text: Ints
    launch: Ints
    """The first launch is that of the copy."""

    @classmethod
    def of(cls, shape: Shape) -> Step:
        """Return the step of ``shape``: its ranges are the step's, then those of its layers.

        A layer is a chain of ranges. Its kernels are launched in the innermost one, and as the
        ranges are left, one after the other, as long as there are any.
        """
        outside = shape.kernels // 20
        chain = max(shape.depth - 1, 1)
        starts, ends, texts, launches = [0], [0], [0], [100]
        at = _GAP_NS
        for layer, here in enumerate(_shared(shape.kernels - outside, shape.layers)):
            levels = np.arange(chain)
            # Launches are between the ends of the ranges, from the innermost outwards.
            each = _shared(here, chain)
            begin = at + 10 * levels
            first = at + 10 * chain
            until = first + np.cumsum(each) * _GAP_NS + 20 * (levels + 1)
            level_of = np.repeat(levels, each)
            launches += (first + np.arange(here) * _GAP_NS + 20 * level_of + 10).tolist()
            starts += begin.tolist()
            ends += until[::-1].tolist()
            texts += (1 + layer * chain + levels).tolist()
            at = int(until[-1]) + 100
        launches += (at + np.arange(outside) * _GAP_NS).tolist()
        at += (outside + 1) * _GAP_NS
        ends[0] = at
        columns = (np.array(one, dtype=np.int64) for one in (starts, ends, texts, launches))
        return cls(at + _GAP_NS, *columns)


def _shared(many: int, among: int) -> Ints:
    """Return ``many`` in ``among`` parts that differ by one at most, the greater first."""
    return many // among + (np.arange(among) < many % among)


class Recording:
    """The rows of a trace of about ``kernels`` kernels, for the writers of both formats."""

    def __init__(self, shape: Shape, kernels: int) -> None:
        """Prepare the step and the number of its repetitions."""
        if shape.steps is not None:
            times = max(kernels / shape.steps / shape.kernels, 1)
            shape = replace(
                shape, kernels=round(shape.kernels * times), layers=round(shape.layers * times)
            )
        self.shape = shape
        self.step = Step.of(shape)
        self.steps = max(round(kernels / shape.kernels), 1)
        self.names = self.steps * shape.kernels if shape.names is None else shape.names
        self.chain = len(self.step.range_text)

    @property
    def kernels(self) -> int:
        """Number of kernels."""
        return self.steps * self.shape.kernels

    @property
    def ranges(self) -> int:
        """Number of ranges."""
        return self.steps * self.chain

    @property
    def events(self) -> int:
        """Number of kernels, copies, calls and ranges."""
        return 2 * (self.kernels + self.steps) - self._lost + self.ranges

    @property
    def _lost(self) -> int:
        return int(self.shape.lost * (self.kernels + self.steps))

    def texts(self) -> Iterator[str]:
        """Yield the texts of the ranges, by number."""
        for step in range(self.steps):
            yield f"iteration {step}"
        for number in range(self.chain - 1):
            yield f"layer{number}"

    def names_of_kernels(self) -> Iterator[str]:
        """Yield the names of the kernels, by number."""
        stems = ("void gemm_kernel<{}, float>(int)", "triton_poi_fused_add_{}", "volta_sgemm_{}_nn")
        for number in range(self.names):
            yield stems[number % len(stems)].format(number)

    def work(self) -> Iterator[dict[str, Ints]]:
        """Yield the launches and their work, step by step in blocks: the first of each is a copy.

        Columns ``copy``, ``thread``, ``launch``, ``start``, ``end``, ``name``, ``grid``,
        ``correlation``, ``recorded`` (whether the launch is).
        """
        each = self.shape.kernels + 1
        random = np.random.default_rng(0)
        for steps in self._blocks(each):
            number = (steps[:, None] * each + np.arange(each)).ravel()
            position = np.tile(np.arange(each), len(steps))
            ordinal = (steps[:, None] * self.shape.kernels + np.arange(-1, each - 1)).ravel()
            launch = (self._begin(steps)[:, None] + self.step.launch).ravel()
            start = launch + _LAUNCH_NS + 1000
            if self.shape.random:
                name = random.integers(0, self.names, len(number))
                length = random.integers(1000, 3000, len(number))
            else:
                name = (ordinal if self.shape.names is None else position - 1) % self.names
                length = 1000 + 7 * (position % 97)
            yield {
                "copy": (position == 0).astype(np.int64),
                "thread": np.repeat(steps % self.shape.threads, each),
                "launch": launch,
                "start": start,
                "end": start + length,
                "name": name,
                "grid": 1 + name % _GRIDS,
                "correlation": number + 1,
                "recorded": (number >= self._lost).astype(np.int64),
            }

    def spans(self) -> Iterator[dict[str, Ints]]:
        """Yield the ranges: ``start``, ``end``, ``thread``, and ``text`` as :meth:`texts` does."""
        for steps in self._blocks(self.chain):
            begin = self._begin(steps)[:, None]
            text = self.step.range_text + self.steps - 1
            text = np.where(self.step.range_text == 0, steps[:, None], text)
            yield {
                "start": (begin + self.step.range_start).ravel(),
                "end": (begin + self.step.range_end).ravel(),
                "thread": np.repeat(steps % self.shape.threads, self.chain),
                "text": text.ravel(),
            }

    def _blocks(self, each: int) -> Iterator[Ints]:
        many = max(_BLOCK // each, 1)
        for first in range(0, self.steps, many):
            yield np.arange(first, min(first + many, self.steps))

    def _begin(self, steps: Ints) -> Ints:
        # Threads run at the same time, each a little later than the one before.
        turn, thread = np.divmod(steps, self.shape.threads)
        return _ORIGIN + turn * self.step.length + thread


def write_nsys(recording: Recording, path: Path) -> None:
    """Write ``recording`` as Nsight Systems exports it to SQLite (schema 3)."""
    own = (1 << 48) | (_PROCESS << 24)
    names = list(recording.names_of_kernels())
    texts = ["cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020", *names, *recording.texts()]
    first_name, first_range = 2, 2 + len(names)

    def calls() -> Iterator[Sequence[Any]]:
        for work in recording.work():
            launch = work["launch"]
            columns = launch, launch + _LAUNCH_NS, 0, own + work["thread"]
            yield _kept(work["recorded"], *columns, work["correlation"], work["copy"], 0)

    def kernels() -> Iterator[Sequence[Any]]:
        for work in recording.work():
            name = first_name + work["name"]
            columns = work["start"], work["end"], 0, 1, 7 + work["thread"], work["correlation"], own
            yield _kept(1 - work["copy"], *columns, name, name, 32, work["grid"], 1, 1, 256, 1, 1)

    def copies() -> Iterator[Sequence[Any]]:
        for work in recording.work():
            columns = work["start"], work["end"], 0, 1, 7 + work["thread"], work["correlation"], own
            yield _kept(work["copy"], *columns, _BYTES, 1, 1, 2)

    def ranges() -> Iterator[Sequence[Any]]:
        for span in recording.spans():
            columns = span["start"], span["end"], 59, own + span["thread"]
            yield _kept(np.ones_like(span["start"]), *columns, first_range + span["text"], 0)

    cupti, work_of = "CUPTI_ACTIVITY_KIND_", "start end deviceId contextId streamId correlationId"
    grid = "gridX gridY gridZ blockX blockY blockZ"
    _write(
        path,
        {
            f"{cupti}RUNTIME": (
                "start end eventClass globalTid correlationId nameId returnValue",
                calls(),
            ),
            f"{cupti}KERNEL": (
                f"{work_of} globalPid demangledName shortName registersPerThread {grid}",
                kernels(),
            ),
            f"{cupti}MEMCPY": (f"{work_of} globalPid bytes copyKind srcKind dstKind", copies()),
            "NVTX_EVENTS": ("start end eventType globalTid textId domainId", ranges()),
            "TARGET_INFO_GPU": (
                "id cuDevice name:TEXT smCount computeMajor computeMinor",
                iter([[[0], [0], ["NVIDIA A100-SXM4-40GB"], [108], [8], [0]]]),
            ),
            "META_DATA_EXPORT": (
                "name:TEXT value:TEXT",
                iter([[["EXPORT_SCHEMA_VERSION"], ["3.13.2"]]]),
            ),
            "StringIds": ("id value:TEXT", iter([[range(len(texts)), texts]])),
        },
    )


_CALL_NUMBERS: Final = (211, 41)
"""Of cudaLaunchKernel and cudaMemcpyAsync in CUPTI."""


def write_nvprof(recording: Recording, path: Path) -> None:
    """Write ``recording`` as nvprof's database (schema 16)."""
    names = list(recording.names_of_kernels())
    texts = [*names, *recording.texts()]
    first_range = 1 + len(names)

    def calls() -> Iterator[Sequence[Any]]:
        for work in recording.work():
            launch, number = work["launch"], np.array(_CALL_NUMBERS)[work["copy"]]
            columns = number, launch, launch + _LAUNCH_NS, _PROCESS, 1 + work["thread"]
            yield _kept(work["recorded"], *columns, work["correlation"])

    def kernels() -> Iterator[Sequence[Any]]:
        for work in recording.work():
            columns = work["start"], work["end"], 0, 1, 7 + work["thread"], work["correlation"]
            name, grid = 1 + work["name"], work["grid"]
            yield _kept(1 - work["copy"], *columns, name, 32, grid, 1, 1, 256, 1, 1)

    def copies() -> Iterator[Sequence[Any]]:
        for work in recording.work():
            columns = work["start"], work["end"], 0, 1, 7 + work["thread"], work["correlation"]
            yield _kept(work["copy"], *columns, _BYTES, 1, 1, 3)

    owners = [
        _PROCESS.to_bytes(4, "little") + (1 + thread).to_bytes(4, "little") + bytes(12)
        for thread in range(recording.shape.threads)
    ]

    def markers() -> Iterator[Sequence[Any]]:
        written = 0
        for span in recording.spans():
            count = len(span["start"])
            ids = np.arange(written + 1, written + count + 1)
            written += count
            owner = [owners[thread] for thread in span["thread"].tolist()]
            text = (first_range + span["text"]).tolist()
            for flag, time, name in (
                (2, span["start"], text),
                (4, span["end"], [0] * count),
            ):
                yield [[flag] * count, time.tolist(), ids.tolist(), [2] * count, owner, name]

    cupti, work_of = "CUPTI_ACTIVITY_KIND_", "start end deviceId contextId streamId correlationId"
    grid = "gridX gridY gridZ blockX blockY blockZ"
    _write(
        path,
        {
            "Version": ("version", iter([[[16]]])),
            f"{cupti}RUNTIME": ("cbid start end processId threadId correlationId", calls()),
            f"{cupti}CONCURRENT_KERNEL": (
                f"{work_of} name registersPerThread {grid}",
                kernels(),
            ),
            f"{cupti}MEMCPY": (f"{work_of} bytes copyKind srcKind dstKind", copies()),
            f"{cupti}MARKER": ("flags timestamp id objectKind objectId:BLOB name", markers()),
            "StringTable": ("value:TEXT", iter([[texts]])),
        },
        "_id_ INTEGER PRIMARY KEY AUTOINCREMENT, ",
    )


def _kept(chosen: Ints, *columns: Ints | int) -> list[list[Any]]:
    rows = np.flatnonzero(chosen)
    return [
        [column] * len(rows) if isinstance(column, int) else column[rows].tolist()
        for column in columns
    ]


def _write(
    path: Path, tables: dict[str, tuple[str, Iterator[Sequence[Any]]]], head: str = ""
) -> None:
    """Write ``tables``: columns, of integers unless said, and blocks of them.

    Each table has the column ``head`` before these.
    """
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA synchronous = OFF")
        for table, (columns, blocks) in tables.items():
            typed = [one.partition(":") for one in columns.split()]
            names = [name for name, _, _ in typed]
            declared = ", ".join(f"{name} {kind or 'INTEGER'}" for name, _, kind in typed)
            database.execute(f"CREATE TABLE {table} ({head}{declared})")
            insert = (
                f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
            )
            for block in blocks:
                database.executemany(insert, zip(*block, strict=True))
        database.commit()


WRITERS: Final = {
    "nsys": (write_nsys, ".sqlite"),
    "nvprof": (write_nvprof, ".nvvp"),
}


def generate(form: str, shape: str, kernels: int, folder: Path) -> tuple[Path, Recording]:
    """Write the trace into ``folder`` unless it is there; return the file and what it has."""
    recording = Recording(SHAPES[shape], kernels)
    write, suffix = WRITERS[form]
    stem = shape.replace(" ", "-").replace(",", "")
    path = folder / f"{form}-{stem}-{recording.kernels}{suffix}"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        unfinished.unlink(missing_ok=True)
        write(recording, unfinished)
        unfinished.rename(path)
    return path, recording


def main() -> None:
    """Write one trace and print its description as JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.generate_database", description=main.__doc__
    )
    parser.add_argument("--format", choices=WRITERS, default="nsys")
    parser.add_argument("--shape", choices=SHAPES, default="training")
    parser.add_argument("--kernels", type=int, default=5_000_000)
    parser.add_argument("--scratch", type=Path, default=SCRATCH, help="folder to write to")
    options = parser.parse_args()
    path, recording = generate(options.format, options.shape, options.kernels, options.scratch)
    print(json.dumps({"path": str(path), "bytes": path.stat().st_size, "events": recording.events}))


if __name__ == "__main__":
    main()

"""Builds the traces of the tutorials: ``python -m tools.tutorials FOLDER``.

They are no recordings: each holds one cause whose size is known, in the format of its profiler.
The network is the VGG-11 of :mod:`tests.support.synthetic.cnn` on a V100.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

from tests.ingest.summary.writing import Row, nvprof_text
from tests.job.jobs import Job, even
from tests.support.synthetic.cnn import Training
from tests.support.synthetic.kineto import write_kineto
from tests.support.synthetic.records import Copy, Kernel

STEPS: Final = 8
SLOW_RANK: Final = 5
"""The rank that computes a fifth longer than the others."""


class _Decoded(Training):
    """A training that copies eight times as many bytes, pageable and blocking."""

    def _upload(self, size: int) -> None:
        for _ in range(8):
            start = self._at
            self._spend(12_000)
            begins = max(self._at + 8_000, self._free)
            time = self._varied(round(size / 3.1))
            self.scenario.copy(
                "HtoD",
                size,
                at=self._at,
                begins=begins,
                duration=time,
                memory="pageable",
                synchronous=True,
            )
            self._free = self._at = begins + time
            self._spend(12_000)
            self.scenario.operator("aten::copy_", start, self._at)
            self._spend(8_000)


def training(loading_ms: float, seed: int = 1) -> Training:
    """Return a run whose steps wait ``loading_ms`` for their batch."""
    run = Training(16, seed=seed)
    for number in range(STEPS):
        run.step(number, round(loading_ms * 1e6))
    return run


def build(folder: Path) -> None:
    """Write the traces into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    waiting = training(70)
    write_kineto(waiting.scenario, folder / "waiting.json")
    write_kineto(training(2, seed=2).scenario, folder / "prefetched.json")
    copies = _Decoded(16)
    for number in range(STEPS):
        copies.step(number, 1_000_000)
    write_kineto(copies.scenario, folder / "copies.json")
    compute = even(8, 12, seed=3)
    compute[SLOW_RANK] = compute[SLOW_RANK] * 6 // 5
    Job(compute).write(folder / "job")
    (folder / "old.log").write_text(nvprof_text(_rows(waiting)), encoding="utf-8")


def _rows(run: Training) -> list[Row]:
    """Return the kernels, copies and calls of a run as the rows of a summary."""
    calls: Counter[tuple[str, str]] = Counter()
    times: Counter[tuple[str, str]] = Counter()
    for work in (*run.scenario.work, *run.scenario.calls):
        if isinstance(work, Kernel):
            key = (work.name, "kernel")
        elif isinstance(work, Copy):
            key = (f"[CUDA memcpy {work.direction}]", "memcpy")
        else:
            key = (getattr(work, "name", "[CUDA memset]"), "call")
        calls[key] += 1
        times[key] += work.duration
    return [Row(name, calls[name, kind], time, kind) for (name, kind), time in times.most_common()]


@functools.cache
def built() -> Path:
    """Return a folder with the traces, built once; it lasts as long as the process."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    build(folder)
    return folder


if __name__ == "__main__":
    build(Path(sys.argv[1]))

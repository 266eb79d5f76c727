"""The rates of this machine's processor, measured on request.

The rates of NumPy's library and its threads do not follow from a processor's name. Products of
square float32 matrices and copies of a buffer larger than the caches are timed; the best of several
runs counts. The result is kept in the cache folder under the processor's name.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
from pathlib import Path
from time import perf_counter
from typing import Final

import msgspec
import numpy as np

from traceana.files import UNDECODABLE, cache_folder, write_whole
from traceana.flops.peaks import Peaks

_SIZES: Final = (256, 512, 1024, 2048)
_REPEATS: Final = 3
_GEMM_SECONDS: Final = 3.0
_COPY_SECONDS: Final = 1.0
_COPY_BYTES: Final = 1 << 28


class _Kept(msgspec.Struct, frozen=True):
    processor: str
    processors: int
    fp32: float
    bandwidth: float


def calibrated(*, again: bool = False) -> Peaks:
    """Return the measured peaks of this machine's processor; takes up to 5 s the first time.

    ``again`` measures again. Without a writable cache folder the result is not kept.
    """
    processor, processors = processor_name(), _processors()
    file = cache_folder("peaks") / f"{_digest(f'{processor} {processors}')}.json"
    kept = None if again else _read(file, processor, processors)
    if kept is None:
        kept = _Kept(processor, processors, _gemm_rate(), _copy_rate())
        _write(file, kept)
    return Peaks(
        name=f"{processor}, {processors} processors",
        how="measured",
        source=f"NumPy {np.__version__}: float32 GEMM, {_COPY_BYTES >> 20} MiB copy",
        flops={"fp32": kept.fp32},
        bandwidth=kept.bandwidth,
    )


def processor_name() -> str:
    """Return the processor's name as the system reports it."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine() or "unknown processor"


def _gemm_rate() -> float:
    """Return operations per second: 2 n³ over the shortest time, sizes growing."""
    random = np.random.default_rng(0)
    start, best = perf_counter(), 0.0
    for size in _SIZES:
        left = random.standard_normal((size, size), dtype=np.float32)
        right = random.standard_normal((size, size), dtype=np.float32)
        product = np.empty_like(left)
        for _ in range(_REPEATS):
            before = perf_counter()
            np.matmul(left, right, out=product)
            seconds = perf_counter() - before
            best = max(best, 2 * size**3 / max(seconds, 1e-9))
            # The next size takes at most eight times as long.
            if perf_counter() - start + 8 * seconds > _GEMM_SECONDS:
                return best
    return best


def _copy_rate() -> float:
    """Return bytes per second of a copy, read and written: STREAM's "Copy" (McCalpin 1995)."""
    source = np.ones(_COPY_BYTES // 8)
    target = np.zeros_like(source)
    start, best = perf_counter(), 0.0
    while best == 0.0 or perf_counter() - start < _COPY_SECONDS:
        before = perf_counter()
        np.copyto(target, source)
        best = max(best, 2 * source.nbytes / max(perf_counter() - before, 1e-9))
    return best


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _read(file: Path, processor: str, processors: int) -> _Kept | None:
    try:
        kept = msgspec.json.decode(file.read_bytes(), type=_Kept)
    except (*UNDECODABLE, OSError):
        return None
    same = (kept.processor, kept.processors) == (processor, processors)
    return kept if same and kept.fp32 > 0 and kept.bandwidth > 0 else None


def _write(file: Path, kept: _Kept) -> None:
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, msgspec.json.encode(kept))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]

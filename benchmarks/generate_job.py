"""Makes the Kineto traces of a job of many ranks from a recorded trace of one of its ranks.

Between two collectives every rank computes for the recorded time times a factor of its own; a
collective ends on all ranks when the last has arrived and the recorded time of the transfer has
passed. All other events move with the time in which they lie, so that counts, names and nesting are
those of the recording. One rank can be slower, clocks can be ahead and drift, files be missing and
cut.
"""

from __future__ import annotations

import argparse
import gzip
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

_COLLECTIVE: Final = "nccl"
_OFFSET_US: Final = 2_000.0
_DRIFT: Final = 1e-6

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Truth:
    """What is known of a made job; times in microseconds, ``kernel_us`` by rank."""

    ranks: int
    straggler: int | None
    effect: float
    offset_us: list[float]
    kernel_us: list[float]
    missing: list[int]
    cut: list[int]


def make(
    source: Path,
    folder: Path,
    ranks: int,
    *,
    straggler: int | None,
    effect: float,
    missing: tuple[int, ...] = (),
    cut: tuple[int, ...] = (),
    seed: int = 1,
    spread: float = 0.005,
) -> Truth:
    """Write a file a rank into ``folder``; ``effect`` is what ``straggler`` needs longer.

    ``spread`` is the standard deviation of the factors of a rank between two collectives.
    """
    text = gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()
    document = msgspec.json.decode(text)
    events: list[dict[str, Any]] = document["traceEvents"]
    timed = [one for one in events if isinstance(one.get("ts"), int | float)]
    start = np.array([one["ts"] for one in timed], dtype=np.float64)
    length = np.array([one.get("dur", 0) for one in timed], dtype=np.float64)
    kernels = np.array([one.get("cat") == "kernel" for one in timed])
    for one in events:
        # The recording's group is of its own ranks.
        if "Group size" in (args := one.get("args", {})):
            args["Group size"] = ranks
            args.pop("Process Group Ranks", None)
    document.get("distributedInfo", {}).pop("pg_config", None)
    begins, ends = _collectives(timed, start, length)
    rng = np.random.default_rng(seed)
    factors = 1 + spread * rng.standard_normal((ranks, len(begins) + 1)).clip(-3, 3)
    if straggler is not None:
        factors[straggler] *= 1 + effect
    offset = rng.uniform(-_OFFSET_US, _OFFSET_US, ranks).round(3)
    drift = rng.uniform(-_DRIFT, _DRIFT, ranks)
    known, at = _knots(start.min(), begins, ends, factors)
    folder.mkdir(parents=True, exist_ok=True)
    width = len(str(ranks - 1))
    summed: list[float] = []
    first = start.min()
    for rank in range(ranks):
        moved, until = (
            np.round(
                (then := _moved(times, known, at[rank], factors[rank, -1]))
                + (then - first) * drift[rank]
                + offset[rank],
                3,
            )
            for times in (start, start + length)
        )
        lasted = np.round(until - moved, 3)
        summed.append(float(lasted[kernels].sum()))
        for one, ts, dur in zip(timed, moved.tolist(), lasted.tolist(), strict=True):
            one["ts"] = ts
            if "dur" in one:
                one["dur"] = dur
        info = {**document.get("distributedInfo", {}), "rank": rank, "world_size": ranks}
        whole = msgspec.json.encode({**document, "distributedInfo": info})
        if rank not in missing:
            kept = whole[: len(whole) // 2] if rank in cut else whole
            (folder / f"rank{rank:0{width}}.json").write_bytes(kept)
    return Truth(ranks, straggler, effect, offset.tolist(), summed, sorted(missing), sorted(cut))


def _collectives(
    timed: list[dict[str, Any]], start: Floats, length: Floats
) -> tuple[Floats, Floats]:
    """Return begins and ends of the collectives, those that overlap as one."""
    rows = [
        row
        for row, one in enumerate(timed)
        if one.get("cat") == "kernel" and _COLLECTIVE in one["name"].lower()
    ]
    order = np.array(rows)[np.argsort(start[rows], kind="stable")]
    begins, ends = start[order], np.maximum.accumulate(start[order] + length[order])
    first = np.append(True, begins[1:] > ends[:-1])
    last = np.append(first[1:], True)
    return begins[first], ends[last]


def _knots(first: float, begins: Floats, ends: Floats, factors: Floats) -> tuple[Floats, Floats]:
    """Return times of the recording and, by rank, when they are in the made job."""
    before = np.concatenate(([first], ends[:-1]))
    computed = (begins - before) * factors[:, :-1]
    # What all wait for: the last to arrive, and the transfer.
    steps = computed.max(axis=0) + (ends - begins)
    ended = first + np.cumsum(steps)
    arrived = np.concatenate(([first], ended[:-1])) + computed
    known = np.stack((begins, ends), axis=1).ravel()
    at = np.stack((arrived, np.broadcast_to(ended, arrived.shape)), axis=2).reshape(
        len(factors), -1
    )
    return np.append(first, known), np.concatenate((np.full((len(factors), 1), first), at), axis=1)


def _moved(times: Floats, known: Floats, at: Floats, rate: float) -> Floats:
    """Return ``times`` of the recording as they are in the made job, at ``rate`` after the end."""
    inside: Floats = np.interp(times, known, at)
    return np.where(times > known[-1], at[-1] + (times - known[-1]) * rate, inside)


def main() -> None:
    """Write a job and print what is known of it as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generate_job", description=__doc__)
    parser.add_argument("source", type=Path, help="a Kineto trace with NCCL's kernels")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--straggler", type=int)
    parser.add_argument("--effect", type=float, default=0.05)
    options = parser.parse_args()
    found = make(
        options.source,
        options.folder,
        options.ranks,
        straggler=options.straggler,
        effect=options.effect,
    )
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()

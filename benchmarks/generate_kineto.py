"""Makes a Kineto trace of any size by repeating a recorded one with shifted times and ids.

Every repetition keeps the text that Kineto printed, white space and decimals included. Only numbers
that differ between iterations are replaced: times, correlation and flow ids, ``External id``,
``Python id``, sequence numbers, event indexes, numbers of ProfilerStep. Counts and durations of the
result are exactly those of the source times the repetitions.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from benchmarks.source import SCRATCH, default_source

GIGABYTE: Final = 10**9
_GZIP: Final = b"\x1f\x8b"
_EVENTS: Final = re.compile(r'"traceEvents"\s*:\s*\[')
_FAMILY: Final = {
    "ts": "time",
    # A flow of category ac2g has the id of the correlation, and so has External id in old traces.
    "id": "correlation",
    "correlation": "correlation",
    "External id": "correlation",
    "external id": "correlation",
    "wait_on_cuda_event_record_corr_id": "correlation",
    "Python id": "python",
    "Python parent id": "python",
    "Sequence number": "sequence",
    "Ev Idx": "index",
}
"""Keys whose numbers are shifted -> family: numbers of a family are shifted by the same amount."""
_NUMBER: Final = re.compile(
    rf'"({"|".join(map(re.escape, _FAMILY))})"\s*:\s*(-?\d+)(?=[.,\s}}])|"ProfilerStep#(\d+)"'
)


class NotRepeatableError(Exception):
    """The source is not a Kineto trace, or has times in an unsupported form."""


@dataclass(frozen=True, slots=True)
class Source:
    """A trace cut into fixed text and the numbers that are shifted.

    ``pieces`` has one text more than ``numbers``; between two texts is a number, to which every
    repetition adds the ``stride`` of its family. Times are shifted by whole microseconds.
    """

    stem: str
    head: str
    pieces: list[str]
    numbers: list[int]
    families: list[str]
    strides: dict[str, int]
    tail: str
    events: int
    digest: str

    @property
    def body_bytes(self) -> int:
        """Bytes of one repetition."""
        texts = sum(len(piece.encode()) for piece in self.pieces)
        return texts + sum(len(str(number)) for number in self.numbers)

    def repetition(self, index: int) -> bytes:
        """Return repetition ``index`` of the events; index 0 is the source's own text."""
        shift = {family: index * stride for family, stride in self.strides.items()}
        parts = [self.pieces[0]]
        for number, family, piece in zip(self.numbers, self.families, self.pieces[1:], strict=True):
            # 0 is a missing id, or an unknown time.
            parts.append(str(number + shift[family] if number else 0))
            parts.append(piece)
        return "".join(parts).encode()


def read_source(path: Path) -> Source:
    """Return a Kineto trace, plain or gzip, in pieces; raises :class:`NotRepeatableError`."""
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if raw.startswith(_GZIP) else raw).decode()
    opening = _EVENTS.search(text)
    if opening is None:
        raise NotRepeatableError(f"{path.name} has no traceEvents: pass a Kineto trace")
    # Times are kept as text: a float of microseconds since the epoch has a step of 0.25 µs.
    decoder = json.JSONDecoder(parse_float=str, strict=False)
    events, end = decoder.raw_decode(text, opening.end() - 1)
    pieces, numbers, families = _cut(text[opening.end() : end - 1].rstrip())
    if families.count("time") != sum("ts" in event for event in events):
        raise NotRepeatableError(
            f"{path.name} has times that are not plain decimals: pass another trace"
        )
    return Source(
        stem=path.name.removesuffix(".gz").removesuffix(".json"),
        head=text[: opening.end()],
        pieces=pieces,
        numbers=numbers,
        families=families,
        strides=_strides(numbers, families, _period(events)),
        tail=text[end - 1 :],
        events=len(events),
        digest=hashlib.sha256(raw).hexdigest()[:8],
    )


def generate(source: Source, size: int, folder: Path) -> tuple[Path, int]:
    """Write about ``size`` bytes into ``folder``; return the file and the repetitions in it.

    A complete file of an earlier call is reused.
    """
    repeats = max(1, round(size / source.body_bytes))
    path = folder / f"{source.stem}-{source.digest}-x{repeats}.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        with unfinished.open("wb") as file:
            file.writelines(_parts(source, repeats))
        unfinished.rename(path)
    return path, repeats


def _parts(source: Source, repeats: int) -> Iterator[bytes]:
    yield source.head.encode()
    for index in range(repeats):
        if index:
            yield b","
        yield source.repetition(index)
    yield b"\n  " + source.tail.encode()


def _cut(body: str) -> tuple[list[str], list[int], list[str]]:
    pieces: list[str] = []
    numbers: list[int] = []
    families: list[str] = []
    position = 0
    for match in _NUMBER.finditer(body):
        group = 2 if match[3] is None else 3
        pieces.append(body[position : match.start(group)])
        numbers.append(int(match[group]))
        families.append("step" if match[3] is not None else _FAMILY[match[1]])
        position = match.end(group)
    return [*pieces, body[position:]], numbers, families


def _strides(numbers: list[int], families: list[str], period: int) -> dict[str, int]:
    """Return the shift of each family, so that numbers of two repetitions are distinct."""
    seen: dict[str, set[int]] = {}
    for number, family in zip(numbers, families, strict=True):
        if number:
            seen.setdefault(family, set()).add(number)
    strides = {family: max(values) - min(values) + 1 for family, values in seen.items()}
    return {**dict.fromkeys(families, 1), **strides, "time": period}


def _period(events: list[dict[str, Any]]) -> int:
    """Return whole microseconds from the first start to beyond the last end."""
    timed = [event for event in events if Decimal(str(event.get("ts", 0))) > 0]
    if not timed:
        raise NotRepeatableError("the source has no event with a time: pass another trace")
    starts = [Decimal(str(event["ts"])) for event in timed]
    ends = [
        start + max(Decimal(str(event.get("dur", 0))), Decimal(0))
        for start, event in zip(starts, timed, strict=True)
    ]
    return int(max(ends) - min(starts)) + 1000


def main() -> None:
    """Write one trace and print its description as JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.generate_kineto", description=main.__doc__
    )
    parser.add_argument("--source", type=Path, help="the Kineto trace to repeat")
    parser.add_argument("--size", type=float, default=1.0, help="approximate GB to write")
    parser.add_argument("--scratch", type=Path, default=SCRATCH, help="folder to write to")
    options = parser.parse_args()
    try:
        source = read_source(options.source or default_source())
        path, repeats = generate(source, round(options.size * GIGABYTE), options.scratch)
    except (OSError, ValueError, NotRepeatableError) as error:
        sys.exit(f"no trace was made: {error}")
    print(
        json.dumps(
            {
                "path": str(path),
                "bytes": path.stat().st_size,
                "source": source.stem,
                "repeats": repeats,
                "events": repeats * source.events,
            }
        )
    )


if __name__ == "__main__":
    main()

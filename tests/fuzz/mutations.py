"""What the campaign does to a seed, by (seed of the campaign, format, number) alone.

A *damage* is what happens to a file on its way: it is cut, blocks of it are zeroed, lost, doubled
or exchanged, bits flip, its compressed data is hit. An *edit* writes another file of the format,
with values that no profiler writes.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from tests.fuzz import json_edits, protobuf_edits, sqlite_edits, table_edits, text_edits
from tests.fuzz.seeds import Seed

GZIP: Final = b"\x1f\x8b"
DAMAGES_PER_EDIT: Final = 0.5
"""The part of the inputs that are damaged; the others are edited."""

LARGEST: Final = 32 << 20
"""Bytes of an edited file: a text of a megabyte in every event makes a file that takes long to read
because it is large."""


@dataclass(frozen=True)
class Input:
    """An input of the campaign.

    ``files`` are its files by relative path, None for a folder of that name. ``damaged`` is the
    file that was changed, ``what`` how. ``damage`` is whether it is a damage and no edit,
    ``flips`` whether bits flipped and nothing else happened.
    """

    seed: Seed
    files: Mapping[str, bytes | None]
    damaged: str
    what: str
    damage: bool
    flips: bool = False


def made(seeds: Sequence[Seed], campaign: int, format_: str, number: int) -> Input:
    """Return input ``number`` of ``format_``."""
    rng = random.Random(f"{campaign}:{format_}:{number}")
    known = [seed for seed in seeds if seed.format == format_]
    seed = known[number % len(known)]
    name = rng.choice(seed.damaged or tuple(seed.files))
    if rng.random() < DAMAGES_PER_EDIT:
        return _damaged(rng, seed, name, [one.files for one in known if one is not seed])
    return _edited(rng, seed, name)


def _damaged(
    rng: random.Random, seed: Seed, name: str, others: Sequence[Mapping[str, bytes]]
) -> Input:
    content = seed.files[name]
    done, kinds = [], set()
    for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
        damage = rng.choice(DAMAGES)
        content, what = damage(rng, content, others)
        done.append(what)
        kinds.add(damage)
    files = {**seed.files, name: content}
    return Input(seed, files, name, ", ".join(done), damage=True, flips=kinds == {_flip})


def _edited(rng: random.Random, seed: Seed, name: str) -> Input:
    if not seed.opened and seed.role == "trace" and rng.random() < 0.12:
        change, what = table_edits.of_folder(rng, seed.files)
        return Input(seed, {**seed.files, **change}, name, what, damage=False)
    content = seed.files[name]
    packed = content.startswith(GZIP)
    if packed:
        content = zlib.decompress(content, wbits=31)
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        edited, what = _editor(seed, name)(rng, content)
        if len(edited) > LARGEST:
            done.append(f"too large: {what}")
            continue
        content = edited
        done.append(what)
    if packed:
        packer = zlib.compressobj(1, wbits=31)
        content = packer.compress(content) + packer.flush()
    return Input(seed, {**seed.files, name: content}, name, ", ".join(done), damage=False)


def _editor(seed: Seed, name: str) -> Callable[[random.Random, bytes], tuple[bytes, str]]:
    if name.endswith(".json"):
        return json_edits.edited
    if name.endswith((".parquet", ".arrow")):
        return table_edits.edited
    editors: dict[str, Callable[[random.Random, bytes], tuple[bytes, str]]] = {
        "json": json_edits.edited,
        "sqlite": sqlite_edits.edited,
        "protobuf": protobuf_edits.edited,
        "packets": partial(protobuf_edits.edited, kind="packets"),
        "csv": text_edits.edited_csv,
        "toml": text_edits.edited_toml,
        "table": table_edits.edited,
    }
    return editors[seed.content]


Damage = Callable[[random.Random, bytes, Sequence[Mapping[str, bytes]]], tuple[bytes, str]]
Others = Sequence[Mapping[str, bytes]]


def _block(rng: random.Random, content: bytes) -> tuple[int, int]:
    """Return the bounds of a block: a few bytes, some hundred, a page, or a large part."""
    size = rng.choice((1, 8, 64, 300, 512, 1024, 4096, max(len(content) // 3, 1)))
    size = rng.randint(max(size // 2, 1), max(size, 1))
    if size >= 512 and rng.random() < 0.5:
        size -= size % 512
        begin = rng.randrange(0, max(len(content) // 512, 1)) * 512
    else:
        begin = rng.randrange(0, len(content) + 1)
    return min(begin, len(content)), min(begin + size, len(content))


def _cut(rng: random.Random, content: bytes, others: Others) -> tuple[bytes, str]:
    if rng.random() < 0.25:  # the last bytes are another matter than the middle
        end = max(len(content) - rng.randint(1, 40), 0)
    else:
        end = rng.randrange(0, len(content) + 1)
    return content[:end], f"cut at {end} of {len(content)}"


def _flip(rng: random.Random, content: bytes, others: Others) -> tuple[bytes, str]:
    changed = bytearray(content)
    count = rng.choice((1, 1, 2, 8, 32)) if content else 0
    for _ in range(count):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed), f"{count} bits flipped"


def _noise(rng: random.Random, content: bytes, others: Others) -> tuple[bytes, str]:
    begin, end = _block(rng, content)
    return content[:begin] + rng.randbytes(end - begin) + content[end:], f"noise {begin}-{end}"


def _hole(rng: random.Random, content: bytes, others: Others) -> tuple[bytes, str]:
    begin, end = _block(rng, content)
    return content[:begin] + bytes(end - begin) + content[end:], f"zeros {begin}-{end}"


def _lost(rng: random.Random, content: bytes, others: Others) -> tuple[bytes, str]:
    begin, end = _block(rng, content)
    return content[:begin] + content[end:], f"lost {begin}-{end}"


def _doubled(rng: random.Random, content: bytes, others: Others) -> tuple[bytes, str]:
    begin, end = _block(rng, content)
    return content[:end] + content[begin:], f"doubled {begin}-{end}"


def _exchanged(rng: random.Random, content: bytes, others: Others) -> tuple[bytes, str]:
    a, b = _block(rng, content)
    size = b - a
    c = rng.randrange(0, max(len(content) - size, 0) + 1)
    changed = bytearray(content)
    changed[a:b], changed[c : c + size] = content[c : c + size], content[a:b]
    return bytes(changed), f"exchanged {a}-{b} and {c}"


def _spliced(rng: random.Random, content: bytes, others: Others) -> tuple[bytes, str]:
    pool = [text for files in others for text in files.values()] or [content]
    other = rng.choice(pool)
    end, begin = rng.randrange(0, len(content) + 1), rng.randrange(0, len(other) + 1)
    return content[:end] + other[begin:], f"spliced at {end} with another from {begin}"


def _appended(rng: random.Random, content: bytes, others: Others) -> tuple[bytes, str]:
    junk = rng.choice(
        (b"\0" * 1024, b"\n", rng.randbytes(200), content, GZIP, b"}]", b"junk\n", content[:500])
    )
    return content + junk, f"{len(junk)} bytes appended"


DAMAGES: Final[tuple[Damage, ...]] = (
    _cut, _cut, _cut, _flip, _flip, _noise, _hole, _hole, _lost, _doubled, _exchanged, _spliced,
    _appended,
)  # fmt: skip

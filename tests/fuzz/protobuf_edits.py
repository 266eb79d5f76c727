"""Edits of XPlane files: fields with other values, lengths that lie, messages in messages."""

from __future__ import annotations

import random
import struct
from typing import Final

from tests.fuzz import values
from tests.fuzz.space import BrokenError, Field, encoded, parsed, varint, walked


def edited(rng: random.Random, content: bytes, kind: str = "space") -> tuple[bytes, str]:
    """Return the message of type ``kind`` with one edit, other bytes as they are."""
    try:
        fields = parsed(content, kind)
    except BrokenError:
        return content, "no space"
    # Rare kinds of fields are as likely to be changed as the many events.
    places = list(walked(fields))
    kinds = sorted({_kind(field) for _, field in places})
    if not kinds:
        return content, "no fields"
    chosen_kind = rng.choice(kinds)
    chosen = [place for place in places if _kind(place[1]) == chosen_kind]
    count = rng.choice((1, 1, 1, 3, len(chosen)))
    edit = rng.choice(_EDITS)
    what = "nothing"
    state = rng.getstate()
    for holder, field in rng.sample(chosen, min(count, len(chosen))):
        if rng.random() < 0.5:
            rng.setstate(state)  # the same change for all of them
        what = edit(rng, holder, field)
    return encoded(fields), f"{what}: {min(count, len(chosen))} of {chosen_kind}"


def _kind(field: Field) -> str:
    return f"{field.kind or 'field'} {field.number}/{field.wire}"


def _set(rng: random.Random, holder: list[Field], field: Field) -> str:
    if isinstance(field.value, int):
        field.value = values.integer(rng)
        return f"set to {field.value}"
    if field.wire == 2:
        text = values.text(rng).encode("utf-8", "surrogatepass")
        field.value = rng.choice((text, b"", b"\xff\xfe\xfd", bytes(20), rng.randbytes(30)))
        return f"set to {field.value[:20]!r}"
    size = 8 if field.wire == 1 else 4
    number = rng.choice((float("nan"), float("inf"), -1.0, 1e308, 0.0))
    field.value = struct.pack("<d", number)[:size]
    return f"set to {number}"


def _drop(rng: random.Random, holder: list[Field], field: Field) -> str:
    if field in holder:
        holder.remove(field)
    return "dropped"


def _repeat(rng: random.Random, holder: list[Field], field: Field) -> str:
    times = rng.choice((1, 1, 5, 200))
    if len(holder) > 2_000 or (isinstance(field.value, list) and len(encoded([field])) > 20_000):
        times = 1
    at = rng.randrange(len(holder) + 1)
    holder[at:at] = [field] * times
    return f"repeated {times} times"


def _lie(rng: random.Random, holder: list[Field], field: Field) -> str:
    content = encoded([Field(field.number, field.wire, field.value, field.kind)])
    inside = content[len(varint(field.number << 3 | field.wire)) :]
    length = rng.choice((0, 1, len(inside) + 1, len(inside) + 300, 2**31, 2**40, 2**63, 2**64 - 1))
    field.raw = varint(field.number << 3 | 2) + varint(length) + inside
    return f"length {length} of {len(inside)}"


def _other_wire(rng: random.Random, holder: list[Field], field: Field) -> str:
    content = encoded([Field(field.number, field.wire, field.value, field.kind)])
    tag = varint(field.number << 3 | field.wire)
    wire = rng.choice((0, 1, 2, 3, 4, 5, 6, 7))
    field.raw = varint(field.number << 3 | wire) + content[len(tag) :]
    return f"wire type {wire}"


def _other_number(rng: random.Random, holder: list[Field], field: Field) -> str:
    field.number = rng.choice((1, 2, 3, 4, 5, 6, 7, 10, 100, 2**20, 2**28))
    return f"numbered {field.number}"


def _other_field(rng: random.Random, holder: list[Field], field: Field) -> str:
    other = rng.choice(holder)
    field.value, field.wire, field.kind = other.value, other.wire, other.kind
    return "replaced by a neighbour"


def _into_itself(rng: random.Random, holder: list[Field], field: Field) -> str:
    depth = rng.choice((2, 50, 1_000, 20_000))
    inside = encoded([field])[:50]
    for _ in range(depth):
        inside = varint(field.number << 3 | 2) + varint(len(inside)) + inside
    field.raw = inside
    return f"nested {depth} deep"


def _long_varint(rng: random.Random, holder: list[Field], field: Field) -> str:
    size = rng.choice((5, 9, 10, 11, 40))
    last = rng.choice((b"\x01", b"\x7f", b"\x00"))
    field.raw = varint(field.number << 3) + b"\xff" * (size - 1) + last
    return f"a number of {size} bytes"


def _unknown(rng: random.Random, holder: list[Field], field: Field) -> str:
    tag = rng.choice((9, 15, 16, 1000, 536_870_911))
    made = varint(tag << 3 | 2) + varint(5) + b"hello"
    holder.insert(rng.randrange(len(holder) + 1), Field(tag, 2, b"", raw=made))
    return "an unknown field beside it"


def _shuffle(rng: random.Random, holder: list[Field], field: Field) -> str:
    rng.shuffle(holder)
    return "neighbours shuffled"


_EDITS: Final = (
    *(_set,) * 8,
    *(_drop,) * 3,
    *(_repeat,) * 2,
    *(_lie,) * 2,
    _other_wire,
    _other_number,
    _other_field,
    _into_itself,
    _long_varint,
    _unknown,
    _shuffle,
)

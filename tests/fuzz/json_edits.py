"""Edits of JSON documents; keys may stand twice, and numbers are any text."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from typing import Any, Final

from tests.fuzz import values


@dataclass
class Raw:
    """Text that is written as it is."""

    text: str


class Object(dict[str, Any]):
    """An object whose keys may stand twice: ``pairs`` is what is written.

    It is a dict because the encoder in C writes the ``items`` of one.
    """

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__({"": None})  # an empty one has no items for the encoder
        self.pairs = pairs

    def items(self) -> Any:
        """Return the pairs, as the encoder calls it."""
        return self.pairs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Object) and self.pairs == other.pairs

    __hash__ = None


def edited(rng: random.Random, content: bytes) -> tuple[bytes, str]:
    """Return the document with one edit; bytes that are no JSON are returned as they are."""
    try:
        document = json.loads(
            content, object_pairs_hook=Object, parse_float=Raw, parse_int=Raw, parse_constant=Raw
        )
    except (ValueError, RecursionError):
        return content, "no JSON"
    edit = rng.choice(_EDITS)
    holder = [document]
    what = edit(rng, holder)
    return _written(holder[0]).encode("utf-8", "surrogatepass"), what


_MARK: Final = re.compile(r'"<raw (\d+)>"')


def _written(node: Any) -> str:
    raw: list[str] = []

    def marked(one: Raw) -> str:
        raw.append(one.text)
        return f"<raw {len(raw) - 1}>"

    text = json.dumps(node, default=marked, check_circular=False)
    return _MARK.sub(lambda mark: raw[int(mark[1])], text)


def _events(document: Any) -> list[Any]:
    """Return the longest list in the document: its events, layers or measurements."""
    if isinstance(document, list):
        return document
    lists = [value for _, value in getattr(document, "pairs", ()) if isinstance(value, list)]
    return max(lists, key=len, default=[])


def _objects(rng: random.Random, document: Any) -> list[Object]:
    """Return objects to change alike: one event, several of one kind, or the document."""
    events = [event for event in _events(document) if isinstance(event, Object)]
    if not events or rng.random() < 0.15:
        return [document] if isinstance(document, Object) else events[:1]
    if rng.random() < 0.6:
        return rng.sample(events, min(len(events), rng.choice((1, 1, 2, 5))))
    key = rng.choice(("cat", "ph", "name", "pid"))
    like = _get(rng.choice(events), key)
    same = [event for event in events if _same(_get(event, key), like)]
    return same if rng.random() < 0.7 else events


def _same(a: Any, b: Any) -> bool:
    return bool(a == b)


def _get(node: Object, key: str) -> Any:
    return next((value for name, value in node.pairs if name == key), None)


def _inner(rng: random.Random, objects: list[Object]) -> list[Object]:
    """Return the objects, or the arguments inside them."""
    if rng.random() < 0.6:
        return objects
    return [
        value for one in objects for _, value in one.pairs if isinstance(value, Object)
    ] or objects


def _value(rng: random.Random) -> Any:
    pick = rng.random()
    if pick < 0.35:
        return Raw(str(values.integer(rng)))
    if pick < 0.5:
        return Raw(rng.choice(_NUMBERS))
    if pick < 0.75:
        return values.text(rng)
    if pick < 0.8:
        return Raw(rng.choice(_BROKEN_TEXTS))
    if pick < 0.88:
        return Raw(_nest(rng))
    return rng.choice(
        (None, True, False, [], Object([]), [[]], [None], Object([("a", [])]), [1, 2])
    )


def _nest(rng: random.Random) -> str:
    depth = rng.choice((10, 60, 500, 1_100, 5_000, 100_000))
    opening, closing = rng.choice((("[", "]"), ('{"a":', "}"), ('[{"args":', "}]")))
    inside = "[]" if opening == "[" else "1"
    return opening * depth + inside + (closing * depth if rng.random() < 0.9 else "")


_NUMBERS: Final = (
    "NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1e-400", "-0", "-0.0", "1E5", "0.1", "1.5",
    "9223372036854775807.5", "123456789012345678901234567890.123", "4.6e15", "1e18", "0e0",
    "1" * 400, "0." + "3" * 400, "1e999999999", "01", "+1", ".5", "0x1F", "1_000", "--1",
)  # fmt: skip
_BROKEN_TEXTS: Final = (
    r'"\ud800"', r'"\udc00\ud800"', r'"\u0000"', r'"\u202e"', r'"\q"', '"\x01"', '"\udcff"',
    r'"\u12"', '"', "'single'", "undefined", "",
)  # fmt: skip


def _set_value(rng: random.Random, holder: list[Any]) -> str:
    objects = _inner(rng, _objects(rng, holder[0]))
    value = _value(rng)
    keys = [key for one in objects for key, _ in one.pairs]
    if not keys:
        return "nothing to set"
    key = rng.choice(("ts", "dur", "name", "pid", "tid") if rng.random() < 0.35 else keys)
    for one in objects:
        one.pairs = [(k, value if k == key else v) for k, v in one.pairs]
    return f"{key!s:.40} of {len(objects)} set to {_shown(value)}"


def _shown(value: Any) -> str:
    text = value.text if isinstance(value, Raw) else repr(value)
    return text if len(text) < 40 else f"{text[:30]}… ({len(text)})"


def _keyed(rng: random.Random, holder: list[Any]) -> tuple[list[Object], list[Any]]:
    """Return the objects to edit, and all their keys."""
    objects = _inner(rng, _objects(rng, holder[0]))
    return objects, [key for one in objects for key, _ in one.pairs]


def _drop_key(rng: random.Random, holder: list[Any]) -> str:
    objects, keys = _keyed(rng, holder)
    if not keys:
        return "nothing to drop"
    key = rng.choice(keys)
    for one in objects:
        one.pairs = [(k, v) for k, v in one.pairs if k != key]
    return f"{key!s:.40} of {len(objects)} dropped"


def _double_key(rng: random.Random, holder: list[Any]) -> str:
    objects, keys = _keyed(rng, holder)
    if not keys:
        return "nothing to double"
    key = rng.choice(keys)
    value = None if rng.random() < 0.5 else _value(rng)
    for one in objects:
        again = [(k, v if value is None else value) for k, v in one.pairs if k == key]
        one.pairs = [*again, *one.pairs] if rng.random() < 0.5 else [*one.pairs, *again]
    return f"{key!s:.40} of {len(objects)} doubled"


def _rename_key(rng: random.Random, holder: list[Any]) -> str:
    objects, keys = _keyed(rng, holder)
    if not keys:
        return "nothing to rename"
    key, name = rng.choice(keys), rng.choice((values.text(rng), "name", "ts", "ph", "traceEvents"))
    for one in objects:
        one.pairs = [(name if k == key else k, v) for k, v in one.pairs]
    return f"{key!s:.40} of {len(objects)} renamed {name!r:.40}"


def _replace_event(rng: random.Random, holder: list[Any]) -> str:
    events = _events(holder[0])
    if not events:
        return "no events"
    value = _value(rng)
    count = rng.choice((1, 1, 3, len(events)))
    for place in rng.sample(range(len(events)), min(count, len(events))):
        events[place] = value
    return f"{count} events are {_shown(value)}"


def _repeat_events(rng: random.Random, holder: list[Any]) -> str:
    events = _events(holder[0])
    if not events:
        return "no events"
    some = rng.sample(events, min(len(events), rng.choice((1, 5, 50))))
    times = rng.choice((1, 1, 2, 20))
    events += some * times
    return f"{len(some)} events repeated {times} times"


def _shuffle_events(rng: random.Random, holder: list[Any]) -> str:
    rng.shuffle(_events(holder[0]))
    return "events shuffled"


def _drop_events(rng: random.Random, holder: list[Any]) -> str:
    events = _events(holder[0])
    if events and rng.random() < 0.3:
        events.clear()
        return "no event left"
    key = rng.choice(("cat", "ph", "name"))
    objects = [event for event in events if isinstance(event, Object)]
    if not objects:
        return "no events"
    like = _get(rng.choice(objects), key)
    kept = [e for e in events if not isinstance(e, Object) or _get(e, key) != like]
    events[:] = kept
    return f"events with {key} {like!r:.40} dropped"


def _nested_ranges(rng: random.Random, holder: list[Any]) -> str:
    """Put an event into itself, each a little shorter."""
    events = _events(holder[0])
    timed = [
        e for e in events if isinstance(e, Object) and {"ts", "dur"} <= {k for k, _ in e.pairs}
    ]
    if not timed:
        return "no timed event"
    event, depth = rng.choice(timed), rng.choice((5, 70, 300, 3_000))
    try:
        start, duration = (float(_get(event, key).text) for key in ("ts", "dur"))
    except (AttributeError, ValueError):
        return "no timed event"
    step = rng.choice((0.0, 0.001))
    for level in range(depth):
        times = {"ts": start + level * step, "dur": max(duration - 2 * level * step, 0)}
        pairs = [(k, Raw(repr(times[k])) if k in times else v) for k, v in event.pairs]
        events.append(Object(pairs))
    return f"an event nested {depth} deep"


def _move_times(rng: random.Random, holder: list[Any]) -> str:
    """Shift or scale the times of some events."""
    objects = _objects(rng, holder[0])
    shift = rng.choice((1e6, -1e6, 1e12, 1e15, -1e15, 9.2e15, 0.0001))
    for one in objects:
        for place, (key, value) in enumerate(one.pairs):
            if key in ("ts", "dur") and isinstance(value, Raw):
                try:
                    one.pairs[place] = (key, Raw(repr(float(value.text) + shift)))
                except ValueError:
                    continue
    return f"times of {len(objects)} moved by {shift}"


def _whole(rng: random.Random, holder: list[Any]) -> str:
    """Change the document around its events."""
    document = holder[0]
    events = _events(document)
    pick = rng.randrange(5)
    if pick == 0 and isinstance(document, Object):
        half = Raw(_written(events[: len(events) // 2]))
        document.pairs.insert(rng.randrange(len(document.pairs) + 1), ("traceEvents", half))
        return "traceEvents twice"
    if pick == 1:
        holder[0] = _value(rng)
        return f"the document is {_shown(holder[0])}"
    if pick == 2:
        holder[0] = [document] if rng.random() < 0.5 else Object([("traceEvents", document)])
        return "the document is wrapped"
    if pick == 3 and isinstance(document, Object):
        key = rng.choice(("traceEvents", "schemaVersion", "deviceProperties", "distributedInfo",
                          "baseTimeNanoseconds", "displayTimeUnit", "metadata"))  # fmt: skip
        document.pairs.insert(rng.choice((0, len(document.pairs))), (key, _value(rng)))
        return f"another {key}"
    text = _written(document)
    junk = rng.choice((" ", "\ufeff", "\x00", "//x\n", "]", "}", ",", "[", "{}", text[:200]))
    holder[0] = Raw(junk + text if rng.random() < 0.5 else text + junk)
    return f"junk {junk[:10]!r} around the document"


_EDITS: Final = (
    *(_set_value,) * 8,
    *(_drop_key,) * 3,
    *(_double_key,) * 2,
    _rename_key,
    _replace_event,
    _repeat_events,
    _shuffle_events,
    _drop_events,
    _nested_ranges,
    *(_move_times,) * 2,
    *(_whole,) * 2,
)

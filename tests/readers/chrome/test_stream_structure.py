"""Events are cut apart by quotes and brackets alone."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from traceana.readers.chrome.document import scan

TEXT = st.text(st.sampled_from('ab"\\{}[],: \n\té'), max_size=12)
VALUES = st.recursive(
    TEXT | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.lists(st.dictionaries(TEXT, VALUES, max_size=4), max_size=6)


@given(OBJECTS, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_every_object_is_found_whole(
    objects: list[dict[str, Any]], indent: int | str | None, closed: bool
) -> None:
    pieces = [json.dumps(o, indent=indent, ensure_ascii=False).encode() for o in objects]
    text = b",\n".join(pieces) + (b'], "rest": [{}]}' if closed else b"")
    found = scan(text)
    slices = [text[a:b] for a, b in zip(found.starts, found.ends, strict=True)]
    assert slices == pieces
    assert found.closed == (len(b",\n".join(pieces)) if closed else None)


@given(OBJECTS.filter(bool), st.data())
def test_a_cut_leaves_the_whole_objects_before_it(
    objects: list[dict[str, Any]], data: st.DataObject
) -> None:
    pieces = [json.dumps(o).encode() for o in objects]
    text = b",".join(pieces)
    cut = data.draw(st.integers(0, len(text)))
    found = scan(text[:cut])
    whole = [text[a:b] for a, b in zip(found.starts, found.ends, strict=True)]
    assert whole == pieces[: len(whole)]
    complete = sum(1 for i in range(len(pieces)) if len(b",".join(pieces[: i + 1])) <= cut)
    assert len(whole) == complete

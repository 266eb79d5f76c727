"""Invalid JSON is repaired; valid JSON keeps its value."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceana.readers.chrome.document import repair

JSON = st.recursive(
    st.text() | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(JSON, st.booleans())
def test_valid_json_keeps_its_value(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert json.loads(repair(text)) == value


@pytest.mark.parametrize(
    ("broken", "value"),
    [
        (b'{"a": NaN}', {"a": None}),
        (b'{"a": -Infinity, "b": [N/A, nan]}', {"a": None, "b": [None, None]}),
        (b'{"NaN": "N/A NaN"}', {"NaN": "N/A NaN"}),
        (b'{"a": "C:\\users\\new"}', {"a": "C:\\users\new"}),  # \n is valid and stays a newline
        (b'{"a": "C:\\temp\\x"}', {"a": "C:\temp\\x"}),
        (b'{"a": "x\ny\x01z"}', {"a": "x\ny\x01z"}),
        (b'{"a": "\xff"}', {"a": "\ufffd"}),
        (b'{"a": "\\ud800!"}', {"a": "\ufffd!"}),
        (b'{"a": "\\ud83d\\ude00"}', {"a": "\U0001f600"}),
        (b'{"a": "q\\"NaN\\"q", "b": NaN}', {"a": 'q"NaN"q', "b": None}),
    ],
)
def test_recorded_malformations(broken: bytes, value: object) -> None:
    assert json.loads(repair(broken)) == value


def test_sound_text_is_returned_without_a_look_at_its_strings() -> None:
    text = b'{"name": ' + b'{"a":' * 1_000 + b'"NaN 1"' + b"}" * 1_001
    assert repair(text) is text

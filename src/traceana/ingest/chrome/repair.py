"""Repairs the invalid JSON that some exporters write; valid JSON stays as it is.

Exporters write ``NaN``, ``Infinity`` and ``N/A`` as bare values; raw control characters and
single backslashes (Windows paths, C++ literals) inside strings; bytes that are not UTF-8.
"""

from __future__ import annotations

import re
from typing import Final

# Possessive: without a way back, a string of megabytes is matched in stretches, not by letters.
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_NO_NUMBER: Final = re.compile(rb"-?\b(?:NaN|nan|Infinity|inf|N/A)\b")
_SOUND_ESCAPES: Final = re.compile(rb'(?:[^\\]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+')
_BAD_ESCAPE: Final = re.compile(rb'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)', re.DOTALL)
_CONTROL: Final = re.compile(rb"[\x00-\x1f]")
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_PAIR: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")


def repair(text: bytes) -> bytes:
    """Return ``text`` with bare non-numbers as null and its strings made valid JSON strings."""
    if _is_sound(text):
        return text
    parts: list[bytes] = []
    position = 0
    for string in _STRING.finditer(text):
        parts.append(_NO_NUMBER.sub(b"null", text[position : string.start()]))
        parts.append(_repair_string(string.group()))
        position = string.end()
    parts.append(_NO_NUMBER.sub(b"null", text[position:]))
    return b"".join(parts)


def _is_sound(text: bytes) -> bool:
    """Return whether there is certainly nothing to repair, without a look at each string."""
    if b"\\" in text or not text.isascii():
        return False
    pieces = text.split(b'"')  # without escapes, every second one is a string
    return (
        len(pieces) % 2 == 1
        and not _CONTROL.search(b'"'.join(pieces[1::2]))
        and not _NO_NUMBER.search(b'"'.join(pieces[::2]))
    )


def _repair_string(string: bytes) -> bytes:
    if b"\\" in string:
        if not _SOUND_ESCAPES.fullmatch(string):
            string = _BAD_ESCAPE.sub(lambda m: m.group() if m.group(1) else rb"\\", string)
        if _SURROGATE.search(string):
            string = _without_lone_surrogates(string)
    string = _CONTROL.sub(lambda m: b"\\u%04x" % m.group()[0], string)
    try:
        string.decode("utf-8")
    except UnicodeDecodeError:
        string = string.decode("utf-8", "replace").encode()
    return string


def _without_lone_surrogates(string: bytes) -> bytes:
    parts: list[bytes] = []
    position = 0
    for pair in _PAIR.finditer(string):
        parts += [_SURROGATE.sub(rb"\\ufffd", string[position : pair.start()]), pair.group()]
        position = pair.end()
    parts.append(_SURROGATE.sub(rb"\\ufffd", string[position:]))
    return b"".join(parts)

"""The stacks of a snapshot as texts, each once: events and blocks have lists of frames."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.plain_text import as_unicode
from traceana.trace.schema import LABEL

NO_STACK: Final = -1
_CPP: Final = (".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hpp", ".inc")
"""Endings of files whose frames are not Python's."""
_LONGEST_NAME: Final = 1 << 10
"""Characters of a file or a function."""
_MOST_TEXT: Final = 256 << 20
"""Characters of all stacks."""


class _Numbered(msgspec.Struct, frozen=True):
    """In a list of frames whose stack has a number already, in their place."""

    number: int


class Stacks:
    """The distinct stacks. ``left_out`` counts those that were too many to be kept."""

    def __init__(self) -> None:
        """Begin without a stack."""
        self.left_out = 0
        self._size = 0
        self._texts: dict[str, int] = {}
        # By the identities of their frames, which are kept: the next object could have the same.
        self._numbers: dict[tuple[int, ...], int] = {}
        self._frames: dict[int, tuple[Any, str | None]] = {}

    def number(self, frames: Any) -> int:
        """Return the number of the stack of ``frames``, innermost first; :data:`NO_STACK` without
        a frame of Python.

        The list is emptied, because each event has one of its own: a reference to its number is
        left there for the next event with the same list.
        """
        if type(frames) is not list or not frames:
            return NO_STACK
        if type(frames[0]) is _Numbered:
            return frames[0].number
        key = tuple(map(id, frames))
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._new(frames)
        frames[:] = [_Numbered(number)]
        return number

    def _new(self, frames: list[Any]) -> int:
        texts = []
        for frame in frames:
            if id(frame) not in self._frames:
                self._frames[id(frame)] = frame, _text(frame)
            if text := self._frames[id(frame)][1]:
                texts.append(text)
        stack = ";".join(texts)
        if not stack:
            return NO_STACK
        if stack not in self._texts:
            if self._size + len(stack) > _MOST_TEXT:
                self.left_out += 1
                return NO_STACK
            self._size += len(stack)
            self._texts[stack] = len(self._texts)
        return self._texts[stack]

    def texts(self, numbers: npt.NDArray[np.int64]) -> pl.Series:
        """Return the text of each of ``numbers``, as the column ``frames`` of the tables."""
        texts = pl.Series(list(self._texts), dtype=LABEL)
        rows = pl.Series(numbers)
        return texts.gather(rows.set(rows == NO_STACK, None))


def _text(frame: Any) -> str | None:
    """Return a frame as ``train.py(41): main``; None where it is not Python's."""
    if type(frame) is not dict:
        return None
    file, line, function = (frame.get(key) for key in ("filename", "line", "name"))
    if type(file) is not str or type(line) is not int or not 0 <= line < 10**9:
        return None
    # "??": the symbols of a library are not resolved.
    if file in ("", "??", "none") or file.endswith(_CPP) or ".so" in file:
        return None
    name = function if type(function) is str else ""
    shortened = f"{file[:_LONGEST_NAME]}({line}): {name[:_LONGEST_NAME]}"
    # A semicolon separates frames, and a frame is one line.
    return as_unicode(shortened).translate(_SEPARATORS)


_SEPARATORS: Final = str.maketrans({";": ",", "\n": " ", "\r": " "})

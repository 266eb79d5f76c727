"""The file of an algorithm study: written whole, read strictly."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from traceana.algorithms.model import FORMAT, VERSION, AlgorithmStudy
from traceana.errors import (
    CannotWriteError,
    CorruptError,
    UnknownFormatError,
)
from traceana.files import content, lined, write_whole


class _Header(msgspec.Struct):
    format: str
    version: int


def read(path: str | os.PathLike[str]) -> AlgorithmStudy:
    """Read the file of an algorithm study.

    Raises :class:`UnknownFormatError` where it is none or of another version, :class:`CorruptError`
    where it is damaged or contradicts itself, and ``NotFoundError``, ``IsDirectoryError`` or
    ``UnreadableError`` where it cannot be read.
    """
    source = Path(path)
    text = content(source, "algorithm study")
    try:
        header = msgspec.json.decode(text, type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise UnknownFormatError(f"{source} is no algorithm study; {_WRITE}") from None
    if header.format != FORMAT:
        raise UnknownFormatError(f"{source} is no algorithm study; {_WRITE}")
    if header.version != VERSION:
        raise UnknownFormatError(
            f"{source} is an algorithm study of version {header.version}, not {VERSION}; "
            "measure anew"
        )
    try:
        return msgspec.json.decode(text, type=AlgorithmStudy)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptError(f"{source} is a damaged algorithm study: {error}") from None


def write(study: AlgorithmStudy, path: str | os.PathLike[str]) -> None:
    """Write ``study`` to ``path``, a measurement a line; never half. Raises CannotWriteError."""
    target = Path(path)
    try:
        write_whole(target, to_json(study).encode())
    except OSError as error:
        raise CannotWriteError(
            f"{target}: the algorithm study cannot be written ({error.strerror}): give another path"
        ) from error


def to_json(study: AlgorithmStudy) -> str:
    """Return the file's text."""
    return lined(study, "layers", "measurements")


_WRITE = "write one with python -m workloads.algorithms"

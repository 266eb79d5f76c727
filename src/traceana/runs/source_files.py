"""The program's own files at the time of its recording: ``source/`` in the run's folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from traceana.runs.run_files import SOURCE_FOLDER

LISTING: Final = "files.json"
"""``folder``: the program's. ``files``: the path within ``source/`` of each file that was run, null
of one that is not kept. ``sha256``: of each. Files are named as in the trace."""
_LARGEST: Final = 1 << 22
"""Bytes of a file that is read; ``record`` keeps none that is larger."""


def source_lines(folder: Path, files: Iterable[str]) -> dict[str, Sequence[str]]:
    """Return the lines of each of ``files`` that the run in ``folder`` executed, by file.

    One that the run did not keep is read where it was, if it is still the same. Other files are
    left out, as is anything but a regular file.
    """
    listing = _listing(folder)
    lines: dict[str, Sequence[str]] = {}
    for file in files:
        path = _path(folder, listing, file)
        content = None if path is None else _content(path)
        if content is None:
            continue
        digest = _of(listing, "sha256").get(file)
        kept = _of(listing, "files").get(file) is not None
        if (kept and digest is None) or hashlib.sha256(content).hexdigest() == digest:
            lines[file] = content.decode("utf-8", "replace").splitlines()
    return lines


def changed_files(folder: Path, files: Iterable[str]) -> list[str]:
    """Return those of ``files`` that were recorded by their digest and are gone or another now."""
    files = set(files) & _of(_listing(folder), "sha256").keys()
    return sorted(files - source_lines(folder, files).keys())


def program_folder(folder: Path) -> str:
    """Return the folder of the program that the run in ``folder`` recorded, empty if unknown.

    The names of its files are relative to it. It ends with a separator.
    """
    return _program(_listing(folder))


def _program(listing: Mapping[str, Any]) -> str:
    program = listing.get("folder")
    return program if isinstance(program, str) else ""


def _path(folder: Path, listing: Mapping[str, Any], file: str) -> Path | None:
    """Return where ``file`` is, None where that is unknown or is outside ``source/``."""
    source = folder / SOURCE_FOLDER
    kept = _of(listing, "files").get(file)
    if kept is None:
        return Path(_program(listing), file) if file in _of(listing, "sha256") else None
    try:
        path = (source / str(kept)).resolve(strict=True)
    except (OSError, ValueError):
        return None
    return path if source.resolve() in path.parents else None


def _content(path: Path) -> bytes | None:
    try:
        # Anything but a regular file could block.
        if path.is_file() and path.stat().st_size <= _LARGEST:
            return path.read_bytes()
    except (OSError, ValueError):
        pass
    return None


def _of(listing: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = listing.get(key)
    return value if isinstance(value, dict) else {}


def _listing(folder: Path) -> Mapping[str, Any]:
    content = _content(folder / SOURCE_FOLDER / LISTING)
    try:
        listing = {} if content is None else json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return listing if isinstance(listing, dict) else {}

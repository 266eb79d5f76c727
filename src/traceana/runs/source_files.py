"""The program's own files that a recorded run keeps: ``source/`` in its folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from traceana.runs.run_files import SOURCE_FOLDER

LISTING: Final = "files.json"
"""``{"folder": the program's folder, "files": {file as in the trace: path within source/}}``."""
_LARGEST: Final = 1 << 22
"""Bytes of a file that is read; ``record`` keeps none that is larger."""


def kept_files(folder: Path, files: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """Return the lines of each of ``files`` that the run in ``folder`` keeps, by file.

    Damaged files and anything but regular files inside the folder are left out.
    """
    source = folder / SOURCE_FOLDER
    listed = _listing(folder).get("files")
    if not isinstance(listed, dict):
        return {}
    root = source.resolve()
    content: dict[str, Sequence[str]] = {}
    for file in files:
        name = listed.get(file)
        if not isinstance(name, str):
            continue
        try:
            path = (source / name).resolve(strict=True)
            if root in path.parents and path.is_file() and path.stat().st_size <= _LARGEST:
                content[file] = path.read_text("utf-8", "replace").splitlines()
        except (OSError, ValueError):
            continue
    return content


def program_folder(folder: Path) -> str:
    """Return the folder of the program that the run in ``folder`` recorded, empty if unknown.

    The names of its files are relative to it. It ends with a separator.
    """
    program = _listing(folder).get("folder")
    return program if isinstance(program, str) else ""


def _listing(folder: Path) -> Mapping[str, Any]:
    path = folder / SOURCE_FOLDER / LISTING
    try:
        # Anything but a regular file could block.
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return {}
        listing = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return listing if isinstance(listing, dict) else {}

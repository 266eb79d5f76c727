"""The program's own files that a recorded run keeps: ``source/`` in its folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from traceana.runs.run_files import SOURCE_FOLDER

LISTING: Final = "files.json"
"""``{"files": {file as in the trace: path within the folder}}``."""
_LARGEST: Final = 1 << 22
"""Bytes of a file that is read; ``record`` keeps none that is larger."""


def kept_files(folder: Path, files: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """Return the lines of those of ``files`` that the run in ``folder`` keeps, by file.

    A file that is recorded by its whole path is the one whose name ends it, if there is one. What
    is damaged, or is no regular file inside the folder, is left out.
    """
    source = folder / SOURCE_FOLDER
    try:
        listed = json.loads((source / LISTING).read_text("utf-8"))["files"]
        root = source.resolve(strict=True)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    if not isinstance(listed, dict):
        return {}
    content: dict[str, Sequence[str]] = {}
    for file in files:
        ending = [name for name in listed if file == name or file.endswith(f"/{name}")]
        name = listed[ending[0]] if len(ending) == 1 else None
        if not isinstance(name, str):
            continue
        try:
            path = (source / name).resolve(strict=True)
            if root in path.parents and path.is_file() and path.stat().st_size <= _LARGEST:
                content[file] = path.read_text("utf-8", "replace").splitlines()
        except (OSError, ValueError):
            continue
    return content

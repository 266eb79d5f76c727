"""Copies of the code that Inductor generated for the graphs which this process compiled."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

FOLDER = "inductor"
_MOST_BYTES = 64 << 20  # of all copies together


def keep(folder: Path) -> str | None:
    """Copy the files that Inductor wrote and loaded in this process into ``folder``/inductor.

    Return a note if not all are copied.
    """
    codecache = sys.modules.get("torch._inductor.codecache")
    if codecache is None:
        return None
    files = {Path(module.__file__) for module in codecache.PyCodeCache.modules if module.__file__}
    room = _MOST_BYTES
    for file in sorted(files):
        target = folder / FOLDER / file.name
        if target.exists() or b"def call(" not in file.read_bytes():
            # Another process of the run had this graph, or it is the code of a single kernel.
            continue
        room -= file.stat().st_size
        if room < 0:
            return f"Inductor's generated code is incomplete: over {_MOST_BYTES >> 20} MiB"
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, target)
    return None

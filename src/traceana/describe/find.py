"""Finds the layer manifest that lies beside a trace."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

SUFFIX: Final = ".layers.json"
_ALONE: Final = "layers.json"
_NO_TRACE: Final = (SUFFIX, ".provenance.json")


def find(trace_path: str | os.PathLike[str]) -> Path | None:
    """Return the layer manifest of the trace, None where there is none or more than one.

    It is ``STEM.layers.json`` beside a trace ``STEM.…``, whatever endings the trace's name has
    (``.json.gz``, ``.pt.trace.json``), or the one ``*.layers.json`` or ``layers.json`` of its
    folder, unless another trace there has that stem. For a folder of traces it is the one within.
    The file is not read.
    """
    trace = Path(trace_path)
    stem = trace.name
    while stem:
        beside = trace.with_name(stem + SUFFIX)
        if beside.is_file():
            return beside
        shorter = stem.rpartition(".")[0]
        stem = "" if shorter == stem else shorter
    return _alone_in(trace if trace.is_dir() else trace.parent)


def _alone_in(folder: Path) -> Path | None:
    try:
        files = [path for path in folder.iterdir() if path.is_file()]
    except OSError:
        return None
    found = [path for path in files if path.name.endswith(SUFFIX) or path.name == _ALONE]
    if len(found) != 1:
        return None
    (manifest,) = found
    stem = manifest.name.removesuffix(SUFFIX) if manifest.name != _ALONE else None
    taken = stem is not None and any(
        path.name.startswith(f"{stem}.") and not path.name.endswith(_NO_TRACE) for path in files
    )
    return None if taken else manifest

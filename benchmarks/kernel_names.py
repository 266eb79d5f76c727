"""Many distinct kernel names, recorded or varied from recorded ones."""

from __future__ import annotations

import csv
import re
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from benchmarks.source import ROOT, SHARED_TRACES

_LEXICON: Final = SHARED_TRACES.parent / "lexicon.tar.xz"
_LABELS: Final = SHARED_TRACES.parent / "kernel_labels.tsv"
_LAST_NUMBER: Final = re.compile(r"\d+(?=\D*$)")


def lexicon(count: int) -> list[str] | None:
    """Return ``count`` names of kernels in libraries, drawn evenly from all libraries.

    None where the list is missing or has fewer names.
    """
    if not _LEXICON.exists():
        return None
    names: dict[str, None] = {}
    with tarfile.open(_LEXICON) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith(".txt") else None
            if file is not None:
                names.update(dict.fromkeys(file.read().decode("utf-8", "replace").splitlines()))
    distinct = [name for name in names if name]
    if len(distinct) < count:
        return None
    return [distinct[i * len(distinct) // count] for i in range(count)]


def varied(count: int, seeds: Iterable[str]) -> list[str]:
    """Return ``count`` distinct names: ``seeds``, then ``seeds`` with their last number changed.

    A name without a number gets one. Prefixes and lengths are those of recorded names.
    """
    real = list(dict.fromkeys(seeds))
    names = dict.fromkeys(real[:count])
    variant = 1000
    while len(names) < count:
        for name in real[: count - len(names)]:
            other, changed = _LAST_NUMBER.subn(str(variant), name, count=1)
            names[other if changed else f"{name}_{variant}"] = None
        variant += 1
    return list(names)


def seeds() -> tuple[str, list[str]]:
    """Return the source of the recorded names, and the names."""
    if _LABELS.exists():
        with _LABELS.open(newline="") as file:
            rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            return "labelled kernels", [row["name"] for row in rows]
    return "operators of the fixtures", _operators(sorted((ROOT / "fixtures").glob("*.json.gz")))


def _operators(files: Iterable[Path]) -> list[str]:
    from traceana.readers import read

    names: dict[str, None] = {}
    for file in files:
        trace = read(file)
        names.update(dict.fromkeys(trace.tables.names["name"].to_list()))
        names.update(dict.fromkeys(trace.tables.ops["name"].cast(str).unique(maintain_order=True)))
    return list(names)

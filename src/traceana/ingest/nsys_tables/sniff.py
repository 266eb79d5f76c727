"""Whether a directory is an export of nsys, told without reading a table."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from traceana.ingest.dialect import EXPORT_FACTS

SUFFIXES: Final = (".parquet", ".arrow")


def is_export(path: Path) -> bool:
    """Tell whether the directory ``path`` is an export of nsys: one that tells what exported it."""
    return any((path / f"{table}{kind}").is_file() for table in EXPORT_FACTS for kind in SUFFIXES)

"""The formats of the output."""

from __future__ import annotations

from enum import Enum


class Format(Enum):
    """What ``--format`` takes; the values are the file suffixes too, but for ``table``."""

    TABLE = "table"
    CSV = "csv"
    TSV = "tsv"
    JSON = "json"
    MARKDOWN = "md"
    PARQUET = "parquet"

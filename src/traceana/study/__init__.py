"""The published studies from recorded runs: runs and traces in, frames out."""

from __future__ import annotations

from enum import StrEnum


class Name(StrEnum):
    """The studies; values are their names on the command line."""

    FRAMEWORKS = "frameworks"
    EPILOGUES = "epilogues"
    ALGORITHMS = "algorithms"
    LAYERWISE = "layerwise"
    SCALING = "scaling"
    BATCH = "batch"
    SGEMM = "sgemm"
    TRANSFERS = "transfers"
    RATIO = "ratio"

"""The names of the studies."""

from __future__ import annotations

from enum import StrEnum


class Name(StrEnum):
    """The studies, as the command line calls them."""

    FRAMEWORKS = "frameworks"
    EPILOGUES = "epilogues"
    ALGORITHMS = "algorithms"
    LAYERWISE = "layerwise"
    SCALING = "scaling"
    BATCH = "batch"
    SGEMM = "sgemm"
    TRANSFERS = "transfers"
    RATIO = "ratio"

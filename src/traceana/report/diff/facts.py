"""What a report of a diff is given beside its table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from traceana.report.source import source_of

if TYPE_CHECKING:
    from traceana.comparison.diff import Diff
    from traceana.comparison.diff_rows import PairedRun
    from traceana.comparison.verdicts import Step

_FIGURES: Final = (
    *("calls_a", "calls_b", "time_a_ns", "time_b_ns", "delta_ns", "relative", "of_step"),
    *("p", "verdict"),
)
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "layer": (
        *("a", "b", "confidence", *_FIGURES),
        *("image_a_ns", "image_b_ns", "flops_per_s_a", "flops_per_s_b"),
    ),
    "class": ("category", "part", *_FIGURES),
    "algorithm": ("category", "algorithm", "pass", *_FIGURES),
    "kernel": ("name", "category", *_FIGURES),
    "gemm": ("gemm", "form", "precision", "library", *_FIGURES),
    "transfer": (
        *("direction", "host_memory", *_FIGURES),
        *("bytes_a", "bytes_b", "bytes_per_s_a", "bytes_per_s_b"),
    ),
}
"""The columns of a table of text, by what one row is."""

SUMMARY: Final = (
    *("a", "b", "confidence", "time_a_ns", "time_b_ns", "delta_ns", "relative", "verdict"),
)
"""Those of the layers in the summary of a diff."""

_FIRST: Final = ("p", "calls_a", "calls_b", "of_step", "relative")
OPTIONAL: Final[Mapping[str, tuple[str, ...]]] = {
    "layer": (
        *("flops_per_s_a", "flops_per_s_b", *_FIRST[:3], "image_a_ns", "image_b_ns"),
        *("confidence", "of_step", "relative"),
    ),
    "class": _FIRST,
    "algorithm": _FIRST,
    "kernel": ("p", "category", "calls_a", "calls_b", "of_step", "relative"),
    "gemm": ("p", "library", "relative", "of_step", "calls_a", "calls_b"),
    "transfer": ("p", "relative", "of_step", "delta_ns", "bytes_a", "bytes_b", "host_memory"),
}
"""What a narrow terminal goes without, first what goes first, by what one row is."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Both runs: ``source`` is for the JSON's ``meta``, the rest for people.

    ``runs`` has for a and b the file, the devices, the framework and the number of steps; ``whole``
    tells that both are compared as a whole, no step being marked on a side; ``alike`` that both are
    one recording.
    """

    source: Mapping[str, Any]
    runs: tuple[Mapping[str, Any], Mapping[str, Any]]
    step: Step
    level: float
    minimum_effect: float
    whole: bool
    alike: bool
    images: tuple[float, float] | None
    layers: Mapping[str, int]
    confidence: float | None
    changes: pl.DataFrame


def _step(step: Step) -> dict[str, Any]:
    told = {
        name: {**asdict(one), "relative": one.relative}
        for name, one in (("median", step.median), ("mean", step.mean))
    }
    return {**told, "statistic": step.statistic, "verdict": step.verdict}


def _source(run: PairedRun) -> dict[str, Any]:
    return {**source_of(run.run.trace), "steps": run.steps.count, "batch": run.layers.batch}


def compared(found: Diff) -> Compared:
    """Return what a report shows of ``found``."""
    criteria = found.criteria
    source = {
        "a": _source(found.baseline),
        "b": _source(found.candidate),
        "step": _step(found.step),
        "image_ns": found.per_image,
        "layers": dict(found.counts),
        "confidence": found.confidence,
        "level": criteria.level,
        "minimum_effect": criteria.minimum_effect,
    }
    return Compared(
        source,
        (found.baseline.about, found.candidate.about),
        found.step,
        criteria.level,
        criteria.minimum_effect,
        not found.baseline.steps.marked,
        found.alike,
        found.per_image,
        found.counts,
        found.confidence,
        found.changes,
    )

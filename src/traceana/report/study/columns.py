"""Which columns of each study people see, and how its rows stand on a screen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from traceana.study import Name


@dataclass(frozen=True, slots=True)
class Layout:
    """``columns`` of a table with a row a run; or, with ``figures``, a row an item.

    Then ``columns`` name the item, and the figures stand side by side, one column a run. A narrow
    screen goes without ``optional`` columns.
    """

    columns: tuple[str, ...]
    optional: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()


LAYOUTS: Final[Mapping[Name, Layout]] = {
    Name.BATCH: Layout(
        ("network", "run", "batch", "image_ns", "low_ns", "high_ns", "images_per_s", "step_ns",
         "steps", "timed", "status", "source"),
        ("timed", "step_ns", "steps"),
    ),
    Name.RATIO: Layout(
        ("network", "batch", "place", "run", "relative_speed", "images_per_s", "step_ns", "timed",
         "status", "reference", "source"),
        ("timed", "place", "step_ns"),
    ),
    Name.SCALING: Layout(
        ("network", "run", "scaling", "batch", "devices", "step_ns", "linear_ns",
         "logarithmic_ns", "images_per_s", "speed_up", "efficiency", "communication_share",
         "exposed_share", "reduced_bytes", "of_parameters", "status", "source"),
        ("images_per_s", "exposed_share", "efficiency", "scaling", "linear_ns", "logarithmic_ns"),
    ),
    Name.FRAMEWORKS: Layout(
        ("network", "layer", "type"),
        ("type",),
        figures=("forward_ns", "backward_ns", "optimizer_ns", "other_ns", "time_ns"),
    ),
    Name.EPILOGUES: Layout(
        ("network", "operation", "direction"), figures=("time_ns", "library", "how", "calls"),
    ),
    Name.SGEMM: Layout(
        ("network", "gemm", "form"), figures=("time_ns", "calls", "mean_ns", "library"),
    ),
    Name.TRANSFERS: Layout(
        ("network", "direction"),
        figures=("count", "bytes", "bytes_per_s", "time_ns", "host_memory"),
    ),
    Name.ALGORITHMS: Layout(
        ("network", "run", "direction", "batch", "algorithm", "time_ns", "fastest_ns",
         "workspace_bytes", "layers", "of_layers", "calls", "source"),
        ("calls", "fastest_ns"),
    ),
    Name.LAYERWISE: Layout(
        ("network", "run", "batch", "layer", "direction", "algorithm", "time_ns",
         "executed_flops", "direct_flops", "workspace_bytes", "status", "source"),
        ("workspace_bytes", "direct_flops"),
    ),
}  # fmt: skip

SECTIONS: Final[Mapping[str, str]] = {
    "models": "Models of the step's time, fitted by least squares",
}
"""The titles of the further tables of studies."""

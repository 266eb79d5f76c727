"""Kind, unit in the machine formats, and title of the columns of all tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from traceana.table import PARTS_OF_ONE_WHOLE, STEP, Column, Kind

if TYPE_CHECKING:
    import polars as pl


_NAMES: Final[Mapping[Kind, str]] = {
    Kind.KERNEL: "name culprit before after",
    Kind.LONG: (
        "range call title finding estimate caveat pytorch tensorflow jax shape shapes "
        "reason derivation operator operators also_matched value run device_name source "
        "reference status"
    ),
    Kind.PATH: "layer a b",
    Kind.CATEGORY: "category class limit",
    Kind.PART: "part direction pass cause precision operation function epilogue collective",
    Kind.LIBRARY: "library libraries",
    Kind.BATCHED: "form",
    Kind.PARTS: "algorithm algorithms algorithm_before algorithm_after",
    Kind.COUNT: (
        "calls count devices multiprocessors short_calls in_runs longest tried "
        "last_count problems kernels steps_count copies_count launches_count launches "
        "launch_bound ranks groups matched group_size "
        "synchronous staged asynchronous measured allocations steps layers of_layers "
        "trials of_trials batch_before batch_after events iterations"
    ),
    Kind.MEAN: (
        "blocks step_launches step_count images_per_s step_calls step_kernels "
        "step_copies calls_a calls_b requests tokens tokens_per_s"
    ),
    Kind.SHARE: (
        "launch_bound_share idle_share peak_share step_share saving_share flops_share "
        "unused_share share of_peak of_attainable tensor_active confidence relative "
        "excess_share of_step efficiency communication_share exposed_share of_parameters "
        "residual_share counted_share occupancy sm_efficiency limit_share mfu hfu"
    ),
    Kind.BYTES: "bytes mean_bytes step_bytes workspace_bytes dram_bytes bytes_a bytes_b",
    Kind.BINARY: "size",
    Kind.RATE: (
        "bytes_per_s median_bytes_per_s algbw_bytes_per_s busbw_bytes_per_s "
        "peak_bytes_per_s large_bytes_per_s dram_bytes_per_s bytes_per_s_a "
        "bytes_per_s_b"
    ),
    Kind.FLOPS: (
        "measured_flops fp64_flops fp32_flops fp16_flops tensor_flops flops "
        "executed_flops alternative_flops direct_flops model_flops flops_a flops_b"
    ),
    Kind.INTENSITY: "arithmetic_intensity ratio",
    Kind.FLOP_RATE: (
        "flops_per_s measured_flops_per_s peak_flops_per_s flops_per_s_a flops_per_s_b"
    ),
    Kind.NUMBER: "step process stream thread position rank batch larger_batch",
    Kind.DEVICE: "device",
    Kind.MOMENT: "start_ns at_ns",
    Kind.FLAG: "warm_up batched small tensor_core fits_better at_least",
    Kind.PROBABILITY: "p",
    Kind.RATIO: "relative_speed speedup to_first image_to_first",
}
_KINDS: Final = {name: kind for kind, names in _NAMES.items() for name in names.split()}

_TITLES: Final[Mapping[str, str]] = {
    "category": "class",
    "algbw_bytes_per_s": "algbw",
    "busbw_bytes_per_s": "busbw",
    "bytes_per_s": "bandwidth",
    "flops_per_s": "FLOP/s",
    "tokens_per_s": "tokens/s",
    "flops": "FLOPs",
    "tensor_active": "tensor active",
    "sm_efficiency": "SM efficiency",
    "host_memory": "memory",
    "form": "batched",
    "mean_bytes": "mean size",
    "counted_share": "counted time",
    "peak_share": "of peak",
    "step_share": "of step",
    "step_count": "per step",
    "step_bytes": "bytes per step",
    "step_ns": "per step",
    "step_median_ns": "median step",
    "intensity": "arithmetic intensity",
    "size": "size from",
    "start_ns": "start (since first event)",
    "at_ns": "time since first event",
    "linear": "O(N-1)",
    "logarithmic": "O(log N)",
}
"""Titles of columns, or of parts of their names."""

_SCALES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("mean_ns", "median_ns", "std_ns", "min_ns", "max_ns"), "one call"),
    **dict.fromkeys(("step_ns", "step_median_ns"), STEP),
    **dict.fromkeys(("clock_offset_ns", "clock_uncertainty_ns"), "clocks"),
    **dict.fromkeys(("flops", "executed_flops", "direct_flops"), "FLOPs"),
    **dict.fromkeys(("predicted_ns", "low_ns", "high_ns"), "predicted"),
    **dict.fromkeys(("saving_ns", "at_most_ns"), "saving"),
    **dict.fromkeys(
        (
            *("peak_bytes", "reserved_bytes", "end_bytes", "allocated_bytes"),
            *("bytes", "largest_bytes"),
        ),
        "memory",
    ),
    **dict.fromkeys(("bytes_a", "bytes_b"), "bytes of runs"),
    **dict.fromkeys(("bytes_per_s_a", "bytes_per_s_b"), "bandwidth of runs"),
    **dict.fromkeys(("flops_per_s_a", "flops_per_s_b"), "FLOP/s of runs"),
}
SIGNED: Final = frozenset({"delta_ns", "change_ns", "relative", "growth_bytes", "excess_share"})
"""Differences, which have a sign."""
_KEPT_AT_ZERO: Final = frozenset({"exposed_ns"})


def kind_of(column: str) -> Kind:
    """Return the kind of ``column``: the listed one, else by ``_ns`` or ``_bytes``, else text."""
    if column in _KINDS:
        return _KINDS[column]
    if column.endswith("_bytes"):
        return Kind.BYTES
    return Kind.TIME if column.endswith("_ns") else Kind.TEXT


def unit_of(column: str) -> str | None:
    """Return the unit of ``column`` in CSV, JSON and Parquet output, or None."""
    return kind_of(column).unit


def title_of(column: str) -> str:
    """Return the title of ``column``, without its unit."""
    if column in _TITLES:
        return _TITLES[column]
    title = column.removesuffix("_ns")
    for part, part_title in _TITLES.items():
        if "_" in part:
            title = title.replace(part, part_title)
    return " ".join("FLOPs" if word == "flops" else word for word in title.split("_"))


def scale_of(column: str) -> str:
    """Return the name of the scale that ``column`` shares with others, or an empty string.

    Durations share a unit with comparable ones: those of single calls, of steps, of the whole; so
    do the FLOPs of a computation and those that its algorithm executes.
    """
    return _SCALES.get(column, PARTS_OF_ONE_WHOLE if kind_of(column) is Kind.TIME else "")


def declared(name: str) -> Column:
    """Return the column ``name`` as the lists of this module have it."""
    return Column(
        name,
        kind_of(name),
        title=title_of(name),
        scale=scale_of(name),
        signed=name in SIGNED,
        zeros=name in _KEPT_AT_ZERO,
    )


def has_values(values: pl.Series, column: Column, total: int | None = None) -> bool:
    """Return whether ``column`` is shown: its values are not all null, and durations not all 0.

    A column with a ``total`` above 0 has values in hidden rows.
    """
    if total:
        return True
    if values.null_count() == len(values):
        return False
    return column.kind is not Kind.TIME or column.zeros or bool((values != 0).any())

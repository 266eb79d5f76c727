"""What is most worth looking at: findings with the time that is at stake in each.

Each rule is a function from the trace's own tables to one finding or none; a finding that does
not hold is not shown. ``time_ns`` is the time the finding is about, an upper bound of what mending
it can gain, and the order of the findings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import polars as pl

from traceana.analyze.result import Result
from traceana.analyze.transfers.links import HOST_DIRECTIONS

SCHEMA: Final = {
    "rule": pl.String,  # the finding's id
    "subject": pl.String,  # the layer, kernel or direction it is about
    "time_ns": pl.Int64,  # the time at stake
    "share": pl.Float64,  # of all work; of the time looked at for `idle`
    "count": pl.Int64,  # activities concerned; measured steps for `idle`
    "bytes": pl.Int64,  # bytes concerned
}


@dataclass(frozen=True, slots=True)
class Figures:
    """The tables the rules look at: the frames of the analyses of these names."""

    breakdown: pl.DataFrame
    kernels: pl.DataFrame
    layers: pl.DataFrame
    transfers: pl.DataFrame
    busy: pl.DataFrame
    steps: pl.DataFrame
    on_cpu: bool

    @property
    def work_ns(self) -> int:
        """Summed durations of all work."""
        return int(self.breakdown["time_ns"].sum())


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of the result; fields as in :data:`SCHEMA`."""

    rule: str
    subject: str | None
    time_ns: int
    share: float
    count: int | None = None
    bytes: int | None = None


def attention(figures: Figures, limit: int = 3) -> Result:
    """Return the ``limit`` findings with the most time at stake, columns as in :data:`SCHEMA`."""
    found = [finding for rule in RULES if (finding := rule(figures)) is not None]
    found.sort(key=lambda finding: (-finding.time_ns, finding.rule))
    rows = [(f.rule, f.subject, f.time_ns, f.share, f.count, f.bytes) for f in found[:limit]]
    frame = pl.DataFrame(rows, schema=SCHEMA, orient="row")
    return Result(frame, {}, () if rows else ("nothing stands out",))


def idle(figures: Figures) -> Finding | None:
    """The devices are idle a tenth of the measured steps, or of their span where none are."""
    if figures.on_cpu:
        return None
    measured = figures.steps.filter(~pl.col("warm_up") & (pl.col("devices") > 0))
    if measured.height:
        available = int((measured["wall_ns"] * measured["devices"]).sum())
        idle_ns = available - int(measured["busy_ns"].sum())
    else:
        available, idle_ns = (int(figures.busy[c].sum()) for c in ("span_ns", "idle_ns"))
    if not available or idle_ns < 0.10 * available:
        return None
    return Finding("idle", None, idle_ns, idle_ns / available, measured.height or None)


def layout_around_convolutions(figures: Figures) -> Finding | None:
    """Layout changes take 2 % of the work or more in a trace that has convolutions."""
    if "conv" not in figures.breakdown["category"]:
        return None
    return _category(figures, "layout", "layout_around_convolutions", 0.02)


def separate_bias_and_activation(figures: Figures) -> Finding | None:
    """Bias and activation run as kernels of their own and take 10 % of the work or more."""
    if figures.on_cpu:
        return None
    rows = figures.breakdown.filter(pl.col("category").is_in(["bias", "activation"]))
    return _worth(figures, "separate_bias_and_activation", None, rows, "calls", 0.10)


def exposed_collectives(figures: Figures) -> Finding | None:
    """Collectives take 10 % of the work or more."""
    return _category(figures, "collective", "collectives", 0.10)


def unclassified(figures: Figures) -> Finding | None:
    """A tenth of the work or more is of no class that is known."""
    return _category(figures, "other", "unclassified", 0.10)


def pageable_copies(figures: Figures) -> Finding | None:
    """Copies from or to pageable host memory take 1 % of the work or more."""
    rows = figures.transfers.filter(pl.col("host_memory") == "pageable")
    return _worth(figures, "pageable_copies", None, rows, "count", 0.01)


def host_copies(figures: Figures) -> Finding | None:
    """Copies between device and host memory that is not pageable take 10 % of the work or more."""
    rows = figures.transfers.filter(
        pl.col("direction").is_in(HOST_DIRECTIONS) & (pl.col("host_memory") != "pageable")
    )
    return _worth(figures, "host_copies", None, rows, "count", 0.10)


def small_copies(figures: Figures) -> Finding | None:
    """A hundred copies or more between host and device of less than 64 KiB take 1 % or more."""
    rows = figures.transfers.filter(pl.col("direction").is_in(HOST_DIRECTIONS) & pl.col("small"))
    return _worth(figures, "small_copies", None, rows, "count", 0.01)


def one_layer(figures: Figures) -> Finding | None:
    """One layer takes a quarter of the work or more, and there are others."""
    rows = figures.layers.filter(pl.col("role") == "layer")
    if rows.height < 2:
        return None
    row = rows.sort("time_ns", descending=True).head(1)
    return _worth(figures, "one_layer", row["layer"].item(), row, "calls", 0.25)


def one_kernel(figures: Figures) -> Finding | None:
    """One kernel (operator, on the CPU) takes 30 % of the work or more, and there are others."""
    if figures.kernels.height < 2:
        return None
    row = figures.kernels.head(1)
    rule = "one_operator" if figures.on_cpu else "one_kernel"
    return _worth(figures, rule, row["name"].item(), row, "calls", 0.30)


def _category(figures: Figures, category: str, rule: str, least: float) -> Finding | None:
    rows = figures.breakdown.filter(pl.col("category") == category)
    return _worth(figures, rule, None, rows, "calls", least)


def _worth(
    figures: Figures, rule: str, subject: str | None, rows: pl.DataFrame, count: str, least: float
) -> Finding | None:
    time_ns = int(rows["time_ns"].sum())
    if not time_ns or time_ns < least * figures.work_ns:
        return None
    told = "bytes" in rows.columns and not rows["bytes"].null_count()
    total = int(rows["bytes"].sum()) if told else None
    return Finding(rule, subject, time_ns, time_ns / figures.work_ns, int(rows[count].sum()), total)


RULES: Final[tuple[Callable[[Figures], Finding | None], ...]] = (
    idle,
    layout_around_convolutions,
    separate_bias_and_activation,
    exposed_collectives,
    unclassified,
    pageable_copies,
    host_copies,
    small_copies,
    one_layer,
    one_kernel,
)

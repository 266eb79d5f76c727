"""Recommendations on a printed summary: what the number, size and time of its copies tell.

Without a timeline nothing is known of idle time and overlap, so that all savings are upper bounds,
of the summed time of the GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.advise.host_copies import with_change_of
from traceana.advise.rule import RULES, Advice, Finding, Found
from traceana.analyze.transfers import transfers
from traceana.settings import (
    LARGE_COPY_BYTES,
    LEAST_SAVING,
    MANY_COPIES,
    SLOW_COPY,
    SMALL_COPY_BYTES,
)
from traceana.timeline.copies import HOST_DIRECTIONS
from traceana.timeline.work import work_ns

if TYPE_CHECKING:
    from traceana.advise.figures import Program
    from traceana.trace import Trace

_PCIE_3_BYTES_PER_S: Final = 15.75e9
"""Peak of sixteen lanes: the fastest host link of the GPUs that nvprof supports, without NVLink,
and the least one of later GPUs in a full slot."""
_EVIDENCE: Final = ("direction", "host_memory", "count", "bytes", "mean_bytes", "time_ns")


def advise_summary(trace: Trace, program: Program) -> Advice:
    """Return the findings on the summary ``trace``."""
    total_ns = work_ns(trace)
    if trace.on_cpu or not total_ns:
        return Advice((), ())
    copies = transfers(trace).frame.filter(
        pl.col("direction").is_in(HOST_DIRECTIONS), pl.col("count") > 0, pl.col("time_ns") > 0
    )
    mean_ns = pl.col("time_ns") / pl.col("count")
    # A copy moves at most what the link's peak moves in its time.
    at_most = pl.lit(None, pl.Float64)
    if "nvprof" in (trace.meta.producer or ""):
        at_most = mean_ns * _PCIE_3_BYTES_PER_S / 1e9
    mean_bytes = pl.coalesce(pl.col("mean_bytes").cast(pl.Float64), at_most)
    small = copies.filter(pl.col("count") >= MANY_COPIES, mean_bytes < SMALL_COPY_BYTES)
    keys = ["direction", "host_memory"]
    others = copies.join(small, on=keys, how="anti", nulls_equal=True)
    peak_share = (pl.col("bytes_per_s") / _PCIE_3_BYTES_PER_S).alias("peak_share")
    slow = others.with_columns(peak_share).filter(
        pl.col("mean_bytes") >= LARGE_COPY_BYTES, pl.col("peak_share") < SLOW_COPY
    )
    rest = others.join(slow, on=keys, how="anti", nulls_equal=True)
    kernel_ns = total_ns - int(copies["time_ns"].sum())
    at_peak = pl.col("time_ns") * (1 - pl.col("bytes_per_s") / _PCIE_3_BYTES_PER_S)
    rules = {rule.id: rule for rule in RULES}
    findings = []
    for rule, rows, saving in (
        ("small_copies", small, pl.col("time_ns").sum()),
        ("slow_copies", slow, at_peak.sum().cast(pl.Int64)),
        # Copies overlap with kernels at most for as long as these take.
        ("exposed_copies", rest, pl.col("time_ns").sum().clip(0, kernel_ns)),
    ):
        saving_ns = rows.select(saving).item() or 0
        if not saving_ns or saving_ns < LEAST_SAVING * total_ns:
            continue
        count, time_ns = int(rows["count"].sum()), int(rows["time_ns"].sum())
        rows = rows.sort("time_ns", descending=True)
        moved = None if rows["bytes"].null_count() else int(rows["bytes"].sum())
        figures = {
            "direction": " and ".join(rows["direction"].unique(maintain_order=True)),
            "mean_bytes": None if moved is None else moved // count,
            "bytes_per_s": None if moved is None else moved * 1e9 / time_ns,
            **{"count": count, "mean_ns": time_ns // count, "time_ns": time_ns},
            "peak_share": None if moved is None else moved * 1e9 / time_ns / _PCIE_3_BYTES_PER_S,
            "link": "PCIe 3.0 x16",
            **{"kernel_ns": kernel_ns, "exposed_ns": None, "large_bytes_per_s": None},
        }
        evidence = rows.select(name for name in _EVIDENCE if name in rows.columns)
        found = Found(saving_ns, figures, evidence, kind="upper bound")
        if rules[rule].variants:
            found = with_change_of(rows, found)
        adapted = rules[rule].adapted(program, found)
        share = saving_ns / total_ns
        findings.append(
            Finding(adapted, saving_ns, share, "GPU time", saving_ns, figures, evidence)
        )
    findings.sort(key=lambda finding: -finding.saving_ns)
    return Advice(tuple(findings), ("a summary has no idle time: record a timeline for the rest",))

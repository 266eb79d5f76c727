"""Convolutions by matrix product where Winograd or FFT fits the shape and computes less."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from traceana.advise.convolving import fast_ways, readable, shape_text
from traceana.advise.model import Change, Found, Rule

if TYPE_CHECKING:
    from traceana.advise.figures import Figures

_PRODUCTS: Final = (
    *("implicit_gemm", "implicit_precomp_gemm", "gemm", "direct"),
    *("algo_0", "algo_1", "algo_3"),
)
_LARGEST: Final = 2**63 - 1
"""Extents that a trace makes up can have counts beyond what a table holds."""
_GAIN: Final = 0.8
"""Another algorithm must take less than this part of the time: estimates are not better."""


def _finds(figures: Figures) -> Found | None:
    # A library that tries algorithms has found the product the fastest.
    if figures.vendor not in (None, "NVIDIA") or figures.tries_algorithms:
        return None
    rows = readable(figures.convolutions).filter(
        pl.col("algorithm").is_in(_PRODUCTS)
        & (pl.col("precision") == "fp32")
        & ~pl.col("tensor_core").fill_null(value=False)
        & (pl.col("groups") == 1)
    )
    bandwidth = None if figures.peaks is None else figures.peaks.bandwidth
    found = [entry for row in rows.to_dicts() if (entry := _better(row, bandwidth))]
    if not found:
        return None
    evidence = pl.DataFrame(found).sort("saving_ns", descending=True)
    saving = int(evidence["saving_ns"].sum())
    if not figures.worth(saving):
        return None
    count, time = int(evidence["count"].sum()), int(evidence["time_ns"].sum())
    best = evidence.row(0, named=True)
    return Found(
        saving,
        {
            "count": count,
            "time_ns": figures.each(time),
            "share": time / figures.work_ns,
            "layer": best["layer"],
            "shape": best["shape"],
            "algorithm": best["alternative"],
            "flops_share": best["alternative_flops"] / best["executed_flops"],
        },
        evidence,
    )


def _better(row: dict[str, Any], bandwidth: float | None) -> dict[str, Any] | None:
    """Return the evidence for the fastest other algorithm, if it is worth it."""
    rate = row["executed_flops"] / row["time_ns"] if row["time_ns"] else 0.0
    if not rate:
        return None
    ways = []
    for way in fast_ways(row):
        if max(way.flops * row["count"], way.workspace or 0) > _LARGEST:
            continue
        computing = way.flops * row["count"] / rate
        moving = 0.0 if bandwidth is None else way.moved_bytes * row["count"] * 1e9 / bandwidth
        ways.append((max(computing, moving), way))
    if not ways:
        return None
    time, way = min(ways, key=lambda pair: pair[0])
    if time >= _GAIN * row["time_ns"]:
        return None
    return {
        **{name: row[name] for name in ("layer", "direction", "algorithm")},
        "shape": shape_text(row),
        **{name: row[name] for name in ("count", "time_ns", "executed_flops")},
        "alternative": way.algorithm,
        "alternative_flops": way.flops * row["count"],
        "workspace_bytes": way.workspace,
        "saving_ns": int(row["time_ns"] - time),
    }


RULE: Final = Rule(
    id="fast_convolution",
    title="a convolution by matrix product where Winograd or FFT fits its shape",
    finds=_finds,
    kind="at most",
    says=(
        "{count} fp32 convolutions of stride 1 are matrix products: {time_ns}, {share} of the "
        "work. For {layer} ({shape}) {algorithm} executes {flops_share} of the FLOPs."
    ),
    estimate=(
        "time of the convolutions less the larger of (FLOPs that the other algorithm executes / "
        "the rate of the present one) and (its operands and transformed tensors / memory "
        "bandwidth); the fastest of Winograd and FFT that cuDNN has for the shape, only where that "
        "is less than 80 % of the time. Transforms reach lower rates than products."
    ),
    doubt=(
        "If the library chose by measuring (cudnn.benchmark, TensorFlow's autotuning), it found "
        "the product faster, or lacked memory for the workspace. Where the trace has no strides a "
        "dilation of 1 is assumed."
    ),
    change=Change(
        pytorch="torch.backends.cudnn.benchmark = True, with fixed input shapes",
        tensorflow="leave TF_CUDNN_USE_AUTOTUNE at 1, and give the workspace memory "
        "(TF_CUDNN_WORKSPACE_LIMIT_IN_MB)",
        jax="leave --xla_gpu_autotune_level at its default, and leave memory for the "
        "workspace (XLA_PYTHON_CLIENT_MEM_FRACTION)",
    ),
)

"""Winograd or FFT where their transforms cost more than the product saves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.advise.convolving import shape_text
from traceana.advise.model import Change, Found, Rule

if TYPE_CHECKING:
    from traceana.advise.figures import Figures

_TRANSFORMING: Final = ("fft", "fft_tiling", "winograd", "winograd_nonfused")


def _finds(figures: Figures) -> Found | None:
    executed, direct = pl.col("executed_flops"), pl.col("flops")
    # What was tried on the way to another choice is of another rule.
    rows = figures.convolutions.filter(
        pl.col("algorithm").is_in(_TRANSFORMING) & (executed > direct) & (pl.col("tried") == 0)
    )
    if rows.is_empty():
        return None
    saving = (pl.col("time_ns") * (1 - direct / executed)).cast(pl.Int64).alias("saving_ns")
    shapes = pl.Series("shape", [shape_text(row) for row in rows.to_dicts()], dtype=pl.String)
    evidence = (
        rows.with_columns(saving, shapes)
        .select(
            *("layer", "direction", "algorithm", "shape", "count", "time_ns"),
            *("flops", "executed_flops", "saving_ns"),
        )
        .sort("saving_ns", descending=True)
    )
    total = int(evidence["saving_ns"].sum())
    if not figures.worth(total):
        return None
    worst = evidence.row(0, named=True)
    return Found(
        total,
        {
            "count": int(evidence["count"].sum()),
            "time_ns": figures.each(int(evidence["time_ns"].sum())),
            "layer": worst["layer"],
            "shape": worst["shape"],
            "algorithm": worst["algorithm"],
            "flops_share": worst["executed_flops"] / worst["flops"],
        },
        evidence,
    )


RULE: Final = Rule(
    id="costly_transforms",
    title="Winograd or FFT for a batch or plane so small that its transforms cost more",
    finds=_finds,
    kind="at most",
    says=(
        "{count} convolutions ({time_ns}) execute more with their transforms than a direct one: "
        "{layer} ({shape}) by {algorithm} {flops_share} of it."
    ),
    estimate=(
        "time of the convolutions x (1 - FLOPs of a direct computation / FLOPs executed): the "
        "product at the rate of what runs now."
    ),
    doubt="Where the library chose by measuring, the products were slower still on this device.",
    change=Change(
        pytorch="a larger batch, or torch.backends.cudnn.benchmark = True so that cuDNN measures",
        tensorflow="a larger batch, or TF_CUDNN_USE_AUTOTUNE=1 so that cuDNN measures",
        jax="a larger batch, or --xla_gpu_autotune_level at its default so that XLA measures",
    ),
)

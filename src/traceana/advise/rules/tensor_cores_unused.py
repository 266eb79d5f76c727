"""fp32 products on a device whose tensor cores could compute them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.advise.model import Change, Found, Rule
from traceana.flops.peaks import peak_for

if TYPE_CHECKING:
    from traceana.advise.figures import Figures

_TF32: Final = (8, 0)
_FP16: Final = (7, 0)


def _finds(figures: Figures) -> Found | None:
    capability, peaks = figures.compute_capability, figures.peaks
    if peaks is None or capability is None or capability < _FP16:
        return None
    precision = "tf32" if capability >= _TF32 else "fp16"
    plain, cores = peak_for(peaks, "fp32", False), peak_for(peaks, precision, True)
    if plain is None or cores is None or cores <= plain:
        return None
    rows = figures.kernels.filter(
        pl.col("category").is_in(["conv", "gemm"])
        & (pl.col("precision") == "fp32")
        & (pl.col("tensor_core") == False)  # noqa: E712
    )
    by_category = rows.group_by("category").agg(pl.col("calls", "time_ns").sum())
    halved = 1.0 if precision == "tf32" else 0.5
    own = pl.col("time_ns")
    evidence = by_category.join(_moving(figures, halved), on="category", how="left").with_columns(
        (own * (plain / cores)).alias("computing_ns"), (own * pl.col("moving")).alias("moving_ns")
    )
    least = pl.max_horizontal("computing_ns", "moving_ns")
    evidence = (
        evidence.with_columns((pl.col("time_ns") - least).clip(0).cast(pl.Int64).alias("saving_ns"))
        .with_columns(pl.col("computing_ns", "moving_ns").cast(pl.Int64))
        .drop("moving")
        .sort("time_ns", descending=True)
    )
    time, total = int(evidence["time_ns"].sum()), int(evidence["saving_ns"].sum())
    if not figures.worth(total):
        return None
    return Found(
        total,
        {
            "calls": int(rows["calls"].sum()),
            "time_ns": figures.each(time),
            "share": time / figures.work_ns,
            "precision": precision.upper(),
            "ratio": cores / plain,
            "device_name": peaks.name,
        },
        evidence,
    )


def _moving(figures: Figures, scale: float) -> pl.DataFrame:
    """Return by category which part of its time its compulsory bytes need, where they are known."""
    bandwidth = None if figures.peaks is None else figures.peaks.bandwidth
    known = figures.roofline.filter(pl.col("bytes").is_not_null() & (pl.col("time_ns") > 0))
    per_byte = pl.lit(None if bandwidth is None else scale * 1e9 / bandwidth, pl.Float64)
    part = pl.col("bytes").sum() * per_byte / pl.col("time_ns").sum()
    return known.group_by("category").agg(part.alias("moving"))


RULE: Final = Rule(
    id="tensor_cores_unused",
    title="fp32 convolutions and products that TF32 or the tensor cores could compute",
    finds=_finds,
    kind="at most",
    says=(
        "{calls} convolutions and products run in plain fp32: {time_ns}, {share} of the work. The "
        "tensor cores' {precision} peak is {ratio} times as high."
    ),
    estimate=(
        "time less the larger of (time x fp32 peak / tensor-core peak: TF32's from compute "
        "capability 8.0 on, FP16's below) and (compulsory bytes, halved for FP16, / bandwidth). "
        "Few kernels come so near to that peak: half of it is much."
    ),
    doubt=(
        "TF32 keeps 10 bits of the mantissa, FP16 as many and a smaller range: check that the "
        "network still converges."
    ),
    change=Change(
        pytorch="torch.set_float32_matmul_precision('high') and torch.backends.cudnn.allow_tf32 = "
        "True; below 8.0 torch.amp.autocast with a GradScaler, channels in multiples of 8",
        tensorflow="tf.config.experimental.enable_tensor_float_32_execution(True), the default; "
        "below 8.0 keras.mixed_precision.set_global_policy('mixed_float16')",
        jax="jax.default_matmul_precision('tensorfloat32'), or bfloat16 (float16 below 8.0) "
        "arrays in the layers",
    ),
)

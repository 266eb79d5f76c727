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
    rows = figures.plain_products
    halved = 1.0 if precision == "tf32" else 0.5
    per_byte = None if peaks.bandwidth is None else halved * 1e9 / peaks.bandwidth
    time = pl.col("time_ns")
    computing, moving = time * (plain / cores), pl.col("bytes") * pl.lit(per_byte, pl.Float64)
    least = pl.max_horizontal(computing, moving)
    evidence = (
        rows.group_by("category")
        .agg(
            pl.col("calls").sum(),
            time.sum(),
            computing.sum().cast(pl.Int64).alias("computing_ns"),
            moving.sum().cast(pl.Int64).alias("moving_ns"),
            time.filter(moving.is_null()).sum().alias("unbounded_ns"),
            (time - least).clip(0).sum().cast(pl.Int64).alias("saving_ns"),
        )
        .sort("time_ns", descending=True)
    )
    total, taken = int(evidence["saving_ns"].sum()), int(evidence["time_ns"].sum())
    if not figures.worth(total):
        return None
    unbounded = int(evidence["unbounded_ns"].sum())
    return Found(
        total,
        {
            "calls": int(evidence["calls"].sum()),
            "time_ns": figures.each(taken),
            "share": taken / figures.work_ns,
            "precision": precision.upper(),
            "ratio": cores / plain,
            "device_name": peaks.name,
            "unbounded_ns": figures.each(unbounded) if unbounded else None,
        },
        evidence,
    )


RULE: Final = Rule(
    id="tensor_cores_unused",
    title="fp32 convolutions and products that TF32 or the tensor cores could compute",
    finds=_finds,
    kind="at most",
    says=(
        "{calls} convolutions and products run in plain fp32: {time_ns}, {share} of the work. The "
        "tensor cores' {precision} peak is {ratio} times as high.[ Of {unbounded_ns} it is not "
        "known how much they move, or how fast the memory is: there nothing else bounds the "
        "saving.]"
    ),
    estimate=(
        "call by call, time less the larger of (time x fp32 peak / tensor-core peak: TF32's from "
        "compute capability 8.0 on, FP16's below) and (compulsory bytes, halved for FP16, / "
        "bandwidth). Few kernels come so near to that peak: half of it is much."
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

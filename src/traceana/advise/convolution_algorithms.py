"""Rules on convolutions: algorithm, layout changes, unused data gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from traceana.advise.rule import Change, Found, rule
from traceana.flops.call import Refusal, UncountableError
from traceana.flops.convolution import Convolution, count
from traceana.flops.executed import Direction, executed
from traceana.settings import FASTER_ALGORITHM

if TYPE_CHECKING:
    from traceana.advise.figures import Figures

_GEMM_ALGORITHMS: Final = (
    *("implicit_gemm", "implicit_precomp_gemm", "gemm", "direct"),
    *("algo_0", "algo_1", "algo_3"),
)

_TRANSFORM_ALGORITHMS: Final = ("fft", "fft_tiling", "winograd", "winograd_nonfused")

_CUDNN_TRANSFORMS: Final[dict[Direction, tuple[str, ...]]] = {
    "fprop": ("winograd", "winograd_nonfused", "fft", "fft_tiling"),
    "dgrad": ("winograd", "winograd_nonfused", "fft", "fft_tiling"),
    "wgrad": ("winograd_nonfused", "fft", "fft_tiling"),
}
"""cuDNN's transform algorithms by direction (cudnnConvolutionFwdAlgo_t and its siblings)."""

_CUDNN_8: Final = (8, 0)
"""First compute capability that needs cuDNN 8."""

_FASTER: Final = {
    **dict.fromkeys(("layer", "direction", "algorithm", "shape"), pl.String),
    **dict.fromkeys(("count", "time_ns", "executed_flops"), pl.Int64),
    "alternative": pl.String,
    **dict.fromkeys(("alternative_flops", "workspace_bytes", "saving_ns"), pl.Int64),
}
"""Columns of the evidence for a faster algorithm; ``workspace_bytes`` may be null."""

_INT64_MAX: Final = 2**63 - 1
"""Limit of FLOP counts; malformed extents can exceed it."""


@rule(
    title="Winograd or FFT convolution",
    kind="estimate",
    sentence="{count} FP32 convolutions of stride 1 by GEMM algorithms: {time_ns}, {share} of "
    "GPU time; {algorithm} executes {flops_share} of the FLOPs of {layer} ({shape})",
    estimate="time of the convolutions less the larger of (FLOPs that the other algorithm "
    "executes / present FLOP/s) and (its operands and transformed tensors / memory bandwidth). "
    "The other algorithm is cuDNN's fastest of Winograd and FFT for the shape, where that is "
    "below 80 % of the time. Not where the trace has an algorithm search, nor, from "
    "compute capability 8.0 on, Winograd or FFT in other convolutions: there the library weighed "
    "them.",
    caveat="If the library chose by measurement before the trace began (cudnn.benchmark, "
    "TensorFlow's autotuning), the GEMM was faster, or memory for the workspace was lacking. "
    "Unknown dilations are taken as 1.",
    change=Change(
        pytorch="torch.backends.cudnn.benchmark = True, with fixed input shapes",
        tensorflow="leave TF_CUDNN_USE_AUTOTUNE at 1, and allow the workspace memory "
        "(TF_CUDNN_WORKSPACE_LIMIT_IN_MB)",
        jax="leave --xla_gpu_autotune_level at its default, and leave memory for the "
        "workspace (XLA_PYTHON_CLIENT_MEM_FRACTION)",
        native="algorithms by measurement (cuDNN's Find or auto-tuning), with memory for their "
        "workspace",
    ),
)
def fast_convolution(figures: Figures) -> Found | None:
    """Convolutions by GEMM algorithms where Winograd or FFT executes fewer FLOPs."""
    if figures.vendor not in (None, "NVIDIA") or figures.tries_algorithms:
        return None
    # cuDNN 8 and later weigh them: with cudnn.benchmark the same kernels run (H100, cuDNN 9.19).
    weighs = figures.compute_capability is not None and figures.compute_capability >= _CUDNN_8
    if weighs and figures.convolutions["algorithm"].is_in(_TRANSFORM_ALGORITHMS).any():
        return None
    rows = figures.convolutions.filter(
        pl.all_horizontal(pl.col("batch", "input", "output", "executed_flops").is_not_null())
        & pl.col("direction").is_in(list(_CUDNN_TRANSFORMS))
        & ~pl.col("transposed")
        & pl.col("algorithm").is_in(_GEMM_ALGORITHMS)
        & (pl.col("precision") == "fp32")
        & ~pl.col("tensor_core").fill_null(value=False)
        & (pl.col("groups") == 1)
        # cuDNN has Winograd and FFT for images, not for volumes.
        & (pl.col("window").list.len() == 2)
    )
    bandwidth = None if figures.peaks is None else figures.peaks.bandwidth
    found = [entry for row in rows.to_dicts() if (entry := _faster(row, bandwidth))]
    if not found:
        return None
    evidence = pl.DataFrame(found, schema=_FASTER).sort("saving_ns", descending=True)
    saving = int(evidence["saving_ns"].sum())
    if not figures.worth(saving):
        return None
    count, time = int(evidence["count"].sum()), int(evidence["time_ns"].sum())
    best = evidence.row(0, named=True)
    return Found(
        saving,
        {
            "count": figures.mean(count),
            "time_ns": figures.each(time),
            "share": time / figures.work_ns,
            "layer": best["layer"],
            "shape": best["shape"],
            "algorithm": best["alternative"],
            "flops_share": best["alternative_flops"] / best["executed_flops"],
        },
        evidence,
    )


@rule(
    title="costly Winograd or FFT transforms",
    kind="estimate",
    sentence="{count} convolutions ({time_ns}) with more FLOPs than a direct one: "
    "{algorithm} executes {flops_share} of the direct FLOPs in {layer} ({shape})",
    estimate="time of the convolutions x (1 - direct FLOPs / executed FLOPs), at the present "
    "FLOP/s.",
    caveat="If the library chose by measurement before the trace began, the GEMM algorithms were "
    "slower here.",
    change=Change(
        pytorch="a larger batch, or torch.backends.cudnn.benchmark = True: cuDNN measures",
        tensorflow="a larger batch, or TF_CUDNN_USE_AUTOTUNE=1: cuDNN measures",
        jax="a larger batch, or --xla_gpu_autotune_level at its default: XLA measures",
        native="a larger batch, or algorithms by measurement (cuDNN's Find or auto-tuning)",
    ),
)
def costly_transforms(figures: Figures) -> Found | None:
    """Winograd or FFT where the transforms cost more FLOPs than the GEMM saves."""
    if figures.tries_algorithms:
        return None
    executed, direct = pl.col("executed_flops"), pl.col("flops")
    rows = figures.convolutions.filter(
        pl.col("algorithm").is_in(_TRANSFORM_ALGORITHMS) & (executed > direct)
    )
    if rows.is_empty():
        return None
    saving = (pl.col("time_ns") * (1 - direct / executed)).cast(pl.Int64).alias("saving_ns")
    shapes = pl.Series("shape", [_shape_text(row) for row in rows.to_dicts()], dtype=pl.String)
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
            "count": figures.mean(int(evidence["count"].sum())),
            "time_ns": figures.each(int(evidence["time_ns"].sum())),
            "layer": worst["layer"],
            "shape": worst["shape"],
            "algorithm": worst["algorithm"],
            "flops_share": worst["executed_flops"] / worst["flops"],
        },
        evidence,
    )


@rule(
    title="layout changes",
    kind="estimate",
    sentence="{count} convolutions with layout changes (NCHW, NHWC): {time_ns}, {share} of the "
    "time of these convolutions",
    estimate="all the time of the layout changes that belong to convolutions on tensor cores; "
    "others, as in FP32, are slower in NHWC.",
    caveat="An operator without a kernel for the other layout changes it back; then the cost only "
    "moves. Layout changes of weights in each call are cheap.",
    change=Change(
        pytorch="keep model and inputs in NHWC, the layout of the tensor cores: "
        ".to(memory_format=torch.channels_last)",
        tensorflow="data_format='channels_last', the layout of the tensor cores; leave Grappler's "
        "layout optimizer on",
        jax="NHWC dimension numbers in lax.conv_general_dilated, the layout of the tensor cores; "
        "XLA changes layouts once where no custom call is between",
        native="tensors in NHWC from the start, the layout of the tensor cores",
    ),
    simulation="`no layout`, where all layout changes of the trace belong to these convolutions.",
)
def layout_changes(figures: Figures) -> Found | None:
    """Layout changes around convolutions on tensor cores."""
    plain = pl.col("precision").is_in(["fp32", "fp64", "c64", "c128"]).fill_null(value=False)
    on_tensor_cores = pl.col("tensor_core").fill_null(~plain)
    rows = figures.convolutions.filter((pl.col("layout_ns") > 0) & on_tensor_cores)
    total = int(rows["layout_ns"].sum())
    if not figures.worth(total):
        return None
    evidence = rows.select(
        *("layer", "operator", "direction", "algorithm", "precision", "count"),
        *("time_ns", "layout_ns"),
    ).sort("layout_ns", descending=True)
    return Found(
        total,
        {
            "count": figures.mean(int(rows["count"].sum())),
            "time_ns": figures.each(total),
            "share": total / (total + int(rows["time_ns"].sum())),
        },
        evidence,
        "no layout" if total == figures.class_ns("layout") else None,
    )


@rule(
    title="unused data gradient",
    kind="estimate",
    sentence="dgrad of the first convolution, {layer}: {time_ns}, {share} of GPU time",
    estimate="all the time of that data gradient, its layout changes included.",
    caveat="Adversarial examples, GANs, style transfer and reentrant checkpointing need this "
    "gradient.",
    change=Change(
        pytorch="do not set requires_grad on the input; torch.utils.checkpoint with "
        "use_reentrant=False",
        tensorflow="take gradients of the trainable variables only, and do not watch the input",
        jax="differentiate by the parameters only (argnums), not by the batch",
        native="no dgrad of the first convolution",
    ),
    simulation="`no-input-gradient`.",
)
def first_data_gradient(figures: Figures) -> Found | None:
    """The gradient of the network's input, which is not used.

    One that is not used is computed beside the weight's. A layer with more gradients of its input
    than of its weight computes them for themselves: for a gradient penalty, or for an image that is
    optimized through a frozen network.
    """
    table = figures.convolutions
    rows = table.filter("unused").join(_for_themselves(table), on="layer", how="anti")
    total = int(rows["time_ns"].sum()) + int(rows["layout_ns"].sum())
    if not figures.worth(total):
        return None
    shapes = pl.Series("shape", [_shape_text(row) for row in rows.to_dicts()], dtype=pl.String)
    evidence = rows.with_columns(shapes).select(
        *("layer", "operator", "algorithm", "shape", "count", "time_ns", "layout_ns", "flops")
    )
    layer = evidence["layer"].item(0)
    return Found(
        total,
        {"layer": layer, "time_ns": figures.each(total), "share": total / figures.work_ns},
        evidence,
        "no-input-gradient",
    )


def _for_themselves(table: pl.DataFrame) -> pl.DataFrame:
    """Return ``layer`` of the layers with more gradients of the input than of the weight."""
    count = pl.col("count") - pl.col("tried")
    # Work of an unknown direction may be of both: a CPU computes them in one call.
    return (
        table.group_by("layer")
        .agg(
            count.filter(pl.col("direction") == direction).sum().alias(direction)
            for direction in ("dgrad", "wgrad")
        )
        .filter(pl.col("dgrad") > pl.col("wgrad"))
        .select("layer")
    )


def _faster(row: Mapping[str, Any], bandwidth: float | None) -> dict[str, Any] | None:
    """Return the evidence for the fastest other algorithm, None if none is fast enough."""
    rate = row["executed_flops"] / row["time_ns"] if row["time_ns"] else 0.0
    if not rate:
        return None
    estimates = []
    for other in _transforms(row):
        if max(other.flops * row["count"], other.workspace or 0) > _INT64_MAX:
            continue
        computing = other.flops * row["count"] / rate
        moving = 0.0 if bandwidth is None else other.moved_bytes * row["count"] * 1e9 / bandwidth
        estimates.append((max(computing, moving), other))
    if not estimates:
        return None
    time, best = min(estimates, key=lambda pair: pair[0])
    if time >= FASTER_ALGORITHM * row["time_ns"]:
        return None
    return {
        **{name: row[name] for name in ("layer", "direction", "algorithm")},
        "shape": _shape_text(row),
        **{name: row[name] for name in ("count", "time_ns", "executed_flops")},
        "alternative": best.algorithm,
        "alternative_flops": best.flops * row["count"],
        "workspace_bytes": best.workspace,
        "saving_ns": int(row["time_ns"] - time),
    }


class _Transform(msgspec.Struct, frozen=True):
    """The cost of one convolution by a transform algorithm.

    ``moved_bytes`` counts the operands once, and the transformed tensors written and read.
    ``workspace`` is the size of the transformed tensors in bytes, None without a formula.
    """

    algorithm: str
    flops: int
    moved_bytes: int
    workspace: int | None


def _transforms(row: Mapping[str, Any]) -> Iterator[_Transform]:
    """Yield the costs of the Winograd and FFT algorithms that support the convolution."""
    conv = _convolution(row)
    if conv is None:
        return
    size, direction = row["element_bytes"] or 4, row["direction"]
    operands = count(conv, "forward", size).bytes or 0
    for algorithm in _CUDNN_TRANSFORMS[direction]:
        result = executed(conv, algorithm, direction, size=size)
        if not isinstance(result, Refusal):
            moved = operands + 2 * (result.workspace or 0)
            yield _Transform(algorithm, result.flops, moved, result.workspace)


def _convolution(row: Mapping[str, Any]) -> Convolution | None:
    window, stride = tuple(row["window"]), row["stride"]
    extents = list(zip(row["input"], row["output"], window, strict=True))
    if stride is None:
        # A stride of 2 leaves at most (H + R - 2) / 2 + 1 of H, whatever the padding.
        if not all(2 * (out - 1) > size + taps - 2 for size, out, taps in extents):
            return None
        stride = (1,) * len(window)
    try:
        return Convolution(
            batch=row["batch"],
            in_channels=row["in_channels"],
            out_channels=row["out_channels"],
            window=window,
            output=tuple(row["output"]),
            input=tuple(row["input"]),
            groups=row["groups"],
            stride=tuple(stride),
            dilation=tuple(row["dilation"] or (1,) * len(window)),
        )
    except UncountableError:
        return None


def _shape_text(row: Mapping[str, Any]) -> str:
    """Return a convolution's extents: ``64x3x224x224, 64 filters of 7x7``."""
    if row["batch"] is None:
        return ""
    extents = (row["batch"], row["in_channels"], *(row["input"] or ()))
    window = "x".join(str(taps) for taps in row["window"])
    return f"{'x'.join(map(str, extents))}, {row['out_channels']} filters of {window}"

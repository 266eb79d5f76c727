"""Rules on the utilization of SMs, tensor cores and memory bandwidth, and on zeroed memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.advise.rule import Change, Found, rule
from traceana.flops.peaks import peak_for
from traceana.settings import (
    AT_PEAK,
    AT_PEAK_SHARE,
    LONG_KERNEL_NS,
    TENSOR_CORE_CONVOLUTIONS,
    TENSOR_CORE_GEMMS,
    UNUSED_BLOCKS,
)
from traceana.trace.taxonomy import SEARCH

if TYPE_CHECKING:
    from traceana.advise.figures import Figures


_TF32: Final = (8, 0)
_FP16: Final = (7, 0)
"""First compute capability with tensor cores for the precision."""
_OF_CONVOLUTIONS, _OF_GEMMS = sum(TENSOR_CORE_CONVOLUTIONS) / 2, sum(TENSOR_CORE_GEMMS) / 2
"""Time on tensor cores over what the peaks alone allow."""
_WITHOUT_TF32: Final = "GPU without TF32"
_IN_GRAPH: Final = "CUDA graph"

_OF_BLOCKS: Final = ("calls", "time_ns", "share", "multiprocessors", "unused_share", "idle_ns")
_OF_BATCHES: Final = ("image_ns", "batch", "larger_image_ns", "larger_batch")
"""The figures of :func:`small_batch` by source; those of the other source are null."""


@rule(
    title="tensor cores unused",
    kind="estimate",
    sentence="{calls} FP32 convolutions and GEMMs: {time_ns}, {share} of GPU time; the "
    "tensor cores' {precision} peak is {ratio} times the FP32 peak[; memory bound unknown for "
    "{unbounded_ns} (bytes or bandwidth)]",
    estimate="call by call, time less the larger of (time x FP32 peak / tensor-core peak x 2.5 of "
    "convolutions and 1.8 of GEMMs, as on an H100) and (compulsory bytes, halved for 16 bits, / "
    "memory bandwidth).",
    caveat="Operands have 10 bits of mantissa instead of 23: check convergence.",
    change=Change(
        pytorch="torch.set_float32_matmul_precision('high') and torch.backends.cudnn.allow_tf32 = "
        "True",
        tensorflow="tf.config.experimental.enable_tensor_float_32_execution(True), the default",
        jax="jax.default_matmul_precision('tensorfloat32'), or bfloat16 arrays in the layers",
        native="TF32 by the math mode of cuBLAS and the math type of cuDNN's descriptors",
    ),
    variants={
        _WITHOUT_TF32: Change(
            pytorch="torch.amp.autocast (float16) with a GradScaler, channels in multiples of 8",
            tensorflow="keras.mixed_precision.set_global_policy('mixed_float16')",
            jax="float16 arrays in the layers, with loss scaling",
            native="FP16 operands, with dimensions in multiples of 8",
        )
    },
    simulation="`tensor-cores`: at less than their peak, as docs/whatif.md describes.",
)
def tensor_cores_unused(figures: Figures) -> Found | None:
    """FP32 convolutions and GEMMs on a device with tensor cores."""
    capability, peaks = figures.compute_capability, figures.peaks
    if peaks is None or capability is None or capability < _FP16:
        return None
    precision = "tf32" if capability >= _TF32 else "fp16"
    plain, cores = peak_for(peaks, "fp32", False), peak_for(peaks, precision, True)
    if plain is None or cores is None or cores <= plain:
        return None
    rows = figures.fp32_products
    halved = 1.0 if precision == "tf32" else 0.5
    per_byte = None if peaks.bandwidth is None else halved * 1e9 / peaks.bandwidth
    time = pl.col("time_ns")
    of_peak = pl.when(pl.col("category") == "conv").then(_OF_CONVOLUTIONS).otherwise(_OF_GEMMS)
    computing = time * (plain / cores) * of_peak
    moving = pl.col("bytes") * pl.lit(per_byte, pl.Float64)
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
            "calls": figures.mean(int(evidence["calls"].sum())),
            "time_ns": figures.each(taken),
            "share": taken / figures.work_ns,
            "precision": precision.upper(),
            "ratio": cores / plain,
            "device_name": peaks.name,
            "unbounded_ns": figures.each(unbounded) if unbounded else None,
        },
        evidence,
        "tensor-cores",
        None if precision == "tf32" else _WITHOUT_TF32,
        predicted_by=() if precision == "tf32" else ("amp",),
    )


@rule(
    title="small batch",
    kind="time per example",
    sentence="[{calls} kernels ({time_ns}, {share} of GPU time) have fewer blocks than the "
    "device has SMs ({multiprocessors}): {unused_share} of SM time unused. ]"
    "[GPU idle {idle_ns} during launches, as many at a larger batch. ]"
    "[time per example {image_ns} at batch {batch}, {larger_image_ns} at batch "
    "{larger_batch} (sweep, unprofiled)]",
    estimate="with a sweep over batch: steps x (1 - lowest time per example of a larger batch / "
    "time per example of this batch), if that is 5 % or more and the interquartile ranges of "
    "the step times do not overlap; else no finding. Without a sweep: time x (1 - blocks / SMs) "
    "of kernels with fewer blocks than SMs, x the part of kernel time without concurrent "
    "kernels; where the step is launch bound, also the estimate of the rule launch_bound, since a "
    "larger batch has as many launches. Kernels below 5 µs on average, and GEMMs in a row (rule "
    "batchable_gemms), are left out.",
    caveat="A larger batch lowers the time per example, not the step time. To measure it: "
    "traceana record --sweep batch=…, then advise on the run with this batch.",
    change=Change(
        pytorch="a larger batch (torch.amp saves memory for it); torch.compile to fuse small "
        "kernels; several streams or processes (MPS) where the batch is fixed",
        tensorflow="a larger batch; jit_compile=True to fuse small kernels",
        jax="a larger batch, or jax.vmap over more examples; the whole step under jax.jit",
        native="more work per launch: larger grids; several streams or processes (MPS)",
        inference="a larger batch; torch.compile to fuse small kernels; several requests together",
    ),
)
def small_batch(figures: Figures) -> Found | None:
    """A batch too small for the device, by a sweep's time per example or by blocks."""
    measured = figures.batches
    few = _few_blocks(figures)
    if measured is None or not measured.comparable:
        return few
    # The measured step times take precedence over the kernels' blocks.
    row = measured.best
    if row is None:
        return None
    best = measured.frame.row(row, named=True)
    (own,) = measured.frame.filter(pl.col("batch") == measured.own).iter_rows(named=True)
    total = int(figures.window_ns * (1 - best["image_ns"] / own["image_ns"]))
    return Found(
        total,
        {
            **(dict.fromkeys(_OF_BLOCKS) if few is None else few.figures),
            "image_ns": own["image_ns"],
            "batch": own["batch"],
            "larger_image_ns": best["image_ns"],
            "larger_batch": best["batch"],
        },
        measured.frame,
    )


def _few_blocks(figures: Figures) -> Found | None:
    """Return the finding on kernels with fewer blocks than the device has SMs."""
    if figures.on_cpu:
        return None
    # Collectives use few blocks by design.
    rows = _without_rows_of_gemms(figures).filter(
        (pl.col("unused_ns") > 0)
        & ~pl.col("category").is_in(["collective", SEARCH])
        & (pl.col("short_ns") >= LONG_KERNEL_NS * pl.col("short_calls"))
    )
    if rows.is_empty():
        return None
    unused = int(rows["unused_ns"].sum())
    # Concurrent kernels use SMs that another kernel leaves unused.
    together = min(figures.busy_ns / figures.work_ns, 1.0) if figures.work_ns else 0.0
    total = int(unused * together)
    if not figures.worth(total) or total < UNUSED_BLOCKS * figures.busy_ns:
        return None
    short = int(rows["short_ns"].sum())
    # Rules are listed in the order in which their modules are imported.
    from traceana.advise.gpu_idle import launch_bound

    launching = launch_bound(figures)
    return Found(
        total + (0 if launching is None else launching.saving_ns),
        {
            "calls": figures.mean(int(rows["short_calls"].sum())),
            "time_ns": figures.each(short),
            "share": short / figures.work_ns,
            "multiprocessors": int(rows["multiprocessors"].to_numpy().max()),
            "unused_share": unused / short,
            "idle_ns": None if launching is None else launching.figures["idle_ns"],
            **dict.fromkeys(_OF_BATCHES),
        },
        rows.select(
            *("name", "category", "calls", "time_ns", "blocks", "multiprocessors"),
            *("short_calls", "short_ns", "unused_ns"),
        ),
        kind=None if launching is None else launching.kind,
    )


def _without_rows_of_gemms(figures: Figures) -> pl.DataFrame:
    """Return the occupancy without GEMMs in a row, which the rule batchable_gemms reports."""
    unused = (pl.col("in_runs_ns") * (1 - pl.col("blocks") / pl.col("multiprocessors"))).cast(
        pl.Int64
    )
    in_a_row = (
        figures.products.filter((pl.col("in_runs") > 0) & (unused > 0))
        .group_by("name")
        .agg(
            pl.col("in_runs").sum().alias("row_calls"),
            pl.col("in_runs_ns").sum().alias("row_ns"),
            unused.sum().alias("row_unused_ns"),
        )
    )
    left = {"short_calls": "row_calls", "short_ns": "row_ns", "unused_ns": "row_unused_ns"}
    return figures.occupancy.join(
        in_a_row, on="name", how="left", maintain_order="left"
    ).with_columns((pl.col(of) - pl.col(row).fill_null(0)).clip(0) for of, row in left.items())


_FROM_CACHE: Final = "above 100 %: operands can stay in the L2 cache"


@rule(
    title="memory-bound kernels at peak",
    kind="no saving",
    sentence="{time_ns} ({share} of GPU time, mostly {category}) is memory-bound at "
    "{of_attainable} of the memory bandwidth[ ({reason})]",
    estimate="no saving: compulsory bytes / time are within 30 % of the memory bandwidth.",
    caveat="Only fewer bytes help: fusion, a smaller data type, or recomputing less.",
    change=Change(
        pytorch="do not tune these kernels; torch.compile fuses them, torch.amp halves their bytes",
        tensorflow="do not tune these kernels; jit_compile=True fuses them, mixed precision halves "
        "their bytes",
        jax="do not tune these kernels; jax.jit fuses them, bfloat16 halves their bytes",
        native="fuse kernels over the same arrays; smaller data types",
    ),
)
def memory_bound_at_peak(figures: Figures) -> Found | None:
    """Memory-bound kernels near the peak of the memory bandwidth."""
    if figures.on_cpu or figures.peaks is None:
        return None
    rows = figures.roofline.filter(
        (pl.col("bound") == "memory") & (pl.col("of_attainable") >= AT_PEAK)
    )
    time = int(rows["time_ns"].sum())
    if time < AT_PEAK_SHARE * figures.work_ns:
        return None
    reached = rows.select((pl.col("of_attainable") * pl.col("time_ns")).sum()).item() / time
    first = rows.row(0, named=True)
    return Found(
        0,
        {
            "time_ns": figures.each(time),
            "share": time / figures.work_ns,
            "of_attainable": reached,
            "category": first["category"],
            "reason": _FROM_CACHE if reached > 1 else None,
        },
        rows.select(
            *(
                "category",
                "part",
                "calls",
                "time_ns",
                "bytes",
                "arithmetic_intensity",
                "of_attainable",
            )
        ),
        predicted_by=("compile", *(() if figures.fp32_products.is_empty() else ("amp",))),
    )


@rule(
    title="memsets and fills",
    kind="estimate",
    sentence="{calls} memsets and fill kernels[, and {added} that add gradients to zeros][, and "
    "{possibly_added} that may add gradients to zeros]: {time_ns}, {share} of GPU time",
    estimate="all the time of the memsets, of elementwise kernels that fill, and of those that add "
    "gradients to zeros. An upper bound in a CUDA graph, which does not say what its additions are "
    "of.",
    caveat="Padding, masks, and buffers that are added to need their zeros.",
    change=Change(
        pytorch="optimizer.zero_grad(set_to_none=True), the default since PyTorch 2.0; torch.empty "
        "for what is overwritten",
        tensorflow="tf.function(jit_compile=True): XLA fuses fills into their consumers",
        jax="the whole step under jax.jit: XLA fuses fills into their consumers",
        native="no cudaMemset of memory that the next kernel overwrites",
    ),
    variants={
        _IN_GRAPH: Change(
            pytorch="optimizer.zero_grad(set_to_none=True) before the capture of the CUDA graph: "
            "its backward pass then writes the gradients",
            tensorflow="tf.function(jit_compile=True): XLA fuses fills into their consumers",
            jax="the whole step under jax.jit: XLA fuses fills into their consumers",
            native="no cudaMemset of memory that the next kernel overwrites",
        )
    },
    simulation="`no memset`, where no kernel fills.",
)
def zeroing(figures: Figures) -> Found | None:
    """Memory that is set to one value, and gradients that are added to their zeros."""
    # A recording without kernels is not of a program that they could delay.
    if figures.on_cpu or figures.kernels.is_empty():
        return None
    rows = figures.zeroing
    total = int(rows["time_ns"].sum())
    if not figures.worth(total):
        return None
    from traceana.analyze.zeroing import ADDITION, FILL, MEMSET, POSSIBLE_ADDITION

    calls = dict(rows.group_by("work").agg(pl.col("calls").sum()).iter_rows())
    in_graph = POSSIBLE_ADDITION in calls
    return Found(
        total,
        {
            "calls": figures.mean(calls.get(MEMSET, 0) + calls.get(FILL, 0)),
            "added": figures.mean(calls[ADDITION]) if ADDITION in calls else None,
            "possibly_added": figures.mean(calls[POSSIBLE_ADDITION]) if in_graph else None,
            "time_ns": figures.each(total),
            "share": total / figures.work_ns,
        },
        rows,
        "no memset" if [*calls] == [MEMSET] else None,
        variant=_IN_GRAPH if in_graph else None,
        kind="upper bound" if in_graph else None,
    )

"""Rules on fusion: bias and activation, elementwise chains, casts, attention, GEMMs in a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.advise.rule import Change, Found, rule
from traceana.enrich.ranges import ROLE_OF_TEXT
from traceana.settings import LONG_FOR_BANDWIDTH_NS, SLOW_MEMORY

if TYPE_CHECKING:
    from traceana.advise.figures import Figures

_DISPATCH: Final = ("host", "operator", "launch_latency")
"""Causes of idle time in which the host works."""
_MATH_BACKEND: Final = "math backend"
_FUSED_SAVES: Final = 0.25
"""Of the time of an optimizer's kernels: fused they take half of it to all, as `fused-optimizer`
of ``whatif`` assumes."""


@rule(
    title="unfused bias and activation",
    kind="estimate",
    sentence="bias and activation kernels take {time_ns}[ of the {direction} pass], {share} of GPU "
    "time",
    estimate="all the time of these kernels in the forward pass; of unknown passes where none is "
    "known to be of the forward pass. Fused into the epilogue of the "
    "convolution or GEMM (cuDNN's ConvBiasAct, cuBLASLt) they cause no memory traffic.",
    caveat="An activation after a normalization or an addition is fused with that by a compiler; "
    "one pass over the tensor remains.",
    change=Change(
        pytorch="torch.compile(model); in inference also fold batch normalization "
        "(torch.nn.utils.fusion)",
        tensorflow="tf.function(jit_compile=True); Grappler's remapper fuses Conv2D + BiasAdd + "
        "ReLU in graphs",
        jax="the whole step under jax.jit, so that XLA can fuse across layers",
        native="bias and activation in the epilogue of the GEMM or convolution (cuBLASLt, cuDNN)",
    ),
    simulation="`fused-activation`; `no bias + no activation` where no pass is known of any of "
    "these kernels.",
)
def unfused_bias_activation(figures: Figures) -> Found | None:
    """Bias and activation kernels after a convolution or GEMM."""
    if figures.on_cpu or not figures.has_products:
        return None
    both = (pl.col("bias_ns") + pl.col("activation_ns")).alias("saving_ns")
    rows = figures.passes.filter(both > 0)
    of_forward = rows.filter(pl.col("direction") == "forward")
    rows = (
        (rows.filter(pl.col("direction").is_null()) if of_forward.is_empty() else of_forward)
        .select(
            *("layer", "type", "calls", "time_ns", "bias_ns", "activation_ns"), both, "direction"
        )
        .sort("saving_ns", descending=True)
    )
    total = int(rows["saving_ns"].sum())
    if not figures.worth(total):
        return None
    return Found(
        total,
        {
            "time_ns": figures.each(total),
            "direction": None if of_forward.is_empty() else "forward",
            "share": total / figures.work_ns,
        },
        rows.drop("direction"),
        _without(figures, rows),
        predicted_by=(
            ("compile", "folded-norm")
            if figures.program.inference and figures.class_ns("normalization")
            else ("compile",)
        ),
    )


def _without(figures: Figures, rows: pl.DataFrame) -> str | None:
    """Return the scenario in which exactly the kernels of ``rows`` do not run, if one does."""
    if (rows["direction"] == "forward").all():
        return "fused-activation"
    there = [one for one in ("bias", "activation") if figures.class_ns(one)]
    whole = sum(figures.class_ns(one) for one in there)
    alone = rows["direction"].is_null().all() and int(rows["saving_ns"].sum()) == whole
    return " + ".join(f"no {one}" for one in there) if alone else None


@rule(
    title="slow bias and activation kernels",
    kind="estimate",
    sentence="{calls} bias and activation kernels take {time_ns}; at full memory bandwidth "
    "{share} of that",
    estimate="time x (1 - compulsory bytes / (memory bandwidth x time)), of classes below half of "
    "the bandwidth with kernels of 10 µs and more.",
    caveat="Non-contiguous tensors move more than the compulsory bytes.",
    change=Change(
        pytorch="make the tensors contiguous in the layout of the kernel, or torch.compile",
        tensorflow="tf.function(jit_compile=True): XLA's kernels replace Eigen's",
        jax="the operation under jax.jit together with the layer before it",
        native="coalesced, vectorized accesses along the contiguous dimension",
    ),
    simulation="each of these classes in the part of its time that full bandwidth needs: "
    "`activation/relu x 0.31`.",
)
def slow_bias_activation(figures: Figures) -> Found | None:
    """Bias and activation kernels far below the memory bandwidth."""
    if figures.on_cpu or figures.peaks is None:
        return None
    reached = pl.col("of_attainable")
    rows = figures.roofline.filter(
        pl.col("category").is_in(["bias", "activation"])
        & (pl.col("bound") == "memory")
        & (reached < SLOW_MEMORY)
        & (pl.col("time_ns") >= LONG_FOR_BANDWIDTH_NS * pl.col("calls"))
    ).with_columns((pl.col("time_ns") * (1 - reached)).cast(pl.Int64).alias("saving_ns"))
    total = int(rows["saving_ns"].sum())
    if not figures.worth(total):
        return None
    evidence = rows.select(
        *("category", "part", "calls", "time_ns", "bytes", "of_attainable", "saving_ns")
    )
    time = int(rows["time_ns"].sum())
    return Found(
        total,
        {
            "time_ns": figures.each(time),
            "share": 1 - total / time,
            "calls": figures.mean(int(rows["calls"].sum())),
        },
        evidence,
        _at_full_bandwidth(figures, rows),
        predicted_by=("compile",),
    )


def _at_full_bandwidth(figures: Figures, rows: pl.DataFrame) -> str | None:
    """Return the scenario in which the classes ``rows`` take as long as their bytes need."""
    changes = []
    for category, part, reached in rows.select("category", "part", "of_attainable").iter_rows():
        of_category = figures.breakdown.filter(pl.col("category").cast(pl.String) == category)
        if part is None and of_category.height > 1:
            return None
        changes.append(f"{category}{f'/{part}' if part else ''} x {reached:.4g}")
    return " + ".join(changes)


@rule(
    title="unfused elementwise chains",
    kind="upper bound",
    sentence="{calls} elementwise kernels follow each other in {count} chains: {time_ns}, {share} "
    "of GPU time; most in {operator}",
    estimate="the time of each chain less its longest kernel: fused, the chain reads and writes "
    "once. A chain is two kernels or more in a row on one stream, on tensors of one size.",
    caveat="Kernels in a row may compute unrelated tensors; a result that others read is still "
    "written.",
    change=Change(
        pytorch="torch.compile(model): Inductor fuses the chain into one kernel",
        tensorflow="tf.function(jit_compile=True): XLA fuses the chain into one kernel",
        jax="the whole function under jax.jit: XLA fuses the chain into one kernel",
        native="one kernel that computes the chain on each element",
    ),
)
def unfused_elementwise(figures: Figures) -> Found | None:
    """Elementwise kernels in a row, which a compiler fuses into one."""
    if figures.on_cpu:
        return None
    chains = figures.elementwise_chains
    total = int(chains["saving_ns"].sum())
    if not figures.worth(total):
        return None
    time = int(chains["time_ns"].sum())
    return Found(
        total,
        {
            "calls": figures.mean(int(chains["calls"].sum())),
            "count": figures.mean(int(chains["count"].sum())),
            "time_ns": figures.each(time),
            "share": time / figures.work_ns,
            "operator": chains["operator"].item(0),
        },
        chains,
        predicted_by=("compile",),
    )


@rule(
    title="casts between FP32 and 16 bits",
    kind="estimate",
    sentence="{calls} kernels cast between FP32 and 16 bits: {time_ns}, {share} of GPU time; most "
    "{cast}",
    estimate="all the time of these kernels.",
    caveat="What needs FP32 (losses, sums, normalization) is still cast; weights in 16 bits need "
    "a copy in FP32 in the optimizer.",
    change=Change(
        pytorch="weights in BF16 (model.to(torch.bfloat16)), which autocast need not cast in each "
        "step; one torch.autocast region around the whole forward pass, whose cache casts a "
        "weight once; torch.compile fuses casts of activations",
        tensorflow="weights in bfloat16 (keras.mixed_precision casts variables in each step); "
        "jit_compile=True fuses casts of activations",
        jax="parameters in bfloat16 inside the step; jax.jit fuses casts of activations",
        native="arrays in 16 bits from kernel to kernel, cast once",
    ),
)
def casts(figures: Figures) -> Found | None:
    """Casts between FP32 and 16 bits, as under autocast."""
    if figures.on_cpu:
        return None
    rows = figures.casts
    total = int(rows["time_ns"].sum())
    if not figures.worth(total):
        return None
    by_cast = rows.group_by("cast").agg(pl.col("time_ns").sum()).sort("time_ns", "cast")
    return Found(
        total,
        {
            "calls": figures.mean(int(rows["calls"].sum())),
            "time_ns": figures.each(total),
            "share": total / figures.work_ns,
            "cast": by_cast["cast"].item(-1),
        },
        rows,
    )


@rule(
    title="optimizer not fused",
    kind="estimate",
    sentence="{calls} kernels of the optimizer take {time_ns}[; GPU idle {idle_ns} while the host "
    "runs it]",
    estimate="a quarter of the kernels' time, and all the idle time in which the host is in the "
    "optimizer. An upper bound where most of it is idle time and the profiler's cost is not known.",
    caveat="Parameters of one device and type are updated together; optimizers without a fused "
    "version have foreach=True.",
    change=Change(
        pytorch="fused=True of torch.optim.SGD, Adam and AdamW; foreach=True of others",
        tensorflow="jit_compile=True of the Keras optimizer",
        jax="the update in the same jax.jit as the gradients: XLA fuses it",
        native="one kernel that updates all parameters",
    ),
    simulation="`fused-optimizer`, where the profiler's cost is known or most of the saving is of "
    "kernels.",
)
def unfused_optimizer(figures: Figures) -> Found | None:
    """An optimizer of several kernels for each parameter, or for each group of them."""
    if figures.on_cpu:
        return None
    rows = figures.unfused_optimizer
    if rows.is_empty():
        return None
    time = int(rows["time_ns"].sum())
    of_kernels, idle = round(_FUSED_SAVES * time), 0
    if figures.worth(of_kernels + figures.idle_ns(*_DISPATCH)):
        gaps = figures.gaps(_DISPATCH, "range")
        in_optimizer = pl.col("range").cast(pl.String).str.contains(ROLE_OF_TEXT["optimizer"])
        idle = int(gaps.filter(in_optimizer)["time_ns"].sum())
    if not figures.worth(of_kernels + idle):
        return None
    # The host's part is longer than without the profiler.
    of_recording = idle > of_kernels and not figures.profiler_known
    return Found(
        of_kernels + idle,
        {
            "calls": figures.mean(int(rows["calls"].sum())),
            "time_ns": figures.each(time),
            "idle_ns": figures.each(idle) if idle else None,
        },
        rows,
        None if of_recording else "fused-optimizer",
        kind="upper bound" if of_recording else None,
    )


@rule(
    title="unfused attention",
    kind="estimate",
    sentence="[softmax kernels take {time_ns}, {share} of GPU time, beside {products_ns} of "
    "batched GEMMs][the math backend of attention takes {kernel_ns}, {share} of GPU time, in "
    "{calls} kernels: GEMMs, softmax, scaling and masks are not fused]",
    estimate="all the time of the softmax kernels, without log-softmax: fused attention computes "
    "it on chip. The memory traffic of the scores, which the GEMMs also save, is not counted. Of "
    "PyTorch's math backend an upper bound: all its work, which a fused kernel replaces.",
    caveat="Softmax outside of attention, and masks that no fused kernel supports, stay.",
    change=Change(
        pytorch="torch.nn.functional.scaled_dot_product_attention (attn_implementation='sdpa' or "
        "'flash_attention_2' of transformers)",
        tensorflow="keras.layers.MultiHeadAttention(flash_attention=True) on Keras 3",
        jax="jax.nn.dot_product_attention(implementation='cudnn')",
        native="a fused attention kernel (cuDNN's, FlashAttention)",
    ),
    variants={
        _MATH_BACKEND: Change(
            pytorch="inputs that a fused kernel takes: FP16 or BF16, contiguous, head size up to "
            "256, no attn_mask but is_causal; torch.nn.attention.sdpa_kernel(FLASH_ATTENTION) "
            "warns why it cannot run",
            tensorflow="keras.layers.MultiHeadAttention(flash_attention=True) on Keras 3",
            jax="jax.nn.dot_product_attention(implementation='cudnn')",
            native="a fused attention kernel (cuDNN's, FlashAttention)",
        )
    },
    simulation="`no softmax`, without the math backend.",
)
def unfused_attention(figures: Figures) -> Found | None:
    """Attention as batched GEMMs with a softmax between them."""
    if figures.on_cpu:
        return None
    math = figures.math_attention
    math_ns = int(math["time_ns"].sum())
    if figures.worth(math_ns):
        return Found(
            math_ns,
            {
                **dict.fromkeys(("time_ns", "products_ns")),
                "kernel_ns": figures.each(math_ns),
                "calls": figures.mean(int(math["calls"].sum())),
                "share": math_ns / figures.work_ns,
            },
            math,
            variant=_MATH_BACKEND,
            kind="upper bound",
        )
    table = figures.breakdown
    category = pl.col("category")
    # Log-softmax is of a loss or of an output, not of attention.
    softmax = figures.softmax_ns
    fused = int(table.filter(category == "attention")["time_ns"].sum())
    batched = table.filter((category == "gemm") & pl.col("part").str.contains("batched"))
    # A softmax after a classifier is far shorter than its GEMMs.
    if batched.is_empty() or fused > softmax or not figures.worth(softmax):
        return None
    products = int(batched["time_ns"].sum())
    evidence = table.filter(
        category.is_in(["softmax", "attention"])
        | ((category == "gemm") & pl.col("part").str.contains("batched"))
    ).select("category", "part", "calls", "time_ns", "share")
    return Found(
        softmax,
        {
            "time_ns": figures.each(softmax),
            "share": softmax / figures.work_ns,
            "products_ns": figures.each(products),
            **dict.fromkeys(("kernel_ns", "calls")),
        },
        evidence,
        "no softmax" if softmax == figures.class_ns("softmax") else None,
    )


@rule(
    title="batchable GEMMs",
    kind="estimate",
    sentence="{calls} GEMMs ({time_ns}) follow one of the same kernel, layer and size, up to "
    "{count} in a row: {name} in {layer}",
    estimate="of runs of four or more: the gaps between them, at most the idle time, and time x "
    "(1 - the larger of blocks / SMs and 1 / GEMMs of the run). Batched they fill the device "
    "together.",
    caveat="GEMMs that depend on each other cannot be batched.",
    change=Change(
        pytorch="torch.bmm or einsum over stacked operands, torch.vmap; grouped convolution, not "
        "a loop over the batch",
        tensorflow="tf.matmul on a stack of operands (BatchMatMul), tf.vectorized_map",
        jax="jax.vmap over the loop, or lax.dot_general with batch dimensions",
        native="the batched GEMM of cuBLAS (strided, or by arrays of pointers)",
    ),
)
def batchable_gemms(figures: Figures) -> Found | None:
    """GEMMs of one shape in a row, which one batched call could compute."""
    if figures.on_cpu:
        return None
    filled = pl.col("blocks") / pl.col("multiprocessors")
    alone = 1 / pl.col("longest")
    part = (1 - pl.max_horizontal(filled, alone)).clip(0, 1).fill_null(0)
    rows = figures.products.filter(pl.col("in_runs") > 0)
    # In the gaps other kernels may run, as between the time steps of an LSTM.
    idle = max(0, figures.window_ns - figures.busy_ns)
    gaps = pl.col("gaps_ns") * min(1.0, idle / max(int(rows["gaps_ns"].sum()), 1))
    rows = rows.with_columns(
        (pl.col("in_runs_ns") * part + gaps).cast(pl.Int64).alias("saving_ns")
    ).sort("saving_ns", descending=True)
    total = int(rows["saving_ns"].sum())
    if not figures.worth(total):
        return None
    first = rows.row(0, named=True)
    evidence = rows.select(
        *("layer", "operator", "name", "blocks", "multiprocessors", "in_runs", "longest"),
        *("in_runs_ns", "gaps_ns", "saving_ns"),
    )
    return Found(
        total,
        {
            "calls": figures.mean(int(rows["in_runs"].sum())),
            "time_ns": figures.each(int(rows["in_runs_ns"].sum())),
            "count": first["longest"],
            "name": first["name"],
            "layer": first["layer"],
        },
        evidence,
    )

"""Bias and activation as kernels of their own behind a convolution or product."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.advise.model import Change, Found, Rule

if TYPE_CHECKING:
    from traceana.advise.figures import Figures


def _finds(figures: Figures) -> Found | None:
    if figures.on_cpu or not figures.has_products:
        return None
    both = (pl.col("bias_ns") + pl.col("activation_ns")).alias("saving_ns")
    rows = (
        figures.passes.filter((pl.col("direction") == "forward").fill_null(value=True) & (both > 0))
        .select("layer", "type", "calls", "time_ns", "bias_ns", "activation_ns", both)
        .sort("saving_ns", descending=True)
    )
    total = int(rows["saving_ns"].sum())
    if not figures.worth(total):
        return None
    return Found(
        total,
        {
            "time_ns": figures.each(total),
            "share": total / figures.work_ns,
        },
        rows,
    )


RULE: Final = Rule(
    id="unfused_bias_activation",
    title="bias or ReLU as kernels of their own, which the product before them could write",
    finds=_finds,
    kind="at most",
    says=(
        "Bias and activation kernels of their own take {time_ns} of the forward pass, {share} of "
        "the work."
    ),
    estimate=(
        "all the time of these kernels in the forward pass: fused behind the convolution or "
        "product (cuDNN's ConvBiasAct, cuBLASLt's epilogues) they move nothing, and now they only "
        "read and write what the layer before wrote."
    ),
    doubt=(
        "An activation behind a normalization or an addition can be fused with that alone, by a "
        "compiler; then one pass over the tensor remains."
    ),
    change=Change(
        pytorch="torch.compile(model); in inference also fold batch normalization "
        "(torch.nn.utils.fusion) before it",
        tensorflow="tf.function(jit_compile=True); Grappler's remapper fuses Conv2D + BiasAdd + "
        "ReLU in graphs",
        jax="put the whole step under jax.jit, so that XLA can fuse across the layers",
    ),
)

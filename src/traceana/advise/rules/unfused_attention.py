"""Attention as products with a softmax between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.advise.model import Change, Found, Rule

if TYPE_CHECKING:
    from traceana.advise.figures import Figures


def _finds(figures: Figures) -> Found | None:
    if figures.on_cpu:
        return None
    table = figures.breakdown
    category = pl.col("category")
    softmax = int(table.filter(category == "softmax")["time_ns"].sum())
    fused = int(table.filter(category == "attention")["time_ns"].sum())
    batched = table.filter((category == "gemm") & pl.col("part").str.contains("batched"))
    # A softmax behind a classifier is far shorter than its products.
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
        },
        evidence,
    )


RULE: Final = Rule(
    id="unfused_attention",
    title="attention as batched products with a softmax between, not as one kernel",
    finds=_finds,
    kind="at most",
    says=(
        "Softmax kernels take {time_ns}, {share} of the work, beside {products_ns} of batched "
        "products: attention that writes out its scores."
    ),
    estimate=(
        "all the time of the softmax kernels: a fused kernel computes it on the chip. The products "
        "save the traffic of the scores as well, which is not counted."
    ),
    doubt="Softmax outside of attention, and masks that no fused kernel takes, stay as they are.",
    change=Change(
        pytorch="torch.nn.functional.scaled_dot_product_attention (attn_implementation='sdpa' or "
        "'flash_attention_2' of transformers)",
        tensorflow="keras.layers.MultiHeadAttention(flash_attention=True) on Keras 3",
        jax="jax.nn.dot_product_attention(implementation='cudnn')",
    ),
)

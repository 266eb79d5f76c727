"""Bias and activation kernels that take longer than their bytes need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.advise.model import Change, Found, Rule

if TYPE_CHECKING:
    from traceana.advise.figures import Figures

_SLOW: Final = 0.5
_LONG_NS: Final = 10_000
"""Kernels that last shorter on average never reach the bandwidth, whatever they do."""


def _finds(figures: Figures) -> Found | None:
    if figures.on_cpu or figures.peaks is None:
        return None
    reached = pl.col("of_attainable")
    rows = figures.roofline.filter(
        pl.col("category").is_in(["bias", "activation"])
        & (pl.col("bound") == "memory")
        & (reached < _SLOW)
        & (pl.col("time_ns") >= _LONG_NS * pl.col("calls"))
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
            "calls": int(rows["calls"].sum()),
        },
        evidence,
    )


RULE: Final = Rule(
    id="slow_bias_activation",
    title="bias or ReLU kernels that are slow for the bytes they move",
    finds=_finds,
    kind="at most",
    says=(
        "{calls} bias and activation kernels take {time_ns}; at the memory's bandwidth their bytes "
        "would take {share} of that."
    ),
    estimate=(
        "time x (1 - compulsory bytes / (bandwidth x time)), of the classes that stay below half "
        "of the bandwidth with kernels of 10 µs and more."
    ),
    doubt="Tensors that are not contiguous move more bytes than are counted as compulsory.",
    change=Change(
        pytorch="make the tensors contiguous in the layout of the kernel, or torch.compile",
        tensorflow="tf.function(jit_compile=True): XLA's kernels in place of Eigen's",
        jax="put the operation under jax.jit with the layer before it",
    ),
)

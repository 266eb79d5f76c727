"""Work that is bound by memory and moves its bytes near the peak."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.advise.model import Change, Found, Rule

if TYPE_CHECKING:
    from traceana.advise.figures import Figures

_NEAR: Final = 0.7
_MUCH: Final = 0.05


def _finds(figures: Figures) -> Found | None:
    if figures.on_cpu or figures.peaks is None:
        return None
    rows = figures.roofline.filter(
        (pl.col("bound") == "memory") & (pl.col("of_attainable") >= _NEAR)
    )
    time = int(rows["time_ns"].sum())
    if time < _MUCH * figures.work_ns:
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
        },
        rows.select(
            *("category", "part", "calls", "time_ns", "bytes", "intensity", "of_attainable")
        ),
    )


RULE: Final = Rule(
    id="memory_bound_at_peak",
    title="memory-bound work at the peak of the bandwidth: nothing to gain in its kernels",
    finds=_finds,
    kind="nothing to gain",
    says=(
        "{time_ns} ({share} of the work, most of it {category}) is bound by memory and reaches "
        "{of_attainable} of the bandwidth."
    ),
    estimate="nothing: compulsory bytes over the time are within 30 % of the memory's bandwidth.",
    doubt="Fewer bytes are the only way: fusion, a smaller type, or not computing it.",
    change=Change(
        pytorch="do not tune these kernels; torch.compile fuses them, torch.amp halves their bytes",
        tensorflow="do not tune these kernels; jit_compile=True fuses them, mixed precision halves "
        "their bytes",
        jax="do not tune these kernels; jax.jit fuses them, bfloat16 halves their bytes",
    ),
)

"""Layout changes around convolutions, and what they cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.advise.model import Change, Found, Rule

if TYPE_CHECKING:
    from traceana.advise.figures import Figures


def _finds(figures: Figures) -> Found | None:
    rows = figures.convolutions.filter(pl.col("layout_ns") > 0)
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
            "count": int(rows["count"].sum()),
            "time_ns": figures.each(total),
            "share": total / (total + int(rows["time_ns"].sum())),
        },
        evidence,
    )


RULE: Final = Rule(
    id="layout_changes",
    title="layout changes (NCHW to NHWC and back) around convolutions",
    finds=_finds,
    kind="at most",
    says=(
        "{count} convolutions have their tensors turned to another layout and back: {time_ns}, "
        "{share} of the time of these convolutions."
    ),
    estimate="all the time of the layout changes that belong to convolutions.",
    doubt=(
        "An operator that has no kernel in the other layout turns the tensor back: then the change "
        "only moves. Weights are turned at each call, and cost little."
    ),
    change=Change(
        pytorch="keep model and inputs in one layout: .to(memory_format=torch.channels_last), "
        "which the tensor cores want; without tensor cores the default NCHW",
        tensorflow="data_format='channels_last' with mixed precision or TF32, 'channels_first' for "
        "plain fp32; leave Grappler's layout optimizer on",
        jax="NHWC dimension numbers in lax.conv_general_dilated for the tensor cores; XLA turns "
        "layouts once where no custom call is between",
    ),
)

"""The gradient of the network's input, which nothing uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.advise.convolving import shape_text
from traceana.advise.model import Change, Found, Rule

if TYPE_CHECKING:
    from traceana.advise.figures import Figures

_IMAGE_CHANNELS: Final = 4
"""Images have one to four channels; what lies deeper in a network has more."""


def _finds(figures: Figures) -> Found | None:
    table = figures.convolutions
    forward = table.filter((pl.col("direction") == "fprop") & pl.col("position").is_not_null())
    first = forward.filter(pl.col("position") == pl.col("position").min())["layer"]
    of_image = (
        (pl.col("in_channels") <= _IMAGE_CHANNELS) & (pl.col("groups") == 1) & ~pl.col("transposed")
    )
    # Without shapes the layer that runs first is the first only where forward passes are known.
    unknown = pl.col("in_channels").is_null() & pl.col("layer").is_in(first.implode())
    rows = table.filter((pl.col("direction") == "dgrad") & (of_image | unknown))
    total = int(rows["time_ns"].sum()) + int(rows["layout_ns"].sum())
    if not figures.worth(total):
        return None
    shapes = pl.Series("shape", [shape_text(row) for row in rows.to_dicts()], dtype=pl.String)
    evidence = rows.with_columns(shapes).select(
        *("layer", "operator", "algorithm", "shape", "count", "time_ns", "layout_ns", "flops")
    )
    layer = evidence["layer"].item(0)
    return Found(
        total,
        {"layer": layer, "time_ns": figures.each(total), "share": total / figures.work_ns},
        evidence,
    )


RULE: Final = Rule(
    id="first_data_gradient",
    title="a data gradient computed for the first convolution, which nothing uses",
    finds=_finds,
    kind="estimate",
    says=(
        "The gradient of the input is computed for {layer}, the first convolution: {time_ns}, "
        "{share} of the work."
    ),
    estimate="all the time of the first convolution's data gradient, its layout changes included.",
    doubt=(
        "Adversarial examples, GANs, style transfer and checkpointing by re-entry need this "
        "gradient."
    ),
    change=Change(
        pytorch="do not set requires_grad on the input; torch.utils.checkpoint with "
        "use_reentrant=False, which needs none",
        tensorflow="take gradients of the trainable variables alone, and do not watch the input",
        jax="differentiate by the parameters alone (argnums), and not by the batch",
    ),
)

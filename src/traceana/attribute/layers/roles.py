"""Ranges that are no layer and have a name of their own: optimizer, data loading, collectives."""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.attribute.layers.places import Layer, Places, codes, nest
from traceana.attribute.nesting import Ints, Nesting, from_rows, inherit

ROLE_OF_TEXT: Final = {
    "optimizer": r"(?i)^Optimizer\.|^(?:## )?optimizer(?:[._ ]?step)?(?: ##)?$",
    "data": r"(?i)^enumerate\(DataLoader\)|^(?:load[._ ]?data|data[._ ]?load(?:er|ing)?)$",
    "collective": r"^(?:nccl|gloo|mpi|ucc):|^nccl[A-Z]|^c10d::",
}
"""Role -> pattern of the texts of its ranges."""


def role_of(text: pl.Expr) -> pl.Expr:
    """Return the role that a range's text tells, null where it tells none."""
    return pl.coalesce(
        pl.when(text.str.contains(pattern)).then(pl.lit(role))
        for role, pattern in ROLE_OF_TEXT.items()
    )


def role_places(ranges: pl.DataFrame, key: Ints) -> Places:
    """Return the ranges that tell a role; each text is a row of its own."""
    roles = (
        ranges.select("text")
        .unique()
        .with_columns(role_of(pl.col("text").cast(pl.String)).alias("role"))
    )
    judged = (
        ranges.select("text", "kind", "start", "duration")
        .join(roles, on="text", how="left", maintain_order="left")
        .with_columns(
            (pl.col("role").is_not_null() & pl.col("kind").is_in(["annotation", "nvtx"])).alias(
                "wanted"
            )
        )
    )
    wanted = judged["wanted"].to_numpy()
    chosen = judged.filter(wanted)
    code, texts = codes(chosen["text"])
    role = dict(chosen.select(pl.col("text").cast(pl.String), "role").unique().iter_rows())
    layers: list[Layer] = [(text, None, role[text]) for text in texts]
    return Places(nest(chosen, key[wanted]), code, layers)


_COLLECTIVE_OP: Final = r"^c10d::|^record_param_comms$|^_?c10d_functional::|^(?:nccl|gloo|mpi|ucc):"


def collective_layers(ops: pl.DataFrame, nesting: Nesting) -> tuple[Ints, list[Layer]]:
    """Return, for every operator inside a communication operator, a row of that one's name.

    The index is NONE for all others. DDP's hooks run inside a node of the backward graph, whose
    layer did not ask for the reduction.
    """
    names = ops.select(pl.col("name").unique(maintain_order=True)).filter(
        pl.col("name").cast(pl.String).str.contains(_COLLECTIVE_OP)
    )
    numbered = ops.select("name").join(
        names.with_row_index("layer"), on="name", how="left", maintain_order="left"
    )
    layer = inherit(nesting, from_rows(numbered["layer"]))
    layers: list[Layer] = [
        (name, None, "collective") for name in names["name"].cast(pl.String).to_list()
    ]
    return layer, layers

"""A trace without device work: what the host itself computed is what ran."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from traceana.attribute.nesting import NONE, Ints, Nesting
from traceana.attribute.ranges import DIRECTION_ALONE
from traceana.attribute.steps import STEP_TEXT, WARM_UP_TEXT
from traceana.trace.schema import CPU_DEVICE

DEVICE_WORK: Final = ("kernel", "memcpy", "memset", "graph")

EXPLAINED: Final = 0.9
"""Operators of one name are entered when those directly inside them take this much of their time.

``aten::conv2d`` only hands on to ``aten::convolution``; ``aten::mkldnn_convolution`` computes, and
allocates its output on the way: counting only operators without any other inside would leave out
the convolution and keep the ``aten::empty``.
"""

FRAMES: Final = f"{STEP_TEXT}|{WARM_UP_TEXT}|(?i){DIRECTION_ALONE}"
"""Ranges that say when, not what: a step, a whole pass. What they hold is what ran."""


def leaf_activities(
    host: pl.DataFrame, name: str, nesting: Nesting, frames: str | None = None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return (activities, names) made of those rows of ``host`` that did the computing.

    ``host`` holds operators, or where the trace has none the ranges that its program set; column
    ``name`` says what each is. From the outermost inwards, each is one activity, unless those
    within it explain its time (:data:`EXPLAINED`); then those are looked at. The decision is one
    for all of a name, so that equal operators are counted alike. A name that matches the pattern
    ``frames`` only holds others, as a step holds its layers: it is entered whatever they explain.
    No two activities of a thread overlap. ``row`` is the row in ``host``; ``stream`` is the thread.
    """
    chosen = np.flatnonzero(_computing(host, name, nesting, frames))
    leaves = host.with_row_index("row")[chosen].with_columns(pl.col(name).alias("name"))
    names = leaves.select(pl.col("name").unique(maintain_order=True)).with_row_index("name_id")
    activities = leaves.join(names, on="name", maintain_order="left").select(
        "row",
        "name_id",
        pl.lit("op").alias("kind"),
        "start",
        "duration",
        "process",
        pl.lit(CPU_DEVICE).alias("device"),
        pl.col("thread").alias("stream"),
        # Ranges have none.
        pl.col("^instruction$"),
    )
    return activities, names.select(pl.col("name").cast(pl.String))


def _computing(host: pl.DataFrame, name: str, nesting: Nesting, frames: str | None) -> np.ndarray:
    parent, duration = nesting.parent, host["duration"].to_numpy()
    inside = np.zeros(len(parent), dtype=np.int64)
    children = np.flatnonzero(parent != NONE)
    np.add.at(inside, parent[children], duration[children])
    has_children = np.zeros(len(parent), dtype=np.bool_)
    has_children[parent[children]] = True
    by_name = pl.DataFrame({"name": host[name], "duration": duration, "inside": inside})
    explained = by_name.select(
        pl.col("inside").sum().over("name") >= EXPLAINED * pl.col("duration").sum().over("name")
    ).to_series()
    if frames is not None:
        framing = host.select(pl.col(name).cast(pl.String).str.contains(frames)).to_series()
        explained = explained | framing
    entered = explained.to_numpy() & has_children
    reached = _reached(nesting, entered)
    return reached & ~entered


def _reached(nesting: Nesting, entered: np.ndarray) -> np.ndarray:
    reached = np.ones(len(entered), dtype=np.bool_)
    levels: list[Ints] = list(nesting.levels())
    for rows in levels[1:]:
        above = nesting.parent[rows]
        reached[rows] = reached[above] & entered[above]
    return reached

"""Iterations: from the ranges that mark them, and which activity belongs to which."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from traceana.attribute.nesting import NONE, Ints, Nesting, thread_keys
from traceana.trace.schema import conform, empty

STEP_TEXT: Final = (
    r"(?i)^_?(?:ProfilerStep[#*]?|(?:train[ _-]?|training[ _-]?|global[ _-]?|minibatch[ _-]?)?"
    r"(?:step|iter|iteration|batch))[ _#:=\[-]*(\d*)\]?$"
)
"""Ranges that mark an iteration: ``ProfilerStep#3``, ``iteration 3``, ``step_3``, ``batch:3``;
CNTK's ``_Minibatch Iteration``."""


WARM_UP_TEXT: Final = r"(?i)^warm[ _-]?up[ _:#=-]*\d*$"
"""Ranges around iterations that are not to be measured: no steps, and no part of a layer."""
_NUMBERED: Final = r"[#*]?\d+$"

_OPTIMIZER_STEP: Final = "Optimizer.step#"
"""torch.profiler draws this range by itself around every ``optimizer.step()``."""


def steps(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the ``steps`` table of the ranges that mark iterations.

    Where such ranges nest (``step`` around ``batch``) the outermost count. Unnumbered ones are
    numbered in order of time, per process. A training run that marks none ends an iteration with
    each step of its optimizer.
    """
    marked = _marked(ranges)
    found = _between_optimizer_steps(ranges) if marked.is_empty() else marked
    return conform("steps", found)


def _marked(ranges: pl.DataFrame) -> pl.DataFrame:
    text = pl.col("text").cast(pl.String)
    by_profiler = pl.col("kind") == "step"
    by_text = pl.col("kind").is_in(["annotation", "nvtx", "nvtx_start"])
    # TensorFlow's and JAX's step markers have any name: "train#3".
    marks = ranges.filter(
        (by_profiler & text.str.contains(_NUMBERED)) | (by_text & text.str.contains(STEP_TEXT))
    )
    if marks.is_empty():
        return empty("steps")
    (keys,) = thread_keys(marks)
    nesting = Nesting.of(keys, marks["start"].to_numpy(), marks["duration"].to_numpy())
    outermost = marks.filter(pl.Series(nesting.depth == 0))
    digits = text.str.extract(r"(\d+)\]?$", 1)
    return (
        outermost.select(
            digits.cast(pl.Int64, strict=False).alias("number"),
            "start",
            "duration",
            "process",
            text.str.extract(r"^(\D*?)[ _#:=\[-]*\d*\]?$", 1).alias("source"),
        )
        .sort("process", "start", maintain_order=True)
        .with_columns(
            pl.when(pl.col("number").is_null().any().over("process"))
            .then(pl.int_range(pl.len()).over("process"))
            .otherwise("number")
            .alias("number")
        )
    )


def _between_optimizer_steps(ranges: pl.DataFrame) -> pl.DataFrame:
    ends = (
        ranges.filter(pl.col("text").cast(pl.String).str.starts_with(_OPTIMIZER_STEP))
        .select("process", (pl.col("start") + pl.col("duration")).alias("end"))
        .sort("process", "end")
        .with_columns(pl.col("end").shift(1).over("process").fill_null(0).alias("start"))
    )
    if ends.height < 2:
        return empty("steps")
    return ends.select(
        pl.int_range(pl.len()).over("process").alias("number"),
        "start",
        (pl.col("end") - pl.col("start")).alias("duration"),
        "process",
        pl.lit(_OPTIMIZER_STEP.rstrip("#")).alias("source"),
    )


def step_of(table: pl.DataFrame, process: pl.Series, time: pl.Series) -> Ints:
    """Return the row in ``table`` of the step that was running in ``process`` at ``time``.

    A null process is looked up among all steps, whatever their process.
    """
    if table.is_empty():
        return np.full(len(time), NONE, dtype=np.int64)
    one_process = table["process"].n_unique() <= 1
    lookup = pl.DataFrame({"process": process, "time": time}).with_row_index("row")
    marks = table.with_row_index("step").with_columns(
        (pl.col("start") + pl.col("duration")).alias("end")
    )
    found = (
        lookup.sort("time")
        .join_asof(
            marks.select("step", "start", "end", "process").sort("start"),
            left_on="time",
            right_on="start",
            by=None if one_process else "process",
            strategy="backward",
            check_sortedness=False,
        )
        .sort("row")
        .select(
            pl.when(pl.col("time") < pl.col("end"))
            .then(pl.col("step").cast(pl.Int64))
            .otherwise(NONE)
            .fill_null(NONE)
        )
    )
    return found.to_series().to_numpy()

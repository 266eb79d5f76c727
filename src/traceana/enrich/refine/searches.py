"""Algorithm search: trial runs of autotuners, separated from the model's own work.

A search consists of the auxiliary kernels of autotuners, classified by name (function
``autotune``); the trials of XLA's and TensorFlow's autotuners, which run on a stream between these;
and the trials of ``cudnn.benchmark``, where one call of an operator computes its convolution by
several algorithms. All of them get one class and one row of layers.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.settings import FEWEST_TRIALS
from traceana.trace import Trace
from traceana.trace.schema import conform
from traceana.trace.taxonomy import AUTOTUNE, CLASS_COLUMNS, SEARCH

RULE: Final = "context.algorithm_search"

_FILLS: Final = r"(?i)repeat_?buffer"
_COMPUTING_CATEGORIES: Final = ("conv", "gemm", "attention", "fused")
_AUXILIARY_CATEGORIES: Final = ("layout", "reduction", "other")
"""Categories of a convolution's or GEMM's auxiliary kernels: packing, split-K reduction."""


def with_searches(trace: Trace) -> Trace:
    """Return the refined ``trace`` with its algorithm search marked.

    The class of such an activity gets the category ``other`` and the function :data:`AUTOTUNE`; its
    other columns are unchanged. Its layer is the row of ``layers`` with the role :data:`SEARCH`.
    """
    if (trace.tables.layers["role"] == SEARCH).any():
        # Marks of an earlier search give way to the layers of the operators.
        operator_layers = trace.tables.layers.height - 1
        operator_layer = trace.tables.ops["layer"].gather(trace.tables.activities["op"])
        is_marked = pl.col("layer") == operator_layers
        trace = trace.with_tables(
            activities=trace.tables.activities.with_columns(
                pl.when(is_marked).then(operator_layer).otherwise("layer").alias("layer")
            ),
            layers=trace.tables.layers.head(operator_layers),
        )
    is_auxiliary = trace.tables.names["function"].fill_null("") == AUTOTUNE
    is_kernel = trace.tables.activities["kind"] == "kernel"
    auxiliary = is_auxiliary.gather(trace.tables.activities["name_id"]) & is_kernel
    trial = _trials_on_streams(trace) | _trials_of_calls(trace)
    searched = auxiliary | trial
    if not searched.any():
        return trace
    row = trace.tables.layers.height
    search = {"path": SEARCH, "type": None, "role": SEARCH, "parent": None, "position": row}
    classes, class_of = _trial_classes(trace, trial)
    activities = trace.tables.activities.with_columns(
        class_of,
        pl.when(searched).then(pl.lit(row, pl.UInt32)).otherwise("layer").alias("layer"),
    )
    layers = pl.concat([trace.tables.layers, conform("layers", pl.DataFrame([search]))])
    return trace.with_tables(
        activities=conform("activities", activities),
        classes=conform("classes", classes),
        layers=layers,
    )


def _trials_on_streams(trace: Trace) -> pl.Series:
    """Return which activities are trials between two auxiliary kernels of one search.

    Kernels between two auxiliary kernels are trials if the second one checks their result, all
    have the same thread, range, operator and scope, and they compute one convolution or GEMM. Work
    of the model between two searches has other scopes, or computes several.
    """
    activities, names = trace.tables.activities, trace.tables.names
    no_trials = pl.repeat(False, activities.height, dtype=pl.Boolean, eager=True)
    fills = names.select((pl.col("function") == AUTOTUNE) & pl.col("name").str.contains(_FILLS))
    if not (names["function"] == AUTOTUNE).any():
        return no_trials
    queue = ["rank", "process", "device", "stream"]
    launch = ["thread", "op", "scope", "range", "instruction"]
    by_name = names.select(
        pl.int_range(pl.len(), dtype=pl.UInt32).alias("name_id"),
        "category",
        (pl.col("function") == AUTOTUNE).fill_null(value=False).alias("beside"),
        fills.to_series().fill_null(value=False).alias("fills"),
    )
    gap_key = [*queue, "gap"]
    rows = (
        activities.with_row_index("row")
        .with_columns(trace.tables.calls["thread"].gather(activities["call"]).alias("thread"))
        .filter(pl.col("kind") == "kernel")
        .select("row", "name_id", "episode", "start", *queue, *launch)
        .join(by_name, on="name_id", how="left", maintain_order="left")
        .sort(*queue, "start", "row")
        .with_columns(
            pl.col("beside").cum_sum().over(queue).alias("gap"),
            pl.struct(*queue, *launch).rle_id().alias("launch"),
        )
    )
    computes = pl.col("category").is_in(_COMPUTING_CATEGORIES)
    gaps = (
        rows.group_by(gap_key, maintain_order=True)
        .agg(
            pl.col("beside").first().alias("begun"),
            (~pl.col("beside")).any().alias("holds"),
            pl.col("launch").first(),
            (pl.col("launch").n_unique() == 1).alias("alike"),
            pl.struct("episode", pl.when(pl.col("episode").is_null()).then("name_id"))
            .filter(computes)
            .n_unique()
            .alias("things"),
            (pl.col("beside") | computes | pl.col("category").is_in(_AUXILIARY_CATEGORIES))
            .all()
            .alias("parts"),
            pl.col("fills").first().alias("fills"),
        )
        .with_columns(
            pl.col("launch").shift(-1).over(queue).alias("next"),
            pl.col("fills").shift(-1).over(queue).alias("next_fills"),
        )
    )
    is_trial = (
        pl.col("begun")
        & pl.col("holds")
        & pl.col("alike")
        & pl.col("parts")
        & (pl.col("things") == 1)
        & (pl.col("launch") == pl.col("next"))
        & ~pl.col("next_fills")
    ).fill_null(value=False)
    trials = (
        rows.filter(~pl.col("beside"))
        .join(gaps.filter(is_trial).select(gap_key), on=gap_key, how="semi", nulls_equal=True)
        .get_column("row")
    )
    return no_trials.scatter(trials, values=True) if len(trials) else no_trials


def _trials_of_calls(trace: Trace) -> pl.Series:
    """Return which activities belong to a convolution that its operator computed again.

    If one call runs three or more algorithms in one direction, the last one is the choice and the
    others are trials.
    """
    call = ["op", "direction"]
    starts = trace.tables.activities.select("episode", "start").drop_nulls("episode")
    episode_start = starts.group_by("episode").agg(pl.col("start").min())
    several = pl.col("algorithm").n_unique().over(call) >= FEWEST_TRIALS
    tried = (
        trace.tables.episodes.with_row_index("episode")
        .drop_nulls("op")
        .join(episode_start, on="episode")
        .filter(several & (pl.col("start") < pl.col("start").max().over(call)))
    )
    return (
        trace.tables.activities["episode"].is_in(tried["episode"].implode()).fill_null(value=False)
    )


def _trial_classes(trace: Trace, trial: pl.Series) -> tuple[pl.DataFrame, pl.Series]:
    """Return the classes, trials included, and the class of each activity."""
    keys = ["name_id", "class"]
    names = trace.tables.names.select(*CLASS_COLUMNS).with_row_index("name_id")
    refined_classes = trace.tables.classes.select(*CLASS_COLUMNS).with_row_index("class")
    wanted = trace.tables.activities.filter(trial).select(keys).unique(maintain_order=True)
    by_context = pl.col("class").is_not_null()
    refined = refined_classes.rename({column: f"refined_{column}" for column in CLASS_COLUMNS})
    of_trials = (
        wanted.join(names, on="name_id", how="left", maintain_order="left")
        .join(refined, on="class", how="left", maintain_order="left")
        .select(
            *keys,
            *(
                pl.when(by_context).then(f"refined_{column}").otherwise(column).alias(column)
                for column in CLASS_COLUMNS
            ),
        )
        .with_columns(
            pl.lit("other").alias("category"),
            pl.lit(AUTOTUNE).alias("function"),
            pl.lit(RULE).alias("context_rule"),
        )
    )
    added = of_trials.drop(keys).unique(maintain_order=True)
    numbered = added.with_row_index("found", offset=trace.tables.classes.height)
    class_of_key = of_trials.join(numbered, on=added.columns, how="left", nulls_equal=True).select(
        *keys, "found"
    )
    class_of_trial = trace.tables.activities.select(keys).join(
        class_of_key, on=keys, how="left", nulls_equal=True, maintain_order="left"
    )["found"]
    class_of = pl.select(
        pl.when(trial).then(class_of_trial).otherwise(trace.tables.activities["class"])
    )
    classes = pl.concat(
        [trace.tables.classes, added.select(trace.tables.classes.columns)], how="vertical_relaxed"
    )
    return classes, class_of.to_series().alias("class")

"""The refinement pass over a whole trace: contexts are numbered, rules run on the distinct ones."""

from __future__ import annotations

import polars as pl

from traceana.enrich.classify.ruleset import RuleSet
from traceana.enrich.nesting import NONE, from_rows
from traceana.enrich.refine.apply import apply
from traceana.enrich.refine.candidates import candidates
from traceana.enrich.refine.episodes import Episodes, find_episodes
from traceana.enrich.refine.launches import counts_a_batch
from traceana.enrich.refine.model import context
from traceana.enrich.refine.operands import operand_precision
from traceana.enrich.refine.operators import Operators
from traceana.enrich.refine.searches import with_searches
from traceana.trace import Trace
from traceana.trace.schema import conform


def refine(trace: Trace, rules: RuleSet | None = None) -> Trace:
    """Return ``trace``, attributed and classified by name, with its classes refined by context.

    Filled in: ``classes``, ``episodes``, and ``class`` and ``episode`` of the activities; algorithm
    search is marked (:func:`traceana.enrich.refine.searches.with_searches`). ``class``
    stays null where the context adds nothing to the name's class. ``rules`` classify the names of
    operators, as they did those of activities.
    """
    activities, names, ops = trace.activities, trace.names, trace.ops
    known = context()
    scopes = activities["scope"].drop_nulls().unique(maintain_order=True)
    operators = Operators.of(ops, scopes, known, rules)
    parts = candidates(activities, names, operators, known)
    episodes = find_episodes(parts, ops, operators.told_direction)
    # Text costs more than numbers: the kinds of episodes are few.
    kinds = episodes.table.select("algorithm", "direction").unique(maintain_order=True)
    per_activity = _contexts(trace, operators, episodes, kinds)
    keys = ["name_id", "situation", "kind", "main", "many", "operand"]
    contexts = per_activity.filter(pl.col("computes")).select(keys).unique(maintain_order=True)
    told = contexts.join(kinds.with_row_index("kind"), on="kind", how="left", maintain_order="left")
    classes, class_of = apply(known.rules, told, names, operators)
    refined = per_activity.join(
        contexts.with_columns(class_of.alias("class"), pl.lit(True).alias("computes")),
        on=[*keys, "computes"],
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    refined_trace = trace.with_tables(
        activities=activities.with_columns(refined.select("class", "episode")),
        classes=conform("classes", classes),
        episodes=conform("episodes", episodes.table),
    )
    return with_searches(refined_trace)


def _contexts(
    trace: Trace, operators: Operators, episodes: Episodes, kinds: pl.DataFrame
) -> pl.DataFrame:
    """Return, for each activity, what the rules look at, in numbers."""
    activities, names = trace.activities, trace.names
    op = pl.Series(from_rows(activities["op"]))
    of_op = pl.Series(operators.of_op, dtype=pl.Int64)
    known = op if len(of_op) else op.clear().extend_constant(NONE, len(op))
    launched = of_op.gather(pl.select(pl.when(known != NONE).then(known)).to_series())
    kind_of = episodes.table.join(
        kinds.with_row_index("kind"),
        on=["algorithm", "direction"],
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )["kind"]
    members = episodes.members.with_columns(kind_of.gather(episodes.members["episode"]))
    return (
        activities.select(
            "name_id", "scope", pl.col("kind").is_in(["kernel", "op"]).alias("computes")
        )
        .with_row_index("row")
        .with_columns(
            launched.alias("launched"),
            counts_a_batch(activities, names).alias("many"),
            operand_precision(trace).alias("operand"),
        )
        .join(operators.scopes, on="scope", how="left", maintain_order="left")
        .join(members, on="row", how="left", maintain_order="left")
        .with_columns(pl.coalesce("situation", "launched").alias("situation"))
    )

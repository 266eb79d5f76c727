"""The refinement pass: classes of activities by name, completed by context.

The context of an activity is its launching operator, the operators around that, the neighbouring
kernels and the launch configuration. Contexts are numbered, and the rules of ``context.toml`` run
on the distinct ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from traceana.columns.distinct import ascii_classes, first_rows, numbered
from traceana.columns.nesting import NONE, from_rows, take, to_rows
from traceana.enrich.refine.episodes import Episodes, find_episodes, possible_parts
from traceana.enrich.refine.searches import with_searches
from traceana.enrich.refine.situations import (
    MULTIPLIED,
    ContextRule,
    Operators,
    context,
    counts_a_batch,
    operand_precision,
    product_before,
)
from traceana.trace import Trace
from traceana.trace.schema import conform
from traceana.trace.taxonomy import CLASS_COLUMNS, FAMILY_OF_ALGORITHM, SETTABLE_COLUMNS


def refine(trace: Trace, of_operators: pl.DataFrame) -> Trace:
    """Return ``trace``, attributed and classified by name, with its classes refined by context.

    Filled in are ``classes``, ``episodes``, and ``class`` and ``episode`` of the activities.
    Algorithm search is marked (:func:`traceana.enrich.refine.searches.with_searches`). ``class`` is
    null where the class by name applies. ``of_operators`` are the classes of the operators' texts
    (:func:`traceana.enrich.refine.situations.operator_texts`).
    """
    activities, names, ops = trace.tables.activities, trace.tables.names, trace.tables.ops
    known = context()
    operators = Operators.of(trace, of_operators, known)
    parts = possible_parts(activities, names, operators, known)
    episodes = find_episodes(parts, ops, operators)
    # Joins on numbers are faster than on text, and there are few kinds of episodes.
    kinds = episodes.table.select("algorithm", "direction").unique(maintain_order=True)
    per_activity = _contexts(trace, operators, episodes, kinds)
    computes = activities["kind"].is_in(["kernel", "op"]).to_numpy()
    (number,) = numbered(per_activity.filter(computes).drop("episode"))
    first = np.sort(first_rows(number))
    contexts = per_activity[np.flatnonzero(computes)[first]].cast(
        {"operand": pl.String, "behind": pl.String}
    )
    described = contexts.join(
        kinds.with_row_index("kind"), on="kind", how="left", maintain_order="left"
    )
    classes, class_of = _apply_rules(known.rules, described, names, operators)
    of_number = np.full(len(first), NONE, dtype=np.int64)
    of_number[number[first]] = from_rows(class_of)
    class_of_row = np.full(activities.height, NONE, dtype=np.int64)
    class_of_row[computes] = of_number[number]
    refined_trace = trace.with_tables(
        activities=activities.with_columns(
            to_rows(class_of_row).alias("class"), per_activity["episode"]
        ),
        classes=conform("classes", classes),
        episodes=conform("episodes", episodes.table),
    )
    return with_searches(refined_trace)


def _contexts(
    trace: Trace, operators: Operators, episodes: Episodes, kinds: pl.DataFrame
) -> pl.DataFrame:
    """Return the context of each activity as numbers, and its ``episode``."""
    activities, names = trace.tables.activities, trace.tables.names
    op = from_rows(activities["op"])
    situation = to_rows(take(operators.of_op, op))
    if operators.scopes.height:
        by_scope = activities.select("scope").join(
            operators.scopes, on="scope", how="left", maintain_order="left"
        )["situation"]
        situation = by_scope.cast(pl.UInt32).zip_with(by_scope.is_not_null(), situation)
    kind_of = episodes.table.join(
        kinds.with_row_index("kind"),
        on=["algorithm", "direction"],
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )["kind"]
    members = episodes.members.with_columns(kind_of.gather(episodes.members["episode"]))
    of_member = pl.DataFrame(schema=members.drop("row").schema).clear(activities.height)
    if members.height:
        of_member = of_member.with_columns(
            column.scatter(members["row"], members[column.name]) for column in of_member
        )
    return activities.select(
        "name_id",
        situation.cast(pl.Int64).alias("situation"),
        *of_member,
        counts_a_batch(activities, names).alias("many"),
        operand_precision(trace).cast(pl.Categorical).alias("operand"),
        product_before(activities, names, kinds["direction"].gather(of_member["kind"]))
        .cast(pl.Categorical)
        .alias("behind"),
    )


def _apply_rules(
    rules: Sequence[ContextRule],
    contexts: pl.DataFrame,
    names: pl.DataFrame,
    operators: Operators,
) -> tuple[pl.DataFrame, pl.Series]:
    """Return the distinct refined classes, and the row of each of ``contexts`` among them.

    ``contexts`` has ``name_id``, ``situation``, ``algorithm`` and ``direction`` of the episode,
    ``main``, ``many``, ``operand`` and ``behind``. The row is null if no rule applies. Classes have
    the class columns and ``context_rule``.
    """
    facts = _described(contexts, names, operators)
    categories = set(facts["category"].unique())
    deciding = pl.coalesce(
        pl.lit(None, pl.Int32),
        *(
            pl.when(_condition(rule, operators.withins)).then(pl.lit(i))
            for i, rule in enumerate(rules)
            if not rule.category or categories & {*rule.category}
        ),
    )
    facts = facts.with_columns(deciding.alias("deciding"))
    decided = facts.filter(pl.col("deciding").is_not_null())
    row = pl.repeat(None, facts.height, dtype=pl.UInt32, eager=True)
    if decided.is_empty():
        return pl.DataFrame(schema={**CLASS_COLUMNS, "context_rule": pl.String}), row
    # Few of the rules decide anything in one trace.
    deciding_rules = {i: rules[i] for i in sorted(decided["deciding"].unique())}
    outcome = decided.select(
        *(_value_by_rule(deciding_rules, column).alias(column) for column in SETTABLE_COLUMNS),
        pl.col("deciding")
        .replace_strict({i: rule.id for i, rule in deciding_rules.items()}, return_dtype=pl.String)
        .alias("context_rule"),
    )
    family = pl.col("algorithm").replace_strict(
        FAMILY_OF_ALGORITHM, default=None, return_dtype=pl.String
    )
    outcome = outcome.with_columns(family.alias("family")).select(*CLASS_COLUMNS, "context_rule")
    classes = outcome.unique(maintain_order=True)
    class_of_decided = outcome.join(
        classes.with_row_index("class"),
        on=classes.columns,
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )["class"]
    return classes, row.scatter(facts["deciding"].is_not_null().arg_true(), class_of_decided)


def _described(contexts: pl.DataFrame, names: pl.DataFrame, operators: Operators) -> pl.DataFrame:
    """Return the values of the numbers of ``contexts``, one row each.

    The columns are the ``name``, its class columns, ``operator`` (text), ``within`` (bits),
    ``channel``, ``many``, ``purpose_category`` and ``purpose_function``, ``own_purpose`` (whether
    the purpose is that of the launching operator), ``episode_algorithm``, ``episode_direction`` and
    ``main``.
    """
    classes = names.select("name", *CLASS_COLUMNS).with_row_index("name_id")
    texts = operators.names.select("text", "category", "function").with_row_index("number")
    of_operator = texts.select(pl.col("number").alias("operator"), pl.col("text"))
    of_purpose = texts.select(
        pl.col("number").alias("purpose"),
        pl.col("category").alias("purpose_category"),
        pl.col("function").alias("purpose_function"),
    )
    situations = (
        operators.situations.with_row_index("situation")
        .with_columns((pl.col("operator") == pl.col("purpose")).alias("own_purpose"))
        .cast({"situation": pl.Int64, "operator": pl.UInt32})
        .with_columns(pl.col("purpose").cast(pl.UInt32, strict=False))
        .join(of_operator, on="operator", how="left")
        .join(of_purpose, on="purpose", how="left")
        .select(
            "situation",
            pl.col("text").alias("operator"),
            "within",
            "channel",
            "own_purpose",
            "purpose_category",
            "purpose_function",
        )
    )
    return (
        contexts.rename({"algorithm": "episode_algorithm", "direction": "episode_direction"})
        .join(classes, on="name_id", how="left", maintain_order="left")
        .join(situations, on="situation", how="left", maintain_order="left")
    )


def _condition(rule: ContextRule, withins: Sequence[str]) -> pl.Expr:
    conditions: list[pl.Expr] = [pl.lit(True)]
    for column, values in (
        ("category", rule.category),
        ("function", rule.function),
        ("library", rule.library),
        ("precision", rule.precision),
        ("operand", rule.operand),
        ("purpose_category", rule.purpose),
    ):
        if values:
            conditions.append(pl.col(column).is_in(values))
    if rule.batched_unknown:
        conditions.append(pl.col("batched").is_null())
    if rule.precision_unknown:
        conditions.append(pl.col("precision").is_null() & pl.col("operand").is_not_null())
    if rule.operator is not None:
        conditions.append(pl.col("operator").str.contains(ascii_classes(rule.operator)))
    if rule.within is not None:
        conditions.append(pl.col("within") & (1 << withins.index(rule.within)) != 0)
    if rule.own_purpose:
        conditions.append(pl.col("own_purpose"))
    if rule.channel:
        conditions.append(pl.col("channel").fill_null(True))
    if rule.episode:
        conditions.append(pl.col("episode_algorithm").is_not_null())
    if rule.many is not None:
        conditions.append(pl.col("many") == rule.many)
    if rule.behind is not None:
        conditions.append(pl.col("behind") == rule.behind)
    if rule.name is not None:
        conditions.append(pl.col("name").str.contains(ascii_classes(rule.name)))
    return pl.all_horizontal(condition.fill_null(False) for condition in conditions)


def _value_by_rule(rules: Mapping[int, ContextRule], column: str) -> pl.Expr:
    """Return the value of ``column`` by the deciding rule: its own, or else that of the name."""
    rule_number, of_name = pl.col("deciding"), pl.col(column)
    rule_values: dict[int, pl.Expr] = {}
    for i, rule in rules.items():
        if column in rule.set:
            rule_values[i] = pl.lit(rule.set[column])
        elif column in rule.from_purpose:
            rule_values[i] = pl.col(f"purpose_{column}")
        elif column in rule.from_episode and column == "algorithm":
            # The episode decides the algorithm of the parts whose name does not.
            is_known = of_name.is_not_null() & (of_name != "unknown")
            rule_values[i] = pl.when(is_known).then(of_name).otherwise(pl.col("episode_algorithm"))
        elif column in rule.from_episode:
            rule_values[i] = pl.coalesce(pl.col(f"episode_{column}"), of_name)
    default = of_name
    if column == "precision":
        multiplies = pl.col("category").is_in(MULTIPLIED)
        default = pl.coalesce(default, pl.when(multiplies).then("operand"))
    return pl.coalesce(
        *(pl.when(rule_number == i).then(value) for i, value in rule_values.items()),
        pl.when(rule_number.is_in([*rule_values]).not_()).then(default),
    )

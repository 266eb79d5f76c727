"""Attribution of a Trace's activities to operators, layers and steps, and their classification.

Both functions take and return a Trace: :func:`attribute` for the recording of one process,
:func:`with_classes` for the whole Trace, after the ranks of a distributed run have been merged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from traceana.enrich.classify import RuleSet
    from traceana.trace import Trace

__all__ = ["attribute", "with_classes"]


def attribute(trace: Trace, step_marker: str | None = None) -> Trace:
    """Return ``trace`` with the call, operator, range, layer, step and direction of its activities.

    See :func:`traceana.enrich.attribution.attribute`.
    """
    from traceana.enrich.attribution import attribute as attributed

    return attributed(trace, step_marker)


def with_classes(trace: Trace, rules: RuleSet | None = None) -> Trace:
    """Return an attributed ``trace`` with the class of every name, refined by each context.

    ``rules`` are the classification rules, by default traceana's own.
    """
    from traceana.enrich.classify import classify_names
    from traceana.enrich.refine import operator_texts, refine

    # One call for both: many patterns are compiled at most once a call.
    of_activities, of_operators = trace.names["name"], operator_texts(trace)
    classes = classify_names(pl.concat([of_activities, of_operators]), rules)
    named = trace.with_tables(names=classes.head(len(of_activities)))
    return refine(named, classes.tail(len(of_operators)))

"""Attribution of a Trace's activities to operators, layers and steps, and their classification.

Both functions take and return a Trace: :func:`attribute` for the recording of one process,
:func:`with_classes` for the whole Trace, after the ranks of a distributed run have been merged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import polars as pl

if TYPE_CHECKING:
    from traceana.enrich.classify import RuleSet
    from traceana.enrich.layers.generated_code import Code
    from traceana.trace import Trace

__all__ = ["Reference", "attribute", "reference", "replays_graphs", "with_classes"]

Reference: TypeAlias = "tuple[Trace, pl.DataFrame]"
"""Another recording of a program, attributed, and its captured calls: :func:`reference`."""


def attribute(
    trace: Trace,
    step_marker: str | None = None,
    other: Reference | None = None,
    code: Code | None = None,
) -> Trace:
    """Return ``trace`` with the call, operator, range, layer, step and direction of its activities.

    ``other`` is a recording of the same program that has operators for the work of CUDA graph
    replays; ``code`` returns the graphs of Inductor's generated code. See
    :func:`traceana.enrich.attribution.attribute`, and for graphs
    :mod:`traceana.enrich.graph_replays`.
    """
    from traceana.enrich.attribution import attribute as attributed

    if not replays_graphs(trace):
        return attributed(trace, step_marker, code=code)
    from traceana.enrich.graph_replays import attributed_replays, with_captured

    trace, captured = with_captured(trace)
    return attributed_replays(attributed(trace, step_marker, code=code), captured, other)


def replays_graphs(trace: Trace) -> bool:
    """Return whether ``trace`` has launches of CUDA graphs."""
    from traceana.enrich.launches import GRAPH_LAUNCH

    names = trace.tables.calls["name"].unique().cast(pl.String)
    return bool(names.str.contains(GRAPH_LAUNCH).any())


def reference(trace: Trace) -> Reference:
    """Return ``trace`` attributed for use as the ``other`` of :func:`attribute`."""
    from traceana.enrich.attribution import attribute as attributed
    from traceana.enrich.graph_replays import with_captured

    trace, captured = with_captured(trace)
    return attributed(trace, of_device=True), captured


def with_classes(trace: Trace, rules: RuleSet | None = None) -> Trace:
    """Return an attributed ``trace`` with the class of every name, refined by each context.

    ``rules`` are the classification rules, by default traceana's own.
    """
    from traceana.enrich.classify import classify_names
    from traceana.enrich.refine import operator_texts, refine

    # One call for both: many patterns are compiled at most once a call.
    of_activities, of_operators = trace.tables.names["name"], operator_texts(trace)
    classes = classify_names(pl.concat([of_activities, of_operators]), rules)
    named = trace.with_tables(names=classes.head(len(of_activities)))
    return refine(named, classes.tail(len(of_operators)))

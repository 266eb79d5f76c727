"""The layers of the manifest that each generated kernel of a compiled graph computes.

A kernel computes what the manifest has between two convolutions or products if it reads the result
of the first and feeds the second. Where no kernel does, as between the branches of a network, the
shapes of the layers show which of them follow the first, and which the second needs. The operators
in a kernel's name have to match the layers. What this leaves open is not decided.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Final

import msgspec
import polars as pl

from traceana.runs.layer_manifest import Layer
from traceana.vocabulary.operators import of_kinds

MOST_LAYERS: Final = 8
"""Layers of one kernel, and of a row that ``diff`` takes together, at most: an activation that a
whole network calls would join all of it."""

_OPERATORS: Final = {
    "batchnorm": "batch_norm",
    "layernorm": "layer_norm",
    "groupnorm": "group_norm",
    "instancenorm": "batch_norm|instance_norm",
    "maxpool": "max_pool[123]d(?:_with_indices)?",
    "avgpool": "avg_pool[123]d|mean|div",
    "adaptiveavgpool": "_?adaptive_avg_pool[123]d|avg_pool[123]d|mean|div",
    "dropout": "dropout|rand|bernoulli",
    "embedding": "embedding",
    "relu": "(?<!leaky_)relu|threshold",
    "relu6": "relu6|hardtanh",
    "leakyrelu": "leaky_relu",
    **{
        name: name
        for name in ("gelu", "silu", "elu", "mish", "sigmoid", "tanh", "hardswish", "hardsigmoid")
    },
}
"""What the name of a kernel contains that computes a layer of each type, or its gradient."""


def layers_of_rows(
    graph_calls: pl.DataFrame,
    position_of: Mapping[int, int],
    calls: Sequence[Layer],
    around: Collection[str],
) -> dict[int, list[str]]:
    """Return the paths of the layers that the kernels of each row of the trace's layers compute.

    ``position_of`` are the rows of weighted operators with their positions among the manifest's
    ``calls``; ``around`` are modules that contain others. A row is left out where a kernel of it
    may compute another layer, or more than eight. It is empty where its kernels compute no layer.
    """
    graphs = list(_graphs(graph_calls, position_of))
    # Other layers with a call of their own, such as an embedding, end no segment: what they compute
    # is beside a kernel's.
    apart = {
        position_of[row]
        for graph in graphs
        for node, row in enumerate(graph.rows)
        if row is not None and row in position_of
        if node not in graph.kernels and node not in graph.weighted
    }
    ends = [None, *sorted({*position_of.values()} - apart), None]
    segments = {
        (before, behind): {
            position: calls[position]
            for position in range(
                0 if before is None else before + 1, len(calls) if behind is None else behind
            )
            if position not in apart
            and calls[position].path not in around
            and not calls[position].computes_nothing
        }
        for before, behind in pairwise(ends)
    }
    computed: dict[int, set[int]] = defaultdict(set)
    unclear: set[int] = set()
    for graph in graphs:
        # A kernel beside a product of unknown layer may compute layers around that one.
        left_open = {
            other
            for node, position in graph.weighted.items()
            if position is None
            for other in (*graph.previous[node], *graph.next[node])
        }
        positions_of: dict[int, set[int]] = defaultdict(set)
        fed = set().union(*graph.reached(graph.weighted, graph.next))
        for both, inside in segments.items():
            nodes_of, others = _computed(graph, fed, both, inside, calls)
            left_open |= others
            for position, nodes in nodes_of.items():
                for node in nodes:
                    positions_of[node].add(position)
        for node in graph.kernels:
            if (row := graph.rows[node]) is not None:
                computed[row] |= positions_of[node]
                if node in left_open:
                    unclear.add(row)
    paths = {
        row: list(dict.fromkeys(calls[position].path for position in sorted(positions)))
        for row, positions in computed.items()
        if row not in unclear
    }
    return {row: some for row, some in paths.items() if len(some) <= MOST_LAYERS}


class _Graph(msgspec.Struct, frozen=True):
    """The data flow of a graph, in the order of the forward pass.

    Nodes are calls, ``rows`` their layers of the trace. ``kernels`` are those that Inductor
    generated. ``weighted`` has the position of each weighted one in the manifest, None where it is
    unknown.
    """

    names: list[str]
    rows: list[int | None]
    kernels: frozenset[int]
    weighted: dict[int, int | None]
    next: list[list[int]]
    previous: list[list[int]]

    def reached(self, nodes: Iterable[int], step: list[list[int]]) -> list[set[int]]:
        """Return the nodes reached without a weighted one between, by their distance."""
        levels: list[set[int]] = []
        visited, last = set(self.weighted), set(nodes)
        while last := {other for node in last for other in step[node]} - visited:
            visited |= last
            levels.append(last)
        return levels

    def able(self, layer: Layer, nodes: Collection[int]) -> set[int]:
        """Return the ``nodes`` that may compute the layer, by the operators in their names."""
        if _operator_of(layer.type) is None:
            return {node for node in nodes if node in self.kernels}
        return {node for node in nodes if names_operator_of(self.names[node], layer)}


def _graphs(graph_calls: pl.DataFrame, position_of: Mapping[int, int]) -> Iterator[_Graph]:
    # Not products of two activations.
    forward = of_kinds("convolution", "linear", "mm").removesuffix("$")
    has_weight = re.compile(rf"{forward}(?:_backward)?$")
    by_graph = graph_calls.with_columns(pl.col("name").cast(pl.String)).partition_by(
        "rank", "graph", maintain_order=True
    )
    for graph in by_graph:
        calls = list(graph.select("name", "generated", "reads", "layer", "backward").iter_rows())
        forth: list[list[int]] = [[] for _ in calls]
        back: list[list[int]] = [[] for _ in calls]
        for node, (_, _, reads, _, backward) in enumerate(calls):
            for read in reads:
                first, second = (node, read) if backward else (read, node)
                forth[first].append(second)
                back[second].append(first)
        yield _Graph(
            names=[name for name, *_ in calls],
            rows=[row for _, _, _, row, _ in calls],
            kernels=frozenset(node for node, (_, generated, *_) in enumerate(calls) if generated),
            weighted={
                node: position_of.get(row)
                for node, (name, generated, _, row, _) in enumerate(calls)
                # A generated kernel of a layer with a weight is from a template.
                if (row in position_of if generated else has_weight.search(name))
            },
            next=forth,
            previous=back,
        )


def _computed(
    graph: _Graph,
    fed: Collection[int],
    ends: tuple[int | None, int | None],
    inside: Mapping[int, Layer],
    calls: Sequence[Layer],
) -> tuple[dict[int, set[int]], set[int]]:
    """Return the nodes that compute each layer of ``inside``, and nodes that may compute one.

    ``inside`` are the layers between the weighted ones at the two ``ends``, by position. An end
    that is None lies outside the network. ``fed`` are the nodes that depend on a weighted one.
    """
    before, behind = ends
    first, second = (
        [node for node, position in graph.weighted.items() if end is not None and position == end]
        for end in ends
    )
    if not inside or not (first or second):
        return {}, set()
    after, until = graph.reached(first, graph.next), graph.reached(second, graph.previous)
    if before is not None:
        # A change of a weight's layout has the operators of earlier kernels in its name.
        until = [level.intersection(fed) for level in until]
    either = set().union(*after, *until)
    nodes_of: dict[int, set[int]] = {}
    if between := set().union(*after) & set().union(*until):
        nodes_of = {position: graph.able(layer, between) for position, layer in inside.items()}
    # Else the other end may be in another graph.
    elif (first or before is None) and (second or behind is None):
        # A layer without a kernel, such as a dropout in evaluation, may be on either side.
        inside = {
            position: layer for position, layer in inside.items() if graph.able(layer, either)
        }
        joined = [_joined(calls, *pair) for pair in pairwise([before, *inside, behind])]
        ways = []
        for split in range(len(inside) + 1):
            # The layers follow the first weighted one up to here, the second needs the others.
            nearest = {
                position: next(
                    (nodes for level in levels if (nodes := graph.able(layer, level))), set()
                )
                for place, (position, layer) in enumerate(inside.items())
                for levels in [after if place < split else until]
            }
            if all(joined[:split]) and all(joined[split + 1 :]) and all(nearest.values()):
                ways.append(nearest)
        nodes_of = ways[0] if len(ways) == 1 else {}
    left = [layer for position, layer in inside.items() if not nodes_of.get(position)]
    return nodes_of, {node for layer in left for node in graph.able(layer, either)}


def _joined(calls: Sequence[Layer], first: int | None, second: int | None) -> bool:
    """Return whether the second call may read what the first one wrote, by their shapes."""
    if first is None or second is None:
        return False
    outputs, inputs = calls[first].outputs, calls[second].inputs
    return not outputs or not inputs or outputs[0] == inputs[0]


def names_operator_of(kernel: str, layer: Layer) -> bool:
    """Return whether the name of a kernel has the operator of the layer, where that is known."""
    pattern = _operator_of(layer.type)
    return pattern is not None and pattern.search(kernel) is not None


@cache
def _operator_of(kind: str) -> re.Pattern[str] | None:
    """Return what the name of a kernel has that computes a layer of type ``kind``."""
    plain = re.sub(r"(?<=[a-z])[123]d$", "", kind.lower().replace("_", ""))
    operator = _OPERATORS.get(plain)
    return None if operator is None else re.compile(rf"(?:^|_|::)(?:{operator})(?:_|$)")

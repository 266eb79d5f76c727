"""The layers of the manifest that each generated kernel of a compiled graph computes.

A kernel computes what the manifest has between two convolutions or products if it reads the result
of the first and feeds the second. Where no kernel does, as between the branches of a network, the
shapes of the layers show which of them follow the first, and which the second needs. The operators
in a kernel's name have to be those of the layers. What this leaves open is not decided.
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

from traceana.model.manifest import Layer
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
    computed: dict[int, set[int]] = defaultdict(set)
    unclear: set[int] = set()
    flows = list(_flows(graph_calls, position_of))
    # Other layers with a call of their own, such as an embedding, end no segment: what they compute
    # is beside a kernel's.
    apart = {position_of[row] for flow in flows for row in flow.others if row in position_of}
    segments = [*pairwise([None, *sorted({*position_of.values()} - apart), None])]
    for flow in flows:
        found = _Found(flow)
        for before, behind in segments:
            if (before, behind) != (None, None):
                found.add(_Segment.of(before, behind, calls, around, apart))
        for node, row in enumerate(flow.rows):
            if row is None or node not in flow.kernels:
                continue
            computed[row] |= found.computed[node]
            if node in found.unclear:
                unclear.add(row)
    paths = {
        row: list(dict.fromkeys(calls[position].path for position in sorted(positions)))
        for row, positions in computed.items()
        if row not in unclear
    }
    return {row: some for row, some in paths.items() if len(some) <= MOST_LAYERS}


class _Flow(msgspec.Struct, frozen=True):
    """What runs behind what in a graph, in the order of the forward pass.

    Nodes are calls; ``weighted`` has the position of each weighted one in the manifest, None where
    it is unknown. ``kernels`` are those that Inductor generated.
    """

    names: list[str]
    rows: list[int | None]
    kernels: frozenset[int]
    weighted: dict[int, int | None]
    next: list[list[int]]
    previous: list[list[int]]

    @property
    def others(self) -> set[int]:
        """The rows of the calls without a weight that are not generated."""
        return {
            row
            for node, row in enumerate(self.rows)
            if row is not None and node not in self.kernels and node not in self.weighted
        }

    def at(self, position: int | None) -> list[int]:
        """Return the nodes of a weighted layer."""
        return [] if position is None else [
            node for node, one in self.weighted.items() if one == position
        ]  # fmt: skip

    def reached(self, nodes: Iterable[int], step: list[list[int]]) -> list[set[int]]:
        """Return the nodes that are reached without a weighted one between, by their distance."""
        levels: list[set[int]] = []
        known: set[int] = set()
        last = set(nodes)
        while last:
            last = {other for one in last for other in step[one]} - known - self.weighted.keys()
            known |= last
            if last:
                levels.append(last)
        return levels


def _flows(graph_calls: pl.DataFrame, position_of: Mapping[int, int]) -> Iterator[_Flow]:
    columns = ["name", "generated", "reads", "layer", "backward"]
    names = pl.col("name").cast(pl.String)
    # Not products of two activations.
    forward = of_kinds("convolution", "linear", "mm").removesuffix("$")
    has_weight = re.compile(rf"{forward}(?:_backward)?$")
    by_graph = graph_calls.with_columns(names).partition_by("rank", "graph", maintain_order=True)
    for graph in by_graph:
        calls = list(graph.select(columns).iter_rows())
        backward = bool(calls) and calls[0][4]
        forth: list[list[int]] = [[] for _ in calls]
        back: list[list[int]] = [[] for _ in calls]
        for node, (_, _, reads, _, _) in enumerate(calls):
            for read in reads:
                first, second = (node, read) if backward else (read, node)
                forth[first].append(second)
                back[second].append(first)
        yield _Flow(
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


class _Segment(msgspec.Struct, frozen=True):
    """The calls of the manifest between those at ``before`` and ``behind``, and their shapes."""

    before: int | None
    behind: int | None
    positions: list[int]
    calls: Sequence[Layer]

    @classmethod
    def of(
        cls,
        before: int | None,
        behind: int | None,
        calls: Sequence[Layer],
        around: Collection[str],
        apart: Collection[int],
    ) -> _Segment:
        first = 0 if before is None else before + 1
        last = len(calls) if behind is None else behind
        inside = [
            position
            for position in range(first, last)
            if position not in apart
            and calls[position].path not in around
            and not calls[position].computes_nothing
        ]
        return cls(before, behind, inside, calls)

    def splits(self) -> Iterator[int]:
        """Yield how many of the calls may follow the first weighted one, the others being what the
        second needs: by the shapes of what each reads and writes."""
        whole = [self.before, *self.positions, self.behind]
        joined = [self._joined(*pair) for pair in pairwise(whole)]
        for split in range(len(self.positions) + 1):
            # The calls on both sides of the split are not joined.
            if all(one for at, one in enumerate(joined) if at != split):
                yield split

    def _joined(self, first: int | None, second: int | None) -> bool:
        if first is None or second is None:
            return False
        outputs, inputs = self.calls[first].outputs, self.calls[second].inputs
        return not outputs or not inputs or outputs[0] == inputs[0]


class _Found:
    """The layers of each node of a graph so far, by position in the manifest's calls."""

    def __init__(self, flow: _Flow) -> None:
        self._flow = flow
        self.computed: dict[int, set[int]] = defaultdict(set)
        self.unclear: set[int] = set()
        # A change of a weight's layout has the operators of earlier kernels in its name.
        self._fed = set().union(*flow.reached(flow.weighted, flow.next))
        self._near_unknown()

    def _near_unknown(self) -> None:
        """What is beside a product whose layer is unknown may be of layers around that one."""
        flow = self._flow
        unknown = [node for node, position in flow.weighted.items() if position is None]
        for step in (flow.next, flow.previous):
            self.unclear |= {other for node in unknown for other in step[node]}

    def add(self, segment: _Segment) -> None:
        """Add the layers of ``segment`` to the kernels that compute them."""
        flow = self._flow
        first, second = flow.at(segment.before), flow.at(segment.behind)
        if not segment.positions or not (first or second):
            return
        behind = flow.reached(first, flow.next)
        before = flow.reached(second, flow.previous)
        if segment.before is not None:
            before = [level & self._fed for level in before]
        either = set().union(*behind, *before)
        between = set().union(*behind) & set().union(*before)
        if between:
            self._between(segment, between, either)
        elif (first or segment.before is None) and (second or segment.behind is None):
            self._beside(segment, behind, before)
        else:
            # The other end is in another graph.
            self._leave_open(segment.positions, segment.calls, either)

    def _between(self, segment: _Segment, between: set[int], either: set[int]) -> None:
        for position in segment.positions:
            layer = segment.calls[position]
            own = self._able(layer, between)
            if own:
                self._compute(position, own)
            else:
                self._leave_open([position], segment.calls, either)

    def _beside(self, segment: _Segment, behind: list[set[int]], before: list[set[int]]) -> None:
        layers = [(position, segment.calls[position]) for position in segment.positions]
        either = set().union(*behind, *before)
        # A layer without a kernel, such as a dropout in evaluation, may be on either side.
        layers = [(position, one) for position, one in layers if self._able(one, either)]
        narrowed = msgspec.structs.replace(segment, positions=[position for position, _ in layers])
        found = []
        for split in narrowed.splits():
            own = [
                self._nearest(layer, behind if place < split else before)
                for place, (_, layer) in enumerate(layers)
            ]
            if all(own):
                found.append(own)
        if len(found) == 1:
            for (position, _), nodes in zip(layers, found[0], strict=True):
                self._compute(position, nodes)
        else:
            self._leave_open(narrowed.positions, segment.calls, either)

    def _nearest(self, layer: Layer, levels: list[set[int]]) -> set[int]:
        return next((own for level in levels if (own := self._able(layer, level))), set())

    def _able(self, layer: Layer, nodes: Collection[int]) -> set[int]:
        """Return those of ``nodes`` that may compute the layer, by the operators in their names."""
        if _operator_of(layer.type) is None:
            return {node for node in nodes if node in self._flow.kernels}
        return {node for node in nodes if names_operator_of(self._flow.names[node], layer)}

    def _compute(self, position: int, nodes: Iterable[int]) -> None:
        for node in nodes:
            self.computed[node].add(position)

    def _leave_open(
        self, positions: Iterable[int], calls: Sequence[Layer], nodes: Collection[int]
    ) -> None:
        for position in positions:
            self.unclear |= self._able(calls[position], nodes)


def names_operator_of(kernel: str, layer: Layer) -> bool:
    """Return whether the name of a kernel has the operator of the layer, where that is known."""
    pattern = _operator_of(layer.type)
    return pattern is not None and pattern.search(kernel) is not None


@cache
def _operator_of(kind: str) -> re.Pattern[str] | None:
    """Return what the name of a kernel has that computes a layer of type ``kind``."""
    operator = _OPERATORS.get(_without_dimensions(kind))
    return None if operator is None else re.compile(rf"(?:^|_|::)(?:{operator})(?:_|$)")


def _without_dimensions(kind: str) -> str:
    """Return the type of a layer without ``_`` and dimensions: ``maxpool``, ``batchnorm``."""
    return re.sub(r"(?<=[a-z])[123]d$", "", kind.lower().replace("_", ""))

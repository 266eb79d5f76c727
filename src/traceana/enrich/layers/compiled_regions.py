"""The operators of graphs that ``torch.compile`` compiled, as if no region were around them.

A compiled graph runs within a few operators: ``Torch-Compiled Region`` and ``CompiledFunction``,
and ``CompiledFunctionBackward`` in the backward pass. Inside are the calls of the generated code:
ATen's convolutions and products, and generated kernels (``triton_poi_fused_relu_0``,
``graph_0_cpp_fused_relu_0``). :func:`looked_into` makes each of them an outermost operator, and
pairs those of a backward graph with those of its forward graph
(:mod:`traceana.enrich.layers.compiled_calls`), because the backward graph has one sequence number
for all.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import count, pairwise
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from traceana.columns.distinct import Texts, first_rows, numbered
from traceana.columns.nesting import NONE, WIDEST, Flags, Ints, Nesting, roots, take
from traceana.enrich.layers.layer_intervals import Layer
from traceana.enrich.layers.roles import SEEDS
from traceana.vocabulary.operators import GENERATED

if TYPE_CHECKING:
    from traceana.enrich import Code
    from traceana.enrich.layers.compiled_calls import Gradients
    from traceana.enrich.layers.generated_code import CodeOfGraph, Own
    from traceana.enrich.layers.inductor_code import Graph

REGION: Final = "Torch-Compiled Region"
CALL: Final = "## Call CompiledFxGraph"
"""Inductor's range around a graph; without recorded shapes, PyTorch writes it as an operator."""
_AROUND: Final = (
    rf"^(?:{REGION}\b|{CALL}|CompiledFunction(?:Backward)?$|Pregraph bytecode$|"
    r"autograd::engine::evaluate_function: CompiledFunctionBackward$|"
    r"AOTDispatcher Runtime Wrapper Prologue$)"
)
"""What is around the calls of a compiled graph, or prepares them."""
_BACKWARD: Final = r"^CompiledFunctionBackward$"


# Not msgspec's: that would import what reads generated code, which few traces need.
@dataclass(frozen=True, slots=True)
class LookedInto:
    """The outermost operator around each operator, and its forward operator (NONE: without)."""

    root: Ints
    forward: Ints
    of_network: Ints
    """The operator around the graph of each operator, in graphs of several weighted layers."""
    _calls: Ints
    """The calls of compiled graphs, in the order of graph and time."""
    _graph: Ints
    """The row of the operator around each call."""
    _behind: Ints
    """Behind which operator of the forward graph the code before each call belongs, then that of
    the code behind the last call of each graph: a call, or the operator around the graph for code
    before all calls. NONE where it is unclear."""
    _around: Ints
    """The operator around the graph whose code an operator runs: itself, or that around it."""
    _nesting: Nesting
    _in_code: Ints
    """The positions of the calls that are part of the generated code around them."""
    codes: tuple[CodeOfGraph, ...] = ()
    """The generated code of the graphs, where it is known."""
    _own: tuple[Own, ...] = ()

    def stretch(self, op: Ints, time: Ints) -> Ints:
        """Return which stretch of generated code runs at each time; NONE for other rows.

        The stretch is a row of :meth:`layers_behind`. The code is part of the operator ``op``
        around the calls of a graph whose generated kernels have no events of their own, as on a
        CPU.
        """
        found = np.full(len(op), NONE, dtype=np.int64)
        if not len(self._graph):
            return found
        op = take(self._around, op)
        here = np.flatnonzero(np.isin(op, self._graph))
        if not len(here):
            return found
        graphs, graph = np.unique(self._graph, return_inverse=True)
        start = self._nesting.start
        first = min(int(start.min()), int(time.min()))
        span = max(int(start.max()), int(time.max())) - first + 1
        if len(graphs) * span >= WIDEST:
            return found
        asked = np.searchsorted(graphs, op[here]) * span + time[here] - first
        following = np.searchsorted(graph * span + start[self._calls] - first, asked)
        found[here] = np.where(
            np.append(self._graph, NONE)[following] == op[here],
            following,
            len(self._calls) + np.searchsorted(graphs, op[here]),
        )
        return found

    def finer(self, layer: Ints) -> Ints:
        """Return ``layer`` without those that graphs of a network have of what is around them."""
        if not len(self._calls):
            return layer
        around = take(layer, self.of_network)
        return np.where((around != NONE) & (around == layer), NONE, layer)

    def layers_behind(self, of_op: Ints, layers: list[Layer], first: int) -> Ints:
        """Return the layer of each stretch of generated code; new ones are appended to ``layers``.

        ``of_op`` is the layer of each operator; those that have generated code of their own get it
        there. Layers before ``first`` are known otherwise, and the code around them too. The code
        is ``fused_0``, ``fused_1`` … in the order of the first forward pass, with the name of its
        kernels where these are known. The last entry is NONE, for no layer.
        """
        rows = np.unique(self._behind[self._behind != NONE])
        before = take(of_op, rows)
        distinct, at = np.unique(before[before >= first], return_index=True)
        distinct = distinct[np.argsort(at)]
        behind = np.full(len(layers) + 1, NONE, dtype=np.int64)
        behind[distinct] = len(layers) + np.arange(len(distinct))
        found = behind[take(of_op, self._behind)]
        names = {int(layer): "fused" for layer in behind[distinct]}
        if self.codes:
            from traceana.enrich.layers.generated_code import label, labels, own_keys

            numbers: dict[object, int] = {}
            for one, key in own_keys(self._own, of_op).items():
                layer = numbers.setdefault(key, len(layers) + len(names))
                names.setdefault(layer, "fused")
                if one.call == NONE:
                    found[one.stretch] = layer
                else:
                    names[layer] = label(one.code.code[one.position].name)
                    of_op[self.root == one.call] = layer
            names |= {
                layer: name for layer, name in labels(self.codes, found).items() if layer in names
            }
        self._place_calls(of_op, found)
        taken = {path for path, _, _ in layers}
        for number, name in enumerate(names.values()):
            numbered_paths = (f"{name}_{one}" for one in count(number))
            path = next(one for one in numbered_paths if one not in taken)
            layers.append((path, "fused", "layer"))
            taken.add(path)
        return np.append(found, NONE)

    def _place_calls(self, of_op: Ints, of_stretch: Ints) -> None:
        """Give the calls amid generated code the layer of the code before them, or behind them."""
        if not len(self._in_code):
            return
        count = len(self._calls)
        _, graph = np.unique(self._graph, return_inverse=True)
        continued = np.append(self._graph[1:] == self._graph[:-1], False)
        following = np.where(continued, np.arange(1, count + 1), count + graph)
        before, behind = (of_stretch[one] for one in (self._in_code, following[self._in_code]))
        of_call = np.full(len(of_op), NONE, dtype=np.int64)
        of_call[self._calls[self._in_code]] = np.where(before == NONE, behind, before)
        known = take(of_call, self.root)
        np.copyto(of_op, known, where=known != NONE)


def looked_into(
    ops: pl.DataFrame,
    names: Texts,
    nesting: Nesting,
    forward: Ints,
    code: Code | None = None,
) -> LookedInto:
    """Return the outermost and the forward operators of ``ops``, inside compiled regions too.

    ``forward`` is that of :func:`traceana.enrich.operators.forward_of`, which has one forward
    operator for all of a backward graph. ``code`` returns the graphs of Inductor's generated code.
    """
    root, nothing = roots(nesting), np.zeros(0, dtype=np.int64)
    nowhere = np.full(len(root), NONE, dtype=np.int64)
    undivided = LookedInto(
        root, forward, nowhere, nothing, nothing, nothing, nothing, nesting, nothing
    )
    if not names.distinct.str.starts_with(REGION).any():
        return undivided
    regions = (names.matching(pattern) for pattern in (_AROUND, rf"^{REGION}\b", rf"^{SEEDS}$"))
    root, open_ = _within(nesting, root, *regions)
    calls = np.flatnonzero((root == np.arange(len(root))) & (nesting.parent != NONE))
    calls = calls[open_[nesting.parent[calls]]]
    if not len(calls):
        return undivided
    around = np.arange(len(root))
    within = np.flatnonzero(names.matching(f"^{CALL}") & (nesting.parent != NONE))
    around[within] = nesting.parent[within]
    graph = around[nesting.parent[calls]]
    order = np.lexsort((nesting.start[calls], graph))
    calls, graph = calls[order], graph[order]
    backward = np.flatnonzero(open_ & names.matching(_BACKWARD) & (forward != NONE))
    found = _forward_calls(ops, calls, graph, backward, forward[backward])
    own, of_network = nowhere.copy(), nowhere.copy()
    own[calls] = found.forward
    behind = np.append(found.before, [found.last[row] for row in np.unique(graph).tolist()])
    codes: tuple[CodeOfGraph, ...] = ()
    without_layer: tuple[Own, ...] = ()
    if code is not None and (graphs := code()):
        pairs = dict(zip(backward.tolist(), forward[backward].tolist(), strict=True))
        by_row = _codes(ops, calls, graph, own, pairs, graphs)
        codes = tuple(by_row.values())
        both = [
            (by_row[row], by_row[of_row])
            for row, of_row in pairs.items()
            if row in by_row and of_row in by_row
        ]
        from traceana.enrich.layers.generated_code import idle, place

        without_layer = tuple(place(both, behind, own))
        behind[idle(codes)] = NONE
    own = nesting.inherit(own)
    several = np.isin(graph, _several(graph[found.weighted]))
    of_network[calls[several]] = graph[several]
    of_network = nesting.inherit(of_network)
    # A graph without products, as that of an optimizer, is not divided. Where generated kernels
    # have events, the rest is the cost of calling them.
    with_events = graph[names.matching(GENERATED)[calls]]
    whole = np.union1d(np.setdiff1d(graph, graph[found.weighted]), with_events)
    behind[np.isin(np.append(graph, np.unique(graph)), whole)] = NONE
    forward = np.where(own == NONE, forward, own)
    return LookedInto(
        root, forward, of_network, calls, graph, behind, around, nesting, found.in_code, codes,
        without_layer,
    )  # fmt: skip


def _codes(
    ops: pl.DataFrame,
    calls: Ints,
    graph: Ints,
    forward: Ints,
    backward: Collection[int],
    graphs: Collection[Graph],
) -> dict[int, CodeOfGraph]:
    """Return the generated code of each graph, by the row of the operator around it."""
    from traceana.enrich.layers.compiled_calls import compiled_call
    from traceana.enrich.layers.generated_code import CodeSearch

    search = CodeSearch(graphs, lambda name: compiled_call(name, None).weighted)
    names, shapes = (
        ops[column].gather(calls).cast(pl.String).to_list() for column in ("name", "input_shapes")
    )
    found = {}
    for number, (row, here) in enumerate(zip(*_stretches(graph), strict=True)):
        own = calls[here].tolist()
        code = search.code(
            names[here],
            shapes[here],
            own,
            forward[own].tolist(),
            [*range(here.start, here.stop), len(calls) + number],
            backward=row in backward,
        )
        if code is not None:
            found[row] = code
    return found


def _several(graph: Ints) -> Ints:
    """Return the numbers that occur more than once."""
    distinct, count = np.unique(graph, return_counts=True)
    return distinct[count > 1]


def _within(
    nesting: Nesting, root: Ints, around: Flags, region: Flags, seeds: Flags
) -> tuple[Ints, Flags]:
    """Return the outermost operators, where those directly inside a region are outermost too but
    ``seeds``, and which operators are a region or one of those around its calls."""
    root, open_ = root.copy(), np.zeros(len(root), dtype=np.bool_)
    outermost, *deeper = nesting.levels
    open_[outermost] = around[outermost]
    for rows in deeper:
        above = nesting.parent[rows]
        open_[rows] = around[rows] & (open_[above] | region[rows])
        outer = open_[above] & ~open_[rows] & ~seeds[rows]
        root[rows] = np.where(outer, rows, root[above])
    return root, open_


class _Calls(msgspec.Struct, frozen=True):
    """Of each call of a compiled graph: its forward operator, and that behind which the code before
    the call belongs; of each graph, that of the code behind its last call. NONE without one.

    ``in_code`` are the positions of the calls that are part of the code around them.
    """

    forward: Ints
    before: Ints
    last: dict[int, int]
    weighted: Flags
    in_code: Ints


def _forward_calls(
    ops: pl.DataFrame, calls: Ints, graph: Ints, backward: Ints, forward: Ints
) -> _Calls:
    """Return what the calls of compiled graphs belong to.

    ``calls`` are in the order of their ``graph`` and of time; ``backward`` has the operators around
    the calls of backward graphs, ``forward`` those of the forward graphs.
    """
    from traceana.enrich.layers.compiled_calls import compiled_call, gradients

    found = np.full(len(calls), NONE, dtype=np.int64)
    before = np.where(np.diff(graph, prepend=NONE) == 0, np.roll(calls, 1), graph)
    (code,) = numbered(ops.select("name", pl.col("input_shapes").cast(pl.Categorical))[calls])
    first = calls[first_rows(code)]
    described = [
        compiled_call(str(name), shapes)
        for name, shapes in ops.select("name", "input_shapes")[first].iter_rows()
    ]
    of_graph = dict(zip(*_stretches(graph), strict=True))
    last = {row: int(calls[own.stop - 1]) for row, own in of_graph.items()}
    # Each step calls the same graphs.
    pairs: dict[tuple[bytes, bytes], Gradients] = {}
    in_code = np.zeros(len(calls), dtype=np.bool_)
    for row, of_row in zip(backward.tolist(), forward.tolist(), strict=True):
        here, there = of_graph.get(row), of_graph.get(of_row)
        if here is None:
            continue
        before[here] = last[row] = NONE
        if there is None:
            continue
        both = code[there], code[here]
        key = both[0].tobytes(), both[1].tobytes()
        if key not in pairs:
            pairs[key] = gradients(*([described[one] for one in codes.tolist()] for codes in both))
        paired = pairs[key]
        if (paired.forward == NONE).all():
            continue
        found[here] = take(calls[there], paired.forward)
        before[here] = take(calls[there], paired.before)
        in_code[here] = paired.in_code
        # The gradient of what runs before all forward calls comes last.
        before[here][before[here] == NONE] = last[row] = of_row
    weighted = np.array([one.weighted for one in described], dtype=np.bool_)[code]
    return _Calls(found, before, last, weighted, np.flatnonzero(in_code))


def _stretches(graph: Ints) -> tuple[list[int], list[slice]]:
    """Return the graphs, and where the calls of each are."""
    begins = np.flatnonzero(np.diff(graph, prepend=NONE - 1)).tolist()
    places = [slice(*ends) for ends in pairwise([*begins, len(graph)])]
    return graph[begins].tolist(), places

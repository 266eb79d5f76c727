"""The operators of graphs that ``torch.compile`` compiled, as if no region were around them.

A compiled graph runs within a few operators: ``Torch-Compiled Region`` and ``CompiledFunction``,
and ``CompiledFunctionBackward`` in the backward pass. Inside are the calls of the generated code:
ATen's convolutions and products, and generated kernels (``triton_poi_fused_relu_0``,
``graph_0_cpp_fused_relu_0``). :func:`compiled_graphs` makes each of them an outermost operator, and
pairs those of a backward graph with those of its forward graph (:func:`gradients`), because the
backward graph has one sequence number for all.

Between its calls, a graph runs generated code. Where generated kernels have no events of their own,
as on a CPU, each *stretch* of it is a layer: n calls have n + 1 stretches, the first before all
calls.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from math import prod
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
import polars as pl

from traceana.columns.distinct import Texts, first_rows, numbered
from traceana.columns.nesting import NONE, WIDEST, Flags, Ints, Nesting, roots, take
from traceana.enrich.layers.source import Layer
from traceana.flops.call import Call, Shape, UncountableError
from traceana.vocabulary.operators import (
    COMPILED_GRAPH,
    COMPILED_REGION,
    GENERATED,
    SEEDS,
    TEMPLATE,
)

if TYPE_CHECKING:
    from traceana.enrich.layers.generated_code import Code, CodeOfGraph, Own

_AROUND: Final = (
    rf"^(?:{COMPILED_REGION}\b|{COMPILED_GRAPH}|CompiledFunction(?:Backward)?$|Pregraph bytecode$|"
    r"autograd::engine::evaluate_function: CompiledFunctionBackward$|"
    r"AOTDispatcher Runtime Wrapper Prologue$)"
)
"""What is around the calls of a compiled graph, or prepares them."""
_BACKWARD: Final = r"^CompiledFunctionBackward$"


# Not msgspec's: that would import what reads generated code, which few traces need.
@dataclass(frozen=True, slots=True)
class CompiledGraphs:
    """The compiled graphs of a trace: their calls, in the order of graph and time.

    A graph is one run, numbered in the order of ``rows``, the operators around their calls. The
    stretches before call ``i`` of graph ``g`` is number ``i + g``.
    """

    root: Ints
    """The outermost operator around each operator."""
    forward: Ints
    """The forward operator of each operator, NONE without."""
    of_network: Ints
    """The operator around the graph of each operator, in graphs of several weighted layers."""
    calls: Ints
    graph: Ints
    rows: Ints
    behind: Ints
    """Behind which operator of the forward graph each stretch belongs: a call, or the operator
    around the graph for code before all calls. NONE where it is unclear."""
    around: Ints
    """The operator around the graph whose code an operator runs: itself, or that around it."""
    in_code: Ints
    """The calls, by position, that are part of the generated code around them."""
    codes: tuple[CodeOfGraph, ...]
    """The generated code of the graphs, where it is known."""
    own: tuple[Own, ...]
    """Generated code that is of no layer of the forward pass."""
    nesting: Nesting

    def finer(self, layer: Ints) -> Ints:
        """Return ``layer`` without those that graphs of a network have of what is around them."""
        around = take(layer, self.of_network)
        return np.where((around != NONE) & (around == layer), NONE, layer)

    def stretch(self, op: Ints, time: Ints) -> Ints:
        """Return which stretch of generated code runs at each time; NONE for other rows.

        The code is part of the operator ``op`` around the calls of a graph.
        """
        found = np.full(len(op), NONE, dtype=np.int64)
        op = take(self.around, op)
        here = np.flatnonzero(np.isin(op, self.rows))
        if not len(here):
            return found
        start = self.nesting.start
        first = min(int(start.min()), int(time.min()))
        span = max(int(start.max()), int(time.max())) - first + 1
        if len(self.rows) * span >= WIDEST:
            return found
        graph = np.searchsorted(self.rows, op[here])
        begun = self.graph * span + start[self.calls] - first
        found[here] = np.searchsorted(begun, graph * span + time[here] - first) + graph
        return found

    def layers_behind(self, of_op: Ints, layers: list[Layer], first: int) -> Ints:
        """Return the layer of each stretch of generated code; new ones are appended to ``layers``.

        ``of_op`` is the layer of each operator; those that have generated code of their own get it
        there. Layers before ``first`` are known otherwise, and the code around them too. The code
        is ``fused_0``, ``fused_1`` … in the order of the first forward pass, with the name of its
        kernels where these are known. The last entry is NONE, for no layer.
        """
        before = take(of_op, np.unique(self.behind[self.behind != NONE]))
        distinct, at = np.unique(before[before >= first], return_index=True)
        distinct = distinct[np.argsort(at)]
        fused = np.full(len(layers) + 1, NONE, dtype=np.int64)
        fused[distinct] = len(layers) + np.arange(len(distinct))
        found = fused[take(of_op, self.behind)]
        names = {int(layer): "fused" for layer in fused[distinct]}
        if self.codes:
            from traceana.enrich.layers.generated_code import label, labels

            numbers: dict[object, int] = {}
            for one in self.own:
                # Equal for the runs of one kernel in several steps.
                owners = frozenset(int(of_op[owner]) for owner in one.owners)
                key = one.code.code, one.position, owners
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
        # Calls amid generated code have the layer of the code before them, or behind them.
        stretch = self.in_code + self.graph[self.in_code]
        of_call = np.full(len(of_op), NONE, dtype=np.int64)
        of_call[self.calls[self.in_code]] = np.where(
            found[stretch] == NONE, found[stretch + 1], found[stretch]
        )
        known = take(of_call, self.root)
        np.copyto(of_op, known, where=known != NONE)
        taken = {path for path, _, _ in layers}
        for number, name in enumerate(names.values()):
            paths = (f"{name}_{one}" for one in count(number))
            path = next(one for one in paths if one not in taken)
            layers.append((path, "fused", "layer"))
            taken.add(path)
        return np.append(found, NONE)


def compiled_graphs(
    ops: pl.DataFrame, names: Texts, nesting: Nesting, forward: Ints, code: Code | None = None
) -> CompiledGraphs | None:
    """Return the compiled graphs of a trace, None without.

    ``forward`` is that of :func:`traceana.enrich.operators.forward_of`, which has one forward
    operator for all of a backward graph. ``code`` returns the graphs of Inductor's generated code.
    """
    if not names.distinct.str.starts_with(COMPILED_REGION).any():
        return None
    # The operators directly inside a region are outermost, except for what draws the seeds.
    around, region, seeds = (
        names.matching(pattern) for pattern in (_AROUND, rf"^{COMPILED_REGION}\b", rf"^{SEEDS}$")
    )
    parent = nesting.parent
    root, opened = roots(nesting), np.zeros(ops.height, dtype=np.bool_)
    outermost, *deeper = nesting.levels
    opened[outermost] = around[outermost]
    for level in deeper:
        above = parent[level]
        opened[level] = around[level] & (opened[above] | region[level])
        outer = opened[above] & ~opened[level] & ~seeds[level]
        root[level] = np.where(outer, level, root[above])
    every = np.arange(ops.height)
    calls = np.flatnonzero((root == every) & (parent != NONE))
    calls = calls[opened[parent[calls]]]
    if not len(calls):
        return None
    # Inductor's own range around a graph is part of the operator around it.
    within = names.matching(f"^{COMPILED_GRAPH}") & (parent != NONE)
    around_graph = np.where(within, parent, every)
    row = around_graph[parent[calls]]
    order = np.lexsort((nesting.start[calls], row))
    calls, row = calls[order], row[order]
    rows, begins, graph = np.unique(row, return_index=True, return_inverse=True)
    calls_of = [slice(*ends) for ends in pairwise([*begins.tolist(), len(calls)])]
    stretches_of = [slice(at.start + g, at.stop + g + 1) for g, at in enumerate(calls_of)]

    # Each step calls the same graphs: distinct calls and pairs of graphs are read once.
    (kind,) = numbered(ops.select("name", pl.col("input_shapes").cast(pl.Categorical))[calls])
    described = [
        compiled_call(str(name), shapes)
        for name, shapes in ops.select("name", "input_shapes")[calls[first_rows(kind)]].iter_rows()
    ]
    behind = np.insert(calls, begins, rows)
    own, in_code = np.full(len(calls), NONE, dtype=np.int64), np.zeros(len(calls), dtype=np.bool_)
    backward = np.flatnonzero(opened & names.matching(_BACKWARD) & (forward != NONE))
    number = {graph_row: g for g, graph_row in enumerate(rows.tolist())}
    backward_graphs = {number[one]: int(forward[one]) for one in backward.tolist() if one in number}
    known: dict[tuple[bytes, bytes], tuple[Ints, Ints, Flags]] = {}
    for g, forward_row in backward_graphs.items():
        here, stretches = calls_of[g], stretches_of[g]
        behind[stretches] = NONE
        if forward_row not in number:
            continue
        there = calls_of[number[forward_row]]
        key = kind[there].tobytes(), kind[here].tobytes()
        if key not in known:
            known[key] = gradients(*([described[k] for k in kind[at]] for at in (there, here)))
        of_calls, of_stretches, part_of_code = known[key]
        if (of_calls != NONE).any():
            own[here], in_code[here] = take(calls[there], of_calls), part_of_code
            # The gradient of what runs before all forward calls comes last.
            before = take(calls[there], of_stretches)
            behind[stretches] = np.where(before == NONE, forward_row, before)

    of_op = np.full(ops.height, NONE, dtype=np.int64)
    of_op[calls] = own
    codes: dict[int, CodeOfGraph] = {}
    without_layer: tuple[Own, ...] = ()
    if code is not None and (graphs := code()):
        from traceana.enrich.layers.generated_code import CodeSearch, idle, place

        search = CodeSearch(graphs, lambda name: compiled_call(name, None).weighted)
        texts, shapes = (
            ops[column].gather(calls).cast(pl.String).to_list()
            for column in ("name", "input_shapes")
        )
        for g, at in enumerate(calls_of):
            found = search.code(
                texts[at], shapes[at], calls[at].tolist(), own[at].tolist(),
                range(stretches_of[g].start, stretches_of[g].stop), backward=g in backward_graphs,
            )  # fmt: skip
            if found is not None:
                codes[g] = found
        pairs = [
            (codes[g], codes[number[forward_row]])
            for g, forward_row in backward_graphs.items()
            if g in codes and number.get(forward_row) in codes
        ]
        without_layer = tuple(place(pairs, behind, of_op))
        behind[idle(codes.values())] = NONE

    # A graph without products, as that of an optimizer, is not divided. Where generated kernels
    # have events, the rest is the cost of calling them.
    weighted = np.bincount(graph, np.array([one.weighted for one in described])[kind])
    with_events = np.bincount(graph, names.matching(GENERATED)[calls])
    whole = (weighted == 0) | (with_events > 0)
    behind[whole[np.insert(graph, begins, graph[begins])]] = NONE
    of_network = np.full(ops.height, NONE, dtype=np.int64)
    of_network[calls] = np.where(weighted[graph] > 1, row, NONE)
    of_op = nesting.inherit(of_op)
    return CompiledGraphs(
        root,
        np.where(of_op == NONE, forward, of_op),
        nesting.inherit(of_network),
        calls,
        graph,
        rows,
        behind,
        around_graph,
        np.flatnonzero(in_code),
        tuple(codes.values()),
        without_layer,
        nesting,
    )


_GENERATED: Final = r"^(?:graph_\d+_)?(?:cpp|triton_[a-z]+)_fused_?"
"""The beginning of the name of a generated kernel; the names of what it fuses follow."""
_NUMBER: Final = r"_\d+$"
"""The end of that name: the kernel's number in its graph."""
_PRODUCT: Final = re.compile(r"(?:^|_)(?:addmm|baddbmm|bmm|mm|linear)(?:_|$)")
_CONVOLUTION: Final = re.compile(r"convolution|conv[123]d")
_Extents = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class CompiledCall:
    """A call of a compiled graph: what it computes, and its operands.

    ``kind`` is empty for generated kernels, which compute what ``words`` name. ``biased`` products
    add a vector to each row, which the gradient of a product never does.
    """

    kind: str
    operands: tuple[Shape, ...]
    of_gradient: bool
    words: frozenset[str]
    biased: bool = False

    @property
    def weighted(self) -> bool:
        """Whether the call is a convolution, a product or attention."""
        return self.kind in ("convolution", "product") or "attention" in self.kind

    @property
    def extents(self) -> _Extents | None:
        """Rows, inner extent and columns of a product; None without recorded shapes."""
        if self.kind != "product" or len(self.operands) < 2:
            return None
        left, right = self.operands
        rows = left[-2] if len(left) > 1 else 0
        if left[-1] == right[-2]:
            return rows, left[-1], right[-1]
        # The weight of a linear layer has a row for each output.
        return (rows, left[-1], right[-2]) if left[-1] == right[-1] else None

    @property
    def extents_of_pixels(self) -> _Extents | None:
        """Extents of the product of pixels by channels that a convolution of one pixel is.

        Inductor writes such a convolution as a product, and its gradient not.
        """
        if self.kind != "convolution" or len(self.operands) < 2:
            return None
        image, weight = self.operands
        if len(image) == len(weight) > 2 and prod(weight[2:]) == 1 and image[1] == weight[1]:
            return image[0] * prod(image[2:]), weight[1], weight[0]
        return None


def compiled_call(name: str, shapes: str | None) -> CompiledCall:
    """Return what a call computes."""
    short = name.rpartition("::")[2]
    words = re.sub(_NUMBER, "", re.sub(_GENERATED, "", short))
    if re.match(_GENERATED, name) and not name.startswith(TEMPLATE):
        return CompiledCall("", (), False, frozenset(words.split("_")) - {"", "backward"})
    try:
        call = Call.decode(name, shapes)
        tensors = tuple(call.shape(position) for position in call.tensors())
    except UncountableError:
        tensors = ()
    of_gradient = "backward" in short
    kind, biased = short.replace("_backward", ""), False
    if _CONVOLUTION.search(short):
        # Its gradient has that of the output first.
        kind, tensors = "convolution", tensors[of_gradient:][:2]
    elif _PRODUCT.search(short):
        kind = "product"
        # The addend comes first, such as a bias.
        adds = short.startswith(("addmm", "baddbmm"))
        biased = adds and [len(one) for one in tensors[:1]] == [1]
        tensors = tuple(one for one in tensors[adds:] if len(one) > 1)[:2]
    elif "attention" in short:
        kind, tensors = kind.replace("_for_cpu", ""), tensors[of_gradient:][:2]
    else:
        tensors = ()
    return CompiledCall(kind, tensors, of_gradient, frozenset(words.split("_")) - {""}, biased)


_MOST_NEAR: Final = 64
"""Calls behind a forward operator among which that of a generated kernel is looked for."""
_Key = TypeVar("_Key")


def gradients(
    forward: Sequence[CompiledCall], backward: Sequence[CompiledCall]
) -> tuple[Ints, Ints, Flags]:
    """Return, by position, what the calls and the stretches of a backward graph belong to.

    These are the forward call of each call; the forward call behind which each stretch belongs; and
    which calls are part of the generated code around them. NONE where it is unclear.

    A backward pass runs in reverse. Convolutions, attention and other operators with a gradient of
    their own are paired in that order where their operands are equal; where the forward graph has
    more, the first ones need no gradient. A product has two gradients, each a product of the same
    three extents. A call that a checkpoint computes again is identified by its operands, where no
    other has the same. Generated code comes before the gradient that needs its result: it belongs
    to what ran behind that one's forward operator.
    """
    found = np.full(len(backward), NONE, dtype=np.int64)

    def positions(
        calls: Sequence[CompiledCall], key: Callable[[int, CompiledCall], _Key | None]
    ) -> defaultdict[_Key, list[int]]:
        """Return the positions of the calls of each key."""
        of_key = defaultdict(list)
        for position, call in enumerate(calls):
            if (value := key(position, call)) is not None:
                of_key[value].append(position)
        return of_key

    def pair(mine: Sequence[int], theirs: Sequence[int]) -> None:
        """Pair forward and backward calls in reverse order, unless there are too many gradients."""
        if 0 < len(theirs) <= len(mine):
            found[list(theirs)] = mine[::-1][: len(theirs)]

    forward_by_operands, backward_by_operands = (
        positions(
            calls,
            lambda _, one: (
                (one.kind, one.operands, one.of_gradient, one.biased) if one.operands else None
            ),
        )
        for calls in (forward, backward)
    )
    for (kind, operands, of_gradient, biased), theirs in backward_by_operands.items():
        if of_gradient:
            pair(forward_by_operands[kind, operands, False, biased], theirs)

    products = positions(forward, lambda _, one: one.extents)
    of_pixels = positions(
        backward, lambda at, one: one.extents_of_pixels if found[at] == NONE else None
    )
    for extents, theirs in of_pixels.items():
        if len(theirs) == len(products[extents]):
            pair(products[extents], theirs)

    # Of a product (n, k, m) the gradient of the input is (n, m, k); that of the weight is
    # (m, n, k), or (k, n, m) where it is computed transposed. Biased products of the backward pass
    # are those that a checkpoint computes again.
    paired = set(found.tolist())
    products = positions(forward, lambda at, one: None if at in paired else one.extents)
    results = positions(backward, lambda _, one: None if one.biased else one.extents)
    wanted = {
        (n, k, m): ((n, m, k), (m, n, k) if (m, n, k) in results else (k, n, m))
        for n, k, m in products
    }
    claims = Counter(extents for both in wanted.values() for extents in both)
    unclear = defaultdict(list)
    for own, both in wanted.items():
        if all(claims[extents] == 1 for extents in both):
            for extents in both:
                pair(products[own], results[extents])
        else:
            unclear[tuple(sorted(own))].append(own)
    # Products that these do not tell apart are paired where there are two gradients for each: a
    # product's own two run one after the other.
    for alike in unclear.values():
        mine = sorted(position for own in alike for position in products[own])
        extents_of_results = {extents for own in alike for extents in wanted[own]}
        theirs = sorted(at for extents in extents_of_results for at in results[extents])
        if len(theirs) == 2 * len(mine):
            pair([one for one in mine for _ in range(2)], theirs)

    # From each stretch on, the forward call whose first gradient comes next. Other gradients of a
    # call are not counted: that of a weight may run at the end.
    with_forward = np.flatnonzero(found != NONE)
    first = with_forward[np.sort(np.unique(found[with_forward], return_index=True)[1])]
    upcoming = take(
        found, np.append(first, NONE)[np.searchsorted(first, np.arange(len(found) + 1))]
    )
    in_code = np.zeros(len(backward), dtype=np.bool_)
    if not len(first) and any(one.weighted for one in backward):
        # Without recorded shapes nothing tells the calls apart.
        return found, upcoming, in_code
    # What a checkpoint computes again is not a gradient: it does not show where the pass is.
    for operands_key, theirs in backward_by_operands.items():
        if len(theirs) == 1 == len(forward_by_operands[operands_key]) and found[theirs[0]] == NONE:
            found[theirs] = forward_by_operands[operands_key]

    # The other calls compute the gradient of what ran behind the upcoming forward operator, up to
    # the next one that is paired; after the last gradient, that of what ran before all these
    # operators. Without a call there they belong to the operator itself, as the sum that is the
    # gradient of a bias. Where generated kernels have no events, what ran there is generated code.
    ends = [NONE, *sorted({*found[found != NONE].tolist()}), len(forward)]
    ran_behind = {one: range(one + 1, other) for one, other in pairwise(ends)}
    events = any(not one.kind for one in (*forward, *backward))
    last = NONE
    for position, one in enumerate(backward):
        if found[position] != NONE:
            last = int(found[position])
            continue
        if one.operands or one.weighted:
            # Computed again, or the gradient of a product that shapes do not identify.
            continue
        target = int(upcoming[position])
        near = ran_behind[target][:_MOST_NEAR]
        alike_words = {other: len(one.words & forward[other].words) for other in near}
        best = max(alike_words, key=alike_words.__getitem__, default=NONE)
        if best != NONE and alike_words[best]:
            found[position] = best
        elif not events:
            in_code[position] = True
        elif target == NONE:
            # After the last gradient there may be a conversion of that one.
            found[position] = last
        else:
            found[position] = target if best == NONE else best
    return found, upcoming, in_code

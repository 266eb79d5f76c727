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
    from traceana.enrich.layers.generated_code import Code, CodeOfGraph, UnmatchedCode

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
    own: tuple[UnmatchedCode, ...]
    """Generated code that belongs to no layer of the forward pass."""
    nesting: Nesting

    def finer(self, layer: Ints) -> Ints:
        """Return ``layer`` without the layers that graphs of a network inherit from around them."""
        around = take(layer, self.of_network)
        return np.where((around != NONE) & (around == layer), NONE, layer)

    def stretch(self, op: Ints, time: Ints) -> Ints:
        """Return which stretch of generated code runs at each time; NONE for other rows.

        The code is part of the operator ``op`` around the calls of a graph.
        """
        stretch = np.full(len(op), NONE, dtype=np.int64)
        graph_row = take(self.around, op)
        in_graph = np.flatnonzero(np.isin(graph_row, self.rows))
        if not len(in_graph):
            return stretch
        start = self.nesting.start
        first = min(int(start.min()), int(time.min()))
        span = max(int(start.max()), int(time.max())) - first + 1
        if len(self.rows) * span >= WIDEST:
            return stretch
        graph = np.searchsorted(self.rows, graph_row[in_graph])
        call_begins = self.graph * span + start[self.calls] - first
        begun = np.searchsorted(call_begins, graph * span + time[in_graph] - first)
        stretch[in_graph] = begun + graph
        return stretch

    def layers_behind(self, of_op: Ints, layers: list[Layer], first: int) -> Ints:
        """Return the layer of each stretch of generated code; new ones are appended to ``layers``.

        ``of_op`` is the layer of each operator; those that have generated code of their own get it
        there. Layers before ``first`` are known otherwise, and the code around them too. The code
        is ``fused_0``, ``fused_1`` … in the order of the first forward pass, with the name of its
        kernels where these are known. The last entry is NONE, for no layer.
        """
        before = take(of_op, np.unique(self.behind[self.behind != NONE]))
        distinct, first_use = np.unique(before[before >= first], return_index=True)
        distinct = distinct[np.argsort(first_use)]
        fused = np.full(len(layers) + 1, NONE, dtype=np.int64)
        fused[distinct] = len(layers) + np.arange(len(distinct))
        layer_of_stretch = fused[take(of_op, self.behind)]
        names = {int(layer): "fused" for layer in fused[distinct]}
        if self.codes:
            from traceana.enrich.layers.generated_code import label, labels

            layer_of_code: dict[object, int] = {}
            for part in self.own:
                # Equal for the runs of one kernel in several steps.
                owners = frozenset(int(of_op[owner]) for owner in part.owners)
                key = part.code.code, part.position, owners
                layer = layer_of_code.setdefault(key, len(layers) + len(names))
                names.setdefault(layer, "fused")
                if part.call == NONE:
                    layer_of_stretch[part.stretch] = layer
                else:
                    names[layer] = label(part.code.code[part.position].name)
                    of_op[self.root == part.call] = layer
            labelled = labels(self.codes, layer_of_stretch).items()
            names |= {layer: name for layer, name in labelled if layer in names}
        # Calls amid generated code have the layer of the code before them, or behind them.
        stretch = self.in_code + self.graph[self.in_code]
        of_stretch = layer_of_stretch[stretch]
        of_call = np.full(len(of_op), NONE, dtype=np.int64)
        of_call[self.calls[self.in_code]] = np.where(
            of_stretch == NONE, layer_of_stretch[stretch + 1], of_stretch
        )
        of_root = take(of_call, self.root)
        np.copyto(of_op, of_root, where=of_root != NONE)
        taken = {path for path, _, _ in layers}
        for number, name in enumerate(names.values()):
            paths = (f"{name}_{suffix}" for suffix in count(number))
            path = next(path for path in paths if path not in taken)
            layers.append((path, "fused", "layer"))
            taken.add(path)
        return np.append(layer_of_stretch, NONE)


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
        becomes_root = opened[above] & ~opened[level] & ~seeds[level]
        root[level] = np.where(becomes_root, level, root[above])
    all_ops = np.arange(ops.height)
    calls = np.flatnonzero((root == all_ops) & (parent != NONE))
    calls = calls[opened[parent[calls]]]
    if not len(calls):
        return None

    # Calls by graph: a graph is identified by the operator around its calls. Inductor's own range
    # around a graph is part of the operator around it.
    is_inner_range = names.matching(f"^{COMPILED_GRAPH}") & (parent != NONE)
    around_graph = np.where(is_inner_range, parent, all_ops)
    graph_row = around_graph[parent[calls]]
    order = np.lexsort((nesting.start[calls], graph_row))
    calls, graph_row = calls[order], graph_row[order]
    rows, begins, graph = np.unique(graph_row, return_index=True, return_inverse=True)
    calls_of = [slice(*ends) for ends in pairwise([*begins.tolist(), len(calls)])]
    stretches_of = [slice(at.start + g, at.stop + g + 1) for g, at in enumerate(calls_of)]
    graph_of_row = {row: g for g, row in enumerate(rows.tolist())}

    # Each step calls the same graphs: distinct calls and pairs of graphs are read once.
    (kind,) = numbered(ops.select("name", pl.col("input_shapes").cast(pl.Categorical))[calls])
    call_of_kind = [
        compiled_call(str(name), shapes)
        for name, shapes in ops.select("name", "input_shapes")[calls[first_rows(kind)]].iter_rows()
    ]
    behind = np.insert(calls, begins, rows)
    forward_call = np.full(len(calls), NONE, dtype=np.int64)
    in_code = np.zeros(len(calls), dtype=np.bool_)
    backward_rows = np.flatnonzero(opened & names.matching(_BACKWARD) & (forward != NONE))
    forward_row_of_backward = {
        graph_of_row[row]: int(forward[row])
        for row in backward_rows.tolist()
        if row in graph_of_row
    }
    gradients_of_kinds: dict[tuple[bytes, bytes], tuple[Ints, Ints, Flags]] = {}
    for g, forward_row in forward_row_of_backward.items():
        backward_slice, stretches = calls_of[g], stretches_of[g]
        behind[stretches] = NONE
        if forward_row not in graph_of_row:
            continue
        forward_slice = calls_of[graph_of_row[forward_row]]
        key = kind[forward_slice].tobytes(), kind[backward_slice].tobytes()
        if key not in gradients_of_kinds:
            gradients_of_kinds[key] = gradients(
                [call_of_kind[k] for k in kind[forward_slice]],
                [call_of_kind[k] for k in kind[backward_slice]],
            )
        of_calls, of_stretches, part_of_code = gradients_of_kinds[key]
        if (of_calls != NONE).any():
            forward_call[backward_slice] = take(calls[forward_slice], of_calls)
            in_code[backward_slice] = part_of_code
            # The gradient of what runs before all forward calls comes last.
            before = take(calls[forward_slice], of_stretches)
            behind[stretches] = np.where(before == NONE, forward_row, before)

    forward_of_op = np.full(ops.height, NONE, dtype=np.int64)
    forward_of_op[calls] = forward_call
    codes: dict[int, CodeOfGraph] = {}
    without_layer: tuple[UnmatchedCode, ...] = ()
    if code is not None and (generated := code()):
        from traceana.enrich.layers.generated_code import CodeSearch, idle, place

        search = CodeSearch(generated, lambda name: compiled_call(name, None).weighted)
        texts, shapes = (
            ops[column].gather(calls).cast(pl.String).to_list()
            for column in ("name", "input_shapes")
        )
        for g, (at, stretches) in enumerate(zip(calls_of, stretches_of, strict=True)):
            code_of_graph = search.code(
                texts[at],
                shapes[at],
                calls[at].tolist(),
                forward_call[at].tolist(),
                range(stretches.start, stretches.stop),
                backward=g in forward_row_of_backward,
            )
            if code_of_graph is not None:
                codes[g] = code_of_graph
        pairs = [
            (codes[g], codes[graph_of_row[forward_row]])
            for g, forward_row in forward_row_of_backward.items()
            if g in codes and graph_of_row.get(forward_row) in codes
        ]
        without_layer = tuple(place(pairs, behind, forward_of_op))
        behind[idle(codes.values())] = NONE

    # A graph without products, as that of an optimizer, is not divided. Where generated kernels
    # have events, the rest is the cost of calling them.
    weighted = np.bincount(graph, np.array([call.weighted for call in call_of_kind])[kind])
    with_events = np.bincount(graph, names.matching(GENERATED)[calls])
    undivided = (weighted == 0) | (with_events > 0)
    behind[undivided[np.insert(graph, begins, graph[begins])]] = NONE
    of_network = np.full(ops.height, NONE, dtype=np.int64)
    of_network[calls] = np.where(weighted[graph] > 1, graph_row, NONE)
    forward_of_op = nesting.inherit(forward_of_op)
    return CompiledGraphs(
        root=root,
        forward=np.where(forward_of_op == NONE, forward, forward_of_op),
        of_network=nesting.inherit(of_network),
        calls=calls,
        graph=graph,
        rows=rows,
        behind=behind,
        around=around_graph,
        in_code=np.flatnonzero(in_code),
        codes=tuple(codes.values()),
        own=without_layer,
        nesting=nesting,
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
    def operands_key(self) -> tuple[str, tuple[Shape, ...], bool, bool] | None:
        """What tells calls of equal operands apart; None without recorded operands."""
        if not self.operands:
            return None
        return self.kind, self.operands, self.of_gradient, self.biased

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
        biased = adds and [len(shape) for shape in tensors[:1]] == [1]
        tensors = tuple(shape for shape in tensors[adds:] if len(shape) > 1)[:2]
    elif "attention" in short:
        kind, tensors = kind.replace("_for_cpu", ""), tensors[of_gradient:][:2]
    else:
        tensors = ()
    return CompiledCall(kind, tensors, of_gradient, frozenset(words.split("_")) - {""}, biased)


_MOST_COMPARED: Final = 64
"""Calls after a forward operator whose words are compared with a call of generated code."""
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
    pairs = _GradientPairs(forward, backward)
    pairs.add_equal_operands()
    pairs.add_pixel_convolutions()
    pairs.add_products()
    upcoming = pairs.upcoming_forward_calls()
    forward_call = pairs.forward_call
    if (forward_call == NONE).all() and any(call.weighted for call in backward):
        # Without recorded shapes nothing tells the calls apart.
        return forward_call, upcoming, np.zeros(len(backward), dtype=np.bool_)
    # What a checkpoint computes again is not a gradient: it does not show where the pass is.
    pairs.add_recomputed()
    in_code = pairs.add_generated(upcoming)
    return forward_call, upcoming, in_code


class _GradientPairs:
    """The forward call of each call of a backward graph, as it is found; NONE before."""

    def __init__(self, forward: Sequence[CompiledCall], backward: Sequence[CompiledCall]) -> None:
        self.forward, self.backward = forward, backward
        self.forward_call = np.full(len(backward), NONE, dtype=np.int64)
        self.forward_by_operands = _positions(forward, lambda _, call: call.operands_key)
        self.backward_by_operands = _positions(backward, lambda _, call: call.operands_key)

    def _add_in_reverse(self, forward: Sequence[int], backward: Sequence[int]) -> None:
        """Pair calls in reverse order, unless there are too many gradients."""
        if 0 < len(backward) <= len(forward):
            self.forward_call[list(backward)] = forward[::-1][: len(backward)]

    def add_equal_operands(self) -> None:
        """Pair operators that have a gradient of their own: convolutions, attention."""
        for (kind, operands, of_gradient, biased), backward in self.backward_by_operands.items():
            if of_gradient:
                forward = self.forward_by_operands[kind, operands, False, biased]
                self._add_in_reverse(forward, backward)

    def add_pixel_convolutions(self) -> None:
        """Pair gradients of convolutions of one pixel, which are products in the forward graph."""
        products = _positions(self.forward, lambda _, call: call.extents)
        convolutions = _positions(
            self.backward,
            lambda position, call: (
                call.extents_of_pixels if self.forward_call[position] == NONE else None
            ),
        )
        for extents, backward in convolutions.items():
            if len(backward) == len(products[extents]):
                self._add_in_reverse(products[extents], backward)

    def add_products(self) -> None:
        """Pair products with their two gradients.

        Of a product (n, k, m) the gradient of the input is (n, m, k); that of the weight is
        (m, n, k), or (k, n, m) where it is computed transposed. Biased products of the backward
        pass are those that a checkpoint computes again.
        """
        paired = set(self.forward_call.tolist())
        products = _positions(
            self.forward,
            lambda position, call: None if position in paired else call.extents,
        )
        results = _positions(self.backward, lambda _, call: None if call.biased else call.extents)
        gradients_of = {
            (n, k, m): ((n, m, k), (m, n, k) if (m, n, k) in results else (k, n, m))
            for n, k, m in products
        }
        claims = Counter(extents for both in gradients_of.values() for extents in both)
        ambiguous = defaultdict(list)
        for product, both in gradients_of.items():
            if all(claims[extents] == 1 for extents in both):
                for extents in both:
                    self._add_in_reverse(products[product], results[extents])
            else:
                ambiguous[tuple(sorted(product))].append(product)
        # Products of the same three extents are paired if there are two gradients for each: the two
        # gradients of a product run one after the other.
        for alike in ambiguous.values():
            forward = sorted(position for product in alike for position in products[product])
            extents_of_gradients = {
                extents for product in alike for extents in gradients_of[product]
            }
            backward = sorted(at for extents in extents_of_gradients for at in results[extents])
            if len(backward) == 2 * len(forward):
                self._add_in_reverse([call for call in forward for _ in range(2)], backward)

    def upcoming_forward_calls(self) -> Ints:
        """Return, for each stretch, the forward call whose first gradient comes next.

        Other gradients of a call are not counted: that of a weight may run at the end.
        """
        paired = np.flatnonzero(self.forward_call != NONE)
        _, first = np.unique(self.forward_call[paired], return_index=True)
        first_gradients = paired[np.sort(first)]
        stretches = np.arange(len(self.backward) + 1)
        following = np.append(first_gradients, NONE)[np.searchsorted(first_gradients, stretches)]
        return take(self.forward_call, following)

    def add_recomputed(self) -> None:
        """Pair calls that a checkpoint computes again, if no other call has the same operands."""
        for operands, backward in self.backward_by_operands.items():
            forward = self.forward_by_operands[operands]
            if len(backward) == len(forward) == 1 and self.forward_call[backward[0]] == NONE:
                self.forward_call[backward] = forward

    def add_generated(self, upcoming: Ints) -> Flags:
        """Pair the other calls; return those that are part of generated code around them.

        A call computes the gradient of the code between the upcoming forward operator and the next
        paired one; after the last gradient, of the code before the graph.
        Without a call there they belong to the operator itself, as the sum that is the gradient of
        a bias. Where generated kernels have no events, what ran there is generated code.
        """
        in_code = np.zeros(len(self.backward), dtype=np.bool_)
        paired = {*self.forward_call[self.forward_call != NONE].tolist()}
        bounds = [NONE, *sorted(paired), len(self.forward)]
        ran_behind = {call: range(call + 1, following) for call, following in pairwise(bounds)}
        kernels_have_events = any(not call.kind for call in (*self.forward, *self.backward))
        last = NONE
        for position, call in enumerate(self.backward):
            if self.forward_call[position] != NONE:
                last = int(self.forward_call[position])
                continue
            if call.operands or call.weighted:
                # Computed again, or the gradient of a product that shapes do not identify.
                continue
            target = int(upcoming[position])
            common_words = {
                candidate: len(call.words & self.forward[candidate].words)
                for candidate in ran_behind[target][:_MOST_COMPARED]
            }
            best = max(common_words, key=common_words.__getitem__, default=NONE)
            if best != NONE and common_words[best]:
                self.forward_call[position] = best
            elif not kernels_have_events:
                in_code[position] = True
            elif target == NONE:
                # After the last gradient there may be a conversion of that one.
                self.forward_call[position] = last
            else:
                self.forward_call[position] = target if best == NONE else best
        return in_code


def _positions(
    calls: Sequence[CompiledCall], key: Callable[[int, CompiledCall], _Key | None]
) -> defaultdict[_Key, list[int]]:
    """Return the positions of the calls of each ``key``, without calls whose key is None."""
    positions = defaultdict(list)
    for position, call in enumerate(calls):
        if (value := key(position, call)) is not None:
            positions[value].append(position)
    return positions

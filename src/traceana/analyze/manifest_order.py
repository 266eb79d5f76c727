"""The manifest's paths of layers that a trace identifies by the position of their operator.

The operators of a step and the calls of the manifest are two sequences. Operators with a weight are
found first, by their type and the weight's shape. Between two of them, the operators of a type are
the calls of that type, where there are as many of both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from math import prod
from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl
from msgspec.structs import replace

from traceana.analyze.fused_rows import FUSED, common_path, is_product, together
from traceana.analyze.layer_operands import operands
from traceana.analyze.manifest_dataflow import layers_of_rows, names_operator_of
from traceana.columns.distinct import in_turn
from traceana.enrich.layers.from_order import short_name
from traceana.enrich.layers.source import SEPARATOR
from traceana.flops.call import Call, Shape, UncountableError
from traceana.runs.layer_manifest import Layer, Manifest
from traceana.vocabulary.layer_types import type_of
from traceana.vocabulary.operators import COMPILED_REGION, TEMPLATE, WEIGHTED, of_kinds

if TYPE_CHECKING:
    from traceana.trace import Trace

_MOST_TOGETHER: Final = 4
"""Layers in the path of one generated kernel whose code is not known, at most."""

_RECURRENT: Final = ("lstm", "gru", "rnn")
"""Types whose operator has several weights."""

_ONE_OPERATOR: Final = frozenset(
    ("conv", "linear", "batch_norm", "layer_norm", "group_norm", "embedding", *_RECURRENT)
)
"""Types of layers with one weighted operator per call."""


class _Operator(msgspec.Struct, frozen=True):
    """An operator of the trace, or the operator of a manifest's call.

    ``at`` is the row of the trace's layers, or the position among the calls. ``weight`` has the
    extents of the weight in their order of size: a linear layer may have its weight transposed.
    ``fuses`` is the name of a kernel that computes a weighted layer and what follows it.
    """

    at: int
    family: str
    weight: tuple[int, ...] | None
    weighted: bool = True
    fuses: str | None = None


_Anchors = dict[int, tuple[int, int]]
"""The position among the calls of rows with a weight, and the number of the forward pass: graphs of
one network that differ, as those of training and evaluation, have rows of their own."""


def paths_in_order(trace: Trace, model: Manifest) -> dict[int, str]:
    """Return the paths of ``model`` for layers identified by position, by row of ``trace.layers``.

    Functions that are not layers get the path of the calling module.
    """
    seen = _positional(trace)
    calls = _sequence(model, most=len(seen) + 1)
    compiled = any(operator.family.startswith(_family(COMPILED_REGION)) for operator in seen)
    anchors = _anchors(
        [operator for operator in seen if operator.weighted], calls, compiled=compiled
    )
    if not anchors:
        return {}
    around = model.container_paths()
    paths = _named(seen, anchors, calls, around)
    if trace.tables.graph_calls.is_empty():
        return paths
    # Generated kernels whose code is known.
    positions = {row: position for row, (position, _) in anchors.items()}
    layers_of_row = layers_of_rows(trace.tables.graph_calls, positions, calls, around)
    fused = {
        operator.at: layers_of_row[operator.at]
        for operator in seen
        if operator.family.startswith(FUSED) and operator.at in layers_of_row
    }
    # Code that computes no layer may be that of the module around, or between the operators of one
    # layer, as of an attention.
    whole = around | {calls[position].path for position in positions.values()}
    others = {row: path for row, path in paths.items() if row not in fused or path in whole}
    return others | {row: together(layers) for row, layers in fused.items() if layers}


def _positional(trace: Trace) -> list[_Operator]:
    """Return the layers that are named by their outermost operator and its number.

    They are in their order of execution.
    """
    short = short_name(trace.tables.ops["name"])
    stem = pl.col("path").str.replace(r"_\d+$", "")
    layers = trace.tables.layers.select(
        pl.int_range(pl.len(), dtype=pl.UInt32).alias("layer"), "path", "type", "role", "position"
    )
    rows = (
        trace.tables.ops.select(
            *("layer", "start", "input_shapes", short.alias("short")),
            name=pl.col("name").cast(pl.String),
        )
        .filter((trace.tables.ops["direction"] != "backward").fill_null(True))
        .join(layers, on="layer")
        .filter(
            (pl.col("role") == "layer")
            & ((stem == pl.col("short")) | stem.str.ends_with("." + pl.col("short")))
            & pl.col("path").str.contains(r"_\d+$")
        )
        .sort("position", "start", maintain_order=True)
        .unique("layer", keep="first", maintain_order=True)
        .select(
            *("layer", "position", "short", "name", "input_shapes"),
            weighted=pl.col("name").str.contains(of_kinds(*WEIGHTED))
            & ~pl.col("name").str.contains(of_kinds("batched_mm", "attention")),
        )
    )
    # Generated code of a compiled graph has no operator where it has no event.
    generated = pl.col("path").str.contains(r"^fused.*_\d+$") & (pl.col("type") == FUSED)
    without = (
        layers.filter(generated)
        .join(rows, on="layer", how="anti")
        .select("layer", "position", short=pl.lit(FUSED), weighted=pl.lit(False))
    )
    operands_of = operands(trace)
    operators = []
    for row, _, short_of, name, shapes, weighted in (
        pl.concat([rows, without], how="diagonal").sort("position").iter_rows()
    ):
        weight = operands_of[row].weight if row in operands_of else None
        operator = _Operator(row, _family(short_of), _sorted(weight), weighted)
        # A kernel that Inductor generated from a template for a product with a weight.
        if name is not None and name.startswith(TEMPLATE):
            from traceana.flops.triton_templates import weight_of

            try:
                of_template = weight_of(Call.decode(name, shapes))
            except UncountableError:
                of_template = None
            if of_template is not None:
                family, weight = of_template
                operator = _Operator(row, family, _sorted(weight), fuses=name)
        operators.append(operator)
    return operators


def _sequence(model: Manifest, most: int) -> list[Layer]:
    """Return the calls of a forward pass in their order.

    In a manifest without the order of shared layers, the calls of a layer are consecutive, at most
    ``most`` of them: more calls than rows of the trace cannot match.
    """
    ordered = sorted(model.layers, key=lambda layer: layer.position)
    several = {position: layer for layer in ordered for position in layer.order}
    if not several:
        return [layer for layer in ordered for _ in range(min(max(layer.calls, 1), most))]
    others = [layer for layer in ordered if not layer.order]
    once = iter(others)
    calls = (several.get(at) or next(once, None) for at in range(len(several) + len(others)))
    return [layer for layer in calls if layer is not None]


def _anchors(seen: Sequence[_Operator], calls: Sequence[Layer], *, compiled: bool) -> _Anchors:
    """Return the weighted operators that are calls of the manifest: all of them in order, else by
    type and weight, because a compiler may change the order of independent operators."""
    wanted = [
        _Operator(position, _family(call.type), _sorted(call.parameters.get("weight")))
        for position, call in enumerate(calls)
    ]
    ways = [(seen, wanted)]
    if compiled:
        # It may compute convolutions of one pixel as products, all or some of them.
        ways.append(
            (
                [_pointwise(operator) for operator in seen],
                [_pointwise(operator) for operator in wanted],
            )
        )
    anchors = [
        _in_order(*way, calls, compiled=compiled) or _by_weight(*way, compiled=compiled)
        for way in ways
    ]
    return max(anchors, key=len)


def _pointwise(operator: _Operator) -> _Operator:
    """Return ``operator`` as a product if it is a convolution of one pixel in one group."""
    if operator.family != "conv" or operator.weight is None or len(operator.weight) < 3:
        return operator
    *window, channels, features = operator.weight
    if prod(window) != 1 or channels == 1:
        return operator
    return replace(operator, family="linear", weight=(channels, features))


def _in_order(
    seen: Sequence[_Operator],
    wanted: Sequence[_Operator],
    calls: Sequence[Layer],
    *,
    compiled: bool,
) -> _Anchors | None:
    """Return the calls of the weighted operators, where all agree in order, else None.

    A layer without an operator type has as many operators as its weights have rows. Of types that
    a compiler fuses with others, such as normalizations, ``compiled`` programs have no operator.
    """
    anchors: _Anchors = {}
    families = {operator.family for operator in seen}
    at = 0
    for call in wanted:
        layer = calls[call.at]
        if call.family in _ONE_OPERATOR:
            if compiled and not is_product(layer) and call.family not in families:
                continue
            if at == len(seen) or seen[at].family != call.family:
                return None
            weights = {seen[at].weight, call.weight} - {None}
            if len(weights) > 1 and call.family not in _RECURRENT:
                return None
            anchors[seen[at].at] = call.at, 0
            at += 1
            continue
        matrices = [shape for shape in layer.parameters.values() if len(shape) > 1]
        rows = sum(shape[0] for shape in matrices)
        while at < len(seen) and 0 < (used := _rows_of(matrices, seen[at].weight)) <= rows:
            rows -= used
            anchors[seen[at].at] = call.at, 0
            at += 1
    return anchors if at == len(seen) else None


def _rows_of(matrices: Sequence[Shape], weight: Shape | None) -> int:
    """Return the rows of a layer's weights that an operator uses, 0 for another layer's."""
    if weight is None:
        return 0
    for shape in matrices:
        if _sorted(shape) == weight:
            return shape[0]
        whole, rest = divmod(prod(weight), prod(shape))
        if len(shape) == len(weight) == 2 and not rest and shape[1] in weight and whole > 1:
            return shape[0] * whole
    return 0


def _by_weight(
    seen: Sequence[_Operator], wanted: Sequence[_Operator], *, compiled: bool
) -> _Anchors:
    """Return the calls of the weighted operators of types with the same weights on both sides.

    Operators whose weights have equal shapes keep their order. ``compiled`` programs may have
    several graphs of the network, and graphs of other networks between them.
    """
    mine: dict[str, list[_Operator]] = defaultdict(list)
    theirs: dict[str, list[_Operator]] = defaultdict(list)
    for operators, of_family in ((seen, mine), (wanted, theirs)):
        for operator in operators:
            of_family[operator.family].append(operator)
    passes: dict[str, list[_Anchors]] = {}
    for family in mine.keys() & theirs.keys() & _ONE_OPERATOR:
        ops, calls = mine[family], theirs[family]
        weighted = family not in _RECURRENT and all(operator.weight for operator in (*ops, *calls))
        weights, those = (
            [operator.weight if weighted else None for operator in some] for some in (ops, calls)
        )
        passes[family] = []
        at = 0
        while at + len(calls) <= len(ops) and (len(ops) == len(calls) or (compiled and weighted)):
            pairs = in_turn(weights[at : at + len(calls)], those)
            if len(pairs) < len(calls):
                at += 1
                continue
            number = len(passes[family])
            passes[family].append({ops[at + i].at: (calls[j].at, number) for i, j in pairs})
            at += len(calls)
    # Types that do not agree in the number of graphs may be of other networks.
    alike = len({len(anchors) for anchors in passes.values()}) == 1
    return {
        row: anchor
        for family, anchors in passes.items()
        if alike or len(mine[family]) == len(theirs[family])
        for of_pass in anchors
        for row, anchor in of_pass.items()
    }


def _named(
    seen: Sequence[_Operator],
    anchors: _Anchors,
    calls: Sequence[Layer],
    around: Collection[str],
) -> dict[int, str]:
    """Return the paths of the rows with a match."""
    paths: dict[int, str] = {}
    between: list[_Operator] = []
    before, forward = -1, 0
    for operator in seen:
        if operator.at not in anchors:
            between.append(operator)
            continue
        here, number = anchors[operator.at]
        last = here
        # A template computes besides its product the next layers whose operators its name has.
        while (
            operator.fuses is not None
            and last + 1 < len(calls)
            and calls[last + 1].path not in around
            and names_operator_of(operator.fuses, calls[last + 1])
        ):
            last += 1
        fused = [call.path for call in calls[here : last + 1] if not call.computes_nothing]
        paths[operator.at] = together(list(dict.fromkeys(fused)))
        if number == forward:
            paths |= _between(between, calls, before, here, around)
        else:
            # Behind one forward pass, and before the next one.
            paths |= _by_number(between, [*calls[before + 1 :], *calls[:here]])
        between, before, forward = [], last, number
    return paths | _between(between, calls, before, len(calls), around)


def _between(
    seen: Sequence[_Operator],
    calls: Sequence[Layer],
    before: int,
    behind: int,
    around: Collection[str],
) -> dict[int, str]:
    """Return the paths of the rows between two anchors, the calls ``before`` and ``behind``.

    Rows before the first or after the last weighted layer may not belong to the model (a loss).
    Functions that the model calls outside its modules keep their names. A kernel that a compiler
    generated computes all the layers between the two anchors: ``layer1.0.bn1+relu``.
    """
    if not seen:
        return {}
    if before == behind:
        return {operator.at: calls[before].path for operator in seen}
    inside = calls[before + 1 : behind]
    paths = _by_number(seen, inside)
    if behind == len(calls):
        return paths
    fused = [operator.at for operator in seen if operator.family.startswith(FUSED)]
    # Where the compiler changed the order, what else it moved is not known.
    if fused and before < behind and not any(map(is_product, inside)):
        modules = dict.fromkeys(call.path for call in inside if call.path not in around)
        if 0 < len(modules) <= _MOST_TOGETHER:
            paths |= dict.fromkeys(fused, together(list(modules)))
    if before < 0:
        return paths
    callers = {call.path for call in inside if call.path in around}
    if not callers:
        callers = {calls[position].path.rpartition(SEPARATOR)[0] for position in (before, behind)}
    common = common_path(sorted(callers))
    if common and any(call.path.startswith(common + SEPARATOR) for call in calls):
        paths |= {operator.at: common for operator in seen if operator.at not in paths}
    return paths


def _by_number(seen: Sequence[_Operator], calls: Sequence[Layer]) -> dict[int, str]:
    """Return the paths of the rows of each type that has as many calls."""
    pairs = in_turn([operator.family for operator in seen], [_family(call.type) for call in calls])
    return {seen[row].at: calls[position].path for row, position in pairs}


def _family(kind: str) -> str:
    """Return the type of an operator or layer; one for all convolutions: ``aten::convolution`` is
    of any rank, and transposed or not."""
    layer_type = type_of(kind)
    if layer_type is None:
        return ""
    return "conv" if layer_type.kind == "conv" else layer_type.word


def _sorted(shape: Shape | None) -> tuple[int, ...] | None:
    return None if shape is None else tuple(sorted(shape))

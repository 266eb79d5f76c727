"""The manifest's names of layers that are identified by position, by order and weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec
import polars as pl
from msgspec.structs import replace

from traceana.analyze.fused_rows import FUSED, common_path, is_product, together
from traceana.analyze.layer_operands import operands
from traceana.enrich.layers.from_order import short_name
from traceana.enrich.layers.source import SEPARATOR
from traceana.flops.call import Call
from traceana.flops.cost import Shape, UncountableError
from traceana.flops.registry import TEMPLATE
from traceana.model.manifest import Layer, Manifest
from traceana.vocabulary.layer_types import type_of
from traceana.vocabulary.operators import COMPILED_REGION, WEIGHTED, of_kinds

if TYPE_CHECKING:
    from traceana.trace import Trace

_NOT_FUSED: Final = frozenset(("conv", "linear", "lstm", "gru", "rnn"))
"""Types of layers whose operator is not part of such a kernel."""
_MOST_TOGETHER: Final = 4
"""Layers in the path of one such kernel, at most."""


class _Seen(msgspec.Struct, frozen=True):
    """A layer of the trace that is identified by its position, in order of execution."""

    row: int
    family: str
    weight: tuple[int, ...] | None
    weighted: bool
    fuses: str | None = None
    """The name of a kernel that computes a weighted layer and what follows it."""


def paths_in_order(trace: Trace, model: Manifest) -> dict[int, str]:
    """Return the paths of ``model`` for layers identified by position, by row of ``trace.layers``.

    Operators with weights are paired first: all of them in order if their weights are those of the
    manifest's layers, else by type if both have the same number with the same weights. Between two
    of them the other operators are paired where both have the same number of a type; functions
    that are not layers get the path of the calling module.
    """
    seen = _positional(trace)
    calls = _sequence(model, most=len(seen) + 1)
    compiled = any(one.family.startswith(_family(COMPILED_REGION)) for one in seen)
    anchors = _anchors([one for one in seen if one.weighted], calls, compiled=compiled)
    if not anchors:
        return {}
    paths = _named(seen, anchors, calls, model.container_paths())
    if trace.tables.graph_calls.height:
        paths = _by_dataflow(trace, model, seen, anchors, calls, paths)
    return paths


def _by_dataflow(
    trace: Trace,
    model: Manifest,
    seen: Sequence[_Seen],
    anchors: Sequence[_Anchor],
    calls: Sequence[Layer],
    paths: dict[int, str],
) -> dict[int, str]:
    """Return ``paths`` with those of generated kernels whose code is known."""
    from traceana.analyze.manifest_dataflow import layers_of_rows

    around = model.container_paths()
    found = layers_of_rows(
        trace.tables.graph_calls, {one.row: one.position for one in anchors}, calls, around
    )
    known = {
        one.row: found[one.row] for one in seen if one.family.startswith(FUSED) and one.row in found
    }
    # Code that computes no layer may be that of the module around, or between the operators of one
    # layer, as of an attention.
    whole = around | {calls[one.position].path for one in anchors}
    others = {row: path for row, path in paths.items() if row not in known or path in whole}
    return others | {row: together(layers) for row, layers in known.items() if layers}


def _positional(trace: Trace) -> list[_Seen]:
    """Return the layers whose path is the name of their outermost operator and its number."""
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
        .with_columns(
            (
                pl.col("name").str.contains(of_kinds(*WEIGHTED))
                & ~pl.col("name").str.contains(of_kinds("batched_mm", "attention"))
            ).alias("weighted")
        )
    )
    templates = _templates(rows.filter(pl.col("name").str.starts_with(TEMPLATE)))
    # Generated code of a compiled graph has no operator where it has no event.
    generated = pl.col("path").str.contains(r"^fused.*_\d+$") & (pl.col("type") == FUSED)
    without = layers.filter(generated).join(rows, on="layer", how="anti")
    rows = pl.concat(
        [
            rows.select("layer", "position", "short", "weighted"),
            without.select("layer", "position", short=pl.lit(FUSED), weighted=pl.lit(False)),
        ]
    ).sort("position")
    known = operands(trace)
    return [
        templates.get(row)
        or _Seen(row, _family(kind), _sorted(known[row].weight) if row in known else None, weighted)
        for row, kind, weighted in rows.select("layer", "short", "weighted").iter_rows()
    ]


def _templates(rows: pl.DataFrame) -> dict[int, _Seen]:
    """Return the kernels that Inductor generated from a template for a product with a weight."""
    if rows.is_empty():
        return {}
    from traceana.flops.triton_templates import weight_of

    found = {}
    for row, name, text in rows.select("layer", "name", "input_shapes").iter_rows():
        try:
            weight = weight_of(Call.decode(name, text))
        except UncountableError:
            continue
        if weight is not None:
            family, shape = weight
            found[row] = _Seen(row, family, _sorted(shape), weighted=True, fuses=name)
    return found


def _sequence(model: Manifest, most: int) -> list[Layer]:
    """Return the calls of a forward pass in their order.

    In a manifest without the order of shared layers, the calls of a layer are consecutive, at most
    ``most`` of them: more calls than rows of the trace cannot match.
    """
    ordered_calls = {position: layer for layer in model.layers for position in layer.order}
    ordered = sorted(model.layers, key=lambda layer: layer.position)
    if not ordered_calls:
        return [layer for layer in ordered for _ in range(min(max(layer.calls, 1), most))]
    calls: list[Layer] = []
    once = iter([layer for layer in ordered if not layer.order])
    total = len(ordered_calls) + sum(not layer.order for layer in ordered)
    for position in range(total):
        layer = ordered_calls.get(position) or next(once, None)
        if layer is not None:
            calls.append(layer)
    return calls


class _Anchor(NamedTuple):
    """A row of the trace's layers with its position in the sequence of calls.

    ``forward`` is the number of the forward pass: graphs of one network that differ, as those of
    training and evaluation, have rows of their own.
    """

    row: int
    position: int
    forward: int = 0


class _Call(msgspec.Struct, frozen=True):
    """A call of the forward pass that is matched: its layer, with the family and the weight of the
    operator that computes it."""

    layer: Layer
    family: str
    weight: tuple[int, ...] | None


def _anchors(seen: Sequence[_Seen], calls: Sequence[Layer], *, compiled: bool) -> list[_Anchor]:
    """Return the weighted operators with their positions among ``calls``.

    A compiler may compute convolutions of one pixel as products, all or some of them: they are
    products then on both sides, if more operators have a call so.
    """
    own = [_Call(one, _family(one.type), _weight(one)) for one in calls]
    found = _matched(seen, own, compiled=compiled)
    if not compiled or len(found) == len(seen):
        return found
    products = [_pointwise(one) for one in seen], [_pointwise(one) for one in own]
    return max(found, _matched(*products, compiled=True), key=len)


_Operator = TypeVar("_Operator", _Seen, _Call)


def _pointwise(one: _Operator) -> _Operator:
    """Return ``one`` as a product if it is a convolution of one pixel in one group."""
    if one.family != "conv" or one.weight is None or len(one.weight) < 3:
        return one
    *window, channels, features = one.weight
    if prod(window) != 1 or channels == 1:
        return one
    return replace(one, family="linear", weight=(channels, features))


def _matched(seen: Sequence[_Seen], calls: Sequence[_Call], *, compiled: bool) -> list[_Anchor]:
    found = _whole(seen, calls, compiled=compiled)
    return list(_by_type(seen, calls, compiled=compiled)) if found is None else found


def _whole(
    seen: Sequence[_Seen], calls: Sequence[_Call], *, compiled: bool
) -> list[_Anchor] | None:
    """Return the weighted operators with their calls, where all agree in order, else None.

    A layer without an operator type has as many operators as its weights have rows. Of types that
    a compiler fuses with others, such as normalizations, ``compiled`` programs have no operator.
    """
    at = 0
    found: list[_Anchor] = []
    families = {one.family for one in seen}
    for position, call in enumerate(calls):
        if call.family in _ONE_OPERATOR:
            if compiled and call.family not in _NOT_FUSED | families:
                continue
            if at == len(seen) or not _agree(seen[at], call):
                return None
            found.append(_Anchor(seen[at].row, position))
            at += 1
            continue
        own = [shape for shape in call.layer.parameters.values() if len(shape) > 1]
        rows = sum(shape[0] for shape in own)
        while at < len(seen) and rows > 0 and (weight := seen[at].weight) is not None:
            used = _rows_of(own, weight)
            if not 0 < used <= rows:
                break
            rows -= used
            found.append(_Anchor(seen[at].row, position))
            at += 1
    return found if at == len(seen) else None


def _rows_of(own: Sequence[Shape], weight: Shape) -> int:
    """Return the rows of a layer's weights that an operator uses, 0 for another layer's."""
    for shape in own:
        if _sorted(shape) == weight:
            return shape[0]
        whole, rest = divmod(prod(weight), prod(shape))
        if len(shape) == len(weight) == 2 and not rest and shape[1] in weight and whole > 1:
            return shape[0] * whole
    return 0


def _by_type(seen: Sequence[_Seen], calls: Sequence[_Call], *, compiled: bool) -> Iterator[_Anchor]:
    """Yield pairs by type, where both have the same number with the same weights.

    A compiler may change the order of operators that do not depend on each other: those whose
    weights have equal shapes keep their order. ``compiled`` programs may have several graphs of
    the network, and graphs of other networks between them.
    """
    mine, theirs = defaultdict(list), defaultdict(list)
    for one in seen:
        mine[one.family].append(one)
    for position, call in enumerate(calls):
        theirs[call.family].append(position)
    found = {
        family: list(_forwards(own, theirs[family], calls, several=compiled))
        for family, own in mine.items()
        if family in _ONE_OPERATOR and theirs[family]
    }
    alike = len({len(forwards) for forwards in found.values()}) == 1
    for family, forwards in found.items():
        # Types that do not agree in the number of graphs may be of other networks.
        if alike or len(mine[family]) == len(theirs[family]):
            for number, pairs in enumerate(forwards):
                yield from (_Anchor(one.row, position, number) for one, position in pairs)


_Pairs = list[tuple[_Seen, int]]


def _forwards(
    own: Sequence[_Seen], positions: Sequence[int], calls: Sequence[_Call], *, several: bool
) -> Iterator[_Pairs]:
    """Yield the rows of each forward pass with their calls; of ``several`` only those whose
    weights are all known."""
    length = len(positions)
    if len(own) == length:
        pairs = _in_any_order(own, positions, calls)
        if pairs is not None:
            yield pairs
        return
    at = 0
    while several and at + length <= len(own):
        some = own[at : at + length]
        known = all(one.weight is not None for one in some)
        pairs = _in_any_order(some, positions, calls) if known else None
        if pairs is None:
            at += 1
        else:
            yield pairs
            at += length


def _in_any_order(
    own: Sequence[_Seen], positions: Sequence[int], calls: Sequence[_Call]
) -> _Pairs | None:
    """Return rows with their calls: in their order, or in that of their weights."""
    if not all(map(_agree, own, (calls[position] for position in positions))):
        own = sorted(own, key=lambda one: one.weight or ())
        positions = sorted(positions, key=lambda one: calls[one].weight or ())
    alike = all(map(_agree, own, (calls[position] for position in positions)))
    return list(zip(own, positions, strict=True)) if alike else None


_ONE_OPERATOR: Final = frozenset(
    (
        *("conv", "linear", "batchnorm", "layernorm", "groupnorm", "embedding"),
        *("embeddingbag", "lstm", "gru", "rnn"),
    )
)
"""Types of layers with one weighted operator per call."""


def _agree(seen: _Seen, call: _Call) -> bool:
    if seen.family != call.family:
        return False
    if seen.weight is None or seen.family in ("lstm", "gru", "rnn"):
        return True
    return call.weight is None or call.weight == seen.weight


def _weight(layer: Layer) -> tuple[int, ...] | None:
    weight = layer.parameters.get("weight")
    return None if weight is None else _sorted(weight)


def _named(
    seen: Sequence[_Seen],
    anchors: Sequence[_Anchor],
    calls: Sequence[Layer],
    around: frozenset[str],
) -> dict[int, str]:
    """Return the paths of the rows with a match."""
    anchor_of = {anchor.row: anchor for anchor in anchors}
    paths: dict[int, str] = {}
    between: list[_Seen] = []
    before, forward = -1, 0
    for one in seen:
        if one.row in anchor_of:
            _, here, number = anchor_of[one.row]
            last = _last_fused(one, calls, here, around)
            fused = (call.path for call in calls[here : last + 1] if not call.computes_nothing)
            paths[one.row] = together(list(dict.fromkeys(fused)))
            if number == forward:
                paths |= _segment(between, calls, before, here, around)
            else:
                # Behind one forward pass, and before the next one.
                paths |= _by_number(between, [*calls[before + 1 :], *calls[:here]])
            between, before, forward = [], last, number
        else:
            between.append(one)
    return paths | _segment(between, calls, before, len(calls), around)


def _last_fused(one: _Seen, calls: Sequence[Layer], position: int, around: Collection[str]) -> int:
    """Return the position of the last call that the kernel of the call at ``position`` computes.

    What a template computes besides its product are the next layers, as far as its name has their
    operators.
    """
    if one.fuses is None:
        return position
    from traceana.analyze.manifest_dataflow import names_operator_of

    for place in range(position + 1, len(calls)):
        layer = calls[place]
        if layer.path in around or not names_operator_of(one.fuses, layer):
            break
        position = place
    return position


def _segment(
    seen: Sequence[_Seen],
    calls: Sequence[Layer],
    before: int,
    behind: int,
    around: frozenset[str],
) -> dict[int, str]:
    """Return the paths of the rows between two anchors, the calls ``before`` and ``behind``.

    Rows before the first or after the last weighted layer may not belong to the model (a loss).
    Functions that the model calls outside its modules keep their names. A kernel that a compiler
    generated computes all the layers between the two anchors: ``layer1.0.bn1+relu``.
    """
    if not seen:
        return {}
    if before == behind:
        return {one.row: calls[before].path for one in seen}
    inside = calls[before + 1 : behind]
    paths = _by_number(seen, inside)
    if behind == len(calls):
        return paths
    fused = [one.row for one in seen if one.family.startswith(FUSED)]
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
        paths |= {one.row: common for one in seen if one.row not in paths}
    return paths


def _by_number(seen: Sequence[_Seen], calls: Sequence[Layer]) -> dict[int, str]:
    """Return the paths of the rows of each type that has as many calls."""
    mine, theirs = defaultdict(list), defaultdict(list)
    for one in seen:
        mine[one.family].append(one.row)
    for call in calls:
        theirs[_family(call.type)].append(call.path)
    paths: dict[int, str] = {}
    for family, rows in mine.items():
        if len(rows) == len(theirs[family]):
            paths |= dict(zip(rows, theirs[family], strict=True))
    return paths


def _family(kind: str) -> str:
    """Return the type of an operator or layer; one for all convolutions: ``aten::convolution`` is
    of any rank, and transposed or not."""
    known = type_of(kind)
    if known is None:
        return ""
    return "conv" if known.kind == "conv" else known.word


def _sorted(shape: Shape | None) -> tuple[int, ...] | None:
    """Return sorted extents: a linear layer may have its weight transposed."""
    return None if shape is None else tuple(sorted(shape))

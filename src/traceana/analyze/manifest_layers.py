"""The layers of a manifest found in a run, and their names given to the run's layers.

A layer is found by its name: the path of its module, or its scope in TensorFlow. TensorFlow makes
every scope of a graph distinct by appending ``_1``, ``_2`` … to a repeated name, and Keras opens
the scope of a layer once or twice for a call: ``conv2d_1`` may be that layer or ``conv2d``.
Its rule, applied to the layers of the manifest in their order, gives the scope of each.

A layer without a name in the trace is found by its position: :mod:`traceana.analyze.manifest_order`
does so by the operators of each layer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from traceana.analyze.fused_rows import FUSED
from traceana.analyze.layer_operands import operands
from traceana.analyze.manifest_order import paths_in_order
from traceana.enrich.layers.source import SEPARATOR
from traceana.runs.layer_manifest import Layer
from traceana.settings import MANIFEST_COVERAGE
from traceana.timeline.work import work
from traceana.trace import per_trace
from traceana.trace.taxonomy import PRODUCTS
from traceana.vocabulary.layer_types import PRODUCT_LAYERS, kind_of, type_of

if TYPE_CHECKING:
    from traceana.runs.layer_manifest import Manifest
    from traceana.trace import Trace

_UNIQUE_PATHS: Final = frozenset(("PyTorch", "Flax", "JAX"))
"""Frameworks that do not append numbers to the paths of their layers."""
_OPENED: Final = range(1, 5)
"""Numbers of times that Keras may open the scope of a layer for one call."""

_PART: Final = re.compile(r"[./]")
_SUFFIXED: Final = re.compile(r"(.+)_[1-9]\d*")
_SNAKE: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

_DOUBTFUL: Final = ("other", "fused")
_NO_PRODUCT: Final = ("pool", "shape", "dropout", "embedding")
"""Kinds that are never fused with a convolution or product."""


class Pairing(msgspec.Struct, frozen=True):
    """The pairs of layers of a trace and of a manifest.

    ``layer_of`` maps rows of ``layers`` to layers of the manifest. ``paths`` has the path of rows
    whose scope is the manifest's path with suffixes, and ``inside`` the rows within the layer of
    another row. ``unclear`` has the paths of layers whose scope in the trace is ambiguous.
    ``another`` is true where the manifest describes another model.
    """

    layer_of: dict[int, Layer]
    paths: dict[int, str]
    inside: dict[int, int]
    unclear: tuple[str, ...] = ()
    another: bool = False


def with_names_of(trace: Trace, model: Manifest | None) -> Trace:
    """Return ``trace`` with the manifest's names for scopes with suffixes, and for positions.

    Layers inside a layer of the manifest become part of it. A trace that was opened with the
    manifest has the names.
    """
    if model is None or model is trace.manifest or not trace.tables.layers.height:
        return trace
    trace = named_in_order(trace, model)
    found = paired(trace, model)
    if not found.paths and not found.inside:
        return trace
    path, kind = (trace.tables.layers[column] for column in ("path", "type"))
    paths = {row: found.paths.get(around, path[around]) for row, around in found.inside.items()}
    types = {row: kind[around] for row, around in found.inside.items()}
    return with_paths(trace, found.paths | paths, types)


def named_in_order(trace: Trace, model: Manifest) -> Trace:
    """Return ``trace`` with the paths of ``model`` on layers identified by position.

    A layer without a match keeps its name.
    """
    paths = paths_in_order(trace, model)
    types = {layer.path: layer.type for layer in model.layers}
    own = trace.tables.layers["type"].cast(pl.String)
    # A generated kernel computes other layers too where it has the name of one.
    fused = set(own.str.starts_with(FUSED).fill_null(value=False).arg_true())
    kinds = {row: FUSED if row in fused else types.get(path) for row, path in paths.items()}
    return with_paths(trace, paths, kinds) if paths else trace


def with_paths(
    trace: Trace, paths: Mapping[int, str], types: Mapping[int, str | None] | None = None
) -> Trace:
    """Return ``trace`` with other ``paths`` and ``types`` of these rows of its layers.

    Rows of one path and role, such as the calls of a shared layer, become one, the first.
    """
    from traceana.trace.merge import united_layers

    own = trace.tables.layers
    kinds = types or {}
    layers, rows = united_layers(
        own.with_columns(
            path=pl.Series([paths.get(row, path) for row, path in enumerate(own["path"])]),
            type=pl.Series(
                [kinds.get(row) or kind for row, kind in enumerate(own["type"])], dtype=pl.String
            ),
        ).with_columns(above=pl.col("path").str.replace(r"\.?[^.]*$", ""))
    )
    referring = {
        name: trace.tables[name].with_columns(layer=rows.gather(trace.tables[name]["layer"]))
        for name in ("activities", "ops", "graph_calls")
    }
    return trace.with_tables(layers=layers, **referring)


@per_trace
def paired(trace: Trace, model: Manifest) -> Pairing:
    """Return the unambiguous pairs of rows of ``trace.layers`` and layers of ``model``.

    Layers of the trace without names, numbered by type (``Conv2d_2`` is the third convolution), are
    paired by type and order where model and trace have the same number.
    """
    rows = [
        (row, path, kind)
        for row, path, kind, role in trace.tables.layers.with_row_index("row")
        .select("row", "path", "type", "role")
        .iter_rows()
        if role == "layer"
    ]
    evidence = Evidence.of(trace)
    found = _by_name({row: path for row, path, _ in rows}, model, evidence)
    if found.another or not trace.tables.ops["scope"].is_null().all():
        return found
    present = {layer.position for layer in found.layer_of.values()}
    left = [one for one in rows if one[0] not in found.layer_of and one[0] not in found.inside]
    types = [type_of(kind) for _, _, kind in left]
    for known in dict.fromkeys(one for one in types if one is not None):
        own = [row for (row, _, _), one in zip(left, types, strict=True) if one == known]
        absent = [
            layer
            for layer in model.layers
            if layer.position not in present and type_of(layer.type) == known
        ]
        pairs = list(zip(own, absent, strict=False))
        if len(own) == len(absent) and not any(evidence.against_weight(*pair) for pair in pairs):
            found.layer_of.update(pairs)
    return found


class Evidence(msgspec.Struct, frozen=True):
    """The work of each row of ``layers``, and the number of elements of its weight.

    ``multiplies`` are rows with a convolution or product; ``forward`` those with forward work, and
    ``possible`` those with unclassified or fused work that may be a convolution or product.
    """

    multiplies: frozenset[int]
    forward: frozenset[int]
    possible: frozenset[int]
    weights: dict[int, int]

    @classmethod
    def of(cls, trace: Trace) -> Evidence:
        names = trace.tables.names.select(
            pl.int_range(pl.len(), dtype=pl.UInt32).alias("name_id"),
            pl.col("category").cast(pl.String).is_in(PRODUCTS).fill_null(False).alias("product"),
            pl.col("category").cast(pl.String).is_in(_DOUBTFUL).fill_null(True).alias("possible"),
        )
        # A fused kernel has several operators and layers.
        ran = (
            work(trace, "layer", "name_id", "direction", "instruction")
            .filter(pl.col("layer").is_not_null() & pl.col("instruction").is_null())
            .join(names, on="name_id", how="left")
            .group_by("layer")
            .agg(
                pl.col("product").any(),
                pl.col("possible").any(),
                (pl.col("direction") == "forward").fill_null(True).any().alias("forward"),
            )
        )
        return cls(
            frozenset(ran.filter("product")["layer"]),
            frozenset(ran.filter("forward")["layer"]),
            frozenset(ran.filter("possible")["layer"]),
            {row: prod(one.weight) for row, one in operands(trace).items() if one.weight},
        )

    def against(self, scope: _Node, layer: Layer) -> bool:
        """Return whether the work of ``scope`` cannot be that of ``layer``."""
        if scope.row is not None and self.against_weight(scope.row, layer):
            return True
        rows = {*scope.rows()}
        if kind_of(layer.type) in _NO_PRODUCT:
            return not self.multiplies.isdisjoint(rows)
        other = bool(self.forward & rows) and not rows & (self.multiplies | self.possible)
        return kind_of(layer.type) in PRODUCT_LAYERS and other

    def against_weight(self, row: int, layer: Layer) -> bool:
        """Return whether the weight of ``row`` is neither one of ``layer`` nor a shard of it.

        A recurrent layer has two, and the row has the one that most of its products read.
        """
        weight, known = layer.parameters.get("weight"), self.weights.get(row)
        if weight is None or known is None:
            return False
        if known in {prod(shape) for shape in layer.parameters.values() if len(shape) > 1}:
            return False
        return _has_default_name(layer) or not known or prod(weight) % known != 0


class _Node(msgspec.Struct, eq=False):
    """A part of the paths of layers; ``row`` is of the trace, ``layer`` of the manifest."""

    name: str
    path: str
    children: dict[str, _Node] = msgspec.field(default_factory=dict)
    row: int | None = None
    layer: Layer | None = None

    def within(self) -> Iterator[_Node]:
        """Return the node and all below it."""
        yield self
        for child in self.children.values():
            yield from child.within()

    def rows(self) -> list[int]:
        """Return the rows of the node and all below it."""
        return [node.row for node in self.within() if node.row is not None]

    def add(self, path: str) -> _Node:
        node = self
        for part in _PART.split(path):
            if part:
                whole = f"{node.path}{SEPARATOR}{part}" if node.path else part
                node = node.children.setdefault(part, _Node(part, whole))
        return node


class _Place(msgspec.Struct, frozen=True):
    """A scope that may be that of the model.

    ``layers`` has the part of the manifest's paths of each scope in it that is found, if the scope
    of a layer is ``opened`` so often for a call; ``named`` whether its own name is the model's.
    """

    scope: _Node
    opened: int
    layers: dict[_Node, _Node]
    named: bool

    def positions(self) -> set[int]:
        """Return the positions of the layers found."""
        return {part.layer.position for part in self.layers.values() if part.layer is not None}


def _by_name(rows: Mapping[int, str], model: Manifest, evidence: Evidence) -> Pairing:
    """Return the pairs by the names of scopes or modules, level by level.

    ``rows`` has the paths of the trace. The scope of the whole model may have scopes around it and
    another name: it is the one with most of the layers. Other scopes with the same layers are
    further calls of the model.
    """
    scopes, network = _Node("", ""), _Node("", "")
    for row, path in rows.items():
        scopes.add(path).row = row
    for layer in model.layers:
        network.add(layer.path).layer = layer
    # All paths of the manifest may begin with the model's name.
    part = network
    while part.layer is None and len(part.children) == 1:
        (only,) = part.children.values()
        if not only.children:
            break
        part = only
    suffixes = model.framework not in _UNIQUE_PATHS

    @cache
    def names_of(part: _Node, opened: int) -> dict[str, _Node]:
        return _scope_names(part, opened, len(rows)) if opened else part.children

    def layers_of(scope: _Node, part: _Node, opened: int) -> dict[_Node, _Node]:
        found: dict[_Node, _Node] = {}
        for name, child in scope.children.items() if part.children else ():
            if name in (names := names_of(part, opened)):
                found |= layers_of(child, names[name], opened)
        own = part.layer is not None and not evidence.against(scope, part.layer)
        return {scope: part} | found if own or found else {}

    places = [
        _Place(scope, opened, found, part is network or part.name in _names(scope, suffixes))
        for scope in scopes.within()
        for opened in (_OPENED if suffixes else [0])
        if (found := layers_of(scope, part, opened))
    ]
    if not places:
        return Pairing({}, {}, {})
    # Of equal places the outermost.
    best = max(places, key=lambda one: (len(one.positions()), one.named))
    alike = [one for one in places if len(one.positions()) == len(best.positions())]
    # Where the scopes may have been opened more or less often, only what is the same is clear.
    rivals = [one for one in alike if one.scope is best.scope]
    unclear = {
        own
        for one in rivals
        for scope, own in one.layers.items()
        if own.layer is not None and any(other.layers.get(scope) is not own for other in rivals)
    }
    if _is_another(model, best, unclear, evidence):
        return Pairing({}, {}, {}, another=True)
    inside = {*best.scope.within()}
    further = [
        one
        for one in alike
        if one.opened == best.opened
        and one.named
        and best.named
        and one.scope not in inside
        and best.scope not in one.scope.within()
        and one.positions() == best.positions()
    ]
    result = Pairing({}, {}, {}, tuple(part.path for part in unclear))
    for one in (best, *further):
        # The model's name in the manifest, once, where the scope has a suffix.
        name = one.scope.name
        if one is best and best.named:
            names = (part.name, model.network)
            name = next((one for one in names if one in _names(best.scope, suffixes)), name)
        around = one.scope.path.rpartition(SEPARATOR)[0]
        for scope, own in {**one.layers, one.scope: part}.items():
            rows_in = scope.rows()
            if own in unclear or not rows_in or (own.layer is None and scope.row is None):
                continue
            below = own.path.removeprefix(part.path).removeprefix(SEPARATOR)
            path = SEPARATOR.join(filter(None, (around, name, below)))
            if suffixes and path and path != scope.path:
                result.paths[rows_in[0]] = path
            # A module's own functions may have no row, where a compiler fused them.
            alone = scope.row is not None or not own.children
            if own.layer is not None and scope is not one.scope and alone:
                result.layer_of[rows_in[0]] = own.layer
                if not own.children:
                    result.inside.update((row, rows_in[0]) for row in rows_in[1:])
    return result


def _names(scope: _Node, suffixes: bool) -> tuple[str, ...]:
    suffixed = _SUFFIXED.fullmatch(scope.name) if suffixes else None
    return (scope.name, suffixed[1]) if suffixed else (scope.name,)


def _scope_names(part: _Node, opened: int, most: int) -> dict[str, _Node]:
    """Return the children of ``part`` by the last scope of each of their calls, at most ``most``.

    By TensorFlow's ``Graph.unique_name``, for scopes that are opened ``opened`` times each.
    """
    layers_in = {
        child: [node.layer for node in child.within() if node.layer is not None]
        for child in part.children.values()
    }
    uses: dict[str, int] = {}
    given: dict[str, _Node] = {}
    for child in sorted(layers_in, key=lambda one: min(layer.position for layer in layers_in[one])):
        for _ in range(min(max(layer.calls for layer in layers_in[child]), most)):
            for _ in range(opened):
                unique, key = child.name, child.name.lower()
                count = uses.get(key, 0)
                uses[key] = count + 1
                if count:
                    while (tried := f"{key}_{count}") in uses:
                        count += 1
                    uses[tried] = 1
                    unique = f"{child.name}_{count}"
            given[unique] = child
    return given


def _is_another(
    model: Manifest, place: _Place, unclear: Collection[_Node], evidence: Evidence
) -> bool:
    """Return whether the manifest is of another model.

    Keras' default names occur in any model. With such names, all convolutions and products must be
    in both.
    """
    positions = place.positions()
    matched = [layer for layer in model.layers if layer.position in positions]
    if 2 * sum(map(_has_default_name, matched)) < len(matched):
        return False
    weighted = [one for one in model.layers if kind_of(one.type) in PRODUCT_LAYERS]
    found = sum(one.position in positions for one in weighted)
    known = evidence.multiplies | evidence.weights.keys()
    covered = {row for scope, part in place.layers.items() if part.layer for row in scope.rows()}
    ran = [
        node.row
        for node in place.scope.within()
        if node.row in known and len(known.intersection(node.rows())) == 1
    ]
    return found + len(unclear) < MANIFEST_COVERAGE * len(weighted) or (
        sum(row in covered for row in ran) + len(unclear) < MANIFEST_COVERAGE * len(ran)
    )


def _has_default_name(layer: Layer) -> bool:
    """Return whether the layer has Keras' default name, from its class."""
    name = _PART.split(layer.path)[-1]
    suffixed = _SUFFIXED.fullmatch(name)
    of_class = _SNAKE.sub("_", layer.framework_type.rpartition(".")[2]).lower()
    plain = {one.replace("_", "") for one in (name, suffixed[1] if suffixed else name)}
    return of_class.replace("_", "") in plain

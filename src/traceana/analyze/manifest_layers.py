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
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
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
    pairing = paired(trace, model)
    if not pairing.paths and not pairing.inside:
        return trace
    path, kind = (trace.tables.layers[column] for column in ("path", "type"))
    paths = {row: pairing.paths.get(outer, path[outer]) for row, outer in pairing.inside.items()}
    types = {row: kind[outer] for row, outer in pairing.inside.items()}
    return with_paths(trace, pairing.paths | paths, types)


def named_in_order(trace: Trace, model: Manifest) -> Trace:
    """Return ``trace`` with the paths of ``model`` on layers identified by position.

    A layer without a match keeps its name.
    """
    paths = paths_in_order(trace, model)
    types = {layer.path: layer.type for layer in model.layers}
    recorded = trace.tables.layers["type"].cast(pl.String)
    # A generated kernel computes other layers too where it has the name of one.
    fused = set(recorded.str.starts_with(FUSED).fill_null(value=False).arg_true())
    kinds = {row: FUSED if row in fused else types.get(path) for row, path in paths.items()}
    return with_paths(trace, paths, kinds) if paths else trace


def with_paths(
    trace: Trace, paths: Mapping[int, str], types: Mapping[int, str | None] | None = None
) -> Trace:
    """Return ``trace`` with other ``paths`` and ``types`` of these rows of its layers.

    Rows of one path and role, such as the calls of a shared layer, become one, the first.
    """
    from traceana.trace.merge import united_layers

    named = trace.tables.layers
    kinds = types or {}
    layers, rows = united_layers(
        named.with_columns(
            path=pl.Series([paths.get(row, path) for row, path in enumerate(named["path"])]),
            type=pl.Series(
                [kinds.get(row) or kind for row, kind in enumerate(named["type"])], dtype=pl.String
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
    pairing = _by_name({row: path for row, path, _ in rows}, model, evidence)
    if pairing.another or not trace.tables.ops["scope"].is_null().all():
        return pairing
    positions = {layer.position for layer in pairing.layer_of.values()}
    unpaired_layers = defaultdict(list)
    for layer in model.layers:
        if layer.position not in positions:
            unpaired_layers[type_of(layer.type)].append(layer)
    unpaired_rows = defaultdict(list)
    for row, _, kind in rows:
        if row not in pairing.layer_of and row not in pairing.inside:
            unpaired_rows[type_of(kind)].append(row)
    for layer_type, rows_of_type in unpaired_rows.items():
        layers = unpaired_layers[layer_type]
        if layer_type is None or len(rows_of_type) != len(layers):
            continue
        pairs = list(zip(rows_of_type, layers, strict=True))
        if not any(evidence.against_weight(*pair) for pair in pairs):
            pairing.layer_of.update(pairs)
    return pairing


class Evidence(msgspec.Struct, frozen=True):
    """The work of each row of ``layers``, and the number of elements of its weight.

    ``multiplies`` are rows with a convolution or product; ``forward`` are rows with forward work,
    ``possible`` rows with unclassified or fused work that may be a convolution or product.
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
            {row: prod(read.weight) for row, read in operands(trace).items() if read.weight},
        )

    def against(self, scope: _Node, layer: Layer) -> bool:
        """Return whether the work of ``scope`` contradicts ``layer``."""
        if scope.row is not None and self.against_weight(scope.row, layer):
            return True
        rows = {*scope.rows()}
        if kind_of(layer.type) in _NO_PRODUCT:
            return not self.multiplies.isdisjoint(rows)
        other = bool(self.forward & rows) and not rows & (self.multiplies | self.possible)
        return kind_of(layer.type) in PRODUCT_LAYERS and other

    def against_weight(self, row: int, layer: Layer) -> bool:
        """Return whether the weight of ``row`` is neither a weight of ``layer`` nor a shard of one.
        A recurrent layer has two weights; the row has the one that most of its products read.
        """
        weight, elements = layer.parameters.get("weight"), self.weights.get(row)
        if weight is None or elements is None:
            return False
        if elements in {prod(shape) for shape in layer.parameters.values() if len(shape) > 1}:
            return False
        return _has_default_name(layer) or not elements or prod(weight) % elements != 0


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
    """A scope that may be the model's, if a call of a layer opens its scope ``opened`` times.

    ``layers`` maps the scope, and each matched scope in it, to a part of the manifest's paths.
    ``positions`` are the positions of their layers. ``named``: the scope has the model's name.
    """

    scope: _Node
    opened: int
    layers: dict[_Node, _Node]
    positions: frozenset[int]
    named: bool


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
    root = network
    while root.layer is None and len(root.children) == 1:
        (only,) = root.children.values()
        if not only.children:
            break
        root = only

    suffixes = model.framework not in _UNIQUE_PATHS
    scope_names = {
        opened: {part: _scope_names(part, opened, len(rows)) for part in root.within()}
        for opened in (_OPENED if suffixes else (0,))
    }
    places = []
    for scope in scopes.within():
        named = root is network or root.name in _names(scope, suffixes)
        for opened, names in scope_names.items():
            layers = _layers_in(scope, root, names, evidence)
            positions = frozenset(part.layer.position for part in layers.values() if part.layer)
            places.append(_Place(scope, opened, layers, positions, named))
    # Of equal places the outermost.
    best = max(places, key=lambda place: (len(place.positions), place.named))
    if not best.layers:
        return Pairing({}, {}, {})

    # Where the scopes may have been opened more or less often, only what is the same is clear.
    rivals = [
        place.layers
        for place in places
        if place.scope is best.scope and len(place.positions) == len(best.positions)
    ]
    unclear = {
        part
        for layers in rivals
        for scope, part in layers.items()
        if part.layer is not None and any(rival.get(scope) is not part for rival in rivals)
    }
    if _is_another(model, best, unclear, evidence):
        return Pairing({}, {}, {}, another=True)

    inside_best = {*best.scope.within()}
    further_calls = [
        place
        for place in places
        if best.named
        and place.named
        and place.opened == best.opened
        and place.positions == best.positions
        and place.scope not in inside_best
        and best.scope not in place.scope.within()
    ]
    pairing = Pairing({}, {}, {}, tuple(part.path for part in unclear))
    for place in (best, *further_calls):
        model_name = place.scope.name
        if place is best and best.named:
            # The model's name in the manifest, once, where the scope has a suffix.
            named_as = _names(best.scope, suffixes)
            in_manifest = (name for name in (root.name, model.network) if name in named_as)
            model_name = next(in_manifest, model_name)
        around = place.scope.path.rpartition(SEPARATOR)[0]
        for scope, part in place.layers.items():
            scope_rows = scope.rows()
            if part in unclear or not scope_rows or (part.layer is None and scope.row is None):
                continue
            first, *others = scope_rows
            below = part.path.removeprefix(root.path).removeprefix(SEPARATOR)
            path = SEPARATOR.join(filter(None, (around, model_name, below)))
            if suffixes and path and path != scope.path:
                pairing.paths[first] = path
            # A module's own functions may have no row, where a compiler fused them.
            without_row = scope.row is None and part.children
            if part.layer is None or scope is place.scope or without_row:
                continue
            pairing.layer_of[first] = part.layer
            if not part.children:
                pairing.inside.update(dict.fromkeys(others, first))
    return pairing


def _layers_in(
    scope: _Node, part: _Node, names: Mapping[_Node, Mapping[str, _Node]], evidence: Evidence
) -> dict[_Node, _Node]:
    """Return the parts of the model's paths by scope, if ``scope`` is that of ``part``.

    ``names`` has the scopes of the children of each part.
    """
    inner: dict[_Node, _Node] = {}
    for name, child in scope.children.items():
        if name in names[part]:
            inner |= _layers_in(child, names[part][name], names, evidence)
    if inner or (part.layer is not None and not evidence.against(scope, part.layer)):
        return {scope: part, **inner}
    return {}


def _names(scope: _Node, suffixes: bool) -> tuple[str, ...]:
    suffixed = _SUFFIXED.fullmatch(scope.name) if suffixes else None
    return (scope.name, suffixed[1]) if suffixed else (scope.name,)


def _scope_names(part: _Node, opened: int, most: int) -> dict[str, _Node]:
    """Return the children of ``part`` by the last scope of each of their calls, at most ``most``.

    By TensorFlow's ``Graph.unique_name``, for scopes that are opened ``opened`` times each; without
    suffixes for 0.
    """
    if not opened:
        return part.children
    layers_in = {
        child: [node.layer for node in child.within() if node.layer is not None]
        for child in part.children.values()
    }
    uses: dict[str, int] = {}
    given: dict[str, _Node] = {}
    for child in sorted(
        layers_in, key=lambda node: min(layer.position for layer in layers_in[node])
    ):
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
    matched = [layer for layer in model.layers if layer.position in place.positions]
    if 2 * sum(map(_has_default_name, matched)) < len(matched):
        return False
    weighted = [layer for layer in model.layers if kind_of(layer.type) in PRODUCT_LAYERS]
    paired_count = sum(layer.position in place.positions for layer in weighted)
    products = evidence.multiplies | evidence.weights.keys()
    covered = {row for scope, part in place.layers.items() if part.layer for row in scope.rows()}
    ran = [
        node.row
        for node in place.scope.within()
        if node.row in products and len(products.intersection(node.rows())) == 1
    ]
    return paired_count + len(unclear) < MANIFEST_COVERAGE * len(weighted) or (
        sum(row in covered for row in ran) + len(unclear) < MANIFEST_COVERAGE * len(ran)
    )


def _has_default_name(layer: Layer) -> bool:
    """Return whether the layer has Keras' default name, from its class."""
    name = _PART.split(layer.path)[-1]
    suffixed = _SUFFIXED.fullmatch(name)
    of_class = _SNAKE.sub("_", layer.framework_type.rpartition(".")[2]).lower()
    unsuffixed = suffixed[1] if suffixed else name
    return of_class.replace("_", "") in (name.replace("_", ""), unsuffixed.replace("_", ""))

"""The layers of a manifest that the layers of a trace are.

TensorFlow makes every scope of a graph distinct: a name that is taken gets ``_1``, ``_2`` … behind
it, and Keras opens the scope of a layer once or twice for a call. So the scope ``conv2d_1`` may be
of the layer ``conv2d_1`` or of ``conv2d``, and which it is depends on the others. Scopes and layers
are matched together, level by level, and what fits several layers equally well is left alone.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.work import work
from traceana.enrich.layers.places import SEPARATOR

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceana.model.manifest import Layer, Manifest
    from traceana.trace import Trace

_SEPARATOR: Final = re.compile(r"[./]")
_SUFFIXED: Final = re.compile(r"(.+)_[1-9]\d*")
_SNAKE: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_UNIQUE_PATHS: Final = frozenset(("PyTorch", "Flax", "JAX"))
"""Frameworks that do not append numbers to the paths of their layers."""

_PRODUCTS: Final = ("conv", "gemm", "attention", "rnn")
_DOUBTFUL: Final = ("other", "fused")
_PRODUCT: Final = re.compile(r"(?:Separable|Depthwise)?Conv|Linear|EinsumDense|RNN|LSTM|GRU|Multih")
"""Types of layers that are convolutions or matrix products."""
_NO_PRODUCT: Final = re.compile(r".*Pool|Flatten|Concat|ZeroPad|Crop|Dropout|Embedding|Upsample")
"""Types into which no convolution or product is ever fused."""

_MOST_OPENED: Final = 4
"""How often Keras opens the scope of a layer for one call, at most."""
_COVERED: Final = 0.75
"""Share of the products of a model that a manifest must have if its names were given by Keras."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """The layers of a trace and of a manifest that are the same.

    ``layer_of`` maps rows of ``layers`` to layers of the manifest. ``paths`` has the path of rows
    whose scope is the manifest's path with suffixes, and ``inside`` the rows that are within the
    layer of another row. ``unclear`` holds paths of layers that the trace has, but nothing tells
    which of its scopes they are; ``another`` is true of the manifest of another model.
    """

    layer_of: dict[int, Layer]
    paths: dict[int, str] = field(default_factory=dict)
    inside: dict[int, int] = field(default_factory=dict)
    unclear: tuple[str, ...] = ()
    another: bool = False


def paired(trace: Trace, model: Manifest) -> Pairing:
    """Return which rows of ``trace.layers`` are which layers of ``model``, where that is certain.

    By name, level by level (:class:`_Matching`). Layers of which the trace has no names, but
    numbers by type (``Conv2d_2`` is the third convolution), are paired by type and order, where
    model and trace have equally many.
    """
    rows = [
        (row, path, kind)
        for row, path, kind, role in trace.layers.with_row_index("row")
        .select("row", "path", "type", "role")
        .iter_rows()
        if role == "layer"
    ]
    evidence = _Evidence.of(trace)
    matching = _Matching(evidence, model.network, suffixes=model.framework not in _UNIQUE_PATHS)
    found = matching.best(_tree((path, row) for row, path, _ in rows), _tree_of(model))
    if found.another:
        return found
    left = [one for one in rows if one[0] not in found.layer_of and one[0] not in found.inside]
    unclear = {*found.unclear}
    absent = [
        layer
        for layer in _absent(model, found)
        if SEPARATOR.join(_tail(layer.path, None)) not in unclear
        and not (matching.suffixes and _is_default(layer))
    ]
    found.layer_of.update(_by_tail(left, absent, evidence))
    if trace.ops["scope"].is_null().all():
        left = [one for one in left if one[0] not in found.layer_of]
        found.layer_of.update(_by_order(left, _absent(model, found), evidence))
    return found


def with_names_of(trace: Trace, model: Manifest | None) -> Trace:
    """Return ``trace`` with the manifest's names for scopes with suffixes, and for positions.

    What ran inside a layer of the manifest becomes part of that layer.
    """
    # The package imports this module for its table.
    from traceana.analyze.layers.in_order import named_in_order

    if model is None or not trace.layers.height:
        return trace
    trace = named_in_order(trace, model)
    found = paired(trace, model)
    if not found.paths and not found.inside:
        return trace
    paths = trace.layers["path"].cast(pl.String).to_list()
    for row, path in found.paths.items():
        paths[row] = path
    into = {row: found.inside.get(row, row) for row in range(trace.layers.height)}
    # Calls of one layer have one path, so that they are one row.
    first: dict[str, int] = {}
    for row, path in enumerate(paths):
        if row in found.layer_of and into[row] == row:
            into[row] = first.setdefault(path, row)
    kept = [row for row in range(trace.layers.height) if into[row] == row]
    number = {row: place for place, row in enumerate(kept)}
    parents = trace.layers["parent"].to_list()
    columns = {
        "path": [paths[row] for row in kept],
        "parent": [_above(parents, row, into, number) for row in kept],
    }
    layers = trace.layers[kept].with_columns(
        pl.Series(name, values).cast(trace.layers.schema[name]) for name, values in columns.items()
    )
    rows = pl.Series([number[into[row]] for row in range(len(paths))], dtype=pl.UInt32)
    return trace.with_tables(
        layers=layers,
        activities=trace.activities.with_columns(rows.gather(trace.activities["layer"])
                                                 .alias("layer")),
        ops=trace.ops.with_columns(rows.gather(trace.ops["layer"]).alias("layer")),
    )  # fmt: skip


def _above(
    parents: list[int | None], row: int, into: dict[int, int], number: dict[int, int]
) -> int | None:
    parent = parents[row]
    return None if parent is None or into[parent] == row else number[into[parent]]


@dataclass(slots=True)
class _Node:
    """A part of the path of layers; ``row`` is of the trace, ``layer`` of the manifest."""

    name: str
    path: str
    children: dict[str, _Node] = field(default_factory=dict)
    row: int | None = None
    layer: Layer | None = None

    def within(self) -> Iterator[_Node]:
        """Return the node and all below it."""
        yield self
        for child in self.children.values():
            yield from child.within()

    def add(self, path: str) -> _Node:
        node = self
        for part in _SEPARATOR.split(path):
            if part:
                whole = f"{node.path}{SEPARATOR}{part}" if node.path else part
                node = node.children.setdefault(part, _Node(part, whole))
        return node


def _tree(rows: Iterator[tuple[str, int]]) -> _Node:
    root = _Node("", "")
    for path, row in rows:
        root.add(path).row = row
    return root


def _tree_of(model: Manifest) -> _Node:
    root = _Node("", "")
    for layer in model.layers:
        root.add(layer.path).layer = layer
    return root


@dataclass(frozen=True, slots=True)
class _Evidence:
    """By row of ``layers``: what ran, and the number of elements of its weight.

    ``multiplies`` are rows with a convolution or product; ``forward`` those with forward work, and
    ``doubtful`` those of which some may be one, for it is unclassified or fused.
    """

    multiplies: frozenset[int]
    forward: frozenset[int]
    doubtful: frozenset[int]
    weights: dict[int, int]

    @classmethod
    def of(cls, trace: Trace) -> _Evidence:
        # The package imports this module for its table.
        from traceana.analyze.layers.operands import operands

        names = trace.names.select(
            pl.int_range(pl.len(), dtype=pl.UInt32).alias("name_id"),
            pl.col("category").cast(pl.String).is_in(_PRODUCTS).fill_null(False).alias("product"),
            pl.col("category").cast(pl.String).is_in(_DOUBTFUL).fill_null(True).alias("doubtful"),
        )
        # What a compiler fused has neither one operator nor one layer.
        ran = (
            work(trace, "layer", "name_id", "direction", "instruction")
            .filter(pl.col("layer").is_not_null() & pl.col("instruction").is_null())
            .join(names, on="name_id", how="left")
            .group_by("layer")
            .agg(
                pl.col("product").any().alias("multiplies"),
                pl.col("doubtful").any(),
                (pl.col("direction") == "forward").fill_null(True).any().alias("forward"),
            )
        )
        known = operands(trace)
        return cls(
            frozenset(ran.filter("multiplies")["layer"]),
            frozenset(ran.filter("forward")["layer"]),
            frozenset(ran.filter("doubtful")["layer"]),
            {row: prod(one.weight) for row, one in known.items() if one.weight},
        )

    def multiplies_in(self, node: _Node) -> bool:
        return any(one.row in self.multiplies for one in node.within())

    def against(self, node: _Node, layer: Layer) -> bool:
        """Tell whether what ran in ``node`` is not what ``layer`` computes."""
        if node.row is not None and self.against_row(node.row, layer):
            return True
        if _NO_PRODUCT.match(layer.type):
            return self.multiplies_in(node)
        rows = {one.row for one in node.within()}
        other = bool(rows & self.forward) and not rows & (self.multiplies | self.doubtful)
        return bool(_PRODUCT.match(layer.type)) and other

    def against_row(self, row: int, layer: Layer) -> bool:
        """Tell whether the weight of ``row`` is neither that of ``layer`` nor a shard of it."""
        weight, known = layer.parameters.get("weight"), self.weights.get(row)
        if weight is None or known is None or prod(weight) == known:
            return False
        return _is_default(layer) or not known or prod(weight) % known != 0


@dataclass(slots=True)
class _Found:
    """The partners of the nodes of a part of the trace, by node of the trace.

    ``unclear`` are nodes of the manifest.
    """

    pairs: list[tuple[_Node, _Node]] = field(default_factory=list)
    unclear: list[_Node] = field(default_factory=list)

    def leaves(self) -> frozenset[int]:
        """Return the positions of the layers found."""
        return frozenset(one.layer.position for _, one in self.pairs if one.layer is not None)


class _Matching:
    """The matching of two trees by the names of their nodes.

    A scope is of the layer of its own name or, where suffixes are appended, of that without its
    last number. The children of two matching nodes are matched together: a scope for which one
    layer is left is of it; a layer is taken as often as it is called. What remains is told by the
    order of the layers: TensorFlow's rule for distinct names, in the model's order, gives the name
    of each, if as many scopes are opened for a call as fits the pairs found so far.
    """

    def __init__(self, evidence: _Evidence, network: str, *, suffixes: bool) -> None:
        self._evidence = evidence
        self._network = network
        self.suffixes = suffixes
        self._known: dict[tuple[int, int], _Found] = {}

    def best(self, trace: _Node, model: _Node) -> Pairing:
        """Return the pairs below the nodes that have most in common.

        The scope of the whole model may have any scopes around it, and another name. Others that
        have the same layers are further calls of it.
        """
        anchors: list[tuple[int, bool, _Node, _Node]] = []
        below = model
        while True:
            for node in trace.within():
                named = below is model or below.name in self._names(node)
                size = len(self._matched(node, below).leaves())
                if size:
                    anchors.append((size, named, node, below))
            if len(below.children) != 1 or below.layer is not None:
                break
            (below,) = below.children.values()
        if not anchors:
            return Pairing({})
        # Of equals the outermost, with as much of the manifest's path as there is.
        size, named, node, below = max(anchors, key=lambda one: (one[0], one[1]))
        first = self._matched(node, below)
        if self._of_another(node, model, first):
            return Pairing({}, another=True)
        result = self._pairing(node, below, first, named=named)
        same = first.leaves()
        for other_size, other_named, other, at in anchors:
            again = other_size == size and other_named and named and at is below
            if again and other not in list(node.within()) and node not in list(other.within()):
                further = self._matched(other, at)
                if further.leaves() == same:
                    told = self._pairing(other, at, further, named=False)
                    result.layer_of.update(told.layer_of)
                    result.paths.update(told.paths)
                    result.inside.update(told.inside)
        return result

    def _names(self, node: _Node) -> tuple[str, ...]:
        suffixed = _SUFFIXED.fullmatch(node.name) if self.suffixes else None
        return (node.name, suffixed[1]) if suffixed else (node.name,)

    def _matched(self, node: _Node, model: _Node) -> _Found:
        key = (id(node), id(model))
        if key not in self._known:
            self._known[key] = self._match(node, model)
        return self._known[key]

    def _match(self, node: _Node, model: _Node) -> _Found:
        found = _Found()
        if model.layer is not None and not self._evidence.against(node, model.layer):
            found.pairs.append((node, model))
        if not model.children or not node.children:
            return found
        options: dict[str, list[str]] = {}
        for child in node.children.values():
            fits = [name for name in self._names(child) if name in model.children]
            sizes = [len(self._matched(child, model.children[name]).leaves()) for name in fits]
            most = max(sizes, default=0)
            if most:
                options[child.name] = [
                    name for name, size in zip(fits, sizes, strict=True) if size == most
                ]
        chosen, unclear = self._chosen(model, options)
        for name, partner in chosen.items():
            inner = self._matched(node.children[name], model.children[partner])
            found.pairs += inner.pairs
            found.unclear += inner.unclear
            if model.children[partner].children:
                found.pairs.append((node.children[name], model.children[partner]))
        found.unclear += [model.children[name] for name in sorted(unclear)]
        return found

    def _chosen(
        self, model: _Node, options: dict[str, list[str]]
    ) -> tuple[dict[str, str], set[str]]:
        """Return the names of the children of ``model`` by those of the trace, and unclear ones."""
        room = {name: _calls(child) for name, child in model.children.items()}
        left = {name: list(fits) for name, fits in options.items()}
        chosen = _settled(left, room)
        if left:
            expected = self._expected(model, chosen)
            for name, fits in list(left.items()):
                if expected.get(name) in fits and room[expected[name]] > 0:
                    chosen[name] = expected[name]
                    room[expected[name]] -= 1
                    del left[name]
            chosen |= _settled(left, room)
        unclear = {
            fit
            for name, fits in options.items()
            if name not in chosen
            for fit in fits
            if fit not in chosen.values()
        }
        return chosen, unclear

    def _expected(self, model: _Node, chosen: dict[str, str]) -> dict[str, str]:
        """Return the layers by the names that TensorFlow gives their scopes in the model's order.

        Nothing, where the pairs in ``chosen`` do not tell how often a scope is opened.
        """
        told: list[tuple[int, dict[str, str]]] = []
        for opened in range(1, _MOST_OPENED + 1 if self.suffixes else 2):
            names = _names_given(model, opened)
            agree = sum(names.get(name) == partner for name, partner in chosen.items())
            told.append((agree, names))
        most = max(agree for agree, _ in told)
        agreeing = [names for agree, names in told if agree == most]
        if not most or most < 0.9 * len(chosen) or len(agreeing) > 1:
            return {}
        return agreeing[0]

    def _of_another(self, node: _Node, model: _Node, found: _Found) -> bool:
        """Tell whether the manifest is of another model.

        Names that Keras gave are of any model. Of these all that multiplies has to be in both.
        """
        layers = [one.layer for one in model.within() if one.layer is not None]
        weighted = [one for one in layers if _PRODUCT.match(one.type)]
        positions = found.leaves()
        matched = [one for one in layers if one.position in positions]
        if 2 * sum(_is_default(one) for one in matched) < len(matched):
            return False
        unclear = sum(one.layer is not None for one in found.unclear)
        present = sum(one.position in positions for one in weighted)
        covered = {id(one) for partner, at in found.pairs if at.layer for one in partner.within()}
        known = self._evidence.multiplies | self._evidence.weights.keys()
        ran = [one for one in node.within() if one.row in known and not _holds(one, known)]
        inside = sum(id(one) in covered for one in ran)
        return (
            bool(weighted) and present + unclear < _COVERED * len(weighted)
        ) or inside + unclear < _COVERED * len(ran)

    def _pairing(self, node: _Node, model: _Node, found: _Found, *, named: bool) -> Pairing:
        """Return the pairs as rows; paths are the manifest's, behind what is around the model."""
        result = Pairing({}, unclear=tuple(one.path for one in found.unclear))
        keeps_name = bool(model.path) and named
        around = node.path.rpartition(SEPARATOR)[0]
        if not keeps_name:
            name = self._network if named and self._network in self._names(node) else node.name
            around = SEPARATOR.join(part for part in (around, name) if part)
        beyond = len(model.path) - len(model.name) if keeps_name else len(model.path)
        for mine, theirs in [*found.pairs, (node, model)]:
            rows = [one.row for one in mine.within() if one.row is not None]
            if not rows or (theirs.layer is None and mine.row is None):
                continue
            row = rows[0]
            path = theirs.path[beyond:].removeprefix(SEPARATOR)
            path = SEPARATOR.join(part for part in (around, path) if part)
            if self.suffixes and path and path != mine.path:
                result.paths[row] = path
            if theirs.layer is not None and mine is not node:
                result.layer_of[row] = theirs.layer
                if not theirs.children:
                    result.inside.update((one, row) for one in rows[1:])
        return result


def _settled(left: dict[str, list[str]], room: dict[str, int]) -> dict[str, str]:
    """Return what is certain of ``left``, from which it is taken, while there is ``room``."""
    chosen: dict[str, str] = {}
    while True:
        open_ = {name: [fit for fit in fits if room[fit] > 0] for name, fits in left.items()}
        wanted = Counter(fits[0] for fits in open_.values() if len(fits) == 1)
        certain = {
            name: fits[0]
            for name, fits in open_.items()
            if len(fits) == 1 and wanted[fits[0]] <= room[fits[0]]
        }
        if not certain:
            return chosen
        for name, fit in certain.items():
            chosen[name] = fit
            room[fit] -= 1
            del left[name]


def _calls(node: _Node) -> int:
    return max((one.layer.calls for one in node.within() if one.layer is not None), default=1)


def _names_given(model: _Node, opened: int) -> dict[str, str]:
    """Return the children of ``model`` by the last name given to the scope of their first call.

    TensorFlow's ``Graph.unique_name``, for scopes that are opened ``opened`` times each.
    """
    first = {
        name: min(one.layer.position for one in child.within() if one.layer is not None)
        for name, child in model.children.items()
    }
    uses: dict[str, int] = {}
    given: dict[str, str] = {}
    for name in sorted(first, key=lambda one: first[one]):
        unique = name
        for _ in range(opened):
            key = name.lower()
            count = uses.get(key, 0)
            uses[key] = count + 1
            unique = name
            if count:
                while (tried := f"{key}_{count}") in uses:
                    count += 1
                uses[tried] = 1
                unique = f"{name}_{count}"
        given[unique] = name
    return given


def _is_default(layer: Layer) -> bool:
    """Tell whether Keras gave the layer its name, after its class."""
    name = _SEPARATOR.split(layer.path)[-1]
    suffixed = _SUFFIXED.fullmatch(name)
    of_class = _SNAKE.sub("_", layer.framework_type.rpartition(".")[2]).lower()
    plain = {one.replace("_", "") for one in (name, suffixed[1] if suffixed else name)}
    return of_class.replace("_", "") in plain


def _holds(node: _Node, rows: frozenset[int] | set[int]) -> bool:
    return any(one.row in rows for one in node.within() if one is not node)


_Row = tuple[int, str, str | None]
"""(row, path, type)"""


def _absent(model: Manifest, found: Pairing) -> list[Layer]:
    present = {layer.position for layer in found.layer_of.values()}
    return [layer for layer in model.layers if layer.position not in present]


def _by_tail(rows: list[_Row], layers: list[Layer], evidence: _Evidence) -> dict[int, Layer]:
    """Return the pairs whose last parts of the path are of one layer alone on both sides."""
    found: dict[int, Layer] = {}
    taken: set[int] = set()
    for depth in (None, 4, 3, 2, 1):
        mine, theirs = defaultdict(list), defaultdict(list)
        for row, path, _ in rows:
            mine[_tail(path, depth)].append(row)
        for layer in layers:
            theirs[_tail(layer.path, depth)].append(layer)
        for tail, own in mine.items():
            if len(own) == 1 == len(theirs[tail]) and own[0] not in found:
                (layer,) = theirs[tail]
                if layer.position not in taken and not evidence.against_row(own[0], layer):
                    found[own[0]] = layer
                    taken.add(layer.position)
    return found


def _by_order(rows: list[_Row], layers: list[Layer], evidence: _Evidence) -> dict[int, Layer]:
    """Return the pairs by order within a type of which there are equally many on both sides."""
    found: dict[int, Layer] = {}
    mine, theirs = defaultdict(list), defaultdict(list)
    for row, _, kind in rows:
        mine[_word(kind)].append(row)
    for layer in layers:
        theirs[_word(layer.type)].append(layer)
    for word, own in mine.items():
        pairs = list(zip(own, theirs[word], strict=False))
        alike = not any(evidence.against_row(row, layer) for row, layer in pairs)
        if word and alike and len(own) == len(theirs[word]):
            found |= dict(pairs)
    return found


def _tail(path: str, depth: int | None) -> tuple[str, ...]:
    parts = tuple(part for part in _SEPARATOR.split(path) if part)
    return parts if depth is None else parts[-depth:]


def _word(kind: str | None) -> str:
    return (kind or "").lower().replace("_", "")

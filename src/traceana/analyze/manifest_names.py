"""Layers of a manifest matched with the scopes of a trace by their names.

TensorFlow makes every scope of a graph distinct by appending ``_1``, ``_2`` … to a repeated name,
and Keras opens the scope of a layer once or twice for a call. The scope ``conv2d_1`` may therefore
be of the layer ``conv2d_1`` or of ``conv2d``, depending on the other scopes. Scopes and layers are
matched together, level by level; a scope that matches several layers equally stays unmatched.
"""

from __future__ import annotations

import re
from collections import Counter
from math import prod
from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from traceana.analyze.layer_operands import operands
from traceana.enrich.layers.source import SEPARATOR
from traceana.model.manifest import Layer
from traceana.settings import MANIFEST_AGREEMENT, MANIFEST_COVERAGE
from traceana.timeline.work import work
from traceana.trace.taxonomy import PRODUCTS
from traceana.vocabulary.layer_types import PRODUCT_LAYERS, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceana.model.manifest import Manifest
    from traceana.trace import Trace

SEPARATORS: Final = re.compile(r"[./]")
_SUFFIXED: Final = re.compile(r"(.+)_[1-9]\d*")
_SNAKE: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

_DOUBTFUL: Final = ("other", "fused")
_NO_PRODUCT: Final = ("pool", "shape", "dropout", "embedding")
"""Kinds that are never fused with a convolution or product."""

_MOST_OPENED: Final = 4
"""Maximum number of times that Keras opens the scope of a layer for one call."""


class Pairing(msgspec.Struct, frozen=True):
    """The pairs of layers of a trace and of a manifest.

    ``layer_of`` maps rows of ``layers`` to layers of the manifest. ``paths`` has the path of rows
    whose scope is the manifest's path with suffixes, and ``inside`` the rows within the layer of
    another row. ``unclear`` has the paths of layers whose scope in the trace is ambiguous;
    ``together`` those that share a row, because a compiler fused them. ``another`` is true where
    the manifest describes another model.
    """

    layer_of: dict[int, Layer]
    paths: dict[int, str] = msgspec.field(default_factory=dict)
    inside: dict[int, int] = msgspec.field(default_factory=dict)
    unclear: tuple[str, ...] = ()
    together: frozenset[str] = frozenset()
    another: bool = False


class Node(msgspec.Struct):
    """A part of the paths of layers; ``row`` is of the trace, ``layer`` of the manifest."""

    name: str
    path: str
    children: dict[str, Node] = msgspec.field(default_factory=dict)
    row: int | None = None
    layer: Layer | None = None

    def within(self) -> Iterator[Node]:
        """Return the node and all below it."""
        yield self
        for child in self.children.values():
            yield from child.within()

    def add(self, path: str) -> Node:
        node = self
        for part in SEPARATORS.split(path):
            if part:
                whole = f"{node.path}{SEPARATOR}{part}" if node.path else part
                node = node.children.setdefault(part, Node(part, whole))
        return node


def tree_of_rows(rows: Iterator[tuple[str, int]]) -> Node:
    root = Node("", "")
    for path, row in rows:
        root.add(path).row = row
    return root


def tree_of_manifest(model: Manifest) -> Node:
    root = Node("", "")
    for layer in model.layers:
        root.add(layer.path).layer = layer
    return root


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
                pl.col("product").any().alias("multiplies"),
                pl.col("possible").any(),
                (pl.col("direction") == "forward").fill_null(True).any().alias("forward"),
            )
        )
        known = operands(trace)
        return cls(
            frozenset(ran.filter("multiplies")["layer"]),
            frozenset(ran.filter("forward")["layer"]),
            frozenset(ran.filter("possible")["layer"]),
            {row: prod(one.weight) for row, one in known.items() if one.weight},
        )

    def multiplies_in(self, node: Node) -> bool:
        return any(one.row in self.multiplies for one in node.within())

    def against(self, node: Node, layer: Layer) -> bool:
        """Return whether the work of ``node`` cannot be that of ``layer``."""
        if node.row is not None and self.against_row(node.row, layer):
            return True
        if kind_of(layer.type) in _NO_PRODUCT:
            return self.multiplies_in(node)
        rows = {one.row for one in node.within()}
        other = bool(rows & self.forward) and not rows & (self.multiplies | self.possible)
        return kind_of(layer.type) in PRODUCT_LAYERS and other

    def against_row(self, row: int, layer: Layer) -> bool:
        """Return whether the weight of ``row`` is neither one of ``layer`` nor a shard of it.

        A recurrent layer has two, and the row has the one that most of its products read.
        """
        weight, known = layer.parameters.get("weight"), self.weights.get(row)
        if weight is None or known is None:
            return False
        if known in {prod(shape) for shape in layer.parameters.values() if len(shape) > 1}:
            return False
        return is_default_name(layer) or not known or prod(weight) % known != 0


class _Found(msgspec.Struct):
    """The matches of the nodes of a part of the trace, by node of the trace.

    ``unclear`` are nodes of the manifest.
    """

    pairs: list[tuple[Node, Node]] = msgspec.field(default_factory=list)
    unclear: list[Node] = msgspec.field(default_factory=list)

    def leaves(self) -> frozenset[int]:
        """Return the positions of the layers found."""
        return frozenset(one.layer.position for _, one in self.pairs if one.layer is not None)


class Matching:
    """The matching of two trees by the names of their nodes.

    A scope matches the layer of the same name or, where suffixes are appended, of the name without
    its last number. The children of two matching nodes are matched together: a scope with one
    possible layer matches it; a layer matches as many scopes as it has calls. The others follow
    from the order of the layers: TensorFlow's rule for distinct names, applied in the model's
    order, determines each name, if the number of scopes per call agrees with the pairs so far.
    """

    def __init__(self, evidence: Evidence, network: str, *, suffixes: bool) -> None:
        self._evidence = evidence
        self._network = network
        self.suffixes = suffixes
        self._known: dict[tuple[int, int], _Found] = {}

    def best(self, trace: Node, model: Node) -> Pairing:
        """Return the pairs below the two nodes with the most matches.

        The scope of the whole model may have parent scopes and another name. Other scopes with the
        same layers are further calls of the model.
        """
        anchors: list[tuple[int, bool, Node, Node]] = []
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
        # Of equal candidates the outermost, with the longest part of the manifest's path.
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
                    inner = self._pairing(other, at, further, named=False)
                    result.layer_of.update(inner.layer_of)
                    result.paths.update(inner.paths)
                    result.inside.update(inner.inside)
        return result

    def _names(self, node: Node) -> tuple[str, ...]:
        suffixed = _SUFFIXED.fullmatch(node.name) if self.suffixes else None
        return (node.name, suffixed[1]) if suffixed else (node.name,)

    def _matched(self, node: Node, model: Node) -> _Found:
        key = (id(node), id(model))
        if key not in self._known:
            self._known[key] = self._match(node, model)
        return self._known[key]

    def _match(self, node: Node, model: Node) -> _Found:
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
        self, model: Node, options: dict[str, list[str]]
    ) -> tuple[dict[str, str], set[str]]:
        """Return the names of ``model``'s children by those of the trace, and unclear ones."""
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

    def _expected(self, model: Node, chosen: dict[str, str]) -> dict[str, str]:
        """Return the layers by the names that TensorFlow gives their scopes in the model's order.

        Empty where the pairs in ``chosen`` do not determine the number of scopes per call.
        """
        candidates: list[tuple[int, dict[str, str]]] = []
        for opened in range(1, _MOST_OPENED + 1 if self.suffixes else 2):
            names = _names_given(model, opened)
            agree = sum(names.get(name) == partner for name, partner in chosen.items())
            candidates.append((agree, names))
        most = max(agree for agree, _ in candidates)
        agreeing = [names for agree, names in candidates if agree == most]
        if not most or most < MANIFEST_AGREEMENT * len(chosen) or len(agreeing) > 1:
            return {}
        return agreeing[0]

    def _of_another(self, node: Node, model: Node, found: _Found) -> bool:
        """Return whether the manifest is of another model.

        Keras' default names occur in any model. With such names, all convolutions and products must
        be in both.
        """
        layers = [one.layer for one in model.within() if one.layer is not None]
        weighted = [one for one in layers if kind_of(one.type) in PRODUCT_LAYERS]
        positions = found.leaves()
        matched = [one for one in layers if one.position in positions]
        if 2 * sum(is_default_name(one) for one in matched) < len(matched):
            return False
        unclear = sum(one.layer is not None for one in found.unclear)
        present = sum(one.position in positions for one in weighted)
        covered = {id(one) for partner, at in found.pairs if at.layer for one in partner.within()}
        known = self._evidence.multiplies | self._evidence.weights.keys()
        ran = [one for one in node.within() if one.row in known and not _holds(one, known)]
        inside = sum(id(one) in covered for one in ran)
        return (
            bool(weighted) and present + unclear < MANIFEST_COVERAGE * len(weighted)
        ) or inside + unclear < MANIFEST_COVERAGE * len(ran)

    def _pairing(self, node: Node, model: Node, found: _Found, *, named: bool) -> Pairing:
        """Return the pairs as rows; paths are the manifest's, after the model's parent scopes."""
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
            # A module's own functions may have no row, where a compiler fused them.
            own = mine.row is not None or not theirs.children
            if theirs.layer is not None and mine is not node and own:
                result.layer_of[row] = theirs.layer
                if not theirs.children:
                    result.inside.update((one, row) for one in rows[1:])
        return result


def _settled(left: dict[str, list[str]], room: dict[str, int]) -> dict[str, str]:
    """Return the unambiguous pairs and remove them from ``left``, within ``room`` per layer."""
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


def _calls(node: Node) -> int:
    return max((one.layer.calls for one in node.within() if one.layer is not None), default=1)


def _names_given(model: Node, opened: int) -> dict[str, str]:
    """Return the children of ``model`` by the last name of the scope of their first call.

    By TensorFlow's ``Graph.unique_name``, for scopes that are opened ``opened`` times each.
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


def is_default_name(layer: Layer) -> bool:
    """Return whether the layer has Keras' default name, from its class."""
    name = SEPARATORS.split(layer.path)[-1]
    suffixed = _SUFFIXED.fullmatch(name)
    of_class = _SNAKE.sub("_", layer.framework_type.rpartition(".")[2]).lower()
    plain = {one.replace("_", "") for one in (name, suffixed[1] if suffixed else name)}
    return of_class.replace("_", "") in plain


def _holds(node: Node, rows: frozenset[int] | set[int]) -> bool:
    return any(one.row in rows for one in node.within() if one is not node)

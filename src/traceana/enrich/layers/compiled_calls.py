"""What the calls of a compiled graph compute, and which forward calls those of its backward graph
are the gradients of."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import Final

import msgspec
import numpy as np

from traceana.columns.nesting import NONE, Flags, Ints, take
from traceana.flops.call import Call
from traceana.flops.cost import Shape, UncountableError
from traceana.flops.registry import TEMPLATE

_GENERATED: Final = r"^(?:graph_\d+_)?(?:cpp|triton_[a-z]+)_fused_?"
"""The beginning of the name of a generated kernel; the names of what it fuses follow."""
_NUMBER: Final = r"_\d+$"
"""The end of that name: the kernel's number in its graph."""


class CompiledCall(msgspec.Struct, frozen=True):
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


_MOST_NEAR: Final = 64
"""Calls behind a forward operator among which that of a generated kernel is looked for."""
_PRODUCT: Final = re.compile(r"(?:^|_)(?:addmm|baddbmm|bmm|mm|linear)(?:_|$)")
_CONVOLUTION: Final = re.compile(r"convolution|conv[123]d")


def compiled_call(name: str, shapes: str | None) -> CompiledCall:
    """Return what a call computes."""
    short = name.rpartition("::")[2]
    generated = re.match(_GENERATED, name)
    words = re.sub(_NUMBER, "", re.sub(_GENERATED, "", short))
    if generated and not name.startswith(TEMPLATE):
        return CompiledCall("", (), False, frozenset(words.split("_")) - {"", "backward"})
    of_gradient = "backward" in short
    tensors = _tensors(name, shapes)
    kind, biased = short.replace("_backward", ""), False
    if _CONVOLUTION.search(short):
        # Its gradient has that of the output first.
        kind, tensors = "convolution", tensors[of_gradient:][:2]
    elif _PRODUCT.search(short):
        kind = "product"
        # The addend comes first, such as a bias.
        adds = short.startswith(("addmm", "baddbmm"))
        biased = adds and [len(one) for one in tensors[:1]] == [1]
        tensors = tensors[adds:]
        tensors = tuple(one for one in tensors if len(one) > 1)[:2]
    elif "attention" in short:
        kind, tensors = re.sub(r"_for_cpu", "", kind), tensors[of_gradient:][:2]
    else:
        tensors = ()
    return CompiledCall(kind, tensors, of_gradient, frozenset(words.split("_")) - {""}, biased)


def _tensors(name: str, shapes: str | None) -> tuple[Shape, ...]:
    try:
        call = Call.decode(name, shapes)
        return tuple(call.shape(position) for position in call.tensors())
    except UncountableError:
        return ()


class Gradients(msgspec.Struct, frozen=True):
    """Of each call of a backward graph: the position of its forward call, and of that behind which
    what runs before it belongs, NONE where it is unclear; whether it is part of the code around
    it."""

    forward: Ints
    before: Ints
    in_code: Flags


def gradients(forward: Sequence[CompiledCall], backward: Sequence[CompiledCall]) -> Gradients:
    """Return the forward calls of those of a backward graph.

    A backward pass runs in reverse. Convolutions, attention and other operators with a gradient of
    their own are paired in that order where their operands are equal; where the forward graph has
    more, the first ones need no gradient. A product has two gradients, each a product of the same
    three extents (:func:`_gradients_of_products`). A call that a checkpoint computes again is
    identified by its operands, where no other has the same. Generated code comes before the
    gradient that needs its result: it belongs to what ran behind that one's forward operator.
    """
    found = np.full(len(backward), NONE, dtype=np.int64)
    mine, theirs = _by_operands(forward), _by_operands(backward)
    for key, own in theirs.items():
        kind, operands, of_gradient, biased = key
        if of_gradient:
            _reversed(mine[kind, operands, False, biased], own, found)
    _gradients_of_pointwise(forward, backward, found)
    _gradients_of_products(forward, backward, found)
    upcoming = _upcoming(found)
    if (upcoming == NONE).all() and any(one.weighted for one in backward):
        # Without recorded shapes nothing tells the calls apart.
        return Gradients(found, upcoming, np.zeros(len(backward), dtype=np.bool_))
    # What a checkpoint computes again is not a gradient: it does not show where the pass is.
    for key, own in theirs.items():
        if len(own) == 1 == len(mine[key]) and found[own[0]] == NONE:
            found[own] = mine[key]
    return Gradients(found, upcoming, _beside(forward, backward, found, upcoming))


def _by_operands(
    calls: Sequence[CompiledCall],
) -> defaultdict[tuple[str, tuple[Shape, ...], bool, bool], list[int]]:
    """Return the positions of the calls with recorded operands, of each kind with equal ones.

    Keys are the columns of :class:`CompiledCall` that identify them.
    """
    found = defaultdict(list)
    for position, one in enumerate(calls):
        if one.operands:
            found[one.kind, one.operands, one.of_gradient, one.biased].append(position)
    return found


def _reversed(forward: Sequence[int], backward: Sequence[int], found: Ints) -> None:
    """Pair the positions in reverse order, unless there are too many ``backward``."""
    if 0 < len(backward) <= len(forward):
        found[list(backward)] = list(reversed(forward))[: len(backward)]


def _extents(one: CompiledCall) -> tuple[int, int, int] | None:
    """Return rows, inner extent and columns of a product; None without recorded shapes."""
    if one.kind != "product" or len(one.operands) < 2:
        return None
    left, right = one.operands
    rows = left[-2] if len(left) > 1 else 0
    if left[-1] == right[-2]:
        return rows, left[-1], right[-1]
    # The weight of a linear layer has a row for each output.
    return (rows, left[-1], right[-2]) if left[-1] == right[-1] else None


def _by_extents(
    calls: Sequence[CompiledCall], wanted: Callable[[int], bool] = lambda _: True
) -> defaultdict[tuple[int, int, int], list[int]]:
    """Return the positions of the ``wanted`` products with recorded shapes, by their extents."""
    found = defaultdict(list)
    for position, one in enumerate(calls):
        if wanted(position) and (extents := _extents(one)) is not None:
            found[extents].append(position)
    return found


def _gradients_of_pointwise(
    forward: Sequence[CompiledCall], backward: Sequence[CompiledCall], found: Ints
) -> None:
    """Pair the gradients of convolutions of one pixel with the products that compute these.

    Inductor writes such a convolution as a product of pixels by channels, and its gradient not.
    """
    mine, theirs = _by_extents(forward), defaultdict(list)
    for position, one in enumerate(backward):
        if found[position] != NONE or one.kind != "convolution" or len(one.operands) < 2:
            continue
        image, weight = one.operands
        if len(image) == len(weight) > 2 and prod(weight[2:]) == 1 and image[1] == weight[1]:
            pixels = image[0] * prod(image[2:])
            theirs[pixels, weight[1], weight[0]].append(position)
    for extents, own in theirs.items():
        if len(own) == len(mine[extents]):
            _reversed(mine[extents], own, found)


def _gradients_of_products(
    forward: Sequence[CompiledCall], backward: Sequence[CompiledCall], found: Ints
) -> None:
    """Pair products with the products that are their gradients.

    Of a product (n, k, m) the gradient of the input is (n, m, k); that of the weight is (m, n, k),
    or (k, n, m) where it is computed transposed. Products that these do not tell apart are paired
    where there are two gradients for each: a product's own two run one after the other. Biased
    products of the backward pass are those that a checkpoint computes again.
    """
    known = set(found.tolist())
    mine = _by_extents(forward, lambda position: position not in known)
    theirs = _by_extents(backward, lambda position: not backward[position].biased)
    wanted = {
        (n, k, m): ((n, m, k), (m, n, k) if (m, n, k) in theirs else (k, n, m)) for n, k, m in mine
    }
    claims = Counter(extents for both in wanted.values() for extents in both)
    unclear = defaultdict(list)
    for own, both in wanted.items():
        if all(claims[extents] == 1 for extents in both):
            for extents in both:
                _reversed(mine[own], theirs[extents], found)
        else:
            unclear[tuple(sorted(own))].append(own)
    for alike in unclear.values():
        products = sorted(position for own in alike for position in mine[own])
        results = {extents for own in alike for extents in wanted[own]}
        own_gradients = sorted(position for extents in results for position in theirs[extents])
        if len(own_gradients) == 2 * len(products):
            _reversed([one for one in products for _ in range(2)], own_gradients, found)


def _upcoming(found: Ints) -> Ints:
    """Return the forward call whose first gradient comes next, from each backward call on.

    Other gradients of a call are not counted: that of a weight may run at the end.
    """
    positions = np.flatnonzero(found != NONE)
    first = positions[np.sort(np.unique(found[positions], return_index=True)[1])]
    at = np.searchsorted(first, np.arange(len(found)))
    return take(found, take(np.append(first, NONE), at))


def _beside(
    forward: Sequence[CompiledCall], backward: Sequence[CompiledCall], found: Ints, upcoming: Ints
) -> Flags:
    """Place the calls of the ``backward`` graph that are not the gradient of one call.

    They compute the gradient of what ran behind the ``upcoming`` forward operator, up to the next
    one that is paired; behind all gradients, that of what ran before all these operators. Without
    a call there they belong to the operator itself, as the sum that is the gradient of a bias.
    Where generated kernels have no events, what ran there is generated code: returns which calls
    are part of it, because they name no forward call.
    """
    ends = [NONE, *sorted({*found[found != NONE].tolist()}), len(forward)]
    behind = {one: range(one + 1, other) for one, other in pairwise(ends)}
    events = any(not one.kind for one in (*forward, *backward))
    in_code = np.zeros(len(backward), dtype=np.bool_)
    last = NONE
    for position, one in enumerate(backward):
        if found[position] != NONE:
            last = int(found[position])
            continue
        if one.operands or one.weighted:
            # Computed again, or the gradient of a product that shapes do not identify.
            continue
        target = int(upcoming[position])
        near = behind[target][:_MOST_NEAR]
        alike = {other: len(one.words & forward[other].words) for other in near}
        best = max(alike, key=alike.__getitem__, default=NONE)
        if best != NONE and alike[best]:
            found[position] = best
        elif not events:
            in_code[position] = True
        elif target == NONE:
            # Behind the last gradient there may be a conversion of that one.
            found[position] = last
        else:
            found[position] = target if best == NONE else best
    return in_code

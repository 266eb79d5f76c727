"""The graphs of a trace with Inductor's generated code: what runs between the calls with events,
and what each call reads.

A kernel belongs to the convolutions and products whose results it reads; one of the backward pass
to those whose gradients read its result. Code of both passes that belongs to the same ones is of
the same layers.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Final, TypeAlias

import msgspec
import polars as pl

from traceana.columns.nesting import NONE, Ints
from traceana.enrich.layers.inductor_code import Graph
from traceana.flops.call import Call
from traceana.flops.cost import UncountableError
from traceana.trace.schema import conform
from traceana.vocabulary.operators import GENERATED

_PREFIX: Final = re.compile(r"^graph_\d+_")
"""The beginning of the names of a CPU's kernels in a trace."""
_NO_OPERATOR: Final = "fused"
"""The name of a kernel without operators."""
_MOST_NAMES: Final = 3
"""Kernels in the name of a stretch of code, at most."""

Owners: TypeAlias = frozenset[int]
"""The forward operators to which code belongs; NONE among them where one is not known."""


class CodeOfGraph(msgspec.Struct, frozen=True, eq=False):
    """The generated code of one run of a graph.

    ``places`` are the positions in ``code`` of the calls with events, ``calls`` their operators,
    ``stretches`` the numbers of the stretches before each of them and behind the last. ``owners``
    are those of each position in ``code``, ``weighted`` the positions of convolutions, products and
    attention. ``ahead`` are the stretches before the code begins.
    """

    backward: bool
    code: Graph
    places: tuple[int, ...]
    calls: tuple[int, ...]
    stretches: tuple[int, ...]
    owners: tuple[Owners, ...]
    weighted: frozenset[int]
    ahead: tuple[int, ...]

    @property
    def kernels_have_events(self) -> bool:
        """Whether generated kernels have events of their own."""
        return len(self.places) == len(self.code)

    def inside(self, stretch: int) -> range:
        """Return the positions of the kernels of a stretch, by its order in the graph."""
        begin = self.places[stretch - 1] + 1 if stretch else 0
        return range(begin, self.places[stretch] if stretch < len(self.places) else len(self.code))

    def owners_of(self, positions: Iterable[int]) -> Owners:
        """Return the owners of the code at the positions together."""
        return Owners().union(*(self.owners[position] for position in positions))


_COPIES: Final = frozenset(("aten::empty_strided", "aten::copy_"))
"""Operators that copy a gradient to the layout that a backward graph was compiled for."""
_Match: TypeAlias = tuple[Graph, tuple[int, ...]]
"""A graph, and the positions of the calls with events in it."""


class CodeSearch:
    """Finds the generated code of the graphs of a trace among ``graphs``.

    ``weighted`` returns whether the call of a name is a convolution, a product or attention.
    """

    def __init__(self, graphs: Iterable[Graph], weighted: Callable[[str], bool]) -> None:
        self._graphs = list(graphs)
        self._weighted = weighted
        self._found: dict[object, _Match | None] = {}

    def code(
        self,
        names: Sequence[str],
        shapes: Sequence[str | None],
        calls: Sequence[int],
        forward: Sequence[int],
        stretches: Sequence[int],
        *,
        backward: bool,
    ) -> CodeOfGraph | None:
        """Return the code of a graph whose calls have these ``names``; None where it is unclear.

        ``shapes`` are the recorded ones of the calls' inputs, ``calls`` their operators,
        ``forward`` the forward operators of those in the backward pass. All calls have to be equal
        in order: operators, and generated kernels where these have events. Of several graphs with
        these calls it is the one with these shapes; where such graphs differ, it is unclear. Copies
        that come first may be those of a gradient in another layout, which are not in the code.
        """
        copies = sum(1 for _ in takewhile(_COPIES.__contains__, names))
        for begin in sorted({0, copies}):
            found = self._match(tuple(names[begin:]), tuple(shapes[begin:]))
            if found is not None:
                of_calls = calls[begin:], forward[begin:], stretches[begin:]
                ahead = tuple(stretches[:begin])
                return self._code(*found, *of_calls, ahead, backward=backward)
        return None

    def _match(self, names: tuple[str, ...], shapes: tuple[str | None, ...]) -> _Match | None:
        key = names, shapes
        if key not in self._found:
            plain = tuple(_PREFIX.sub("", name) for name in names)
            matches = [(one, at) for one in self._graphs if (at := _places(one, plain)) is not None]
            if _differ(matches):
                matches = [one for one in matches if _has_shapes(*one, shapes)]
            self._found[key] = None if _differ(matches) else next(iter(matches), None)
        return self._found[key]

    def _code(
        self,
        code: Graph,
        places: tuple[int, ...],
        calls: Sequence[int],
        forward: Sequence[int],
        stretches: Sequence[int],
        ahead: tuple[int, ...],
        *,
        backward: bool,
    ) -> CodeOfGraph:
        operators = dict(zip(places, forward if backward else calls, strict=True))
        weighted = frozenset(at for at, one in enumerate(code) if self._weighted(one.name))
        owners: list[set[int]] = [set() for _ in code]
        for reader, one in enumerate(code):
            for read in one.reads:
                kernel, call = (read, reader) if backward else (reader, read)
                if call in weighted:
                    owners[kernel].add(operators.get(call, NONE))
        of_calls = tuple(calls), tuple(stretches), tuple(map(Owners, owners))
        return CodeOfGraph(backward, code, places, *of_calls, weighted, ahead)


def _differ(matches: Iterable[_Match]) -> bool:
    """Return whether the calls of the graphs differ in more than their shapes."""
    return len({tuple((one.name, one.reads) for one in code) for code, _ in matches}) > 1


def _has_shapes(code: Graph, places: Sequence[int], shapes: Sequence[str | None]) -> bool:
    """Return whether the shapes that ``code`` has for its calls are the recorded ones."""
    for position, text in zip(places, shapes, strict=True):
        try:
            call = Call.decode(code[position].name, text)
        except UncountableError:
            continue
        for number, shape in enumerate(code[position].shapes):
            if shape is not None and call.has(number) and call.shapes[number] != shape:
                return False
    return True


def _places(code: Graph, names: tuple[str, ...]) -> tuple[int, ...] | None:
    """Return the positions of the calls of ``code`` with these names; None if it has others."""
    recorded = any(one.generated and one.name in names for one in code)
    places = tuple(position for position, one in enumerate(code) if recorded or not one.generated)
    return places if tuple(code[position].name for position in places) == names else None


class Own(msgspec.Struct, frozen=True, eq=False):
    """Code that is of no layer of the forward pass: a ``stretch``, or the kernel of a call."""

    code: CodeOfGraph
    position: int
    owners: Owners
    stretch: int = NONE
    call: int = NONE


def place(
    pairs: Iterable[tuple[CodeOfGraph, CodeOfGraph]], behind: Ints, forward: Ints
) -> Iterator[Own]:
    """Put the code of backward graphs where that of the same owners is in the forward graph.

    ``pairs`` are backward graphs with their forward graphs. Of each stretch ``behind`` is the
    forward operator behind which it belongs, of each operator ``forward`` is the forward operator.
    Yields code whose owners no code of the forward graph has. Code without known owners stays.
    """
    for own, of_forward in pairs:
        if own.kernels_have_events and of_forward.kernels_have_events:
            yield from _place_kernels(own, of_forward, forward)
        elif not own.kernels_have_events:
            yield from _place_stretches(own, of_forward, behind)


def _place_stretches(own: CodeOfGraph, of_forward: CodeOfGraph, behind: Ints) -> Iterator[Own]:
    alike: dict[Owners, list[int]] = defaultdict(list)
    with_code = set()
    for order, stretch in enumerate(of_forward.stretches):
        if of_forward.inside(order):
            alike[of_forward.owners_of(of_forward.inside(order))].append(stretch)
            # What runs before all forward calls has no call that it is behind.
            with_code |= {int(behind[stretch])} & set(of_forward.calls)
    for order, stretch in enumerate(own.stretches):
        positions = own.inside(order)
        owners = own.owners_of(positions)
        if not owners or NONE in owners:
            continue
        if len(alike[owners]) == 1:
            behind[stretch] = behind[alike[owners][0]]
        elif int(behind[stretch]) in with_code:
            # What is there in the forward pass is of other layers.
            yield Own(own, positions[0], owners, stretch=stretch)


def _place_kernels(own: CodeOfGraph, of_forward: CodeOfGraph, forward: Ints) -> Iterator[Own]:
    alike: dict[Owners, list[int]] = defaultdict(list)
    kernels = set()
    for position, one in enumerate(of_forward.code):
        if one.generated and position not in of_forward.weighted:
            alike[of_forward.owners[position]].append(of_forward.calls[position])
            kernels.add(of_forward.calls[position])
    for position, one in enumerate(own.code):
        owners, call = own.owners[position], own.calls[position]
        code = one.generated and position not in own.weighted
        if not code or not owners or NONE in owners or forward[call] in alike[owners]:
            continue
        if len(alike[owners]) == 1:
            forward[call] = alike[owners][0]
        elif int(forward[call]) in kernels:
            # That kernel is of other layers.
            forward[call] = NONE
            yield Own(own, position, owners, call=call)


def idle(codes: Iterable[CodeOfGraph]) -> list[int]:
    """Return the stretches that are of no layer: without kernels, or with changes of layout and
    kernels such as counters, which no call feeds or reads."""
    found: list[int] = []
    for one in codes:
        found += one.ahead
        read = {position for call in one.code for position in call.reads}
        for order, stretch in enumerate(one.stretches):
            inside = one.inside(order)
            named = [at for at in inside if label(one.code[at].name) != _NO_OPERATOR]
            used = any(one.code[at].reads or at in read for at in named)
            if not named or (len(named) < len(inside) and not used):
                found.append(stretch)
    return found


def labels(codes: Iterable[CodeOfGraph], layer_of: Ints) -> dict[int, str]:
    """Return what the kernels of each layer without events are called: ``fused_add_relu``.

    ``layer_of`` is the layer of each stretch. The names are those of the forward kernels if there
    are any; more than three are not listed.
    """
    found: dict[bool, dict[int, dict[str, None]]] = {
        backward: defaultdict(dict) for backward in (True, False)
    }
    for one in codes:
        for order, stretch in enumerate(one.stretches):
            names = (label(one.code[position].name) for position in one.inside(order))
            found[one.backward][int(layer_of[stretch])] |= dict.fromkeys(names)
    both = {**found[True], **{layer: names for layer, names in found[False].items() if names}}
    return {layer: "+".join(names) for layer, names in both.items() if len(names) <= _MOST_NAMES}


def label(kernel: str) -> str:
    """Return the name of a generated kernel without its backend and number."""
    return re.sub(GENERATED, r"\1", kernel)


def graph_calls(
    codes: Iterable[CodeOfGraph], of_op: Ints, of_stretch: Ints, rows: Ints
) -> pl.DataFrame:
    """Return the table of the calls of the graphs, each distinct one once.

    ``of_op`` and ``of_stretch`` are the layer of each operator and stretch of code, ``rows`` the
    row of each layer in the table of layers.
    """
    distinct: dict[tuple[Graph, tuple[int, ...]], bool] = {}
    for one in codes:
        layers = [NONE] * len(one.code)
        for order, stretch in enumerate(one.stretches):
            for position in one.inside(order):
                layers[position] = int(of_stretch[stretch])
        for position, call in zip(one.places, one.calls, strict=True):
            layers[position] = int(of_op[call])
        distinct[one.code, tuple(layers)] = one.backward
    found = [
        (number, backward, call.name, call.generated, list(call.reads), _row(rows, layer))
        for number, ((code, layers_), backward) in enumerate(distinct.items())
        for call, layer in zip(code, layers_, strict=True)
    ]
    names = ("graph", "backward", "name", "generated", "reads", "layer")
    columns = zip(names, zip(*found, strict=True), strict=True) if found else ()
    return conform("graph_calls", pl.DataFrame(dict(columns), strict=False))


def _row(rows: Ints, layer: int) -> int | None:
    return None if layer == NONE or rows[layer] == NONE else int(rows[layer])


def own_keys(owns: Iterable[Own], of_op: Ints) -> Mapping[Own, tuple[Graph, int, frozenset[int]]]:
    """Return what is equal for the runs of one kernel in several steps."""
    return {
        one: (one.code.code, one.position, frozenset(int(of_op[owner]) for owner in one.owners))
        for one in owns
    }

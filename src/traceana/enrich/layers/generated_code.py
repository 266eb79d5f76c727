"""Inductor's generated code: the calls of its graphs, and where a trace ran them.

Inductor writes a Python file for each graph that it compiles. Its function ``call`` calls operators
of libraries (``extern_kernels.convolution``) and generated kernels in the order in which they run,
with the buffers that they read and write. The files are text from anywhere: they are parsed by
:mod:`ast` and never executed, and a file with a statement that is not understood is left out.

A kernel belongs to the convolutions and products whose results it reads; one of the backward pass
to those whose gradients read its result (its *owners*). Code of both passes that has the same
owners is of the same layers.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, pairwise, takewhile, zip_longest
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec
import polars as pl

from traceana.columns.nesting import NONE, Ints
from traceana.flops.call import Call, UncountableError
from traceana.trace.schema import conform
from traceana.vocabulary.operators import GENERATED, SEEDS

LARGEST_FILE: Final = 16 << 20
"""Bytes of a file of generated code, at most."""
MOST_FILES: Final = 20_000
"""Files of generated code, at most: a cache keeps those of earlier programs and single kernels."""


class GraphCall(msgspec.Struct, frozen=True):
    """One call of a compiled graph.

    ``name`` is that of its event in a trace. ``reads`` are the positions in the graph of the
    earlier calls whose results it reads. ``generated`` is whether Inductor generated the kernel.
    ``shapes`` are those of the operator's positional operands, None where the code has none; empty
    where it has none of them.
    """

    name: str
    reads: tuple[int, ...]
    generated: bool
    shapes: tuple[tuple[int, ...] | None, ...] = ()


Graph: TypeAlias = tuple[GraphCall, ...]
"""The calls of one graph, in the order in which they run."""

Code: TypeAlias = Callable[[], Collection[Graph]]
"""Returns the graphs of Inductor's generated code; called where a trace has such graphs."""


def graphs_in(folder: Path) -> frozenset[Graph]:
    """Return the graphs whose generated code is below ``folder``, equal ones once.

    Files without a graph, and those that cannot be read or are larger than :data:`LARGEST_FILE`,
    are passed over; of more than :data:`MOST_FILES` files, the newest are read.
    """
    files = []
    for path in folder.rglob("*.py"):
        with suppress(OSError):
            stat = path.stat()
            if path.is_file() and stat.st_size <= LARGEST_FILE:
                files.append((-stat.st_mtime_ns, path))
    graphs: set[Graph] = set()
    for _, path in sorted(files)[:MOST_FILES]:
        with suppress(OSError):
            if (graph := graph_of(path.read_bytes())) is not None:
                graphs.add(graph)
    return frozenset(graphs)


_CALL_FUNCTION: Final = re.compile(rb"^ *def call\((?:self, )?args\)", re.MULTILINE)


def graph_of(content: bytes) -> Graph | None:
    """Return the graph of a file of generated code; None for another file, and for code with a
    statement that is not understood."""
    if not _CALL_FUNCTION.search(content):
        return None
    try:
        with warnings.catch_warnings():
            # Python warns of damaged code, such as a number with letters behind it.
            warnings.simplefilter("ignore")
            module = ast.parse(content)
        # Newer versions have ``call`` as a method of ``Runner``.
        runners = (node for node in module.body if isinstance(node, ast.ClassDef))
        inside = [module.body, *(node.body for node in runners if node.name == "Runner")]
        functions = (
            function
            for function in chain(*inside)
            if isinstance(function, ast.FunctionDef) and function.name == "call"
        )
        if (function := next(functions, None)) is None:
            return None
        reading = _Reading(_signatures(module))
        reading.run(_with_partitions(function.body, module))
    except (SyntaxError, ValueError, RecursionError, MemoryError, _NotUnderstoodError):
        return None
    return tuple(reading.calls) or None


def _with_partitions(body: list[ast.stmt], module: ast.Module) -> list[ast.stmt]:
    """Return the statements of ``call``, with the partitions that it calls inserted.

    A graph whose parts are CUDA graphs is cut into functions ``partition_0`` …; buffers have the
    same names in all of them.
    """
    parts = {
        statement.name: statement.body
        for statement in module.body
        if isinstance(statement, ast.FunctionDef)
    }
    statements: list[ast.stmt] = []
    for statement in body:
        match statement:
            case ast.Assign(
                value=ast.Call(
                    func=ast.Subscript(value=ast.Attribute(attr="partitions"), slice=number)
                )
            ):
                name = f"partition_{number.value!r}" if isinstance(number, ast.Constant) else ""
                if name not in parts:
                    raise _NotUnderstoodError
                # Its first statement unpacks the arguments.
                statements += parts[name][1:]
            case _:
                statements.append(statement)
    return statements


class _NotUnderstoodError(Exception):
    """A statement whose effect on the buffers is unknown."""


class _Role(NamedTuple):
    """Whether a kernel reads and writes one of its arguments."""

    read: bool
    written: bool


_ROLES: Final = {"in_out_ptr": _Role(True, True), "out_ptr": _Role(False, True)}
"""By the beginning of the parameter's name; other parameters are read."""
_SIGNATURE: Final = re.compile(r"(?:\bvoid\s+\w+|^def\s+\w+)\s*\(([^()]*)\)", re.MULTILINE)
_PARAMETER: Final = re.compile(r"^(\w+) *(?::.*)?$|(\w+)$", re.DOTALL)
"""Python's, perhaps with a type, or that of C++."""


def _signatures(module: ast.Module) -> dict[str, list[_Role]]:
    """Return, for each kernel that the module compiles, the roles of its parameters in order."""
    roles_of_kernel: dict[str, list[_Role]] = {}
    for statement in module.body:
        match statement:
            case ast.Assign(
                targets=[ast.Name(kernel)], value=ast.Call(func=function, args=arguments)
            ):
                texts = [
                    argument.value
                    for argument in arguments
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
                ]
                signature = _SIGNATURE.search(max(texts, key=len, default=""))
                if not _dotted_name(function).startswith("async_compile.") or signature is None:
                    continue
                roles_of_kernel[kernel] = roles = []
                for part in signature[1].split(","):
                    name = _PARAMETER.search(part.strip())
                    words = (name[1] or name[2]) if name else ""
                    matching = (role for start, role in _ROLES.items() if words.startswith(start))
                    roles.append(next(matching, _Role(True, False)))
    return roles_of_kernel


def _dotted_name(function: ast.expr) -> str:
    """Return ``torch.ops.aten.mm.default`` of such an expression, "" of any other."""
    parts = []
    while isinstance(function, ast.Attribute):
        parts.append(function.attr)
        function = function.value
    return ".".join([function.id, *reversed(parts)]) if isinstance(function, ast.Name) else ""


def _constant_sizes(sizes: list[ast.expr]) -> tuple[int, ...] | None:
    """Return sizes that are written as numbers, None where one is a symbol."""
    values = [size.value if isinstance(size, ast.Constant) else None for size in sizes]
    numbers = tuple(value for value in values if isinstance(value, int))
    return numbers if len(numbers) == len(sizes) else None


class _Buffer(NamedTuple):
    """The memory of a buffer, by number, and whether the buffer is only a part of it."""

    memory: frozenset[int]
    part: bool


_NOTHING: Final = _Buffer(frozenset(), part=True)
_ALLOCATION: Final = re.compile(r"^(?:torch\.)?empty(?:_strided)?(?:_[a-z]+)*$")
_OPERATOR: Final = re.compile(r"^(?:torch\.ops\.(\w+)|aten|extern_kernels)\.(\w+)")
_OPERATOR_OF_FUNCTION: Final = {"bias_addmm": "addmm"}
"""Functions of Inductor that call an operator of another name."""
_VIEW: Final = re.compile(
    r"^(?:reinterpret_tensor|inductor_ops\._?reinterpret_tensor|as_strided|c_void_p|c_long|"
    r"assert_size_stride|assert_alignment|get_raw_stream|get_cuda_stream|grid|print|"
    r"torch\.(?:cuda|xpu)\.\w+|\w+\.(?:clear|data_ptr|size|stride|item))$"
)
"""Functions that compute nothing: the result is a view of their arguments, or a number."""


class _Reading:
    """The statements of a graph's function, followed for what they do with the buffers.

    ``calls`` are the calls so far. For each memory, the calls are kept that wrote its content.
    """

    def __init__(self, signatures: dict[str, list[_Role]]) -> None:
        self.calls: list[GraphCall] = []
        self._signatures = signatures
        self._buffers: dict[str, _Buffer] = {}
        self._writers: list[frozenset[int]] = []
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._used_again: set[int] = set()
        """Memory whose content is that of an earlier buffer."""

    def run(self, body: list[ast.stmt]) -> None:
        """Follow the statements in order."""
        for statement, following in zip_longest(body, body[1:]):
            match statement:
                case ast.Assign(targets=[target], value=value):
                    self._assign(target, value, following)
                case ast.Expr(value=value):
                    self._value(value)
                case ast.With(body=inside):
                    self.run(inside)
                case ast.Delete() | ast.Return() | ast.Assert() | ast.Pass():
                    pass
                case _:
                    raise _NotUnderstoodError

    def _assign(self, target: ast.expr, value: ast.expr, following: ast.stmt | None) -> None:
        result = self._value(value)
        # Memory is used again for another buffer: "buf2 = buf1; del buf1".
        if isinstance(following, ast.Delete) and following.lineno == value.lineno:
            result = self._new(self._content(result))
            self._used_again |= result.memory
        shape = self._shape(value)
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                self._buffers[node.id] = result
                self._shapes.pop(node.id, None)
                if shape is not None:
                    self._shapes[node.id] = shape

    def _value(self, value: ast.expr) -> _Buffer:
        """Return the buffer of an expression, and add the calls in it."""
        match value:
            case ast.Name(id=name):
                return self._buffers.get(name, _NOTHING)
            case ast.Call(func=function, args=arguments, keywords=keywords):
                return self._call(_dotted_name(function), arguments, keywords)
            case ast.Subscript(value=whole):
                return self._view([whole])
            case _:
                return self._view(list(ast.iter_child_nodes(value)))

    def _shape(self, value: ast.expr) -> tuple[int, ...] | None:
        """Return the shape of an expression that is a buffer, allocates one, or views one."""
        match value:
            case ast.Name(id=name):
                return self._shapes.get(name)
            case ast.Call(func=function, args=[ast.Tuple(elts=sizes), *_]) if _ALLOCATION.match(
                _dotted_name(function)
            ):
                return _constant_sizes(sizes)
            case ast.Call(func=function, args=[_, ast.Tuple(elts=sizes), *_]) if _dotted_name(
                function
            ).endswith("reinterpret_tensor"):
                return _constant_sizes(sizes)
            case _:
                return None

    def _view(self, nodes: Iterable[ast.AST]) -> _Buffer:
        memory = [self._value(node).memory for node in nodes if isinstance(node, ast.expr)]
        return _Buffer(frozenset().union(*memory), part=True)

    def _call(
        self, function: str, arguments: list[ast.expr], keywords: list[ast.keyword]
    ) -> _Buffer:
        """Return the result of a call, and add it if it computes."""
        kernel = function.removesuffix(".run")
        operator = _OPERATOR.match(function)
        if kernel in self._signatures:
            roles = self._signatures[kernel]
            buffers = [self._value(one) for one in arguments]
            if len(buffers) < sum(role.written for role in roles):
                raise _NotUnderstoodError
            # Behind the buffers older versions have the grid.
            used = list(zip(buffers, roles, strict=False))
            reads = self._content(*(one for one, role in used if role.read))
            self.calls.append(GraphCall(kernel, tuple(sorted(reads)), generated=True))
            for one, role in used:
                if role.written:
                    self._write(one)
            return _NOTHING
        if _ALLOCATION.match(function):
            return self._new(frozenset())
        if operator is not None:
            name = f"{operator[1] or 'aten'}::{_OPERATOR_OF_FUNCTION.get(operator[2], operator[2])}"
            if name == SEEDS:
                return self._view(arguments)
            buffers = [self._value(one) for one in arguments]
            named = {one.arg: self._value(one.value) for one in keywords}
            out = named.pop("out", None)
            shapes = tuple(map(self._shape, arguments))
            known_shapes = shapes if any(one is not None for one in shapes) else ()
            reads = self._content(*buffers, *named.values())
            self.calls.append(
                GraphCall(name, tuple(sorted(reads)), generated=False, shapes=known_shapes)
            )
            for one in [
                *(buffers[:1] if name.endswith("_") else []),
                *([] if out is None else [out]),
            ]:
                self._write(one)
            return self._new(frozenset([len(self.calls) - 1]))
        if _VIEW.match(function):
            match function, arguments:
                case "assert_size_stride", [ast.Name(id=name), ast.Tuple(elts=sizes), *_]:
                    if (shape := _constant_sizes(sizes)) is not None:
                        self._shapes[name] = shape
            of_function = self._buffers.get(function.partition(".")[0], _NOTHING)
            return _Buffer(of_function.memory | self._view(arguments).memory, part=True)
        raise _NotUnderstoodError

    def _new(self, content: frozenset[int]) -> _Buffer:
        self._writers.append(content)
        return _Buffer(frozenset([len(self._writers) - 1]), part=False)

    def _content(self, *buffers: _Buffer) -> frozenset[int]:
        """Return the calls that wrote what is in the buffers."""
        memory = frozenset[int]().union(*(buffer.memory for buffer in buffers))
        return frozenset().union(*(self._writers[number] for number in memory))

    def _write(self, buffer: _Buffer) -> None:
        """Note that the last call wrote to the buffer: to all of it, or besides other calls."""
        last = frozenset([len(self.calls) - 1])
        for number in buffer.memory:
            earlier = buffer.part and number not in self._used_again
            self._writers[number] = self._writers[number] | last if earlier else last
        self._used_again -= buffer.memory


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
    calls: Sequence[int]
    stretches: Sequence[int]
    owners: tuple[Owners, ...]
    weighted: frozenset[int]
    ahead: Sequence[int]

    @property
    def kernels_have_events(self) -> bool:
        """Whether generated kernels have events of their own."""
        return len(self.places) == len(self.code)

    def inside(self) -> Iterator[tuple[int, range]]:
        """Yield each stretch with the positions of its kernels."""
        ends = pairwise((-1, *self.places, len(self.code)))
        for stretch, (before, end) in zip(self.stretches, ends, strict=True):
            yield stretch, range(before + 1, end)

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
        self._matches: dict[object, _Match | None] = {}

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
        ``forward`` the forward operators of those in the backward pass. Copies that come first may
        be those of a gradient in another layout, which are not in the code.
        """
        copies = sum(1 for _ in takewhile(_COPIES.__contains__, names))
        for begin in sorted({0, copies}):
            key = tuple(names[begin:]), tuple(shapes[begin:])
            if key not in self._matches:
                self._matches[key] = self._match(*key)
            if (match := self._matches[key]) is None:
                continue
            code, places = match
            operators = dict(zip(places, (forward if backward else calls)[begin:], strict=True))
            weighted = frozenset(
                at for at, call_in_code in enumerate(code) if self._weighted(call_in_code.name)
            )
            owners: list[set[int]] = [set() for _ in code]
            for reader, call_in_code in enumerate(code):
                for read in call_in_code.reads:
                    kernel, call = (read, reader) if backward else (reader, read)
                    if call in weighted:
                        owners[kernel].add(operators.get(call, NONE))
            return CodeOfGraph(
                backward,
                code,
                places,
                calls[begin:],
                stretches[begin:],
                tuple(map(Owners, owners)),
                weighted,
                stretches[:begin],
            )
        return None

    def _match(self, names: tuple[str, ...], shapes: tuple[str | None, ...]) -> _Match | None:
        """Return the graph whose calls are all equal in order, None where it is unclear.

        They are operators, and generated kernels where these have events. Of several graphs with
        these calls it is the one with these shapes; where such graphs differ, it is unclear.
        """
        plain = tuple(_PREFIX.sub("", name) for name in names)
        matches = []
        for code in self._graphs:
            recorded = any(call.generated and call.name in plain for call in code)
            places = tuple(at for at, call in enumerate(code) if recorded or not call.generated)
            if tuple(code[at].name for at in places) == plain:
                matches.append((code, places))

        def differ() -> bool:
            return len({tuple((call.name, call.reads) for call in code) for code, _ in matches}) > 1

        if differ():
            matches = [call for call in matches if _has_shapes(*call, shapes)]
        return None if not matches or differ() else matches[0]


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


class UnmatchedCode(msgspec.Struct, frozen=True, eq=False):
    """Code that belongs to no layer of the forward pass: a ``stretch``, or the kernel of a call."""

    code: CodeOfGraph
    position: int
    owners: Owners
    stretch: int = NONE
    call: int = NONE


def place(
    pairs: Iterable[tuple[CodeOfGraph, CodeOfGraph]], behind: Ints, forward: Ints
) -> Iterator[UnmatchedCode]:
    """Put the code of backward graphs where that of the same owners is in the forward graph.

    ``pairs`` are backward graphs with their forward graphs. Of each stretch ``behind`` is the
    forward operator behind which it belongs, of each operator ``forward`` is the forward operator.
    Yields code whose owners no code of the forward graph has. Code without known owners stays.
    """
    for backward, of_forward in pairs:
        with_code: set[int] = set()
        """Forward calls that are kernels, or that code runs behind."""
        places_of_owners: defaultdict[Owners, list[int]] = defaultdict(list)
        if backward.kernels_have_events and of_forward.kernels_have_events:
            for position, call_in_code in enumerate(of_forward.code):
                if call_in_code.generated and position not in of_forward.weighted:
                    places_of_owners[of_forward.owners[position]].append(of_forward.calls[position])
                    with_code.add(of_forward.calls[position])
            for position, call_in_code in enumerate(backward.code):
                owners, call = backward.owners[position], backward.calls[position]
                code = call_in_code.generated and position not in backward.weighted
                if (
                    not code
                    or not owners
                    or NONE in owners
                    or forward[call] in places_of_owners[owners]
                ):
                    continue
                if len(places_of_owners[owners]) == 1:
                    forward[call] = places_of_owners[owners][0]
                elif int(forward[call]) in with_code:
                    # That kernel is of other layers.
                    forward[call] = NONE
                    yield UnmatchedCode(backward, position, owners, call=call)
        elif not backward.kernels_have_events:
            for stretch, positions in of_forward.inside():
                if positions:
                    places_of_owners[of_forward.owners_of(positions)].append(stretch)
                    # What runs before all forward calls has no call that it is behind.
                    with_code |= {int(behind[stretch])} & set(of_forward.calls)
            for stretch, positions in backward.inside():
                owners = backward.owners_of(positions)
                if not owners or NONE in owners:
                    continue
                if len(places_of_owners[owners]) == 1:
                    behind[stretch] = behind[places_of_owners[owners][0]]
                elif int(behind[stretch]) in with_code:
                    # What is there in the forward pass is of other layers.
                    yield UnmatchedCode(backward, positions[0], owners, stretch=stretch)


def idle(codes: Iterable[CodeOfGraph]) -> list[int]:
    """Return the stretches that are of no layer: without kernels, or with changes of layout and
    kernels such as counters, which no call feeds or reads."""
    idle_stretches: list[int] = []
    for code in codes:
        idle_stretches += code.ahead
        read = {position for call in code.code for position in call.reads}
        for stretch, positions in code.inside():
            named = [at for at in positions if label(code.code[at].name) != _NO_OPERATOR]
            used = any(code.code[at].reads or at in read for at in named)
            if not named or (len(named) < len(positions) and not used):
                idle_stretches.append(stretch)
    return idle_stretches


def labels(codes: Iterable[CodeOfGraph], layer_of: Ints) -> dict[int, str]:
    """Return what the kernels of each layer without events are called: ``fused_add_relu``.

    ``layer_of`` is the layer of each stretch. The names are those of the forward kernels if there
    are any; more than three are not listed.
    """
    names_by_pass: dict[bool, dict[int, dict[str, None]]] = {
        backward: defaultdict(dict) for backward in (True, False)
    }
    for code in codes:
        for stretch, positions in code.inside():
            names = (label(code.code[position].name) for position in positions)
            names_by_pass[code.backward][int(layer_of[stretch])] |= dict.fromkeys(names)
    both = {
        **names_by_pass[True],
        **{layer: names for layer, names in names_by_pass[False].items() if names},
    }
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
    for code_of_graph in codes:
        layers = [NONE] * len(code_of_graph.code)
        for stretch, positions in code_of_graph.inside():
            for position in positions:
                layers[position] = int(of_stretch[stretch])
        for position, call in zip(code_of_graph.places, code_of_graph.calls, strict=True):
            layers[position] = int(of_op[call])
        distinct[code_of_graph.code, tuple(layers)] = code_of_graph.backward
    # The last entry is that of NONE.
    row_of = [*(None if row == NONE else row for row in rows.tolist()), None]
    rows_of_table = [
        (number, backward, call.name, call.generated, list(call.reads), row_of[layer])
        for number, ((code, layers_of_calls), backward) in enumerate(distinct.items())
        for call, layer in zip(code, layers_of_calls, strict=True)
    ]
    names = ("graph", "backward", "name", "generated", "reads", "layer")
    columns = zip(names, zip(*rows_of_table, strict=True), strict=True) if rows_of_table else ()
    return conform("graph_calls", pl.DataFrame(dict(columns), strict=False))

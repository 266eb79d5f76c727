"""The calls of compiled graphs, and which results each reads, from Inductor's generated code.

Inductor writes a Python file for each graph that it compiles. Its function ``call`` calls operators
of libraries (``extern_kernels.convolution``) and generated kernels in the order in which they run,
with the buffers that they read and write. The files are text from anywhere: they are parsed by
:mod:`ast` and never executed, and a file with a statement that is not understood is left out.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec

from traceana.enrich.layers.roles import SEEDS

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


def graphs_in(folder: Path) -> frozenset[Graph]:
    """Return the graphs whose generated code is below ``folder``, equal ones once.

    Files without a graph, and those that cannot be read or are larger than :data:`LARGEST_FILE`,
    are passed over; of more than :data:`MOST_FILES` files, the newest are read.
    """
    found: set[Graph] = set()
    for path in _newest(folder):
        try:
            graph = graph_of(path.read_bytes())
        except OSError:
            continue
        if graph is not None:
            found.add(graph)
    return frozenset(found)


def _newest(folder: Path) -> list[Path]:
    files = []
    for path in folder.rglob("*.py"):
        try:
            facts = path.stat()
        except OSError:
            continue
        if path.is_file() and facts.st_size <= LARGEST_FILE:
            files.append((-facts.st_mtime_ns, path))
    return [path for _, path in sorted(files)[:MOST_FILES]]


_OF_A_GRAPH: Final = re.compile(rb"^ *def call\((?:self, )?args\)", re.MULTILINE)


def graph_of(content: bytes) -> Graph | None:
    """Return the graph of a file of generated code; None for another file, and for code with a
    statement that is not understood."""
    if not _OF_A_GRAPH.search(content):
        return None
    try:
        with warnings.catch_warnings():
            # Python warns of damaged code, such as a number with letters behind it.
            warnings.simplefilter("ignore")
            module = ast.parse(content)
        function = _function(module)
        if function is None:
            return None
        reading = _Reading(_signatures(module))
        reading.run(function.body)
    except (SyntaxError, ValueError, RecursionError, MemoryError, _NotUnderstoodError):
        return None
    return tuple(reading.calls) or None


class _NotUnderstoodError(Exception):
    """What a statement does with the buffers is unknown."""


def _function(module: ast.Module) -> ast.FunctionDef | None:
    """Return the function ``call``, which newer versions have as a method of ``Runner``."""
    for one in module.body:
        inside = one.body if isinstance(one, ast.ClassDef) and one.name == "Runner" else [one]
        for function in inside:
            if isinstance(function, ast.FunctionDef) and function.name == "call":
                return function
    return None


class _Role(NamedTuple):
    """What a kernel does with one of its arguments."""

    read: bool
    written: bool


_ROLES: Final = {"in_out_ptr": _Role(True, True), "out_ptr": _Role(False, True)}
"""By the beginning of the parameter's name; other parameters are read."""
_SIGNATURE: Final = re.compile(r"(?:\bvoid\s+\w+|^def\s+\w+)\s*\(([^()]*)\)", re.MULTILINE)
_PARAMETER: Final = re.compile(r"^(\w+) *(?::.*)?$|(\w+)$", re.DOTALL)
"""Python's, perhaps with a type, or that of C++."""


def _signatures(module: ast.Module) -> dict[str, list[_Role]]:
    """Return, for each kernel that the module compiles, the roles of its parameters in order."""
    found = {}
    for one in module.body:
        match one:
            case ast.Assign(targets=[ast.Name(kernel)], value=ast.Call(func=made, args=arguments)):
                texts = [
                    argument.value
                    for argument in arguments
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
                ]
                signature = _SIGNATURE.search(max(texts, key=len, default=""))
                if _dotted(made).startswith("async_compile.") and signature is not None:
                    found[kernel] = [_role(part.strip()) for part in signature[1].split(",")]
    return found


def _role(parameter: str) -> _Role:
    name = _PARAMETER.search(parameter)
    words = (name[1] or name[2]) if name else ""
    return next((role for start, role in _ROLES.items() if words.startswith(start)),
                _Role(True, False))  # fmt: skip


def _dotted(function: ast.expr) -> str:
    """Return ``torch.ops.aten.mm.default`` of such an expression, "" of any other."""
    parts = []
    while isinstance(function, ast.Attribute):
        parts.append(function.attr)
        function = function.value
    return ".".join([function.id, *reversed(parts)]) if isinstance(function, ast.Name) else ""


def _numbers(sizes: list[ast.expr]) -> tuple[int, ...] | None:
    """Return sizes that are written as numbers, None where one is a symbol."""
    values = [one.value if isinstance(one, ast.Constant) else None for one in sizes]
    found = tuple(value for value in values if isinstance(value, int))
    return found if len(found) == len(sizes) else None


class _Buffer(NamedTuple):
    """What a name stands for: memory by number, and whether it is a part of that memory only."""

    memory: frozenset[int]
    part: bool


_NOTHING: Final = _Buffer(frozenset(), part=True)
_ALLOCATION: Final = re.compile(r"^(?:torch\.)?empty(?:_strided)?(?:_[a-z]+)*$")
_OPERATOR: Final = re.compile(r"^(?:torch\.ops\.(\w+)|aten|extern_kernels)\.(\w+)")
_SAME: Final = {"bias_addmm": "addmm"}
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
        for one, following in zip_longest(body, body[1:]):
            match one:
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
        for one in ast.walk(target):
            if isinstance(one, ast.Name):
                self._buffers[one.id] = result
                self._shapes.pop(one.id, None)
                if shape is not None:
                    self._shapes[one.id] = shape

    def _value(self, value: ast.expr) -> _Buffer:
        """Return what an expression stands for, and add the calls in it."""
        match value:
            case ast.Name(id=name):
                return self._buffers.get(name, _NOTHING)
            case ast.Call(func=function, args=arguments, keywords=keywords):
                return self._call(_dotted(function), arguments, keywords)
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
                _dotted(function)
            ):
                return _numbers(sizes)
            case ast.Call(func=function, args=[_, ast.Tuple(elts=sizes), *_]) if _dotted(
                function
            ).endswith("reinterpret_tensor"):
                return _numbers(sizes)
            case _:
                return None

    def _view(self, nodes: Iterable[ast.AST]) -> _Buffer:
        memory = [self._value(one).memory for one in nodes if isinstance(one, ast.expr)]
        return _Buffer(frozenset().union(*memory), part=True)

    def _call(
        self, function: str, arguments: list[ast.expr], keywords: list[ast.keyword]
    ) -> _Buffer:
        kernel = function.removesuffix(".run")
        if kernel in self._signatures:
            self._generated(kernel, arguments)
            return _NOTHING
        if _ALLOCATION.match(function):
            return self._new(frozenset())
        if operator := _OPERATOR.match(function):
            name = f"{operator[1] or 'aten'}::{_SAME.get(operator[2], operator[2])}"
            return self._operator(name, arguments, keywords)
        if _VIEW.match(function):
            match function, arguments:
                case "assert_size_stride", [ast.Name(id=name), ast.Tuple(elts=sizes), *_]:
                    if (shape := _numbers(sizes)) is not None:
                        self._shapes[name] = shape
            own = self._buffers.get(function.partition(".")[0], _NOTHING)
            return _Buffer(own.memory | self._view(arguments).memory, part=True)
        raise _NotUnderstoodError

    def _generated(self, kernel: str, arguments: list[ast.expr]) -> None:
        roles = self._signatures[kernel]
        given = [self._value(one) for one in arguments]
        # Behind the buffers older versions have the grid.
        used = list(zip(given, roles, strict=False))
        if len(given) < sum(role.written for role in roles):
            raise _NotUnderstoodError
        self._add(kernel, (one for one, role in used if role.read), generated=True)
        for one, role in used:
            if role.written:
                self._write(one)

    def _operator(
        self, name: str, arguments: list[ast.expr], keywords: list[ast.keyword]
    ) -> _Buffer:
        if name == SEEDS:
            return self._view(arguments)
        given = [self._value(one) for one in arguments]
        named = {one.arg: self._value(one.value) for one in keywords}
        out = named.pop("out", None)
        changed = given[:1] if name.endswith("_") else []
        shapes = tuple(map(self._shape, arguments))
        known = shapes if any(one is not None for one in shapes) else ()
        self._add(name, [*given, *named.values()], generated=False, shapes=known)
        for one in [*changed, *([] if out is None else [out])]:
            self._write(one)
        return self._new(frozenset([len(self.calls) - 1]))

    def _add(
        self,
        name: str,
        read: Iterable[_Buffer],
        *,
        generated: bool,
        shapes: tuple[tuple[int, ...] | None, ...] = (),
    ) -> None:
        reads = frozenset().union(*map(self._content, read))
        self.calls.append(GraphCall(name, tuple(sorted(reads)), generated, shapes))

    def _new(self, content: frozenset[int]) -> _Buffer:
        self._writers.append(content)
        return _Buffer(frozenset([len(self._writers) - 1]), part=False)

    def _content(self, buffer: _Buffer) -> frozenset[int]:
        """Return the calls that wrote what is in the buffer."""
        return frozenset().union(*(self._writers[one] for one in buffer.memory))

    def _write(self, buffer: _Buffer) -> None:
        """Note that the last call wrote to the buffer: to all of it, or besides other calls."""
        last = frozenset([len(self.calls) - 1])
        for one in buffer.memory:
            earlier = buffer.part and one not in self._used_again
            self._writers[one] = self._writers[one] | last if earlier else last
        self._used_again -= buffer.memory

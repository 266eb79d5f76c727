"""The instructions of XLA's compiled programs, their scopes, and the instruction of each event.

An event has the name of its instruction (``hlo_op``) and module. The instruction's scope
(``jit(step)/jvp(conv1)/conv_general_dilated``), shapes and window are in the module, an HloProto in
the metadata plane.

Infers the scopes of instructions that lost theirs when XLA optimized the program. Instructions that
XLA creates (layouts, windows of a gradient, parts of an operation that it splits) have no
``op_name``. Where the program determines the operation of such an instruction, it gets the
operation's scope.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec
import numpy as np
import polars as pl

from traceana.readers.xplane.command_buffers import CommandBuffers, Scheduled
from traceana.readers.xplane.events import PlaneEvents
from traceana.readers.xplane.hlo_proto import (
    UNKNOWN,
    Computation,
    Instruction,
    Module,
    Shape,
    attributes,
    read_module,
)
from traceana.readers.xplane.hlo_values import Values
from traceana.readers.xplane.space import Plane, Space
from traceana.readers.xplane.wire import Buffer, Field, Ints, WireError
from traceana.trace import Ledger
from traceana.trace.schema import ROW, conform

_NONE: Final = -1
METADATA_PLANE: Final = "/host:metadata"
_PROTO: Final = "Hlo Proto"
_LABEL: Final = re.compile(r"^(?P<module>.*)\((?P<program>\d{1,18})\)$", re.DOTALL)
_TEXT_PER_BYTE: Final = 64
"""Limit of the text of shapes: characters in the table per byte of the program."""
_WITHOUT_WORK: Final = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast"})
"""Instructions that name or bundle values and compute nothing."""
_RUN_ONCE: Final = frozenset(
    {"fusion", "call", "while", "conditional", "custom-call", "async-start", "async-update"}
)
"""Instructions that run their computation once; others (reduce, sort, scatter …) apply it to each
element."""


_PROGRAM: Final = ("hlo_module", "program_id")
"""The columns of events that name their program."""
_HOLDING_KERNELS: Final = frozenset({"call", "while", "conditional", "async-start"})
"""Instructions whose computation runs as kernels of its own instructions."""


class Row(NamedTuple):
    """A row of ``instructions`` without its program; ``parent`` is an index within the program."""

    name: str
    parent: int | None
    opcode: str
    target: str | None
    scope: str | None
    attributes: str | None
    input_shapes: str | None = None
    input_types: str | None = None
    output_shape: str | None = None
    output_type: str | None = None


_ROWS: Final = {name: pl.Int64 if name == "parent" else pl.String for name in Row._fields}


class _Program(NamedTuple):
    """A decoded program: the row of each instruction by name, and the rows from ``first`` on."""

    first: int
    rows: dict[str, int]
    frame: pl.DataFrame


class HloPrograms:
    """Looks up instructions; a program is decoded when an event first names it.

    ``ledger`` counts programs and attributes that cannot be decoded.
    """

    def __init__(self, buffer: Buffer, space: Space, ledger: Ledger) -> None:
        self._ledger = ledger
        self._buffer = buffer
        self._places: dict[str, Field] = {}
        self._decoded: dict[str, _Program | None] = {}
        self._scopes: list[str | None] = []
        self._calls: set[int] = set()
        self._parts: list[pl.DataFrame] = []
        for plane in space.planes:
            if plane.name == METADATA_PLANE:
                self._places |= _modules(plane)

    def of(self, events: pl.DataFrame) -> pl.DataFrame:
        """Return ``instruction`` and its ``scope`` for each event, null where unknown.

        ``events`` has the columns of :func:`instruction_keys`. Instructions are rows of
        :meth:`instructions`.
        """
        return self._with_scopes(self._named(events))

    def of_device(self, events: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
        """Return the columns of :meth:`of` for the work of a device, of command buffers too.

        ``launches`` has ``correlation``, ``start`` and ``kernel`` (null for copies) of each event.
        """
        found = self._named(events)
        unknown = (found == _NONE) | np.isin(found, list(self._calls))
        unknown &= events["hlo_module"].is_not_null().to_numpy()
        rows = np.flatnonzero(unknown & launches["correlation"].is_not_null().to_numpy())
        if len(rows):
            self._in_command_buffers(found, rows, events, launches)
        return self._with_scopes(found)

    def _in_command_buffers(
        self, found: Ints, rows: Ints, events: pl.DataFrame, launches: pl.DataFrame
    ) -> None:
        """Fill in the instructions of the kernels ``rows``, launch by launch."""
        first, last = launches["correlation"].drop_nulls()[[0, -1]]
        work = launches[rows].with_columns(
            pl.Series("row", rows), *(events[name].gather(rows) for name in _PROGRAM)
        )
        for own in work.partition_by(*_PROGRAM, maintain_order=True):
            program = self._program(own[_PROGRAM[0]].cast(pl.String)[0], own[_PROGRAM[1]][0])
            if program is None:
                continue
            ordered = own.sort("correlation", "start")
            kernels = ordered["kernel"].cast(pl.String)
            buffers = CommandBuffers.of(_scheduled(program), kernels.unique().drop_nulls())
            codes = ordered["kernel"].to_physical().cast(pl.Int64).fill_null(_NONE).to_numpy()
            numbers, places = (ordered[name].to_numpy() for name in ("correlation", "row"))
            edges = np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1]))
            # Launches repeat: what one ran is found once.
            known: dict[tuple[bytes, bool], Ints] = {}
            for begin, end in pairwise([*edges.tolist(), len(numbers)]):
                # The first and the last of a block of events can be cut.
                whole = numbers[begin] not in (first, last)
                key = codes[begin:end].tobytes(), whole
                if key not in known:
                    ran = buffers.rows(kernels[begin:end].to_list(), whole=whole)
                    known[key] = np.array([_NONE if row is None else row for row in ran])
                own_rows = places[begin:end]
                found[own_rows] = np.where(known[key] == _NONE, found[own_rows], known[key])

    def _named(self, events: pl.DataFrame) -> Ints:
        """Return the row of the instruction that each event names, -1 where unknown."""
        keys = events.select("hlo_module", "program_id", "hlo_op")
        distinct = keys.unique(maintain_order=True).drop_nulls(["hlo_module", "hlo_op"])
        texts = distinct.cast({"hlo_module": pl.String, "hlo_op": pl.String})
        found = [self._row(*each) for each in texts.rows()]
        looked_up = distinct.with_columns(pl.Series("instruction", found, dtype=pl.Int64))
        matched = keys.join(
            looked_up, on=keys.columns, how="left", nulls_equal=True, maintain_order="left"
        )
        return matched["instruction"].fill_null(_NONE).to_numpy(writable=True)

    def _with_scopes(self, rows: Ints) -> pl.DataFrame:
        count = len(self._scopes)
        scopes = pl.Series([*self._scopes, None], dtype=pl.String).cast(pl.Categorical())
        numbers = pl.Series([*range(count), None], dtype=ROW)
        of_row = np.where(rows == _NONE, count, rows)
        return pl.DataFrame({"instruction": numbers.gather(of_row), "scope": scopes.gather(of_row)})

    def instructions(self) -> pl.DataFrame:
        """Return the table ``instructions`` of the programs that events named."""
        return pl.concat([conform("instructions", pl.DataFrame()), *self._parts])

    def _row(self, module: str, program: int | None, instruction: str) -> int | None:
        found = self._program(module, program)
        return None if found is None else found.rows.get(instruction)

    def _program(self, module: str, program: int | None) -> _Program | None:
        """Return a program of the file; None where it is not there, or cannot be decoded."""
        for label in (f"{module}({program})", *self._labels(module)):
            if label in self._places:
                if label not in self._decoded:
                    self._decoded[label] = self._decode(label)
                return self._decoded[label]
        return None

    def _labels(self, module: str) -> list[str]:
        """Return the label of a module without a program id; empty where several fit."""
        found = [
            label
            for label in self._places
            if label == module or ((m := _LABEL.match(label)) and m["module"] == module)
        ]
        return found if len(found) == 1 else []

    def _decode(self, label: str) -> _Program | None:
        """Add a program to the table, if it can be decoded."""
        first = len(self._scopes)
        proto = self._places[label]
        content = self._buffer.data[proto.start : proto.end].tobytes()
        budget = _TEXT_PER_BYTE * len(content)
        try:
            found, lost = rows(read_module(content), budget)
        except WireError:
            self._ledger.add(
                "malformed", 1, table="instructions", kept=True, detail=f"HLO program {label}"
            )
            return None
        self._ledger.add(
            "lost_field", lost, table="instructions", kept=True, detail="attributes of instructions"
        )
        named = _LABEL.match(label)
        frame = pl.DataFrame(found, schema=_ROWS, orient="row").with_columns(
            pl.lit(named["module"] if named else label).alias("program"),
            pl.lit(int(named["program"]) if named else None, pl.Int64).alias("program_id"),
            pl.col("parent") + first,
        )
        self._scopes += [row.scope for row in found]
        self._calls |= {first + place for place, row in enumerate(found) if row.opcode == "call"}
        frame = conform("instructions", frame)
        self._parts.append(frame)
        return _Program(first, {row.name: first + i for i, row in enumerate(found)}, frame)


def _scheduled(program: _Program) -> Iterator[Scheduled]:
    """Yield the instructions of a program that run kernels of their own."""
    shapes = ("input_shapes", "input_types", "output_shape", "output_type")
    columns = program.frame.select("parent", "name", "opcode", *shapes).cast(
        dict.fromkeys(("name", "opcode", *shapes), pl.String)
    )
    opcodes = columns["opcode"]
    for row, (parent, name, opcode, *of_operands) in enumerate(columns.iter_rows(), program.first):
        if parent is None or opcodes[parent - program.first] in _HOLDING_KERNELS:
            yield Scheduled(row, parent, name, opcode, str(of_operands))


def _modules(plane: Plane) -> dict[str, Field]:
    return {
        plane.event_names[event]: content
        for (event, stat), content in plane.kept_bytes.items()
        if plane.stat_names.get(stat) == _PROTO and event in plane.event_names
    }


def instruction_keys(events: PlaneEvents) -> pl.DataFrame:
    """Return the columns that identify the HLO instruction of each event."""
    return pl.DataFrame(
        {
            "hlo_module": events.texts("hlo_module"),
            "program_id": events.integers("program_id"),
            "hlo_op": events.texts("hlo_op"),
        }
    )


def rows(module: Module, text_budget: int) -> tuple[list[Row], int]:
    """Return the rows of a program, each after its parent, and how many attributes were lost.

    Every computation occurs once, under the first instruction that runs it. Shapes beyond
    ``text_budget`` characters are null: each instruction may have a shape of thousands of parts.
    """
    lost = 0
    by_number = {each.number: each for part in module.computations for each in part.instructions}
    complete_scopes(module, by_number)
    found: list[Row] = []
    for each, parent in _with_parents(module):
        operands = [by_number[n].shape if n in by_number else UNKNOWN for n in each.operands]
        text_budget -= sum(len(shape.sizes) + len(shape.types) for shape in (*operands, each.shape))
        try:
            described, broken = _attributes(each)
        except WireError:
            described, broken = None, True
        lost += broken
        found.append(
            Row(
                each.name,
                parent,
                each.opcode,
                each.target or None,
                each.scope or None,
                described,
                *(_shapes(operands, each.shape) if text_budget >= 0 else ()),
            )
        )
    return found, lost


def _with_parents(module: Module) -> Iterator[tuple[Instruction, int | None]]:
    """Yield the instructions of the table and the index of their parent in this order.

    The entry computation comes first, then those that no instruction calls. A computation is
    visited once, so that even an invalid, recursive program ends.
    """
    computations: dict[int, Computation] = {part.number: part for part in module.computations}
    called = {n for part in module.computations for each in part.instructions for n in each.called}
    begin = [n for n in computations if n == module.entry or n not in called]
    begin.sort(key=lambda n: n != module.entry)
    waiting: deque[tuple[int, int | None]] = deque((n, None) for n in begin)
    seen = set(begin)
    row = 0
    while waiting:
        number, parent = waiting.popleft()
        for each in computations[number].instructions:
            if each.opcode in _WITHOUT_WORK:
                continue
            yield each, parent
            if each.opcode in _RUN_ONCE:
                for inner in each.called:
                    if inner in computations and inner not in seen:
                        seen.add(inner)
                        waiting.append((inner, row))
            row += 1


def _shapes(operands: list[Shape], output: Shape) -> tuple[str, str, str | None, str | None]:
    return (
        f"[{','.join(shape.sizes for shape in operands)}]",
        f"[{','.join(shape.types for shape in operands)}]",
        None if output is UNKNOWN else output.sizes,
        None if output is UNKNOWN else output.types.strip('"'),
    )


def _attributes(of: Instruction) -> tuple[str | None, bool]:
    found, lost = attributes(of)
    return msgspec.json.encode(found).decode() if found else None, lost


_CONTRACTIONS: Final = frozenset({"convolution", "dot", "custom-call"})
_MADE_BACKWARD: Final = "transpose("
_TAPE: Final = "gradient_tape/"
_DIFFERENTIATED: Final = re.compile(r"\bjvp\(((?:[^()]|\([^()]*\))*)\)")
_LOST_CALL: Final = re.compile(r"(?:Stateful)?PartitionedCall(?:_\d+)?/gradients/")
"""The gradient of a ``tf.function`` that the model calls, which has no scope of the call: Keras
calls one for each grouped convolution on the CPU."""
Tensors = tuple[int, ...]


def complete_scopes(module: Module, by_number: Mapping[int, Instruction]) -> None:
    """Fill in missing scopes of a program's instructions; ``by_number`` holds all of them.

    A convolution gets the scope of its layer's gradient, a fusion that of its root, any other
    instruction that of its users where they share one. Scopes that name no layer count as missing.
    """
    lost = [each for each in by_number.values() if _LOST_CALL.match(each.scope)]
    scopes = [each.scope for each in lost]
    for each in lost:
        each.scope = ""
    _infer_scopes(module, by_number)
    for each, scope in zip(lost, scopes, strict=True):
        each.scope = each.scope or scope


def _infer_scopes(module: Module, by_number: Mapping[int, Instruction]) -> None:
    _Gradients(module, by_number).name()
    roots = {part.number: by_number.get(part.root) for part in module.computations}
    for part in module.computations:
        for each in part.instructions:
            root = roots.get(each.called[0]) if each.called else None
            if not each.scope and root is not None:
                each.scope = _scope_of_result(root, by_number)
    for part in module.computations:
        _name_by_users(part, by_number, roots)


class _Gradients:
    """The convolutions of a program by the scope of their layer's gradient.

    A convolution and its gradients have the same three tensors (input, weight, output) as operands
    and result in a different order: they match by their element counts, also where XLA converted
    some of them to products. Of layers with tensors of equal sizes it is the one whose operands
    are the same values: the gradient of a weight reads the input of the forward convolution, and
    what the gradient of the input reads. These two alone identify a layer whose weight's gradient
    XLA computes in another size, as that of a depthwise convolution on a CPU.

    JAX records differentiation: ``jvp(net)/conv1/…`` is forward, ``transpose(jvp(net))/conv1/…``
    its gradient. TensorFlow has ``gradient_tape/net/conv1/Conv2D/Conv2DBackpropInput``.
    """

    def __init__(self, module: Module, instructions: Mapping[int, Instruction]) -> None:
        self._values = Values(module)
        self._on_tape = any(each.scope.startswith(_TAPE) for each in instructions.values())
        self._of_tensors: defaultdict[Tensors, set[str]] = defaultdict(set)
        self._readers: defaultdict[int, set[str]] = defaultdict(set)
        self._nameless: list[tuple[Instruction, Tensors]] = []
        for each in instructions.values():
            # A product without a scope may be one.
            converted = each.opcode == "dot" and (not each.scope or _is_convolution(each.scope))
            if not (each.opcode == "convolution" or converted):
                continue
            if (tensors := _tensors(each, instructions)) is None:
                continue
            if not each.scope:
                self._nameless.append((each, tensors))
            elif (scope := self._backward(each.scope)) is not None:
                self._of_tensors[tensors].add(scope)
                for source in self._sources(each):
                    self._readers[source].add(scope)

    def name(self) -> None:
        """Give each convolution without a scope that of its layer's gradient, where one fits."""
        known: set[str] = set().union(*self._of_tensors.values())
        for each, tensors in self._nameless:
            if each.opcode == "dot":
                # It may be of another kind of layer with tensors of equal sizes.
                each.scope = self._by_operands(each, known, least=2)
                continue
            alike = self._of_tensors.get(tensors, set())
            each.scope = _only(alike) or (
                self._by_operands(each, alike, least=1)
                if alike
                else self._by_operands(each, known, least=2)
            )

    def _by_operands(self, of: Instruction, among: set[str], least: int) -> str:
        """Return the scope that shares most results with ``of``, and ``least`` or more."""
        shared: Counter[str] = Counter()
        for source in self._sources(of):
            # A layer of several convolutions has its gradients in its own scope, or in theirs.
            readers = self._readers[source]
            shared.update((readers | {scope.rpartition("/")[0] for scope in readers}) & among)
        most = max(least, max(shared.values(), default=0))
        return _only({scope for scope, count in shared.items() if count == most})

    def _sources(self, of: Instruction) -> set[int]:
        """Return the numbers of the values that ``of`` reads."""
        return {self._values.of(number) for number in of.operands}

    def _backward(self, scope: str) -> str | None:
        """Return the scope of the gradient of what has ``scope``, None without one."""
        if scope.startswith(_TAPE):
            return scope.rpartition("/")[0]
        if self._on_tape:
            return _TAPE + scope
        if _MADE_BACKWARD in scope:
            return scope
        made, number = _DIFFERENTIATED.subn(r"transpose(jvp(\1))", scope, count=1)
        return made if number else None


def _scope_of_result(root: Instruction, by_number: Mapping[int, Instruction]) -> str:
    """Return the scope of the root of a fusion, behind changes of its type without a scope.

    XLA computes in float32 where a device lacks bfloat16, and converts the result.
    """
    seen = set()
    one: Instruction | None = root
    while one is not None and not one.scope and one.opcode == "convert" and one.operands:
        if one.number in seen:
            break
        seen.add(one.number)
        one = by_number.get(one.operands[0])
    return root.scope if one is None else one.scope


def _is_convolution(scope: str) -> bool:
    """Return whether a product was a convolution of 1x1 windows, which XLA converts: its scope ends
    in ``conv_general_dilated`` (JAX), ``Conv2D`` or ``Conv2D/Conv2DBackpropInput``."""
    *_, before, last = ("", *scope.rsplit("/", 2))
    return "conv" in (before if "Backprop" in last else last).lower()


def _tensors(of: Instruction, instructions: Mapping[int, Instruction]) -> Tensors | None:
    operands = [instructions[n].shape for n in of.operands if n in instructions]
    elements = [shape.elements for shape in (*operands, of.shape)]
    known = [each for each in elements if each is not None]
    return tuple(sorted(known)) if len(known) == len(elements) == 3 else None


def _name_by_users(
    computation: Computation,
    by_number: Mapping[int, Instruction],
    roots: Mapping[int, Instruction | None],
) -> None:
    """Go through a computation backwards, so that users have their scopes first.

    A convolution or matrix product is used by the next layer or the optimizer, to which it does not
    belong: it gets no scope.
    """
    used_by: defaultdict[int, set[str]] = defaultdict(set)
    for each in reversed(computation.instructions):
        inner = [root for n in each.called if (root := roots.get(n)) is not None]
        if not each.scope and not any(one.opcode in _CONTRACTIONS for one in (each, *inner)):
            each.scope = _only(used_by.get(each.number, set()))
        for operand in each.operands:
            if operand in by_number:
                used_by[operand].add(each.scope)


def _only(scopes: set[str]) -> str:
    return next(iter(scopes)) if len(scopes) == 1 else ""

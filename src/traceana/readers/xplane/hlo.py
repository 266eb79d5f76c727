"""The instructions of XLA's compiled programs, their scopes, and the instruction of each event.

An event has the name of its instruction (``hlo_op``) and module. The instruction's scope
(``jit(step)/jvp(conv1)/conv_general_dilated``), shapes and window are in the module, an HloProto in
the metadata plane.

Instructions that XLA creates when it optimizes a program (layouts, windows of a gradient, parts of
an operation that it splits) have no ``op_name``, which is the scope. :func:`complete_scopes` gives
them the scope of an operation where the program determines it.
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
    attributes,
    read_module,
)
from traceana.readers.xplane.hlo_values import Values
from traceana.readers.xplane.space import Space
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
    frames: str | None
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
                self._places |= {
                    plane.event_names[event]: content
                    for (event, stat), content in plane.kept_bytes.items()
                    if plane.stat_names.get(stat) == _PROTO and event in plane.event_names
                }

    def host_instructions(self, events: pl.DataFrame) -> pl.DataFrame:
        """Return ``instruction`` and its ``scope`` for each event, null where unknown.

        ``events`` has the columns of :func:`instruction_keys`. Instructions are rows of
        :meth:`instructions`.
        """
        return self._with_scopes(self._named(events))

    def device_instructions(self, events: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
        """Return the columns of :meth:`host_instructions` for device work, also in command buffers.

        ``launches`` has ``correlation``, ``start`` and ``kernel`` (null for copies) of each event.
        """
        instruction = self._named(events)
        unknown = (instruction == _NONE) | np.isin(instruction, list(self._calls))
        unknown &= events["hlo_module"].is_not_null().to_numpy()
        rows = np.flatnonzero(unknown & launches["correlation"].is_not_null().to_numpy())
        if len(rows):
            self._find_in_command_buffers(instruction, rows, events, launches)
        return self._with_scopes(instruction)

    def _find_in_command_buffers(
        self, instruction: Ints, rows: Ints, events: pl.DataFrame, launches: pl.DataFrame
    ) -> None:
        """Set the ``instruction`` of the kernels in ``rows``, launch by launch."""
        first, last = launches["correlation"].drop_nulls()[[0, -1]]
        work = launches[rows].with_columns(
            pl.Series("row", rows), *(events[name].gather(rows) for name in _PROGRAM)
        )
        for kernels_of_program in work.partition_by(*_PROGRAM, maintain_order=True):
            module, program_id = (kernels_of_program[column] for column in _PROGRAM)
            program = self._program(module.cast(pl.String)[0], program_id[0])
            if program is None:
                continue
            ordered = kernels_of_program.sort("correlation", "start")
            kernels = ordered["kernel"].cast(pl.String)
            buffers = CommandBuffers.of(_scheduled(program), kernels.unique().drop_nulls())
            codes = ordered["kernel"].to_physical().cast(pl.Int64).fill_null(_NONE).to_numpy()
            numbers, places = (ordered[name].to_numpy() for name in ("correlation", "row"))
            edges = np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1]))
            # Launches repeat: equal ones are looked up once.
            looked_up: dict[tuple[bytes, bool], Ints] = {}
            for begin, end in pairwise([*edges.tolist(), len(numbers)]):
                # The first and the last of a block of events can be cut.
                whole = numbers[begin] not in (first, last)
                key = codes[begin:end].tobytes(), whole
                if key not in looked_up:
                    found = buffers.rows(kernels[begin:end].to_list(), whole=whole)
                    looked_up[key] = np.array([_NONE if row is None else row for row in found])
                launch = places[begin:end]
                is_unknown = looked_up[key] == _NONE
                instruction[launch] = np.where(is_unknown, instruction[launch], looked_up[key])

    def _named(self, events: pl.DataFrame) -> Ints:
        """Return the row of the instruction that each event names, -1 where unknown."""
        keys = events.select("hlo_module", "program_id", "hlo_op")
        distinct = keys.unique(maintain_order=True).drop_nulls(["hlo_module", "hlo_op"])
        texts = distinct.cast({"hlo_module": pl.String, "hlo_op": pl.String})
        rows: list[int | None] = []
        for module, program_id, instruction in texts.rows():
            program = self._program(module, program_id)
            rows.append(None if program is None else program.rows.get(instruction))
        looked_up = distinct.with_columns(pl.Series("instruction", rows, dtype=pl.Int64))
        matched = keys.join(
            looked_up, on=keys.columns, how="left", nulls_equal=True, maintain_order="left"
        )
        return matched["instruction"].fill_null(_NONE).to_numpy(writable=True)

    def _with_scopes(self, rows: Ints) -> pl.DataFrame:
        count = len(self._scopes)
        scopes = pl.Series([*self._scopes, None], dtype=pl.String).cast(pl.Categorical())
        numbers = pl.Series([*range(count), None], dtype=ROW)
        places = np.where(rows == _NONE, count, rows)
        return pl.DataFrame({"instruction": numbers.gather(places), "scope": scopes.gather(places)})

    def instructions(self) -> pl.DataFrame:
        """Return the table ``instructions`` of the programs that events named."""
        return pl.concat([conform("instructions", pl.DataFrame()), *self._parts])

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
        labels = [
            label
            for label in self._places
            if label == module or ((match := _LABEL.match(label)) and match["module"] == module)
        ]
        return labels if len(labels) == 1 else []

    def _decode(self, label: str) -> _Program | None:
        """Add a program to the table, if it can be decoded."""
        first = len(self._scopes)
        proto = self._places[label]
        content = self._buffer.data[proto.start : proto.end].tobytes()
        budget = _TEXT_PER_BYTE * len(content)
        try:
            module = read_module(content)
            decoded, lost = rows(module, budget)
        except WireError:
            self._ledger.add(
                "malformed", 1, table="instructions", kept=True, detail=f"HLO program {label}"
            )
            return None
        self._ledger.add(
            "lost_field", lost, table="instructions", kept=True, detail="attributes of instructions"
        )
        self._ledger.add(
            "lost_field",
            module.lost_stacks,
            table="instructions",
            kept=True,
            detail="Python stacks of instructions",
        )
        named = _LABEL.match(label)
        frame = pl.DataFrame(decoded, schema=_ROWS, orient="row").with_columns(
            pl.lit(named["module"] if named else label).alias("program"),
            pl.lit(int(named["program"]) if named else None, pl.Int64).alias("program_id"),
            pl.col("parent") + first,
        )
        self._scopes += [row.scope for row in decoded]
        self._calls |= {first + place for place, row in enumerate(decoded) if row.opcode == "call"}
        frame = conform("instructions", frame)
        self._parts.append(frame)
        return _Program(first, {row.name: first + i for i, row in enumerate(decoded)}, frame)


def _scheduled(program: _Program) -> Iterator[Scheduled]:
    """Yield the instructions of a program that run as separate kernels."""
    shapes = ("input_shapes", "input_types", "output_shape", "output_type")
    columns = program.frame.select("parent", "name", "opcode", *shapes).cast(
        dict.fromkeys(("name", "opcode", *shapes), pl.String)
    )
    opcodes = columns["opcode"]
    rows = enumerate(columns.iter_rows(), program.first)
    for row, (parent, name, opcode, *shapes_of_row) in rows:
        if parent is None or opcodes[parent - program.first] in _HOLDING_KERNELS:
            yield Scheduled(row, parent, name, opcode, str(shapes_of_row))


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
    instructions = {
        instruction.number: instruction
        for computation in module.computations
        for instruction in computation.instructions
    }
    complete_scopes(module, instructions)
    table: list[Row] = []
    for instruction, parent in _with_parents(module):
        operands = [
            instructions[number].shape if number in instructions else UNKNOWN
            for number in instruction.operands
        ]
        output = instruction.shape
        text_budget -= sum(len(shape.sizes) + len(shape.types) for shape in (*operands, output))
        try:
            described, broken = attributes(instruction)
        except WireError:
            described, broken = {}, True
        lost += broken
        row = Row(
            instruction.name,
            parent,
            instruction.opcode,
            instruction.target or None,
            instruction.scope or None,
            instruction.frames or None,
            msgspec.json.encode(described).decode() if described else None,
        )
        if text_budget >= 0:
            row = row._replace(
                input_shapes=f"[{','.join(shape.sizes for shape in operands)}]",
                input_types=f"[{','.join(shape.types for shape in operands)}]",
                output_shape=None if output is UNKNOWN else output.sizes,
                output_type=None if output is UNKNOWN else output.types.strip('"'),
            )
        table.append(row)
    return table, lost


def _with_parents(module: Module) -> Iterator[tuple[Instruction, int | None]]:
    """Yield the instructions of the table and the index of their parent in this order.

    The entry computation comes first, then those that no instruction calls. A computation is
    visited once, so that even an invalid, recursive program ends.
    """
    computations = {computation.number: computation for computation in module.computations}
    called = {
        number
        for computation in module.computations
        for instruction in computation.instructions
        for number in instruction.called
    }
    begin = [number for number in computations if number == module.entry or number not in called]
    begin.sort(key=lambda number: number != module.entry)
    waiting: deque[tuple[int, int | None]] = deque((number, None) for number in begin)
    seen = set(begin)
    row = 0
    while waiting:
        number, parent = waiting.popleft()
        for instruction in computations[number].instructions:
            if instruction.opcode in _WITHOUT_WORK:
                continue
            yield instruction, parent
            if instruction.opcode in _RUN_ONCE:
                for inner in instruction.called:
                    if inner in computations and inner not in seen:
                        seen.add(inner)
                        waiting.append((inner, row))
            row += 1


_CONTRACTIONS: Final = frozenset({"convolution", "dot", "custom-call"})
_MADE_BACKWARD: Final = "transpose("
_TAPE: Final = "gradient_tape/"
_DIFFERENTIATED: Final = re.compile(r"\bjvp\(((?:[^()]|\([^()]*\))*)\)")
_LOST_CALL: Final = re.compile(r"(?:Stateful)?PartitionedCall(?:_\d+)?/gradients/")
"""The gradient of a ``tf.function`` that the model calls, which has no scope of the call: Keras
calls one for each grouped convolution on the CPU."""
Tensors = tuple[int, ...]


def complete_scopes(module: Module, instructions: Mapping[int, Instruction]) -> None:
    """Fill in missing scopes of all ``instructions`` of a program, given by number.

    A convolution gets the scope of its layer's gradient, a fusion that of its root, any other
    instruction that of its users where they share one. A scope without the layer counts as missing,
    and stays where none is found.
    """
    without_layer = {
        number: instruction.scope
        for number, instruction in instructions.items()
        if _LOST_CALL.match(instruction.scope)
    }
    for number in without_layer:
        instructions[number].scope = ""
    _Gradients(module, instructions).set_scopes()
    roots = {
        computation.number: instructions.get(computation.root)
        for computation in module.computations
    }
    for computation in module.computations:
        for instruction in computation.instructions:
            root = roots.get(instruction.called[0]) if instruction.called else None
            if not instruction.scope and root is not None:
                instruction.scope = _scope_of_result(root, instructions)
    for computation in module.computations:
        _take_scopes_of_users(computation, instructions, roots)
    for number, scope in without_layer.items():
        instructions[number].scope = instructions[number].scope or scope


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
        scopes = [instruction.scope for instruction in instructions.values()]
        self._on_tape = any(scope.startswith(_TAPE) for scope in scopes)
        self._scopes_by_tensors: defaultdict[Tensors, set[str]] = defaultdict(set)
        """Scopes of gradients by the element counts of the three tensors."""
        self._scopes_by_value: defaultdict[int, set[str]] = defaultdict(set)
        """Scopes of gradients by the values that their forward convolution reads."""
        self._without_scope: list[tuple[Instruction, Tensors]] = []
        for instruction in instructions.values():
            scope = instruction.scope
            # XLA converts some convolutions to products; a product without a scope may be one.
            is_converted = instruction.opcode == "dot" and (not scope or _is_convolution(scope))
            if not (instruction.opcode == "convolution" or is_converted):
                continue
            operands = [instructions.get(number) for number in instruction.operands]
            tensors = [operand.shape for operand in operands if operand] + [instruction.shape]
            elements = [tensor.elements for tensor in tensors if tensor.elements is not None]
            if not len(elements) == len(tensors) == 3:
                continue
            sizes = tuple(sorted(elements))
            if not scope:
                self._without_scope.append((instruction, sizes))
            elif (gradient := self._gradient_scope(scope)) is not None:
                self._scopes_by_tensors[sizes].add(gradient)
                for value in self._values_read(instruction):
                    self._scopes_by_value[value].add(gradient)

    def set_scopes(self) -> None:
        """Set the scope of convolutions without one to the matching layer's gradient."""
        all_scopes: set[str] = set().union(*self._scopes_by_tensors.values())
        for instruction, sizes in self._without_scope:
            same_sizes = self._scopes_by_tensors.get(sizes, set())
            if instruction.opcode == "dot" or not same_sizes:
                # Equal sizes do not suffice for a product: another kind of layer may have them.
                instruction.scope = self._scope_by_operands(instruction, all_scopes, least=2)
            elif len(same_sizes) == 1:
                instruction.scope = _only(same_sizes)
            else:
                instruction.scope = self._scope_by_operands(instruction, same_sizes, least=1)

    def _scope_by_operands(self, instruction: Instruction, among: set[str], least: int) -> str:
        """Return the scope that reads most values of ``instruction``, at least ``least``."""
        shared: Counter[str] = Counter()
        for value in self._values_read(instruction):
            # A layer of several convolutions has its gradients in its own scope, or in theirs.
            scopes = self._scopes_by_value[value]
            shared.update((scopes | {scope.rpartition("/")[0] for scope in scopes}) & among)
        most = max(least, max(shared.values(), default=0))
        return _only({scope for scope, count in shared.items() if count == most})

    def _values_read(self, instruction: Instruction) -> set[int]:
        return {self._values.of(number) for number in instruction.operands}

    def _gradient_scope(self, scope: str) -> str | None:
        """Return the scope of the gradient of an operation with ``scope``, None without one."""
        if scope.startswith(_TAPE):
            return scope.rpartition("/")[0]
        if self._on_tape:
            return _TAPE + scope
        if _MADE_BACKWARD in scope:
            return scope
        gradient, count = _DIFFERENTIATED.subn(r"transpose(jvp(\1))", scope, count=1)
        return gradient if count else None


def _scope_of_result(root: Instruction, instructions: Mapping[int, Instruction]) -> str:
    """Return the scope of a fusion's root, or of the operand that it converts without a scope.

    XLA computes in float32 where a device lacks bfloat16, and converts the result.
    """
    seen = set()
    result: Instruction | None = root
    while (
        result is not None and not result.scope and result.opcode == "convert" and result.operands
    ):
        if result.number in seen:
            break
        seen.add(result.number)
        result = instructions.get(result.operands[0])
    return root.scope if result is None else result.scope


def _is_convolution(scope: str) -> bool:
    """Return whether a product was a convolution of 1x1 windows, which XLA converts: its scope ends
    in ``conv_general_dilated`` (JAX), ``Conv2D`` or ``Conv2D/Conv2DBackpropInput``."""
    *_, before, last = ("", *scope.rsplit("/", 2))
    return "conv" in (before if "Backprop" in last else last).lower()


def _take_scopes_of_users(
    computation: Computation,
    instructions: Mapping[int, Instruction],
    roots: Mapping[int, Instruction | None],
) -> None:
    """Give instructions without a scope the one that all their users have.

    A convolution or matrix product is used by the next layer or the optimizer, to which it does not
    belong: it gets no scope.
    """
    user_scopes: defaultdict[int, set[str]] = defaultdict(set)
    # Backwards, so that users have their scopes first.
    for instruction in reversed(computation.instructions):
        inside = [root for number in instruction.called if (root := roots.get(number)) is not None]
        opcodes = {instruction.opcode, *(root.opcode for root in inside)}
        if not instruction.scope and not opcodes & _CONTRACTIONS:
            instruction.scope = _only(user_scopes.get(instruction.number, set()))
        for operand in instruction.operands:
            if operand in instructions:
                user_scopes[operand].add(instruction.scope)


def _only(scopes: set[str]) -> str:
    """Return the single scope, empty if there are none or several."""
    return next(iter(scopes)) if len(scopes) == 1 else ""

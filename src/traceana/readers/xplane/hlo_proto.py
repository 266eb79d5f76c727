"""Compiled programs of XLA: HLO protocol buffers as plain records.

Only the fields in :data:`_MESSAGES` are read; names and numbers are those of ``hlo.proto`` and
``xla_data.proto`` in openxla/xla. Rare fields of instructions stay bytes until they are used, as do
shapes, which many instructions share.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any, Final

import msgspec

from traceana.files import UNDECODABLE
from traceana.readers.messages import Messages, message_classes
from traceana.readers.xplane.wire import WireError

_MESSAGES: Final[Messages] = {
    # message: field: (number, type); [type] is a repeated field
    "HloProto": {"hlo_module": (1, "HloModuleProto")},
    "HloModuleProto": {
        "computations": (3, ["HloComputationProto"]),
        "entry_computation_id": (6, "int64"),
        "schedule": (7, "HloScheduleProto"),
        # Parsed apart: a damaged one leaves the program.
        "stack_frame_index": (17, "bytes"),
    },
    "HloScheduleProto": {"sequences": (1, ["ScheduleEntry"])},
    # An entry of a map.
    "ScheduleEntry": {"key": (1, "int64"), "value": (2, "InstructionSequence")},
    "InstructionSequence": {"instruction_ids": (1, ["int64"])},
    "HloComputationProto": {
        "instructions": (2, ["HloInstructionProto"]),
        "id": (5, "int64"),
        "root_id": (6, "int64"),
    },
    "HloInstructionProto": {
        "name": (1, "bytes"),
        "opcode": (2, "bytes"),
        "shape": (3, "bytes"),
        "metadata": (7, "OpMetadata"),
        "parameter_number": (9, "int64"),
        "fusion_kind": (11, "bytes"),
        "window": (15, "bytes"),
        "convolution_dimension_numbers": (16, "bytes"),
        "custom_call_target": (28, "bytes"),
        "dot_dimension_numbers": (30, "bytes"),
        "id": (35, "int64"),
        "operand_ids": (36, ["int64"]),
        "called_computation_ids": (38, ["int64"]),
        "backend_config": (43, "bytes"),
        "feature_group_count": (50, "int64"),
        "batch_group_count": (58, "int64"),
    },
    "OpMetadata": {
        "op_name": (2, "bytes"),
        "source_file": (3, "bytes"),
        "source_line": (4, "int64"),
        "stack_frame_id": (15, "int64"),
    },
    # Numbers in it count from 1; 0 is none.
    "StackFrameIndexProto": {
        "file_names": (1, ["bytes"]),
        "function_names": (2, ["bytes"]),
        "file_locations": (3, ["FileLocation"]),
        "stack_frames": (4, ["StackFrame"]),
    },
    "FileLocation": {
        "file_name_id": (1, "int64"),
        "function_name_id": (2, "int64"),
        "line": (3, "int64"),
    },
    "StackFrame": {"file_location_id": (1, "int64"), "parent_frame_id": (2, "int64")},
    "ShapeProto": {
        "element_type": (2, "uint64"),
        "dimensions": (3, ["int64"]),
        "tuple_shapes": (4, ["bytes"]),
    },
    "Window": {"dimensions": (1, ["WindowDimension"])},
    "WindowDimension": {
        "size": (1, "int64"),
        "stride": (2, "int64"),
        "padding_low": (3, "int64"),
        "padding_high": (4, "int64"),
        "window_dilation": (5, "int64"),
        "base_dilation": (6, "int64"),
        "window_reversal": (7, "int64"),
    },
    "ConvolutionDimensionNumbers": {
        "kernel_input_feature_dimension": (3, "int64"),
        "kernel_output_feature_dimension": (4, "int64"),
        "kernel_spatial_dimensions": (6, ["int64"]),
        "input_batch_dimension": (7, "int64"),
        "input_feature_dimension": (8, "int64"),
        "output_batch_dimension": (9, "int64"),
        "output_feature_dimension": (10, "int64"),
        "input_spatial_dimensions": (11, ["int64"]),
        "output_spatial_dimensions": (12, ["int64"]),
    },
    "DotDimensionNumbers": {
        "lhs_contracting_dimensions": (1, ["int64"]),
        "rhs_contracting_dimensions": (2, ["int64"]),
        "lhs_batch_dimensions": (3, ["int64"]),
        "rhs_batch_dimensions": (4, ["int64"]),
    },
}
_DEFAULTS: Final = dict.fromkeys(
    ("window_dilation", "base_dilation", "feature_group_count", "batch_group_count"), "1"
)
_DEEPEST: Final = 16
"""Levels of nested tuples; deeper ones are shown as empty."""
_HIGHEST_RANK: Final = 64
"""Dimensions of an array whose elements are counted: a product of a million sizes takes hours."""
_MOST_FRAMES: Final = 500
"""Frames of a stack; those farther out are left out."""
_LONGEST_STACK: Final = 1 << 16
"""Characters of a stack, which has the frames that fit."""
_FRAMES_PER_BYTE: Final = 128
"""Limit of the text of stacks: characters in the table per byte of the program. Stacks share frames
and names, so that a small program could have stacks that fill the memory."""
_LEAST_FRAME: Final = 64
"""Characters that a frame counts at least, which bounds the time as well."""
_TUPLE: Final = 13
_ELEMENT_TYPES: Final = {
    1: "pred",
    2: "s8",
    3: "s16",
    4: "s32",
    5: "s64",
    6: "u8",
    7: "u16",
    8: "u32",
    9: "u64",
    10: "f16",
    11: "f32",
    12: "f64",
    14: "opaque",
    15: "c64",
    16: "bf16",
    17: "token",
    18: "c128",
    19: "f8e5m2",
    20: "f8e4m3fn",
    21: "s4",
    22: "u4",
    23: "f8e4m3b11fnuz",
    24: "f8e5m2fnuz",
    25: "f8e4m3fnuz",
    26: "s2",
    27: "u2",
    28: "f8e4m3",
    29: "f8e3m4",
    30: "s1",
    31: "u1",
    32: "f4e2m1fn",
    33: "f8e8m0fnu",
    34: "buffer",
}
_DOT: Final = ("lhs_contracting", "rhs_contracting", "lhs_batch", "rhs_batch")
_CONFIG_LIMIT: Final = 1 << 16
"""Bytes of the longest ``backend_config`` that is parsed."""

Config = dict[str, Any]


def _parsed(message: str, content: bytes) -> Any:
    """Return ``content`` as one of :data:`_MESSAGES`; raises :class:`WireError`."""
    from google.protobuf.message import DecodeError

    try:
        return _messages()[message].FromString(content)
    except DecodeError as error:
        raise WireError(f"invalid {message}") from error


@cache
def _messages() -> dict[str, Any]:
    return message_classes("hlo", _MESSAGES, _DEFAULTS)


class Shape(msgspec.Struct, frozen=True):
    """``sizes`` and ``types`` are JSON text: of an array ``[4,3]`` and ``"f32"``, of a tuple a list
    of those. ``elements`` is the number of an array's elements, None for a tuple.
    """

    sizes: str
    types: str
    elements: int | None = None


UNKNOWN: Final = Shape("null", "null")


class Instruction(msgspec.Struct):
    """One instruction; ``window`` and later fields are protocol buffers, None where absent.

    ``frames`` is the Python stack as in the table, empty where unknown; a fusion without one has
    the stack of an instruction inside. ``parameter`` is the place of a parameter among the
    parameters of its computation.
    """

    name: str
    opcode: str
    shape: Shape
    scope: str
    frames: str
    number: int
    operands: Sequence[int]
    called: Sequence[int]
    parameter: int
    target: str
    kind: str
    feature_groups: int
    batch_groups: int
    window: bytes | None
    convolution: bytes | None
    dot: bytes | None
    config: bytes


class Computation(msgspec.Struct):
    """A function of the program; an instruction comes after its operands, in the order of the
    schedule if there is one."""

    number: int
    root: int
    instructions: list[Instruction]


class Module(msgspec.Struct):
    """A program: ``entry`` is the number of the computation that runs.

    ``lost_stacks`` counts the instructions whose stack is damaged, or too long to be kept.
    """

    entry: int
    computations: list[Computation]
    lost_stacks: int = 0


def read_module(proto: bytes) -> Module:
    """Return the program of an HloProto.

    Raises :class:`~traceana.readers.xplane.wire.WireError`.
    """
    module = _parsed("HloProto", proto).hlo_module
    shapes = _Shapes()
    stacks = _Stacks(module.stack_frame_index, _FRAMES_PER_BYTE * len(proto))
    schedule = {entry.key: entry.value.instruction_ids for entry in module.schedule.sequences}
    computations = []
    for computation in module.computations:
        instructions = [
            _instruction(message, shapes, stacks) for message in computation.instructions
        ]
        order = {number: at for at, number in enumerate(schedule.get(computation.id, ()))}
        if all(instruction.number in order for instruction in instructions):
            instructions.sort(key=lambda instruction: order[instruction.number])
        computations.append(Computation(computation.id, computation.root_id, instructions))
    if stacks.found:
        _fill_fusions(computations, stacks)
    return Module(module.entry_computation_id, computations, stacks.lost)


def _fill_fusions(computations: list[Computation], stacks: _Stacks) -> None:
    """Give a fusion without a stack that of its root, else of the last instruction with one."""
    fused = {computation.number: computation for computation in computations}
    # A computation comes after those that it calls: the fusion within a fusion has its own by then.
    for computation in computations:
        for fusion in computation.instructions:
            if fusion.opcode != "fusion" or fusion.frames or not fusion.called:
                continue
            inside = fused.get(fusion.called[0])
            texts = (
                {}
                if inside is None
                else {
                    instruction.number: instruction.frames
                    for instruction in inside.instructions
                    if instruction.frames
                }
            )
            if inside is not None and texts:
                last = next(reversed(texts.values()))
                fusion.frames = stacks.afforded(texts.get(inside.root, last))


def _instruction(message: Any, shapes: _Shapes, stacks: _Stacks) -> Instruction:
    metadata = message.metadata if message.HasField("metadata") else None
    return Instruction(
        name=_text(message.name),
        opcode=_text(message.opcode),
        shape=shapes.of(message.shape) if message.HasField("shape") else UNKNOWN,
        scope="" if metadata is None else _text(metadata.op_name),
        frames="" if metadata is None else stacks.of(metadata),
        number=message.id,
        operands=tuple(message.operand_ids),
        called=tuple(message.called_computation_ids),
        parameter=message.parameter_number,
        target=_text(message.custom_call_target),
        kind=_text(message.fusion_kind),
        feature_groups=message.feature_group_count,
        batch_groups=message.batch_group_count,
        window=_optional(message, "window"),
        convolution=_optional(message, "convolution_dimension_numbers"),
        dot=_optional(message, "dot_dimension_numbers"),
        config=message.backend_config,
    )


def _optional(message: Any, field: str) -> bytes | None:
    return getattr(message, field) if message.HasField(field) else None


def _text(content: bytes) -> str:
    # Fields of text are declared as bytes: protobuf refuses a message with invalid UTF-8.
    return content.decode("utf-8", "replace") if content else ""


class _Stacks:
    """Makes the text of Python stacks; instructions of one stack share their text.

    ``found`` is whether any has one; ``lost`` counts those whose stack is damaged, or beyond the
    ``budget`` of characters.
    """

    def __init__(self, content: bytes, budget: int) -> None:
        self.found = False
        self.lost = 0
        self._budget = budget
        try:
            index = _parsed("StackFrameIndexProto", content)
        except WireError:
            index = _parsed("StackFrameIndexProto", b"")
        self._files = [_text(name) for name in index.file_names]
        self._functions = [_text(name) for name in index.function_names]
        self._places, self._frames = index.file_locations, index.stack_frames
        self._texts: dict[int, tuple[str, bool]] = {}
        """Of a place: ``model.py(41): forward``, empty where it has no file, and whether whole."""
        self._stacks: dict[int, tuple[str, bool]] = {}
        """Of a frame: it and those around it, and whether they are whole."""

    def of(self, metadata: Any) -> str:
        """Return the stack of an instruction's metadata, or the line alone; empty without both."""
        text, whole = "", True
        if number := metadata.stack_frame_id:
            if (known := self._stacks.get(number)) is None:
                known = self._stacks[number] = self._stack(number)
            text, whole = known
        if not text and (file := metadata.source_file):
            text = _line(_text(file), metadata.source_line)
        return self.afforded(text, whole=whole) if text or not whole else ""

    def afforded(self, text: str, *, whole: bool = True) -> str:
        """Return ``text``, empty where it is too long; count it if lost, or not ``whole``."""
        fits = len(text) <= min(self._budget, _LONGEST_STACK)
        self.lost += not (whole and fits)
        if not fits:
            return ""
        self.found = True
        self._budget -= len(text)
        return text

    def _stack(self, number: int) -> tuple[str, bool]:
        """Return the frames from ``number`` outwards, and whether they are whole."""
        if self._budget <= 0:
            return "", False
        texts: list[str] = []
        seen: set[int] = set()
        whole, length = True, 0
        while number:
            in_index = 0 < number <= len(self._frames)
            if not in_index or number in seen or len(seen) == _MOST_FRAMES:
                whole = False
                break
            seen.add(number)
            frame = self._frames[number - 1]
            text, known = self._at(frame.file_location_id)
            length += len(text) + 1
            if length > _LONGEST_STACK:
                whole = False
                break
            whole &= known
            if text:
                texts.append(text)
            number = frame.parent_frame_id
        self._budget -= _LEAST_FRAME * len(seen)
        # One beyond the budget is not kept.
        return (";".join(texts), whole) if length <= self._budget else ("", False)

    def _at(self, place: int) -> tuple[str, bool]:
        if (known := self._texts.get(place)) is None:
            known = self._texts[place] = self._frame(place)
            self._budget -= len(known[0])
        return known

    def _frame(self, number: int) -> tuple[str, bool]:
        if not 0 < number <= len(self._places):
            return "", False
        place = self._places[number - 1]
        if not 0 < place.file_name_id <= len(self._files):
            return "", False
        file, function = self._files[place.file_name_id - 1], ""
        whole = 0 <= place.function_name_id <= len(self._functions)
        if whole and place.function_name_id:
            function = f": {self._functions[place.function_name_id - 1]}"
        if len(file) + len(function) > min(self._budget, _LONGEST_STACK):
            return "", False
        return _line(file, place.line) + function, whole


def _line(file: str, line: int) -> str:
    return f"{file}({line})" if line > 0 else file


class _Shapes:
    """Parses shapes; equal bytes, frequent in a program, are parsed once."""

    def __init__(self) -> None:
        self._parsed: dict[bytes, Shape] = {}

    def of(self, content: bytes) -> Shape:
        """Return a shape; raises ``WireError``."""
        if (shape := self._parsed.get(content)) is None:
            sizes, types = self._parts(content, 0)
            is_array = isinstance(types, str) and len(sizes) <= _HIGHEST_RANK
            elements = prod(sizes) if is_array else None
            shape = self._parsed[content] = Shape(_json(sizes), _json(types), elements)
        return shape

    def _parts(self, content: bytes, depth: int) -> tuple[list[Any], Any]:
        shape = _parsed("ShapeProto", content)
        if shape.element_type != _TUPLE:
            return list(shape.dimensions), _ELEMENT_TYPES.get(shape.element_type, "unknown")
        inner = shape.tuple_shapes if depth < _DEEPEST else ()
        parts = [self._parts(part, depth + 1) for part in inner]
        return [size for size, _ in parts], [kind for _, kind in parts]


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def attributes(instruction: Instruction) -> tuple[dict[str, Any], bool]:
    """Return the attributes of an instruction besides its shapes, and whether some are lost.

    A library call's options are in ``backend_config``, a JSON object whose integers may be text and
    whose zeros are omitted; calls of other libraries have text of their own. Raises ``WireError``.
    """
    attributes_read: dict[str, Any] = {"kind": instruction.kind} if instruction.kind else {}
    if instruction.window is not None:
        dimensions = _parsed("Window", instruction.window).dimensions
        attributes_read["window"] = {
            name.removeprefix("window_") if name == "window_reversal" else name: [
                getattr(dimension, name) for dimension in dimensions
            ]
            for name in _MESSAGES["WindowDimension"]
        }
    if instruction.convolution is not None:
        numbers = _parsed("ConvolutionDimensionNumbers", instruction.convolution)
        fields = _MESSAGES["ConvolutionDimensionNumbers"]
        # Single dimensions first, then the lists.
        attributes_read["dimension_numbers"] = {
            name.removesuffix("_dimensions").removesuffix("_dimension"): (
                list(getattr(numbers, name)) if isinstance(kind, list) else getattr(numbers, name)
            )
            for repeated in (False, True)
            for name, (_, kind) in fields.items()
            if isinstance(kind, list) is repeated
        }
        attributes_read["feature_group_count"] = instruction.feature_groups
        attributes_read["batch_group_count"] = instruction.batch_groups
    if instruction.dot is not None:
        numbers = _parsed("DotDimensionNumbers", instruction.dot)
        attributes_read |= {name: list(getattr(numbers, f"{name}_dimensions")) for name in _DOT}
    has_options = instruction.opcode == "while" or instruction.target
    if not has_options or not instruction.config.lstrip().startswith(b"{"):
        return attributes_read, False
    if len(instruction.config) > _CONFIG_LIMIT:
        return attributes_read, True
    try:
        config: Config = msgspec.json.decode(instruction.config, type=dict)
    except UNDECODABLE:
        return attributes_read, True
    return attributes_read | _configured(config), False


def _configured(config: Config) -> dict[str, Any]:
    if trips := _whole(_at(config, "known_trip_count", "n")):
        return {"trip_count": trips}
    if isinstance(gemm := _at(config, "gemm_backend_config", "dot_dimension_numbers"), dict):
        return {name: _wholes(gemm.get(f"{name}_dimensions")) for name in _DOT}
    if isinstance(kernel := _at(config, "onednn_conv_config", "kernel", "filter"), dict):
        return {
            "dimension_numbers": {
                # oneDNN's configuration counts these from 0 and the spatial ones from 1.
                "kernel_input_feature": _whole(kernel.get("input_feature_dim")),
                "kernel_output_feature": _whole(kernel.get("output_feature_dim")),
                "kernel_spatial": [size - 1 for size in _wholes(kernel.get("spatial_dims"))],
            },
            "feature_group_count": _whole(_at(config, "onednn_conv_config", "feature_groups")) or 1,
        }
    if isinstance(product := config.get("onednn_matmul_config"), dict):
        return {name: product.get(name) is True for name in ("transpose_a", "transpose_b")}
    return {}


def _at(config: Config, *path: str) -> Any:
    value: Any = config
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _whole(value: Any) -> int:
    """Return an integer, which protobuf's JSON may write as text; 0 for other values."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _wholes(value: Any) -> list[int]:
    return [_whole(element) for element in value] if isinstance(value, list) else []

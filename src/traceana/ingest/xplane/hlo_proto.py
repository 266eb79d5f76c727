"""Compiled programs of XLA, from the wire into plain records.

Field numbers are those of ``hlo.proto`` and ``xla_data.proto`` in openxla/xla: HloProto
{hlo_module 1}; HloModuleProto {computations 3, entry_computation_id 6}; HloComputationProto
{instructions 2, id 5, root_id 6}; HloInstructionProto {name 1, opcode 2, shape 3, metadata 7,
fusion_kind 11, window 15, convolution_dimension_numbers 16, custom_call_target 28,
dot_dimension_numbers 30, id 35, operand_ids 36, called_computation_ids 38, backend_config 43,
feature_group_count 50, batch_group_count 58}; OpMetadata {op_name 2}.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import msgspec

from traceana.ingest.xplane.wire import LENGTH, VARINT, Buffer, Field, fields, packed, text

_DEEPEST: Final = 16
"""Tuples within tuples; what lies deeper is shown as empty."""

_HIGHEST_RANK: Final = 64
"""Of arrays whose elements are counted: a product of a million sizes takes hours."""

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

_WINDOW_FIELDS: Final = {
    1: "size",
    2: "stride",
    3: "padding_low",
    4: "padding_high",
    5: "window_dilation",
    6: "base_dilation",
    7: "reversal",
}

_CONVOLUTION_FIELDS: Final = {
    3: "kernel_input_feature",
    4: "kernel_output_feature",
    7: "input_batch",
    8: "input_feature",
    9: "output_batch",
    10: "output_feature",
}

_CONVOLUTION_LISTS: Final = {6: "kernel_spatial", 11: "input_spatial", 12: "output_spatial"}
_DOT_FIELDS: Final = {1: "lhs_contracting", 2: "rhs_contracting", 3: "lhs_batch", 4: "rhs_batch"}

_CONFIG_LIMIT: Final = 1 << 16
"""Bytes of the longest configuration that is looked into."""

Config = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """``sizes`` and ``types`` are JSON text: of an array ``[4,3]`` and ``"f32"``, of a tuple a list
    of those. ``elements`` is the number of an array's, None of a tuple.
    """

    sizes: str
    types: str
    elements: int | None = None


UNKNOWN: Final = Shape("null", "null")


@dataclass(slots=True)
class Instruction:
    """One instruction; what only few have is left in the file (:class:`Field`) until asked for."""

    name: str = ""
    opcode: str = ""
    shape: Shape = UNKNOWN
    scope: str = ""
    number: int = 0
    operands: tuple[int, ...] = ()
    called: tuple[int, ...] = ()
    target: str = ""
    kind: str = ""
    feature_groups: int = 1
    batch_groups: int = 1
    window: Field | None = None
    convolution: Field | None = None
    dot: Field | None = None
    config: Field | None = None


@dataclass(slots=True)
class Computation:
    """A function of the program; instructions stand behind those that they use."""

    number: int = 0
    root: int = 0
    instructions: list[Instruction] = field(default_factory=list)


@dataclass(slots=True)
class Module:
    """A program: ``entry`` is the number of the computation that runs."""

    entry: int = 0
    computations: list[Computation] = field(default_factory=list)


def read_module(buffer: Buffer, proto: Field) -> Module:
    """Read an HloProto.

    Raises :class:`~traceana.ingest.xplane.wire.WireError` where it is none.
    """
    module = Module()
    shapes = Shapes(buffer)
    for part in fields(buffer, proto.start, proto.end):
        if part.number == 1 and part.wire == LENGTH:
            for inner in fields(buffer, part.start, part.end):
                if inner.number == 3 and inner.wire == LENGTH:
                    module.computations.append(_computation(buffer, inner, shapes))
                elif inner.number == 6 and inner.wire == VARINT:
                    module.entry = inner.signed
    return module


def _computation(buffer: Buffer, whole: Field, shapes: Shapes) -> Computation:
    found = Computation()
    for part in fields(buffer, whole.start, whole.end):
        match part.number, part.wire:
            case (2, 2):
                found.instructions.append(_instruction(buffer, part, shapes))
            case (5, 0):
                found.number = part.signed
            case (6, 0):
                found.root = part.signed
    return found


def _instruction(buffer: Buffer, whole: Field, shapes: Shapes) -> Instruction:
    found = Instruction()
    for part in fields(buffer, whole.start, whole.end):
        match part.number, part.wire:
            case (1, 2):
                found.name = text(buffer, part)
            case (2, 2):
                found.opcode = text(buffer, part)
            case (3, 2):
                found.shape = shapes.of(part)
            case (7, 2):
                for inner in fields(buffer, part.start, part.end):
                    if inner.number == 2 and inner.wire == LENGTH:
                        found.scope = text(buffer, inner)
            case (11, 2):
                found.kind = text(buffer, part)
            case (15, 2):
                found.window = part
            case (16, 2):
                found.convolution = part
            case (28, 2):
                found.target = text(buffer, part)
            case (30, 2):
                found.dot = part
            case (35, 0):
                found.number = part.signed
            case (36, _):
                found.operands = (*found.operands, *integers(buffer, part))
            case (38, _):
                found.called = (*found.called, *integers(buffer, part))
            case (43, 2):
                found.config = part
            case (50, 0):
                found.feature_groups = part.signed
            case (58, 0):
                found.batch_groups = part.signed
    return found


def integers(buffer: Buffer, part: Field) -> list[int]:
    """Return the integers of a repeated field, which may be packed or stand one by one."""
    if part.wire == VARINT:
        return [part.signed]
    return packed(buffer, part) if part.wire == LENGTH else []


class Shapes:
    """Reads shapes; equal bytes, of which a program has many, are read once."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._known: dict[bytes, Shape] = {}

    def of(self, whole: Field) -> Shape:
        """Return a shape; raises ``WireError`` where it is none."""
        key = self._buffer.data[whole.start : whole.end].tobytes()
        if (found := self._known.get(key)) is None:
            sizes, types = self._parts(whole, 0)
            counted = isinstance(types, str) and len(sizes) <= _HIGHEST_RANK
            elements = prod(sizes) if counted else None
            found = Shape(_json(sizes), _json(types), elements)
            self._known[key] = found
        return found

    def _parts(self, whole: Field, depth: int) -> tuple[list[Any], Any]:
        number, sizes = 0, []
        parts: list[tuple[list[Any], Any]] = []
        for part in fields(self._buffer, whole.start, whole.end):
            match part.number, part.wire:
                case (2, 0):
                    number = part.value
                case (3, 0):
                    sizes.append(part.signed)
                case (3, 2):
                    sizes += packed(self._buffer, part)
                case (4, 2) if depth < _DEEPEST:
                    parts.append(self._parts(part, depth + 1))
        if number == _TUPLE:
            return [size for size, _ in parts], [kind for _, kind in parts]
        return sizes, _ELEMENT_TYPES.get(number, "unknown")


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def attributes(buffer: Buffer, of: Instruction) -> dict[str, Any]:
    """Return the attributes of an instruction, empty where it has none that are read.

    Raises ``WireError`` where one is no message.
    """
    found: dict[str, Any] = {"kind": of.kind} if of.kind else {}
    if of.window is not None:
        found["window"] = _window(buffer, of.window)
    if of.convolution is not None:
        found["dimension_numbers"] = _convolution(buffer, of.convolution)
        found["feature_group_count"] = of.feature_groups
        found["batch_group_count"] = of.batch_groups
    if of.dot is not None:
        found |= _dot(buffer, of.dot)
    if of.config is not None and (of.opcode == "while" or of.target):
        found |= _configured(_config(buffer, of.config))
    return found


def _window(buffer: Buffer, whole: Field) -> dict[str, list[int]]:
    window: dict[str, list[int]] = {name: [] for name in _WINDOW_FIELDS.values()}
    for dimension in fields(buffer, whole.start, whole.end):
        values = dict.fromkeys(_WINDOW_FIELDS, 0) | {5: 1, 6: 1}
        for part in fields(buffer, dimension.start, dimension.end):
            if part.number in _WINDOW_FIELDS and part.wire == VARINT:
                values[part.number] = part.signed
        for number, name in _WINDOW_FIELDS.items():
            window[name].append(values[number])
    return window


def _convolution(buffer: Buffer, whole: Field) -> dict[str, int | list[int]]:
    single = dict.fromkeys(_CONVOLUTION_FIELDS.values(), 0)
    several: dict[str, list[int]] = {name: [] for name in _CONVOLUTION_LISTS.values()}
    for part in fields(buffer, whole.start, whole.end):
        if part.number in _CONVOLUTION_FIELDS and part.wire == VARINT:
            single[_CONVOLUTION_FIELDS[part.number]] = part.signed
        elif part.number in _CONVOLUTION_LISTS:
            several[_CONVOLUTION_LISTS[part.number]] += integers(buffer, part)
    return {**single, **several}


def _dot(buffer: Buffer, whole: Field) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {name: [] for name in _DOT_FIELDS.values()}
    for part in fields(buffer, whole.start, whole.end):
        if part.number in _DOT_FIELDS:
            found[_DOT_FIELDS[part.number]] += integers(buffer, part)
    return found


def _config(buffer: Buffer, place: Field) -> Config:
    if place.end - place.start > _CONFIG_LIMIT:
        return {}
    try:
        found = msgspec.json.decode(buffer.data[place.start : place.end].tobytes())
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def _configured(config: Config) -> dict[str, Any]:
    if trips := _whole(_at(config, "known_trip_count", "n")):
        return {"trip_count": trips}
    if isinstance(gemm := _at(config, "gemm_backend_config", "dot_dimension_numbers"), dict):
        return {
            name: _wholes(gemm.get(f"{name}_dimensions"))
            for name in ("lhs_contracting", "rhs_contracting", "lhs_batch", "rhs_batch")
        }
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
    """Return an integer, which protobuf's JSON may write as text; 0 where it is none."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _wholes(value: Any) -> list[int]:
    return [_whole(each) for each in value] if isinstance(value, list) else []

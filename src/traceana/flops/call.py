"""One call of an operator, or one instruction of a compiled program, as a trace records it."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Annotated, Any, Final

import msgspec
from msgspec.structs import replace

from traceana.flops.cost import Operand, Shape, UncountableError

_LONGEST_TEXT: Final = 1 << 20
_MOST_INPUTS: Final = 4096
_MOST_DIMENSIONS: Final = 64
_LARGEST_EXTENT: Final = 2**48
_LONGEST_SCALAR: Final = 512

_Extent = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST_EXTENT)]
# A list of extents is a tensor, a list of such lists a TensorList.
_Entry = Annotated[
    list[_Extent | Annotated[list[_Extent], msgspec.Meta(max_length=_MOST_DIMENSIONS)]],
    msgspec.Meta(max_length=_MOST_INPUTS),
]
Extents = Annotated[
    list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(max_length=_MOST_DIMENSIONS)
]
_shapes = msgspec.json.Decoder(Annotated[list[_Entry], msgspec.Meta(max_length=_MOST_INPUTS)])
_texts = msgspec.json.Decoder(Annotated[list[str], msgspec.Meta(max_length=_MOST_INPUTS)])

Entry = Shape | tuple[Shape, ...]


class Call(msgspec.Struct, frozen=True):
    """The inputs of one call, by position.

    ``shapes``: extents of each input, ``()`` for other types; ``types`` and ``scalars`` are
    empty where the trace did not record them. Recorded outside the call are ``output``, the shape
    of its result; ``wanted``, the computed gradients (input, weight, bias); ``training``, whether
    statistics of the batch are used; and ``window``, the pooling window (or the number of channels
    of a local response normalization) where it is an attribute.
    """

    name: str
    shapes: tuple[Entry, ...]
    types: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()
    output: Shape | None = None
    wanted: tuple[bool, ...] | None = None
    training: bool | None = None
    window: Shape | None = None

    @classmethod
    def decode(
        cls,
        name: str,
        input_shapes: str | None,
        input_types: str | None = None,
        inputs: str | None = None,
        *,
        output: Shape | None = None,
        wanted: tuple[bool, ...] | None = None,
    ) -> Call:
        """Return the call of a row of ``ops``, decoded from its JSON texts.

        Raises :class:`UncountableError` where the shapes are missing or are not lists of
        extents. Types and scalars that cannot be decoded count as not recorded.
        """
        if input_shapes is None:
            raise UncountableError("shapes not recorded")
        if len(input_shapes) > _LONGEST_TEXT:
            raise UncountableError("shapes too long to parse")
        try:
            shapes = _shapes.decode(input_shapes)
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            raise UncountableError("malformed shapes") from None
        entries = tuple(_entry(one) for one in shapes)
        return cls(name, entries, _strings(input_types), _strings(inputs), output, wanted)

    def inputs(self, chosen: slice) -> Call:
        """Return the call with only the ``chosen`` inputs."""
        return replace(
            self,
            shapes=self.shapes[chosen],
            types=self.types[chosen],
            scalars=self.scalars[chosen],
        )

    def without(self, position: int) -> Call:
        """Return the call without one of its inputs."""

        def rest(values: tuple[Any, ...]) -> tuple[Any, ...]:
            return (*values[:position], *values[position + 1 :])

        return replace(
            self, shapes=rest(self.shapes), types=rest(self.types), scalars=rest(self.scalars)
        )

    def has(self, position: int) -> bool:
        """Return whether the input is a given tensor."""
        if not 0 <= position < len(self.shapes):
            return False
        if position < len(self.types):
            return is_tensor(self.types[position])
        # Without types, a tensor without dimensions looks like a missing one.
        return bool(self.shapes[position])

    def shape(self, position: int, *ranks: int) -> Shape:
        """Return the extents of a tensor, of one of ``ranks`` dimensions if any are given."""
        if not self.has(position):
            raise UncountableError(f"input {position}: no shape")
        entry = self.shapes[position]
        if any(isinstance(extent, tuple) for extent in entry):
            raise UncountableError(f"input {position}: list of tensors")
        shape: Shape = tuple(extent for extent in entry if isinstance(extent, int))
        if ranks and len(shape) not in ranks:
            raise UncountableError(f"input {position}: unexpected rank {len(shape)}")
        return shape

    def tensor_list(self, position: int) -> tuple[Shape, ...]:
        """Return the extents of each tensor of a TensorList."""
        entry = self.shapes[position] if position < len(self.shapes) else ()
        if not entry or not all(isinstance(extent, tuple) for extent in entry):
            raise UncountableError(f"input {position}: shapes of the tensor list not recorded")
        return tuple(shape for shape in entry if isinstance(shape, tuple))

    def tensors(self) -> tuple[int, ...]:
        """Return the positions of the given tensors."""
        return tuple(position for position in range(len(self.shapes)) if self.has(position))

    def elements(self, position: int) -> int:
        """Return the number of elements of a tensor."""
        return prod(self.shape(position))

    def size(self, position: int) -> int | None:
        """Return the bytes of an element of a tensor; ``None`` where its type is unknown."""
        return element_size(self.types[position]) if position < len(self.types) else None

    def values(self, position: int) -> int:
        """Return how many values an element of a tensor has: two of FP4."""
        known = position < len(self.types)
        return 2 if known and plain(self.types[position]) == "Float4_e2m1fn_x2" else 1

    def operand(self, position: int) -> Operand | None:
        """Return a tensor as an operand; ``None`` where it was not given."""
        if not self.has(position):
            return None
        return Operand.of(self.shape(position), self.size(position))

    def scalar(self, position: int) -> str:
        """Return the text of a scalar input."""
        text = self.scalars[position] if 0 <= position < len(self.scalars) else ""
        if not text or len(text) > _LONGEST_SCALAR:
            raise UncountableError(f"input {position}: value not recorded")
        return text

    def integers(self, position: int) -> tuple[int, ...]:
        """Return a list of integers, such as a stride: ``[2, 2]``, or one integer as a list."""
        parts = self.scalar(position).strip("[]").split(",")
        try:
            values = tuple(int(part) for part in parts if part.strip())
        except ValueError:
            raise UncountableError(f"input {position}: not a list of integers") from None
        if any(abs(value) > _LARGEST_EXTENT for value in values):
            raise UncountableError(f"input {position}: integer out of range")
        return values

    def extents(self, position: int, *ranks: int) -> Shape:
        """Return extents that are given as integers, of one of ``ranks`` dimensions if any are."""
        values = self.integers(position)
        if any(value < 0 for value in values) or (ranks and len(values) not in ranks):
            raise UncountableError(f"input {position}: not a shape")
        return values

    def result(self, *ranks: int) -> Shape:
        """Return the shape of the result, of one of ``ranks`` dimensions if any are given."""
        if self.output is None:
            raise UncountableError("output shape not recorded")
        if ranks and len(self.output) not in ranks:
            raise UncountableError(f"output: unexpected rank {len(self.output)}")
        return self.output

    def integer(self, position: int) -> int:
        """Return one integer."""
        values = self.integers(position)
        if len(values) != 1:
            raise UncountableError(f"input {position}: not an integer")
        return values[0]

    def number(self, position: int) -> float:
        """Return one number."""
        try:
            return float(self.scalar(position))
        except ValueError:
            raise UncountableError(f"input {position}: not a number") from None

    def flags(self, position: int) -> tuple[bool, ...]:
        """Return a list of flags, such as an output mask: ``[True, True, False]``."""
        words = [part.strip() for part in self.scalar(position).strip("[]").split(",")]
        if not set(words) <= {"True", "False", "1", "0"}:
            raise UncountableError(f"input {position}: not a list of booleans")
        return tuple(word in ("True", "1") for word in words)

    def flag(self, position: int) -> bool:
        """Return one flag."""
        (first, *others) = self.flags(position)
        if others:
            raise UncountableError(f"input {position}: not a boolean")
        return first


def _entry(entry: list[int | list[int]]) -> Entry:
    nested = tuple(tuple(one) for one in entry if isinstance(one, list))
    plain = tuple(one for one in entry if isinstance(one, int))
    if nested and plain:
        raise UncountableError("malformed shapes")
    if len(plain) > _MOST_DIMENSIONS:
        raise UncountableError("a shape has too many dimensions")
    return nested or plain


def _strings(text: str | None) -> tuple[str, ...]:
    if text is None or len(text) > _LONGEST_TEXT:
        return ()
    try:
        return tuple(_texts.decode(text))
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return ()


# Element types by their names in traces.

_BITS: Final[dict[str, int]] = {
    # Kineto prints C++ names, TensorFlow its own, and older PyTorch "long" for "long int".
    "bool": 8,
    "unsigned char": 8,
    "uint8": 8,
    "signed char": 8,
    "char": 8,
    "int8": 8,
    "short": 16,
    "short int": 16,
    "int16": 16,
    "unsigned short": 16,
    "uint16": 16,
    "int": 32,
    "int32": 32,
    "unsigned int": 32,
    "uint32": 32,
    "long": 64,
    "long int": 64,
    "long long": 64,
    "int64": 64,
    "unsigned long": 64,
    "uint64": 64,
    # Two values in an element.
    "Float4_e2m1fn_x2": 8,
    "Float8_e4m3fn": 8,
    "Float8_e4m3fnuz": 8,
    "Float8_e5m2": 8,
    "Float8_e5m2fnuz": 8,
    "Half": 16,
    "half": 16,
    "float16": 16,
    "BFloat16": 16,
    "bfloat16": 16,
    "float": 32,
    "float32": 32,
    "double": 64,
    "float64": 64,
    "complex<Half>": 32,
    "complex<float>": 64,
    "complex64": 64,
    "complex<double>": 128,
    "complex128": 128,
}
_ORDER: Final = {name: position for position, name in enumerate(_BITS)}
_FIRST_FLOATING: Final = _ORDER["Float4_e2m1fn_x2"]
_QUALIFIERS: Final = ("struct ", "class ", "c10::", "at::")


def plain(name: str) -> str:
    """Return a type's name without C++ qualifiers: ``c10::BFloat16`` is ``BFloat16``."""
    for qualifier in _QUALIFIERS:
        name = name.removeprefix(qualifier)
    return name


def element_size(name: str) -> int | None:
    """Return the bytes of one element; ``None`` if unknown."""
    bits = _BITS.get(plain(name))
    return None if bits is None else bits // 8


def is_tensor(name: str) -> bool:
    """Return whether an input of this type is a tensor."""
    return plain(name) in _BITS


def is_complex(name: str) -> bool:
    """Return whether the elements of this type are complex numbers."""
    return plain(name).startswith("complex")


def promoted(names: Iterable[str]) -> str | None:
    """Return the result type of an arithmetic operation on ``names``; ``None`` if one is unknown.

    It is the wider of two types; a floating type takes precedence over an integer one. float16 with
    bfloat16 gives ``float``, as in PyTorch.
    """
    widest: str | None = None
    for name in map(plain, names):
        if name not in _ORDER:
            return None
        halves = {"Half", "BFloat16"}
        if widest in halves and name in halves and name != widest:
            widest = "float"
        elif widest is None or _ORDER[name] > _ORDER[widest]:
            widest = name
    return widest


def floating(name: str) -> str:
    """Return ``name``, or ``float`` for an integer type: the type of quotients and exponentials."""
    name = plain(name)
    return name if _ORDER.get(name, 0) >= _FIRST_FLOATING else "float"


# Instructions of a compiled program (XLA).


class Window(msgspec.Struct):
    """A window by dimension; see ``attributes`` in :mod:`traceana.trace.schema`."""

    size: Extents
    stride: Extents
    padding_low: Annotated[list[int], msgspec.Meta(max_length=64)]
    base_dilation: Extents
    window_dilation: Extents
    reversal: Extents = []


class DimensionNumbers(msgspec.Struct):
    """The meaning of the dimensions of a convolution's tensors."""

    kernel_input_feature: int
    kernel_output_feature: int
    input_batch: int = 0
    input_feature: int = 0
    output_batch: int = 0
    output_feature: int = 0
    input_spatial: Extents = []
    kernel_spatial: Extents = []
    output_spatial: Extents = []


class Attributes(msgspec.Struct):
    """The ``attributes`` that formulas need."""

    window: Window | None = None
    dimension_numbers: DimensionNumbers | None = None
    lhs_contracting: Extents | None = None


class Contraction(msgspec.Struct, frozen=True):
    """One instruction: its first two operands and its first result."""

    target: str
    left: Shape
    right: Shape
    output: Shape
    attributes: Attributes


def decoded_instruction(
    target: str,
    input_shapes: str | None,
    output_shape: str | None,
    output_type: str | None,
    attributes: str | None,
) -> Contraction:
    """Return the operands and result of a row of ``instructions``; raises ``UncountableError``."""
    texts = (input_shapes, output_shape)
    if any(text is None or len(text) > _LONGEST_TEXT for text in texts):
        raise UncountableError("no shapes")
    try:
        inputs: list[Any] = msgspec.json.decode(input_shapes or "", type=list)
        output: Any = msgspec.json.decode(output_shape or "", type=list)
        if (output_type or "").startswith("["):
            output = next(iter(output), None)
        left, right, result = msgspec.convert([*inputs[:2], output], list[Extents])
        decoded = msgspec.json.decode(attributes or "{}", type=Attributes)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        raise UncountableError("the shapes are not those of two arrays") from None
    return Contraction(target, tuple(left), tuple(right), tuple(result), decoded)


def picked(shape: Shape, dimensions: list[int]) -> list[int]:
    if not all(0 <= dimension < len(shape) for dimension in dimensions):
        raise UncountableError("a dimension that the array does not have")
    return [shape[dimension] for dimension in dimensions]

"""A call of an operator as a trace records it, and what a formula returns: its cost or a refusal.

One multiply-accumulate is two floating-point operations. Bytes are compulsory: each operand is read
once and each result written once, as with an unlimited cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

Shape: TypeAlias = tuple[int, ...]

Part = Literal["forward", "backward", "dgrad", "wgrad", "bias_grad"]
"""Parts of a layer's work: ``dgrad`` is the gradient of its input, ``wgrad`` of its weight,
``bias_grad`` of its bias; ``backward`` is the gradient of an operator without a weight."""

LARGEST: Final = 2**63 - 1
"""Counts are int64 columns."""
BEYOND: Final = "FLOP count exceeds 64 bits"


PRODUCT: Final = r"^(?:convolution|recurrent)\.(?:forward|dgrad|wgrad)$|^matmul$|^attention\.|\*"
"""Formulas of products: of convolutions, matrices, attention and recurrent layers, and a user's."""


class UncountableError(Exception):
    """The cost of a call cannot be computed; the message has the reason.

    Raised in formulas and caught by their callers: users never see it.
    """


class Refusal(msgspec.Struct, frozen=True):
    """The reason without a cost: one line for a table, without text from the trace."""

    reason: str


class Cost(msgspec.Struct, frozen=True):
    """The FLOPs and compulsory bytes of a call, or of a part of it.

    ``flops`` counts a multiply-accumulate as two. ``bytes`` is ``None`` where an element's size or
    an operand's shape is unknown. ``formula`` is the key of its derivation in
    :data:`traceana.flops.registry.FORMULAS`. ``skipped`` is the part of ``flops`` that a mask makes
    unnecessary, ``None`` where the mask is unknown. ``product`` are batch, m, n and k of a matrix
    product.
    """

    kind: str
    part: Part
    flops: int
    bytes: int | None
    formula: str
    skipped: int | None = 0
    product: tuple[int, int, int, int] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.flops <= LARGEST or not 0 <= (self.bytes or 0) <= LARGEST:
            raise UncountableError(BEYOND)


class Operand(msgspec.Struct, frozen=True):
    """A tensor that is read or written: number of elements, and bytes of each.

    ``elements`` is ``None`` where its shape is unknown, ``size`` where its type is unknown.
    """

    elements: int | None
    size: int | None


def compulsory(*operands: Operand | None) -> int | None:
    """Return the bytes of all given ``operands``, ``None`` if any of them is unknown."""
    total = 0
    for operand in operands:
        if operand is None or operand.elements == 0:
            continue
        if operand.elements is None or operand.size is None:
            return None
        total += operand.elements * operand.size
    return total


def broadcast(*shapes: Shape) -> Shape:
    """Return the common shape, by numpy's rules; raises :class:`UncountableError` without one."""
    rank = max((len(shape) for shape in shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for position, extent in enumerate(shape, rank - len(shape)):
            if result[position] == 1:
                result[position] = extent
            elif extent not in (1, result[position]):
                raise UncountableError("operand shapes do not broadcast")
    return tuple(result)


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
_shapes = msgspec.json.Decoder(Annotated[list[_Entry], msgspec.Meta(max_length=_MOST_INPUTS)])
_texts = msgspec.json.Decoder(Annotated[list[str], msgspec.Meta(max_length=_MOST_INPUTS)])

Entry = Shape | tuple[Shape, ...]
Place: TypeAlias = int | str
"""The position of an input, or its name among the operands of the operator's row."""


class Call(msgspec.Struct, frozen=True):
    """The inputs of one call, by position, or by name where ``at`` has the positions.

    ``formula`` is the function that counts it: it and ``at`` are of the operator's row.

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
    formula: str = ""
    at: Mapping[str, int] = msgspec.field(default_factory=dict)

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
        entries = tuple(_entry(shape) for shape in shapes)
        return cls(name, entries, _strings(input_types), _strings(inputs), output, wanted)

    def inputs(self, chosen: slice) -> Call:
        """Return the call with only the ``chosen`` inputs."""
        return replace(
            self,
            shapes=self.shapes[chosen],
            types=self.types[chosen],
            scalars=self.scalars[chosen],
        )

    def position(self, place: Place) -> int:
        """Return the position of an input, -1 if the operator does not have it."""
        return self.at.get(place, -1) if isinstance(place, str) else place

    def has(self, place: Place) -> bool:
        """Return whether the input is a given tensor."""
        position = self.position(place)
        if not 0 <= position < len(self.shapes):
            return False
        if position < len(self.types):
            return is_tensor(self.types[position])
        # Without types, a tensor without dimensions looks like a missing one.
        return bool(self.shapes[position])

    def shape(self, place: Place, *ranks: int) -> Shape:
        """Return the extents of a tensor. Its number of dimensions is in ``ranks``, if any are
        given."""
        position = self.position(place)
        if not self.has(position):
            raise UncountableError(f"input {position}: no shape")
        entry = self.shapes[position]
        if any(isinstance(extent, tuple) for extent in entry):
            raise UncountableError(f"input {position}: list of tensors")
        shape: Shape = tuple(extent for extent in entry if isinstance(extent, int))
        if ranks and len(shape) not in ranks:
            raise UncountableError(f"input {position}: unexpected rank {len(shape)}")
        return shape

    def tensor_list(self, place: Place) -> tuple[Shape, ...]:
        """Return the extents of each tensor of a TensorList."""
        position = self.position(place)
        entry = self.shapes[position] if 0 <= position < len(self.shapes) else ()
        if not entry or not all(isinstance(extent, tuple) for extent in entry):
            raise UncountableError(f"input {position}: shapes of the tensor list not recorded")
        return tuple(shape for shape in entry if isinstance(shape, tuple))

    def tensors(self) -> tuple[int, ...]:
        """Return the positions of the given tensors."""
        return tuple(position for position in range(len(self.shapes)) if self.has(position))

    def elements(self, place: Place) -> int:
        """Return the number of elements of a tensor."""
        return prod(self.shape(place))

    def size(self, place: Place) -> int | None:
        """Return the bytes of an element of a tensor; ``None`` where its type is unknown."""
        position = self.position(place)
        has_type = 0 <= position < len(self.types)
        return element_size(self.types[position]) if has_type else None

    def values(self, place: Place) -> int:
        """Return how many values an element of a tensor has: two of FP4."""
        position = self.position(place)
        has_type = position < len(self.types)
        return 2 if has_type and plain(self.types[position]) == "Float4_e2m1fn_x2" else 1

    def operand(self, place: Place) -> Operand | None:
        """Return a tensor as an operand; ``None`` where it was not given."""
        if not self.has(place):
            return None
        return Operand(self.elements(place), self.size(place))

    def scalar(self, place: Place) -> str:
        """Return the text of a scalar input."""
        position = self.position(place)
        text = self.scalars[position] if 0 <= position < len(self.scalars) else ""
        if not text or len(text) > _LONGEST_SCALAR:
            raise UncountableError(f"input {position}: value not recorded")
        return text

    def integers(self, place: Place) -> tuple[int, ...]:
        """Return a list of integers, such as a stride: ``[2, 2]``, or one integer as a list."""
        position = self.position(place)
        parts = self.scalar(position).strip("[]").split(",")
        try:
            values = tuple(int(part) for part in parts if part.strip())
        except ValueError:
            raise UncountableError(f"input {position}: not a list of integers") from None
        if any(abs(value) > _LARGEST_EXTENT for value in values):
            raise UncountableError(f"input {position}: integer out of range")
        return values

    def extents(self, place: Place, *ranks: int) -> Shape:
        """Return extents that are given as integers. Their number is in ``ranks``, if any are
        given."""
        position = self.position(place)
        values = self.integers(position)
        if any(value < 0 for value in values) or (ranks and len(values) not in ranks):
            raise UncountableError(f"input {position}: not a shape")
        return values

    def result(self, *ranks: int) -> Shape:
        """Return the shape of the result. Its number of dimensions is in ``ranks``, if any are
        given."""
        if self.output is None:
            raise UncountableError("output shape not recorded")
        if ranks and len(self.output) not in ranks:
            raise UncountableError(f"output: unexpected rank {len(self.output)}")
        return self.output

    def integer(self, place: Place) -> int:
        """Return one integer."""
        position = self.position(place)
        values = self.integers(position)
        if len(values) != 1:
            raise UncountableError(f"input {position}: not an integer")
        return values[0]

    def number(self, place: Place) -> float:
        """Return one number."""
        position = self.position(place)
        try:
            return float(self.scalar(position))
        except ValueError:
            raise UncountableError(f"input {position}: not a number") from None

    def flags(self, place: Place) -> tuple[bool, ...]:
        """Return a list of flags, such as an output mask: ``[True, True, False]``."""
        position = self.position(place)
        words = [part.strip() for part in self.scalar(position).strip("[]").split(",")]
        if not set(words) <= {"True", "False", "1", "0"}:
            raise UncountableError(f"input {position}: not a list of booleans")
        return tuple(word in ("True", "1") for word in words)

    def flag(self, place: Place) -> bool:
        """Return one flag."""
        (first, *others) = self.flags(place)
        if others:
            raise UncountableError(f"input {self.position(place)}: not a boolean")
        return first


def _entry(entry: list[int | list[int]]) -> Entry:
    nested = tuple(tuple(shape) for shape in entry if isinstance(shape, list))
    plain = tuple(extent for extent in entry if isinstance(extent, int))
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

# Kineto prints C++ names, TensorFlow its own, and older PyTorch "long" for "long int".
_SIZES: Final[dict[str, int]] = {
    name: size
    for size, names in (
        (1, ("bool", "unsigned char", "uint8", "signed char", "char", "int8")),
        (2, ("short", "short int", "int16", "unsigned short", "uint16")),
        (4, ("int", "int32", "unsigned int", "uint32")),
        (8, ("long", "long int", "long long", "int64", "unsigned long", "uint64")),
        # Two values in an element of FP4.
        (1, ("Float4_e2m1fn_x2", "Float8_e4m3fn", "Float8_e4m3fnuz")),
        (1, ("Float8_e5m2", "Float8_e5m2fnuz")),
        (2, ("Half", "half", "float16", "BFloat16", "bfloat16")),
        (4, ("float", "float32")),
        (8, ("double", "float64")),
        (4, ("complex<Half>",)),
        (8, ("complex<float>", "complex64")),
        (16, ("complex<double>", "complex128")),
    )
    for name in names
}
"""Bytes of an element by type, in the order of promotion."""
_ORDER: Final = {name: position for position, name in enumerate(_SIZES)}
_FIRST_FLOATING: Final = _ORDER["Float4_e2m1fn_x2"]
_QUALIFIERS: Final = ("struct ", "class ", "c10::", "at::")


def plain(name: str) -> str:
    """Return a type's name without C++ qualifiers: ``c10::BFloat16`` is ``BFloat16``."""
    for qualifier in _QUALIFIERS:
        name = name.removeprefix(qualifier)
    return name


def element_size(name: str) -> int | None:
    """Return the bytes of one element; ``None`` if unknown."""
    return _SIZES.get(plain(name))


def is_tensor(name: str) -> bool:
    """Return whether an input of this type is a tensor."""
    return plain(name) in _SIZES


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

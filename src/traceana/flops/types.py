"""Element types by the names that traces give them: sizes, and which one an operation gives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

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
_FIRST_FLOATING: Final = _ORDER["Float8_e4m3fn"]
_QUALIFIERS: Final = ("struct ", "class ", "c10::", "at::")

NO_TENSOR: Final = frozenset(
    {"", "Scalar", "ScalarList", "GenericList", "Int", "Double", "Bool", "String", "Device"}
)
"""What stands in the place of a type for inputs that are no tensors, or are not given."""


def plain(name: str) -> str:
    """Return a type's name without C++ qualifiers: ``c10::BFloat16`` is ``BFloat16``."""
    for qualifier in _QUALIFIERS:
        name = name.removeprefix(qualifier)
    return name


def element_size(name: str) -> int | None:
    """Return the bytes of one element; ``None`` for a name that is no element type."""
    bits = _BITS.get(plain(name))
    return None if bits is None else bits // 8


def is_tensor(name: str) -> bool:
    """Tell whether an input of this type is a tensor."""
    return plain(name) in _BITS


def promoted(names: Iterable[str]) -> str | None:
    """Return the type that an arithmetic operation on ``names`` gives; ``None`` if one is unknown.

    The wider of two types, and any floating type before any integer one. Half precision of both
    kinds gives ``float``, as in PyTorch.
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
    """Return ``name``, or ``float`` for an integer type: what a quotient or an exponential is."""
    name = plain(name)
    return name if _ORDER.get(name, 0) >= _FIRST_FLOATING else "float"

"""What a model is to be called with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from traceana.errors import BadModelError

DTYPES: Final = (
    *("float16", "bfloat16", "float32", "float64"),
    *("int8", "int16", "int32", "int64", "uint8", "bool"),
)


@dataclass(frozen=True, slots=True)
class Call:
    """The inputs: shapes in the framework's own order of axes, ``names`` for keyword arguments.

    ``dtypes`` are None where the model's own is meant.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str | None, ...]
    names: tuple[str | None, ...]

    def arguments(self, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Split one value an input into positional and keyword arguments."""
        named = list(zip(self.names, values, strict=True))
        return (
            [value for name, value in named if name is None],
            {name: value for name, value in named if name is not None},
        )


def parse_call(input_shape: Any, dtype: Any) -> Call:
    """Read the arguments of :func:`traceana.describe.describe`; raises :class:`BadModelError`."""
    names: tuple[str | None, ...]
    if isinstance(input_shape, Mapping):
        names, shapes = tuple(map(str, input_shape)), list(input_shape.values())
    else:
        several = _is_list(input_shape) and all(_is_list(one) for one in input_shape)
        shapes = list(input_shape) if several else [input_shape]
        names = (None,) * len(shapes)
    if not shapes:
        raise BadModelError("no input shape: give one with the batch first, e.g. (8, 3, 224, 224)")
    dtypes = list(dtype) if _is_list(dtype) else [dtype] * len(shapes)
    if len(dtypes) != len(shapes):
        raise BadModelError(f"{len(dtypes)} dtypes for {len(shapes)} inputs: give one or as many")
    return Call(tuple(map(_shape, shapes)), tuple(map(_dtype, dtypes)), names)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _shape(shape: Any) -> tuple[int, ...]:
    sizes = tuple(shape) if _is_list(shape) else ()
    if not sizes or not all(type(size) is int and size > 0 for size in sizes):
        raise BadModelError(
            f"{shape!r} is no input shape: give positive integers with the batch first, e.g. "
            "(8, 3, 224, 224), or a list of shapes"
        )
    return sizes


def _dtype(dtype: Any) -> str | None:
    if dtype is None:
        return None
    name = str(getattr(dtype, "name", dtype)).removeprefix("torch.")
    if name not in DTYPES:
        raise BadModelError(f"no dtype {name!r}: there are {', '.join(DTYPES)}")
    return name

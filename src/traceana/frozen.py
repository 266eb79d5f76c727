"""Values that callers share, made read-only: properties of a trace, totals, results that are kept.

A frame of polars cannot be read-only. Its clone costs less than a microsecond and shares the
columns, which polars copies before it changes one: whoever hands out a shared frame clones it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Never, TypeVar

import msgspec
import numpy as np
import polars as pl

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


class FrozenDict(dict[K, V]):
    """A dictionary that cannot be changed; msgspec encodes it as any other."""

    def _refuse(self, *_: object, **__: object) -> Never:
        raise TypeError("this dictionary is shared and read-only; change a copy: dict(...)")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to make it again: pickle and copy would set its items."""
        return FrozenDict, (dict(self),)


def frozen_mapping(mapping: Mapping[K, V]) -> FrozenDict[K, V]:
    """Return a read-only copy of ``mapping``, with all that it holds as by :func:`frozen`."""
    if isinstance(mapping, FrozenDict):
        return mapping
    return FrozenDict({key: frozen(value) for key, value in mapping.items()})


def frozen(value: T) -> T:
    """Return ``value`` read-only: lists as tuples, dictionaries as :class:`FrozenDict`.

    Arrays and the fields of structs become read-only in place.
    """
    made: Any = value
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    elif isinstance(value, dict):
        made = frozen_mapping(value)
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        made = type(value)(*map(frozen, value))
    elif isinstance(value, list | tuple):
        made = tuple(map(frozen, value))
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            before = getattr(value, name)
            if (after := frozen(before)) is not before:
                msgspec.structs.force_setattr(value, name, after)
    return made  # type: ignore[no-any-return]


def handed_out(value: T) -> T:
    """Return ``value``, a shared result, with clones of its frames."""
    made: Any = value
    if isinstance(value, pl.DataFrame):
        made = value.clone()
    elif isinstance(value, tuple) and any(isinstance(one, pl.DataFrame) for one in value):
        each = map(handed_out, value)
        made = type(value)(*each) if hasattr(value, "_fields") else tuple(each)
    elif isinstance(value, msgspec.Struct):
        frames = {
            name: one.clone()
            for name in value.__struct_fields__
            if isinstance(one := getattr(value, name), pl.DataFrame)
        }
        made = msgspec.structs.replace(value, **frames) if frames else value
    return made  # type: ignore[no-any-return]

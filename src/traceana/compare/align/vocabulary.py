"""One word for each type of layer, whatever a framework calls it (``types.toml``)."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

_NO_LETTER: Final = re.compile(r"[^a-z0-9]")
_ONEDNN: Final = re.compile(r"^_(?:mkl)(?:native)?(?:fused)?|(?:withbias|eager)$")
"""TensorFlow's marks of operators that oneDNN runs: ``_MklNativeConv2DWithBias``."""


_PART_OF_ANY: Final = "pointwise"
"""Its operators are parts of layers of any kind: a normalization that a framework writes out is
named after one of them."""


class Type(NamedTuple):
    """The word for a type, and the kind of layer that it is; null where it is in no vocabulary."""

    word: str
    kind: str | None


def type_of(written: str | None) -> Type | None:
    """Return the type that ``written`` names: ``Conv2d``, ``conv2d``, ``aten::convolution``.

    A name that is in no vocabulary is its own word; null for none.
    """
    if not written:
        return None
    plain = plain_word(written)
    return _vocabulary().get(plain) or (Type(plain, None) if plain else None)


def plain_word(written: str) -> str:
    """Return letters and digits of the last part of ``written``, in lower case."""
    return _NO_LETTER.sub("", _ONEDNN.sub("", written.rpartition("::")[2].lower()))


@cache
def _vocabulary() -> dict[str, Type]:
    text = files("traceana.compare.align").joinpath("types.toml").read_text(encoding="utf-8")
    return {
        word: Type(type_, None if kind == _PART_OF_ANY else kind)
        for kind, types in tomllib.loads(text).items()
        for type_, words in types.items()
        for word in words
    }

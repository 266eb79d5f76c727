"""What frameworks call one type of layer: the words of ``layer_types.toml``."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

import rtoml

_NO_LETTER: Final = re.compile(r"[^a-z0-9]")
_ONEDNN: Final = re.compile(r"^_(?:mkl)(?:native)?(?:fused)?|(?:withbias|eager)$")
"""TensorFlow's marks of operators that oneDNN runs: ``_MklNativeConv2DWithBias``."""
_PART_OF_ANY: Final = "pointwise"
"""Pointwise operators occur in layers of any kind: a normalization that a framework composes of
them has the name of one of them."""


class Type(NamedTuple):
    """The common word for a type of layer, and its kind; None outside the vocabulary."""

    word: str
    kind: str | None


def type_of(written: str | None) -> Type | None:
    """Return the type of the name ``written``: ``Conv2d``, ``conv2d``, ``aten::convolution``.

    The word of a name outside the vocabulary is the name itself; None without a name.
    """
    if not written:
        return None
    plain = plain_word(written)
    return _vocabulary().get(plain) or (Type(plain, None) if plain else None)


PRODUCT_LAYERS: Final = ("conv", "linear", "attention", "recurrent")
"""Kinds of layers that are convolutions or matrix products."""


def kind_of(written: str) -> str | None:
    """Return the kind of the type ``written``; None outside the vocabulary."""
    known = type_of(written)
    return None if known is None else known.kind


def plain_word(written: str) -> str:
    """Return the letters and digits of the last part of ``written``, in lower case."""
    return _NO_LETTER.sub("", _ONEDNN.sub("", written.rpartition("::")[2].lower()))


@cache
def _vocabulary() -> dict[str, Type]:
    text = files("traceana.vocabulary").joinpath("layer_types.toml").read_text(encoding="utf-8")
    return {
        word: Type(type_, None if kind == _PART_OF_ANY else kind)
        for kind, types in rtoml.loads(text).items()
        for type_, words in types.items()
        for word in words
    }

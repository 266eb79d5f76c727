"""The head of a kernel name: its qualified function, without what surrounds it.

``void at::native::(anonymous namespace)::elementwise_kernel<128, 4, …>(int, …)`` has the head
``at::native::{anon}::elementwise_kernel``. Names differ in their template arguments far more often
than in their heads, and an argument's type must not be mistaken for the kernel's own name, so most
rules look at heads only.
"""

from __future__ import annotations

import re
from typing import Final

import polars as pl

# Spellings of the unnamed namespace: c++filt and CUPTI, nsys, clang, and nvcc's per-file one.
_ANONYMOUS: Final = (
    r"\(anonymous namespace\)|<unnamed>|\(anonymous\)|\{anonymous\}|\{unnamed\}"
    r"|_GLOBAL__N__\w+|_INTERNAL_[0-9a-f]+_\w+"
)
_RETURN_TYPE: Final = (
    r"^(?:(?:static|typename|inline|extern|const) )*"
    r"(?:(?:std|cuda::std)(?:::__\w+)?::enable_if(?:_t)?<.*?>(?:::type)? "
    r"|(?:void|bool|int|unsigned int|float|double|__half)\*? )"
)
_MANGLED: Final = re.compile(r"_Z(?:N[KVr]*|L)?")
_SOURCE_NAME: Final = re.compile(r"([1-9]\d{0,3})|(S[at])|(12_GLOBAL__N_)")


def heads_of(names: pl.Series) -> pl.Series:
    """The heads of ``names``, in the same order."""
    heads = (
        names.str.replace_all(_ANONYMOUS, "{anon}")
        .str.replace(_RETURN_TYPE, "")
        .str.extract(r"(?s)^(.[^<(]*)", 1)
        .str.strip_suffix(".kd")
        .str.strip_chars()
        .fill_null("")
    )
    mangled = names.str.starts_with("_Z")
    if not mangled.any():
        return heads
    decoded = names.filter(mangled).map_elements(mangled_head, return_dtype=pl.String)
    return heads.scatter(mangled.arg_true(), decoded)


def mangled_head(name: str) -> str:
    """The qualified function of an Itanium-mangled name; the name itself where it has none.

    Reads the leading source names only (``_ZN2at6native3fooI…`` is ``at::native::foo``); template
    arguments of an enclosing class end it early.
    """
    start = _MANGLED.match(name)
    if start is None:
        return name
    position, parts = start.end(), []
    while found := _SOURCE_NAME.match(name, position):
        position = found.end()
        if found[2]:
            parts.append("std")
            continue
        length = int(found[1])
        part = name[position : position + length]
        position += length
        parts.append("{anon}" if part.startswith("_GLOBAL__N_") else part)
    return "::".join(parts) or name

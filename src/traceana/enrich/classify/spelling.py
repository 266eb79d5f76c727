"""The canonical spelling and the head of a kernel's name; rules are matched against these texts.

They are used for matching only. Tables keep names as recorded by the profiler.
"""

from __future__ import annotations

import re
from typing import Final

import polars as pl

_INTEGER: Final = r"(?:unsigned |signed )?(?:int|long|long long|short|char|bool|size_t)"
_REWRITES: Final = (
    (rf"\b{_INTEGER}=(-?[0-9]+)", "$1"),
    (rf"\({_INTEGER}\)(-?[0-9]+)", "$1"),
    (r"\b([A-Za-z_][0-9A-Za-z_:]*)=(-?[0-9]+)\b", "($1)$2"),
)
_REPLACEMENTS: Final = {
    "<unnamed>": "(anonymous namespace)",
    " >": ">",
    " ,": ",",
}
_EVALUATES: Final = "autograd::engine::evaluate_function: "
_CONST: Final = r" const\b|\bconst "
_MARKS: Final = ["<unnamed>", " >", " ,", "=", "(int)", "(bool)", " int)", "(long)", " long)"]


def canonical(names: pl.Series) -> pl.Series:
    """Return ``names`` as CUPTI's demangler prints them, in the same order.

    CUPTI prints ``kernel<2, (Op)0, true>``, nsys ``kernel<(int)2, (Op)0, (bool)1>``, nvprof
    ``kernel<int=2, Op=0, bool=1>``, and c++filt ``kernel<Other<2> >``. In names of Eigen, CUPTI
    prints ``const`` after a type and nsys before it, so ``const`` is removed. The prefix that the
    autograd engine adds to the names of its nodes is removed too.
    """
    marked = names.str.contains_any(_MARKS)
    if marked.any():
        variant = names.filter(marked).str.replace_many(_REPLACEMENTS)
        for pattern, replacement in _REWRITES:
            variant = variant.str.replace_all(pattern, replacement)
        names = names.clone().scatter(marked.arg_true(), variant)
    names = names.str.strip_prefix(_EVALUATES)
    expressions = names.str.contains("Eigen::", literal=True)
    if expressions.any():
        bare = names.filter(expressions).str.replace_all(_CONST, "")
        names = names.clone().scatter(expressions.arg_true(), bare)
    return names


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
    """Return the head of each of ``names``: its qualified function name.

    ``void at::native::(anonymous namespace)::elementwise_kernel<128, 4, …>(int, …)`` has the head
    ``at::native::{anon}::elementwise_kernel``. Most rules match heads only: there are far fewer
    heads than names, and the type of a template argument must not match as the kernel's own name.
    """
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
    """Return the qualified function of an Itanium-mangled name, or ``name`` if it is not mangled.

    Only the leading source names are decoded (``_ZN2at6native3fooI…`` is ``at::native::foo``), up
    to the first template arguments.
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

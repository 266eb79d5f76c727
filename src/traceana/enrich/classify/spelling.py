"""One spelling for names that the profilers' demanglers print differently.

CUPTI prints ``kernel<2, (Op)0, true>``, nsys ``kernel<(int)2, (Op)0, (bool)1>``, nvprof
``kernel<int=2, Op=0, bool=1>``, and c++filt ``kernel<Other<2> >``. Patterns are written for the
first form; this brings the others to it. Eigen's expressions are types within types, each of them
const, which CUPTI prints behind a type and nsys before it; they lose it. PyTorch's engine calls a
node of the backward pass by the node's name, with words before it. Only matching sees the result:
tables keep the names as they were printed.
"""

from __future__ import annotations

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
    """``names`` as CUPTI would print them, in the same order."""
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

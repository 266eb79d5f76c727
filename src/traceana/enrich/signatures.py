"""What two profilers agree on in the name of a kernel, however each of them prints it.

Nsight Compute prints ``void vectorized_elementwise_kernel<4, CUDAFunctor_add<float>, array<char *,
3>>(int, T2, T3)`` where CUPTI prints ``void at::native::vectorized_elementwise_kernel<4,
at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int, ...)``: without namespaces (its
older versions with them), with the letters of template parameters for arguments, ``1`` for
``true``, and lambdas as ``[lambda(float) (instance 1)]`` where CUPTI has ``{lambda(float)#1}``.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.enrich.classify.spelling import canonical

_PARENTHESIS: Final = r"\([^()]*\)"
_DEEPEST: Final = 64
"""Parentheses within each other that are taken out; text may hold any number of them."""
_TEMPLATE: Final = r"<[^<>]*>"
_IDENTIFIER: Final = r"[A-Za-z_$][A-Za-z0-9_$]*"
_WORD: Final = rf"{_IDENTIFIER}(?:::)?|[0-9]+"
_NOISE: Final = r"^(?:const|volatile|void|operator|unnamed|lambda[0-9]*|T[0-9]+|.*::)$"


def signatures(names: pl.Series) -> pl.Series:
    """Return the words of each name without namespaces, arguments and what tells lambdas apart.

    Words and numbers of the name and of its template arguments, separated by spaces. Kernels that
    differ in the number or the type of a lambda alone have one signature.
    """
    distinct = names.unique()
    bare = (
        _without(_PARENTHESIS, canonical(distinct))
        .str.replace_all(r"#[0-9]+", "")
        .str.replace_all(r"\b([0-9]+)[uUlL]+\b", "$1")
    )
    words = bare.str.extract_all(_WORD).list.eval(
        pl.element().filter(~pl.element().str.contains(_NOISE)).replace({"true": "1", "false": "0"})
    )
    signature = words.list.join(" ")
    return names.replace_strict(distinct, signature, return_dtype=pl.String)


def functions(names: pl.Series) -> pl.Series:
    """Return the bare name of each kernel: no return type, namespace, template or arguments."""
    distinct = names.unique()
    bare = _without(_TEMPLATE, _without(_PARENTHESIS, canonical(distinct)))
    function = bare.str.extract_all(_IDENTIFIER).list.last()
    return names.replace_strict(distinct, function, return_dtype=pl.String)


def _without(pattern: str, texts: pl.Series) -> pl.Series:
    """Return ``texts`` without what ``pattern`` matches, and what it then matches, and so on."""
    for _ in range(_DEEPEST):
        shorter = texts.str.replace_all(pattern, " ")
        if shorter.equals(texts):
            break
        texts = shorter
    return texts

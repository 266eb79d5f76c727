"""Values of ``by``, the grouping of each command's table, for the CLI and the API."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

from traceana.errors import NoSuchSelectionError, suggested

LayersBy: TypeAlias = Literal["layer", "type"]
FlopsBy: TypeAlias = Literal["operator", "class", "shape"]
KernelsBy: TypeAlias = Literal["name", "shape"]
TransfersBy: TypeAlias = Literal["direction", "operator", "layer", "range", "call", "step", "size"]
IdleBy: TypeAlias = Literal["cause", "operator", "range", "step", "gap"]
"""Key of a row, besides device and cause: no key, the host's innermost operator or annotation, the
step that contains the time, or the gap itself."""
CriticalBy: TypeAlias = Literal["class", "kernel", "layer", "operator", "segment"]
"""Keys of a row: a class of segments and its part; a kernel or copy, else a class; a layer; an
operator or annotation; a segment."""
MemoryBy: TypeAlias = Literal["device", "layer", "operator", "step", "time", "convolution"]
DiffBy: TypeAlias = Literal["layer", "class", "algorithm", "kernel", "gemm", "transfer"]
JobDiffBy: TypeAlias = Literal[DiffBy, "rank"]
"""With the rows of two distributed jobs."""
CompareBy: TypeAlias = Literal[
    "summary", "layer", "class", "algorithm", "kernel", "gemm", "epilogue", "transfer"
]
Statistic: TypeAlias = Literal["median", "mean"]
Inconclusive: TypeAlias = Literal["pass", "fail"]


def check(by: str, choices: Any) -> None:
    """Raise :class:`~traceana.errors.NoSuchSelectionError` where ``by`` is none of ``choices``."""
    known = get_args(choices)
    if by not in known:
        raise NoSuchSelectionError(f"by={by!r}{suggested(by, known)}: use {', '.join(known)}")

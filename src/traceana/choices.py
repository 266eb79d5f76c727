"""Values of ``by``, the grouping of each command's table, for the CLI and the API."""

from __future__ import annotations

from typing import Literal, TypeAlias

LayersBy: TypeAlias = Literal["layer", "type"]
FlopsBy: TypeAlias = Literal["operator", "class", "shape"]
KernelsBy: TypeAlias = Literal["name", "shape"]
TransfersBy: TypeAlias = Literal["direction", "operator", "layer", "range", "call", "step", "size"]
IdleBy: TypeAlias = Literal["cause", "operator", "range", "step", "gap"]
CriticalBy: TypeAlias = Literal["class", "kernel", "layer", "operator", "segment"]
MemoryBy: TypeAlias = Literal["device", "layer", "operator", "step", "time", "convolution"]
DiffBy: TypeAlias = Literal["layer", "class", "algorithm", "kernel", "gemm", "transfer"]
JobDiffBy: TypeAlias = Literal[DiffBy, "rank"]
"""With the rows of two distributed jobs."""
CompareBy: TypeAlias = Literal[
    "summary", "layer", "class", "algorithm", "kernel", "gemm", "epilogue", "transfer"
]
Statistic: TypeAlias = Literal["median", "mean"]
Inconclusive: TypeAlias = Literal["pass", "fail"]

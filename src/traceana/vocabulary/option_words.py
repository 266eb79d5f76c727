"""The words that an option accepts; its default is the first.

Commands, analyses and the command line import them from here.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

LayersBy: TypeAlias = Literal["layer", "type"]
LayersOrder: TypeAlias = Literal["time", "network"]
FlopsBy: TypeAlias = Literal["operator", "class", "shape", "gemm"]
KernelsBy: TypeAlias = Literal["name", "category", "shape"]
TransfersBy: TypeAlias = Literal["direction", "operator", "layer", "range", "call", "step", "size"]
"""Key of a row, besides direction and host memory: no key, the innermost operator around the
copying call, its layer, the innermost annotation around the call, the runtime or driver call, the
step, or the size in powers of two."""
LinesBy: TypeAlias = Literal["line", "function", "file", "stack"]
IdleBy: TypeAlias = Literal["cause", "operator", "range", "line", "step", "gap"]
"""Key of a row, besides device and cause: no key, the host's innermost operator or annotation, the
step that contains the time, or the gap itself."""
CriticalBy: TypeAlias = Literal["class", "kernel", "layer", "operator", "line", "segment"]
"""Keys of a row: a class of segments and its part; a kernel or copy, else a class; a layer; an
operator or annotation; a line of the program; a segment."""
MemoryBy: TypeAlias = Literal[
    "device", "layer", "operator", "line", "stack", "step", "time", "convolution", "pool"
]
"""Keys of a row: a device; a layer, an operator, a line of the program or a stack of lines with
live allocations at the peak of a device; a step; a slice of time; a convolution of a layer that
allocates a workspace; a memory pool of a snapshot."""
SamplesBy: TypeAlias = Literal["counter", "step", "class", "layer"]
"""Key of a row, besides the counter and its device: no key, a step, a class or a layer of work."""
WorkBy: TypeAlias = Literal["class", "algorithm", "kernel", "gemm", "transfer", "line"]
"""Groupings of the work of a run, of one or of several."""
DiffBy: TypeAlias = Literal["layer", WorkBy]
JobDiffBy: TypeAlias = Literal[DiffBy, "rank"]
"""With the rows of two distributed jobs."""
CompareBy: TypeAlias = Literal[
    "summary", "layer", "class", "algorithm", "kernel", "gemm", "epilogue", "transfer", "line"
]
Statistic: TypeAlias = Literal["median", "mean"]
Inconclusive: TypeAlias = Literal["pass", "fail"]
HistoryBy: TypeAlias = Literal["step", "class", "layer", "kernel", "line"]
"""What a history is of: the step of the runs, or the time of each class, layer, kernel or line."""
HistoryOrder: TypeAlias = Literal["date", "commit", "label", "given"]
"""The order of runs: by their start, by the place of their commit in the repository, by their
label, or as they are given."""

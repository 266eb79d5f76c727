"""The kind of work in a row of a summary: kernel, copy, memset, operator, or call of the host."""

from __future__ import annotations

import re
from typing import Final

from traceana.ingest.summary.tables import Cells, Profiler, Table
from traceana.trace.schema import MemoryKind

_CALL: Final = re.compile(
    r"_{0,2}(?:cu(?:da)?[A-Z]\w*|hip[A-Z]\w*|hsa_\w+|nvtx\w+|cudnn[A-Z]\w*|cublas\w+)"
)
"""Functions of CUDA's and HIP's runtimes and drivers, and of libraries, without arguments."""
_COPY: Final = re.compile(
    r"(?i)\[?(?:CUDA )?(?:Unified Memory |Unified )?(?:memcpy |MEMORY_COPY_|Copy)"
    r"(Host|Device|Peer|Array|[HDPA])[-_ ]?to[-_ ]?(Host|Device|Peer|Array|[HDPA])\b.*"
)
_SET: Final = re.compile(r"(?i)\[?(?:CUDA )?(?:Unified Memory )?(?:memset|MEMORY_SET)\b.*")
_ANY_COPY: Final = re.compile(r"(?i)\[?(?:CUDA )?(?:Unified Memory )?(?:memcpy|MEMORY_COPY)\b.*")
_UNIFIED: Final = re.compile(r"(?i)\[?(?:CUDA )?Unified")
_MEMORIES: Final = re.compile(r"\((?:([\w ]+) -> )?([\w ]+)\)")
_DOMAINS: Final = re.compile(
    r"(?:KERNEL_DISPATCH|MEMORY_COPY|MEMORY_ALLOCATION|SCRATCH_MEMORY|MARKER_API|RCCL_API"
    r"|HIP_(?:RUNTIME_)?API(?:_EXT)?|HIP_COMPILER_API(?:_EXT)?|HSA_\w*API|ROCDECODE_API)"
)
"""Rows of rocprofv3's statistics of domains: sums of the rows of the others."""
_RANGE: Final = "Range"
_OPERATOR: Final = re.compile(
    r"(?:aten|torch|torchvision|autograd|prims|quantized|nccl|c10d|record_param_comms)::?.*"
    r"|\w+Backward\d*"
)
_ANNOTATION: Final = re.compile(
    r"ProfilerStep[*#].*|Optimizer\.(?:step|zero_grad)#.*|enumerate\(DataLoader\)#.*"
    r"|## Call CompiledFxGraph.*|Torch-Compiled Region.*|PyTorch Profiler \(\d+\)"
)


def copy_of(name: str) -> str | None:
    """Return the direction of the copy ``name``, ``unknown`` without one; None: not a copy."""
    if match := _COPY.fullmatch(name):
        source, target = (side[0].upper() for side in match.groups())
        return f"{source}to{target}"
    return "unknown" if _ANY_COPY.fullmatch(name) else None


def kinds(table: Table) -> list[str]:
    """Return the kind of each row of ``table``.

    Kinds are those of the table ``summary``; ``range`` are annotations, ``domain`` sums of others,
    ``system`` calls of the operating system.
    """
    if table.profiler is Profiler.TORCH:
        return ["op"] * len(table.rows) if table.on_cpu else _of_torch(table.rows)
    found = []
    last = ""
    for row in table.rows:
        last = row.get("type") or last
        found.append(_of_row(row["name"], last, table))
    return found


def _of_row(name: str, typed: str, table: Table) -> str:
    if table.profiler is Profiler.MXNET:
        return "call" if name.startswith("MX") else "op"
    if typed.startswith(_RANGE) or table.of == "ranges" or "NVTX" in table.section:
        return "range"
    if typed.upper().startswith(("API", "CUDA_API", "HIP_")):
        return "call"
    if _SET.fullmatch(name):
        return "memset"
    if copy_of(name):
        return "memcpy"
    if table.profiler is Profiler.ROCPROF and _DOMAINS.fullmatch(name):
        return "domain"
    if typed.startswith(("GPU", "CUDA_KERNEL", "KERNEL")):
        return "kernel"
    if typed:  # OpenACC, OpenMP
        return "range"
    if "API calls" in table.section or _CALL.fullmatch(name):
        return "call"
    if table.profiler is Profiler.NSYS and table.of == "calls":
        return "system"
    return "kernel"


def _of_torch(rows: list[Cells]) -> list[str]:
    """Return the kinds of rows of ``key_averages()``: operators, and what ran on the device.

    Rows of the device have no time of the CPU. Annotations have rows on both sides; those of the
    device cover its kernels.
    """
    host = {row["name"] for row in rows if not _zero(row.get("self_cpu"))}
    found = []
    for row in rows:
        name = row["name"]
        on_host = not _zero(row.get("self_cpu")) or not _zero(row.get("cpu"))
        if _ANNOTATION.fullmatch(name):
            found.append("range")
        elif _SET.fullmatch(name):
            found.append("memset")
        elif copy_of(name):
            found.append("memcpy")
        elif _CALL.fullmatch(name):
            found.append("call")
        elif on_host or _OPERATOR.fullmatch(name):
            found.append("op")
        elif name in host:
            found.append("range")
        else:
            found.append("op" if _zero(row.get("total")) else "kernel")
    return found


def _zero(text: str | None) -> bool:
    return text is None or not re.search("[1-9]", text)


def memories(name: str, kind: str) -> dict[str, str | None]:
    """Return the kinds of memory of the copy or memset ``name``, as torch.profiler names them."""
    source = target = None
    if kind in ("memcpy", "memset"):
        if _UNIFIED.match(name):
            source = target = "managed"
        elif match := _MEMORIES.search(name):
            source, target = (_word(side) for side in match.groups())
    return {"source_memory": source, "destination_memory": target}


def _word(text: str | None) -> str | None:
    word = (text or "").lower().replace(" ", "_")
    return word if word in MemoryKind.categories else None

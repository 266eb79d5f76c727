"""What the name of a host event says: an operator, a Python frame, the runtime, the program."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

MEMORY: Final = {"MemoryAllocation": 1, "MemoryDeallocation": -1}
"""Events of the allocators -> sign of their bytes."""

# TensorFlow writes "AlexNet/conv1/Conv2D:Conv2D", and "unknown:Conv2D" where there is no scope.
_OPERATOR: Final = re.compile(r"([A-Za-z0-9.][\w./>-]*):([A-Z_]\w*)", re.ASCII)
_NO_SCOPE: Final = "unknown"
_PYTHON: Final = "$"
_RUNTIME: Final = re.compile(
    r"::|[(:]|^(?:TFE?_|PJRT_|PjRt|Eager|Executor|Function|Kernel|Thunk|Validate|Parse|Handle |"
    r"DevicePut|BatchedDevicePut|CopyTo|Wait for |end)|"
    # What JAX's own Python code annotates (jax.profiler.annotate_function).
    r"^(?:AllocateOutputBuffers\w*|shard_args|cpp_pjit_\w+|backend_compile\w*|"
    r"trace_to_jaxpr\w*|lower_sharding_computation|pickle_util\.\w+)$"
)
"""Spans that TensorFlow's and XLA's own code draws on the program's thread."""


@dataclass(frozen=True, slots=True)
class HostName:
    """A name of a host event, judged: ``operator`` and ``scope`` of operators, else ``kind``."""

    operator: str | None
    scope: str | None
    kind: str


def judge(name: str | None) -> HostName:
    """Judge a name as it stands on the program's own thread."""
    if name is None:
        return HostName(None, None, "runtime")
    if found := _OPERATOR.fullmatch(name):
        scope, operator = found.groups()
        return HostName(operator, None if scope == _NO_SCOPE else scope, "runtime")
    if name.startswith(_PYTHON):
        return HostName(None, None, "python")
    return HostName(None, None, "runtime" if _RUNTIME.search(name) else "annotation")


def scope_of(label: str | None) -> str | None:
    """Return the name scope in an annotation of device work, None where there is none.

    TensorFlow's ``annotation`` is ``scope:Type#key=value#``, several joined by ``::``; its
    ``tf_op`` is ``scope:Type``, and for XLA's kernels ``XlaModule:``.
    """
    if label is None:
        return None
    for part in label.split("::"):
        scope, colon, _ = part.partition("#")[0].rpartition(":")
        if colon and scope and scope != _NO_SCOPE and "XlaModule" not in scope:
            return scope
    return None

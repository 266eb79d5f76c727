"""Who wrote a Chrome trace, told from its first bytes."""

from __future__ import annotations

import re
from typing import Final

_EVENT: Final = re.compile(rb'(?:^\s*\[|"traceEvents"\s*:\s*\[).*"ph"\s*:\s*"', re.DOTALL)
_PLANE: Final = re.compile(rb'"name"\s*:\s*"/(?:host|device):')
_KINETO: Final = re.compile(
    rb'"(?:schemaVersion|deviceProperties|baseTimeNanoseconds|External id|distributedInfo)"|'
    rb'"(?:ts|dur)"\s*:\s*"|'
    rb'"cat"\s*:\s*"(?:kernel|gpu_\w+|cuda_\w+|cpu_(?:op|instant_event)|operator|python_function|'
    rb"user_annotation|runtime|memcpy|memset|ac2g|async\w*|fwdbwd|forward_backward|overhead|trace|"
    rb'Trace|Kernel|Memcpy|Memset|Operator|Runtime)"',
    re.IGNORECASE,
)


def is_xplane_json(head: bytes) -> bool:
    """Tell TensorFlow's and JAX's ``trace.json``: its processes are planes, ``/host:CPU``."""
    return _PLANE.search(head) is not None


def is_other(head: bytes) -> bool:
    """Tell a trace that has events, none of which looks like torch.profiler's."""
    return _EVENT.search(head) is not None and _KINETO.search(head) is None

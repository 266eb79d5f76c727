"""What a file says of the run as a whole."""

from __future__ import annotations

import re
from typing import Any, Final

from traceana.ingest.xplane.hlo import METADATA_PLANE
from traceana.ingest.xplane.space import Plane, Space, Value

_TASK: Final = "Task Environment"
_EPOCH_FLOOR: Final = 10**18
"""Nanoseconds from 1970 to 2001: larger times are Unix times, smaller count from the start."""
_FARTHEST: Final = 1 << 62
_JAX: Final = re.compile(r"^(?:PjitFunction\(|jit_|PjRt|CommonPjRt|PJRT_)")
_TENSORFLOW: Final = re.compile(r"^(?:TFE_|EagerExecute|ExecutorState::|TraceContext)")


def epoch_ns(space: Space, first_ns: int) -> int | None:
    """Return the Unix time of the first event, which is at ``first_ns`` on the file's clock."""
    if first_ns > _EPOCH_FLOOR:
        return first_ns
    start = _stats(space, _TASK).get("profile_start_time")
    if isinstance(start, int) and _EPOCH_FLOOR < start < _FARTHEST:
        return start + first_ns
    return None


def process_id(plane: Plane) -> int | None:
    """Return the number of the process of a host plane, where it tells one."""
    value = plane.stats().get("process_id")
    return value if isinstance(value, int) and 0 <= value < _FARTHEST else None


def framework(space: Space) -> str | None:
    """Return JAX or TensorFlow, by what its runtime draws on the host."""
    if "jax_version" in _stats(space, METADATA_PLANE):
        return "JAX"
    names = [
        name
        for plane in space.planes
        if not plane.name.startswith("/device:")
        for name in plane.event_names.values()
    ]
    # TensorFlow may run XLA too; JAX never draws what TensorFlow's executor does.
    if any(map(_TENSORFLOW.match, names)):
        return "TensorFlow"
    return "JAX" if any(map(_JAX.match, names)) else None


def producer(space: Space) -> str | None:
    """Return the library that recorded, with its version, where the file tells it."""
    version = _stats(space, METADATA_PLANE).get("jaxlib_version")
    return f"jaxlib {version}" if isinstance(version, str) else None


def facts(space: Space) -> dict[str, Any]:
    """Return versions, hosts, and what the profiler itself complained of."""
    found: dict[str, Any] = {
        key: value
        for key, value in _stats(space, METADATA_PLANE).items()
        if key.endswith("_version") and isinstance(value, str)
    }
    for key in ("hostnames", "errors", "warnings"):
        if texts := getattr(space, key):
            found[key] = list(texts)
    return found


def _stats(space: Space, name: str) -> dict[str, Value]:
    return {
        key: value
        for plane in space.planes
        if plane.name == name
        for key, value in plane.stats().items()
    }

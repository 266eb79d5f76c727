"""Gates that failed, in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from traceana.report import human

if TYPE_CHECKING:
    from traceana.advise.gates import Broken

_WRITERS: Final[dict[str, Callable[[float], str]]] = {
    "share": human.share,
    "time": lambda value: human.duration(round(value)),
    "count": human.mean,
    "bytes": human.size,
}


def broken(gate: Broken) -> str:
    """Return why the gate failed."""
    if isinstance(gate.gate, str):
        return f"{gate.gate} holds"
    metric = gate.gate.metric
    if gate.value is None:
        return f"{metric.name} unknown: not in this trace"
    write = _WRITERS[metric.unit]
    return f"{metric.name} is {write(gate.value)}, more than {write(gate.gate.most)}"

"""Why a run died, in words."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Final

from traceana.record.child import Ended
from traceana.record.reports import ProcessReport

OUT_OF_MEMORY: Final = "out of memory"
_WORDS: Final = (
    "out of memory",
    "outofmemory",
    "memoryerror",
    "resource_exhausted",
    "resourceexhausted",
    "can't allocate memory",
    "cannot allocate memory",
    "failed to allocate memory",
    "bad_alloc",
    "status_alloc_failed",
)
"""What CUDA, PyTorch, TensorFlow, XLA, NumPy and Python say, in lower case."""
_LONGEST: Final = 200


def reason(ended: Ended, refused: str | None, processes: Sequence[ProcessReport]) -> str:
    """Return why a command failed: ``out of memory``, an exception, a signal, an exit status."""
    raised = [one.exception for one in processes if one.exception is not None]
    said = [f"{one.type}: {one.text}".lower() for one in raised]
    if ended.out_of_memory or any(word in text for text in said for word in _WORDS):
        return OUT_OF_MEMORY
    if ended.exit_status < 0 and not ended.overdue:
        return f"signal {_signal(-ended.exit_status)}"
    if refused is not None:
        return f"refused: {refused}"
    if raised:
        first = " ".join(raised[0].text.split())[:_LONGEST]
        return f"{raised[0].type.removeprefix('builtins.')}: {first}"
    return f"exit status {ended.exit_status}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)

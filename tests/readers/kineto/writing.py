"""Small Kineto files written by the tests, in the layouts that exporters use."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def kernel(name: str, ts: float | int | str, dur: float | int | str, **args: Any) -> Event:
    """Return a kernel event on device 0, stream 7."""
    return {
        "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur,
        "args": {"device": 0, "stream": 7, **args},
    }  # fmt: skip


def call(name: str, ts: float | int, dur: float | int, correlation: int, tid: int = 1) -> Event:
    """Return a runtime call of process 100."""
    return {
        "ph": "X", "cat": "cuda_runtime", "name": name, "pid": 100, "tid": tid, "ts": ts,
        "dur": dur, "args": {"correlation": correlation},
    }  # fmt: skip


def op(name: str, ts: float | int, dur: float | int, tid: int = 1, **args: Any) -> Event:
    """Return an operator of process 100."""
    return {
        "ph": "X", "cat": "cpu_op", "name": name, "pid": 100, "tid": tid, "ts": ts, "dur": dur,
        "args": args,
    }  # fmt: skip


def annotation(name: str, ts: float | int, dur: float | int, tid: int = 1) -> Event:
    """Return a user annotation of process 100."""
    return {
        "ph": "X", "cat": "user_annotation", "name": name, "pid": 100, "tid": tid, "ts": ts,
        "dur": dur,
    }  # fmt: skip


def write(path: Path, events: list[Event], *, compress: bool = False, **keys: Any) -> Path:
    """Write an object with ``keys`` and the events; return the path."""
    text = json.dumps({"schemaVersion": 1, **keys, "traceEvents": events}).encode()
    path.write_bytes(gzip.compress(text, 1) if compress else text)
    return path

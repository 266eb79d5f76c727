"""Rewrites eager Kineto traces as replays of CUDA graphs, with the eager recording as the truth."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Event = dict[str, Any]

_HOST = ("cuda_runtime", "cuda_driver", "Runtime")
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")
_OPERATOR = ("cpu_op", "Operator", "python_function", "fwdbwd", "ac2g")


LAYERS = (
    (
        "aten::conv2d",
        "implicit_convolve_sgemm",
        [[8, 3, 32, 32], [16, 3, 3, 3], [16], [], [], [], []],
    ),
    ("aten::relu", "vectorized_elementwise_kernel", [[8, 16, 30, 30]]),
    (
        "aten::conv2d",
        "implicit_convolve_sgemm",
        [[8, 16, 30, 30], [32, 16, 3, 3], [32], [], [], [], []],
    ),
    ("aten::linear", "volta_sgemm_32x32_tn", [[8, 25088], [10, 25088], [10]]),
)
PRODUCTS = 2 * 8 * 16 * 30 * 30 * 27 + 2 * 8 * 32 * 28 * 28 * 16 * 9 + 2 * 8 * 10 * 25088
"""FLOPs of the convolutions and of the matrix product of a step."""


def network(count: int) -> dict[str, Any]:
    """Return a Kineto trace of ``count`` steps of four layers, launched one by one."""
    rows: list[dict[str, Any]] = []
    correlation = 0
    for step in range(count):
        begin = 1000.0 * step
        rows.append(row("user_annotation", f"ProfilerStep#{step}", begin, 900, 1))
        for n, (operator, kernel, shapes) in enumerate(LAYERS):
            correlation += 1
            at = begin + 100 * n + 10
            inputs = {"Input Dims": shapes, "Input type": ["float"] * len(shapes)}
            if "conv2d" in operator:
                inputs["Concrete Inputs"] = ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "1"]
            rows.append(row("cpu_op", operator, at, 50, 1, **inputs))
            rows.append(
                row("cuda_runtime", "cudaLaunchKernel", at + 10, 5, 1, correlation=correlation)
            )
            size = {"grid": [n + 1, 1, 1], "block": [128, 1, 1]}
            rows.append(
                row(
                    "kernel",
                    kernel,
                    at + 40,
                    20,
                    7,
                    correlation=correlation,
                    stream=7,
                    device=0,
                    **size,
                )
            )
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "Tesla V100-SXM2-16GB"}],
        "traceEvents": rows,
    }


def row(
    category: str, name: str, at: float, duration: float, thread: int, **args: Any
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "ts": at,
        "dur": duration,
        "pid": 0 if category == "kernel" else 9,
        "tid": thread,
        "args": args,
    }


def events(path: Path) -> dict[str, Any]:
    """Return the JSON of a trace."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        whole: dict[str, Any] = json.load(file)
    return whole


def as_replays(
    whole: dict[str, Any],
    spans: list[tuple[float, float]],
    *,
    capture: int | None,
    node_ids: bool = False,
) -> dict[str, Any]:
    """Return ``whole`` with the launches of each of ``spans`` (µs) folded into one graph launch.

    Operators within the spans are removed. Those of span number ``capture`` are kept, with its
    launches, as the capture of the graph, which is replayed at the end of the span. Node ids count
    the launches of a replay.
    """
    found = [e for e in whole["traceEvents"] if e.get("ph") == "X"]
    others = [e for e in whole["traceEvents"] if e.get("ph") not in ("X", "s", "f")]
    span_of = {
        e["args"]["correlation"]: n
        for e in found
        if e.get("cat") in _HOST
        and (n := _span(e, spans)) is not None
        and "correlation" in e["args"]
    }
    kept: list[Event] = []
    launched: dict[int, list[Event]] = {}
    order = {
        e["args"]["correlation"]: e["ts"]
        for e in found
        if e.get("cat") in _HOST and "correlation" in e.get("args", {})
    }
    thread: dict[int, Event] = {}
    for event in found:
        category = event.get("cat")
        if category in _DEVICE:
            n = span_of.get(event["args"].get("correlation"))
            if n is None:
                kept.append(event)
            else:
                launched.setdefault(n, []).append(event)
        elif category in _HOST or category in _OPERATOR:
            n = _span(event, spans)
            if n is None or n == capture:
                kept.append(event)
            if n is not None and category in _HOST:
                thread.setdefault(n, event)
        else:
            kept.append(event)
    for n, work in launched.items():
        first = thread[n]
        correlation = 2_000_000_000 + n
        at = spans[n][1] if n == capture else spans[n][0] + 0.001
        launch = {**first, "name": "cudaGraphLaunch", "ts": at, "dur": 1.0}
        launch["args"] = {"correlation": correlation}
        kept.append(launch)
        ordered = sorted(work, key=lambda e: order[e["args"]["correlation"]])
        for node, event in enumerate(ordered, 1):
            args = {
                k: v for k, v in event["args"].items() if k not in ("External id", "external id")
            }
            args["correlation"] = correlation
            if node_ids:
                args["graph node id"] = (n << 32) + node
            kept.append({**event, "args": args})
    return {**whole, "traceEvents": others + kept}


def write(whole: dict[str, Any], path: Path) -> Path:
    """Write a trace."""
    path.write_text(json.dumps(whole), encoding="utf-8")
    return path


def _span(event: Event, spans: list[tuple[float, float]]) -> int | None:
    return next((n for n, (begin, end) in enumerate(spans) if begin <= event["ts"] < end), None)


def steps(whole: dict[str, Any]) -> Iterator[tuple[float, float]]:
    """Yield the times (µs) of the profiler's steps."""
    marked = {
        (float(e["ts"]), float(e["ts"]) + float(e["dur"]))
        for e in whole["traceEvents"]
        if e.get("ph") == "X"
        and str(e.get("name", "")).startswith("ProfilerStep")
        and e.get("cat") in ("user_annotation", "Operator", "cpu_op")
    }
    yield from sorted(marked)

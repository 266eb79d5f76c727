"""A scenario as torch.profiler exports it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.synthetic.records import Call, Copy, Kernel, Memset, Span, Sync, Work
from tests.support.synthetic.scenario import Scenario

Row = dict[str, Any]

ORIGIN = 7_000_000
"""The file's clock when the run begins (ns)."""

BASE = 1_700_000_000 * 10**9
"""Unix time of the file's time 0 (ns)."""

_NO_STREAM = 0xFFFFFFFF
_SYNCS = {
    "event": "Event Sync",
    "stream_wait": "Stream Wait Event",
    "stream": "Stream Sync",
    "context": "Context Sync",
}


def write_kineto(scenario: Scenario, path: Path) -> Path:
    """Write ``scenario`` as JSON. Raises ``ValueError`` on migrations: Kineto records none."""
    rows = [
        *(_call(scenario, call) for call in scenario.calls),
        *(_work(work) for work in scenario.work),
        *(_sync(sync) for sync in scenario.syncs),
        *(
            _event(
                "cpu_op" if found.operator else "user_annotation",
                found.text,
                found,
                scenario.process,
                found.thread,
                dict(found.arguments),
            )
            for found in scenario.ranges
        ),
        *(_event("overhead", o.text, o, -1, 0, {}) for o in scenario.overheads),
    ]
    devices = [
        {
            "id": number,
            "name": gpu.name,
            "totalGlobalMem": gpu.memory_bytes,
            "computeMajor": gpu.capability[0],
            "computeMinor": gpu.capability[1],
            "warpSize": 32,
            "numSms": gpu.multiprocessors,
        }
        for number, gpu in enumerate(scenario.gpus)
    ]
    whole = {
        "schemaVersion": 1,
        "deviceProperties": devices,
        "baseTimeNanoseconds": BASE,
        "traceEvents": rows,
    }
    path.write_text(json.dumps(whole), encoding="utf-8")
    return path


def _event(category: str, name: str, span: Span, pid: int, tid: int, args: Row) -> Row:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        # Microseconds: numbers this small have their three decimals exactly as they are printed.
        "ts": (ORIGIN + span.start) / 1000,
        "dur": span.duration / 1000,
        "args": args,
    }


def _call(scenario: Scenario, call: Call) -> Row:
    args = {"cbid": 0, "correlation": call.correlation}
    return _event("cuda_runtime", call.name, call, scenario.process, call.thread, args)


def _work(work: Work) -> Row:
    args: Row = {
        "device": work.device,
        "context": work.device + 1,
        "stream": work.stream,
        "correlation": work.correlation,
    }
    match work:
        case Kernel():
            category, name = "kernel", work.name
            args |= {"grid": [work.blocks, 1, 1], "block": [1, 1, 1], "registers per thread": 32}
            args["shared memory"] = 0
        case Copy():
            if work.unified:
                raise ValueError("Kineto records no migrations of unified memory")
            direction = work.direction
            memories = f"{work.source.title()} -> {work.destination.title()}"
            category, name = "gpu_memcpy", f"Memcpy {direction} ({memories})"
            args["bytes"] = work.bytes
        case Memset():
            category, name = "gpu_memset", "Memset (Device)"
            args["bytes"] = work.bytes
        case _:
            raise TypeError(f"no such work: {work}")
    return _event(category, name, work, work.device, work.stream, args)


def _sync(sync: Sync) -> Row:
    name = _SYNCS[sync.waiting]
    args: Row = {"cuda_sync_kind": name}
    if sync.event is not None:
        args |= {
            "wait_on_stream": sync.event.stream,
            "wait_on_cuda_event_record_corr_id": sync.event.correlation,
            "wait_on_cuda_event_id": sync.event.number,
        }
    args |= {
        "stream": _NO_STREAM if sync.stream is None else sync.stream,
        "correlation": sync.correlation,
        "device": sync.device,
        "context": sync.device + 1,
    }
    tid = -1 if sync.stream is None else sync.stream
    return _event("cuda_sync", name, sync, sync.device, tid, args)

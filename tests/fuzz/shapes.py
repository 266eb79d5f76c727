"""``python -m tests.fuzz.shapes``: sound files with the numbers of an attacker.

The campaign of :mod:`tests.fuzz` damages and edits small files. Here the structure is the attack:
a million empty events, a device for each kernel, one name of a megabyte, a gzip of nothing but
spaces; files that are pipes or links in circles; an environment that was made to hurt. Every
command runs on each, and none may take more than :data:`CPU_TIMES` times the CPU time or
:data:`MEMORY_TIMES` times the memory that the same command takes for a valid file of the same
format and inflated size. What is below the floors is the cost of starting, not of the input.

An input follows from (seed, shape, number).
"""

from __future__ import annotations

import os

os.environ.setdefault("POLARS_MAX_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import bisect
import contextlib
import gzip
import json
import math
import pickle
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import traceana
from tests.fuzz import answers, seeds
from tests.fuzz.child import can_fork, peak_bytes, reset_peak
from tests.fuzz.imports import everything
from tests.readers.xplane.writing import PlaneWriter, message, number
from tests.support.synthetic import write_nsys
from tests.support.traces import with_methods
from traceana.errors import ExitCode, TraceanaError

CPU_TIMES: Final = 20
MEMORY_TIMES: Final = 12
CPU_FLOOR_S: Final = 0.1
"""CPU time of a command on a small valid file, at least."""
MEMORY_FLOOR: Final = 32 << 20
"""Bytes that a command takes on a small valid file, at least."""
PER_STEP_AND_ROW: Final = ("diff", "compare")
"""Commands whose time and memory are proportional to steps times rows (docs/reliability.md): with a
row for each step that is the square of the size. Of shapes without a step each, only the memory is
excepted."""
LONGEST_S: Final = 120
_SIZES: Final = (100_000, 1_000_000, 4_000_000)
"""Bytes of the valid files whose costs are measured; between them costs are linear."""

Files = Mapping[str, bytes]
Make = Callable[[random.Random, int], bytes]


@dataclass(frozen=True)
class Shape:
    """A kind of file: its format's valid file is what it is measured against."""

    name: str
    format: str
    make: Make
    gzip: bool = False
    """Whether it is compressed: it inflates to the size."""


@dataclass
class Cost:
    """What a command took: seconds of CPU time, and bytes beyond what was there before."""

    cpu: float
    memory: int


@dataclass
class Answer:
    """What came of one file: the cost by command, and the kind, as of the campaign."""

    kind: str
    code: int = 0
    command: str = ""
    message: str = ""
    costs: dict[str, Cost] = field(default_factory=dict)


# Valid files


def kineto(rng: random.Random, size: int) -> bytes:
    """Return training steps as PyTorch records them, of about ``size`` bytes."""
    return _kineto([*_steps(size)])


def _steps(size: int) -> Iterator[str]:
    """Yield the events of as many steps of a CNN as have ``size`` bytes."""
    written, step, at = 0, 0, 0.0
    while written < size:
        begun = at
        for kernel in range(20):
            launch = 1 + step * 20 + kernel
            name = ("volta_sgemm_128x64_nn", "volta_scudnn_winograd_128x128", "relu_kernel")[
                kernel % 3
            ]
            each = (
                _event("cpu_op", f"aten::op{kernel % 7}", at, 8, 1, {"External id": launch}),
                _event("cuda_runtime", "cudaLaunchKernel", at + 1, 3, 1, {"correlation": launch}),
                _event(
                    "kernel",
                    name,
                    at + 5,
                    9,
                    7,
                    {"device": 0, "stream": 7, "correlation": launch, "grid": [4, 1, 1]},
                    pid=0,
                ),
            )
            yield from each
            written += sum(map(len, each))
            at += 10
        mark = _event("user_annotation", f"ProfilerStep#{step}", begun, at - begun, 1, {})
        written += len(mark)
        yield mark
        step += 1


def _event(
    category: str, name: str, ts: float, dur: float, tid: int, args: dict[str, Any], pid: int = 100
) -> str:
    event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur}
    return json.dumps({**event, "args": args})


def _kineto(events: Sequence[str], head: str = "") -> bytes:
    return f'{{"schemaVersion":1,{head}"traceEvents":[{",".join(events)}]}}'.encode()


def xplane(rng: random.Random, size: int) -> bytes:
    """Return kernels of a GPU and calls of the host, of about ``size`` bytes."""
    gpu, host = PlaneWriter("/device:GPU:0"), PlaneWriter("/host:CPU")
    count = max(size // 60, 1)
    names = ("volta_sgemm_128x64_nn", "relu_kernel", "model/conv1/Conv2D:Conv2D")
    times = [at * 2_000_000 for at in range(count)]
    kernels = [
        gpu.event(names[at % 2], time_, 1_000_000, correlation_id=at + 1)
        for at, time_ in enumerate(times)
    ]
    calls = [
        host.event("cuLaunchKernel", time_, 500_000, correlation_id=at + 1)
        for at, time_ in enumerate(times)
    ]
    gpu.line("Stream #7(Kernel)", kernels, number_=7)
    host.line("tf_launch", calls, number_=3)
    return host.encode() + gpu.encode()


def nsys(rng: random.Random, size: int) -> bytes:
    """Return an SQLite export of training steps, of about ``size`` bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_nsys(seeds.scenario(max(size // 3_000, 2)), Path(folder) / "run.sqlite")
        return path.read_bytes()


def csv(rng: random.Random, size: int) -> bytes:
    """Return nvprof's printed trace of the GPU, of about ``size`` bytes."""
    return _printed(f"volta_sgemm_128x64_nn_{at % 50}" for at in range(max(size // 90, 1)))


_PRINTED: Final = (
    "==1== Profiling result:\n"
    '"Start","Duration","Grid X","Grid Y","Grid Z","Block X","Block Y","Block Z",'
    '"Registers Per Thread","Static SMem","Dynamic SMem","Size","Throughput","SrcMemType",'
    '"DstMemType","Device","Context","Stream","Name"\n'
    "ms,us,,,,,,,,KB,KB,KB,GB/s,,,,,,\n"
)


def _printed(names: Iterator[str]) -> bytes:
    rows = (
        f"{1 + at * 0.01:.6f},5.000000,4,1,1,128,1,1,32,0.0,0.0,,,,,"
        f'"Tesla V100 (0)","1","7","{name}"'
        for at, name in enumerate(names)
    )
    return (_PRINTED + "\n".join(rows) + "\n").encode()


def snapshot(rng: random.Random, size: int) -> bytes:
    """Return a memory snapshot of PyTorch, of about ``size`` bytes."""
    trace = [
        {
            "action": ("alloc", "free_requested")[at % 2],
            "addr": 1000 + at // 2,
            "size": 512,
            "stream": 0,
            "time_us": at,
            "frames": [{"filename": "a.py", "line": at % 9, "name": "f"}],
        }
        for at in range(max(size // 60, 2))
    ]
    return pickle.dumps({"segments": [], "device_traces": [trace]}, protocol=2)


VALID: Final[Mapping[str, tuple[str, Make]]] = {
    "kineto": ("run.json", kineto),
    "xplane": ("run.xplane.pb", xplane),
    "nsys": ("run.sqlite", nsys),
    "csv": ("run.csv", csv),
    "snapshot": ("run.pickle", snapshot),
}

# Attackers


def _many(text: Callable[[int], str], head: str = "") -> Make:
    """Return a maker of JSON with as many events as have the size."""

    def make(rng: random.Random, size: int) -> bytes:
        first = rng.randrange(1, 1_000)
        count = max(size // (len(text(first)) + 1), 1)
        return _kineto([text(first + at) for at in range(count)], head)

    return make


def _kernel_with(**changed: Callable[[int], Any]) -> Make:
    """Return a maker of kernels whose fields, or arguments, are functions of their number."""

    def text(at: int) -> str:
        event: dict[str, Any] = {
            "ph": "X", "cat": "kernel", "name": "volta_sgemm_128x64_nn", "pid": 0, "tid": 7,
            "ts": at * 10, "dur": 5, "args": {"device": 0, "stream": 7},
        }  # fmt: skip
        for name, value in changed.items():
            key = name.replace("_", " ")
            if name in event:
                event[name] = value(at)
            else:
                event["args"][key] = value(at)
        return json.dumps(event)

    return _many(text)


def _long(key: str) -> Make:
    def make(rng: random.Random, size: int) -> bytes:
        letter = rng.choice(("a", "<", "(", "\\u00e4", " ", "::", "*", "_Z", "\\\\"))
        long = letter * (size // len(letter))
        event = _event("kernel", "NAME", 10, 5, 7, {"device": 0, "stream": 7, "x": "ARGUMENT"})
        return _kineto([event.replace(key, long), *_steps(2000)])

    return make


def _nested(rng: random.Random, size: int) -> bytes:
    """Ranges and operators that are nested in each other, all of them."""
    count = max(size // 130, 1)
    depth = [
        _event(
            rng.choice(("cpu_op", "user_annotation", "python_function")),
            f"layer{at % 10}", at, 2 * count - 2 * at, 1, {},
        )
        for at in range(count)
    ]  # fmt: skip
    return _kineto([*depth, *_steps(2000)])


def _crossing(rng: random.Random, size: int) -> bytes:
    """Ranges of one thread that begin in each other and end later."""
    count = max(size // 120, 1)
    return _kineto(
        [_event("cpu_op", f"op{at % 10}", at, count, 1, {}) for at in range(count)]
        + [*_steps(2_000)]
    )


def _before(filling: str) -> Make:
    """Return a maker of a file with ``filling`` before its first event."""

    def make(rng: random.Random, size: int) -> bytes:
        text = kineto(rng, 5_000)
        return text[:1] + (filling * (size // len(filling))).encode() + text[1:]

    return make


def _flows(rng: random.Random, size: int) -> bytes:
    """Starts and ends of flows, all with one id, or each with its own and no partner."""
    one = rng.random() < 0.5
    flows = [
        json.dumps(
            {"ph": "s" if at % 2 else "f", "id": 1 if one else at, "cat": "ac2g", "name": "ac2g",
             "pid": 100, "tid": 1, "ts": at, "bp": "e"}
        )
        for at in range(max(size // 95, 1))
    ]  # fmt: skip
    return _kineto([*flows, *_steps(2000)])


def _same_correlation(rng: random.Random, size: int) -> bytes:
    """Launches and kernels that have all the same correlation."""
    events = []
    for at in range(max(size // 260, 1)):
        events.append(_event("cuda_runtime", "cudaLaunchKernel", at, 1, 1, {"correlation": 1}))
        args = {"device": 0, "stream": at % 3, "correlation": 1}
        events.append(_event("kernel", "k", at + 1, 1, 7, args, pid=0))
    return _kineto(events)


def _planes(rng: random.Random, size: int) -> bytes:
    """A plane of a GPU for each kernel."""
    planes = []
    for at in range(max(size // 130, 1)):
        plane = PlaneWriter(f"/device:GPU:{at}")
        plane.line("Stream #7(Kernel)", [plane.event("k", at, 1_000_000, correlation_id=at + 1)])
        planes.append(plane.encode())
    return b"".join(planes)


def _lines(rng: random.Random, size: int) -> bytes:
    """A stream for each kernel."""
    plane = PlaneWriter("/device:GPU:0")
    for at in range(max(size // 45, 1)):
        plane.line(f"Stream #{at}(Kernel)", [plane.event("k", at, 1_000_000)], number_=at)
    return plane.encode()


def _empty_events(rng: random.Random, size: int) -> bytes:
    plane = PlaneWriter("/device:GPU:0")
    plane.line("Stream #7(Kernel)", [b"\x22\x00" * (size // 2)], number_=7)
    return plane.encode() + xplane(rng, 2_000)


def _metadata(rng: random.Random, size: int) -> bytes:
    """A name for each kernel, and as many stats that nothing has."""
    plane = PlaneWriter("/device:GPU:0")
    count = max(size // 70, 1)
    plane.line("Stream #7(Kernel)", [plane.event(f"k{at}", at * 10, 5) for at in range(count)])
    for at in range(count):
        plane.stat(f"s{at}", at, 4)
    return plane.encode()


def _stats(rng: random.Random, size: int) -> bytes:
    """One event with all the stats of the file."""
    plane = PlaneWriter("/device:GPU:0")
    stats = b"".join(plane.stat("x", at, 4) for at in range(max(size // 7, 1)))
    plane.line("Stream #7(Kernel)", [plane.event("k", 10, 5, stats)])
    return plane.encode() + message(1, number(1, 1))


def _changed_export(*statements: str) -> Make:
    """Return a maker of an SQLite export with rows that ``statements`` change."""

    def make(rng: random.Random, size: int) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.sqlite"
            path.write_bytes(nsys(rng, size))
            with contextlib.closing(sqlite3.connect(path)) as base:
                for statement in statements:
                    base.execute(statement)
                base.commit()
            return path.read_bytes()

    return make


def _many_tables(rng: random.Random, size: int) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.sqlite"
        path.write_bytes(nsys(rng, 60_000))
        with contextlib.closing(sqlite3.connect(path)) as base:
            for at in range(max(size // 4_500, 1)):
                base.execute(f"CREATE TABLE t{at} (a INTEGER, b TEXT)")
            base.commit()
        return path.read_bytes()


def _long_cell(rng: random.Random, size: int) -> bytes:
    return _printed(iter(["k", rng.choice(("x", "<", "::", '""')) * (size // 2), "k"]))


def _many_columns(rng: random.Random, size: int) -> bytes:
    count = max(size // 12, 1)
    header = ",".join(f'"c{at}"' for at in range(count))
    return (_PRINTED.split("\n")[0] + f'\n"Start","Duration",{header},"Name"\n1,2,3\n').encode()


def _empty_lines(rng: random.Random, size: int) -> bytes:
    return rng.choice((b"\n", b",\n", b"==1== \n", b'""\n', b"|\n")) * (size // 4)


def _nested_pickle(rng: random.Random, size: int) -> bytes:
    return b"\x80\x02" + b"]" * (size // 2) + b"a" * (size // 2 - 1) + b"."


def _repeated_pickle(rng: random.Random, size: int) -> bytes:
    """Lists that hold the one before them many times: exponential where they are copied."""
    inner: list[Any] = [{"filename": "a.py", "line": 1, "name": "f"}]
    for _ in range(min(size // 60, 30)):
        inner = [inner] * 8
    entry = {"action": "alloc", "addr": 1, "size": 1, "stream": 0, "time_us": 1, "frames": inner}
    return pickle.dumps({"segments": [], "device_traces": [[entry]]}, protocol=2)


def _stacks(rng: random.Random, size: int) -> bytes:
    frames = [{"filename": f"{at}.py", "line": at, "name": "f"} for at in range(max(size // 60, 1))]
    entries = [
        {"action": "alloc", "addr": at, "size": 1, "stream": 0, "time_us": at, "frames": frames}
        for at in range(200)
    ]
    return pickle.dumps({"segments": [], "device_traces": [entries]}, protocol=2)


SHAPES: Final = (
    Shape("empty events", "kineto", _many(lambda at: "{}")),
    Shape("empty events", "kineto", _many(lambda at: "{}"), gzip=True),
    Shape("numbers for events", "kineto", _many(str)),
    Shape("empty lists for events", "kineto", _many(lambda at: "[]")),
    Shape("a device each", "kineto", _kernel_with(device=lambda at: at, pid=lambda at: at)),
    Shape("a stream each", "kineto", _kernel_with(stream=lambda at: at, tid=lambda at: at)),
    Shape("a name each", "kineto", _kernel_with(name=lambda at: f"kernel_{at}_v{at % 7}")),
    Shape("a template each", "kineto", _kernel_with(name=lambda at: f"void k<{at}, f<int>>(T*)")),
    Shape("a grid each", "kineto", _kernel_with(grid=lambda at: [at, 1, 1])),
    Shape("an argument each", "kineto", _many(lambda at: json.dumps({
        "ph": "X", "cat": "kernel", "name": "k", "ts": at, "dur": 1, "args": {f"a{at}": at}}))),
    Shape("a category each", "kineto", _many(lambda at: _event(f"c{at}", "x", at, 1, 1, {}))),
    Shape("a phase each", "kineto", _many(lambda at: json.dumps({"ph": f"p{at}", "ts": at}))),
    Shape("a thread each", "kineto", _many(lambda at: _event("cpu_op", "aten::mm", at, 5, at, {}))),
    Shape("a process each", "kineto", _many(
        lambda at: _event("cpu_op", "aten::mm", at, 5, 1, {}, pid=at))),
    Shape("a step each", "kineto", _many(
        lambda at: _event("user_annotation", f"ProfilerStep#{at}", at * 10, 9, 1, {}))),
    Shape("one step's marks", "kineto", _many(
        lambda at: _event("user_annotation", "ProfilerStep#1", at * 10, 9, 1, {}))),
    Shape("steps far apart", "kineto", _many(
        lambda at: _event("user_annotation", f"ProfilerStep#{at * 10**9}", at * 10, 9, 1, {}))),
    Shape("a range each", "kineto", _many(
        lambda at: _event("user_annotation", f"range {at}", at * 10, 9, 1, {}))),
    Shape("a module each", "kineto", _many(
        lambda at: _event("python_function", f"nn.Module: Conv2d_{at}", at * 10, 9, 1, {
            "Python id": at, "Python parent id": at - 1}))),
    Shape("a counter each", "kineto", _many(lambda at: json.dumps(
        {"ph": "C", "name": f"c{at}", "ts": at, "pid": 0, "args": {f"v{at}": at}}))),
    Shape("shapes of operators", "kineto", _many(lambda at: _event(
        "cpu_op", "aten::conv2d", at * 10, 9, 1, {"Input Dims": [[at, 3, 9, 9], [8, 3, 3, 3]]}))),
    Shape("collectives", "kineto", _kernel_with(
        name=lambda at: "ncclDevKernel_AllReduce_Sum_f32_RING_LL", Collective_name=lambda at:
        "allreduce", Seq=lambda at: at, Process_Group_Name=lambda at: str(at))),
    Shape("at one time", "kineto", _kernel_with(ts=lambda at: 10, stream=lambda at: at % 50)),
    Shape("without duration", "kineto", _kernel_with(dur=lambda at: 0)),
    Shape("overlapping", "kineto", _kernel_with(dur=lambda at: 10**6, stream=lambda at: at % 9)),
    Shape("far apart", "kineto", _kernel_with(ts=lambda at: at * 10**9)),
    Shape("nested ranges", "kineto", _nested),
    Shape("crossing ranges", "kineto", _crossing),
    Shape("flows", "kineto", _flows),
    Shape("one correlation", "kineto", _same_correlation),
    Shape("a long name", "kineto", _long("NAME")),
    Shape("a long argument", "kineto", _long("ARGUMENT")),
    Shape("spaces", "kineto", _before(" ")),
    Shape("spaces", "kineto", _before(" "), gzip=True),
    Shape("keys", "kineto", _before('"x":1,')),
    Shape("nested keys", "kineto", _before('"x":[[[[1]]]],')),
    Shape("zeros", "kineto", lambda rng, size: bytes(size)),
    Shape("zeros", "kineto", lambda rng, size: bytes(size), gzip=True),
    Shape("spaces only", "kineto", lambda rng, size: b" " * size, gzip=True),
    Shape("brackets", "kineto", lambda rng, size: b"[" * size),
    Shape("one letter", "kineto", lambda rng, size: rng.choice((b'"', b"{", b"a", b"-")) * size),
    Shape("planes", "xplane", _planes),
    Shape("lines", "xplane", _lines),
    Shape("empty events", "xplane", _empty_events),
    Shape("empty events", "xplane", _empty_events, gzip=True),
    Shape("names", "xplane", _metadata),
    Shape("stats", "xplane", _stats),
    Shape("a device each", "nsys", _changed_export(
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = rowid")),
    Shape("a stream each", "nsys", _changed_export(
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET streamId = rowid")),
    Shape("a process each", "nsys", _changed_export(
        "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET globalTid = rowid << 24")),
    Shape("one correlation", "nsys", _changed_export(
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = 1",
        "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET correlationId = 1")),
    Shape("at one time", "nsys", _changed_export(
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 1000, end = 2000")),
    Shape("nested ranges", "nsys", _changed_export(
        "UPDATE NVTX_EVENTS SET start = rowid, end = 1000000000 - rowid")),
    Shape("many tables", "nsys", _many_tables),
    Shape("a long cell", "csv", _long_cell),
    Shape("many columns", "csv", _many_columns),
    Shape("empty lines", "csv", _empty_lines),
    Shape("a name each", "csv", lambda rng, size: _printed(
        f"k{at}" for at in range(size // 75))),
    Shape("nested", "snapshot", _nested_pickle),
    Shape("repeated", "snapshot", _repeated_pickle),
    Shape("stacks", "snapshot", _stacks),
)  # fmt: skip


# Costs


def answered(files: Files, opened: str, folder: Path, at: Callable[[str], None]) -> Answer:
    """Return what came of a file, and what every command took; ``at`` hears which one begins."""
    for name, content in files.items():
        (folder / name).write_bytes(content)
    costs: dict[str, Cost] = {}
    answer = Answer("read", costs=costs)

    @contextlib.contextmanager
    def costing(command: str) -> Iterator[None]:
        at(command)
        answer.command = command
        before = _resident()
        reset_peak()
        begun = time.process_time()
        try:
            yield
        finally:
            cost = Cost(time.process_time() - begun, max(peak_bytes() - before, 0))
            costs[command] = cost

    try:
        with costing("open"):
            trace = traceana.open(folder / opened)
        for command, run in answers._commands(with_methods(trace), 0, folder / "out"):
            with costing(command):
                try:
                    run()
                except TraceanaError as error:
                    if error.exit_code is ExitCode.INTERNAL or "\n" in str(error):
                        raise AssertionError(str(error)) from error
    except TraceanaError as error:
        answer.kind, answer.code, answer.message = "refused", int(error.exit_code), str(error)
        if error.exit_code is ExitCode.INTERNAL or len(str(error).splitlines()) != 1:
            answer.kind = "traceback"
    except MemoryError:
        answer.kind = "memory"
    except BaseException as error:  # a panic of polars is no Exception  # noqa: BLE001
        answer.kind = "traceback"
        answer.message = "".join(traceback.format_exception(error))[-1_500:]
    return answer


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def in_a_child(files: Files, opened: str, seconds: float, memory: int) -> Answer:
    """Return the answer of a forked process, which is ended where it exceeds its limits."""
    if not can_fork():
        raise RuntimeError("polars has run a query in this process")
    folder = Path(tempfile.mkdtemp(prefix="traceana-shapes-"))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            whole = int(seconds) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (whole, whole))
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            os.environ["XDG_CONFIG_HOME"] = os.environ["XDG_CACHE_HOME"] = str(folder / "home")

            def at(command: str) -> None:
                os.write(writing, json.dumps(command).encode() + b"\n")

            answer = answered(files, opened, folder, at)
            os.write(writing, json.dumps(_as_dict(answer)).encode() + b"\n")
        finally:
            os._exit(0)
    os.close(writing)
    try:
        return _heard(child, reading, memory)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _heard(child: int, pipe: int, memory: int) -> Answer:
    """Return the answer of ``child``; kill it where it takes more than ``memory`` or hangs."""
    kind, received, end = "", b"", time.monotonic() + 20 * LONGEST_S
    os.set_blocking(pipe, False)
    while True:
        with contextlib.suppress(BlockingIOError):
            part = os.read(pipe, 1 << 16)
            if not part:
                break
            received += part
            continue
        with contextlib.suppress(OSError):
            pages = int(Path(f"/proc/{child}/statm").read_text().split()[1])
            if pages * os.sysconf("SC_PAGE_SIZE") > memory or time.monotonic() > end:
                kind = "memory" if time.monotonic() <= end else "hang"
                os.kill(child, signal.SIGKILL)
        time.sleep(0.02)
    os.close(pipe)
    _, status = os.waitpid(child, 0)
    lines = [json.loads(line) for line in received.split(b"\n") if line]
    if lines and isinstance(lines[-1], dict):
        fields = lines[-1]
        fields["costs"] = {name: Cost(*cost) for name, cost in fields["costs"].items()}
        return Answer(**fields)
    if not kind:
        ended = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        kind = "hang" if ended in (signal.SIGXCPU, signal.SIGKILL) else "abort"
    return Answer(kind, command=str(lines[-1]) if lines else "", message=f"status {status}")


def _as_dict(answer: Answer) -> dict[str, Any]:
    costs = {name: (cost.cpu, cost.memory) for name, cost in answer.costs.items()}
    return {**vars(answer), "costs": costs}


class Budgets:
    """The costs of valid files of a format, by command and size."""

    def __init__(self, format_: str, most: int) -> None:
        """Measure valid files up to about ``most`` bytes."""
        name, make = VALID[format_]
        self._costs: list[tuple[int, dict[str, Cost]]] = []
        for size in [size for size in _SIZES if size <= most] or [_SIZES[0]]:
            content = make(random.Random(0), size)
            answer = in_a_child({name: content}, name, LONGEST_S, 8 << 30)
            if answer.kind not in ("read", "ledger"):
                raise AssertionError(f"valid {format_} of {size} bytes: {answer}")
            self._costs.append((len(content), answer.costs))

    def of(self, command: str, size: int) -> Cost:
        """Return the most that ``command`` may take for a file that inflates to ``size`` bytes."""
        sizes = [known for known, _ in self._costs]
        costs = [each.get(command, Cost(0, 0)) for _, each in self._costs]
        place = min(max(bisect.bisect_left(sizes, size), 1), max(len(sizes) - 1, 0))
        cpu = _between(sizes, [cost.cpu for cost in costs], place, size)
        memory = _between(sizes, [float(cost.memory) for cost in costs], place, size)
        return Cost(
            CPU_TIMES * max(cpu, CPU_FLOOR_S), int(MEMORY_TIMES * max(memory, MEMORY_FLOOR))
        )


def _between(sizes: Sequence[int], values: Sequence[float], place: int, size: int) -> float:
    """Return the value at ``size`` on the line through the measured sizes around it."""
    if len(sizes) == 1:
        return values[0] * max(size / sizes[0], 1)
    (low, high), (first, second) = sizes[place - 1 : place + 1], values[place - 1 : place + 1]
    return first + (second - first) * (size - low) / (high - low)


def exceeded(answer: Answer, budgets: Budgets, size: int, *, has_steps: bool) -> list[str]:
    """Return a line for each promise that ``answer`` breaks; ``has_steps``: with a step each."""
    excepted = PER_STEP_AND_ROW if has_steps else ()
    if answer.kind in ("memory", "hang") and answer.command in excepted:
        return []
    if answer.kind not in ("read", "ledger", "refused"):
        return [f"{answer.kind} in {answer.command}: {answer.message}"]
    lines = []
    for command, cost in answer.costs.items():
        most = budgets.of(command, size)
        if cost.cpu > most.cpu and command not in excepted:
            lines.append(f"{command}: {cost.cpu:.1f} s of CPU time, at most {most.cpu:.1f}")
        if cost.memory > most.memory and command not in PER_STEP_AND_ROW:
            lines.append(f"{command}: {cost.memory >> 20} MiB, at most {most.memory >> 20}")
    return lines


def input_of(seed: int, shape: Shape, at: int, most: int) -> tuple[Files, str, int]:
    """Return the files of one input, the one that is opened, and the size that it inflates to."""
    rng = random.Random(f"{seed}:{shape.format}:{shape.name}:{shape.gzip}:{at}")
    content = shape.make(rng, int(10 ** rng.uniform(4, math.log10(most))))
    name, _ = VALID[shape.format]
    if not shape.gzip:
        return {name: content}, name, len(content)
    packed = {f"{name}.gz": gzip.compress(content, 9, mtime=0)}
    return packed, f"{name}.gz", len(content)


# Types of files and the environment


def _command_line(folder: Path, words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return what is wrong with the end of a command in ``folder``."""
    given = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), **environment}
    given["PYTHONPATH"] = str(Path(traceana.__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, "-m", "traceana", *words],
        cwd=folder,
        env={name: value for name, value in given.items() if value != _UNSET},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        _, error = process.communicate(timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return ["hang"]
    known = {int(code) for code in ExitCode} - {ExitCode.INTERNAL}
    if process.returncode not in known or b"Traceback" in error or b"panicked" in error:
        return [f"exit {process.returncode}: {error.decode(errors='replace')[-600:]}"]
    return []


_UNSET: Final = "\0unset"
ENVIRONMENTS: Final[Mapping[str, Mapping[str, str]]] = {
    "no threads": {"POLARS_MAX_THREADS": "0"},
    "threads that are no number": {"POLARS_MAX_THREADS": "x"},
    "many threads": {"POLARS_MAX_THREADS": "100000"},
    "no home": {"HOME": _UNSET, "XDG_CACHE_HOME": _UNSET},
    "a home that is a device": {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null"},
    "configuration that is a device": {"XDG_CONFIG_HOME": "/dev/zero", "HOME": "/dev/null"},
    "temporary files nowhere": {"TMPDIR": "/nonexistent"},
    "columns": {"COLUMNS": "0", "LINES": "-1"},
    "many columns": {"COLUMNS": "9" * 30},
    "a locale of no one": {"LC_ALL": "xx_XX.nothing", "LANG": "C", "PYTHONIOENCODING": "ascii"},
    "a terminal of no one": {"TERM": "\x1b[31m", "FORCE_COLOR": "1", "NO_COLOR": ""},
    "without docstrings": {"PYTHONOPTIMIZE": "2"},
    "warnings as errors": {"PYTHONWARNINGS": "error"},
    "no path": {"PATH": ""},
    "a time zone of no one": {"TZ": "Mars/Olympus"},
}


def _special(folder: Path, kind: str) -> str:
    """Make a file or folder of an odd type; return its name."""
    path = folder / "input.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        import socket

        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    elif kind == "link to itself":
        path.symlink_to(path.name)
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    elif kind == "sparse file":
        with path.open("wb") as file:
            file.truncate(64 << 30)
    elif kind == "not readable":
        path.write_bytes(b"{}")
        path.chmod(0)
    else:
        path.mkdir()
        inside = {"folder with pipes": 200, "folder of folders": 2_000}[kind]
        for at in range(inside):
            if kind == "folder with pipes":
                os.mkfifo(path / f"rank{at}.json")
            else:
                (path / f"rank{at}.json").mkdir()
    return path.name


SPECIAL: Final = (
    *("pipe", "socket", "link to itself", "link to a device", "sparse file", "not readable"),
    *("folder with pipes", "folder of folders"),
)
_WORDS: Final = ("report", "info", "kernels", "save", "export", "ranks", "history", "diff")


def of_environment(seed: int, at: int) -> tuple[str, list[str]]:
    """Return the name of input ``at`` of the files' types and environments, and what is wrong."""
    rng = random.Random(f"{seed}:environment:{at}")
    command = rng.choice(_WORDS)
    folder = Path(tempfile.mkdtemp(prefix="traceana-shapes-"))
    try:
        if at % 2:
            kind = rng.choice(SPECIAL)
            file, environment = _special(folder, kind), {}
        else:
            kind = rng.choice([*ENVIRONMENTS])
            file, environment = "run.json", dict(ENVIRONMENTS[kind])
            (folder / file).write_bytes(kineto(rng, 20_000))
        words = [command, *[file] * (2 if command == "diff" else 1)]
        if command in ("save", "export"):
            words += ["-o", "bundle" if command == "save" else "o.perfetto.json"]
        lines = _command_line(folder, words, environment)
        return f"{command} with {kind}", lines
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Tally:
    """Inputs by kind, and what broke a promise."""

    kinds: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    highest: dict[str, float] = field(default_factory=dict)


def run(
    seed: int,
    *,
    count: int,
    seconds: float,
    most: int = 3_000_000,
    shapes: Sequence[Shape] = SHAPES,
    environments: bool = True,
    watch: Callable[[str], None] = lambda text: None,
) -> Tally:
    """Run ``count`` inputs, the shapes in turn, for at most ``seconds``."""
    everything()
    tally, budgets = Tally(), dict[str, Budgets]()
    end = time.monotonic() + seconds
    for at in range(count):
        if time.monotonic() > end:
            break
        if environments and at % 8 == 7:
            name, lines = of_environment(seed, at // 8)
            tally.kinds["command line"] += 1
            where = f"environment {at // 8}: {name}"
        else:
            shape = shapes[at % len(shapes)]
            if shape.format not in budgets:
                budgets[shape.format] = Budgets(shape.format, most)
            files, opened, size = input_of(seed, shape, at, most)
            answer = in_a_child(files, opened, LONGEST_S, 4 << 30)
            has_steps = shape.name in ("a step each", "steps far apart")
            lines = exceeded(answer, budgets[shape.format], size, has_steps=has_steps)
            tally.kinds[answer.kind] += 1
            for command, cost in answer.costs.items():
                share = cost.cpu / budgets[shape.format].of(command, size).cpu
                tally.highest[command] = max(tally.highest.get(command, 0), share)
            packed = " in gzip" if shape.gzip else ""
            where = f"{shape.format} {shape.name}{packed} {at} of {size:,} bytes"
        for line in lines:
            tally.wrong.append(f"{where}: {line}")
            watch(tally.wrong[-1])
    return tally


def main() -> int:
    """Run the shapes of the command line; return 1 where one broke a promise."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.shapes", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.strftime("%Y%m%d")))
    parser.add_argument("--count", type=int, default=10**9)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--most", type=int, default=3_000_000, help="bytes of the largest input")
    parser.add_argument("--only", default="", help="part of the names of the shapes to run")
    given = parser.parse_args()
    shapes = [shape for shape in SHAPES if given.only in f"{shape.format} {shape.name}"]
    tally = run(
        given.seed,
        count=given.count,
        seconds=given.minutes * 60,
        most=given.most,
        shapes=shapes,
        environments=not given.only,
        watch=lambda text: print(text, flush=True),
    )
    total = tally.kinds.total()
    print(f"seed {given.seed}: {total:,} inputs, {dict(tally.kinds)}, {len(tally.wrong)} failures")
    largest = sorted(tally.highest.items(), key=lambda item: -item[1])[:5]
    print("largest shares of a budget:", ", ".join(f"{name} {part:.0%}" for name, part in largest))
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())

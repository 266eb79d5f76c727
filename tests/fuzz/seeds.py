"""The sound inputs that the campaign damages: small files of every format that is read.

Cut down from the recordings in ``fixtures/``, or written by the tests' own writers, so that one
costs a fraction of a second. They are the same for every seed of the campaign.
"""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from tests.fuzz import space
from tests.support.synthetic import Scenario, write_kineto, write_nsys

FIXTURES: Final = Path(__file__).parents[2] / "fixtures"
Role = Literal["trace", "rules", "model", "pairs", "counters", "algorithms"]


@dataclass(frozen=True)
class Seed:
    """A sound input.

    ``files`` are its files by relative path. ``opened`` is the one that is given to traceana, the
    empty name for the folder itself. ``damaged`` are the files that mutations change, all of them
    where it is empty. ``role`` is how the opened file is used: as a trace, or with an option beside
    the trace ``beside``.
    """

    name: str
    format: str
    files: Mapping[str, bytes]
    opened: str = ""
    damaged: tuple[str, ...] = ()
    role: Role = "trace"
    beside: str = ""
    content: Literal["json", "sqlite", "protobuf", "packets", "table", "csv", "toml"] = "json"
    extra: Mapping[str, str] = field(default_factory=dict)


def scenario(steps: int = 3) -> Scenario:
    """Return training steps of a small CNN with copies, waits and a data loader."""
    run = Scenario()
    names = {
        "conv": "volta_scudnn_128x64_relu_interior_nn_v1",
        "winograd": "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
        "relu": "void at::native::vectorized_elementwise_kernel<4, relu>(int)",
        "gemm": "volta_sgemm_128x64_nn",
        "sgd": "void at::native::multi_tensor_apply_kernel<sgd>(int)",
    }
    for number in range(steps):
        at = number * 60_000
        run.step(number, at, at + 58_000)
        run.data_loader(at + 100, at + 5_000)
        run.copy(
            "HtoD", 4096, at=at + 6_000, begins=at + 6_500, duration=1_000, memory="pageable",
            synchronous=True,
        )  # fmt: skip
        when, begins = at + 10_000, at + 10_500
        for operator, kernels in (
            ("nn.Module: Conv2d_0", ()),
            ("aten::cudnn_convolution", ("conv", "winograd")),
            ("aten::relu_", ("relu",)),
            ("aten::addmm", ("gemm",)),
            ("Optimizer.step#SGD.step", ("sgd",)),
        ):
            if not kernels:
                run.range(operator, when, when + 2_900)
                continue
            run.operator(operator, when + 10, when + 2_000)
            for i, kernel in enumerate(kernels):
                run.launch(
                    at=when + 100 + 300 * i, begins=begins, duration=3_000, name=names[kernel]
                )
                begins += 3_200
            when += 3_000
        run.collective(20, at=at + 25_000, begins=at + 26_000, duration=2_000)
        run.memset(512, at=at + 29_000, begins=at + 30_500, duration=100)
        event = run.record_event(at=at + 31_000, completed=at + 31_500)
        run.wait_event(event, 20, at=at + 32_000)
        run.copy("DtoH", 64, at=at + 33_000, begins=at + 33_500, duration=200)
        run.malloc(at + 36_000, at + 37_000)
        run.sync(at + 40_000, at + 45_000, "stream", stream=7)
        run.overhead(at + 46_000, at + 46_500)
    return run


def all_seeds() -> list[Seed]:
    """Return the seeds of all formats, in a fixed order."""
    return [seed for make in _MAKERS for seed in _made(make)]


def of(format_: str) -> list[Seed]:
    """Return the seeds of one format."""
    return _made(next(make for make in _MAKERS if make.__name__ == f"_{format_.replace('-', '_')}"))


def _made(make: Callable[[Path], Iterator[Seed]]) -> list[Seed]:
    with tempfile.TemporaryDirectory(prefix="traceana-fuzz-seeds-") as folder:
        return list(make(Path(folder)))


def zipped(content: bytes) -> bytes:
    """Return ``content`` as gzip, the same bytes every time."""
    return gzip.compress(content, mtime=0)


def _kineto(folder: Path) -> Iterator[Seed]:
    plain = _kineto_text(folder)
    events = json.loads(plain)["traceEvents"]
    bare = json.dumps(events).encode()
    yield Seed("gpu", "kineto", {"run.json": plain}, "run.json")
    yield Seed("gpu-gz", "kineto", {"run.json.gz": zipped(plain)}, "run.json.gz")
    yield Seed("array", "kineto", {"run.json": bare}, "run.json")
    for name in ("ranges", "stack"):
        text = _cut_kineto(FIXTURES / f"alexnet-cpu-{name}.json.gz")
        yield Seed(f"cpu-{name}", "kineto", {"run.json": text}, "run.json")
        yield Seed(f"cpu-{name}-gz", "kineto", {"run.json.gz": zipped(text)}, "run.json.gz")


_MODULES: Final = {
    "aten::cudnn_convolution": "Conv2d",
    "aten::relu_": "ReLU",
    "aten::addmm": "Linear",
}


def _kineto_text(folder: Path, **keys: Any) -> bytes:
    """Return the scenario with what the synthetic writer leaves out: flows, memory, stacks."""
    whole = json.loads(write_kineto(scenario(), folder / "kineto.json").read_text())
    events = whole.pop("traceEvents")
    more: list[dict[str, Any]] = []
    for event in [one for one in events if one["cat"] in ("cuda_runtime", "kernel")]:
        start = event["cat"] == "cuda_runtime"
        flow = {"ph": "s" if start else "f", "id": event["args"]["correlation"], "cat": "ac2g"}
        place = {key: event[key] for key in ("pid", "tid", "ts")}
        more.append({**flow, **place, "name": "ac2g", **({} if start else {"bp": "e"})})
    for number, event in enumerate([one for one in events if one["cat"] == "cpu_op"]):
        event["args"] |= {
            "External id": number + 1,
            "Sequence number": number,
            "Fwd thread id": 0,
            "Input Dims": [[8, 3, 32, 32], [16, 3, 3, 3], []],
            "Input type": ["float", "float", ""],
        }
        place = {key: event[key] for key in ("pid", "tid", "ts")}
        flow = {"id": number, "cat": "fwdbwd", "name": "fwdbwd"}
        more.append({"ph": "s", **flow, **place})
        more.append({"ph": "f", "bp": "e", **flow, **place, "tid": 12})
        more.append(
            {
                "ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "s": "t", **place,
                "args": {"Total Allocated": 1024, "Total Reserved": 4096, "Device Id": 0,
                         "Device Type": 1, "Addr": 139_000 + number // 2,
                         "Bytes": 512 if number % 2 == 0 else -512},
            }
        )  # fmt: skip
        if (module := _MODULES.get(event["name"])) is not None:
            more.append(
                {
                    "ph": "X", "cat": "python_function", "name": f"nn.Module: {module}_0",
                    **place, "ts": event["ts"] - 0.005, "dur": event["dur"] + 0.01,
                    "args": {"Python id": number + 1, "Python parent id": number or None,
                             "Python module id": 0},
                }
            )  # fmt: skip
    last = max((one for one in events if one["cat"] == "kernel"), key=lambda one: one["ts"])
    group = {
        "Collective name": "send", "dtype": "Half", "In msg nelems": 8, "Out msg nelems": 16,
        "Group size": 2, "Process Group Name": "0", "Process Group Description": "default_pg",
        "Process Group Ranks": "[0, 1]", "Seq": 3, "Dst Rank": 1,
    }  # fmt: skip
    start = last["ts"] + 1
    more.append({**last, "name": "ncclDevKernel_SendRecv(x)", "ts": start, "args": {
        **last["args"], **group, "External id": 9_000}})  # fmt: skip
    more.append({"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 100, "tid": 12,
                 "ts": start, "dur": 1, "args": {**group, "External id": 9_000}})  # fmt: skip
    named = {"ph": "M", "name": "process_name", "pid": 100, "tid": 0, "ts": 0}
    more.append({**named, "args": {"name": "python"}})
    whole |= {"distributedInfo": {"rank": 0, "world_size": 1, "backend": "nccl"}, **keys}
    whole["traceEvents"] = events + more
    return json.dumps(whole, separators=(",", ":")).encode()


def _cut_kineto(path: Path, keep: int = 90) -> bytes:
    """Return the recording with its first events, in the exporter's own layout."""
    text = gzip.decompress(path.read_bytes()).decode()
    between = "\n  },\n  {\n"
    events = text.split(between)
    # The first event of a step, whatever is nested in it, and the marks of the window at the end.
    return between.join([*events[:keep], *events[len(events) // 2 :][:keep], events[-1]]).encode()


def _chrome(folder: Path) -> Iterator[Seed]:
    for name in ("keras", "jax"):
        whole = json.loads(_unzipped(FIXTURES / "xplane" / f"alexnet-cpu-{name}.trace.json.gz"))
        events = whole["traceEvents"]
        whole["traceEvents"] = [*events[:60], *events[len(events) // 2 :][:120], {}]
        text = json.dumps(whole, separators=(",", ":")).encode()
        yield Seed(name, "chrome", {"run.trace.json": text}, "run.trace.json")
        yield Seed(f"{name}-gz", "chrome", {"run.trace.json.gz": zipped(text)}, "run.trace.json.gz")
    for name in ("caffe", "cntk"):
        text = _unzipped(FIXTURES / "legacy" / f"alexnet-cpu-{name}.json.gz")
        yield Seed(name, "chrome", {"run.json": text}, "run.json")


def _mxnet(folder: Path) -> Iterator[Seed]:
    whole = json.loads(_unzipped(FIXTURES / "legacy" / "alexnet-cpu-mxnet.json.gz"))
    events = whole["traceEvents"]
    whole["traceEvents"] = [*events[:40], *events[len(events) // 2 :][:160]]
    text = json.dumps(whole, indent=4).encode()
    yield Seed("mxnet", "mxnet", {"run.json": text}, "run.json")
    yield Seed("mxnet-gz", "mxnet", {"run.json.gz": zipped(text)}, "run.json.gz")


def _unzipped(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes())


def _xplane(folder: Path) -> Iterator[Seed]:
    from tests.fuzz.xplane_seeds import gpu_with_program, training

    gpu = training()
    yield Seed("gpu", "xplane", {"run.xplane.pb": gpu}, "run.xplane.pb", content="protobuf")
    yield Seed(
        "gpu-gz", "xplane", {"run.xplane.pb.gz": zipped(gpu)}, "run.xplane.pb.gz",
        content="protobuf",
    )  # fmt: skip
    yield Seed(
        "program", "xplane", {"run.xplane.pb": gpu_with_program()}, "run.xplane.pb",
        content="protobuf",
    )  # fmt: skip
    for name in ("keras", "jax"):
        content = (FIXTURES / "xplane" / f"alexnet-cpu-{name}.xplane.pb").read_bytes()
        cut = space.encoded(space.shortened(space.parsed(content), events=40))
        yield Seed(name, "xplane", {"run.xplane.pb": cut}, "run.xplane.pb", content="protobuf")


def _nsys(folder: Path) -> Iterator[Seed]:
    path = write_nsys(scenario(), folder / "run.sqlite")
    yield Seed("gpu", "nsys", {"run.sqlite": path.read_bytes()}, "run.sqlite", content="sqlite")
    small = _repaged(path, folder / "small.sqlite", 1024)
    yield Seed("gpu-small-pages", "nsys", {"run.sqlite": small}, "run.sqlite", content="sqlite")
    cut = folder / "cut.sqlite"
    shutil.copyfile(FIXTURES / "alexnet-cpu-nsys-2024.2.sqlite", cut)
    with closing(sqlite3.connect(cut)) as connection:
        kept = ("NVTX_EVENTS", "StringIds", "META_DATA_EXPORT", "META_DATA_CAPTURE", "ThreadNames")
        listed = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        for (name,) in listed.fetchall():
            count = connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]
            if name not in kept and not name.startswith("TARGET_INFO") and count < 500:
                connection.execute(f'DROP TABLE IF EXISTS "{name}"')
            elif name not in ("StringIds", "NVTX_EVENTS"):
                connection.execute(f'DELETE FROM "{name}" WHERE rowid > 100')
        connection.commit()
        connection.execute("PRAGMA page_size = 2048")
        connection.execute("VACUUM")
    yield Seed("cpu", "nsys", {"run.sqlite": cut.read_bytes()}, "run.sqlite", content="sqlite")


def _repaged(source: Path, target: Path, size: int) -> bytes:
    shutil.copyfile(source, target)
    with closing(sqlite3.connect(target)) as connection:
        connection.execute(f"PRAGMA page_size = {size}")
        connection.execute("VACUUM")
    return target.read_bytes()


def _nsys_tables(folder: Path) -> Iterator[Seed]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = write_nsys(scenario(), folder / "run.sqlite")
    for kind in ("parquet", "arrow"):
        files: dict[str, bytes] = {}
        with closing(sqlite3.connect(path)) as connection:
            names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            for (name,) in names.fetchall():
                found = connection.execute(f'SELECT * FROM "{name}"')
                columns = [column for column, *_ in found.description]
                values = list(zip(*found.fetchall(), strict=True))
                table = pa.table({c: list(v) for c, v in zip(columns, values, strict=True)})
                sink = pa.BufferOutputStream()
                if kind == "parquet":
                    pq.write_table(table, sink, compression="zstd")
                else:
                    with pa.ipc.new_stream(sink, table.schema) as writer:
                        writer.write_table(table)
                files[f"{name}.{kind}"] = sink.getvalue().to_pybytes()
        yield Seed(kind, "nsys-tables", files, content="table")


def _nvprof(folder: Path) -> Iterator[Seed]:
    from tests.readers.nvprof import writing as nvprof

    kernels, copies, calls, markers = [], [], [], []
    for i in range(30):
        at = 1_000 + 10_000 * i
        kernels.append(nvprof.kernel(at + 500, at + 4_500, correlationId=100 + i, name=1 + i % 2))
        calls.append(nvprof.call(at, at + 300, correlationId=100 + i))
        markers.append(nvprof.marker(at - 100, nvprof.START, id=i + 1))
        markers.append(nvprof.marker(at + 4_600, nvprof.END, id=i + 1))
        if i % 5 == 0:
            copies.append(nvprof.copy(at + 5_000, at + 6_000, 1, correlationId=200 + i))
            calls.append(nvprof.call(at + 4_700, at + 4_900, correlationId=200 + i))
    tables = {
        nvprof.KERNEL: kernels,
        nvprof.MEMCPY: copies,
        nvprof.RUNTIME: calls,
        nvprof.MARKER: markers,
    }
    path = nvprof.database(folder / "run.nvvp", tables)
    yield Seed("gpu", "nvprof", {"run.nvvp": path.read_bytes()}, "run.nvvp", content="sqlite")
    small = _repaged(path, folder / "small.nvvp", 1024)
    yield Seed("gpu-small-pages", "nvprof", {"run.nvvp": small}, "run.nvvp", content="sqlite")


def _printed(folder: Path) -> Iterator[Seed]:
    from tests.readers.nvprof import test_printed as nvprof

    for name, table, first in (
        ("text", nvprof.TEXT, "326.63ms"),
        ("csv", nvprof.CSV, "326.630000"),
    ):
        *head, copy, kernel, memset = table.splitlines()
        rows = []
        for i in range(20):
            at = first.replace("326", str(326 + i))
            rows += [one.replace(one[: len(first)], at, 1) for one in (copy, kernel, memset)]
        text = nvprof.BEGIN + "\n".join([*head, *rows, ""])
        yield Seed(name, "nvprof-printed", {"run.log": text.encode()}, "run.log", content="csv")
    from tests.readers.nvprof import test_metrics as metrics

    trace = (nvprof.BEGIN + nvprof.CSV).encode()
    for name, table in (("metrics-text", metrics.TEXT), ("metrics-csv", metrics.CSV)):
        text = metrics.BEGIN + table
        files = {"step.log": text.encode(), "run.log": trace}
        yield Seed(
            name, "nvprof-printed", files, "step.log", ("step.log",), role="counters",
            beside="run.log", content="csv",
        )  # fmt: skip
        yield Seed(
            f"{name}-alone", "nvprof-printed", {"run.log": text.encode()}, "run.log", content="csv"
        )


def _rocprof(folder: Path) -> Iterator[Seed]:
    from tests.readers.rocprof import writing as rocprof

    kernels, calls = [], []
    for i in range(24):
        at = 1_000 + 10_000 * i
        counters = {"FETCH_SIZE": 2.5 * i, "OccupancyPercent": 31.25, "Wavefronts": 64.0}
        name = f"void k<int, {i % 3}>(float*)"
        kernels.append(
            rocprof.Kernel(i + 1, at + 500, at + 4_500, name, correlation=i + 1, counters=counters)
        )
        calls.append(("hipLaunchKernel", i + 1, at, at + 300))
    copies = [("HOST_TO_DEVICE", 0, 1, 300 + 50 * i, 330 + 50 * i) for i in range(8)]
    steps = [(f"step {i}", 90 + i, 900 + 80_000 * i, 80_000 + 80_000 * i) for i in range(3)]
    trace = rocprof.kernel_trace(kernels)
    measured = rocprof.counter_collection(kernels[:12])
    run = {
        "a_kernel_trace.csv": trace,
        "a_memory_copy_trace.csv": rocprof.memory_copy_trace(copies),
        "a_hip_api_trace.csv": rocprof.api_trace(calls),
        "a_marker_api_trace.csv": rocprof.api_trace(steps, "MARKER_CORE_API"),
        "a_counter_collection.csv": measured,
        "a_agent_info.csv": rocprof.agent_info(),
    }
    yield Seed("run", "rocprof", {n: text.encode() for n, text in run.items()}, content="csv")
    for name, text in (
        ("trace", trace),
        ("rocpd", rocprof.kernel_trace_rocpd(kernels)),
        ("old", rocprof.kernel_trace_6_2(kernels)),
        ("v2", rocprof.kernel_trace_v2(kernels)),
        ("v1", rocprof.results_v1(kernels)),
        ("v1-alone", rocprof.results_v1(kernels, times=False)),
        ("counters-alone", measured),
    ):
        yield Seed(name, "rocprof", {"a.csv": text.encode()}, "a.csv", content="csv")
    files = {"step.csv": measured.encode(), "run.csv": trace.encode()}
    yield Seed(
        "counters", "rocprof", files, "step.csv", ("step.csv",), role="counters", beside="run.csv",
        content="csv",
    )  # fmt: skip


def _rocpd(folder: Path) -> Iterator[Seed]:
    from tests.readers.rocprof import databases
    from tests.readers.rocprof.writing import Kernel

    kernels = [
        Kernel(
            i + 1, 2_000 + 10_000 * i, 6_000 + 10_000 * i, f"void k<int, {i % 3}>(float*)",
            correlation=5 + i % 3, counters={"FETCH_SIZE": 2.5 * i},
        )
        for i in range(20)
    ]  # fmt: skip
    for name, tracked in (("columns", False), ("tracks", True)):
        run = databases.rocpd_run(kernels, tracked=tracked)
        path = databases.rocpd(folder / f"{name}.db", run)
        small = _repaged(path, folder / f"{name}-small.db", 1024)
        yield Seed(name, "rocpd", {"run.db": small}, "run.db", content="sqlite")
    path = databases.legacy(folder / "legacy.db", databases.legacy_run(kernels))
    small = _repaged(path, folder / "legacy-small.db", 1024)
    yield Seed("rocprof", "rocpd", {"run.db": small}, "run.db", content="sqlite")


def _pftrace(folder: Path) -> Iterator[Seed]:
    from tests.readers.rocprof import perfetto
    from tests.readers.rocprof.writing import Kernel

    kernels = tuple(
        Kernel(i + 1, 2_000 + 10_000 * i, 6_000 + 10_000 * i, f"k{i % 3}", correlation=5 + i % 3)
        for i in range(20)
    )
    for name, interned, compressed in (
        ("interned", True, False), ("plain", False, False), ("compressed", True, True),
    ):  # fmt: skip
        content = perfetto.run(kernels, interned=interned).content(compressed=compressed)
        yield Seed(name, "pftrace", {"run.pftrace": content}, "run.pftrace", content="packets")
        zipped_name = {"run.pftrace.gz": zipped(content)}
        yield Seed(f"{name}-gz", "pftrace", zipped_name, "run.pftrace.gz", content="packets")
    from tests.readers.perfetto.test_packets import whole

    content = whole(folder)
    yield Seed("torch", "pftrace", {"run.pftrace": content}, "run.pftrace", content="packets")


def _summaries(folder: Path) -> Iterator[Seed]:
    from tests.readers.summary import writing

    rows = [
        writing.Row(row.name.replace("128x64", f"{number}x64"), row.calls, row.total_ns, row.kind)
        for number in range(1, 5)
        for row in writing.ROWS
    ]
    sizes = """
CUDA Memory Operation Statistics (KiB)

   Total  Operations   Average   Minimum   Maximum  Name
  1024.0          13      78.8     0.004     500.0  [CUDA memcpy HtoD]
"""
    for name, text in (
        ("nvprof", writing.nvprof_text(rows)),
        ("nvprof-old", writing.nvprof_old(rows)),
        ("nvprof-csv", writing.nvprof_csv(rows)),
        ("nsys-2019", writing.nsys_2019(rows) + sizes),
        ("nsys-2023", writing.nsys_2023(rows)),
        ("nsys-csv", writing.nsys_csv(rows)),
        ("rocprof", writing.rocprof_csv(rows)),
        ("rocpd", writing.rocpd_text(rows)),
        ("torch", writing.torch_table(rows)),
        ("mxnet", writing.mxnet_table(rows)),
    ):
        yield Seed(name, "summary", {"run.txt": text.encode()}, "run.txt", content="csv")


def _ncu(folder: Path) -> Iterator[Seed]:
    from tests.readers.ncu import writing as ncu

    trace = _kineto_text(folder)
    units = {
        "gpu__time_duration.sum": "usecond",
        "dram__bytes.sum": "Kbyte",
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": "%",
    }
    names = [work.name for work in scenario().work if hasattr(work, "name")][:24]
    launches = [
        (name, dict(zip(units, (f"{3 + i}.25", f"{i}12.5", "45.5"), strict=True)))
        for i, name in enumerate(names)
    ]
    for page in (ncu.raw, ncu.details):
        text = page(folder / f"{page.__name__}.csv", units, launches).read_bytes()
        files = {"step.csv": text, "run.json": trace}
        yield Seed(
            page.__name__, "ncu", files, "step.csv", ("step.csv",), role="counters",
            beside="run.json", content="csv",
        )  # fmt: skip
        yield Seed(f"{page.__name__}-alone", "ncu", {"step.csv": text}, "step.csv", content="csv")
    from tests.readers.ncu import test_text

    yield Seed("text", "ncu", {"step.txt": test_text.PAGE.encode()}, "step.txt", content="csv")


def _bundle(folder: Path) -> Iterator[Seed]:
    import traceana

    (folder / "run.json").write_bytes(_kineto_text(folder))
    saved = traceana.open(folder / "run.json").save(folder / "run.traceana")
    yield Seed("gpu", "bundle", _contents(saved), content="table")


def _run(folder: Path) -> Iterator[Seed]:
    from tests.support.runs import write_run

    times = [60_000_000 + 1000 * i for i in range(12)]
    run = write_run(
        folder / "run", steps_ns=times, profiled_ns=times, gpu=True, parameters=1000,
    )  # fmt: skip
    record = json.loads((run / "traceana-run.json").read_text())
    record["traces"] = ["run.json"]
    (run / "traceana-run.json").write_text(json.dumps(record))
    (run / "run.json").write_bytes(_kineto_text(folder))
    files = _contents(run)
    described = tuple(name for name in files if name != "run.json")
    yield Seed("run", "run", files, damaged=described)


def _ranks(folder: Path) -> Iterator[Seed]:
    files = {}
    for rank in range(2):
        known = {"rank": rank, "world_size": 2, "backend": "nccl"}
        files[f"rank{rank}.json"] = _kineto_text(folder, distributedInfo=known)
    yield Seed("kineto", "ranks", files)


def _contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


_RULES: Final = """\
[[rule]]
id = "mine.winograd"
reason = "Winograd convolutions of our own library"
head = '\\bvolta_scudnn_winograd_(?P<tile>\\d+x\\d+)'
category = "conv"
algorithm = "winograd"
library = "cudnn"

[[rule]]
id = "mine.gemm"
reason = "GEMMs of our own library"
head = '\\bsgemm_\\d+x\\d+'
category = "gemm"
precision = "fp32"
"""

_PAIRS: Final = {
    "pairs.toml": b'"Conv2d_0" = "Conv2d_0"\n"Linear_0" = "Linear_0"\n',
    "pairs.csv": b"a,b\nConv2d_0,Conv2d_0\nLinear_0,Linear_0\n",
}


def _options(folder: Path) -> Iterator[Seed]:
    trace = _kineto_text(folder)
    layers = json.loads((FIXTURES / "alexnet-cpu-ranges.layers.json").read_text())
    layers["layers"] = layers["layers"][:8]
    manifest = json.dumps(layers, indent=1).encode()
    timed = json.loads((FIXTURES / "algorithms" / "alexnet-cpu-onednn.json").read_text())
    for key, value in timed.items():
        if isinstance(value, list):
            timed[key] = value[:20]
    for name, format_, role, text, content in (
        ("rules.toml", "rules", "rules", _RULES.encode(), "toml"),
        ("model.layers.json", "model", "model", manifest, "json"),
        ("pairs.toml", "pairs", "pairs", _PAIRS["pairs.toml"], "toml"),
        ("pairs.csv", "pairs", "pairs", _PAIRS["pairs.csv"], "csv"),
        ("algorithms.json", "algorithms", "algorithms", json.dumps(timed).encode(), "json"),
    ):
        files = {name: text} if role == "algorithms" else {name: text, "run.json": trace}
        yield Seed(
            name, format_, files, name, (name,), role=role,  # type: ignore[arg-type]
            beside="" if role == "algorithms" else "run.json", content=content,  # type: ignore[arg-type]
        )  # fmt: skip


_MAKERS: Final[tuple[Callable[[Path], Iterator[Seed]], ...]] = (
    _kineto, _chrome, _mxnet, _xplane, _nsys, _nsys_tables, _nvprof, _printed, _rocprof, _rocpd,
    _pftrace, _summaries, _ncu, _bundle, _run, _ranks, _options,
)  # fmt: skip

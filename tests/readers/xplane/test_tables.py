"""The tables of GPU streams, host threads and derived lines."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from tests.readers.xplane.writing import PlaneWriter, accounted, gpu, number, trace_of, write


def test_kernels_with_all_their_details(tmp_path: Path) -> None:
    plane = PlaneWriter("/device:GPU:3")
    plane.line(
        "Stream #13(Kernel,MemcpyH2D)",
        [
            plane.event(
                "gemm",
                2_000_000,
                1_500_000,
                plane.stat(
                    "kernel_details",
                    "regs:32 static_shared:1024 dynamic_shared:16 grid:4,2,1 block:256,1,1",
                    4,
                    reference=True,
                ),
                correlation_id=77,
                context_id="$$5",
                tf_op="net/fc/MatMul:MatMul",
            ),
            plane.event(
                "MemcpyH2D",
                4_000_000,
                250_000,
                memcpy_details="kind_src:pinned kind_dst:device size:4096 dest:0 async:1",
            ),
            plane.event("Memset", 5_000_000, 1_000, memset_details="kind:device size:64 async:1"),
            plane.event("CopyDeviceToDevice", 6_000_000, 1_000),
        ],
    )
    trace = trace_of(write(tmp_path / "x.pb", plane))
    kernel, copy, fill, amd = trace.tables.activities.rows(named=True)
    want = {"kind": "kernel", "start": 0, "duration": 1500, "device": 3, "stream": 13}
    want |= {"correlation": 77, "context": 5, "registers": 32, "shared_memory": 1040}
    want |= {"grid_x": 4, "grid_y": 2, "grid_z": 1, "block_x": 256, "scope": "net/fc/MatMul"}
    assert {key: kernel[key] for key in want} == want
    want = {"kind": "memcpy", "copy_kind": "HtoD", "bytes": 4096, "start": 2000, "duration": 250}
    want |= {"source_memory": "pinned", "destination_memory": "device", "registers": None}
    assert {key: copy[key] for key in want} == want
    assert (fill["kind"], fill["bytes"], fill["destination_memory"]) == ("memset", 64, "device")
    assert (amd["kind"], amd["copy_kind"]) == ("kernel", None)
    assert trace.tables.names["name"].to_list() == [
        "gemm",
        "MemcpyH2D",
        "Memset",
        "CopyDeviceToDevice",
    ]
    assert accounted(trace) == trace.meta.events == 4


def test_derived_lines_are_never_device_time(tmp_path: Path) -> None:
    plane = gpu("k")
    for line in ("XLA Modules", "XLA Ops", "Steps", "TensorFlow Name Scope", "Source code"):
        plane.line(line, [plane.event(line + " x", 0, 900_000)], number_=99)
    trace = trace_of(write(tmp_path / "x.pb", plane))
    assert trace.tables.activities.height == 1
    assert trace.tables.ranges["kind"].to_list() == ["device"] * 5
    assert trace.tables.ranges["device"].to_list() == [0] * 5
    assert trace.tables.ranges["domain"].to_list()[0] == "XLA Modules"


def test_times_finer_than_a_nanosecond_are_rounded_and_counted(tmp_path: Path) -> None:
    plane = PlaneWriter("/device:GPU:0")
    plane.line("Stream #1", [plane.event("a", 1_000, 1_499), plane.event("b", 3_500, 1_501)])
    trace = trace_of(write(tmp_path / "x.pb", plane))
    assert trace.tables.activities["start"].to_list() == [0, 3]
    assert trace.tables.activities["duration"].to_list() == [1, 2]
    assert trace.tables.ledger.filter(pl.col("reason") == "rounded")["count"].to_list() == [2]


def test_the_host_s_events_by_what_they_are(tmp_path: Path) -> None:
    plane = PlaneWriter("/host:CPU")
    plane.line(
        "python",
        [
            plane.event("train", 0, 90_000_000, step_num=7, _r=1),
            plane.event("$train.py:10 step", 1_000_000, 80_000_000),
            plane.event("PjRt::Execute", 2_000_000, 1_000_000),
            plane.event("my range", 4_000_000, 1_000_000),
            plane.event("cuLaunchKernel", 6_000_000, 1_000_000, correlation_id=5),
            plane.event("Marker", 8_000_000, 0),
        ],
        number_=-5,
    )
    plane.line(
        "tf_Compute/1",
        [
            plane.event(
                "net/conv1/Conv2D:Conv2D", 2_000_000, 3_000_000, shape="(float[1,2];int32)"
            ),
            plane.event("unknown:_Arg", 6_000_000, 1_000_000),
            plane.event(
                "MemoryAllocation",
                7_000_000,
                0,
                allocator_name="GPU_2_bfc",
                allocation_bytes=256,
                addr=4096,
                bytes_allocated=512,
            ),
        ],
        number_=6,
    )
    trace = trace_of(write(tmp_path / "x.pb", plane))
    assert trace.tables.ranges.select("text", "kind", "thread").rows() == [
        ("train#7", "step", -5),
        ("$train.py:10 step", "python", -5),
        ("PjRt::Execute", "runtime", -5),
        ("my range", "annotation", -5),
        ("Marker", "mark", -5),
    ]
    assert trace.tables.calls.select("name", "correlation", "duration").rows() == [
        ("cuLaunchKernel", 5, 1000)
    ]
    assert trace.tables.ops.select("name", "scope", "thread").rows() == [
        ("Conv2D", "net/conv1/Conv2D", 6),
        ("_Arg", None, 6),
    ]
    assert trace.tables.ops["input_shapes"][0] == "[[1,2]]"
    assert trace.tables.memory.select("device", "bytes", "address", "allocated").rows() == [
        (2, 256, 4096, 512)
    ]
    assert accounted(trace) == trace.meta.events == 9


def test_devices_and_epoch(tmp_path: Path) -> None:
    plane = gpu("k", device=1)
    stats: dict[str, int | str] = {
        "device_vendor": "AMD",
        "clock_rate": 2_100_000,
        "core_count": 304,
        "memory_bandwidth": 2_662_400_000_000,
        "memory_size": 206_141_652_992,
        "compute_cap_major": 9,
        "compute_cap_minor": 4,
    }
    for name, value in stats.items():
        plane.plane_stat(name, value)
    task = PlaneWriter("Task Environment")
    task.plane_stat("profile_start_time", 1_700_000_000_000_000_000)
    trace = trace_of(write(tmp_path / "x.pb", plane, gpu(device=0), task))
    (device,) = trace.tables.devices.rows(named=True)
    assert (device["device"], device["vendor"], device["compute_capability"]) == (1, "AMD", "9.4")
    assert (device["multiprocessors"], device["clock_khz"]) == (304, 2_100_000)
    assert device["bandwidth_bytes_per_s"] == 2_662_400_000_000
    assert trace.meta.epoch_ns == 1_700_000_000_000_001_000


def test_an_xla_kernel_s_scope_is_that_of_its_instruction(tmp_path: Path) -> None:
    from tests.readers.xplane.writing import message

    def instruction(name: str, scope: str, key: int, *called: int) -> bytes:
        reported = message(7, message(2, scope)) if scope else b""
        calls = b"".join(number(38, each) for each in called)
        return message(2, message(1, name) + reported + number(35, key) + calls)

    inner = message(3, instruction("root", "jit(f)/relu1/max", 8) + number(5, 2) + number(6, 8))
    entry = message(
        3, instruction("dot.1", "jit(f)/fc/dot_general", 1) + instruction("fusion", "", 2, 2)
    )
    meta = PlaneWriter("/host:metadata")
    meta.stat_names["Hlo Proto"] = 1
    value = number(1, 1) + message(2, "jit_f(4)")
    value += message(5, number(1, 1) + message(6, message(1, inner + entry)))
    content = message(2, meta.name) + message(4, number(1, 1) + message(2, value))
    content += message(5, number(1, 1) + message(2, number(1, 1) + message(2, "Hlo Proto")))
    plane = PlaneWriter("/device:GPU:0")
    plane.line(
        "Stream #1",
        [
            plane.event("k1", 0, 1000, hlo_op="dot.1", hlo_module="jit_f", program_id=4),
            plane.event("k2", 2000, 1000, hlo_op="fusion", hlo_module="jit_f", program_id=4),
            plane.event("k3", 4000, 1000, hlo_op="other", hlo_module="jit_f", program_id=4),
        ],
    )
    path = tmp_path / "x.pb"
    path.write_bytes(message(1, content) + plane.encode())
    scopes = trace_of(path).tables.activities["scope"].to_list()
    assert scopes == ["jit(f)/fc/dot_general", "jit(f)/relu1/max", None]


def test_operators_outside_a_tf_function(tmp_path: Path) -> None:
    names = {
        "EagerLocalExecute: Conv2D": "Conv2D",
        "EagerLocalExecute: _EagerConst": "_EagerConst",
        "EagerLocalExecute: __inference_step_12": None,
        "EagerLocalExecute: StatefulPartitionedCall": None,
        "EagerLocalExecute: IteratorGetNext": None,
        "EagerLocalExecute: MakeIterator": None,
        "EagerLocalExecute: ParallelMapDatasetV2": None,
        "EagerLocalExecute: OptionalGetValue": None,
        "convert_to_tensor": None,
        "tf.constant": None,
    }
    plane = PlaneWriter("/host:CPU")
    events = [plane.event(name, i * 1_000_000, 900_000) for i, name in enumerate(names)]
    plane.line("python", events)
    trace = trace_of(write(tmp_path / "x.pb", plane))
    assert trace.tables.ops["name"].to_list() == [name for name in names.values() if name]
    assert trace.tables.ops["scope"].null_count() == trace.tables.ops.height
    assert trace.tables.ranges["text"].to_list() == [name for name, op in names.items() if not op]
    assert trace.tables.ranges["kind"].unique().to_list() == ["runtime"]

"""Writes the CSV files of rocprof, rocprofv2 and rocprofv3 for tests.

Titles and their order are those of the tools' sources and documentation: rocprofv3 of ROCm 6.2 and
of ROCm 7, ``rocpd convert``, ``rocprofv2 --plugin file`` and ``rocprof --timestamp on``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Kernel:
    """One dispatch; the grid is in work-items."""

    dispatch: int
    start: int
    end: int
    name: str = "void k<int, 2>(float*)"
    agent: int = 1
    stream: int = 2
    correlation: int = 0
    grid: tuple[int, int, int] = (1000, 4, 1)
    block: tuple[int, int, int] = (256, 2, 1)
    lds: int = 512
    registers: int = 24
    counters: dict[str, float] = field(default_factory=dict)

    @property
    def sizes(self) -> list[int]:
        return [*self.block, *self.grid]


KERNELS = (
    Kernel(1, 10_000, 14_000, correlation=5),
    Kernel(2, 20_000, 21_000, "__amd_rocclr_copyBuffer", correlation=6),
    Kernel(3, 30_000, 37_000, correlation=7),
)


def text(titles: str, rows: Sequence[Sequence[object]], *, all_quoted: bool = False) -> str:
    """Return a table: titles and texts in quotes, as rocprofv3 writes it."""

    def cell(value: object) -> str:
        return f'"{value}"' if all_quoted or isinstance(value, str) else str(value)

    head = ",".join(f'"{title}"' for title in titles.split())
    return "\n".join([head, *(",".join(map(cell, row)) for row in rows)]) + "\n"


def kernel_trace(kernels: Sequence[Kernel] = KERNELS, *, all_quoted: bool = False) -> str:
    """Return ``kernel_trace.csv`` of ROCm 7."""
    titles = (
        "Kind Agent_Id Queue_Id Stream_Id Thread_Id Dispatch_Id Kernel_Id Kernel_Name "
        "Correlation_Id Start_Timestamp End_Timestamp LDS_Block_Size Scratch_Size VGPR_Count "
        "Accum_VGPR_Count SGPR_Count Workgroup_Size_X Workgroup_Size_Y Workgroup_Size_Z "
        "Grid_Size_X Grid_Size_Y Grid_Size_Z"
    )
    rows = [
        ["KERNEL_DISPATCH", f"Agent {k.agent}", 1, k.stream, 70, k.dispatch, 9, k.name,
         k.correlation, k.start, k.end, k.lds, 0, k.registers, 4, 32, *k.sizes]
        for k in kernels
    ]  # fmt: skip
    return text(titles, rows, all_quoted=all_quoted)


def kernel_trace_6_2(kernels: Sequence[Kernel] = KERNELS) -> str:
    """Return ``kernel_trace.csv`` of ROCm 6.2: no stream, dispatch or registers."""
    titles = (
        "Kind Agent_Id Queue_Id Kernel_Id Kernel_Name Correlation_Id Start_Timestamp "
        "End_Timestamp Private_Segment_Size Group_Segment_Size Workgroup_Size_X Workgroup_Size_Y "
        "Workgroup_Size_Z Grid_Size_X Grid_Size_Y Grid_Size_Z"
    )
    rows = [
        ["KERNEL_DISPATCH", k.agent, 139690710949888, 9, k.name, k.correlation, k.start, k.end, 0,
         k.lds, *k.sizes]
        for k in kernels
    ]  # fmt: skip
    return text(titles, rows)


def kernel_trace_rocpd(kernels: Sequence[Kernel] = KERNELS, guid: str = "00006409-00d1") -> str:
    """Return ``out_kernel_trace.csv`` of ``rocpd convert``."""
    head, *rows = kernel_trace(kernels).splitlines()
    for old, new in (("LDS", "Lds"), ("VGPR", "Vgpr"), ("SGPR", "Sgpr")):
        head = head.replace(old, new)
    return "\n".join([f'"Guid",{head}', *(f'"{guid}",{row}' for row in rows), ""])


def kernel_trace_v2(kernels: Sequence[Kernel] = KERNELS) -> str:
    """Return the CSV of ``rocprofv2 --plugin file``, with a column for each counter."""
    counters = sorted({name for kernel in kernels for name in kernel.counters})
    titles = (
        "Dispatch_ID,GPU_ID,Queue_ID,PID,TID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,"
        "Scratch_Per_Workitem,Arch_VGPR,Accum_VGPR,SGPR,Wave_Size,Kernel_Name,Start_Timestamp,"
        "End_Timestamp,Correlation_ID"
    )
    rows = [
        f'{k.dispatch},{k.agent},1,800,801,4000,512,{k.lds},0,{k.registers},4,32,64,"{k.name}",'
        f"{k.start},{k.end},{k.correlation}" + "".join(f",{k.counters[name]}" for name in counters)
        for k in kernels
    ]
    return "\n".join([",".join([titles, *counters]), *rows, ""])


def results_v1(kernels: Sequence[Kernel] = KERNELS, *, times: bool = True) -> str:
    """Return ``results.csv`` of ``rocprof -i metrics.txt``, with ``--timestamp on`` or without."""
    counters = sorted({name for kernel in kernels for name in kernel.counters})
    titles = (
        "Index,KernelName,gpu-id,queue-id,queue-index,pid,tid,grd,wgr,lds,scr,arch_vgpr,"
        "accum_vgpr,sgpr,wave_size,sig,obj"
    )
    rows = []
    for k in kernels:
        row = (
            f'{k.dispatch - 1},"{k.name} [clone .kd]",{k.agent},0,{k.dispatch},800,801,4000,512,'
            f"{k.lds},0,{k.registers},4,32,64,0x0,0x7faada620900"
        )
        if times:
            row += f",{k.start - 50},{k.start},{k.end},{k.end + 90}"
        rows.append(row + "".join(f",{k.counters[name]:.10f}" for name in counters))
    dated = ["DispatchNs,BeginNs,EndNs,CompleteNs"] if times else []
    return "\n".join([",".join([titles, *dated, *counters]), *rows, ""])


def counter_collection(kernels: Sequence[Kernel], *, all_quoted: bool = False) -> str:
    """Return ``counter_collection.csv``: a row for each counter of a dispatch."""
    titles = (
        "Correlation_Id Dispatch_Id Agent_Id Queue_Id Process_Id Thread_Id Grid_Size Kernel_Id "
        "Kernel_Name Workgroup_Size LDS_Block_Size Scratch_Size VGPR_Count Accum_VGPR_Count "
        "SGPR_Count Counter_Name Counter_Value Start_Timestamp End_Timestamp"
    )
    rows = [
        [k.dispatch, k.dispatch, f"Agent {k.agent}", 1, 800, 801, 4000, 9, k.name, 512, k.lds, 0,
         k.registers, 4, 32, counter, value, k.start, k.end]
        for k in kernels
        for counter, value in k.counters.items()
    ]  # fmt: skip
    return text(titles, rows, all_quoted=all_quoted)


def memory_copy_trace(
    copies: Sequence[tuple[str, int, int, int, int]], *, old: bool = False
) -> str:
    """Return ``memory_copy_trace.csv`` of (direction, source, destination, start, end)."""
    stream = "" if old else "Stream_Id "
    titles = (
        f"Kind Direction {stream}Source_Agent_Id Destination_Agent_Id Correlation_Id "
        "Start_Timestamp End_Timestamp"
    )
    rows: list[list[object]] = []
    for number, (direction, source, target, start, end) in enumerate(copies):
        agents: list[object] = [source, target] if old else [f"Agent {source}", f"Agent {target}"]
        name = direction if old else f"MEMORY_COPY_{direction}"
        rows.append(["MEMORY_COPY", name, *([] if old else [3]), *agents, 20 + number, start, end])
    return text(titles, rows)


def api_trace(
    calls: Sequence[tuple[str, int, int, int]], domain: str = "HIP_RUNTIME_API", thread: int = 801
) -> str:
    """Return ``hip_api_trace.csv`` or ``marker_api_trace.csv`` of (function, correlation, start,
    end)."""
    titles = "Domain Function Process_Id Thread_Id Correlation_Id Start_Timestamp End_Timestamp"
    return text(titles, [[domain, name, 800, thread, *numbers] for name, *numbers in calls])


def agent_info(gpus: int = 2) -> str:
    """Return ``agent_info.csv`` of a CPU and ``gpus`` GPUs, with the columns that are read."""
    titles = (
        "Node_Id Logical_Node_Id Agent_Type Cpu_Cores_Count Simd_Count Wave_Front_Size Cu_Count "
        "Gfx_Target_Version Max_Engine_Clk_Fcompute Local_Mem_Size Name Vendor_Name Product_Name "
        "Model_Name"
    )
    rows: list[list[object]] = [
        [0, 0, "CPU", 64, 0, 0, 0, 0, 3000, 0, "EPYC", "CPU", "EPYC", ""],
        *(
            [number + 4, number, "GPU", 0, 1216, 64, 304, 90402, 2100, 206141652992, "gfx942",
             "AMD", "AMD Instinct MI300X", "aqua_vanjaram"]
            for number in range(1, gpus + 1)
        ),
    ]  # fmt: skip
    return text(titles, rows)


HIP_CALLS = (
    ("hipMalloc", 4, 1_000, 2_000),
    ("hipLaunchKernel", 5, 8_000, 9_000),
    ("hipLaunchKernel", 6, 9_500, 9_900),
    ("hipLaunchKernel", 7, 25_000, 26_000),
    ("hipMemcpy", 20, 40_000, 52_000),
)
COPIES = (("HOST_TO_DEVICE", 0, 1, 41_000, 45_000), ("DEVICE_TO_HOST", 1, 0, 46_000, 51_000))
MARKERS = (
    ("before", 30, 500, 500),
    ("step 0", 31, 600, 60_000),
    ("roctxGetThreadId", 32, 610, 620),
)

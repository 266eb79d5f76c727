"""The metrics that Nsight Compute collects: arithmetic by type, memory, tensor cores.

The names are those of chips since Volta. ``ncu`` prints ``n/a`` for metrics that a chip lacks.
"""

from __future__ import annotations

from typing import Final

_ARITHMETIC: Final = tuple(
    f"smsp__sass_thread_inst_executed_op_{letter}{operation}_pred_on.sum"
    for letter in "dfh"
    for operation in ("add", "mul", "fma")
)
_TENSOR: Final = tuple(
    f"sm__ops_path_tensor_src_{types}.sum"
    for types in ("fp64", "tf32_dst_fp32", "bf16_dst_fp32", "fp16_dst_fp32", "fp16_dst_fp16")
)
METRICS: Final = (
    "gpu__time_duration.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    *_ARITHMETIC,
    *_TENSOR,
    "sm__inst_executed_pipe_tensor.sum",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
)

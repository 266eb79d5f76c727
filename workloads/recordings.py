"""The recordings that ``fixtures/`` is made of, by plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Tool(StrEnum):
    """What records."""

    TORCH_PROFILER = "torch.profiler"
    NSYS = "nsys"
    NCU = "ncu"


@dataclass(frozen=True)
class Recording:
    """One run to record: the start of its file name and its options of ``workloads.pytorch``."""

    name: str
    tool: Tool
    arguments: tuple[str, ...]

    @property
    def suffix(self) -> str:
        """The end of the file name, which says the format."""
        return _SUFFIXES[self.tool]


_SUFFIXES = {Tool.TORCH_PROFILER: ".json.gz", Tool.NSYS: ".sqlite", Tool.NCU: ".csv"}


_RECORD_FUNCTION = ("--ranges", "record-function")
_NVTX = ("--ranges", "nvtx")

# (name, tool, options) of each recording; the size of the run is the plan's.
_ON_CPU: tuple[tuple[str, Tool, tuple[str, ...]], ...] = (
    ("alexnet-cpu-stack", Tool.TORCH_PROFILER, ("--stack",)),
    ("alexnet-cpu-ranges", Tool.TORCH_PROFILER, _RECORD_FUNCTION),
    ("alexnet-cpu-torchscript", Tool.TORCH_PROFILER, ("--torchscript",)),
    (
        "alexnet_2012-cpu-ranges",
        Tool.TORCH_PROFILER,
        ("--network", "alexnet_2012", *_RECORD_FUNCTION),
    ),
    ("alexnet-cpu-nsys", Tool.NSYS, _NVTX),
)
_ON_GPU: tuple[tuple[str, Tool, tuple[str, ...]], ...] = (
    ("alexnet-gpu-fp32", Tool.TORCH_PROFILER, _RECORD_FUNCTION),
    ("alexnet-gpu-tf32", Tool.TORCH_PROFILER, (*_RECORD_FUNCTION, "--precision=tf32")),
    ("alexnet-gpu-amp", Tool.TORCH_PROFILER, (*_RECORD_FUNCTION, "--precision=amp")),
    ("alexnet-gpu-benchmark", Tool.TORCH_PROFILER, (*_RECORD_FUNCTION, "--cudnn-benchmark")),
    (
        "alexnet-gpu-channels_last",
        Tool.TORCH_PROFILER,
        (*_RECORD_FUNCTION, "--precision=tf32", "--channels-last"),
    ),
    ("alexnet-gpu-stack", Tool.TORCH_PROFILER, ("--stack",)),
    (
        "alexnet_2012-gpu-fp32",
        Tool.TORCH_PROFILER,
        ("--network", "alexnet_2012", *_RECORD_FUNCTION),
    ),
    # nsys records the warm-up too, so there is less of it.
    ("alexnet-gpu-nsys", Tool.NSYS, ("--steps", "2", "--warm-up", "1", *_NVTX)),
    # One step, to be joined to alexnet-gpu-fp32: ncu runs each kernel of it many times.
    ("alexnet-gpu-ncu", Tool.NCU, ("--steps", "1", "--warm-up", "3", "--cuda-profiler")),
)
_GPU_ONLY = frozenset({"--precision=tf32", "--cudnn-benchmark"})

_CPU_RUN = ("--batch", "8", "--steps", "3", "--warm-up", "2", "--threads", "2")
# cudnn.benchmark times its algorithms in the warm-up.
_GPU_RUN = ("--device", "cuda", "--batch", "128", "--steps", "3", "--warm-up", "10")
_SMOKE_RUN = (
    *("--batch", "1", "--steps", "1", "--warm-up", "1", "--threads", "1"),
    *("--image-size", "67", "--width-divisor", "16", "--classes", "10"),
)

PLANS: Mapping[str, tuple[Recording, ...]] = {
    "cpu": tuple(Recording(name, tool, (*_CPU_RUN, *own)) for name, tool, own in _ON_CPU),
    "gpu": tuple(Recording(name, tool, (*_GPU_RUN, *own)) for name, tool, own in _ON_GPU),
    # The GPU's plan on the CPU, tiny and without what only a GPU can do, to try the machinery.
    "smoke": tuple(
        Recording(
            name.replace("-gpu-", "-smoke-"),
            tool,
            (*_SMOKE_RUN, *(word for word in own if word not in _GPU_ONLY)),
        )
        for name, tool, own in _ON_GPU
        if tool is not Tool.NCU  # there is nothing to measure on the CPU
    ),
}

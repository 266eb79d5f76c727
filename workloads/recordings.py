"""The recordings in ``fixtures/``, by plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Tool(StrEnum):
    """Profiler that records."""

    TORCH_PROFILER = "torch.profiler"
    NSYS = "nsys"
    NCU = "ncu"
    TF_PROFILER = "tf.profiler"
    JAX_PROFILER = "jax.profiler"

    @property
    def workload(self) -> str:
        """The folder in ``workloads/`` of the recorded framework."""
        return {Tool.TF_PROFILER: "keras", Tool.JAX_PROFILER: "jax"}.get(self, "pytorch")

    @property
    def writes_xplane(self) -> bool:
        """Whether the profiler writes an XPlane file into its own folder."""
        return self in (Tool.TF_PROFILER, Tool.JAX_PROFILER)


@dataclass(frozen=True)
class Recording:
    """One run to record: the start of its file name and its options of the workload.

    ``folder`` is its folder in the output directory. With ``as_json`` the XPlane file is kept
    uncompressed, with the ``trace.json.gz`` of the same run beside it.
    """

    name: str
    tool: Tool
    arguments: tuple[str, ...]
    folder: str = ""
    as_json: bool = False

    @property
    def suffix(self) -> str:
        """The suffix of the file name, by the format."""
        if self.tool.writes_xplane:
            return ".xplane.pb" if self.as_json else ".xplane.pb.gz"
        return {Tool.NSYS: ".sqlite", Tool.NCU: ".csv"}.get(self.tool, ".json.gz")


_RECORD_FUNCTION = ("--ranges", "record-function")
_NVTX = ("--ranges", "nvtx")
# For networks with many layers, whose hooks and optimizer would be half of the trace.
_BRIEF = (*_RECORD_FUNCTION, "--forward-only", "--fused-optimizer")
_MANY_LAYERS = ("googlenet", "resnet50")

# (name, tool, options) of each recording; the size of the run is the plan's.
_Wanted = tuple[str, Tool, tuple[str, ...]]
_ON_CPU: tuple[_Wanted, ...] = (
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
_ON_GPU: tuple[_Wanted, ...] = (
    ("alexnet-gpu-fp32", Tool.TORCH_PROFILER, _RECORD_FUNCTION),
    ("alexnet-gpu-tf32", Tool.TORCH_PROFILER, (*_RECORD_FUNCTION, "--precision=tf32")),
    ("alexnet-gpu-amp", Tool.TORCH_PROFILER, (*_RECORD_FUNCTION, "--precision=amp-fp16")),
    ("alexnet-gpu-benchmark", Tool.TORCH_PROFILER, (*_RECORD_FUNCTION, "--algorithms=benchmark")),
    (
        "alexnet-gpu-channels_last",
        Tool.TORCH_PROFILER,
        (*_RECORD_FUNCTION, "--precision=tf32", "--layout=nhwc"),
    ),
    ("alexnet-gpu-stack", Tool.TORCH_PROFILER, ("--stack",)),
    (
        "alexnet_2012-gpu-fp32",
        Tool.TORCH_PROFILER,
        ("--network", "alexnet_2012", *_RECORD_FUNCTION),
    ),
    # nsys also records the warm-up, which is shorter therefore.
    ("alexnet-gpu-nsys", Tool.NSYS, ("--steps", "2", "--warm-up", "1", *_NVTX)),
    # One step, to be joined to alexnet-gpu-fp32: ncu replays each kernel many times.
    ("alexnet-gpu-ncu", Tool.NCU, ("--steps", "1", "--warm-up", "3", "--cuda-profiler")),
)
_GPU_ONLY = frozenset({"--precision=tf32", "--algorithms=benchmark"})
_VARIANTS = {
    "fp32": (),
    "tf32": ("--precision=tf32",),
    "channels_last": ("--precision=tf32", "--layout=nhwc"),
}


def _many_layers_on_gpu() -> Iterator[_Wanted]:
    for variant, options in _VARIANTS.items():
        for network in _MANY_LAYERS:
            words = ("--network", network, *_BRIEF, *options)
            yield f"{network}-gpu-{variant}", Tool.TORCH_PROFILER, words


def _jax_on_gpu() -> Iterator[_Wanted]:
    for variant, options in _VARIANTS.items():
        # JAX's default layout is NHWC.
        complete = options if "--layout=nhwc" in options else (*options, "--layout=nchw")
        for network in ("alexnet", *_MANY_LAYERS):
            words = ("--network", network, *complete)
            yield f"{network}-gpu-jax-{variant}", Tool.JAX_PROFILER, words


_CPU_RUN = ("--batch", "8", "--steps", "3", "--warm-up", "2", "--threads", "2")
_XPLANE_RUN = ("--batch", "4", "--steps", "3", "--warm-up", "2")
# Small images and narrow layers: the networks are complete in depth.
_MANY_LAYERS_RUN = (
    *("--batch", "2", "--steps", "4", "--warm-up", "2"),
    *("--image-size", "64", "--width-divisor", "8", "--classes", "10"),
)
# With one image XLA rewrites the matrix products and drops their scopes.
_GROUPED_RUN = (
    *("--batch", "4", "--steps", "2", "--warm-up", "1"),
    *("--image-size", "67", "--width-divisor", "16", "--classes", "10"),
)
# cudnn.benchmark times its algorithms in the warm-up.
_GPU_RUN = ("--device", "cuda", "--batch", "128", "--steps", "3", "--warm-up", "10")
_SMOKE_RUN = (
    *("--batch", "1", "--steps", "1", "--warm-up", "1"),
    *("--image-size", "67", "--width-divisor", "8", "--classes", "10"),
)


def _cpu_plan() -> Iterator[Recording]:
    for name, tool, own in _ON_CPU:
        yield Recording(name, tool, (*_CPU_RUN, *own))
    for tool, own in ((Tool.TF_PROFILER, ("--threads", "2")), (Tool.JAX_PROFILER, ())):
        name = f"alexnet-cpu-{tool.workload}"
        yield Recording(name, tool, (*_XPLANE_RUN, *own), "xplane", as_json=True)
    frameworks: tuple[tuple[Tool, tuple[str, ...]], ...] = (
        (Tool.TORCH_PROFILER, ("--threads", "2", *_BRIEF)),
        # A second thread would add many scheduling events to the trace.
        (Tool.TF_PROFILER, ("--threads", "1", "--layout", "nhwc")),
        (Tool.JAX_PROFILER, ("--layout", "nhwc")),
    )
    for network in _MANY_LAYERS:
        for tool, own in frameworks:
            words = ("--network", network, *_MANY_LAYERS_RUN, *own)
            yield Recording(f"{network}-cpu-{tool.workload}", tool, words, "networks")

    # Groups, in the convolutions of one network.
    for tool, own in ((Tool.TF_PROFILER, ("--threads", "1")), (Tool.JAX_PROFILER, ())):
        words = ("--network", "alexnet_2012", *_GROUPED_RUN, "--layout", "nhwc", *own)
        yield Recording(f"alexnet_2012-cpu-{tool.workload}", tool, words, "networks")


_GPU_PLAN = (*_ON_GPU, *_many_layers_on_gpu(), *_jax_on_gpu())

PLANS: Mapping[str, tuple[Recording, ...]] = {
    "cpu": tuple(_cpu_plan()),
    "gpu": tuple(Recording(name, tool, (*_GPU_RUN, *own)) for name, tool, own in _GPU_PLAN),
    # Plan "gpu" on the CPU, in small and without GPU-only options, to test the recording.
    "smoke": tuple(
        Recording(
            name.replace("-gpu-", "-smoke-"),
            tool,
            (
                *_SMOKE_RUN,
                # Threads that wait by spinning take CPU time from other processes.
                *(() if tool is Tool.JAX_PROFILER else ("--threads", "1")),
                *(word for word in own if word not in _GPU_ONLY),
            ),
        )
        for name, tool, own in _GPU_PLAN
        if tool is not Tool.NCU  # ncu measures GPUs only
    ),
}

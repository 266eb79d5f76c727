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
        """The module in ``workloads/`` that it records."""
        modules = {Tool.TF_PROFILER: "keras", Tool.JAX_PROFILER: "jax", Tool.NCU: "algorithms"}
        return modules.get(self, "pytorch")

    @property
    def writes_xplane(self) -> bool:
        """Whether the profiler writes an XPlane file into its own folder."""
        return self in (Tool.TF_PROFILER, Tool.JAX_PROFILER)


@dataclass(frozen=True)
class Recording:
    """One run to record: the start of its file name and its options of the workload.

    ``folder`` is its folder in the output directory, ``variables`` are set for the run. With
    ``as_json`` the XPlane file is kept uncompressed, with the ``trace.json.gz`` of the same run
    beside it.
    """

    name: str
    tool: Tool
    arguments: tuple[str, ...]
    folder: str = ""
    as_json: bool = False
    variables: tuple[str, ...] = ()

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
# What no recording of a GPU has yet; workloads.pytorch.programs has the rest.
_ON_GPU: tuple[_Wanted, ...] = (
    # nsys also records the warm-up, which is shorter therefore.
    ("alexnet-gpu-nsys", Tool.NSYS, ("--steps=2", "--warm-up=1", *_NVTX)),
    (
        "resnet18-gpu-nsys-graph",
        Tool.NSYS,
        (
            "--network=resnet18",
            "--batch=8",
            "--warm-up=1",
            "--cuda-graph",
            "--forward-only",
            *_NVTX,
        ),
    ),
    # XLA tries every algorithm of every convolution by default, which would take minutes.
    ("alexnet-gpu-jax", Tool.JAX_PROFILER, ("--algorithms=heuristic",)),
    (
        "resnet50-gpu-jax",
        Tool.JAX_PROFILER,
        ("--network=resnet50", "--batch=32", "--algorithms=heuristic"),
    ),
    ("alexnet-gpu-keras", Tool.TF_PROFILER, ()),
    ("resnet50-gpu-keras", Tool.TF_PROFILER, ("--network=resnet50", "--batch=32")),
    ("alexnet-gpu-ranks", Tool.TORCH_PROFILER, ("--processes=2", *_RECORD_FUNCTION)),
)
_GPU_ONLY = frozenset({"--algorithms=heuristic", "--cuda-graph", "--batch=8", "--batch=32"})

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
# JAX and TensorFlow compile in the warm-up.
_GPU_RUN = ("--device", "cuda", "--batch", "128", "--steps", "3", "--warm-up", "3")
_SMOKE_RUN = (
    *("--batch", "2", "--steps", "1", "--warm-up", "1"),
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


def _gpu_plan() -> Iterator[Recording]:
    for name, tool, own in _ON_GPU:
        jax = tool is Tool.JAX_PROFILER
        without_buffers = ("XLA_FLAGS=--xla_gpu_enable_command_buffer=",) if jax else ()
        yield Recording(name, tool, (*_GPU_RUN, *own), variables=without_buffers)
    # One layer, since ncu runs each kernel several times; in time, since it writes at the end.
    words = ("--library=cudnn", "--layer=conv2", "--batch=32", "--repetitions=3", "--seconds=45")
    yield Recording("alexnet-gpu-counters", Tool.NCU, words, "algorithms")


def _smoke_plan() -> Iterator[Recording]:
    """Plan "gpu" on the CPU, in small and without GPU-only options, to test the recording."""
    for name, tool, own in _ON_GPU:
        # Threads that wait by spinning take CPU time from other processes.
        threads = () if tool is Tool.JAX_PROFILER else ("--threads", "1")
        words = (*_SMOKE_RUN, *threads, *(word for word in own if word not in _GPU_ONLY))
        yield Recording(name.replace("-gpu-", "-smoke-"), tool, words)


PLANS: Mapping[str, tuple[Recording, ...]] = {
    "cpu": tuple(_cpu_plan()),
    "gpu": tuple(_gpu_plan()),
    "smoke": tuple(_smoke_plan()),
}

"""Training runs of a small CNN on a GPU that never was: every figure is in the arguments."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from tests.support.traces import TraceBuilder
from traceana import Trace

LAYERS: tuple[tuple[str, str], ...] = (
    ("conv1", "Conv2d"),
    ("relu1", "ReLU"),
    ("conv2", "Conv2d"),
    ("relu2", "ReLU"),
    ("pool", "MaxPool2d"),
    ("fc", "Linear"),
)

Kernel = tuple[str, int]
"""Name and mean duration (ns)."""

KERNELS: Mapping[str, tuple[Kernel, ...]] = {
    "conv1": (("implicit_precomp", 200_000),),
    "relu1": (("relu", 40_000),),
    "conv2": (("winograd", 400_000),),
    "relu2": (("relu", 30_000),),
    "pool": (("max_pool", 50_000),),
    "fc": (("sgemm", 150_000),),
}

CLASSES: Mapping[str, Mapping[str, object]] = {
    "implicit_precomp": {"category": "conv", "algorithm": "implicit_precomp_gemm"},
    "winograd": {"category": "conv", "algorithm": "winograd"},
    "implicit": {"category": "conv", "algorithm": "implicit_gemm"},
    "sm80_xmma_fprop_nhwc": {"category": "conv", "algorithm": "implicit_precomp_gemm"},
    "relu": {"category": "activation", "function": "relu"},
    "max_pool": {"category": "pooling"},
    "sgemm": {"category": "gemm", "precision": "fp32", "batched": False, "tensor_core": False},
    "hgemm": {"category": "gemm", "precision": "fp16", "batched": False, "tensor_core": True},
    "bias": {"category": "bias"},
    "transpose": {"category": "layout", "function": "nchw_to_nhwc"},
    "all_reduce": {"category": "collective", "function": "all_reduce"},
}


def training(
    *,
    steps: int = 8,
    seed: int = 1,
    kernels: Mapping[str, Sequence[Kernel]] = KERNELS,
    layers: Sequence[tuple[str, str]] = LAYERS,
    idle: int = 100_000,
    loading: int = 0,
    copies: int = 1,
    memory: str = "pinned",
    noise: float = 0.004,
) -> Trace:
    """Return a run: in each step ``loading`` on the host, copies, the layers' kernels, ``idle``.

    ``kernels`` has those of each layer; every duration varies by ``noise`` of itself.
    """
    rng = random.Random(seed)
    builder = TraceBuilder(framework="PyTorch")
    builder.row("devices", device=0, name="Tesla V100-SXM2-16GB", vendor="NVIDIA")
    rows = {path: builder.layer(path, kind) for path, kind in layers}
    for name, classes in CLASSES.items():
        builder.name(name, **classes)
    at = 0
    for number in range(steps):
        start = at
        step = len(builder._rows.get("steps", []))
        text = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        if loading:
            waited = varied(loading, noise, rng)
            builder.row(
                "ranges", text=text, kind="annotation", start=at, duration=waited, process=1
            )
            at += waited
        for _ in range(copies):
            time = varied(20_000, noise, rng)
            builder.copy("HtoD", at, time, bytes=4096, source_memory=memory, step=step)
            at += time
        for path, _ in layers:
            for name, mean in kernels[path]:
                time = varied(mean, noise, rng)
                builder.kernel(
                    name, at, time, layer=rows[path], step=step, direction="forward", stream=7
                )
                at += time
        at += varied(idle, noise, rng)
        builder.step(number, start, at - start, process=1)
    return builder.build()


def varied(mean: int, noise: float, rng: random.Random) -> int:
    """Return a duration near ``mean``."""
    return max(1, round(mean * (1 + noise * rng.gauss(0, 1))))

"""One run, in one or more processes: prepares the model, marks its layers, trains and records."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

import torch
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from workloads.options import (
    Device,
    HostMemory,
    OptionError,
    Precision,
    Ranges,
    RunOptions,
)
from workloads.provenance import stem
from workloads.pytorch.build import DescribedNetwork
from workloads.pytorch.ranges import make_marker, mark_backward, mark_forward
from workloads.pytorch.record import cuda_profiler, make_profiler, trace_once, write_trace
from workloads.pytorch.train import own_share, prepare, train
from workloads.shapes import layer_shapes
from workloads.step_times import StepTimes


@dataclass(frozen=True)
class Recording:
    """Options of the recording; raises :class:`OptionError` where they contradict each other.

    ``forward_only`` leaves out the ranges of the backward pass and their hooks. ``trace`` is
    torch.profiler's file, ``stack`` its Python events; ``cuda_profiler`` starts ncu or nsys after
    the warm-up; ``torchscript`` runs the network through ``torch.jit.trace``, ``fused_optimizer``
    the optimizer as one operator instead of four per parameter, ``cuda_graph`` the step as one CUDA
    graph.
    """

    ranges: Ranges = Ranges.NONE
    forward_only: bool = False
    trace: Path | None = None
    stack: bool = False
    torchscript: bool = False
    fused_optimizer: bool = False
    cuda_profiler: bool = False
    cuda_graph: bool = False

    def check(self, options: RunOptions) -> None:
        """Raise :class:`OptionError` where the recording contradicts itself or ``options``."""
        trace = self.trace
        if self.forward_only and self.ranges is Ranges.NONE:
            raise OptionError("--forward-only needs ranges: add --ranges")
        if self.stack and trace is None:
            raise OptionError("--stack needs a recording: add --trace FILE")
        if self.cuda_profiler and (options.device is not Device.CUDA or trace is not None):
            raise OptionError(
                "--cuda-profiler needs --device cuda, and no --trace: leave one of them out"
            )
        if self.torchscript and (options.compile or options.processes > 1):
            raise OptionError("--torchscript cannot be combined with --compile or --processes")
        if self.cuda_graph and (
            options.device is not Device.CUDA
            or options.compile
            or options.processes > 1
            or options.precision is Precision.AMP_FP16
            or options.host_memory is HostMemory.PER_OPERATOR
        ):
            raise OptionError(
                "--cuda-graph needs --device cuda, and cannot be combined with --compile, "
                "--processes, --precision amp-fp16 or --host-memory per-operator"
            )
        whole = "--torchscript" if self.torchscript else "--compile" if options.compile else None
        if whole and self.ranges is not Ranges.NONE:
            raise OptionError(f"{whole} runs no hooks: leave out --ranges")
        if trace is not None and not trace.name.endswith((".json", ".json.gz")):
            raise OptionError(f"--trace {trace}: the name must end in .json or .json.gz")
        if trace is not None and not trace.parent.is_dir():
            raise OptionError(f"{trace}: directory {trace.parent} does not exist")
        if trace is not None and options.warm_up < 1:
            raise OptionError("--trace starts the profiler in a warm-up step: give --warm-up 1")

    def of_rank(self, rank: int) -> Path | None:
        """Return the trace file of one of several processes: ``NAME.rankN.json.gz``."""
        if self.trace is None:
            return None
        name = stem(self.trace)
        return self.trace.with_name(f"{name}.rank{rank}{self.trace.name.removeprefix(name)}")


def run(options: RunOptions, recording: Recording) -> StepTimes:
    """Train with ``options``; return the step times of the first process.

    Raises :class:`OptionError` or NetworkError for options that cannot be run.
    """
    recording.check(options)
    if options.processes == 1:
        return _trained(prepare(options), options, recording, 0, recording.trace)
    # Checked here for a clear message: in a process it would be a traceback.
    layer_shapes(options.describe_network())
    on_gpu = options.device is Device.CUDA
    if on_gpu:
        prepare(options)
    with tempfile.TemporaryDirectory() as folder:
        # A fork spares each process the imports, that of the first optimizer as well. CUDA does
        # not survive it, nor do PyTorch's threads; nothing was computed yet.
        if not on_gpu:
            import_module("torch._dynamo")
        multiprocessing.start_processes(
            _process,
            (options, recording, folder),
            options.processes,
            start_method="spawn" if on_gpu else "fork",
        )
        times = json.loads(Path(folder, "times.json").read_text("utf-8"))
    return StepTimes(**times)


def _process(rank: int, options: RunOptions, recording: Recording, folder: str) -> None:
    on_gpu = options.device is Device.CUDA
    if on_gpu:
        torch.cuda.set_device(rank)
    distributed.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=Path(folder, "rendezvous").as_uri(),
        rank=rank,
        world_size=options.processes,
    )
    times = _trained(prepare(options), options, recording, rank, recording.of_rank(rank))
    if rank == 0:
        Path(folder, "times.json").write_text(json.dumps(asdict(times)), "utf-8")
    distributed.destroy_process_group()


def _trained(
    described: DescribedNetwork,
    options: RunOptions,
    recording: Recording,
    rank: int,
    trace: Path | None,
) -> StepTimes:
    marker = make_marker(recording.ranges)
    model: nn.Module = described
    if recording.ranges is not Ranges.NONE:
        mark_forward(described, marker)
        if not recording.forward_only:
            gradient = options.first_data_gradient
            mark_backward(described, marker, first_data_gradient=gradient)
    if recording.torchscript:
        model = trace_once(model, options)
    if options.processes > 1:
        model = DistributedDataParallel(model)
    if options.compile:
        model = torch.compile(model)
    batch = own_share(options, rank)
    how = {"fused": recording.fused_optimizer, "graph": recording.cuda_graph}
    if trace is None:
        done = cuda_profiler(options) if recording.cuda_profiler else lambda: None
        return train(model, options, batch, marker, done, **how)
    with make_profiler(options, stack=recording.stack) as profiler:
        times = train(model, options, batch, marker, profiler.step, **how)
    write_trace(profiler, trace)
    return times

"""Record pairs of programs that differ in one thing, with their step times without a profiler.

python -m workloads.pytorch.programs --device cuda --out DIRECTORY
python -m workloads.pytorch.programs --device cpu --out DIRECTORY --only alexnet_b128

Each program is trained twice in this process: 24 steps without a profiler, then 5 under
torch.profiler. The names are those of fixtures/gpu/variants.jsonl, where a program is there too.
``NAME.json.gz`` is the trace, and a line of ``variants.jsonl`` describes the
program: what it is, which program it is a change of, the change in the words of ``traceana
whatif``, the time of each step without the profiler by the device's clock, and the mean by the
host's. ``NAME_code`` holds what ``torch.compile`` generated for the program.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

import torch
import torch._inductor.config
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from workloads.data import synthetic_batch
from workloads.networks import NETWORKS
from workloads.pytorch.build import build
from workloads.pytorch.record import write_trace
from workloads.pytorch.train import captured

_STEPS: Final = 24
_PROFILED: Final = 5
_WARM_UP: Final = 5
_LIGHTNING: Final = "lightning"


@dataclass(frozen=True)
class Program:
    """A training program; ``change`` is what differs from the program ``before``.

    ``wait_ms`` is a pause in the range ``data`` before each step, as of a slow data loader.
    """

    about: str
    network: str
    batch: int
    before: str | None = None
    change: str | None = None
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    copies: Literal["pageable", "pinned", "overlapped"] = "pageable"
    optimizer: Literal["foreach", "forloop", "fused"] = "foreach"
    compiled: Literal["default", "reduce-overhead", "max-autotune-no-cudagraphs"] | None = None
    benchmark: bool = False
    channels_last: bool = False
    input_gradient: bool = False
    graph: bool = False
    memory: bool = False
    wait_ms: float = 0


_RECORDING: Final = "recording"
PROGRAMS: Final[dict[str, Program]] = {}
# Name, the program that it is made of, the change where both are compared, the rest of the program.
_ROWS: Final[tuple[tuple[str, Program | str, str | None, str, dict[str, Any]], ...]] = (
    ("alexnet_b128", Program("", "alexnet", 128), None, "AlexNet, fp32, pageable images", {}),
    ("alexnet_b128_again1", "alexnet_b128", "nothing", "the same once more", {}),
    ("alexnet_b256", "alexnet_b128", "batch:2", "twice the batch", {"batch": 256}),
    ("alexnet_b64", "alexnet_b128", "batch:0.5", "half the batch", {"batch": 64}),
    ("alexnet_b128_tf32", "alexnet_b128", "tensor-cores", "TF32", {"precision": "tf32"}),
    ("alexnet_b128_bf16", "alexnet_b128", _RECORDING, "autocast bf16", {"precision": "bf16"}),
    ("alexnet_b128_pinned", "alexnet_b128", "pinned", "pinned images", {"copies": "pinned"}),
    ("alexnet_b128_prefetch", "alexnet_b128", "overlapped-copies",
     "pinned images, copied on a side stream", {"copies": "overlapped"}),
    ("alexnet_b128_nhwc_tf32", "alexnet_b128_tf32", _RECORDING, "TF32, channels_last",
     {"channels_last": True}),
    ("alexnet_b128_benchmark", "alexnet_b128", _RECORDING, "cudnn.benchmark", {"benchmark": True}),
    ("alexnet_b128_inputgrad", "alexnet_b128", None, "with the gradient of the images",
     {"input_gradient": True}),
    ("alexnet_b128_noinputgrad", "alexnet_b128_inputgrad", "no-input-gradient", "without it",
     {"input_gradient": False}),
    ("alexnet_b128_wait20", "alexnet_b128", None, "20 ms of waiting for data", {"wait_ms": 20}),
    ("alexnet_b128_wait10", "alexnet_b128_wait20", "data x 0.5", "half the wait", {"wait_ms": 10}),
    ("alexnet_b128_nowait", "alexnet_b128_wait20", "data-ready", "no wait", {"wait_ms": 0}),
    ("alexnet_b64_memory", "alexnet_b64", None, "with allocations", {"memory": True}),
    ("resnet18_b64", Program("", "resnet18", 64), None, "ResNet-18, fp32", {}),
    ("resnet18_b64_tf32", "resnet18_b64", "tensor-cores", "TF32", {"precision": "tf32"}),
    ("resnet18_b128", "resnet18_b64", "batch:2", "twice the batch", {"batch": 128}),
    ("resnet18_b8", Program("", "resnet18", 8), None, "ResNet-18, bound by launches", {}),
    ("resnet18_b16", "resnet18_b8", "batch:2", "twice the batch", {"batch": 16}),
    ("resnet18_b8_graph", "resnet18_b8", "cuda-graphs", "the whole step as a CUDA graph",
     {"graph": True}),
    ("resnet18_b8_forloop", "resnet18_b8", None, "optimizer as a loop", {"optimizer": "forloop"}),
    ("resnet18_b8_fused", "resnet18_b8_forloop", "fused-optimizer", "fused optimizer",
     {"optimizer": "fused"}),
    ("vgg16_b32", Program("", "vgg16", 32), None, "VGG-16, fp32", {}),
    ("vgg16_b32_tf32", "vgg16_b32", "tensor-cores", "TF32", {"precision": "tf32"}),
    ("resnet18_b32_eager", Program("", "resnet18", 32), None, "ResNet-18, TF32, eager",
     {"precision": "tf32"}),
    ("resnet18_b32_default", "resnet18_b32_eager", _RECORDING, "torch.compile",
     {"compiled": "default"}),
    ("resnet18_b32_reduce-overhead", "resnet18_b32_eager", _RECORDING,
     "torch.compile, mode reduce-overhead", {"compiled": "reduce-overhead"}),
    ("alexnet_b128_max-autotune", "alexnet_b128_tf32", _RECORDING,
     "torch.compile, mode max-autotune", {"compiled": "max-autotune-no-cudagraphs"}),
)  # fmt: skip
for _name, _base, _change, _about, _options in _ROWS:
    _program = PROGRAMS[_base] if isinstance(_base, str) else _base
    PROGRAMS[_name] = replace(
        _program,
        about=_about,
        before=_base if isinstance(_base, str) and _change else None,
        change=f"recording:{_name}" if _change == _RECORDING else _change,
        **_options,
    )


class _Step:
    """One training step on the same images again and again; called once a step."""

    def __init__(self, program: Program, device: str, small: bool) -> None:
        tf32 = program.precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        torch.backends.cudnn.benchmark = program.benchmark
        torch.manual_seed(0)
        sizes: dict[str, int] = (
            {"image_size": 67, "width_divisor": 8, "classes": 10} if small else {}
        )
        self.batch = 2 if small else program.batch
        network = NETWORKS[program.network](**sizes)
        self._program, self._device = program, device
        self.model = build(network).to(device)
        order = torch.channels_last if program.channels_last else torch.contiguous_format
        self.model.to(memory_format=order)
        self._forward: Callable[[torch.Tensor], torch.Tensor] = (
            torch.compile(self.model, mode=program.compiled) if program.compiled else self.model
        )
        on_gpu = device == "cuda"
        batch = synthetic_batch(network, self.batch, 0)
        images = torch.from_numpy(batch.images).contiguous(memory_format=order)
        host = [images, torch.from_numpy(batch.labels)]
        self._pinned = on_gpu and program.copies != "pageable"
        self._host = [each.pin_memory() for each in host] if self._pinned else host
        self._side = torch.cuda.Stream() if on_gpu and program.copies == "overlapped" else None
        self._next: list[torch.Tensor] | None = None
        how = {"foreach": {"foreach": True}, "forloop": {"foreach": False}}
        self._optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=1e-3,
            momentum=0.9,
            **how.get(program.optimizer, {"fused": True}),
        )
        self._loss = torch.nn.CrossEntropyLoss()
        self._graph: torch.cuda.CUDAGraph | None = None
        if program.graph and on_gpu:
            self._fixed = self._copied()
            self._graph = captured(lambda: self._train(*self._fixed))

    def __call__(self) -> None:
        if self._graph is not None:
            for fixed, fresh in zip(self._fixed, self._host, strict=True):
                fixed.copy_(fresh)
            self._graph.replay()
            return
        if self._program.wait_ms:
            with record_function("data"):
                time.sleep(self._program.wait_ms / 1e3)
        self._train(*self._fed())

    def _train(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        if self._program.input_gradient:
            images = images.detach().requires_grad_()
        self._optimizer.zero_grad()
        bf16 = self._program.precision == "bf16"
        casts: AbstractContextManager[object] = (
            torch.autocast(self._device, torch.bfloat16) if bf16 else nullcontext()
        )
        with casts:
            loss = self._loss(self._forward(images), labels)
        loss.backward()
        self._optimizer.step()

    def _copied(self) -> list[torch.Tensor]:
        return [each.to(self._device, non_blocking=self._pinned) for each in self._host]

    def _fed(self) -> list[torch.Tensor]:
        """Return the images and labels on the device, with ``overlapped`` those copied before."""
        side = self._side
        if side is None:
            return self._copied()
        main = torch.cuda.current_stream()
        if self._next is None:
            self._next = self._copied()
        main.wait_stream(side)
        fed = self._next
        with torch.cuda.stream(side):
            self._next = self._copied()
        for each in self._next:
            each.record_stream(main)
        return fed


def main(argv: list[str] | None = None) -> int:
    """Run the command; return 0, or 1 when a program failed."""
    parser = argparse.ArgumentParser("python -m workloads.pytorch.programs", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--out", type=Path, metavar="DIRECTORY", required=True)
    names = (*PROGRAMS, _LIGHTNING)
    parser.add_argument(
        "--only", action="append", choices=names, metavar="NAME", help="(those that take seconds)"
    )
    parser.add_argument("--seconds", type=float, default=1e9, help="no program starts after them")
    arguments = parser.parse_args(argv)
    device: str = arguments.device
    out: Path = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if device == "cuda" and not torch.cuda.is_available():
        print("programs: skipped, PyTorch finds no GPU here")
        return 0
    failed = 0
    start = time.monotonic()
    quick = [name for name, program in PROGRAMS.items() if not program.compiled]
    for name in arguments.only or quick:
        before = time.monotonic()
        if before - start > arguments.seconds:
            print(f"{name}: skipped, {arguments.seconds:g} s are over")
            continue
        try:
            if name != _LIGHTNING:
                _recorded(name, out, device)
            elif find_spec("lightning") is None:
                print(f"{name}: skipped, Lightning is not installed")
                continue
            else:
                _lightning(out / f"{name}.json.gz", device)
        # One program that fails leaves the others alone; the GPU machine is rarely at hand.
        except Exception as error:  # noqa: BLE001
            traceback.print_exc(file=sys.stdout)
            print(f"{name}: FAILED: {type(error).__name__}: {error}", flush=True)
            failed += 1
            continue
        print(f"{name}: {time.monotonic() - before:.1f} s", flush=True)
    return 1 if failed else 0


def _recorded(name: str, out: Path, device: str) -> None:
    program = PROGRAMS[name]
    small = device == "cpu"
    on_gpu = device == "cuda"
    if program.compiled:
        # Code of another program would be found again and not be in this one's folder.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(out / f"{name}_code")
        torch.compiler.reset()
        # Its templates of convolutions are tried for 20 s a layer.
        torch._inductor.config.max_autotune_conv_backends = "ATEN"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    step = _Step(program, device, small)
    steps = 3 if small else _STEPS
    for _ in range(1 if small else _WARM_UP):
        step()
    times = _timed(step, steps, on_gpu)
    trace = out / f"{name}.json.gz"
    _profiled(step, trace, on_gpu, memory=program.memory)
    after = _timed(step, steps, on_gpu)
    line = {
        "name": name,
        "about": program.about,
        "before": program.before,
        "change": program.change,
        "device": torch.cuda.get_device_name() if on_gpu else "CPU",
        "torch": torch.__version__,
        "steps_ns": times[1],
        "mean_ns": times[0],
        "mean_after_ns": after[0],
        "batch": step.batch,
        "peak": torch.cuda.max_memory_allocated() if on_gpu else None,
    }
    with (out / "variants.jsonl").open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(line) + "\n")
    # Binaries and locks: a megabyte a kernel, and nothing reads them.
    for file in (out / f"{name}_code").rglob("*"):
        if file.is_file() and file.suffix != ".py":
            file.unlink()


def _timed(step: Callable[[], None], steps: int, on_gpu: bool) -> tuple[int, list[int]]:
    """Return the mean time of a step by the host's clock and each step's by the device's, in ns."""
    if not on_gpu:
        moments = [time.perf_counter_ns()]
        for _ in range(steps):
            step()
            moments.append(time.perf_counter_ns())
        each = [after - before for before, after in pairwise(moments)]
        return sum(each) // steps, each
    events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    torch.cuda.synchronize()
    start = time.perf_counter_ns()
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    mean = (time.perf_counter_ns() - start) // steps
    pairs = pairwise(events)
    return mean, [round(before.elapsed_time(after) * 1e6) for before, after in pairs]


def _profiled(step: Callable[[], None], trace: Path, on_gpu: bool, *, memory: bool = False) -> None:
    """Record steps 2 to 6 of seven into ``trace``, with shapes."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(
        activities=activities,
        schedule=schedule(wait=1, warmup=1, active=_PROFILED),
        record_shapes=True,
        profile_memory=memory,
    ) as profiler:
        for _ in range(_PROFILED + 2):
            step()
            profiler.step()
        if on_gpu:
            torch.cuda.synchronize()
    write_trace(profiler, trace)


def _lightning(trace: Path, device: str) -> None:
    """A small network trained by Lightning's Trainer under Lightning's own profiler."""
    import lightning.pytorch as pl
    from lightning.pytorch.profilers import PyTorchProfiler

    network = NETWORKS["cifar10_quick"]()

    class Classifier(pl.LightningModule):  # type: ignore[misc]  # not checked: not installed here
        def __init__(self) -> None:
            super().__init__()
            self.network = build(network)

        def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
            images, labels = batch
            return torch.nn.functional.cross_entropy(self.network(images), labels)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-3, momentum=0.9)

    batch = synthetic_batch(network, 64, 0)
    one = (torch.from_numpy(batch.images), torch.from_numpy(batch.labels))
    images, labels = (torch.cat([each] * 12) for each in one)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), 64)
    folder = trace.parent / "lightning"
    profiler = PyTorchProfiler(
        dirpath=folder,
        filename="trace",
        schedule=schedule(wait=1, warmup=1, active=_PROFILED),
        record_shapes=True,
    )
    trainer = pl.Trainer(
        accelerator="gpu" if device == "cuda" else "cpu",
        devices=1,
        max_steps=10,
        profiler=profiler,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(), loader)
    made = max(folder.glob("*.json*"), key=lambda file: file.stat().st_mtime)
    plain = made.read_bytes()
    trace.write_bytes(plain if made.suffix == ".gz" else gzip.compress(plain, 9, mtime=0))
    shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())

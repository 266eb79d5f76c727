"""Programs in PyTorch: a training step on the CPU, with one thing or another changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

if TYPE_CHECKING:
    import torch

    from traceana.record.recorder import StepRecorder


_ENDLESS: Final = 1_000_000


class Program(msgspec.Struct, frozen=True, kw_only=True, tag="torch"):
    """A training loop. Times are in milliseconds."""

    network: Literal["cnn", "mlp", "lstm", "transformer"] = "cnn"
    batch: int = 32
    layers: int = 3
    width: int = 64
    length: int = 32
    activation: str = "ReLU"
    dropout: bool = False
    normalization: bool = False
    optimizer: str = "SGD"
    threads: int = 1
    load_ms: float = 0
    """Sleep for each batch in the data set."""
    load_work: int = 0
    """Products of matrices for each batch in the data set."""
    workers: int = 0
    logging_ms: float = 0
    """Sleep in each step, within the annotation ``logging``."""
    metrics: int = 0
    """Passes over a large tensor in each step, within the annotation ``metrics``."""
    clones: int = 0
    """Copies of a large tensor in each step."""
    frozen: int = 0
    """First layers that are not trained."""
    channels_last: bool = False
    onednn: bool = True
    compiled: bool = False
    autocast: bool = False
    """The forward pass is computed in bfloat16 where autocast does so."""
    double: bool = False
    """Everything is of 64 bits."""
    accumulate: int = 1
    """Batches of a step, each with its own backward pass."""
    kernel: int = 3
    """Size of the kernels of the last convolution."""
    groups: int = 1
    """Groups of all convolutions but the first."""
    rank: int = 0
    """If not 0, the last ``fc`` is two layers, with so many features between them."""
    cell: str = "LSTM"


def network(program: Program) -> torch.nn.Module:
    """Return the model; its layers have the names of their kind and number: ``conv1``, ``fc2``."""
    from torch import nn

    width, modules = program.width, dict[str, nn.Module]()
    kinds = {"cnn": "conv", "mlp": "fc", "lstm": "lstm", "transformer": "block"}
    kind = kinds[program.network]
    for number in range(1, program.layers + 1):
        name = f"{kind}{number}"
        if kind == "conv":
            size = program.kernel if number == program.layers else 3
            modules[name] = nn.Conv2d(
                3 if number == 1 else width,
                width,
                size,
                padding=size // 2,
                groups=1 if number == 1 else program.groups,
            )
            if program.normalization:
                modules[f"norm{number}"] = nn.BatchNorm2d(width)
        elif kind == "fc":
            modules[name] = nn.Linear(width, width)
            if program.rank and number == program.layers:
                parts = nn.Linear(width, program.rank), nn.Linear(program.rank, width)
                modules[name] = nn.Sequential(*parts)
            if program.normalization:
                modules[f"norm{number}"] = nn.LayerNorm(width)
        elif kind == "block":
            modules[name] = nn.TransformerEncoderLayer(
                width, 4, 4 * width, 0.1 if program.dropout else 0.0, batch_first=True
            )
        else:
            modules[name] = _First(getattr(nn, program.cell)(width, width, batch_first=True))
        if kind in ("conv", "fc"):
            modules[f"act{number}"] = _activation(program.activation)
            if program.dropout:
                modules[f"drop{number}"] = nn.Dropout(0.5)
    if kind == "conv":
        modules["pool"] = nn.AdaptiveAvgPool2d(1)
        modules["flat"] = nn.Flatten()
    model = nn.Sequential()
    for name, module in modules.items():
        model.add_module(name, module)
    model.add_module("head", nn.Linear(width, 10))
    for number in range(1, program.frozen + 1):
        getattr(model, f"{kind}{number}").requires_grad_(False)
    return model


def _activation(name: str) -> Any:
    """Return an activation of PyTorch, or one that is written out in operators."""
    import torch
    from torch import nn

    formulas: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "written GELU": lambda x: 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x**3))),
        "written SiLU": lambda x: x * torch.sigmoid(x),
    }
    if name == "tanh GELU":
        return nn.GELU(approximate="tanh")
    if name not in formulas:
        return getattr(nn, name)()

    class Written(nn.Module):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return formulas[name](x)

    return Written()


def _First(module: Any) -> Any:  # noqa: N802
    """Return ``module`` with the first of its outputs only."""
    from torch import nn

    class First(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.cell = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.cell(x)[0]
            return output

    return First()


def batches(program: Program) -> Iterator[Any]:
    """Yield the inputs of the steps, from a DataLoader."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    shapes = {
        "cnn": (3, program.length, program.length),
        "mlp": (program.width,),
        "lstm": (program.length, program.width),
        "transformer": (program.length, program.width),
    }

    class Batches(Dataset[Any]):  # type: ignore[misc]
        def __len__(self) -> int:
            return _ENDLESS

        def __getitem__(self, index: int) -> Any:
            if program.load_ms:
                time.sleep(program.load_ms / 1000)
            made = torch.randn(
                program.batch,
                *shapes[program.network],
                dtype=torch.float64 if program.double else torch.float32,
            )
            for _ in range(program.load_work):
                torch.ones(192, 192) @ torch.ones(192, 192)
            return made

    yield from DataLoader(Batches(), batch_size=None, num_workers=program.workers)


def training(program: Program) -> tuple[Any, Callable[[StepRecorder, int], None]]:
    """Return the model, and a function that trains it for some recorded steps."""
    import torch

    torch.manual_seed(0)
    model = network(program)
    if program.double:
        model = model.double()
    if program.channels_last:
        model = model.to(memory_format=torch.channels_last)
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = getattr(torch.optim, program.optimizer)(trained, lr=1e-3)
    forward = torch.compile(model) if program.compiled else model
    large = torch.randn(1_000_000)
    loaded = batches(program)

    def passes() -> None:
        x = next(loaded)
        if program.channels_last:
            x = x.to(memory_format=torch.channels_last)
        with torch.autocast("cpu") if program.autocast else nullcontext():
            output = forward(x)
        if output.ndim == 3:
            output = output[:, 0]
        for _ in range(program.clones):
            large.clone()
        (output.float() if program.autocast else output).square().mean().backward()

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(program.accumulate):
            passes()
        optimizer.step()
        with torch.profiler.record_function("logging") if program.logging_ms else nullcontext():
            time.sleep(program.logging_ms / 1000)
        with torch.profiler.record_function("metrics") if program.metrics else nullcontext():
            for _ in range(program.metrics):
                large.square().sum().item()

    def run(recorder: StepRecorder, steps: int) -> None:
        torch.set_num_threads(program.threads)
        without = torch.backends.mkldnn.flags(enabled=False)
        with nullcontext() if program.onednn else without:
            for _ in range(steps):
                step()
                recorder.step()

    return model, run

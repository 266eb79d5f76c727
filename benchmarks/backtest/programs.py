"""The programs of the experiments: a training step on the CPU, with one thing or another changed.

``python -m benchmarks.backtest.programs FOLDER JSON`` records the steps of the programs of a list,
one after the other, into folders with their numbers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

if TYPE_CHECKING:
    import torch

WARM_UP: Final = 6
STEPS: Final = 14


class Program(msgspec.Struct, frozen=True, kw_only=True):
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


def network(program: Program) -> torch.nn.Module:
    """Return the model; its layers have the names of their kind and number: ``conv1``, ``fc2``."""
    from torch import nn

    width, modules = program.width, dict[str, nn.Module]()
    kinds = {"cnn": "conv", "mlp": "fc", "lstm": "lstm", "transformer": "block"}
    kind = kinds[program.network]
    for number in range(1, program.layers + 1):
        name = f"{kind}{number}"
        if kind == "conv":
            modules[name] = nn.Conv2d(3 if number == 1 else width, width, 3, padding=1)
            if program.normalization:
                modules[f"norm{number}"] = nn.BatchNorm2d(width)
        elif kind == "fc":
            modules[name] = nn.Linear(width, width)
            if program.normalization:
                modules[f"norm{number}"] = nn.LayerNorm(width)
        elif kind == "block":
            modules[name] = nn.TransformerEncoderLayer(
                width, 4, 4 * width, 0.1 if program.dropout else 0.0, batch_first=True
            )
        else:
            modules[name] = _First(nn.LSTM(width, width, batch_first=True))
        if kind in ("conv", "fc"):
            modules[f"act{number}"] = getattr(nn, program.activation)()
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
            return WARM_UP + STEPS + 8

        def __getitem__(self, index: int) -> Any:
            if program.load_ms:
                time.sleep(program.load_ms / 1000)
            made = torch.randn(program.batch, *shapes[program.network])
            for _ in range(program.load_work):
                torch.ones(192, 192) @ torch.ones(192, 192)
            return made

    yield from DataLoader(Batches(), batch_size=None, num_workers=program.workers)


def record(program: Program, folder: Path) -> None:
    """Record the steps of ``program`` into ``folder``."""
    import torch

    import traceana

    torch.manual_seed(0)
    torch.set_num_threads(program.threads)
    model = network(program)
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = getattr(torch.optim, program.optimizer)(trained, lr=1e-3)
    large = torch.randn(1_000_000)
    with traceana.recorder(folder, warm_up=WARM_UP, steps=STEPS, model=model) as recorder:
        for x in batches(program):
            output = model(x)
            if output.ndim == 3:
                output = output[:, 0]
            for _ in range(program.clones):
                large.clone()
            loss = output.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.profiler.record_function("logging") if program.logging_ms else nullcontext():
                time.sleep(program.logging_ms / 1000)
            with torch.profiler.record_function("metrics") if program.metrics else nullcontext():
                for _ in range(program.metrics):
                    large.square().sum().item()
            recorder.step()


if __name__ == "__main__":
    for at, one in enumerate(msgspec.json.decode(sys.argv[2], type=list[Program])):
        record(one, Path(sys.argv[1], str(at)))

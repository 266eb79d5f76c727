"""A decoder as GPT-2 is written, small, and steps and recordings of PyTorch models."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import traceana
from traceana.trace import Trace


class Conv1D(nn.Module):  # type: ignore[misc]  # not checked: an extra
    """A linear layer with the weight the other way round, as ``transformers`` has it."""

    def __init__(self, made: int, taken: int) -> None:
        super().__init__()
        self.nf = made
        self.weight = nn.Parameter(torch.zeros(taken, made))
        self.bias = nn.Parameter(torch.zeros(made))

    def forward(self, x: Any) -> Any:
        flat = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return flat.view(*x.size()[:-1], self.nf)


class Attention(nn.Module):  # type: ignore[misc]
    """Causal attention, fused or of two products and a softmax."""

    def __init__(self, width: int, heads: int, *, fused: bool) -> None:
        super().__init__()
        self.c_attn, self.c_proj = Conv1D(3 * width, width), Conv1D(width, width)
        self.heads, self.fused = heads, fused

    def forward(self, x: Any) -> Any:
        batch, time, width = x.shape
        parts = self.c_attn(x).split(width, dim=2)
        query, key, value = (
            part.view(batch, time, self.heads, -1).transpose(1, 2) for part in parts
        )
        if self.fused:
            found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            found = F.softmax(query @ key.transpose(-2, -1), dim=-1) @ value
        return self.c_proj(found.transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):  # type: ignore[misc]
    """Attention and two linear layers with functions between."""

    def __init__(self, width: int, heads: int, *, fused: bool) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), Attention(width, heads, fused=fused)
        self.ln_2 = nn.LayerNorm(width)
        self.fc, self.proj = Conv1D(4 * width, width), Conv1D(width, 4 * width)

    def forward(self, x: Any) -> Any:
        x = x + self.attn(self.ln_1(x))
        return x + self.proj(F.gelu(self.fc(self.ln_2(x))))


class Decoder(nn.Module):  # type: ignore[misc]
    """Embeddings, equal blocks and a head that shares the first embedding's weight."""

    WIDTH, HEADS, WORDS, TIME = 16, 2, 50, 8

    def __init__(self, blocks: int = 3, *, fused: bool = True) -> None:
        super().__init__()
        self.wte = nn.Embedding(self.WORDS, self.WIDTH)
        self.wpe = nn.Embedding(self.TIME, self.WIDTH)
        self.h = nn.ModuleList(Block(self.WIDTH, self.HEADS, fused=fused) for _ in range(blocks))
        self.ln_f = nn.LayerNorm(self.WIDTH)
        self.head = nn.Linear(self.WIDTH, self.WORDS, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, words: Any) -> Any:
        x = self.wte(words) + self.wpe(torch.arange(words.shape[1]))
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x))


def accumulating(
    model: nn.Module, images: Any, *, micro: int, evaluations: int, before: bool = False
) -> Callable[[], None]:
    """Return a step of ``micro`` micro-batches and some evaluation passes, behind or before."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def evaluate() -> None:
        model.eval()
        with torch.no_grad():
            for _ in range(evaluations):
                model(images[:1]).argmax(-1)
        model.train()

    def step() -> None:
        if before:
            evaluate()
        for _ in range(micro):
            found = model(images).flatten(0, -2)
            goal = torch.zeros(len(found), dtype=torch.long)
            (F.cross_entropy(found, goal) / micro).backward()
        optimizer.step()
        optimizer.zero_grad()
        if not before:
            evaluate()

    return step


def recorded(
    folder: Path,
    run: Callable[[], None],
    *,
    steps: int = 2,
    shapes: bool = True,
    marks: bool = True,
) -> Trace:
    """Record ``run`` ``steps`` times with torch.profiler on the CPU."""
    run()
    path = folder / "trace.json"
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=shapes
    ) as profiler:
        for number in range(steps):
            mark = torch.profiler.record_function(f"step {number}") if marks else nullcontext()
            with mark:
                run()
    profiler.export_chrome_trace(str(path))
    return traceana.open(path)

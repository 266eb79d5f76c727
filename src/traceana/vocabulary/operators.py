"""What operators are called, and what is known of each by its name: the rows of ``operators.csv``.

``kind`` is what a forward operator computes (:data:`Kind`), empty for others. ``work`` says why an
operator computes nothing: it is a ``view``, an ``allocation``, the operators ``inside`` it do the
work, it ``copies`` or fills, or it ``moves`` elements otherwise; empty where it computes.
``inputs`` is the most that PyTorch's schemas take, with which a test compares them. ``formula`` is
the function of :mod:`traceana.flops` that counts its FLOPs, ``operands`` the inputs that it reads,
in order: ``x w bias stride``. ``mask=10`` gives the position of an operand; those behind it follow.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import polars as pl

Kind: TypeAlias = Literal[
    "convolution",
    "linear",  # the product of an activation with a weight, such as aten::addmm
    "mm",  # the product of two matrices; the second may be a weight
    "batched_mm",  # the product of two tensors that may both be activations, such as aten::matmul
    "attention",
    "recurrent",
    "normalization",
    "embedding",
]

GENERATED: Final = r"^(?:graph_\d+_)?(?:cpp|triton_[a-z]+)_(fused.*?)_*\d*$"
"""The name of a kernel that Inductor generated; its group is without backend and number."""

TEMPLATE: Final = "triton_tem_"
"""The beginning of the names of kernels that Inductor generates from a template, and the name of
their row."""

FUSED: Final = r"(?i)fused"
"""A part of the names of an optimizer's fused kernels, and of those that a compiler generated."""

COMPILED_REGION: Final = "Torch-Compiled Region"
"""The beginning of the name of an operator around what ``torch.compile`` compiled."""
COMPILED_GRAPH: Final = "## Call CompiledFxGraph"
"""Inductor's range around a graph; without recorded shapes, PyTorch writes it as an operator."""
SEEDS: Final = "aten::randint"
"""Draws the seeds of a compiled graph, whose generated code computes random numbers with them."""

MATRIX_PRODUCTS: Final[tuple[Kind, ...]] = ("linear", "mm", "batched_mm")
WEIGHTED: Final[tuple[Kind, ...]] = (
    "convolution",
    *MATRIX_PRODUCTS,
    "attention",
    "recurrent",
    "normalization",
    "embedding",
)
"""Kinds of layers with weights. A program's own range around several is that of a network."""


class Operator(NamedTuple):
    """A row of ``operators.csv``; empty where nothing is known."""

    kind: str = ""
    work: str = ""
    inputs: int | None = None
    formula: str = ""
    operands: Mapping[str, int] = MappingProxyType({})

    @property
    def input(self) -> int:
        """The position of the activation: ``aten::addmm`` has its addend, such as a bias, first."""
        return self.operands.get("x", 0)

    @property
    def weight(self) -> int:
        """The position of the weight."""
        return self.operands.get("w", 1)


_UNKNOWN: Final = Operator()


def positions(operands: str) -> dict[str, int]:
    """Return the position of each operand of the text ``x . w groups=8``; a dot is any other."""
    found: dict[str, int] = {}
    following = 0
    for operand in operands.split():
        name, _, position = operand.partition("=")
        following = int(position) if position else following
        if name != ".":
            found[name] = following
        following += 1
    return found


@cache
def operators() -> dict[str, Operator]:
    """Return all rows by name, in the file's order."""
    text = files("traceana.vocabulary").joinpath("operators.csv").read_text(encoding="utf-8")
    return {
        name: Operator(kind, work, int(inputs) if inputs else None, formula, positions(operands))
        for name, kind, work, inputs, formula, operands in list(csv.reader(text.splitlines()))[1:]
    }


def operator_row(name: str) -> Operator:
    """Return the row of ``name``; an empty one for another name."""
    return operators().get(TEMPLATE if name.startswith(TEMPLATE) else name, _UNKNOWN)


@cache
def of_kinds(*kinds: Kind) -> str:
    """Return a regular expression for the operators of ``kinds``, in any namespace:
    ``aten::conv2d``, ``torch.nn.functional.conv2d``, ``conv2d``."""
    names = {
        re.escape(name.rpartition("::")[2])
        for name, row in operators().items()
        if row.kind in kinds
    }
    return rf"(?:^|::|\.)(?:{'|'.join(sorted(names))})$"


@cache
def without_work() -> frozenset[str]:
    """Return the operators that make views, allocate, or call others, which do the work."""
    return frozenset(
        name for name, row in operators().items() if row.work in ("view", "allocation", "inside")
    )


@cache
def copying() -> frozenset[str]:
    """Return the operators that copy or fill."""
    return frozenset(name for name, row in operators().items() if row.work == "copies")


_WRAPPERS: Final = (
    r"^autograd::engine::evaluate_function: |^torch::autograd::AccumulateGrad$|Backward\d+$|"
    r"(?:^|:|\.)CheckpointFunction(?:Backward)?$|^BackwardHookFunction(?:Backward)?$|"
    rf"^{COMPILED_REGION}|"
    r"^TorchDynamo Cache Lookup$|^AOTDispatcher Runtime Wrapper|^Pregraph bytecode$|"
    r"^Optimizer\.|^ProfilerStep|^enumerate\(DataLoader\)|^nn\.Module: "
)


def passive(name: pl.Expr) -> pl.Expr:
    """Return whether the operators of ``name`` (text) have no self work.

    Nodes of autograd's graph, optimizers, annotations and the wrappers of torch.compile count by
    the operators inside them.
    A node whose name ends without a number is defined by the program, or is of PyTorch before 1.9:
    it may launch kernels and is not passive. A reentrant checkpoint and the node that calls a
    module's backward hooks launch no kernels.
    """
    return name.is_in(sorted(without_work())) | name.str.contains(_WRAPPERS)

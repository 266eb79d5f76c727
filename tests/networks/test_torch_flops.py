"""FLOPs of PyTorch's networks: by PyTorch's own counter, where it has none by the closed form."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest

import traceana
from traceana.analyze.flops import flops
from traceana.analyze.layers import layers
from traceana.analyze.operator_flops import operator_costs
from traceana.trace import Trace

torch = pytest.importorskip("torch")

from tests.networks import torch_models as models  # noqa: E402
from tests.networks.torch_recording import counted, recorded  # noqa: E402

pytestmark = pytest.mark.frameworks

PRODUCTS = "conv|linear|matmul|matrix_vector|dot|attention|lstm"
BATCH, LENGTH = 4, 12


def images(side: int) -> Any:
    return torch.randn(BATCH, 3, side, side)


def tokens() -> Any:
    return torch.randint(0, 50, (LENGTH, BATCH))


NETWORKS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "DenseNet-121": (models.densenet121, lambda: images(32)),
    "MobileNetV2": (models.mobilenet_v2, lambda: images(32)),
    "MobileNetV3": (models.mobilenet_v3_small, lambda: images(32)),
    "U-Net": (models.UNet, lambda: images(16)),
    "VGG11": (models.vgg11, lambda: images(64)),
    "GPT, attention in products": (lambda: models.GPT(fused=False), lambda: tokens().T),
    "shared layers": (models.Shared, lambda: images(8)),
    "no checkpoint": (lambda: models.Checkpointed(reentrant=None), lambda: images(8)),
    "reentrant checkpoint": (
        lambda: models.Checkpointed(reentrant=True),
        lambda: images(8).requires_grad_(),
    ),
    "checkpoint": (lambda: models.Checkpointed(reentrant=False), lambda: images(8)),
}

# The modules that torch.compile imports are long to import, and not ours to judge.
COMPILER = pytest.mark.filterwarnings("ignore")


class Recording(NamedTuple):
    trace: Trace
    theirs: int
    """FLOPs of one step by PyTorch's counter."""


def training(model: Any, inputs: Any) -> Callable[[], None]:
    def step() -> None:
        model(inputs).square().mean().backward()

    return step


def record(step: Callable[[], None], folder: Path, steps: int = 1) -> Recording:
    theirs = counted(step)
    return Recording(traceana.open(recorded(step, folder / "trace.json", steps)), theirs)


def products(trace: Trace) -> int:
    """Return the FLOPs of all convolutions, matrix products, attention and LSTMs of a trace."""
    costs = operator_costs(trace.tables.ops).costs
    mine = costs.filter(pl.col("kind").str.contains(PRODUCTS) & (pl.col("part") != "bias_grad"))
    return int(mine["flops"].sum())


@pytest.mark.exhaustive(after=4)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_computes_what_pytorch_counts(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, inputs = (make() for make in NETWORKS[name])
    trace, theirs = record(training(model, inputs), tmp_path)
    assert products(trace) == theirs > 0
    costs = operator_costs(trace.tables.ops)
    assert costs.gaps.is_empty(), costs.gaps
    # The tables of operators and of layers share out the same sum.
    total = int(costs.costs["flops"].sum())
    assert flops(trace).frame["flops"].sum() == total
    assert layers(trace).frame["flops"].sum() == total


def test_what_vmap_computes_is_counted_for_the_whole_batch(tmp_path: Path) -> None:
    """functorch records each operator with the shapes of one example, around those that run."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2, bias=False)
    )
    values = {name: value.detach() for name, value in model.named_parameters()}
    inputs = torch.randn(5, 8)

    def loss(values: dict[str, Any], one: Any) -> Any:
        return torch.func.functional_call(model, values, (one,)).square().sum()

    def step() -> None:
        torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(values, inputs)

    trace, theirs = record(step, tmp_path)
    assert products(trace) == theirs > 0
    # A square matrix times itself has its shape twice, and is one product.
    square = torch.randn(6, 6)
    trace, theirs = record(lambda: torch.mm(square, square), tmp_path)
    assert products(trace) == theirs == 2 * 6**3


def _matrices(*shape: int) -> tuple[Any, ...]:
    return torch.randn(*shape), torch.randn(*shape[:-2], shape[-1], 3)


def _convolved(weight: Any, image: Any) -> Any:
    return torch.nn.functional.conv2d(image, weight, padding=1)


FIRST, BIAS, SECOND = torch.randn(6, 4), torch.randn(6), torch.randn(2, 6)


def _mlp(one: Any) -> Any:
    linear = torch.nn.functional.linear
    return linear(torch.tanh(linear(one, FIRST, BIAS)), SECOND)


def _mlp_loss(one: Any) -> Any:
    return _mlp(one).square().mean()


def _gradient(one: Any) -> Any:
    return torch.func.grad(_mlp_loss)(one)


# A function that returns the operands, and a program of them.
TRANSFORMED: dict[str, tuple[Callable[[], tuple[Any, ...]], Callable[..., Any]]] = {
    "vmap of matmul": (lambda: _matrices(5, 4, 6), lambda a, b: torch.vmap(torch.matmul)(a, b)),
    "vmap of matmul, one operand shared": (
        lambda: _matrices(5, 4, 6),
        lambda a, b: torch.vmap(torch.matmul, (0, None))(a, b[0]),
    ),
    "vmap of bmm": (lambda: _matrices(5, 2, 4, 6), lambda a, b: torch.vmap(torch.bmm)(a, b)),
    "vmap of vmap": (
        lambda: _matrices(2, 5, 4, 6),
        lambda a, b: torch.vmap(torch.vmap(torch.matmul))(a, b),
    ),
    "vmap of linear": (
        lambda: (torch.randn(5, 4, 6), torch.randn(3, 6), torch.randn(3)),
        lambda x, w, b: torch.vmap(lambda one: torch.nn.functional.linear(one, w, b))(x),
    ),
    "vmap of conv2d": (
        lambda: (torch.randn(4, 3, 3, 3), torch.randn(5, 2, 3, 7, 7)),
        lambda w, x: torch.vmap(_convolved, (None, 0))(w, x),
    ),
    "vmap of conv2d and its weights": (
        lambda: (torch.randn(5, 4, 3, 3, 3), torch.randn(5, 2, 3, 7, 7)),
        lambda w, x: torch.vmap(_convolved)(w, x),
    ),
    "grad": (
        lambda: _matrices(4, 6),
        lambda a, b: torch.func.grad(lambda w: (a @ w).square().mean())(b),
    ),
    "grad of conv2d": (
        lambda: (torch.randn(4, 3, 3, 3), torch.randn(2, 3, 7, 7)),
        lambda w, x: torch.func.grad(lambda w, x: _convolved(w, x).sum(), (0, 1))(w, x),
    ),
    "grad of grad": (
        lambda: _matrices(4, 6),
        lambda a, b: torch.func.grad(
            lambda w: torch.func.grad(lambda w: (a @ w).square().mean())(w).sum()
        )(b),
    ),
    "vmap of grad": (lambda: (torch.randn(5, 4),), lambda x: torch.vmap(_gradient)(x)),
    "grad of vmap": (
        lambda: (torch.randn(5, 4),),
        lambda x: torch.func.grad(lambda x: torch.vmap(_mlp)(x).square().mean())(x),
    ),
    "jacrev": (lambda: (torch.randn(5, 4),), lambda x: torch.func.jacrev(_mlp)(x)),
    "jacfwd": (lambda: (torch.randn(5, 4),), lambda x: torch.func.jacfwd(_mlp)(x)),
    "jvp": (lambda: (torch.randn(5, 4),), lambda x: torch.func.jvp(_mlp, (x,), (x,))),
    "hessian": (lambda: (torch.randn(5, 4),), lambda x: torch.func.hessian(_mlp_loss)(x)),
}


@pytest.mark.exhaustive(after=6)
@COMPILER
@pytest.mark.parametrize("name", TRANSFORMED)
def test_what_runs_inside_of_transforms_is_counted_once(name: str, tmp_path: Path) -> None:
    """functorch records an operator once for each transform; the innermost record is what runs."""
    operands, program = TRANSFORMED[name]
    given = operands()
    trace, theirs = record(lambda: program(*given), tmp_path)
    assert products(trace) == theirs > 0
    gaps = operator_costs(trace.tables.ops).gaps
    assert gaps.is_empty(), trace.tables.ops["name"].gather(gaps["op"])
    assert (
        flops(trace).frame["flops"].sum() == operator_costs(trace.tables.ops).costs["flops"].sum()
    )


# vmap runs the attention of each example in turn, and warns.
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_attention_inside_of_transforms(tmp_path: Path) -> None:
    """Closed form: two products going forward, five going back."""
    examples, rows, length, width = 5, 6, 8, 16
    query = torch.randn(examples, 2, rows // 2, length, width)
    product = 2 * rows * length**2 * width

    def attention(one: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(one, one, one)

    trace, _ = record(lambda: torch.vmap(attention)(query), tmp_path)
    assert products(trace) == examples * 2 * product
    trace, _ = record(lambda: torch.func.grad(lambda q: attention(q).sum())(query[0]), tmp_path)
    assert products(trace) == (2 + 5) * product


def test_gradients_of_each_example_of_a_convolution(tmp_path: Path) -> None:
    """Closed form: PyTorch's counter ignores the groups that a gradient of each example has."""
    weight, images = torch.randn(8, 3, 3, 3), torch.randn(5, 1, 3, 9, 9)

    def loss(weight: Any, image: Any) -> Any:
        return _convolved(weight, image).square().sum()

    step = torch.vmap(torch.func.grad(loss), (None, 0))
    trace, _ = record(lambda: step(weight, images), tmp_path)
    assert products(trace) == 2 * (2 * 5 * 8 * 81 * 27)


@pytest.mark.parametrize("name", ["softmax", "tanh", "square", "mean", "cumsum", "sin"])
def test_an_operator_of_a_batch_costs_what_its_examples_do(name: str, tmp_path: Path) -> None:
    # A scalar has no extents in the record.
    values = torch.randn(*((6,) if name == "sin" else (6, 5, 7)))
    given = {"softmax": (-1,), "cumsum": (0,), "mean": (-1,)}.get(name, ())

    def function(one: Any) -> Any:
        return getattr(one, name)(*given)

    def cost(step: Callable[[], Any]) -> int:
        trace, _ = record(step, tmp_path)
        return int(operator_costs(trace.tables.ops).costs["flops"].sum())

    assert cost(lambda: torch.vmap(function)(values)) == cost(
        lambda: [function(one) for one in values]
    )


def test_a_complex_convolution_is_the_real_ones_that_it_runs(tmp_path: Path) -> None:
    model = torch.nn.Conv1d(2, 3, 3, dtype=torch.complex64)
    inputs = torch.randn(2, 2, 10, dtype=torch.complex64)
    trace, theirs = record(lambda: model(inputs).abs().sum().backward(), tmp_path)
    assert products(trace) == theirs > 0


def test_recomputing_adds_the_forward_pass_of_what_is_checkpointed(tmp_path: Path) -> None:
    """Closed form: three blocks of two convolutions, and the first of two linear layers.

    The second one's result is not needed in the backward pass: a reentrant checkpoint computes it
    again all the same, the other stops before it, and no time passes as if it had run.
    """
    side, counts = 8, {}
    for reentrant in (None, True, False):
        model = models.Checkpointed(reentrant=reentrant)
        # A gradient of the image would be one product more.
        inputs = images(side)
        counts[reentrant] = record(training(model, inputs), tmp_path)
    convolutions = 3 * 2 * (2 * 16 * 16 * 9 * BATCH * side**2)
    linear = 2 * BATCH * 16 * 64
    plain = products(counts[None].trace)
    assert products(counts[False].trace) == plain + convolutions + linear
    assert products(counts[True].trace) == plain + convolutions + 2 * linear


def test_fused_attention_is_five_products_and_two(tmp_path: Path) -> None:
    """Closed form beside the linear layers: Q·Kᵀ and P·V, and five of such going back."""
    width, depth = 32, 2
    model = models.GPT(width=width, depth=depth)
    trace, theirs = record(training(model, tokens().T), tmp_path)
    one = 2 * BATCH * LENGTH * LENGTH * width
    linear = BATCH * LENGTH * 2 * (depth * 12 * width * width + 100 * width)
    # What PyTorch counts of the CPU's fused attention differs by version: the linear layers alone.
    assert products(trace) == 3 * linear + depth * (2 + 5) * one
    assert operator_costs(trace.tables.ops).gaps.is_empty()
    assert theirs >= 3 * linear


@pytest.mark.parametrize("bidirectional", [False, True])
def test_an_lstm_is_its_gates(bidirectional: bool, tmp_path: Path) -> None:
    """Closed form: 4H(I + H) weights a layer and direction meet every position, three times."""
    entering, hidden = 6, 10
    model = models.Tagger(entering, hidden, bidirectional)
    trace, _ = record(training(model, tokens()), tmp_path)
    ways = 1 + bidirectional
    positions = LENGTH * BATCH
    weights = ways * 4 * hidden * ((entering + hidden) + (ways * hidden + hidden))
    units = 2 * ways * hidden
    costs = operator_costs(trace.tables.ops)
    parts = costs.costs.filter(pl.col("kind") == "lstm").group_by("part").agg(pl.col("flops").sum())
    assert dict(parts.iter_rows()) == {
        "forward": positions * (2 * weights + 18 * units),
        "dgrad": positions * (2 * weights + 23 * units),
        "wgrad": positions * 2 * weights,
        "bias_grad": positions * 4 * units,
    }
    assert costs.gaps.is_empty()


def test_an_lstm_of_many_small_products_and_of_one_library_call_agree(tmp_path: Path) -> None:
    """oneDNN has no LSTM in double precision: there PyTorch's counter sees every product.

    oneDNN computes the gradient of the first state too, which nothing asks for.
    """
    fast = models.Tagger(6, 10, bidirectional=False)
    slow = models.Tagger(6, 10, bidirectional=False).double()
    one, (many, theirs) = (record(training(model, tokens()), tmp_path) for model in (fast, slow))
    names = set(one.trace.tables.ops["name"].cast(pl.String))
    assert "aten::mkldnn_rnn_layer" in names or pytest.skip("no LSTM of oneDNN here")
    assert products(many) == theirs
    gates = (18 + 23) * 2 * 10 * LENGTH * BATCH
    of_state = 2 * (2 * BATCH * 10 * 4 * 10)
    assert products(one.trace) - gates - of_state == theirs


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_products_of_sparse_matrices_are_not_counted_as_of_dense_ones(tmp_path: Path) -> None:
    """A layer of a graph network: PyTorch's counter multiplies the whole adjacency matrix."""
    nodes, width = 30, 8
    adjacency = torch.eye(nodes).to_sparse()
    layer = torch.nn.Linear(width, width)
    features = torch.randn(nodes, width)
    rows = adjacency.to_sparse_csr()

    def step() -> None:
        found = torch.sparse.mm(adjacency, layer(features))
        (rows @ layer(found)).sum().backward()

    trace, theirs = record(step, tmp_path)
    # Two linear layers, of which the first has no gradient of its input.
    assert products(trace) == (2 + 3) * 2 * nodes * width * width < theirs
    uncounted = flops(trace).frame.filter(pl.col("flops").is_null())
    assert "aten::addmm" in set(uncounted["operator"])


def test_accumulated_gradients_are_as_many_passes(tmp_path: Path) -> None:
    model = models.Shared()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    parts = [images(8) for _ in range(3)]

    def step() -> None:
        for part in parts:
            model(part).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    trace, theirs = record(step, tmp_path, steps=2)
    assert theirs == len(parts) * counted(training(model, parts[0]))
    assert products(trace) == 2 * theirs
    assert trace.tables.steps.height == 2
    assert operator_costs(trace.tables.ops).gaps.is_empty()


@pytest.mark.exhaustive
@COMPILER
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_network_computes_what_it_computed_before(backend: str, tmp_path: Path) -> None:
    if backend == "inductor" and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("no compiler of C++")
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 64, 10),
    )
    theirs = counted(training(model, images(8)))
    compiled = torch.compile(model, backend=backend)
    step = training(compiled, images(8))
    step()
    trace = traceana.open(recorded(step, tmp_path / "trace.json", 1))
    assert products(trace) == theirs
    # What inductor fuses runs in the compiled function itself, without an operator.
    gaps = operator_costs(trace.tables.ops).gaps
    uncounted = set(trace.tables.ops["name"].cast(pl.String).gather(gaps["op"]))
    assert {name for name in uncounted if not name.startswith("CompiledFunction")} == set()

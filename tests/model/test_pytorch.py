"""Layers of PyTorch modules, and that describing them leaves no trace in them."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn.attention import SDPBackend
from torch.utils.flop_counter import FlopCounterMode

from tests.support.decoder import Decoder
from traceana import describe
from traceana.errors import InvalidInputError
from traceana.flops.call import Call, Refusal
from traceana.flops.registry import cost, total_flops
from traceana.runs.layer_manifest import read

pytestmark = pytest.mark.frameworks

MATH = SDPBackend.MATH


def test_windows_are_normalized() -> None:
    model = nn.Sequential(
        nn.Conv2d(4, 8, (3, 5), stride=2, padding=(1, 2), dilation=(1, 2), groups=2),
        nn.Conv2d(8, 8, 4, padding="same", bias=False),
        nn.MaxPool2d(3, stride=2, ceil_mode=True),
        nn.AvgPool2d(2),
        nn.ConvTranspose2d(8, 2, 4, stride=2, padding=1),
        nn.AdaptiveAvgPool2d(1),
    )
    conv, same, pool, average, up, whole = describe(model, (2, 4, 33, 33)).layers
    assert conv.kernel == (3, 5)
    assert (conv.stride, conv.dilation, conv.groups) == ((2, 2), (1, 2), 2)
    assert conv.padding == ((1, 1), (2, 2))
    assert conv.parameters == {"weight": (8, 2, 3, 5), "bias": (8,)}
    assert conv.outputs == ((2, 8, 17, 15),)
    assert conv.flops == 2 * 2 * 8 * 17 * 15 * 2 * 15
    assert same.padding == ((1, 2), (1, 2))
    assert same.parameters == {"weight": (8, 8, 4, 4)}
    # 17 = 2 * 8 + 1: the last of 8 windows ends at 17, and no window of 15 reaches beyond.
    assert pool.outputs == ((2, 8, 8, 7),)
    assert pool.padding == ((0, 0), (0, 0))
    assert (average.kernel, average.stride) == ((2, 2), (2, 2))
    assert up.type == "ConvTranspose2d"
    assert up.parameters["weight"] == (8, 2, 4, 4)
    assert up.flops == 2 * 2 * 8 * (4 * 3) * 2 * 16
    assert whole.kernel is None
    assert whole.outputs == ((2, 2, 1, 1),)


def test_a_number_beside_the_batch_is_an_input(tmp_path: Any) -> None:
    """A 0-dim tensor, as the Trainer of transformers passes one."""

    class Scaled(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(16, 4)

        def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            return self.fc(x) / scale

    manifest = describe(Scaled(), [(8, 16), ()])
    assert [layer.path for layer in manifest.layers] == ["fc", "Scaled"]
    manifest.write(tmp_path / "layers.json")
    assert read(tmp_path / "layers.json").layers[0].inputs == ((8, 16),)


def test_ceil_mode_is_padding_behind() -> None:
    (pool,) = describe(nn.MaxPool2d(3, 2, ceil_mode=True), (1, 1, 8, 8)).layers
    assert pool.outputs == ((1, 1, 4, 4),)
    assert pool.padding == ((0, 1), (0, 1))
    assert pool.path == "MaxPool2d"


class Twice(nn.Module):  # type: ignore[misc]  # not checked: an extra
    """Calls one layer twice, in the order of its calls, with a function between."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(3, 3)
        self.last = nn.Linear(6, 2)
        self.shared = nn.Linear(6, 6)
        self.alias = self.shared
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, x: Any, again: Any = None) -> Any:
        x = torch.relu(self.shared(x))
        return self.last(self.alias(x if again is None else x + again))


def test_order_of_execution_and_calls() -> None:
    found = describe(Twice(), (4, 6), name="twice")
    assert [(layer.path, layer.calls, layer.position) for layer in found.layers] == [
        ("shared", 2, 0),
        ("Twice", 1, 1),
        ("last", 1, 2),
    ]
    # Called in turn: the layer, the ReLU and the sum behind it, the layer, the last one.
    assert [layer.order for layer in found.layers] == [(0, 2), (), ()]
    # An operation an element of the ReLU, one of the sum is none: there is nothing to add.
    assert found.layers[1].flops == 4 * 6
    assert found.layers[0].flops == 2 * (2 * 4 * 6 * 6)
    assert found.layers[0].parameter_count == 42
    assert found.network == "twice"
    # Of the whole model, with what was not called and what is in no layer.
    assert found.parameter_count == 12 + 14 + 42 + 5
    named = describe(Twice(), {"x": (4, 6), "again": (4, 6)})
    assert [one.name for one in named.inputs] == ["x", "again"]
    assert [layer.path for layer in named.layers] == ["shared", "Twice", "last"]
    assert named.layers[1].flops == 2 * 4 * 6


class Own(nn.Module):  # type: ignore[misc]  # not checked: an extra
    """No layer of PyTorch's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))

    def forward(self, x: Any) -> Any:
        return x * self.weight


def test_classes_of_ones_own() -> None:
    model = nn.Sequential(Own(), nn.Sequential(nn.ReLU()))
    own, relu = describe(model, (2, 3)).layers
    assert (own.type, own.flops, own.parameters) == ("Own", 6, {"weight": (3,)})
    assert (relu.path, relu.type, relu.flops) == ("1.0", "ReLU", 6)
    assert describe(model, (2, 3), types={"Own": "Identity"}).layers[0].flops == 0


def test_a_subclass_that_pads_by_itself() -> None:
    class Padded(nn.Conv2d):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return super().forward(nn.functional.pad(x, (2, 2, 2, 2)))

    (layer,) = describe(Padded(3, 4, 11, stride=4), (1, 3, 224, 224)).layers
    assert (layer.type, layer.padding) == ("Conv2d", ((2, 2), (2, 2)))
    assert layer.framework_type.endswith("Padded")


@pytest.mark.parametrize("training", [True, False])
def test_attention_is_a_layer_and_a_transformer_is_made_of_layers(training: bool) -> None:
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).train(training)
    found = describe(block, (2, 5, 8))
    assert [layer.path for layer in found.layers] == [
        "self_attn", "dropout1", "TransformerEncoderLayer", "norm1", "linear1", "dropout",
        "linear2", "dropout2", "norm2",
    ]  # fmt: skip
    # Two residual sums and the activation between the linear layers.
    assert found.layers[2].flops == 2 * 5 * (8 + 8 + 16)
    attention = found.layers[0]
    assert attention.parameters["query.weight"] == attention.parameters["out.weight"] == (8, 8)
    assert attention.parameter_count == 4 * (64 + 8)
    assert attention.flops == 4 * 2 * 10 * 8 * 8 + 2 * 2 * 2 * 5 * 5 * 8
    assert sum(layer.parameter_count for layer in found.layers) == found.parameter_count


def test_sequences_have_the_batch_first() -> None:
    (attention,) = describe(nn.MultiheadAttention(8, 2), [(5, 2, 8)] * 3).layers
    assert attention.inputs == ((2, 5, 8),) * 3
    (lstm,) = describe(nn.LSTM(3, 7), (5, 2, 3)).layers
    assert lstm.inputs == ((2, 5, 3),)
    assert lstm.flops == 2 * 10 * 28 * (3 + 7)


def test_embeddings_take_integers() -> None:
    (layer,) = describe(nn.Embedding(100, 16), (4, 7), dtype="int64").layers
    assert (layer.inputs, layer.outputs, layer.flops) == (((4, 7),), ((4, 7, 16),), 0)


def test_the_dtype_is_the_models() -> None:
    found = describe(nn.Linear(3, 2).to(torch.bfloat16), (4, 3))
    assert found.inputs[0].dtype == "bfloat16"


def test_memory_layout_is_distinct_from_shapes() -> None:
    model = nn.Conv2d(3, 4, 3)
    (plain,) = describe(model, (2, 3, 8, 8)).layers
    (last,) = describe(model.to(memory_format=torch.channels_last), (2, 3, 8, 8)).layers
    assert (plain.layout, last.layout) == ("channels_first", "channels_last")
    assert plain.outputs == last.outputs == ((2, 4, 6, 6),)


class NeedsNumbers(nn.Module):  # type: ignore[misc]  # not checked: an extra
    """Cannot run on shapes alone, and keeps something."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout()

    def forward(self, x: Any) -> Any:
        x = self.drop(self.norm(x))
        return x + 1 if x.sum().item() > 0 else x


@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_the_model_stays_as_it_is(numbers: bool, training: bool) -> None:
    model = NeedsNumbers() if numbers else nn.Sequential(nn.BatchNorm1d(3), nn.Dropout())
    model.train(training)
    next(model.children()).train(not training)
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    attributes = {key: set(vars(module)) for key, module in model.named_modules()}
    random = torch.random.get_rng_state()
    reported = (
        pytest.warns(RuntimeWarning, match="ran the model itself") if numbers else nullcontext()
    )
    with reported:
        assert len(describe(model, (4, 3)).layers) == 2 + numbers
    assert torch.equal(random, torch.random.get_rng_state())
    assert [module.training for module in model.modules()] == modes
    assert {key: set(vars(module)) for key, module in model.named_modules()} == attributes
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert not any(module._forward_hooks for module in model.modules())
    assert torch.is_grad_enabled()


def test_wrappers_are_taken_off() -> None:
    inner = nn.Sequential(nn.Linear(3, 2))
    assert describe(nn.DataParallel(inner), (4, 3)) == describe(inner, (4, 3))


def test_what_does_not_run_is_refused_in_one_line() -> None:
    model = nn.Linear(3, 2)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(
        InvalidInputError, match=r"does not run on inputs of shape \(4, 5\)"
    ) as caught:
        describe(model, (4, 5))
    assert "\n" not in str(caught.value)
    assert not model._forward_hooks
    assert torch.equal(model.weight, before["weight"])
    with pytest.raises(InvalidInputError, match="lazy"):
        describe(nn.LazyLinear(3), (4, 5))
    with pytest.raises(InvalidInputError, match="parameters are for JAX"):
        describe(model, (4, 3), parameters={})


def test_torchscript_is_refused() -> None:
    with pytest.warns(DeprecationWarning):
        traced = torch.jit.trace(nn.Linear(3, 2), torch.zeros(4, 3))
    with pytest.raises(InvalidInputError, match="before scripting"):
        describe(traced, (4, 3))


def test_a_transformer_has_the_flops_that_pytorchs_counter_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = nn.Transformer(16, 2, 2, 2, 32, batch_first=True)
    shapes = [(2, 7, 16), (2, 5, 16)]
    with FlopCounterMode(display=False) as counter:
        model(*map(torch.zeros, shapes))
    products = [
        layer.flops
        for layer in describe(model, shapes).layers
        if layer.type in ("Linear", "MultiheadAttention")
    ]
    assert sum(flops or 0 for flops in products) == counter.get_total_flops()


@pytest.mark.parametrize("fused", [True, False])
def test_functions_are_counted_at_the_innermost_module(fused: bool) -> None:
    """A decoder with linear layers of its own, attention by functions and a tied head."""
    found = describe(Decoder(2, fused=fused), (3, 8), dtype="int64")
    rows = {layer.path: layer for layer in found.layers}
    block = ["ln_1", "attn.c_attn", "attn", "attn.c_proj", "", "ln_2", "fc", "proj"]
    assert list(rows) == [
        *("wte", "wpe", "Decoder"),
        *(f"h.{i}.{name}".rstrip(".") for i in range(2) for name in block),
        *("ln_f", "head"),
    ]
    # Conv1D multiplies as a linear layer: shapes are (out, in), as everywhere.
    assert rows["h.1.fc"].type == "Linear"
    assert rows["h.1.fc"].parameters == {"weight": (64, 16), "bias": (64,)}
    assert rows["h.1.fc"].flops == 2 * 24 * 16 * 64
    products = 2 * 2 * 3 * 2 * 8 * 8 * 8
    softmax = 0 if fused else cost_of_softmax(3 * 2 * 8 * 8)
    assert rows["h.0.attn"].flops == products + softmax
    assert rows["h.0"].type == "Block"
    assert (rows["h.0"].calls, rows["h.0"].parameters) == (1, {})
    with FlopCounterMode(display=False) as counter:
        Decoder(2, fused=False)(torch.zeros(3, 8, dtype=torch.long))
    linear = sum(layer.flops or 0 for layer in found.layers if layer.type == "Linear")
    assert linear + 2 * products == counter.get_total_flops()


def cost_of_softmax(elements: int) -> int:
    """Return what the registry counts for a softmax."""
    found = cost(Call("aten::_softmax", ((elements,), (), ()), ("float", "Scalar", "Scalar")))
    assert not isinstance(found, Refusal)
    return total_flops(found)


@pytest.mark.parametrize(
    ("layer", "shapes"),
    [
        (nn.MultiheadAttention(8, 2), [(5, 8)] * 3),
        (nn.MultiheadAttention(8, 2, add_bias_kv=True), [(5, 2, 8)] * 3),
        (nn.MultiheadAttention(8, 2, add_zero_attn=True), [(5, 2, 8)] * 3),
        (nn.MultiheadAttention(8, 2, kdim=4, vdim=6), [(5, 2, 8), (3, 2, 4), (3, 2, 6)]),
        (nn.MultiheadAttention(8, 2, batch_first=True).eval(), [(2, 5, 8)] * 3),
        (nn.GRU(3, 7, 2, bidirectional=True), [(5, 2, 3)]),
        (nn.LSTM(3, 7, batch_first=True, proj_size=2), [(2, 5, 3)]),
        (nn.LSTMCell(3, 7), [(2, 3)]),
        (nn.GRUCell(3, 7), [(2, 3)]),
        (nn.ConvTranspose2d(4, 6, 3, 2, groups=2), [(1, 4, 5, 5)]),
        (nn.Conv2d(4, 8, 3, groups=4), [(1, 4, 9, 9)]),
        (nn.Linear(3, 5), [(2, 7, 3)]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_products_are_those_of_pytorchs_own_counter(layer: Any, shapes: Any) -> None:
    """The counter's, with the attention of two products that it sees on the CPU."""
    (found,) = describe(layer, shapes).layers
    arguments = [torch.zeros(shape) for shape in shapes]
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(MATH):
        layer.train()(*arguments)
    assert found.flops == counter.get_total_flops()

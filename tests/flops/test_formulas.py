"""Every formula in closed form: operations and bytes by hand for small extents."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from traceana.flops.call import Call, Cost, Entry, Refusal, Shape
from traceana.flops.elementwise import ELEMENTWISE as FUNCTIONS
from traceana.flops.registry import cost

F, H, D, L, B = "float", "c10::Half", "double", "long int", "bool"


@dataclass(frozen=True)
class Case:
    """A call of float tensors, or of ``types``, and its cost in one part."""

    name: str
    shapes: tuple[Entry, ...]
    flops: int
    bytes: int | None
    formula: str
    scalars: tuple[str, ...] = ()
    types: tuple[str, ...] | None = None
    part: str = "forward"
    output: Shape | None = None
    training: bool | None = None
    window: Shape | None = None

    def run(self) -> tuple[Cost, ...] | Refusal:
        types = self.types
        if types is None:
            types = tuple(
                "TensorList" if shape and isinstance(shape[0], tuple) else F if shape else ""
                for shape in self.shapes
            )
        return cost(
            Call(
                self.name,
                self.shapes,
                types,
                self.scalars,
                output=self.output,
                training=self.training,
                window=self.window,
            )
        )


X = (2, 3, 4, 4)  # 96 elements, 384 bytes
N, NB = 96, 384
V = (3,)

CASES = (
    # Products: 2 m n k; the bytes of both factors, the result and the addend.
    Case("aten::mm", ((3, 4), (4, 5)), 120, 4 * (12 + 20 + 15), "matmul"),
    Case("aten::addmm", ((5,), (3, 4), (4, 5), (), ()), 120, 4 * (12 + 20 + 15 + 5), "matmul"),
    Case("aten::bmm", ((2, 3, 4), (2, 4, 5)), 240, 4 * (24 + 40 + 30), "matmul"),
    Case("aten::baddbmm", ((2, 3, 5), (2, 3, 4), (2, 4, 5)), 240, 4 * (24 + 40 + 60), "matmul"),
    Case("aten::addbmm", ((3, 5), (2, 3, 4), (2, 4, 5)), 240, 4 * (24 + 40 + 15 + 15), "matmul"),
    # Experts: by rows of the left, by columns of the right, by terms of a weight's gradient.
    Case("aten::_grouped_mm", ((9, 4), (3, 4, 5), (3,)), 360, 4 * (36 + 60 + 45), "matmul"),
    Case("aten::_grouped_mm", ((3, 2, 4), (4, 9), (3,)), 144, 4 * (24 + 36 + 18), "matmul"),
    Case("aten::_grouped_mm", ((4, 9), (9, 5), (3,)), 360, 4 * (36 + 45 + 60), "matmul"),
    Case("aten::_grouped_mm", ((3, 2, 4), (3, 4, 5), ()), 240, 4 * (24 + 60 + 30), "matmul"),
    Case("aten::_scaled_grouped_mm", ((4, 9), (9, 5), (4,), (5,), (3,)), 360, 4 * 141, "matmul"),
    Case("aten::matmul", ((2, 3, 4), (4, 5)), 240, 4 * (24 + 20 + 30), "matmul"),
    Case("aten::matmul", ((7, 1, 3, 4), (2, 4, 5)), 14 * 120, 4 * (84 + 40 + 210), "matmul"),
    Case("aten::matmul", ((4,), (4,)), 8, 4 * 9, "matmul"),
    Case("aten::matmul", ((3, 4), (4,)), 24, 4 * (12 + 4 + 3), "matmul"),
    Case("aten::matmul", ((4,), (4, 5)), 40, 4 * (4 + 20 + 5), "matmul"),
    Case("aten::linear", ((2, 3, 4), (5, 4), (5,)), 240, 4 * (24 + 20 + 30 + 5), "matmul"),
    Case("mkl::_mkl_linear", ((2, 3, 4), (99, 1), (5, 4), (5,)), 240, 4 * 79, "matmul"),
    Case("aten::mv", ((3, 4), (4,)), 24, 4 * (12 + 4 + 3), "matmul"),
    Case("aten::addmv", ((3,), (3, 4), (4,)), 24, 4 * (12 + 4 + 3 + 3), "matmul"),
    Case("aten::dot", ((4,), (4,)), 8, 4 * 9, "matmul"),
    Case("aten::outer", ((3,), (4,)), 12, 4 * (3 + 4 + 12), "elementwise.mul"),
    Case("aten::mm", ((3, 4), (4, 5)), 120, 2 * 47, "matmul", types=(H, H)),
    Case("aten::mm", ((3, 4), (4, 5)), 120, None, "matmul", types=()),
    # 3 · 5 · 4 complex multiply-accumulates of 8 operations.
    Case("aten::mm", ((3, 4), (4, 5)), 480, 8 * 47, "matmul", types=("c10::complex<float>",) * 2),
    Case("MatMul", ((3, 4), (5, 4)), 120, 4 * 47, "matmul"),
    Case("_FusedMatMul", ((3, 4), (4, 5), (5,)), 120, 4 * 52, "matmul"),
    Case("BatchMatMulV2", ((2, 3, 4), (2, 4, 5)), 240, 4 * 94, "matmul"),
    Case("BiasAddGrad", ((2, 4, 4, 3),), N, NB + 12, "matmul.bias_grad", part="bias_grad"),
    # Attention: b 2, heads 3, L 4, S 5, E 6, Ev 7.
    Case("aten::scaled_dot_product_attention", ((2, 3, 4, 6), (2, 3, 5, 6), (2, 3, 5, 7)),
         2 * 2 * 3 * 4 * 5 * (6 + 7), 4 * 6 * (24 + 30 + 35 + 28), "attention.forward"),
    Case("aten::scaled_dot_product_attention", ((4, 6), (5, 6), (5, 7)),
         2 * 4 * 5 * 13, 4 * (24 + 30 + 35 + 28), "attention.forward"),
    Case("aten::_flash_attention_forward", ((2, 4, 6, 8), (2, 5, 3, 8), (2, 5, 3, 8), (), ()),
         2 * 2 * 6 * 4 * 5 * 16, 4 * (384 + 240 + 240 + 384), "attention.forward"),
    Case("aten::_scaled_dot_product_flash_attention_backward",
         ((2, 3, 4, 7), (2, 3, 4, 6), (2, 3, 5, 6), (2, 3, 5, 7)),
         2 * 2 * 3 * 4 * 5 * (3 * 6 + 2 * 7), 4 * 6 * (2 * (24 + 30 + 35) + 2 * 28),
         "attention.backward", part="backward"),
    Case("aten::_efficient_attention_backward",
         ((2, 4, 3, 7), (2, 4, 3, 6), (2, 5, 3, 6), (2, 5, 3, 7), (), (2, 4, 3, 7)),
         2 * 2 * 3 * 4 * 5 * 32, 4 * 6 * (2 * 89 + 56), "attention.backward", part="backward"),
    # Normalization.
    Case("aten::batch_norm", (X, V, V, V, V, (), (), (), ()), 8 * N, 2 * NB + 4 * 12,
         "normalization.training", ("",) * 5 + ("True", "0.1", "1e-5", "True")),
    Case("aten::native_batch_norm", (X, (), (), V, V, (), (), ()), 6 * N, 2 * NB + 4 * 6,
         "normalization.training", ("",) * 5 + ("True",)),
    Case("aten::cudnn_batch_norm", (X, V, V, V, V, (), (), ()), 2 * N, 2 * NB + 4 * 12,
         "normalization.inference", ("",) * 5 + ("False",)),
    Case("aten::native_batch_norm_backward", (X, X, V, V, V, V, V, (), (), ()), 9 * N,
         3 * NB + 4 * (9 + 6), "normalization.batch_backward", ("",) * 7 + ("True",),
         part="backward"),
    Case("aten::native_batch_norm_backward", (X, X, V, V, V, V, V, (), (), ()), 6 * N,
         3 * NB + 4 * (9 + 6), "normalization.batch_backward", ("",) * 7 + ("False",),
         part="backward"),
    Case("aten::cudnn_batch_norm_backward", (X, X, V, V, V, V, V, (), (0,)), 9 * N,
         3 * NB + 4 * 15, "normalization.batch_backward", part="backward"),
    Case("aten::layer_norm", ((2, 3, 4), (), (4,), (4,)), 8 * 24, 4 * (48 + 8 + 12),
         "normalization.training"),
    Case("aten::native_layer_norm", ((2, 3, 4), (), (), ()), 6 * 24, 4 * (48 + 12),
         "normalization.training", ("", "[4]", "", "", "1e-5")),
    Case("aten::native_layer_norm_backward",
         ((2, 3, 4), (2, 3, 4), (), (2, 3, 1), (2, 3, 1), (4,), (4,)), 13 * 24,
         4 * (72 + 12 + 12), "normalization.layer_backward", part="backward"),
    Case("aten::group_norm", (X, (), V, V), 8 * N, 2 * NB + 4 * (6 + 12),
         "normalization.training", ("", "3")),
    Case("aten::native_group_norm", (X, V, V), 8 * N, 2 * NB + 4 * (6 + 12),
         "normalization.training", ("", "", "", "2", "3", "16", "3", "1e-5")),
    Case("aten::native_group_norm_backward", (X, X, (2, 3), (2, 3), V), 13 * N,
         3 * NB + 4 * (9 + 12), "normalization.layer_backward", part="backward"),
    Case("aten::rms_norm", ((2, 3, 4), (), (4,)), 4 * 24, 4 * 52, "normalization.rms"),
    Case("aten::rms_norm", ((2, 3, 4), ()), 3 * 24, 4 * 48, "normalization.rms"),
    Case("FusedBatchNormV3", (X, (4,), (4,), (0,), (0,)), 8 * N, 2 * NB + 4 * 16,
         "normalization.training"),
    Case("FusedBatchNormV3", (X, (4,), (4,), (4,), (4,)), 2 * N, 2 * NB + 4 * 16,
         "normalization.inference", training=False),
    Case("FusedBatchNormGradV3", (X, X, (4,), (4,), (4,), (4,)), 9 * N, 3 * NB + 4 * 20,
         "normalization.batch_backward", part="backward"),
    Case("LRN", (X,), (5 + 5) * N, 2 * NB, "normalization.local_response", window=(5,)),
    Case("LRNGrad", (X, X, X), (10 + 10) * N, 4 * NB, "normalization.local_response_backward",
         part="backward", window=(5,)),
    # Pooling of 4 x 4 with windows of 2 x 2: 24 outputs.
    Case("aten::max_pool2d", (X,), 24 * 4, NB + 96, "pooling.max",
         ("", "[2, 2]", "[2, 2]", "[0, 0]", "[1, 1]", "False")),
    Case("aten::max_pool2d", (X,), 54 * 4, NB + 4 * 54, "pooling.max",
         ("", "[2, 2]", "[1, 1]", "[0, 0]", "[1, 1]", "False")),
    Case("aten::max_pool2d", (X,), 24 * 9, NB + 96, "pooling.max",
         ("", "[3, 3]", "[2, 2]", "[0, 0]", "[1, 1]", "True")),
    Case("aten::max_pool2d_with_indices", (X,), 24 * 4, NB + 96 + 192, "pooling.max",
         ("", "[2, 2]", "[]", "[0, 0]", "[1, 1]", "False")),
    Case("MaxPool", (X,), 24 * 4, NB + 96, "pooling.max", output=(2, 3, 2, 2), window=(2, 2)),
    Case("AvgPool", (X,), 24 * 5, NB + 96, "pooling.average", output=(2, 3, 2, 2), window=(2, 2)),
    Case("aten::avg_pool2d", (X,), 24 * 5, NB + 96, "pooling.average",
         ("", "[2, 2]", "[2, 2]", "[0, 0]", "False", "True", "")),
    Case("aten::avg_pool2d_backward", ((2, 3, 2, 2), X), 24 * 5, NB + 96,
         "pooling.average_backward", ("", "", "[2, 2]"), part="backward"),
    Case("aten::max_pool2d_with_indices_backward", ((2, 3, 2, 2), X), 24, NB + 96 + 192,
         "pooling.max_backward", part="backward"),
    Case("MaxPoolGrad", (X, (2, 3, 2, 2), (2, 3, 2, 2)), 24, None, "pooling.max_backward",
         part="backward"),
    Case("aten::adaptive_avg_pool2d", (X,), N + 6, NB + 24, "pooling.adaptive_average",
         ("", "[1, 1]")),
    Case("aten::_adaptive_avg_pool2d_backward", ((2, 3, 1, 1), X), N + 6, NB + 24,
         "pooling.adaptive_average_backward", part="backward"),
    Case("aten::adaptive_max_pool2d", (X,), N, NB + 24 + 48, "pooling.adaptive_max",
         ("", "[1, 1]")),
    # Softmax and losses.
    Case("aten::_softmax", ((2, 5), (), ()), 50, 80, "softmax.forward"),
    Case("aten::_log_softmax", ((2, 5), (), ()), 50, 80, "softmax.forward"),
    Case("aten::_softmax_backward_data", ((2, 5), (2, 5)), 40, 120, "softmax.backward",
         part="backward"),
    Case("aten::_log_softmax_backward_data", ((2, 5), (2, 5)), 40, 120, "softmax.backward",
         part="backward"),
    Case("SoftmaxCrossEntropyWithLogits", ((2, 5), (2, 5)), 90, 4 * (30 + 2),
         "softmax.cross_entropy"),
    Case("SparseSoftmaxCrossEntropyWithLogits", ((2, 5), (2,)), 64, 4 * (20 + 2) + 16,
         "softmax.cross_entropy", types=(F, L)),
    Case("aten::nll_loss_forward", ((2, 5), (2,)), 2, 16 + 12, "loss.nll", types=(F, L)),
    Case("aten::nll_loss_backward", ((), (2, 5), (2,)), 2, 16 + 40, "loss.nll_backward",
         types=(F, F, L), part="backward"),
    Case("aten::l1_loss", ((2, 5), (2, 5)), 30, 84, "loss.l1_loss", ("", "", "1")),
    Case("aten::mse_loss", ((2, 5), (2, 5)), 30, 84, "loss.mse_loss", ("", "", "1")),
    Case("aten::mse_loss", ((2, 5), (2, 5)), 20, 120, "loss.mse_loss", ("", "", "0")),
    Case("aten::smooth_l1_loss", ((2, 5), (2, 5)), 60, 84, "loss.smooth_l1_loss", ("", "", "2")),
    Case("aten::huber_loss", ((2, 5), (2, 5)), 60, 84, "loss.huber_loss", ("", "", "1")),
    Case("aten::binary_cross_entropy", ((2, 5), (2, 5), ()), 80, 84,
         "loss.binary_cross_entropy", ("", "", "", "1")),
    Case("aten::binary_cross_entropy_with_logits", ((2, 5), (2, 5), (), ()), 100, 84,
         "loss.binary_cross_entropy_with_logits", ("", "", "", "", "1")),
    Case("aten::kl_div", ((2, 5), (2, 5)), 50, 84, "loss.kl_div", ("", "", "1")),
    Case("aten::mse_loss_backward", ((), (2, 5), (2, 5)), 30, 124, "loss.mse_loss_backward",
         types=(F, F, F), part="backward"),
    Case("aten::smooth_l1_loss_backward", ((), (2, 5), (2, 5)), 40, 124,
         "loss.smooth_l1_loss_backward", types=(F, F, F), part="backward"),
    Case("aten::huber_loss_backward", ((), (2, 5), (2, 5)), 40, 124,
         "loss.huber_loss_backward", types=(F, F, F), part="backward"),
    Case("aten::binary_cross_entropy_backward", ((), (2, 5), (2, 5)), 60, 124,
         "loss.binary_cross_entropy_backward", types=(F, F, F), part="backward"),
    # Reductions.
    Case("aten::sum", ((2, 5), ()), 10, 44, "reduction.sum", ("", "")),
    Case("aten::sum", ((2, 5), (), (), ()), 10, 48, "reduction.sum", ("", "[1]", "False", "")),
    Case("aten::sum", ((2, 5), (), (), ()), 10, 60, "reduction.sum", ("", "[-2]", "True", "")),
    Case("aten::sum", ((2, 5), (), (), ()), 10, None, "reduction.sum"),
    Case("aten::mean", ((2, 5), (), (), ()), 12, 48, "reduction.mean", ("", "[1]", "True", "")),
    Case("aten::linalg_vector_norm", ((2, 5),), 20, 40, "reduction.norm"),
    Case("aten::cumsum", ((2, 5), ()), 10, 80, "reduction.scan"),
    # Resampling of 2 x 3 channels from 4 x 4 to 8 x 8: 384 outputs.
    Case("aten::upsample_nearest2d", (X,), 0, NB + 1536, "resampling.nearest", ("", "[8, 8]")),
    Case("aten::upsample_bilinear2d", (X,), 9 * 384, NB + 1536, "resampling.linear",
         ("", "[8, 8]")),
    Case("aten::upsample_nearest2d_backward", ((2, 3, 8, 8),), 384, NB + 1536,
         "resampling.nearest_backward", ("", "[8, 8]", "[2, 3, 4, 4]"), part="backward"),
    Case("aten::upsample_bilinear2d_backward", ((2, 3, 8, 8),), 9 * 384, NB + 1536,
         "resampling.linear", ("", "[8, 8]", "[2, 3, 4, 4]"), part="backward"),
    # Memory.
    Case("aten::copy_", ((2, 5), (5,)), 0, 10 * 2 + 5 * 4, "memory.copy", types=(H, F)),
    Case("aten::cat", (((2, 5), (3, 5)), ()), 0, None, "memory.copy"),
    Case("aten::constant_pad_nd", ((2, 5),), 0, 4 * (10 + 2 * 8), "memory.copy", ("", "[1, 2]")),
    Case("aten::zero_", ((2, 5),), 0, 40, "memory.fill"),
    Case("aten::embedding", ((100, 5), (2, 3)), 0, 48 + 2 * 120, "memory.lookup", types=(F, L)),
    Case("aten::embedding_dense_backward", ((2, 3, 5), (2, 3)), 30, 120 + 48 + 2000,
         "memory.scatter_add", ("", "", "100"), types=(F, L), part="wgrad"),
    Case("aten::index_select", ((7, 5), (), (2,)), 0, 16 + 2 * 40, "memory.lookup",
         ("", "0", ""), types=(F, "Scalar", L)),
    Case("aten::gather", ((7, 5), (), (7, 2)), 0, 112 + 2 * 56, "memory.lookup",
         types=(F, "Scalar", L)),
    Case("Cast", ((2, 5),), 0, None, "memory.copy"),
    Case("Transpose", (X, (4,)), 0, 2 * NB, "memory.copy"),
    # Elementwise: the operands are stretched to a common shape, the result is of their type.
    Case("aten::add", ((2, 1), (5,)), 10, 8 + 20 + 40, "elementwise.add"),
    Case("aten::add", ((2, 5), (2, 5), ()), 20, 120, "elementwise.add", ("", "", "-0.001")),
    Case("aten::add_", ((2, 5), (2, 5), ()), 10, 120, "elementwise.add", ("", "", "1")),
    Case("aten::mul", ((2, 5), ()), 10, 20 * 2 + 8, "elementwise.mul", types=(H, D)),
    Case("aten::div", ((2, 5), (2, 5)), 10, 160 + 40, "elementwise.div", types=(L, L)),
    Case("aten::gt", ((2, 5), ()), 10, 40 + 10, "elementwise.compare", types=(F, "Scalar")),
    Case("aten::where", ((2, 5), (2, 5), (2, 5)), 0, 10 + 120, "elementwise.select",
         types=(B, F, F)),
    Case("aten::relu", (X,), N, 2 * NB, "elementwise.relu"),
    Case("aten::clamp", (X, (), ()), 2 * N, 2 * NB, "elementwise.clamp", ("", "0", "6")),
    Case("aten::clamp", (X, (), ()), N, 2 * NB, "elementwise.clamp", ("", "0", "")),
    Case("aten::gelu", (X,), 5 * N, 2 * NB, "elementwise.gelu", ("", "none")),
    Case("aten::gelu", (X,), 9 * N, 2 * NB, "elementwise.gelu_tanh", ("", "tanh")),
    Case("aten::native_dropout", (X,), 2 * N, 2 * NB + N, "elementwise.dropout"),
    Case("aten::threshold_backward", (X, X, ()), N, 3 * NB, "elementwise.relu_backward",
         part="backward"),
    Case("BiasAdd", ((2, 4, 4, 3), (3,)), N, 2 * NB + 12, "elementwise.bias_add"),
    Case("aten::_foreach_add_", (((2, 5), (3,)), ((2, 5), (3,)), ()), 26, None,
         "elementwise.add", ("", "", "-0.1")),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{case.formula}")
def test_closed_form(case: Case) -> None:
    result = case.run()
    assert not isinstance(result, Refusal), result
    (one,) = result
    assert (one.flops, one.bytes, one.formula, one.part) == (
        case.flops,
        case.bytes,
        case.formula,
        case.part,
    )


def test_an_element_of_fp4_has_two_values() -> None:
    """Packed along the inner extent of both matrices; each element is a byte."""
    fp4 = "c10::Float4_e2m1fn_x2"
    types = (fp4, fp4, "c10::Float8_e4m3fn", "c10::Float8_e4m3fn")
    call = Call("aten::_scaled_mm", ((8, 16), (16, 32), (8, 2), (2, 32)), types)
    found = cost(call)
    assert not isinstance(found, Refusal)
    (one,) = found
    assert (one.flops, one.bytes) == (2 * 8 * 32 * 32, 8 * 16 + 16 * 32 + 8 * 32)


OF_ONE_TENSOR = {
    "aten::neg": 1, "aten::abs": 1, "aten::square": 1, "aten::floor": 1, "aten::exp": 1,
    "aten::relu6": 2, "aten::leaky_relu": 2, "aten::elu": 4, "aten::sigmoid": 4, "aten::tanh": 1,
    "aten::silu": 5, "aten::softplus": 3, "aten::mish": 5, "aten::hardtanh": 2,
    "aten::hardswish": 5, "aten::hardsigmoid": 4, "aten::pow": 1,
}  # fmt: skip
OF_TWO_TENSORS = {
    "aten::sub": 1, "aten::maximum": 1, "SquaredDifference": 2, "aten::_prelu_kernel": 2,
    "aten::_prelu_kernel_backward": 3, "aten::leaky_relu_backward": 2, "aten::elu_backward": 3,
    "aten::sigmoid_backward": 3, "aten::tanh_backward": 3, "aten::silu_backward": 9,
    "aten::gelu_backward": 11, "aten::softplus_backward": 4, "aten::hardtanh_backward": 2,
    "aten::hardswish_backward": 5, "aten::hardsigmoid_backward": 3,
    "aten::native_dropout_backward": 2,
}  # fmt: skip
OF_THREE_TENSORS = {"aten::addcmul": 3, "aten::addcdiv": 3, "aten::lerp": 3}
ELEMENTWISE = [
    (name, count, operations)
    for count, names in ((1, OF_ONE_TENSOR), (2, OF_TWO_TENSORS), (3, OF_THREE_TENSORS))
    for name, operations in names.items()
]


@pytest.mark.parametrize(("name", "tensors", "operations"), ELEMENTWISE)
def test_elementwise_functions(name: str, tensors: int, operations: int) -> None:
    result = cost(Call(name, (X,) * tensors, (F,) * tensors))
    assert not isinstance(result, Refusal), result
    (one,) = result
    assert (one.flops, one.bytes) == (operations * N, (tensors + 1) * NB)
    assert (one.part == "backward") is name.endswith("_backward")


def test_every_elementwise_function_is_in_a_test() -> None:
    tested = {case.formula for case in CASES}
    for name, tensors, _ in ELEMENTWISE:
        result = cost(Call(name, (X,) * tensors, (F,) * tensors))
        assert not isinstance(result, Refusal)
        tested |= {one.formula for one in result}
    assert {one.formula for one in FUNCTIONS.values()} <= tested


@dataclass(frozen=True)
class Odd:
    """A call that has no cost, and a word of the reason."""

    name: str
    shapes: tuple[Entry, ...]
    reason: str
    scalars: tuple[str, ...] = ()
    types: tuple[str, ...] = field(default=())


ODD = (
    Odd("aten::frobnicate", (X,), "no FLOP formula"),
    Odd("aten::mm", ((3, 4), (5, 6)), "do not match"),
    Odd("aten::mm", ((3, 4, 5), (5, 6)), "rank 3"),
    Odd("aten::mm", ((3, 4),), "input 1: no shape"),
    Odd("aten::bmm", ((2, 3, 4), (3, 4, 5)), "do not match"),
    Odd("aten::_grouped_mm", ((9, 4), (3, 5, 4), (3,)), "do not match"),
    Odd("aten::_grouped_mm", ((2, 3, 4), (3, 4, 5), ()), "do not match"),
    Odd("aten::_grouped_mm", ((9, 4), (3, 2, 4, 5), (3,)), "rank 4"),
    Odd("aten::matmul", ((2, 3, 4), (5, 4, 5)), "do not broadcast"),
    Odd("aten::cat", ((), ()), "shapes of the tensor list"),
    Odd("aten::add", ((2, 3), (4,)), "do not broadcast"),
    Odd("aten::add", (((2, 3),), (4,)), "list of tensors"),
    Odd("aten::batch_norm", (X, V, V, V, V), "training"),
    Odd("aten::max_pool2d", (X,), "not recorded"),
    Odd("aten::scaled_dot_product_attention", ((2, 3, 4, 6), (2, 3, 5, 5), (2, 3, 5, 7)), "match"),
    Odd("aten::scaled_dot_product_attention", ((2, 3, 4, 6), (2, 2, 5, 6), (2, 2, 5, 7)), "heads"),
    Odd("aten::_flash_attention_forward", ((2, 4, 6, 8),) * 3 + ((3,),), "packed"),
    Odd("aten::mean", ((2, 5), (), (), ()), "dimensions"),
    Odd("aten::sum", ((2, 5), (), (), ()), "out of range", ("", "[7]", "False", "")),
    Odd("MatMul", ((3, 4), (5, 6)), "do not match"),
    Odd("aten::conv1d", ((2, 2, 10), (3, 2, 3), (3,), (), (), (), ()), "real convolutions",
        ("", "", "", "[1]", "[0]", "[1]", "1"), ("c10::complex<float>",) * 3 + ("",) * 4),
    Odd("MaxPool", (X,), "window"),
    Odd("LRN", (X,), "LRN size"),
    Odd("FusedBatchNormV3", (X, (4,), (4,), (4,), (4,)), "training"),
)  # fmt: skip


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: f"{odd.name} {odd.reason}")
def test_what_cannot_be_counted_is_refused_with_a_reason(odd: Odd) -> None:
    result = cost(Call(odd.name, odd.shapes, odd.types, odd.scalars))
    assert isinstance(result, Refusal)
    assert odd.reason in result.reason


def test_linear_gradients_are_parts() -> None:
    call = Call(
        "aten::linear_backward",
        ((2, 3, 4), (2, 3, 5), (5, 4), ()),
        (F, F, F, ""),
        ("", "", "", "[True, True, True]"),
    )
    result = cost(call)
    assert not isinstance(result, Refusal)
    assert {one.part: (one.flops, one.bytes) for one in result} == {
        "dgrad": (2 * 6 * 4 * 5, 4 * (30 + 20 + 24)),
        "wgrad": (2 * 6 * 4 * 5, 4 * (30 + 24 + 20)),
        "bias_grad": (30, 4 * 35),
    }


def test_a_product_that_reads_two_ways_counts_where_both_agree() -> None:
    square = cost(Call("MatMul", ((4, 4), (4, 5)), (F, F)))
    assert not isinstance(square, Refusal)
    assert square[0].flops == 2 * 4 * 4 * 5
    either = cost(Call("MatMul", ((3, 4), (4, 3)), (F, F)))
    assert isinstance(either, Refusal)
    reported = cost(Call("MatMul", ((3, 4), (4, 3)), (F, F), output=(3, 3)))
    assert not isinstance(reported, Refusal)
    assert reported[0].flops == 2 * 3 * 3 * 4

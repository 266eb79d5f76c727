"""Classes by context, each refinement on a trace in which it is known."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from tests.support.traces import TraceBuilder
from traceana.analyze.classes import breakdown
from traceana.analyze.convolutions import convolutions
from traceana.analyze.layers import layers
from traceana.enrich import with_classes
from traceana.enrich.refine.situations import context
from traceana.trace import Trace

SGEMM = "volta_sgemm_128x64_nn"
CGEMM = "volta_cgemm_64x32_tn"
TENSILE = "Cijk_Ailk_Bjlk_SB_MT64x64x16_SN_APM1_AF0EM1_ASEM1"
CUTLASS = "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>(int)"
IM2COL = "void cudnn::cnn::im2col4d_kernel<float, long>(cudnn::cnn::im2col4d_params, int)"
R2C = "void fft2d_r2c_32x32<float, false, 0u, false>(float2*, float const*, int, int)"
C2R = "void fft2d_c2r_32x32<float, false, false, 0u, false, false>(float*, float2 const*, int)"
WINOGRAD = "void cudnn::winograd_nonfused::winograd{}4x4<float, float>(int)"
TO_NHWC = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(int)"
TO_NCHW = "void cudnn::ops::nhwcToNchwKernel<float, float, float, true, false>(int)"
OFFSETS = "cask_cudnn::computeOffsetsKernel(cask_cudnn::ComputeOffsetsParams)"
SCUDNN = "volta_scudnn_128x64_relu_medium_nn_v1"
WGRAD = "void wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int, int, int)"
REDUCE_WGRAD = "void cudnn::cnn::reduce_wgrad_nchw_helper<float, float>(void*, void const*, float)"
SCALE = "void cudnn::ops::scalePackedTensor_kernel<float, float>(long, float*, float)"
DGRAD = "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int)"
TRANSPOSE = "batched_transpose_32x32_half"
XMMA = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x128x32_stage5"
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
COPY = (
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<"
    "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}> >(int)"
)
CLAMP = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::"
    "launch_clamp_scalar(at::TensorIteratorBase&, c10::Scalar, c10::Scalar, "
    "at::native::detail::ClampLimits)::{lambda()#1}, std::array<char*, 2ul> >(int)"
)
MUTE = "void at::native::vectorized_elementwise_kernel<4, at::native::{lambda(float)#1}>(int)"
MEAN = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, "
    "at::native::MeanOps<float, float, float, float>, unsigned int, float, 4> >(int)"
)
SUM = (
    "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float, "
    "at::native::func_wrapper_t<float, at::native::sum_functor<float> >, unsigned int> >(int)"
)


class Run(TraceBuilder):
    """Kernels under operators, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0

    def op(self, *names: str, **columns: Any) -> int:
        """Add operators, each inside the one before; return the innermost."""
        parent: int | None = None
        for depth, name in enumerate(names):
            own = columns if depth == len(names) - 1 else {}
            row = {"name": name, "parent": parent, "depth": depth, "direction": "forward", **own}
            parent = self.row("ops", **row)
        assert parent is not None
        return parent

    def launch(self, *names: str, op: int | None = None, **columns: Any) -> None:
        """Add kernels of 10 ns, one behind the other on stream 7."""
        for name in names:
            self.kernel(name, self.now, 10, op=op, **{"stream": 7, **columns})
            self.now += 10

    def refined(self) -> pl.DataFrame:
        """Return the activities with their refined classes and episodes."""
        return described(with_classes(self.build()))


def described(trace: Trace) -> pl.DataFrame:
    names = trace.tables.names.with_row_index("name_id")
    classes = trace.tables.classes.with_row_index("class")
    episodes = trace.tables.episodes.with_row_index("episode").select(
        "episode",
        pl.col("algorithm").alias("episode_algorithm"),
        pl.col("direction").alias("episode_direction"),
        pl.col("op").alias("episode_op"),
    )
    return (
        trace.tables.activities.drop("direction")
        .join(names.select("name_id", "name"), on="name_id", how="left", maintain_order="left")
        .join(classes, on="class", how="left", maintain_order="left")
        .join(episodes, on="episode", how="left", maintain_order="left")
    )


def column(frame: pl.DataFrame, name: str) -> list[Any]:
    return frame[name].to_list()


def test_an_fft_convolution_is_one_episode() -> None:
    run = Run()
    op = run.op("aten::conv2d", "aten::_convolution", "aten::cudnn_convolution")
    run.launch(R2C, R2C, CGEMM, C2R, op=op)
    run.launch(SGEMM, op=run.op("aten::linear", "aten::addmm"))
    frame = run.refined()
    assert column(frame, "category") == ["conv"] * 4 + [None]
    assert column(frame, "algorithm")[:4] == ["fft"] * 4
    assert column(frame, "family")[:4] == ["fft"] * 4
    assert column(frame, "direction")[:4] == ["fprop"] * 4
    assert column(frame, "episode") == [0, 0, 0, 0, None]
    assert column(frame, "episode_op")[:4] == [op] * 4
    assert column(frame, "precision")[2] == "c64"
    assert frame["context_rule"][2] == "context.product_of_convolution"
    assert frame["context_rule"][4] is None


def test_tiles_on_several_streams_are_one_episode() -> None:
    run = Run()
    op = run.op("aten::cudnn_convolution")
    for stream in (15, 16, 15, 16):
        run.launch(R2C, op=op, stream=stream)
        run.launch(CGEMM, op=op, stream=stream)
        run.launch(C2R, op=op, stream=stream)
    frame = run.refined()
    assert set(column(frame, "episode")) == {0}
    assert set(column(frame, "algorithm")) == {"fft"}


def test_the_product_between_winograd_transforms() -> None:
    run = Run()
    op = run.op("aten::cudnn_convolution")
    run.launch(WINOGRAD.format("ForwardData"), WINOGRAD.format("ForwardFilter"), op=op)
    run.launch(SGEMM, WINOGRAD.format("ForwardOutput"), op=op)
    frame = run.refined()
    assert column(frame, "algorithm") == ["winograd_nonfused"] * 4
    assert column(frame, "direction") == ["fprop"] * 4
    assert column(frame, "episode") == [0] * 4


def test_an_explicit_product_is_algorithm_gemm() -> None:
    run = Run()
    run.launch(IM2COL, SGEMM, op=run.op("aten::cudnn_convolution"))
    run.launch(CUTLASS, op=run.op("aten::cudnn_convolution"))
    frame = run.refined()
    assert column(frame, "category") == ["conv"] * 3
    assert column(frame, "algorithm") == ["gemm"] * 3
    assert column(frame, "episode") == [0, 0, 1]


def test_layouts_stay_layouts_and_name_their_convolution() -> None:
    run = Run()
    op = run.op("aten::cudnn_convolution")
    run.launch(TO_NHWC, TO_NHWC, XMMA, TO_NCHW, op=op)
    run.launch(TO_NHWC)
    frame = run.refined()
    assert column(frame, "category") == ["layout", "layout", "conv", "layout", None]
    assert column(frame, "episode") == [0, 0, 0, 0, None]
    assert column(frame, "episode_algorithm")[:4] == ["implicit_gemm"] * 4
    assert column(frame, "function")[:2] == ["nchw_to_nhwc"] * 2
    assert column(frame, "context_rule")[0] == "context.layout_of_convolution"


def test_both_gradients_of_one_operator_are_two_episodes() -> None:
    run = Run()
    mask = '["", "", "", "[0]", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "{}"]'
    op = run.op(
        "aten::convolution_backward",
        direction="backward",
        inputs=mask.format("[True, True, False]"),
    )
    run.launch(TO_NHWC, TO_NHWC, XMMA, TO_NCHW, op=op)  # a forward kernel computes the gradient
    run.launch(TO_NHWC, TO_NHWC, WGRAD, TO_NCHW, op=op)
    frame = run.refined()
    assert column(frame, "episode") == [0] * 4 + [1] * 4
    assert column(frame, "episode_direction") == ["dgrad"] * 4 + ["wgrad"] * 4
    assert [frame["direction"][i] for i in (2, 6)] == ["dgrad", "wgrad"]
    assert column(frame, "episode_algorithm") == ["implicit_gemm"] * 4 + ["algo_0"] * 4


def test_products_of_both_gradients_are_separated_by_their_order() -> None:
    run = Run()
    op = run.op("aten::convolution_backward", direction="backward")
    run.launch("volta_sgemm_64x64_nt", "volta_sgemm_64x64_tn", REDUCE_WGRAD, op=op)
    frame = run.refined()
    assert column(frame, "direction") == ["dgrad", "wgrad", "wgrad"]
    assert column(frame, "algorithm") == ["gemm"] * 3
    assert column(frame, "episode") == [0, 1, 1]


@pytest.mark.parametrize(
    ("mask", "direction"), [("[True, False, True]", "dgrad"), ("[False, True, False]", "wgrad")]
)
def test_the_output_mask_determines_the_gradient(mask: str, direction: str) -> None:
    run = Run()
    inputs = f'["", "", "", "[0]", "{mask}"]'
    op = run.op("aten::convolution_backward", direction="backward", inputs=inputs)
    run.launch(CUTLASS, op=op)
    frame = run.refined()
    assert column(frame, "direction") == [direction]
    assert column(frame, "algorithm") == ["gemm"]


def test_one_product_that_could_be_either_gradient_stays_open() -> None:
    run = Run()
    run.launch(CUTLASS, op=run.op("aten::convolution_backward", direction="backward"))
    assert column(run.refined(), "direction") == [None]


def test_transposes_of_ambiguous_direction() -> None:
    run = Run()
    op = run.op("aten::convolution_backward", direction="backward")
    bwd = "igemm_bwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8_ws1x1_wr2x2"
    wrw = "igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt256x128x16_wt32x32x8_ws2x1_wr2x2"
    run.launch(TRANSPOSE, TRANSPOSE, bwd, "SubTensorOpWithCastTensor1d", TRANSPOSE, op=op)
    run.launch(TRANSPOSE, TRANSPOSE, wrw, op=op)
    frame = run.refined()
    assert column(frame, "episode") == [0] * 5 + [1] * 3
    assert column(frame, "episode_direction") == ["dgrad"] * 5 + ["wgrad"] * 3
    assert frame["category"][3] == "conv"


def test_helpers_take_the_algorithm_of_what_they_help() -> None:
    run = Run()
    op = run.op("aten::cudnn_convolution_backward_input", direction="backward")
    run.launch(SCALE, DGRAD, op=op)
    run.launch(OFFSETS, SCUDNN, op=run.op("aten::cudnn_convolution"))
    run.launch(SCALE)
    frame = run.refined()
    assert column(frame, "category") == ["conv", "conv", "conv", "conv", None]
    assert column(frame, "algorithm")[:4] == ["algo_0"] * 2 + ["implicit_precomp_gemm"] * 2
    assert column(frame, "direction")[:4] == ["dgrad", "dgrad", "fprop", "fprop"]


def test_tensorflow_computes_a_transposed_convolution_by_a_data_gradient() -> None:
    run = Run()
    run.layer("net.c1", None)
    run.layer("net.up", None)
    calls = (
        ("Conv2D", "forward", 0),
        ("Conv2DBackpropInput", "forward", 1),
        ("Conv2D", "backward", 1),
        ("Conv2DBackpropFilter", "backward", 1),
        # A checkpoint computes the forward pass again.
        ("Conv2D", "backward", 0),
        ("Conv2DBackpropFilter", "backward", 0),
    )
    for name, direction, layer in calls:
        op = run.op(name, direction=direction, layer=layer)
        run.launch(SCUDNN, op=op, direction=direction, layer=layer)
    directions = ["fprop", "fprop", "dgrad", "wgrad", "fprop", "wgrad"]
    assert column(run.refined(), "direction") == directions


def test_the_layer_of_the_input_is_that_of_the_first_forward_convolution() -> None:
    run = Run()
    run.layer("net.up", None)
    run.layer("net.c1", None)
    for name, direction, layer in (
        ("Conv2D", "forward", 1),
        ("Conv2DBackpropInput", "forward", 0),
        ("Conv2D", "backward", 0),
        ("Conv2DBackpropFilter", "backward", 0),
        ("Conv2DBackpropFilter", "backward", 1),
    ):
        op = run.op(name, direction=direction, layer=layer)
        run.launch(SCUDNN, op=op, direction=direction, layer=layer)
    table = convolutions(with_classes(run.build())).frame
    assert not table["unused"].any()


def test_a_name_scope_of_a_transposed_convolution_is_of_its_pass() -> None:
    run = Run()
    run.layer("net.c1", None)
    run.layer("net.up", None)
    for scope, direction, layer in (
        ("net/c1/Conv2D", "forward", 0),
        ("net/up/conv2d_transpose/Conv2DBackpropInput", "forward", 1),
        ("gradients/net/up/conv2d_transpose_grad/Conv2D", "backward", 1),
        ("gradients/net/c1/Conv2D_grad/Conv2DBackpropInput", "backward", 0),
    ):
        run.launch(SGEMM, scope=scope, direction=direction, layer=layer)
    assert column(run.refined(), "direction") == ["fprop", "fprop", "dgrad", "dgrad"]


def test_algorithm_trials_are_detected() -> None:
    run = Run()
    op = run.op("aten::cudnn_convolution")
    run.launch(OFFSETS, SCUDNN, R2C, CGEMM, C2R, IM2COL, SGEMM, OFFSETS, SCUDNN, op=op)
    frame = run.refined()
    algorithms = ["implicit_precomp_gemm", "fft", "gemm", "implicit_precomp_gemm"]
    assert column(frame, "episode") == [0, 0, 1, 1, 1, 2, 2, 3, 3]
    assert [frame["algorithm"][i] for i in (0, 3, 6, 8)] == algorithms


def test_without_operators_the_neighbours_decide() -> None:
    run = Run()
    run.launch(R2C, R2C, CGEMM, C2R)
    run.launch(SGEMM, ADD)
    run.launch(WINOGRAD.format("WgradData"), WINOGRAD.format("WgradDelta"), SGEMM)
    run.launch(WINOGRAD.format("WgradOutput"), SGEMM, stream=7)
    frame = run.refined()
    assert column(frame, "category")[:6] == ["conv"] * 4 + [None, None]
    assert column(frame, "algorithm")[6:10] == ["winograd_nonfused"] * 4
    assert column(frame, "direction")[6:10] == ["wgrad"] * 4
    assert column(frame, "category")[10] is None
    assert column(frame, "episode") == [0] * 4 + [None] * 2 + [1] * 4 + [None]


PRODUCT_OF_TRANSFORMS = "sm80_xmma_gemm_cf32cf32_f32f32_cf32_{}_n_tilesize32x32x8_stage3_ffma"
FLIP = "void flip_filter<float, float>(float*, float const*, int, int, int, int)"


def launch_tiles(run: Run, layout: str, op: int | None = None) -> None:
    """Launch an FFT convolution of two tiles on streams of their own, as cuDNN 9 does."""
    product = PRODUCT_OF_TRANSFORMS.format(layout)
    run.launch(R2C, op=op)
    for streams in ((30, 31), (31, 30)):
        for stream in streams:
            run.launch(R2C, product, op=op, stream=stream)
        for stream in streams:
            run.launch(C2R, op=op, stream=stream)


def test_a_gradient_by_tiles_on_several_streams_has_one_direction() -> None:
    run = Run()
    inputs = '["","[True, True, False]"]'
    op = run.op("aten::convolution_backward", inputs=inputs, direction="backward")
    launch_tiles(run, "nt", op)
    run.launch(XMMA.replace("fprop", "wgrad"), op=op)
    frame = run.refined()
    assert column(frame, "direction") == ["dgrad"] * 13 + ["wgrad"]
    assert column(frame, "episode") == [0] * 13 + [1]


def test_without_operators_names_of_the_products_have_the_direction_of_an_fft() -> None:
    run = Run()
    run.launch(FLIP)
    launch_tiles(run, "tn")
    run.launch(ADD)
    launch_tiles(run, "nt")
    run.launch(WGRAD, ADD)
    launch_tiles(run, "nt")
    run.launch(FLIP)
    launch_tiles(run, "tn")
    frame = run.refined()
    assert column(frame, "direction")[:14] == ["fprop"] * 14
    assert column(frame, "direction")[15:29] == ["dgrad"] * 13 + ["wgrad"]
    assert column(frame, "direction")[30:] == ["dgrad"] * 13 + ["wgrad"] * 14
    assert column(frame, "algorithm")[15:29] == ["fft"] * 13 + ["algo_0"]


def test_without_operators_a_product_between_transforms_has_their_algorithm() -> None:
    run = Run()
    run.launch(R2C)
    run.launch(WINOGRAD.format("WgradData"), WINOGRAD.format("WgradDelta"), SGEMM)
    run.launch(WINOGRAD.format("WgradOutput"))
    run.launch(R2C, XMMA)
    episodes = with_classes(run.build()).tables.episodes
    assert episodes["algorithm"].to_list() == ["fft", "winograd_nonfused", "fft", "implicit_gemm"]
    assert episodes["direction"].to_list()[1::2] == ["wgrad", "fprop"]


def test_a_forward_algorithm_of_cudnn_is_fprop_without_an_operator() -> None:
    run = Run()
    run.launch("void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, false>(int)")
    assert column(run.refined(), "direction") == ["fprop"]


BROADCAST_ADD = (
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<"
    "at::native::CUDAFunctor_add<float> >(at::TensorIteratorBase&)::{lambda(int)#1}>(int)"
)


def test_without_operators_the_product_before_decides_on_a_bias() -> None:
    run = Run()
    run.launch(XMMA, BROADCAST_ADD, XMMA, ADD, MUTE, BROADCAST_ADD)
    run.launch(WGRAD, SUM, MUTE, SUM)
    run.launch("volta_sgemm_128x64_nt", "void splitKreduce_kernel<float>(int)", SUM, SGEMM, SUM)
    run.launch(WGRAD, SUM, op=run.op("aten::sum"))
    frame = run.refined()
    bias = [i for i, category in enumerate(column(frame, "category")) if category == "bias"]
    assert bias == [1, 7, 12]
    assert [frame["direction"][i] for i in bias] == [None, "backward", "backward"]


def test_neighbours_of_another_stream_are_none() -> None:
    run = Run()
    run.launch(R2C)
    run.launch(SGEMM, stream=8)
    run.launch(C2R)
    assert column(run.refined(), "category") == ["conv", None, "conv"]


def test_a_complex_product_on_a_stream_of_its_own_between_transforms() -> None:
    run = Run()
    run.launch(R2C)
    run.launch(CGEMM, stream=8)
    run.launch(C2R)
    run.launch(SGEMM, CGEMM, stream=8)
    frame = run.refined()
    assert column(frame, "category") == ["conv"] * 3 + [None] * 2
    assert column(frame, "algorithm")[:3] == ["fft"] * 3
    assert column(frame, "episode") == [0] * 3 + [None] * 2


def test_transforms_of_two_algorithms_on_one_stream_are_two_episodes() -> None:
    # The FFT convolution goes on on another stream while its gradient's transforms begin.
    run = Run()
    run.launch(R2C)
    run.launch(R2C, CGEMM, C2R, stream=8)
    run.launch(WINOGRAD.format("WgradData"), WINOGRAD.format("WgradDelta"), SGEMM)
    run.launch(WINOGRAD.format("WgradOutput"))
    frame = run.refined()
    assert column(frame, "algorithm") == ["fft"] * 4 + ["winograd_nonfused"] * 4
    assert column(frame, "direction")[4:] == ["wgrad"] * 4
    assert column(frame, "episode") == [0] * 4 + [1] * 4


FLASH = "_attention_kernel_of_nobody"


@pytest.mark.parametrize(
    ("kernel", "types", "precision"),
    [
        (FLASH, '["c10::BFloat16","c10::BFloat16"]', "bf16"),
        (FLASH, '["","struct c10::Half"]', "fp16"),
        (FLASH, '["float","float"]', None),
        (FLASH, None, None),
        ("my_matmul(void*)", '["double"]', "fp64"),
        ("my_matmul(void*)", '["c10::complex<float>"]', "c64"),
        (SGEMM, '["c10::Half"]', None),
        (ADD, '["c10::Half"]', None),
    ],
)
def test_operator_types_give_a_precision_missing_in_the_name(
    kernel: str, types: str | None, precision: str | None
) -> None:
    run = Run()
    run.launch(kernel, op=run.op("aten::_own_operator", input_types=types))
    frame = run.refined()
    assert column(frame, "precision") == [precision]
    rule = "context.operand_type" if precision else None
    assert column(frame, "context_rule") == [rule]


def test_a_name_scope_is_an_operator() -> None:
    run = Run()
    scope = "gradients/conv1/Conv2D_grad/Conv2DBackpropFilter"
    run.launch(SGEMM, scope=scope)
    run.launch(SGEMM, scope="dense/MatMul")
    run.launch(TENSILE, scope="attention/BatchMatMulV2_1")
    frame = run.refined()
    assert column(frame, "category") == ["conv", None, "gemm"]
    assert frame["algorithm"][0] == "gemm"
    assert frame["direction"][0] == "wgrad"
    assert frame["batched"][2] is True


@pytest.mark.parametrize(
    ("names", "shapes", "category"),
    [
        (("aten::_convolution", "aten::add_"), "[[64, 96, 55, 55], [1, 96, 1, 1], []]", "bias"),
        (("aten::_convolution", "aten::add_"), "[[64, 96, 55, 55], [64, 96, 55, 55], []]", None),
        (("aten::_convolution", "aten::add_"), None, "bias"),
        (("aten::linear", "aten::add_"), "[[8, 128, 768], [768], []]", "bias"),
        (("aten::linear", "aten::add_"), "[[8, 128, 768], [8, 128, 768], []]", None),
        (("aten::linear", "aten::add_"), "[[8, 128, 768], [], []]", None),
        (("aten::add_",), "[[64, 96, 55, 55], [1, 96, 1, 1], []]", None),
        (
            ("autograd::engine::evaluate_function: ConvolutionBackward0", "aten::add_"),
            "[[64, 96, 3, 3], [64, 96, 3, 3], []]",
            None,
        ),
        (("torch.nn.functional.conv2d",), "[[1, 3, 8, 8], [4, 3, 3, 3], [4]]", "bias"),
    ],
)
def test_bias(names: tuple[str, ...], shapes: str | None, category: str | None) -> None:
    run = Run()
    run.launch(ADD, op=run.op(*names, input_shapes=shapes))
    assert column(run.refined(), "category") == [category]


def test_the_gradient_of_a_bias() -> None:
    run = Run()
    run.launch(SUM, op=run.op("aten::convolution_backward", "aten::sum", direction="backward"))
    node = "autograd::engine::evaluate_function: AddmmBackward0"
    run.launch(SUM, op=run.op(node, "aten::sum", direction="backward"))
    run.launch(SUM, op=run.op("aten::sum"))
    frame = run.refined()
    assert column(frame, "category") == ["bias", "bias", None]
    assert column(frame, "direction")[:2] == ["backward", "backward"]


def test_the_bias_that_addmm_copies() -> None:
    run = Run()
    run.launch(COPY, SGEMM, op=run.op("aten::linear", "aten::addmm"))
    assert column(run.refined(), "category") == ["bias", None]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("aten::relu_", "aten::clamp_min_"), ("activation", "relu")),
        (("aten::hardtanh",), ("activation", "hardtanh")),
        (("aten::clamp",), ("elementwise", "clamp")),
        (("aten::clamp_min",), ("elementwise", "clamp")),
        (("aten::binary_cross_entropy_with_logits", "aten::clamp_min_"), ("loss", "cross_entropy")),
    ],
)
def test_clamps(names: tuple[str, ...], expected: tuple[str, str]) -> None:
    run = Run()
    run.launch(CLAMP, op=run.op(*names))
    frame = run.refined()
    assert (frame["category"][0], frame["function"][0]) == expected


def test_a_clamp_without_operator_keeps_the_class_of_its_name() -> None:
    run = Run()
    run.launch(CLAMP)
    assert column(run.refined(), "class") == [None]


@pytest.mark.parametrize(
    ("kernel", "names", "expected"),
    [
        (MUTE, ("aten::gelu",), ("activation", "gelu")),
        (MUTE, ("aten::mul",), (None, None)),
        (MUTE, ("aten::native_dropout",), ("dropout", None)),
        (MEAN, ("aten::adaptive_avg_pool2d", "aten::mean"), ("pooling", "avg")),
        (MEAN, ("aten::mse_loss", "aten::mean"), ("loss", "mse")),
        (MEAN, ("aten::mean",), (None, None)),
        (COPY, ("aten::layer_norm", "aten::copy_"), (None, None)),
        (COPY, ("aten::contiguous", "aten::clone", "aten::copy_"), ("layout", "contiguous")),
        (COPY, ("aten::clone", "aten::copy_"), (None, None)),
        (ADD, ("ReluBackward0", "aten::add_"), (None, None)),
    ],
)
def test_small_kernels_by_their_operators(
    kernel: str, names: tuple[str, ...], expected: tuple[str | None, str | None]
) -> None:
    run = Run()
    run.launch(kernel, op=run.op(*names))
    frame = run.refined()
    assert (frame["category"][0], frame["function"][0]) == expected


@pytest.mark.parametrize(
    ("names", "batched"),
    [
        (("aten::matmul", "aten::bmm"), True),
        (("aten::baddbmm",), True),
        (("aten::matmul", "aten::mm"), False),
        (("aten::linear", "aten::addmm"), False),
        (("torch.matmul",), None),
    ],
)
def test_batched_by_the_operator(names: tuple[str, ...], batched: bool | None) -> None:
    run = Run()
    run.launch(TENSILE, op=run.op(*names), grid_z=1)
    assert column(run.refined(), "batched") == [batched]


@pytest.mark.parametrize(("name", "batched"), [("aten::bmm", True), ("aten::mm", None)])
def test_a_kernel_of_either_form_is_batched_by_the_operator(
    name: str, batched: bool | None
) -> None:
    """cuBLAS runs batches with kernels of single products: ampere_sgemm_128x128_tt of aten::bmm."""
    run = Run()
    run.launch(SGEMM, op=run.op(name), grid_z=1)
    assert column(run.refined(), "batched") == [batched]


SORT = "void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<int, false, long, long>(int*)"


def test_the_sort_of_an_embeddings_gradient_is_embedding() -> None:
    run = Run()
    run.launch(SORT, op=run.op("aten::embedding_dense_backward"))
    run.launch(SORT, op=run.op("aten::sort"))
    assert column(run.refined(), "category") == ["embedding", None]


@pytest.mark.parametrize(
    ("types", "precision"), [('["c10::BFloat16"]', "bf16"), ('["c10::Half"]', None)]
)
def test_the_operand_decides_on_an_attention_of_cudnn(types: str, precision: str | None) -> None:
    run = Run()
    op = run.op("aten::_cudnn_attention_forward", input_types=types)
    run.launch("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128", op=op)
    assert column(run.refined(), "precision") == [precision]


def test_batched_by_the_grid() -> None:
    run = Run()
    run.launch(CUTLASS, grid_z=64)
    run.launch(CUTLASS, grid_z=1)
    run.launch(CUTLASS, grid_z=32)
    run.launch("void splitKreduce_kernel<32, 16, int, float, float, float>(int)", grid_z=1)
    run.launch(TENSILE, grid_z=64)
    run.launch(SGEMM, grid_z=64)
    run.launch("nvjet_sm90_hsh_128x128_64x6_2x1_v_bz_NNT", grid_z=1)
    assert column(run.refined(), "batched")[:4] == [True, False, False, False]
    assert column(run.refined(), "batched")[4:] == [None, None, None]


def test_a_few_blocks_along_z_are_slices_of_one_sum() -> None:
    run = Run()
    run.launch(CUTLASS, grid_z=7)
    run.launch("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x128x8_stage3_ffma", grid_z=16)
    run.launch(CUTLASS, grid_z=8, op=run.op("aten::bmm"))
    assert column(run.refined(), "batched") == [False, False, True]


def test_an_empty_trace_and_one_of_copies() -> None:
    assert described(with_classes(Trace(TraceBuilder().meta))).is_empty()
    run = Run()
    run.copy("HtoD", 0, 10)
    frame = run.refined()
    assert column(frame, "class") == [None]
    assert column(frame, "episode") == [None]


def test_memory_sets_of_a_convolution_are_in_its_episode() -> None:
    run = Run()
    op = run.op("aten::cudnn_convolution_backward_weight", direction="backward")
    run.memset(0, 5, op=op, stream=7)
    run.now = 10
    run.launch(WGRAD, op=op)
    frame = run.refined()
    assert column(frame, "episode") == [0, 0]
    assert column(frame, "class")[0] is None


def test_refining_again_changes_nothing() -> None:
    run = Run()
    run.launch(R2C, CGEMM, C2R, op=run.op("aten::cudnn_convolution"))
    once = with_classes(run.build())
    again = with_classes(once)
    for table in ("activities", "classes", "episodes"):
        assert once.tables[table].equals(again.tables[table])


def test_rules_have_ids_of_their_own_and_reasons() -> None:
    rules = context().rules
    assert len({rule.id for rule in rules}) == len(rules)
    assert all(rule.id.startswith("context.") and rule.reason for rule in rules)


CHECK = "redzone_checker"
FILL = "void stream_executor::gpu::RepeatBufferKernel(char*, long, long)"


def _search_run(trial: tuple[str, ...], **columns: Any) -> Trace:
    """A search of two trials, then the step that it was for: the convolution and its activation."""
    run = Run()
    run.layer("conv1", "Conv2D")
    run.launch(FILL, CHECK, **columns)
    for name in trial:
        run.launch(name, CHECK, CHECK, **columns)
    run.launch(XMMA, CLAMP, layer=0, **{**columns, "scope": "jit(step)/conv1"})
    return with_classes(run.build())


def test_trials_between_an_autotuners_kernels_are_algorithm_search() -> None:
    trace = _search_run((XMMA, SCUDNN))
    found = breakdown(trace).frame.filter(pl.col("category") == "algorithm search")
    assert found.select("calls", "time_ns").rows() == [(8, 80)]
    rows = layers(trace, costs=False).frame
    assert dict(rows.select("layer", "time_ns").iter_rows()) == {
        "conv1": 20,
        "(algorithm search)": 80,
    }
    assert breakdown(trace).totals["time_ns"] == 100
    # Refining again finds the same.
    again = with_classes(trace)
    assert again.tables.layers.equals(trace.tables.layers)
    assert again.tables.activities.equals(trace.tables.activities)


def test_work_of_the_model_between_two_searches_is_not_theirs() -> None:
    """The first search's convolution runs, and another layer, before the second search begins."""
    run = Run()
    run.layer("conv1", "Conv2D")
    for _ in range(2):
        run.launch(FILL, XMMA, CHECK)
        run.launch(SCUDNN, CLAMP, layer=0)
    trace = with_classes(run.build())
    frame = breakdown(trace).frame
    search = frame.filter(pl.col("category") == "algorithm search")
    assert search.select("calls", "time_ns").rows() == [(6, 60)]
    rows = layers(trace, costs=False).frame
    assert rows.filter(pl.col("layer") == "conv1")["time_ns"].to_list() == [40]


@pytest.mark.parametrize("different", [{"scope": "jit(f)/conv1"}, {"stream": 9}])
def test_a_kernel_of_another_scope_or_stream_is_no_trial(different: dict[str, Any]) -> None:
    run = Run()
    run.launch(FILL, CHECK)
    run.launch(XMMA, **different)
    run.launch(CHECK)
    trace = with_classes(run.build())
    frame = breakdown(trace).frame
    assert frame.filter(pl.col("category") == "conv")["calls"].to_list() == [1]


def test_the_algorithms_that_one_call_tries_are_algorithm_search() -> None:
    """cudnn.benchmark: four algorithms by one call, the last is the choice."""
    run = Run()
    run.layer("conv1", "Conv2d")
    op = run.op("aten::cudnn_convolution", layer=0)
    on = {"op": op, "layer": 0}
    run.launch(OFFSETS, SCUDNN, R2C, CGEMM, C2R, IM2COL, SGEMM, OFFSETS, SCUDNN, **on)
    trace = with_classes(run.build())
    frame = breakdown(trace).frame
    assert dict(frame.select("category", "time_ns").iter_rows()) == {
        "algorithm search": 70,
        "conv": 20,
    }
    rows = layers(trace, costs=False).frame.select("layer", "time_ns", "algorithm").rows()
    assert rows == [("conv1", 20, "implicit_precomp_gemm"), ("(algorithm search)", 70, None)]
    row = convolutions(trace).frame
    assert (row["tried"].sum(), row["tried_ns"].sum(), row["time_ns"].sum()) == (3, 70, 90)
    assert row["layer"].unique().to_list() == ["conv1"]


def test_two_algorithms_of_one_call_are_the_models() -> None:
    run = Run()
    op = run.op("aten::cudnn_convolution")
    run.launch(R2C, CGEMM, C2R, OFFSETS, SCUDNN, op=op)
    trace = with_classes(run.build())
    assert breakdown(trace).frame["category"].unique().to_list() == ["conv"]


def test_an_operator_without_a_name_lends_no_class() -> None:
    run = Run()
    run.launch(SGEMM, op=run.row("ops", name=None, depth=0))
    run.launch(SGEMM, op=run.op("aten::conv2d", "aten::cudnn_convolution"))
    assert column(run.refined(), "category") == [None, "conv"]

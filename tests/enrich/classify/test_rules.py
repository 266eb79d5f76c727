"""The examples of the rules, and the reviewed and labelled lists."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import polars as pl
import pytest

from tools.classification import SAMPLE, compare, read_labels
from traceana.enrich.classify import classify_names, load_rules
from traceana.enrich.classify.ruleset import parse_rules
from traceana.trace.taxonomy import CATEGORIES

RULES = load_rules().rules
with (Path(__file__).parent / "data" / "examples.tsv").open(encoding="utf-8", newline="") as corpus:
    EXAMPLES = list(csv.DictReader(corpus, delimiter="\t"))
BLIND = sorted(SAMPLE.parent.glob("blind_*.tsv"))
LABELS = Path(__file__).resolve().parents[4] / "shared" / "kernel_labels.tsv"


@pytest.fixture(scope="module")
def classes() -> list[dict[str, object]]:
    return classify_names([example["name"] for example in EXAMPLES]).to_dicts()


@pytest.mark.parametrize("file", list(dict.fromkeys(rule.file for rule in RULES)))
def test_examples(file: str, classes: list[dict[str, object]]) -> None:
    """Every example of a file's rules has the class of its rule; all that have not are shown."""
    wrong = []
    rules = {rule.id: rule for rule in RULES}
    for example, row in zip(EXAMPLES, classes, strict=True):
        rule = rules[example["rule"]]
        if rule.file == file:
            own = json.loads(example["columns"] or "{}")
            expected = {"rule": rule.id, **rule.columns, **own}
            found = {column: row[column] for column in expected}
            if found != expected:
                wrong.append((example["name"], expected, found))
    assert wrong == []


def test_every_rule_has_an_example() -> None:
    assert {example["rule"] for example in EXAMPLES} == {rule.id for rule in RULES}


def test_ids_are_unique() -> None:
    ids = [rule.id for rule in RULES]
    assert len(set(ids)) == len(ids)


def test_every_category_has_a_rule() -> None:
    assert {rule.columns["category"] for rule in RULES} == set(CATEGORIES)


def test_every_own_pattern_compiles() -> None:
    folder = Path(load_rules.__code__.co_filename).parent / "rules"
    for file in sorted(folder.glob("*.toml")):
        if file.name != "order.toml":
            parse_rules(file.read_text(encoding="utf-8"), file.name)


def test_every_rule_file_is_in_the_order() -> None:
    folder = Path(load_rules.__code__.co_filename).parent / "rules"
    files = {file.name for file in folder.glob("*.toml")} - {"order.toml", "attributes.toml"}
    assert files == {rule.file for rule in RULES}


def test_reviewed_sample() -> None:
    """A stratified sample of the libraries' names, each class read and agreed to."""
    compared = compare(read_labels(SAMPLE))
    wrong = compared.filter(
        ~pl.all_horizontal(pl.col("category", "algorithm", "direction", "batched").fill_null(True))
    )
    assert wrong["name"].to_list() == []


@pytest.mark.parametrize("path", BLIND, ids=lambda path: path.stem)
def test_blind_list(path: Path) -> None:
    """Names that were labelled before anyone saw how the rules class them."""
    check(compare(read_labels(path)))


@pytest.mark.skipif(not LABELS.is_file(), reason="the labelled list is not beside the repository")
def test_labelled_list() -> None:
    check(compare(read_labels(LABELS)))


@pytest.mark.parametrize(
    ("name", "column"),
    [
        # The kernel serves weights of 4 and of 8 bits.
        ("fused_moe_kernel_gptq_awq", "precision"),
        # A buffer that is double has no double precision.
        (
            "gridwise_convolution_implicit_gemm_v4r1_nchw_kcyx_nkhw_lds_double_buffer",
            "precision",
        ),
        # The end of "winograd" makes no gradient, a forward transform no forward convolution.
        ("winograd_input_transform_4x4_3x3_stepz1_nchw", "direction"),
        ("winograd_weight_transform_kernel", "direction"),
        ("MIOpenConvFFT_fwd_in", "direction"),
        # From Ampere on, tensor cores multiply several types.
        ("ampere_s16816gemm_128x128_ldg8_stages_32x5_nn", "precision"),
        # "nn" is TVM's module of neural networks.
        ("fused_nn_contrib_conv2d_winograd_without_weight_transform_add_kernel1", "gemm_layout"),
        # "or" is the end of "tensor", "min" is in "DimIndex".
        ("void full_reduce_tensor_kernel<float, 256, 1, 1, 256, 4, 0>(int)", "function"),
        ("kernelTransformReduceOuterDimIndex", "function"),
    ],
)
def test_what_a_name_does_not_tell_is_null(name: str, column: str) -> None:
    assert classify_names([name])[column].item() is None


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        (
            "_Z23implicit_convolve_sgemmI6__halfS0_Li128ELi5ELi5ELi3ELi3ELi3ELi1ELb0ELb1ELb1EEv"
            "iiiPKT_iPT0_S3_18kernel_conv_paramsyiffiPKS4_S8_bii",
            "fp16",
        ),
        ("cutlass3x_sm100_tensorop_s256x256x32gemm_f8_f8_f32_f16_f16", "fp8"),
        ("aiter::f4gemm_bf16_per1x32Fp4_BpreShuffle_256x256", "fp4"),
        ("void awq::gemm_forward_4bit_cuda_m16n128k32<128>(int)", "w4a16"),
        ("hgemm_bf16_32x64x64_S2TN_AS_SPK16_BS_0", "bf16"),
        # "s" is the type of the sums where a tensor core multiplies.
        ("volta_s884cudnn_256x64_sliced1x2_ldg8_wgrad_exp_small_nhwc_nt_v1", "fp16"),
        ("turing_s1688gemm_128x128_ldg8_nn", "fp16"),
        # hmma_fp32 multiplies halves and adds in single precision.
        (
            "void xmma_cudnn::gemm::kernel<xmma_cudnn::implicit_gemm::dgrad::Kernel_traits<"
            "xmma_cudnn::Ampere_hmma_fp32_traits, xmma_cudnn::Cta_tile<xmma_cudnn::Ampere, 256, "
            "64, 32, 4, 1, 1, 1>>>(int)",
            "fp16",
        ),
        (
            "_ZN13cutlass_cudnn6KernelINS_4conv6kernel23ImplicitGemmConvolutionINS1_11threadblock22"
            "ImplicitGemmMultistageINS_4gemm9GemmShapeILi64ELi256ELi32EEENS4_51Conv2dWgradOutput"
            "GradientTileAccessIteratorAnalyticINS_11MatrixShapeILi64ELi32EEENS_6half_tENS_9"
            "transformEEEEEEvNT_6ParamsE",
            "fp16",
        ),
        (
            "void xmma_new::gemm::kernel<xmma_new::implicit_gemm::wgrad_indexed::Kernel_traits<"
            "xmma_new::Ampere_hmma_tf32_traits<unsigned int, float>, xmma_new::Cta_tile<"
            "xmma_new::Ampere, 128, 128, 16, 2, 2, 1, 1, 1>>>(int)",
            "tf32",
        ),
    ],
)
def test_precision(name: str, precision: str) -> None:
    """The type of the operands, not that of the sums, of the result or of a back-reference."""
    assert classify_names([name])["precision"].item() == precision


@pytest.mark.parametrize(
    ("name", "tensor_core"),
    [
        ("sm80_xmma_wgrad_implicit_gemm_indexed_f16f16_f16f32_...", True),
        ("sm80_xmma_gemm_f16f16_f32f32_f32_nn_n_tilesize128x32x8_stage3_warpsize2x2x1_ffma", False),
        ("sm80_xmma_gemm_f16f16_f32f32_...", None),
    ],
)
def test_tensor_core_of_a_name_that_is_cut_off(name: str, tensor_core: bool | None) -> None:
    """Products of halves in single precision run without tensor cores."""
    assert classify_names([name])["tensor_core"].item() is tensor_core


@pytest.mark.parametrize(
    ("name", "category", "function"),
    [
        (
            "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEENS_6detail"
            "5ArrayIPcLi3EEEEEviT0_T1_",
            "elementwise",
            "add",
        ),
        (
            "_ZN2at6native27unrolled_elementwise_kernelIZZZNS0_21copy_device_to_deviceERNS_"
            "14TensorIteratorEbENKUlvE1_clEvENKUlvE6_clEvEUlfE_NS_6detail5ArrayIPcLi2EEE",
            "elementwise",
            "copy",
        ),
        (
            "_ZN5cudnn24bn_fw_tr_1C11_singlereadIfLi512ELb1ELi1ELi2ELi0EEEv17cudnnTensorStruct",
            "normalization",
            "batch",
        ),
        (
            "_Z21kernelPointwiseApply3I25ThresholdUpdateGradInputIfEffjLin2ELin2EEv10TensorInfo",
            "activation",
            "relu",
        ),
        (
            "_ZN5mxnet2op8mxnet_op20mxnet_generic_kernelINS1_11op_with_reqINS0_10mshadow_op4plusE"
            "Li1EEEJPfS7_S7_EEEviDpT0_",
            "elementwise",
            "add",
        ),
    ],
)
def test_functor_of_a_mangled_name(name: str, category: str, function: str) -> None:
    """Profilers leave names mangled that their demangler does not know."""
    row = classify_names([name]).row(0, named=True)
    assert (row["category"], row["function"]) == (category, function)


@pytest.mark.parametrize(
    ("name", "column", "value"),
    [
        ("sm86_xmma_fprop_implicit_gemm_indexed_f16f16", "precision", "fp16"),
        ("sm86_xmma_fprop_implicit_gemm_indexed_f16f16", "tensor_core", None),
        ("sm86_xmma_fprop_implicit_gemm_indexed_tf32f32...", "tensor_core", True),
        (
            "_ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3"
            "INS_28GridwiseGemm_xdl_cshuffle_v3INS_13tensor_layout4gemm8RowMajorENS6_11ColumnMajorE"
            "S7_ttfttNS0_12element_wise11PassThroughESA_SA_LNS1_18GemmSpecializationE7ELi128E",
            "precision",
            "bf16",
        ),
        (
            "turing_fp16_s1688cudnn_fp16_128x128_ldg8_relu_f2f_exp_medium_nhwc_gelu_tn_v1",
            "epilogue",
            "gelu",
        ),
        (
            "void cudnn::detail::dgrad2d_alg1_1<float, 0, 6, 7, 5, 4, 5, false, true>(int)",
            "tensor_core",
            False,
        ),
        (
            "sm80_xmma_sparse_gemm_i8i8_i8i32_f32_tn_n_tilesize128x64x128_stage4"
            "_warpsize2x2x1_sptensor16x8x64_execute_split_k_kernel_cusparse",
            "tensor_core",
            True,
        ),
        ("kernelPointwiseApply2<TensorCAddOp<__h", "function", "add"),
        ("void kernelPointwiseApply2<TensorMaxValueOp<flo", "function", "maximum"),
        ("add_bias_kernel(float*, float*, int, int, int)", "function", "add"),
        ("ImplicitGemmConvolutionFusionPerSample", "library", None),
        ("cuResizeLayer::ResizeKernelVectorizedH2x4<cuResize...", "library", "tensorrt"),
    ],
)
def test_one_column(name: str, column: str, value: str | bool | None) -> None:
    assert classify_names([name]).row(0, named=True)[column] == value


def check(compared: pl.DataFrame) -> None:
    """Check the accuracy of a labelled list, in all and within its larger categories."""
    assert right(compared["category"]) >= 0.985
    assert right(compared["family"]) >= 0.99
    assert right(compared["direction"]) >= 0.98
    assert right(compared["batched"]) >= 0.98
    for (_,), rows in compared.group_by("labelled"):
        assert rows.height < 20 or right(rows["category"]) >= 0.96


def right(answers: pl.Series) -> float:
    known = answers.drop_nulls()
    return float(known.sum()) / len(known) if len(known) else 1.0

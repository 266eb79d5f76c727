"""Different spellings of profilers are matched to one kernel."""

from __future__ import annotations

import polars as pl
import pytest

from traceana.enrich.counters import functions, signatures

ADD = "at::native::CUDAFunctor_add<c10::BFloat16>"
SILU = "at::native::(anonymous namespace)::silu_kernel(at::TensorIteratorBase&)"
GEMV = "int, int, __nv_bfloat16, float"
SPELLINGS = [
    # As CUPTI (Kineto, TensorFlow), Nsight Compute of today and of before print them.
    (
        f"void at::native::vectorized_elementwise_kernel<4, {ADD}, std::array<char*, 3ul> >"
        f"(int, {ADD}, std::array<char*, 3ul>)",
        "void vectorized_elementwise_kernel<4, CUDAFunctor_add<BFloat16>, array<char *, 3>>"
        "(int, T2, T3)",
        f"void at::native::vectorized_elementwise_kernel<(int)4, {ADD}, std::array<char *, "
        "(unsigned long)3>>(int, T2, T3)",
    ),
    (
        f"void at::native::vectorized_elementwise_kernel<4, {SILU}::{{lambda()#1}}::operator()() "
        "const::{lambda()#6}::operator()() const::{lambda(c10::BFloat16)#1}, "
        "std::array<char*, 2ul> >(int)",
        "void vectorized_elementwise_kernel<4, unnamed>::silu_kernel(TensorIteratorBase &)::"
        "[lambda() (instance 1)]::operator ()() lambda() (instance 6)]::operator ()() "
        "lambda(BFloat16) (instance 1)], array<char *, 2>>(int, T2, T3)",
    ),
    (
        f"void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<{ADD} >"
        f"(at::TensorIteratorBase&, {ADD} const&)::{{lambda(int)#1}}>(int)",
        "void elementwise_kernel<128, 4, void gpu_kernel_impl_nocast<CUDAFunctor_add<BFloat16>>"
        "(TensorIteratorBase &, const T1 &)::[lambda(int) (instance 1)]>(int, T3)",
    ),
    (
        f"std::enable_if<!(false), void>::type internal::gemvx::kernel<{GEMV}, false, true, 7, "
        "cublasGemvParamsEx<int, cublasGemvTensor<__nv_bfloat16 const> > >(cublasGemvParamsEx)",
        f"enable_if<!T7, void>::type kernel<{GEMV}, 0, 1, 7, cublasGemvParamsEx<int, "
        "cublasGemvTensor<const __nv_bfloat16>>>(T13)",
    ),
    (
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_nn_align1>(cutlass_80::Params)",
        "void Kernel2<cutlass_80_simt_sgemm_64x64_8x5_nn_align1>(Params)",
    ),
    (
        "void cudnn::op_generic_tensor_kernel<2, float, 256, (cudnnGenericOp_t)8, 1>(float*)",
        "void op_generic_tensor_kernel<2, float, 256, 8, 1>(T2 *)",
        "void cudnn::op_generic_tensor_kernel<int=2, float, int=256, cudnnGenericOp_t=8, int=1>",
    ),
    ("ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nn"),
]


@pytest.mark.parametrize("spellings", SPELLINGS, ids=lambda names: names[0][:40])
def test_spellings_of_one_kernel_agree(spellings: tuple[str, ...]) -> None:
    found = signatures(pl.Series(spellings)).unique().to_list()
    assert len(found) == 1
    assert found[0]


def test_kernels_that_differ_do_not_agree() -> None:
    names = [
        *(spellings[0] for spellings in SPELLINGS),
        "void k<4, float>(int)",
        "void k<4, double>(int)",
        "void k<8, float>(int)",
        "void k<(Op)1, float>(int)",
        "void k<4, relu(int)::{lambda(float)#1}>(int)",
        "void k<4, tanh(int)::{lambda(float)#1}>(int)",
        "T1234x",
    ]
    assert signatures(pl.Series(names)).n_unique() == len(names)


def test_the_bare_function() -> None:
    names = [SPELLINGS[0][0], SPELLINGS[3][0], SPELLINGS[3][1], "sgemm", "a::b(int)", "void (*)()"]
    assert functions(pl.Series(names)).to_list() == [
        "vectorized_elementwise_kernel", "kernel", "kernel", "sgemm", "b", "void",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "((((", "<" * 5000, "(" * 5000 + ")" * 5000, "(.*)+", "\x00"])
def test_hostile_text_is_text(text: str) -> None:
    assert len(signatures(pl.Series([text, "k"]))) == 2
    assert len(functions(pl.Series([text, "k"]))) == 2

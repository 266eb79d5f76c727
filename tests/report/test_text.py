"""Text and numbers for people."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from traceana.errors import NotATraceError
from traceana.plain_text import plain
from traceana.report import numbers
from traceana.report.display_names import (
    brief,
    briefs,
    file_format,
    libraries,
    part,
    recorded_by,
    trace_file,
)
from traceana.report.text import (
    cut_distinct,
    cut_end,
    cut_kernels,
    cut_middle,
    cut_path,
    cut_start,
    differing_width,
    sparkline,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("void sgemm<float, 4>(int)", "void sgemm<float, 4>(int)"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("a\tb\nc\rd", r"a\tb\nc\rd"),
        ("\x9b2J", r"\x9b2J"),
        ("evil\u202egnp.exe", r"evil\u202egnp.exe"),
        ("zero\u200bwidth\ufeff", r"zero\u200bwidth\ufeff"),
        ("line\u2028end", r"line\u2028end"),
        ("tag\U000e0041", r"tag\U000e0041"),
        ("[bold]µ 畳み込み[/bold]", "[bold]µ 畳み込み[/bold]"),
    ],
)
def test_what_could_steer_a_terminal_is_written_out(text: str, shown: str) -> None:
    assert plain(text) == shown


@settings(deadline=None)
@given(st.text())
def test_plain_text_is_one_printable_line(text: str) -> None:
    shown = plain(text)
    assert len(shown.splitlines()) <= 1
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in shown)
    assert plain(shown) == shown


def test_an_error_is_one_line_also_in_python() -> None:
    assert str(NotATraceError("holds a\x1b[31m\nb: record it")) == r"holds a\x1b[31m\nb: record it"


@settings(deadline=None)
@given(st.lists(st.text(alphabet="ab畳._", max_size=40), unique=True), st.integers(8, 16))
def test_different_names_are_cut_to_different_texts(names: list[str], width: int) -> None:
    every = [cut_distinct(names, width, cut) for cut in (cut_middle, cut_path)]
    for shown in (*every, cut_kernels(names, width)):
        assert all(cell_len(text) <= width for text in shown)
        assert len(set(shown)) == len(names)


def test_names_cut_to_the_same_text_show_where_they_differ() -> None:
    names = [f"implicit_convolve_sgemm<float, {n}, 6, 7, 3, 3, 5, true>" for n in (128, 1024)]
    assert cut_distinct(names, 30, cut_middle) == [
        "implicit_convolve_sgemm<f…128…",
        "implicit_convolve_sgemm<…1024…",
    ]


def test_names_of_kernels_show_the_words_in_which_they_differ() -> None:
    functions = ("PdV_kernel::lambda#2", "PdV_kernel::lambda#1", "advec_mom_kernel::lambda#11")
    names = [f"clover::par_ranged2d_kernel<{function}>" for function in functions]
    assert cut_kernels(names, 30) == [
        "clover::…PdV_kernel::lambda#2>",
        "clover::…PdV_kernel::lambda#1>",
        "clover::par_…advec_mom_kernel…",
    ]
    # The start that is long in all is left out; one that begins like no other shows both ends.
    names = [f"fmha{'Sm100' * 4}Qkv{one}PagedKv{'x' * 20}" for one in ("Causal", "Sliding")]
    assert cut_kernels([*names, "a" * 20 + "b" * 20], 24) == [
        "fmha…CausalPagedKvxxxxx…",
        "fmha…SlidingPagedKvxxxx…",
        "aaaaaaaaaaaa…bbbbbbbbbbb",
    ]
    assert differing_width(names, 10, 40) > 10
    assert differing_width(["short", "short2"], 10, 40) == 10


def test_a_path_is_cut_at_its_start_alone() -> None:
    paths = [f"span.encoder.layer.{n}.self_attention.dense_layer" for n in (7, 8)]
    assert cut_distinct(paths, 32, cut_path) == [
        "…7.self_attention.dense_layer",
        "…8.self_attention.dense_layer",
    ]
    assert cut_path("(launched before capture began)", 20) == "(launched before ca…"


def test_kernels_that_differ_in_their_arguments_alone_keep_them() -> None:
    assert briefs(["void k(int)", "void k(float)", "void other(int)"]) == {
        "void k(int)": "k(int)",
        "void k(float)": "k(float)",
        "void other(int)": "other",
    }


@settings(deadline=None)
@given(st.text(alphabet="ab畳込é", max_size=20), st.integers(1, 12))
def test_cut_text_fits(text: str, width: int) -> None:
    for cut in (cut_end, cut_middle, cut_start):
        shown = cut(text, width)
        assert cell_len(shown) <= width
        assert (shown == text) == (cell_len(text) <= width)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("volta_sgemm_64x64_nt", "volta_sgemm_64x64_nt"),
        ("void at::native::(anonymous namespace)::softmax<4>(float*, int)", "softmax<4>"),
        ("void k<f(int)>(char*)", "k<f(int)>"),
        ("f(int)::g(float)", "f(int)::g"),
        ("(anonymous namespace)::k", "k"),
        ("k)", "k)"),
        ("()", "()"),
        ("", ""),
        ("a\x1b(b)", r"a\x1b"),
        (
            "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::"
            "native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() "
            "const::{lambda()#12}::operator()() const::{lambda(float)#1}>(at::TensorIteratorBase&, "
            "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()"
            "() const::{lambda()#12}::operator()() const::{lambda(float)#1} const&)::{lambda(int)#1"
            "}>(int, at::native::gpu_kernel_impl_nocast<float>(int)::{lambda(int)#1})",
            "elementwise_kernel<128, 2, direct_copy_kernel_cuda::lambda#3.12.1>",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
            "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>)",
            "vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>",
        ),
        (
            "void par_kernel<advec(int, Buffer<double> &, int)::[lambda(int, int) (instance 2)]>"
            "(Range, T1)",
            "par_kernel<advec::lambda#2>",
        ),
        (
            "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
            "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long)",
            "vllm::fused_add_rms_norm_kernel<BFloat16, 8>",
        ),
        ("unsigned int k<float>(int)", "k<float>"),
        ("void (anonymous namespace)::k<(bool)1>(f(*)(int))", "k<1>"),
        (
            "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688_align8>"
            "(cutlass_tensorop_s1688_align8::Params)",
            "cutlass_tensorop_s1688_align8",
        ),
        ("k<4, void pow<float>, void const*>()", "k<4, pow<float>, void const*>"),
        ("k<gpu_kernel_impl<f<{lambda()#1}>", "k<gpu_kernel_impl<f<lambda#1>"),
    ],
)
def test_a_kernel_is_called_by_its_function(name: str, shown: str) -> None:
    assert brief(name) == shown


PIECES = st.sampled_from(
    [*"ab()<>: ", "{lambda()#1}", "::operator()() const", "gpu_kernel_impl<", "::{lambda(int)#2}"]
)


@settings(deadline=None)
@given(st.lists(PIECES, max_size=30).map("".join))
def test_a_name_never_vanishes(name: str) -> None:
    assert bool(brief(name)) == bool(name)


def test_names_are_spelled_as_their_owners_do() -> None:
    assert [part(one) for one in ("fprop", "dgrad", "all_reduce", "bias+relu")] == [
        *("forward", "dgrad", "AllReduce", "bias+ReLU")
    ]
    assert libraries("cudnn, aten, cublaslt, mine") == "cuDNN, ATen, cuBLASLt, mine"
    assert file_format("kineto", "1") == "Kineto"
    assert file_format("nsys", "3.25.0") == "Nsight Systems, schema 3.25.0"
    assert recorded_by("nsys", "NVIDIA Nsight Systems 2024.2.3.38") == "Nsight Systems 2024.2.3"
    assert recorded_by("nsys", "NVIDIA Nsight Systems") == "Nsight Systems"
    assert recorded_by("kineto", None) == "Kineto"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1.00 µs"),
        (12_345_678, "12.35 ms"),
        (123_456_789, "123.5 ms"),
        (61_000_000_000, "61.00 s"),
        (-1_500, "\u22121.50 µs"),
    ],
)
def test_durations(value: int, shown: str) -> None:
    assert numbers.duration(value) == shown


def test_a_column_has_one_unit_and_four_digits_of_its_largest_value() -> None:
    column = numbers.scale([123_456_789, 5_000, 100, None], numbers.TIME)
    assert column.unit == "ms"
    assert [column.write(v) for v in (123_456_789, 99_940_000, 5_000, 0)] == [
        *("123.5", "99.9", "<0.1", "0"),
    ]
    assert column.write_total(1_234_567_890) == "1,235"
    assert numbers.scale([999_960], numbers.TIME) == numbers.Scale(10**6, "ms", 3)
    assert numbers.scale([9_999], numbers.TIME).write(9_999) == "9.999"
    assert numbers.scale([999], numbers.TIME).unit == "ns"
    assert numbers.scale([], numbers.TIME).unit == "ns"


def test_a_column_is_in_the_unit_in_which_most_of_its_cells_read_well() -> None:
    rates = [1_200_000_000_000, 28_100_000_000, 11_000_000_000, None, 0]
    column = numbers.column_scale(rates, numbers.BYTE_RATE)
    assert [column.write(value) for value in rates if value is not None] == [
        *("1,200", "28", "11", "0"),
    ]
    assert column.unit == "GB/s"
    times = [2_900_000, 1_500, 900]
    column = numbers.column_scale(times, numbers.TIME)
    assert [column.write(value) for value in times] == ["2,900", "1.5", "0.9"]
    steps = numbers.column_scale([1_004_000_000, 969_400_000, 921_000_000], numbers.TIME)
    assert (steps.unit, steps.write(969_400_000)) == ("ms", "969")


def test_no_number_of_a_column_has_more_than_four_digits() -> None:
    assert numbers.column_scale([300_000_000, 20_000, 10_000], numbers.TIME).unit == "ms"
    assert numbers.column_scale([2_000_000, 20_000, 10_000], numbers.TIME).unit == "µs"
    total = 13_194_000
    column = numbers.column_scale([2_000_000, 20_000, 10_000], numbers.TIME, total)
    assert (column.unit, column.write_total(total)) == ("ms", "13.19")
    column = numbers.column_scale([7_341_300_000, 20_000, 10_000], numbers.TIME, total * 1000)
    assert [column.write(value) for value in (7_341_300_000, 20_000)] == ["7.341", "<0.001"]
    # Nine values of 900 ms: their sum would be 8,100, twelve of them have one of 10,800.
    assert numbers.scale([900_000_000], numbers.TIME, 8_100_000_000).unit == "ms"
    assert numbers.scale([900_000_000], numbers.TIME, 10_800_000_000).unit == "s"
    assert numbers.column_scale([5_000_000, 600_000], numbers.TIME).unit == "ms"
    assert numbers.column_scale([], numbers.TIME, 5_000_000).unit == "ms"
    assert numbers.mean(1_462.3) == "1,462"
    assert numbers.share(12.345) == "1,234 %"
    assert numbers.rate(1.5144e12) == "1,514 GB/s"


def test_ratios_of_a_column_have_the_same_decimals() -> None:
    column = numbers.ratio_scale([532.4, 59.18, 0.001, None, 0])
    assert [column.write(value) for value in (532.4, 59.18, 0.001, 0)] == [
        *("532.4", "59.2", "<0.1", "0"),
    ]
    assert [numbers.ratio(value) for value in (0.001, 0.98, 12.3456)] == ["<0.01", "0.98", "12.35"]


def test_differences_have_a_sign() -> None:
    signed = [numbers.with_sign(text, value) for text, value in (("8.3", 8.3), ("<0.1", 0.01))]
    assert signed == ["+8.3", "<+0.1"]
    assert numbers.with_sign("\u22125.4", -5.4) == "\u22125.4"
    assert numbers.with_sign("0", 0) == "0"


def test_small_and_negative_values_keep_their_sign() -> None:
    column = numbers.scale([-1_500_000, 2_000_000], numbers.TIME)
    assert [column.write(value) for value in (-1_500_000, -100, 100)] == [
        *("\u22121.500", ">\u22120.001", "<0.001"),
    ]
    assert numbers.share(-0.265) == "\u221226.5 %"
    assert numbers.share(-0.0001) == ">\u22120.1 %"


def test_moments_have_the_decimals_that_keep_them_different() -> None:
    moments = [1_693_120_000, 1_693_124_000, 1_696_000_000]
    column = numbers.moment_scale(moments, numbers.TIME)
    assert [column.write(one) for one in moments] == ["1.693120", "1.693124", "1.696000"]
    gaps = [12_000_000_000, 6_400_000_000], [1_200_000, 1_100_000]
    assert numbers.moment_scale(*gaps[:1], numbers.TIME).decimals == 2
    assert numbers.moment_scale(gaps[0], numbers.TIME, gaps[1]).decimals == 3
    assert numbers.moment_scale(gaps[0], numbers.TIME, [10_000_000]).decimals == 2
    # A hundredth of a second is longer than these.
    assert numbers.moment_scale(gaps[0], numbers.TIME, [9_000_000]).decimals == 3
    assert numbers.moment_scale([100, 200], numbers.TIME).unit == "ns"
    assert numbers.moment_scale([1_000_000_001, 1_000_000_002], numbers.TIME).decimals == 9


def test_sizes_rates_shares_and_counts() -> None:
    assert [numbers.size(v) for v in (0, 999, 1000, 115_600_000)] == [
        "0 B",
        "999 B",
        "1.00 kB",
        "115.6 MB",
    ]
    assert numbers.rate(11.5e9) == "11.50 GB/s"
    assert [numbers.share(v) for v in (0, 0.0001, 0.0005, 0.123, 1)] == [
        "0.0 %",
        "<0.1 %",
        "0.1 %",
        "12.3 %",
        "100.0 %",
    ]
    assert numbers.counted(1, "copy", "copies") == "1 copy"
    assert numbers.counted(2000, "copy", "copies") == "2,000 copies"


@pytest.mark.parametrize("cut", [cut_end, cut_start, cut_middle])
@pytest.mark.parametrize("letters", ["ab", "e\u0301", "畳"])
def test_a_long_text_is_cut_as_its_ends_are(cut: Callable[[str, int], str], letters: str) -> None:
    """All of a megabyte was taken apart into graphemes, which took seconds a name."""
    longer, long = (letters * times for times in (500_000, 500))
    assert cut(longer, 20) == cut(long, 20)
    # A letter of two cells may leave one.
    assert cell_len(cut(longer, 20)) in (19, 20)


@pytest.mark.parametrize(
    ("path", "title"),
    [
        ("/runs/bert-b8/trace.json.gz", "bert-b8/trace.json.gz"),
        ("bert-b8/trace.rank0.json.gz", "bert-b8/trace.rank0.json.gz"),
        ("trace.json", "trace.json"),
        ("/runs/bert-b8/before.json", "before.json"),
        ("/runs/traces/tracer.json", "tracer.json"),
    ],
)
def test_a_trace_of_a_general_name_has_its_folder_in_titles(path: str, title: str) -> None:
    assert trace_file(path) == title


@pytest.mark.parametrize(
    ("value", "text"), [(0.2, "<1"), (0.5, "<1"), (2.2, "2"), (52.6, "53"), (1_516.4, "1,516")]
)
def test_counts_in_sentences_are_whole(value: float, text: str) -> None:
    assert numbers.whole(value) == text


def test_a_sparkline_has_a_block_for_each_value_or_mean() -> None:
    assert sparkline([1, 2, 3, 8], 10) == "▁▂▃█"
    assert sparkline([5, 5], 10) == "▁▁"
    assert sparkline([], 10) == ""
    assert sparkline([0] * 50 + [7] * 50, 4) == "▁▁██"

"""Properties of classify_names for any names."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceana.enrich.classify import classify_names, explain
from traceana.enrich.classify.engine import canonical, heads_of, mangled_head
from traceana.enrich.classify.ruleset import parse_rules
from traceana.trace.taxonomy import (
    ALGORITHMS,
    CATEGORIES,
    CLASS_SCHEMA,
    FAMILY_OF_ALGORITHM,
)

NAMES = st.one_of(
    st.text(),
    st.text(alphabet="_ZNK0123456789abc::<>()[] *,=", max_size=80),
    st.from_regex(
        r"(void )?(volta_sgemm|cudnn::|at::native::|Memcpy )\w*<[^>]{0,20}>", fullmatch=True
    ),
)


@settings(max_examples=20, deadline=None)
@given(st.lists(NAMES, max_size=12))
def test_any_text(names: list[str]) -> None:
    """Any text is classified: one row a name, in order, duplicates alike, values in their sets."""
    classes = classify_names([*names, *names])
    assert classes["name"].to_list() == [*names, *names]
    assert classes.schema == pl.Schema(CLASS_SCHEMA)
    assert classes.head(len(names)).equals(classes.tail(len(names)))
    assert set(classes["category"]) <= set(CATEGORIES)
    assert set(classes["algorithm"].drop_nulls()) <= set(ALGORITHMS)
    assert not classes["rule"].has_nulls()


def test_no_names() -> None:
    assert classify_names([]).schema == pl.Schema(CLASS_SCHEMA)


def test_null_is_the_empty_name() -> None:
    row = classify_names(pl.Series(["volta_sgemm_128x64_nn", None])).row(1, named=True)
    assert (row["name"], row["category"]) == ("", "other")


def test_input_is_left_alone() -> None:
    given_names = pl.Series("name", ["void foo<int=2> (int)", "kernel<(int)4, <unnamed>::x >"])
    before = given_names.to_list()
    classify_names(given_names)
    assert given_names.to_list() == before


def test_family_follows_the_algorithm() -> None:
    rows = classify_names(["winograd_conv_kernel", "im2col_kernel", "my_direct_thing"])
    for row in rows.iter_rows(named=True):
        assert row["family"] == FAMILY_OF_ALGORITHM.get(row["algorithm"])


def test_a_hostile_name_takes_linear_time() -> None:
    """Repetition on which backtracking engines spend exponential time."""
    name = "void " + "a::" * 20_000 + "<" * 20_000 + "conv" * 20_000
    assert classify_names([name])["name"].to_list() == [name]


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("void at::native::(anonymous namespace)::foo<1, 2>(int)", "at::native::{anon}::foo"),
        (
            "std::enable_if<!(false), void>::type internal::gemvx::kernel<int>(int)",
            "internal::gemvx::kernel",
        ),
        ("volta_sgemm_128x64_nn", "volta_sgemm_128x64_nn"),
        ("gemm_fusion_dot_3.kd", "gemm_fusion_dot_3"),
        ("_ZN2at6native3fooIfEEvi", "at::native::foo"),
        ("_Z3fooIiEvT_", "foo"),
        ("_ZN12_GLOBAL__N_13barEv", "bar"),
        ("void <unnamed>::nvfuser_pointwise_f0<int>(int)", "nvfuser_pointwise_f0"),
        ("(anonymous namespace)::(anonymous namespace)::foo(int)", "foo"),
        ("_INTERNAL_0a1b_12_foo_cu_0a1b::bar", "{anon}::bar"),
        ("_ZN", "_ZN"),
        ("", ""),
        ("[CUDA memcpy HtoD]", "[CUDA memcpy HtoD]"),
    ],
)
def test_heads(name: str, head: str) -> None:
    assert heads_of(canonical(pl.Series([name])))[0] == head


@given(st.text(max_size=60))
def test_mangled_head_of_any_text(text: str) -> None:
    assert isinstance(mangled_head("_ZN" + text), str)


@pytest.mark.parametrize(
    "spelling",
    [
        "void kernel<2, (Op)1, other<3>>(int)",
        "void kernel<(int)2, (Op)1, other<(int)3>>(int)",
        "void kernel<int=2, Op=1, other<int=3>>(int)",
        "void kernel<2, (Op)1, other<3> >(int)",
    ],
)
def test_spellings_agree(spelling: str) -> None:
    assert canonical(pl.Series([spelling]))[0] == "void kernel<2, (Op)1, other<3>>(int)"


def test_spellings_of_const_agree() -> None:
    spellings = [
        "void Eigen::k<Eigen::Map<float const, 1> const, constant_op<float const> >(int)",
        "void Eigen::k<const Eigen::Map<const float, (int)1>, constant_op<const float>>(int)",
        "void Eigen::k<Eigen::Map<float const , int=1> const , constant_op<float const >>(int)",
    ]
    bare = "void Eigen::k<Eigen::Map<float, 1>, constant_op<float>>(int)"
    assert canonical(pl.Series(spellings)).to_list() == [bare] * 3


def test_explain_names_rule_reason_and_rivals() -> None:
    found = explain("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(int)")
    assert found.rule == "cudnn.winograd_nonfused"
    assert found.file == "cudnn_conv.toml"
    assert found.reason
    assert "cudnn.winograd" in found.also_matched
    assert found.also_matched[-1] == "generic.unrecognised"
    assert found.columns["algorithm"] == "winograd_nonfused"


def test_explain_unknown_names() -> None:
    found = explain("PdV_kernel(int)")
    assert (found.rule, found.columns["category"]) == ("generic.unrecognised", "other")
    assert found.reason


def test_attributes_fill_only_what_rules_leave() -> None:
    rules = parse_rules(
        """
        [[rule]]
        id = "a"
        reason = "fixed"
        head = "fixed"
        category = "gemm"
        precision = "fp64"
        [[rule]]
        id = "b"
        reason = "rest"
        name = "^"
        category = "gemm"
        [[attribute]]
        column = "precision"
        pattern = "_(f16|f32)"
        value = "$1"
        [attribute.values]
        f16 = "fp16"
        [[attribute]]
        column = "precision"
        pattern = "_f"
        value = "fp32"
        """,
        "test.toml",
    )
    precisions = classify_names(["fixed_f16", "x_f16", "x_f32", "x"], rules)["precision"]
    assert precisions.to_list() == ["fp64", "fp16", "fp32", None]

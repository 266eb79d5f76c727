"""Texts of a trace are hostile: malformed lists of extents are refused with a reason."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from traceana.flops.call import Call, Cost, Refusal, UncountableError
from traceana.flops.registry import cost
from traceana.vocabulary.operators import operators

HOSTILE = {
    "negative": "[[-1, 3]]",
    "huge": "[[99999999999999999999999]]",
    "beyond the limit": f"[[{2**49}]]",
    "fraction": "[[1.5]]",
    "flag": "[[true]]",
    "text": '[["3"]]',
    "object": '{"a": 1}',
    "number": "7",
    "not JSON": "__import__('os').system('true')",
    "cut": "[[1, 2",
    "deep": "[" * 5000 + "]" * 5000,
    "mixed": "[[1, [2]]]",
    "too deep": "[[[[1]]]]",
    "many dimensions": f"[{[1] * 100}]",
    "many inputs": f"{[[1]] * 5000}",
    "a surrogate": "[[1]]\ud800",
    "long": "[[1]" + " " * (1 << 20) + "]",
    "empty": "",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_is_no_list_of_extents_is_refused(text: str) -> None:
    with pytest.raises(UncountableError) as refusal:
        Call.decode("aten::mm", text)
    assert "\n" not in str(refusal.value)
    assert text[:20] not in str(refusal.value) or not text


def test_white_space_and_tensor_lists_are_read() -> None:
    call = Call.decode("aten::cat", "[\n [[2, 3],\n [4]], [] ]", '["TensorList", "Scalar"]')
    assert call.tensor_list(0) == ((2, 3), (4,))
    assert not call.has(1)


def test_types_distinguish_a_zero_dimensional_tensor_from_a_scalar() -> None:
    call = Call.decode("aten::add", "[[], [], []]", '["float", "Scalar", ""]')
    assert call.tensors() == (0,)
    assert call.shape(0) == ()
    assert Call.decode("aten::add", "[[], []]").tensors() == ()


def test_scalars_are_read_without_being_evaluated() -> None:
    call = Call.decode(
        "", "[]", None, '["[2, 1]", "7", "0.", "[True, False]", "exec(1)", "1_0", "[9e9]"]'
    )
    assert call.integers(0) == (2, 1)
    assert call.integer(1) == 7
    assert call.number(2) == 0.0
    assert call.flags(3) == (True, False)
    for position in (4, 6, 9, -1):
        with pytest.raises(UncountableError):
            call.integers(position)
    with pytest.raises(UncountableError):
        call.flags(4)
    with pytest.raises(UncountableError):
        call.number(4)
    with pytest.raises(UncountableError):
        call.integer(0)
    with pytest.raises(UncountableError):
        call.flag(3)


@pytest.mark.parametrize("text", ['["[99999999999999999999]"]', '["' + "1" * 5000 + '"]'])
def test_integers_beyond_reason_are_refused(text: str) -> None:
    with pytest.raises(UncountableError):
        Call.decode("", "[]", None, text).integers(0)


@pytest.mark.parametrize("text", ["{}", "[1, 2]", "[", '["a"', "null"])
def test_types_and_scalars_that_cannot_be_read_are_not_recorded(text: str) -> None:
    call = Call.decode("", "[[1]]", text, text)
    assert call.types == ()
    assert call.scalars == ()


def test_a_count_beyond_64_bits_is_refused() -> None:
    side = 2**40
    assert cost(Call("aten::mm", ((side, side), (side, side)))) == Refusal(
        "FLOP count exceeds 64 bits"
    )
    with pytest.raises(UncountableError):
        Cost("", "forward", -1, None, "")


extents = st.lists(
    st.one_of(
        st.lists(st.integers(0, 40), max_size=6),
        st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=2),
    ),
    max_size=12,
)
scalars = st.lists(
    st.sampled_from(
        ["", "1", "0", "-3", "True", "[1, 1]", "[0, 0]", "[2]", "[]", "[True, True]", "x", "none"]
    ),
    max_size=12,
)
types = st.lists(st.sampled_from(["float", "long int", "", "Scalar", "TensorList"]), max_size=12)


@given(st.sampled_from(sorted(operators())), extents, types, scalars)
@example("aten::floor_divide", [[], [0]], ["float"], [])
def test_no_reader_raises_whatever_its_inputs(
    name: str, shapes: list[list[int]], kinds: list[str], values: list[str]
) -> None:
    entries = tuple(
        tuple(tuple(one) if isinstance(one, list) else one for one in shape) for shape in shapes
    )
    result = cost(Call(name, entries, tuple(kinds), tuple(values)))
    if isinstance(result, Refusal):
        assert result.reason
    else:
        assert all(one.flops >= 0 for one in result)

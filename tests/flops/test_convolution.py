"""Convolutions against loops that count every multiply-accumulate, one by one."""

from __future__ import annotations

from itertools import product

import pytest

from traceana.flops.call import Call, Cost, Refusal, Shape
from traceana.flops.registry import cost


def counted(
    x: Shape, weight: Shape, output: Shape, groups: int = 1, transposed: bool = False
) -> int:
    """Run the loops of a direct convolution and count."""
    macs = 0
    laid = x[2:] if transposed else output[2:]
    outer, inner = (x[1], weight[1]) if transposed else (weight[0], x[1] // groups)
    for _image, _channel, *_position in product(
        range(x[0]), range(outer), *(range(n) for n in laid)
    ):
        for _other, *_tap in product(range(inner), *(range(n) for n in weight[2:])):
            macs += 1
    return macs


def call(
    name: str, shapes: list[Shape], scalars: list[str], **beside: Shape | tuple[bool, ...]
) -> Call:
    types = tuple("float" if shape else "" for shape in shapes)
    return Call(name, tuple(shapes), types, tuple(scalars), **beside)  # type: ignore[arg-type]


def parts(result: tuple[Cost, ...] | Refusal) -> dict[str, Cost]:
    assert not isinstance(result, Refusal), result
    return {one.part: one for one in result}


# input, weight, bias, stride, padding, dilation, groups, output
FORWARD = {
    "1d": ((2, 3, 9), (4, 3, 3), [2], [1], [1], 1, (2, 4, 5)),
    "2d": ((2, 3, 8, 7), (4, 3, 3, 2), [1, 1], [0, 0], [1, 1], 1, (2, 4, 6, 6)),
    "2d strided and padded": ((1, 3, 8, 8), (2, 3, 3, 3), [2, 2], [1, 1], [1, 1], 1, (1, 2, 4, 4)),
    "2d dilated": ((1, 2, 9, 9), (3, 2, 3, 3), [1, 1], [2, 2], [2, 2], 1, (1, 3, 9, 9)),
    "2d grouped": ((1, 4, 6, 6), (6, 2, 3, 3), [1, 1], [1, 1], [1, 1], 2, (1, 6, 6, 6)),
    "2d depthwise": ((2, 4, 6, 6), (8, 1, 3, 3), [1, 1], [1, 1], [1, 1], 4, (2, 8, 6, 6)),
    "2d, one stride for all": ((1, 2, 6, 6), (3, 2, 3, 3), [2], [1], [1], 1, (1, 3, 3, 3)),
    "3d": (
        (1, 2, 4, 5, 4), (3, 2, 2, 3, 1), [1, 1, 1], [0, 0, 0], [1, 1, 1], 1, (1, 3, 3, 3, 4)
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FORWARD.values(), ids=FORWARD.keys())
@pytest.mark.parametrize("bias", [False, True])
def test_every_direction_is_what_the_loops_count(
    case: tuple[Shape, Shape, list[int], list[int], list[int], int, Shape], bias: bool
) -> None:
    x, weight, stride, padding, dilation, groups, output = case
    rank = len(weight) - 2
    macs = counted(x, weight, output, groups)
    biases = (weight[0],) if bias else ()
    reported = [str(stride), str(padding), str(dilation)]
    sizes = [_count(one) for one in (x, weight, output)]
    forward = parts(
        cost(
            call(
                f"aten::conv{rank}d",
                [x, weight, biases, (), (), (), ()],
                ["", "", "", *reported, str(groups)],
            )
        )
    )["forward"]
    assert forward.flops == 2 * macs
    assert forward.bytes == 4 * (sum(sizes) + (weight[0] if bias else 0))
    backward = parts(
        cost(
            call(
                "aten::convolution_backward",
                [output, x, weight, *[()] * 8],
                [
                    "",
                    "",
                    "",
                    "[0]",
                    *reported,
                    "False",
                    "[0]",
                    str(groups),
                    f"[True, True, {bias}]",
                ],
            )
        )
    )
    assert backward["dgrad"].flops == backward["wgrad"].flops == 2 * macs
    assert backward["dgrad"].bytes == backward["wgrad"].bytes == 4 * sum(sizes)
    assert ("bias_grad" in backward) is bias
    if bias:
        assert backward["bias_grad"].flops == _count(output)
        assert backward["bias_grad"].bytes == 4 * (_count(output) + weight[0])


def _count(shape: Shape) -> int:
    return sum(1 for _ in product(*(range(n) for n in shape)))


TRANSPOSED = {
    "2d": ((1, 3, 4, 4), (3, 2, 3, 3), [2, 2], [1, 1], [1, 1], [1, 1], 1, (1, 2, 8, 8)),
    "2d grouped": ((2, 4, 3, 3), (4, 3, 2, 2), [1, 1], [0, 0], [0, 0], [1, 1], 2, (2, 6, 4, 4)),
    "1d dilated": ((1, 2, 5), (2, 3, 3), [2], [0], [0], [2], 1, (1, 3, 13)),
}


@pytest.mark.parametrize("case", TRANSPOSED.values(), ids=TRANSPOSED.keys())
def test_a_transposed_convolution_lays_the_window_at_each_input(
    case: tuple[Shape, Shape, list[int], list[int], list[int], list[int], int, Shape],
) -> None:
    x, weight, stride, padding, extra, dilation, groups, output = case
    rank = len(weight) - 2
    macs = counted(x, weight, output, groups, transposed=True)
    forward = parts(
        cost(
            call(
                f"aten::conv_transpose{rank}d",
                [x, weight, *[()] * 6],
                ["", "", "", *map(str, (stride, padding, extra, groups, dilation))],
            )
        )
    )["forward"]
    assert forward.kind == f"conv_transpose{rank}d"
    assert forward.flops == 2 * macs
    assert forward.bytes == 4 * sum(_count(one) for one in (x, weight, output))
    reported = ["", "", "", "[0]", *map(str, (stride, padding, dilation)), "True", str(extra)]
    backward = parts(
        cost(
            call(
                "aten::convolution_backward",
                [output, x, weight, *[()] * 8],
                [*reported, str(groups), "[True, True, True]"],
            )
        )
    )
    assert backward["dgrad"].flops == backward["wgrad"].flops == 2 * macs
    assert backward["bias_grad"].flops == _count(output)


def test_every_library_reads_its_own_positions() -> None:
    """Stride 2, padding 1, dilation 1 of all, wherever they stand: output 4 x 4."""
    x, weight = (2, 4, 8, 8), (6, 2, 3, 3)
    s, p, d = "[2, 2]", "[1, 1]", "[1, 1]"
    expected = 2 * counted(x, weight, (2, 6, 4, 4), groups=2)
    scalars = {
        "aten::convolution": ["", "", "", s, p, d, "False", "[0, 0]", "2"],
        "aten::_convolution": ["", "", "", s, p, d, "False", "[0, 0]", "2", "False", "True"],
        "aten::cudnn_convolution": ["", "", p, s, d, "2", "False", "False", "True"],
        "aten::cudnn_convolution_relu": ["", "", "", s, p, d, "2"],
        "aten::miopen_convolution": ["", "", "", p, s, d, "2", "False", "False"],
        "aten::mkldnn_convolution": ["", "", "", p, s, d, "2"],
        "mkldnn::_convolution_pointwise": ["", "", "", p, s, d, "2", "relu", "", ""],
        "aten::_conv_depthwise2d": ["", "", "[3, 3]", "", s, p, d],
        "aten::slow_conv_dilated2d": ["", "", "[3, 3]", "", s, p, d],
        "aten::_slow_conv2d_forward": ["", "", "[3, 3]", "", s, p],
    }
    for name, reported in scalars.items():
        shapes = [x, weight, *[()] * (len(reported) - 2)]
        assert parts(cost(call(name, shapes, reported)))["forward"].flops == expected, name


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("mkldnn::_convolution_pointwise_", ["other", "x", "weight"]),
        ("mkldnn::_convolution_pointwise", ["x", "other", "weight"]),
    ],
)
def test_a_sum_fused_with_a_convolution_is_not_an_operand(name: str, order: list[str]) -> None:
    """As Inductor calls the end of a residual block where weights are frozen."""
    shapes: dict[str, Shape] = {"x": (2, 4, 8, 8), "weight": (6, 4, 3, 3), "other": (2, 6, 4, 4)}
    extents = ["[1, 1]", "[2, 2]", "[1, 1]", "1", "add", "1.", "relu", "", ""]
    given = [*(shapes[one] for one in order), (6,), *[()] * len(extents)]
    result = parts(cost(call(name, given, ["", "", "", "", *extents])))["forward"]
    assert result.flops == 2 * counted(shapes["x"], shapes["weight"], shapes["other"])


def test_a_pointwise_transposed_convolution_of_onednn_has_groups() -> None:
    x, weight, output = (2, 4, 5, 5), (4, 3, 3, 3), (2, 6, 7, 7)
    reported = ["", "", "", "[0, 0]", "[0, 0]", "[1, 1]", "[1, 1]", "2", "none", "", ""]
    name = "mkldnn::_convolution_transpose_pointwise"
    result = parts(cost(call(name, [x, weight, (6,), *[()] * 8], reported)))["forward"]
    assert result.flops == 2 * counted(x, weight, output, 2, transposed=True)
    assert result.bytes == 4 * (_count(x) + _count(weight) + _count(output) + 6)


def test_an_input_without_a_batch_is_one_image() -> None:
    (result,) = parts(
        cost(
            call(
                "aten::conv2d",
                [(3, 5, 5), (2, 3, 3, 3), (), (), (), (), ()],
                ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "1"],
            )
        )
    ).values()
    assert result.flops == 2 * 2 * 9 * 27


def test_where_the_stride_is_missing_the_output_serves() -> None:
    shapes: list[Shape] = [(1, 3, 8, 8), (2, 3, 3, 3), (), (), (), (), ()]
    assert isinstance(cost(call("aten::conv2d", shapes, [])), Refusal)
    known = cost(call("aten::conv2d", shapes, [], output=(1, 2, 4, 4)))
    assert parts(known)["forward"].flops == 2 * 2 * 16 * 27
    unfit = cost(call("aten::conv2d", shapes, [], output=(1, 5, 4, 4)))
    assert unfit == Refusal("weight shape does not match the channels")


def test_only_the_gradients_that_were_wanted_count() -> None:
    shapes: list[Shape] = [(1, 2, 4, 4), (1, 3, 4, 4), (2, 3, 1, 1), *[()] * 8]
    reported = ["", "", "", "[0]", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"]
    first = cost(call("aten::convolution_backward", shapes, [*reported, "[False, True, False]"]))
    assert set(parts(first)) == {"wgrad"}
    nothing = cost(call("aten::convolution_backward", shapes, [*reported, "[False, False, False]"]))
    assert nothing == ()
    old = call("aten::cudnn_convolution_backward", [shapes[1], shapes[0], shapes[2]], [])
    assert isinstance(cost(old), Refusal)
    told_beside = call(
        "aten::cudnn_convolution_backward",
        [shapes[1], shapes[0], shapes[2]],
        [],
        wanted=(True, False),
    )
    assert set(parts(cost(told_beside))) == {"dgrad"}


@pytest.mark.parametrize(
    ("shapes", "reported", "reason"),
    [
        ([(1, 3, 8, 8), (2, 4, 3, 3)], ["[1]", "[0]", "[1]"], "weight shape does not match"),
        ([(1, 3, 2, 2), (2, 3, 5, 5)], ["[1]", "[0]", "[1]"], "kernel larger"),
        ([(1, 3, 8, 8), (2, 3, 3, 3)], ["[0]", "[0]", "[1]"], "invalid stride"),
        ([(1, 3, 8, 8), (2, 3, 3, 3)], ["[1]", "[-1]", "[1]"], "invalid stride"),
        ([(1, 3, 8, 8), (2, 3, 3, 3)], ["[1]", "[0, 0, 0]", "[1]"], "rank mismatch"),
        ([(1, 3, 8, 8), (2, 3, 3, 3)], ["", "[0]", "[1]"], "not recorded"),
        ([(8, 8), (2, 3, 3, 3)], ["[1]", "[0]", "[1]"], "rank 2"),
        ([(1, 3, 8, 8), ()], ["[1]", "[0]", "[1]"], "input 1: no shape"),
    ],
)
def test_odd_shapes_are_refused_with_a_reason(
    shapes: list[Shape], reported: list[str], reason: str
) -> None:
    result = cost(call("aten::conv2d", [*shapes, (), (), (), (), ()], ["", "", "", *reported, "1"]))
    assert isinstance(result, Refusal)
    assert reason in result.reason


def test_tensorflow_has_channels_last_and_filters_first() -> None:
    image, weight, output = (2, 8, 8, 3), (3, 3, 3, 5), (2, 4, 4, 5)
    expected = 2 * counted((2, 3, 8, 8), (5, 3, 3, 3), (2, 5, 4, 4))
    assert isinstance(cost(call("Conv2D", [image, weight], [])), Refusal)
    forward = parts(cost(call("Conv2D", [image, weight], [], output=output)))["forward"]
    assert (forward.flops, forward.kind) == (expected, "conv2d")
    nchw = call("Conv2D", [(2, 3, 8, 8), weight], [], output=(2, 5, 4, 4))
    assert parts(cost(nchw))["forward"].flops == expected
    of_input = call("Conv2DBackpropInput", [(4,), weight, output], [])
    assert parts(cost(of_input))["dgrad"].flops == expected
    assert parts(cost(of_input))["dgrad"].bytes is None
    of_filter = call("Conv2DBackpropFilter", [image, (4,), output], [], output=weight)
    assert parts(cost(of_filter))["wgrad"].flops == expected
    fused = call("_FusedConv2D", [image, weight, (5,)], [], output=output)
    assert parts(cost(fused))["forward"].bytes == (forward.bytes or 0) + 4 * 5
    grouped = call("Conv2D", [(2, 8, 8, 4), (3, 3, 2, 6)], [], output=(2, 8, 8, 6))
    macs = counted((2, 4, 8, 8), (6, 2, 3, 3), (2, 6, 8, 8), groups=2)
    assert parts(cost(grouped))["forward"].flops == 2 * macs


def test_tensorflow_depthwise() -> None:
    image, weight, output = (2, 6, 6, 4), (3, 3, 4, 2), (2, 6, 6, 8)
    expected = 2 * counted((2, 4, 6, 6), (8, 1, 3, 3), (2, 8, 6, 6), groups=4)
    forward = cost(call("DepthwiseConv2dNative", [image, weight], [], output=output))
    of_input = cost(call("DepthwiseConv2dNativeBackpropInput", [(4,), weight, output], []))
    of_filter = cost(
        call("DepthwiseConv2dNativeBackpropFilter", [image, (4,), output], [], output=weight)
    )
    assert parts(forward)["forward"].kind == "depthwise_conv2d"
    assert parts(forward)["forward"].flops == expected
    assert parts(of_input)["dgrad"].flops == expected
    assert parts(of_filter)["wgrad"].flops == expected

"""Layers inside regions of ``torch.compile`` whose generated code is known: built graphs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import polars as pl
import pytest

import traceana
from tests.enrich.test_compiled_regions import Called, Program, of_calls
from tests.support.inductor import Line, convolution, gradient, on_cpu, on_gpu
from tests.support.traces import with_methods
from traceana.analyze.manifest_layers import named_in_order, with_names_of
from traceana.enrich import attribute
from traceana.enrich.layers.generated_code import Graph, graph_of
from traceana.runs.layer_manifest import Input, Layer, Manifest, manifest
from traceana.trace import Trace

EMPTY = "empty_strided_cpu((2, 4), (4, 1), torch.float32)"
WIDE, NARROW = (2, 8, 4, 4), (2, 4, 8, 8)


def conv(width: int, image: Sequence[int], size: int) -> Called:
    return ("aten::convolution", [image, [width, image[1], size, size], []])


def of_conv(forward: Called) -> Called:
    image, weight, _ = forward[1]
    return ("aten::convolution_backward", [[image[0], weight[0], 4, 4], image, weight])


STEM, FIRST, SIDE, SECOND, LAST = (
    conv(4, (2, 3, 8, 8), 5), conv(8, NARROW, 3), conv(8, NARROW, 1), conv(8, WIDE, 3),
    conv(8, WIDE, 7),
)  # fmt: skip
CALLS = [STEM, FIRST, SIDE, SECOND, LAST]
"""A residual block as Inductor orders it: the side branch runs before the second convolution."""


LAYERS: list[tuple[str, str, tuple[int, ...], tuple[int, ...], tuple[int, ...] | None]] = [
    ("stem", "Conv2d", (2, 3, 8, 8), NARROW, (4, 3, 5, 5)),
    ("relu", "ReLU", NARROW, NARROW, None),
    ("block.conv1", "Conv2d", NARROW, WIDE, (8, 4, 3, 3)),
    ("block.bn1", "BatchNorm2d", WIDE, WIDE, None),
    ("block.relu1", "ReLU", WIDE, WIDE, None),
    ("block.conv2", "Conv2d", WIDE, WIDE, (8, 8, 3, 3)),
    ("block.bn2", "BatchNorm2d", WIDE, WIDE, None),
    ("block.side.0", "Conv2d", NARROW, WIDE, (8, 4, 1, 1)),
    ("block.side.1", "BatchNorm2d", WIDE, WIDE, None),
    ("block.relu2", "ReLU", WIDE, WIDE, None),
    ("last", "Conv2d", WIDE, WIDE, (8, 8, 7, 7)),
]
"""Path, type, shapes of input, output and weight, in the order of the model."""


def network(*, alike: bool = False) -> Manifest:
    """Return the manifest of the network; ``alike`` with one shape for all activations."""
    return manifest(
        network="residual",
        framework="PyTorch",
        inputs=(Input(shape=(2, 3, 8, 8), dtype="float32"),),
        layers=tuple(
            Layer(
                path=path,
                type=kind,
                framework_type=kind,
                position=position,
                inputs=(WIDE if alike else image,),
                outputs=(WIDE if alike else result,),
                parameters={} if weight is None else {"weight": weight},
            )
            for position, (path, kind, image, result, weight) in enumerate(LAYERS)
        ),
    )


MANIFEST = network()

NORM, SUM = "native_batch_norm", "add_native_batch_norm"


def forward(prefix: str = "cpp") -> list[Line]:
    return [
        f"buf9 = {EMPTY}",
        convolution("buf0", "x"),
        (f"{prefix}_fused_relu_0", ["buf0"], ["buf9"]),
        convolution("buf1", "buf9"),
        convolution("buf2", "buf9"),
        f"buf3 = {EMPTY}",
        (f"{prefix}_fused_{NORM}_relu_1", ["buf1"], ["buf3"]),
        convolution("buf4", "buf3"),
        f"buf5 = {EMPTY}",
        (f"{prefix}_fused_{SUM}_relu_2", ["buf4", "buf2"], ["buf5"]),
        convolution("buf6", "buf5"),
    ]


def backward(prefix: str = "cpp") -> list[Line]:
    of = "backward_threshold_backward"
    return [
        gradient("buf1", "tangents_1"),
        f"buf2 = {EMPTY}",
        f"buf3 = {EMPTY}",
        (f"{prefix}_fused_{SUM}_{of}_0", ["buf1"], ["buf2", "buf3"]),
        gradient("buf4", "buf2"),
        f"buf5 = {EMPTY}",
        (f"{prefix}_fused_{NORM}_{of}_1", ["buf4"], ["buf5"]),
        gradient("buf6", "buf5"),
        gradient("buf7", "buf3"),
        f"buf8 = {EMPTY}",
        (f"{prefix}_fused_add_threshold_backward_2", ["buf6", "buf7"], ["buf8"]),
        gradient("buf9", "buf8"),
    ]


GRADIENTS = [of_conv(one) for one in (LAST, SECOND, FIRST, SIDE, STEM)]


def graphs(*texts: str) -> frozenset[Graph]:
    found = {graph_of(text.encode()) for text in texts}
    return frozenset(one for one in found if one is not None)


def on_the_host(*texts: str) -> Trace:
    """Return two steps whose kernels have no events."""
    program = Program()
    for _ in range(2):
        program.step(CALLS, GRADIENTS)
    return attribute(program.builder.build(), code=lambda: graphs(*texts))


def paths_of_code(trace: Trace) -> list[str | None]:
    """Return the layers of the code between the calls of the first step, forward and backward."""
    name = trace.tables.names["name"].gather(trace.tables.activities["name_id"]).cast(pl.String)
    own = trace.tables.activities.filter(name.str.contains("^CompiledFunction(?:Backward)?$"))
    return trace.tables.layers["path"].gather(own.sort("start")["layer"]).to_list()[:12]


REGION = "Torch-Compiled Region: 0/0_0"


def test_code_without_events_has_the_names_of_its_kernels() -> None:
    found = paths_of_code(on_the_host(on_cpu(forward()), on_cpu(backward())))
    of_sum = f"fused_{SUM}_relu_2"
    assert found[:6] == [REGION, "fused_relu_0", REGION, f"fused_{NORM}_relu_1", of_sum, REGION]
    assert found[6:] == [REGION, of_sum, f"fused_{NORM}_relu_1", REGION, "fused_relu_0", REGION]
    # Without the code only the order of calls is known.
    assert paths_of_code(on_the_host())[1:5] == ["fused_1", "fused_2", "fused_3", "fused_4"]


def test_what_runs_where_the_forward_graph_has_no_kernel_is_of_the_region() -> None:
    """Also where the backward graph has one there, as for the gradient of a bias."""
    without = [line for line in forward() if "cpp_fused_relu_0" not in line]
    found = paths_of_code(on_the_host(on_cpu(without), on_cpu(backward())))
    assert found[:3] == [REGION, REGION, REGION]
    assert found[10] == "fused_add_threshold_backward_0"


@pytest.mark.parametrize(
    ("kernel", "first"),
    [("cpp_fused_5", REGION), ("cpp_fused_clone_5", "fused_add_copy+fused_clone_0")],
)
def test_counters_beside_changes_of_layout_are_of_the_region(kernel: str, first: str) -> None:
    """Nothing that is computed for them is read by a call."""
    early: list[Line] = [
        f"buf20 = {EMPTY}",
        f"buf21 = {EMPTY}",
        ("cpp_fused_add_copy__4", ["counter"], ["buf20"]),
        (kernel, ["weight"], ["buf21"]),
    ]
    assert paths_of_code(on_the_host(on_cpu([*early, *forward()])))[0] == first


def test_code_computes_the_layers_between_what_it_reads_and_feeds() -> None:
    trace = named_in_order(on_the_host(on_cpu(forward()), on_cpu(backward())), MANIFEST)
    joined = "block.bn2+side.1+relu2"
    found = paths_of_code(trace)
    assert found[:6] == [REGION, "relu", REGION, "block.bn1+relu1", joined, REGION]
    assert found[6:] == [REGION, joined, "block.bn1+relu1", REGION, "relu", REGION]
    assert of_calls(trace, "aten::convolution")[:5] == [
        "stem", "block.conv1", "block.side.0", "block.conv2", "last",
    ]  # fmt: skip


def test_kernels_with_events_compute_those_layers_too() -> None:
    names = [
        "triton_poi_fused_relu_0",
        f"triton_poi_fused_{NORM}_relu_1",
        f"triton_poi_fused_{SUM}_relu_2",
    ]
    of = "backward_threshold_backward"
    back = [
        f"triton_poi_fused_{SUM}_{of}_0",
        f"triton_poi_fused_{NORM}_{of}_1",
        "triton_poi_fused_add_threshold_backward_2",
    ]
    program = Program(on_device=True)
    last, second, first, side, stem = GRADIENTS
    program.step(
        [STEM, (names[0], []), FIRST, SIDE, (names[1], []), SECOND, (names[2], []), LAST],
        [last, (back[0], []), second, (back[1], []), first, side, (back[2], []), stem],
    )
    code = graphs(on_gpu(forward("triton_poi")), on_gpu(backward("triton_poi")))
    trace = named_in_order(attribute(program.builder.build(), code=lambda: code), MANIFEST)
    layers = ["relu", "block.bn1+relu1", "block.bn2+side.1+relu2"]
    assert [of_calls(trace, name) for name in names] == [[one] for one in layers]
    assert [of_calls(trace, name) for name in back] == [[one] for one in reversed(layers)]


@pytest.mark.parametrize(
    "texts",
    [
        [on_cpu(forward()[:-1])],
        [on_cpu([*forward(), convolution("buf7", "buf6")])],
        [on_cpu(forward()), on_cpu([*forward()[:-2], (f"cpp_fused_{SUM}_2", ["buf4"], ["buf5"]),
                                    convolution("buf6", "buf5")])],
    ],
    ids=["fewer calls", "more calls", "two that differ"],
)  # fmt: skip
def test_code_that_may_be_of_another_graph_is_not_used(texts: list[str]) -> None:
    trace = on_the_host(*texts)
    assert trace.tables.graph_calls.is_empty()
    assert paths_of_code(trace) == paths_of_code(on_the_host())


def test_graphs_with_equal_calls_are_told_apart_by_the_shapes_of_their_operands() -> None:
    """A break in a graph leaves several graphs of a convolution each."""

    def of(weight: Sequence[int], kernel: str) -> str:
        return on_cpu(
            [
                f"assert_size_stride(primals_1, {tuple(weight)}, (1, 1, 1, 1))",
                "assert_size_stride(primals_2, (2, s0, 8, 8), (1, 1, 1, 1))",
                convolution("buf0", "primals_2"),
                "assert_size_stride(buf0, (2, 8, 8, 8), (1, 1, 1, 1), 'convolution')",
                f"buf1 = {EMPTY}",
                (kernel, ["buf0"], ["buf1"]),
            ]
        )

    texts = [of(FIRST[1][1], "cpp_fused_relu_0"), of(SIDE[1][1], "cpp_fused_tanh_0")]
    for calls, name in ((FIRST, "fused_relu"), (SIDE, "fused_tanh")):
        program = Program()
        program.step([calls])
        trace = attribute(program.builder.build(), code=partial(graphs, *texts))
        assert paths_of_code(trace)[1] == f"{name}_0"
    # Neither has the shapes of another convolution, and two that differ may have them.
    for step, both in ((STEM, texts), (FIRST, [texts[0], of(FIRST[1][1], "cpp_fused_tanh_0")])):
        program = Program()
        program.step([step])
        assert attribute(
            program.builder.build(), code=partial(graphs, *both)
        ).tables.graph_calls.is_empty()


def test_a_gradient_is_copied_to_another_layout_before_the_code_runs() -> None:
    program = Program()
    copies: list[Called] = [("aten::empty_strided", []), ("aten::copy_", [WIDE, WIDE])]
    program.step(CALLS, [*copies, *GRADIENTS])
    texts = on_cpu(forward()), on_cpu(backward())
    trace = attribute(program.builder.build(), code=lambda: graphs(*texts))
    assert set(trace.tables.graph_calls["backward"]) == {False, True}
    expected = [REGION, REGION, f"fused_{SUM}_relu_2", f"fused_{NORM}_relu_1", REGION]
    assert paths_of_code(trace)[6:11] == expected


def test_equal_shapes_leave_open_which_branch_a_layer_is_of() -> None:
    """The normalization behind the second convolution might be before the side branch."""
    text = on_cpu(
        [
            # A kernel with a normalization before the side branch.
            line if not isinstance(line, tuple) or "_0" not in line[0]
            else (f"cpp_fused_{NORM}_relu_0", line[1], line[2])
            for line in forward()
        ]
    )  # fmt: skip
    trace = named_in_order(on_the_host(text), network(alike=True))
    assert "block.bn2+side.1+relu2" not in trace.tables.layers["path"].to_list()
    assert "block.bn1+relu1" in trace.tables.layers["path"].to_list()


def test_several_graphs_of_a_network_are_the_same_layers() -> None:
    """The graph of an evaluation begins with a convolution of another network."""
    generator = conv(3, (6, 5, 8, 8), 9)
    evaluation = [
        (name, [[6, *image[1:]], *shapes])
        for name, (image, *shapes) in (STEM, FIRST, SIDE, SECOND, LAST)
    ]
    program = Program()
    program.step(CALLS, GRADIENTS, evaluation=[generator, *evaluation])
    trace = named_in_order(attribute(program.builder.build()), MANIFEST)
    names = ["stem", "block.conv1", "block.side.0", "block.conv2", "last"]
    assert of_calls(trace, "aten::convolution") == [*names, "convolution_5", *names]
    assert of_calls(trace, "aten::convolution_backward") == [
        "last", "block.conv2", "block.conv1", "block.side.0", "stem",
    ]  # fmt: skip


def test_an_attention_between_normalizations_is_one_layer() -> None:
    """It has several operators, normalizations have none: a compiler fuses them with others."""
    attention = Layer(
        path="attention",
        type="MultiheadAttention",
        framework_type="MultiheadAttention",
        position=0,
        parameters={"query.weight": (4, 4), "key.weight": (4, 4), "value.weight": (4, 4),
                    "out.weight": (4, 4)},
    )  # fmt: skip
    norm = Layer(path="norm", type="LayerNorm", framework_type="LayerNorm", position=1,
                 parameters={"weight": (4,)})  # fmt: skip
    last = Layer(path="last", type="Linear", framework_type="Linear", position=2,
                 parameters={"weight": (9, 4)})  # fmt: skip
    model = manifest(
        network="encoder",
        framework="PyTorch",
        inputs=(Input(shape=(2, 3, 4), dtype="float32"),),
        layers=(attention, norm, last),
    )
    calls: list[Called] = [
        ("aten::mm", [[6, 4], [4, 12]]),
        ("aten::bmm", [[2, 3, 4], [2, 4, 3]]),
        ("aten::bmm", [[2, 3, 3], [2, 3, 4]]),
        ("aten::addmm", [[4], [6, 4], [4, 4]]),
        ("aten::addmm", [[9], [6, 4], [4, 9]]),
    ]
    empty = "empty_strided_cpu((6, 4), (4, 1), torch.float32)"
    lines: list[Line] = [
        f"buf0 = {empty}",
        "extern_kernels.mm(primals_1, primals_2, out=buf0)",
        f"buf1 = {empty}",
        ("cpp_fused_clone_0", ["buf0"], ["buf1"]),
        f"buf2 = {empty}",
        "extern_kernels.bmm(buf1, buf1, out=buf2)",
        f"buf3 = {empty}",
        ("cpp_fused__softmax_1", ["buf2"], ["buf3"]),
        f"buf4 = {empty}",
        "extern_kernels.bmm(buf3, buf1, out=buf4)",
        f"buf5 = {empty}",
        "extern_kernels.addmm(primals_3, buf4, primals_4, out=buf5)",
        f"buf6 = {empty}",
        ("cpp_fused_native_layer_norm_2", ["buf5"], ["buf6"]),
        f"buf7 = {empty}",
        "extern_kernels.addmm(primals_5, buf6, primals_6, out=buf7)",
    ]
    program = Program()
    program.step(calls)
    # Without kernels, what is between two calls is the region's where the code is known.
    for texts, last_gap in (([on_cpu(lines)], REGION), ([], "attention")):
        trace = attribute(program.builder.build(), code=partial(graphs, *texts))
        trace = named_in_order(trace, model)
        assert of_calls(trace, "aten::mm") == ["attention"]
        assert of_calls(trace, "aten::bmm") == ["attention"] * 2
        assert of_calls(trace, "aten::addmm") == ["attention", "last"]
        assert paths_of_code(trace)[1:5] == ["attention", "attention", last_gap, "norm"]


@pytest.mark.parametrize("known", [False, True], ids=["without code", "with code"])
def test_products_and_convolutions_of_templates_are_layers_with_what_is_fused(known: bool) -> None:
    """As ``max-autotune`` chooses them on a GPU."""
    sizes: list[tuple[str, str, tuple[int, ...] | None]] = [
        ("conv", "Conv2d", (4, 3, 3, 3)),
        ("bn", "BatchNorm2d", None),
        ("act", "ReLU", None),
        ("flat", "Flatten", None),
        ("wide", "Linear", (32, 256)),
        ("gate", "GELU", None),
        ("drop", "Dropout", None),
        ("square", "Linear", (32, 32)),
        ("tanh", "Tanh", None),
        ("last", "Linear", (10, 32)),
    ]
    model = manifest(
        network="classifier",
        framework="PyTorch",
        inputs=(Input(shape=(2, 3, 8, 8), dtype="float32"),),
        layers=tuple(
            Layer(path=path, type=kind, framework_type=kind, position=position,
                  parameters={} if weight is None else {"weight": weight})
            for position, (path, kind, weight) in enumerate(sizes)
        ),
    )  # fmt: skip
    names = [
        "triton_tem_fused__native_batch_norm_legit_no_training_convolution_relu_0",
        "triton_tem_fused_addmm_gelu_1",
        "triton_poi_fused_native_dropout_2",
        "triton_tem_fused_addmm_3",
    ]
    program = Program(on_device=True)
    program.step(
        [
            (names[0], [[2, 3, 8, 8], [4, 3, 3, 3], [4], [2, 4, 8, 8]]),
            (names[1], [[32], [2, 256], [256, 32], [2, 32]]),
            (names[2], []),
            (names[3], [[2, 32], [2, 32], [32, 32], [2, 32]]),
            ("aten::addmm", [[10], [2, 32], [32, 10]]),
        ],
        [
            ("aten::mm", [[2, 10], [10, 32]]),
            ("aten::mm", [[10, 2], [2, 32]]),
            ("triton_poi_fused_gelu_backward_native_dropout_backward_4", []),
            ("triton_tem_fused_mm_5", [[2, 32], [32, 256], [2, 256]]),
            ("triton_tem_fused_mm_6", [[32, 2], [2, 256], [32, 256]]),
            ("triton_poi_fused_native_batch_norm_backward_threshold_backward_7", []),
            ("aten::convolution_backward", [[2, 4, 8, 8], [2, 3, 8, 8], [4, 3, 3, 3]]),
        ],
    )
    texts = [
        on_gpu(
            [
                f"buf0 = {EMPTY}",
                (names[0], ["primals_1", "primals_2"], ["buf0"]),
                f"buf1 = {EMPTY}",
                (names[1], ["primals_3", "buf0", "primals_4"], ["buf1"]),
                f"buf2 = {EMPTY}",
                (names[2], ["buf1"], ["buf2"]),
                f"buf3 = {EMPTY}",
                (names[3], ["primals_5", "buf2", "primals_6"], ["buf3"]),
                f"buf4 = {EMPTY}",
                "extern_kernels.addmm(primals_7, buf3, primals_8, out=buf4)",
            ]
        ),
        on_gpu(
            [
                f"buf0 = {EMPTY}",
                "extern_kernels.mm(tangents_1, primals_8, out=buf0)",
                f"buf1 = {EMPTY}",
                "extern_kernels.mm(tangents_1, buf3, out=buf1)",
                f"buf2 = {EMPTY}",
                ("triton_poi_fused_gelu_backward_native_dropout_backward_4", ["buf0"], ["buf2"]),
                f"buf5 = {EMPTY}",
                ("triton_tem_fused_mm_5", ["buf2", "primals_4"], ["buf5"]),
                f"buf6 = {EMPTY}",
                ("triton_tem_fused_mm_6", ["buf2", "primals_1"], ["buf6"]),
                f"buf7 = {EMPTY}",
                (
                    "triton_poi_fused_native_batch_norm_backward_threshold_backward_7",
                    ["buf5"],
                    ["buf7"],
                ),
                gradient("buf8", "buf7"),
            ]
        ),
    ]
    code = graphs(*texts) if known else frozenset[Graph]()
    trace = attribute(program.builder.build(), code=lambda: code)
    assert trace.tables.graph_calls.is_empty() is not known
    trace = named_in_order(trace, model)
    found = [of_calls(trace, name) for name in (*names, "aten::addmm")]
    assert found == [["conv+bn+act"], ["wide+gate"], ["drop"], ["square"], ["last"]]
    assert of_calls(trace, "aten::convolution_backward") == ["conv+bn+act"]
    assert of_calls(trace, "aten::mm") == ["last", "last"]
    assert of_calls(trace, "triton_tem_fused_mm_5") == ["wide+gate"]
    assert of_calls(trace, "triton_tem_fused_mm_6") == ["wide+gate"]
    of_norm = "triton_poi_fused_native_batch_norm_backward_threshold_backward_7"
    assert of_calls(trace, of_norm) == ["conv+bn+act"]


def test_a_graph_of_another_network_has_no_names() -> None:
    """One convolution less than the manifest has, twice."""
    program = Program()
    program.step(CALLS[:-1], evaluation=[conv(3, (6, 5, 8, 8), 9), *CALLS[:-1]])
    trace = attribute(program.builder.build())
    assert named_in_order(trace, MANIFEST).tables.layers["path"].equals(trace.tables.layers["path"])


def test_a_saved_trace_keeps_the_code(tmp_path: Path) -> None:
    trace = on_the_host(on_cpu(forward()), on_cpu(backward()))
    with_methods(trace).save(tmp_path / "bundle")
    again = traceana.open(tmp_path / "bundle")
    assert again.tables.graph_calls.equals(trace.tables.graph_calls)
    assert again.tables.graph_calls.height == 8 + 8
    named = with_names_of(again, MANIFEST)
    assert paths_of_code(named) == paths_of_code(with_names_of(trace, MANIFEST))

"""Attribution of activities, on small traces with known results."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from tests.support.traces import TraceBuilder
from traceana.analyze.layers import layers
from traceana.enrich import attribute
from traceana.enrich.layers.source import DEEPEST_PATH, LONGEST_PATH
from traceana.trace import Trace


def launch(b: TraceBuilder, correlation: int, at: int, *, thread: int = 1, process: int = 9) -> int:
    """Add a launch of 2 ns and its kernel of 10 ns, a microsecond later."""
    b.row("calls", name="cudaLaunchKernel", process=process, thread=thread, start=at, duration=2,
          correlation=correlation)  # fmt: skip
    return b.kernel(f"k{correlation}", at + 1000, 10, correlation=correlation, process=process)


def op(b: TraceBuilder, name: str, start: int, end: int, *, thread: int = 1, **columns: Any) -> int:
    """Add an operator of process 9."""
    return b.row("ops", name=name, process=9, thread=thread, start=start, duration=end - start,
                 **columns)  # fmt: skip


def annotate(
    b: TraceBuilder, text: str, start: int, end: int, kind: str = "annotation", thread: int = 1
) -> int:
    """Add a range of process 9."""
    return b.row("ranges", text=text, kind=kind, process=9, thread=thread, start=start,
                 duration=end - start)  # fmt: skip


def paths(trace: Trace) -> list[str | None]:
    """Return the layer path of every activity."""
    return trace.tables.layers["path"].gather(trace.tables.activities["layer"]).to_list()


def test_a_kernel_belongs_to_the_innermost_operator_of_its_own_thread() -> None:
    b = TraceBuilder()
    outer = op(b, "aten::conv2d", 0, 100)
    inner = op(b, "aten::cudnn_convolution", 10, 60)
    op(b, "aten::zeros", 0, 100, thread=2)  # runs at the same time elsewhere
    launch(b, 1, 20)
    launch(b, 2, 60)  # the inner operator has just ended
    launch(b, 3, 150)
    trace = attribute(b.build())
    assert trace.tables.activities["op"].to_list() == [inner, outer, None]
    assert trace.tables.ops["parent"].to_list() == [None, outer, None]
    assert trace.tables.ops["depth"].to_list() == [0, 1, 0]


@pytest.mark.parametrize(
    ("calls", "count"),
    [
        (["cudaLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch", "cudaMemcpyAsync"], 3),
        (["cudaDeviceSynchronize", "cudaMalloc"], 0),
        # Captured launches run with the graph, which may have run outside of the recording.
        (["cudaStreamBeginCapture", "cudaLaunchKernel", "cudaStreamEndCapture"], 0),
    ],
)
def test_launches_without_any_device_work_are_a_problem(calls: list[str], count: int) -> None:
    """A GPU that was not recorded leaves the times of the host, which launched and returned."""
    b = TraceBuilder()
    for n, call in enumerate(calls):
        op(b, "aten::mm", 100 * n, 100 * n + 50)
        b.row("calls", name=call, process=9, thread=1, start=100 * n + 10, duration=5,
              correlation=n)  # fmt: skip
    found = attribute(b.build()).tables.ledger.filter(pl.col("reason") == "no_device_work")
    assert found["count"].sum() == count
    b.kernel("k", 60, 10, correlation=0, process=9)
    assert "no_device_work" not in attribute(b.build()).tables.ledger["reason"]


def test_correlation_ids_are_per_process_and_no_external_ids() -> None:
    b = TraceBuilder()
    first = launch(b, 7, 0, process=1)
    second = launch(b, 7, 50, process=2)
    b.kernel("external only", 5, 5, external=7, process=1, correlation=99)
    trace = attribute(b.build())
    calls = trace.tables.activities["call"].to_list()
    assert trace.tables.calls["process"].gather(calls[:2]).to_list() == [1, 2]
    assert calls[2] is None
    assert (first, second) == (0, 1)


def test_device_work_without_its_launch_is_kept_and_counted() -> None:
    b = TraceBuilder()
    launch(b, 1, 0)
    b.kernel("before", 10, 40, correlation=76, process=9)
    b.kernel("k", 100, 40, correlation=1, process=9)
    b.kernel("orphan", 500, 40, correlation=77, process=9)
    b.sync(900, 5, process=9)
    trace = attribute(b.build())
    assert trace.tables.ledger.select("reason", "severity", "kept", "count", "time_ns").rows() == [
        ("launched_before", "note", True, 1, 40), ("no_launch", "problem", True, 1, 40),
    ]  # fmt: skip
    assert trace.tables.activities.height == 5
    assert paths(trace)[1] == "(launched before capture)"


def test_many_kernels_of_one_graph_launch() -> None:
    b = TraceBuilder()
    step = annotate(b, "replay", 0, 50)
    b.row("calls", name="cudaGraphLaunch", process=9, thread=1, start=10, duration=5, correlation=4)
    for node in range(3):
        b.kernel("k", 100 + node, 1, correlation=4, process=9, graph_node=node)
    trace = attribute(b.build())
    assert trace.tables.activities["call"].to_list() == [0, 0, 0]
    assert trace.tables.activities["range"].to_list() == [step] * 3


def test_layers_of_one_graph_launch_are_in_the_order_of_their_kernels() -> None:
    b = TraceBuilder()
    b.row("calls", name="cudaGraphLaunch", process=9, thread=1, start=10, duration=5, correlation=4)
    for start, module in ((30, "block.wq"), (40, "block.sdpa"), (20, "embedding")):
        scope = f"nn.Module: {module}"
        b.kernel("k", start, 5, process=9, correlation=4, scope=scope)
    assert attribute(b.build()).tables.layers["path"].to_list() == [
        "embedding",
        "block.wq",
        "block.sdpa",
    ]


def test_backward_by_sequence_number_takes_the_last_forward_operator_that_saw_it() -> None:
    b = TraceBuilder()
    op(b, "aten::view", 0, 5, sequence=3)  # saw 3, but conv2d created the node
    op(b, "aten::conv2d", 10, 30, sequence=3)
    op(b, "aten::relu", 40, 50, sequence=4)
    op(b, "autograd::engine::evaluate_function: ReluBackward0", 100, 120, thread=2, sequence=4)
    op(
        b,
        "autograd::engine::evaluate_function: ConvolutionBackward0",
        130,
        160,
        thread=2,
        sequence=3,
    )
    op(b, "aten::convolution_backward", 135, 155, thread=2)
    launch(b, 1, 12)
    launch(b, 2, 140, thread=2)
    launch(b, 3, 110, thread=2)
    trace = attribute(b.build())
    assert paths(trace) == ["conv2d_0", "conv2d_0", "relu_0"]
    assert trace.tables.activities["direction"].to_list() == ["forward", "backward", "backward"]


def test_the_call_of_a_node_without_number_is_of_the_layer_of_its_node() -> None:
    """As PyTorch writes it where a hook's range began in the call and ended behind it."""
    b = TraceBuilder()
    op(b, "aten::conv2d", 10, 30, sequence=3)
    op(b, "autograd::engine::evaluate_function: ConvolutionBackward0", 130, 160, thread=2)
    op(b, "ConvolutionBackward0", 140, 155, thread=2, sequence=3)
    launch(b, 1, 12)
    launch(b, 2, 132, thread=2)
    launch(b, 3, 145, thread=2)
    trace = attribute(b.build())
    assert paths(trace) == ["conv2d_0"] * 3


def test_the_gradient_of_a_view_is_of_the_operator_that_changed_it() -> None:
    """No operator has the number of CopySlices: in place, one operator creates two nodes."""
    b = TraceBuilder()
    op(b, "aten::conv2d", 10, 30, sequence=3)
    op(b, "aten::mul_", 40, 50, sequence=5)
    op(b, "aten::relu", 60, 70, sequence=8)
    evaluates = "autograd::engine::evaluate_function: torch::autograd::CopySlices"
    op(b, evaluates, 100, 160, thread=2, sequence=6)
    op(b, "torch::autograd::CopySlices", 105, 155, thread=2, sequence=6)
    op(b, "aten::copy_", 110, 115, thread=2)
    op(b, "MulBackward0", 120, 150, thread=2, sequence=5)
    op(b, "aten::mul", 125, 145, thread=2)
    launch(b, 1, 42)
    launch(b, 2, 112, thread=2)
    launch(b, 3, 130, thread=2)
    assert paths(attribute(b.build())) == ["mul__0"] * 3


@pytest.mark.parametrize(("after", "path"), [(True, "mul__0"), (False, "(outside all layers)")])
def test_the_node_of_a_changed_view_is_of_the_operator_that_changed_it(
    after: bool, path: str
) -> None:
    """Without a later operator the number may be one of a forward pass before the recording."""
    b = TraceBuilder()
    op(b, "aten::conv2d", 10, 30, sequence=3)
    op(b, "aten::mul_", 40, 50, sequence=5)
    if after:
        op(b, "aten::relu", 60, 70, sequence=8)
    op(b, "autograd::engine::evaluate_function: AsStridedBackward0", 100, 120, thread=2,
       sequence=7)  # fmt: skip
    op(b, "AsStridedBackward0", 105, 115, thread=2, sequence=7)
    # Any other node without an operator of its number stays apart.
    op(b, "OtherBackward0", 130, 140, thread=2, sequence=7)
    launch(b, 1, 42)
    launch(b, 2, 110, thread=2)
    launch(b, 3, 135, thread=2)
    assert paths(attribute(b.build())) == ["mul__0", path, "(outside all layers)"]


def test_a_sequence_number_that_comes_again_is_the_latest_before() -> None:
    b = TraceBuilder()
    for i, base in enumerate((0, 1000)):
        annotate(b, f"ProfilerStep#{i}", base, base + 900, "step")
        op(b, f"aten::conv{i + 1}d", base + 10, base + 30, sequence=3)
        op(b, "ConvBackward0", base + 100, base + 120, thread=2, sequence=3)
        launch(b, i + 1, base + 110, thread=2)
    trace = attribute(b.build())
    assert paths(trace) == ["conv1d_0", "conv2d_0"]
    assert trace.tables.activities["step"].to_list() == [0, 1]


def test_the_node_of_module_hooks_is_no_layer() -> None:
    b = TraceBuilder()
    op(b, "BackwardHookFunction", 0, 5, sequence=2)
    op(b, "aten::conv2d", 10, 30, sequence=3)
    node = "autograd::engine::evaluate_function: BackwardHookFunctionBackward"
    op(b, node, 100, 120, thread=2, sequence=2)
    for correlation, (time, thread) in enumerate([(1, 1), (12, 1), (110, 2)]):
        launch(b, correlation, time, thread=thread)
    trace = attribute(b.build())
    assert trace.tables.activities["direction"].to_list() == ["forward", "forward", "backward"]
    rows = layers(trace).frame.select("layer", "type", "role", "calls").rows()
    assert rows == [("conv2d_0", "conv2d", "layer", 1), ("(hooks)", None, "hooks", 2)]


def test_flows_decide_before_numbers() -> None:
    b = TraceBuilder()
    op(b, "aten::conv2d", 10, 30, sequence=3)
    op(b, "aten::linear", 40, 60)
    op(b, "SomethingBackward0", 100, 120, thread=2, sequence=3)
    b.row("links", kind="fwdbwd", from_process=9, from_thread=1, from_time=40, to_process=9,
          to_thread=2, to_time=100)  # fmt: skip
    launch(b, 1, 110, thread=2)
    assert paths(attribute(b.build())) == ["linear_0"]


@pytest.mark.parametrize("of_file", [1, -1])
def test_a_shared_module_has_the_path_of_its_first_call(of_file: int) -> None:
    """The rotary embedding of a language model, whatever the order of the events in the file."""
    b = TraceBuilder()
    calls = [
        ("nn.Module: Net_0", 0, 1_000),
        *((f"nn.Module: Attention_{n}", 100 * n, 100 * n + 90) for n in range(1, 4)),
        *(("nn.Module: Rotary_0", 100 * n + 10, 100 * n + 20) for n in range(1, 4)),
    ]
    for text, start, end in calls[::of_file]:
        annotate(b, text, start, end, "module")
    for n in range(1, 4):
        op(b, "aten::mul", 100 * n + 12, 100 * n + 18)
    trace = attribute(b.build())
    path = trace.tables.layers["path"].gather(trace.tables.ops["layer"])
    assert path.to_list() == ["Net_0.Attention_1.Rotary_0"] * 3


def test_modules_give_the_path_also_where_it_is_recomputed() -> None:
    b = TraceBuilder()
    annotate(b, "nn.Module: Net_0", 0, 100, "module")
    annotate(b, "nn.Module: Conv2d_1", 10, 40, "module")
    op(b, "aten::conv2d", 15, 35)
    launch(b, 1, 20)
    # The checkpoint runs the module again, on another thread and not under the model.
    annotate(b, "nn.Module: Conv2d_1", 200, 240, "module", thread=2)
    op(b, "autograd::engine::evaluate_function: CheckpointBackward", 190, 300, thread=2)
    op(b, "aten::conv2d", 205, 230, thread=2)
    launch(b, 2, 210, thread=2)
    trace = attribute(b.build())
    assert paths(trace) == ["Net_0.Conv2d_1"] * 2
    layers = trace.tables.layers.select("path", "type", "role", "parent").rows()
    assert layers == [("Net_0", "Net", "layer", None), ("Net_0.Conv2d_1", "Conv2d", "layer", 0)]


def test_named_ranges_are_layers_unless_they_hold_many() -> None:
    b = TraceBuilder()
    annotate(b, "iteration 0", 0, 1000)
    annotate(b, "forward", 0, 400)
    annotate(b, "forward: conv1", 10, 100)
    op(b, "aten::conv2d", 20, 90)
    op(b, "aten::convolution", 25, 85)  # the same convolution, one level down
    launch(b, 1, 30)
    op(b, "aten::linear", 200, 220)
    op(b, "aten::linear", 230, 250)
    launch(b, 2, 235)
    trace = attribute(b.build())
    assert paths(trace) == ["conv1", "linear_1"]
    assert trace.tables.steps["number"].to_list() == [0]


@pytest.mark.parametrize("kind", ["annotation", "nvtx_start"])
def test_ranges_around_several_layers_are_their_path(kind: str) -> None:
    """The ranges of a transformer's block keep their time, with everything in them."""
    b = TraceBuilder()
    for at, (text, *inside) in enumerate(
        [
            ("block0", "attention: linear linear matmul", "mlp: linear relu linear"),
            ("block1", "attention: linear linear matmul", "mlp: linear relu linear"),
            ("head: linear",),
        ]
    ):
        begin = 1000 * at
        around, _, alone = text.partition(": ")
        annotate(b, around, begin, begin + 900, kind)
        pieces = [f": {alone}"] if alone else inside
        for number, piece in enumerate(pieces):
            within, _, names = piece.partition(": ")
            start = begin + 400 * number + 10
            if within:
                annotate(b, within, start, start + 390, kind)
            for place, name in enumerate(names.split()):
                op(b, f"aten::{name}", start + 100 * place + 5, start + 100 * place + 80)
                launch(b, len(b._rows["ops"]), start + 100 * place + 10)
    trace = attribute(b.build())
    attention = ["linear_0", "linear_1", "matmul_0"]
    mlp = ["linear_0", "relu_0", "linear_1"]
    assert paths(trace) == [
        *(
            f"block{n}.{part}.{name}"
            for n in range(2)
            for part, names in (("attention", attention), ("mlp", mlp))
            for name in names
        ),
        "head",
    ]
    by_block = layers(trace, depth=1).frame.select("layer", "time_ns").rows()
    assert by_block == [("block0", 60), ("block1", 60), ("head", 10)]


def test_one_range_around_all_layers_and_those_of_libraries_are_no_path() -> None:
    b = TraceBuilder()
    annotate(b, "generate", 0, 1000)
    annotate(b, "DistributedDataParallel.forward", 5, 990)
    b.row("ranges", text="Sum", kind="nvtx", domain="CCCL", process=9, thread=1, start=100,
          duration=100)  # fmt: skip
    for place, name in enumerate(("linear", "sum", "linear")):
        op(b, f"aten::{name}", 100 * place + 10, 100 * place + 90)
        launch(b, place, 100 * place + 20)
    assert paths(attribute(b.build())) == ["linear_0", "sum_0", "linear_1"]


def test_nvtx_ranges_alone_give_layers_and_directions() -> None:
    b = TraceBuilder()
    annotate(b, "forward", 0, 100, "nvtx")
    annotate(b, "forward: conv1", 10, 50, "nvtx")
    annotate(b, "backward", 200, 400, "nvtx")
    annotate(b, "backward: conv1", 210, 300, "nvtx")
    annotate(b, "Optimizer.step", 500, 600, "nvtx")
    for correlation, at in enumerate((20, 250, 550, 900)):
        launch(b, correlation, at)
    trace = attribute(b.build())
    assert paths(trace) == ["conv1", "conv1", "Optimizer.step", "(outside all layers)"]
    assert trace.tables.activities["direction"].to_list() == [
        "forward",
        "backward",
        "optimizer",
        None,
    ]


def test_emit_nvtx_ranges_become_operators() -> None:
    b = TraceBuilder()
    annotate(
        b, "aten::conv2d, seq = 3, op_id = 17, sizes = [[64, 3, 8, 8], [], [2]]", 0, 100, "nvtx"
    )
    annotate(b, "aten::cudnn_convolution, op_id = 18", 10, 50, "nvtx")
    annotate(b, "{'mod': 'torch', 'op': 'avg_pool1d', 'args': [{'name': '', 'type': 'tensor', "
             "'shape': (7,), 'dtype': 'float32'}, {'name': '', 'type': 'tuple', 'value': (1, 2)}, "
             "{'name': '', 'type': 'NoneType', 'value': None}, {'name': '', 'type': 'int', "
             "'value': 3}, {'name': 'out', 'type': 'bool', 'value': True}]}",
             200, 300, "nvtx")  # fmt: skip
    annotate(b, "{'mod': 'torch', 'op': '__getattr__', 'args': []}", 0, 400, "nvtx")
    launch(b, 1, 20)
    launch(b, 2, 250)
    trace = attribute(b.build())
    ops = trace.tables.ops.select(pl.col("name").cast(pl.String), "sequence", "input_shapes").rows()
    assert ops == [
        ("aten::conv2d", 3, "[[64, 3, 8, 8], [], [2]]"),
        ("aten::cudnn_convolution", None, None),
        ("torch.avg_pool1d", None, "[[7], [], [], []]"),
    ]
    reported = trace.tables.ops.select("input_types", "inputs").row(2)
    assert reported == ('["float32", "", "", ""]', '["", "[1, 2]", "", "3"]')
    assert trace.tables.activities["op"].to_list() == [1, 2]
    assert paths(trace) == ["conv2d_0", "avg_pool1d_0"]


def test_collectives_inside_backward_are_rows_of_their_own() -> None:
    b = TraceBuilder()
    op(b, "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 0, 100)
    op(b, "c10d::allreduce_", 10, 50)
    launch(b, 1, 20)
    launch(b, 2, 70)
    trace = attribute(b.build())
    assert trace.tables.layers.select("path", "role").rows() == [
        ("c10d::allreduce_", "collective"),
        ("(outside all layers)", "unattributed"),
    ]


def test_positions_start_anew_with_each_step() -> None:
    b = TraceBuilder()
    for i in range(3):
        base = 1000 * i
        annotate(b, f"ProfilerStep#{i + 5}", base, base + 1000, "step")
        for j in range(2):
            op(b, "aten::conv2d", base + 100 * j, base + 100 * j + 50)
            launch(b, 10 * i + j, base + 100 * j + 10)
    trace = attribute(b.build())
    assert paths(trace) == ["conv2d_0", "conv2d_1"] * 3
    assert trace.tables.steps["number"].to_list() == [5, 6, 7]
    assert trace.tables.layers["type"].to_list() == ["conv2d", "conv2d"]


@pytest.mark.parametrize(
    ("inputs", "copies", "path"),
    [(5, False, "to_0"), (8, False, "to"), (None, False, "to_0"), (None, True, "to")],
)
def test_a_change_of_the_type_alone_is_a_layer(inputs: int | None, copies: bool, path: str) -> None:
    """``to(dtype)`` has five inputs, with a device it has eight and loads data.

    Without recorded inputs it loads data if it calls for a copy.
    """
    b = TraceBuilder()
    if copies:
        b.row("calls", name="cudaMemcpyAsync", process=9, thread=1, start=5, duration=2)
    shapes = None if inputs is None else f"[[4, 8]{', []' * (inputs - 1)}]"
    b.row("ops", name="aten::to", process=9, thread=1, start=0, duration=50, input_shapes=shapes)
    launch(b, 1, 10)
    trace = attribute(b.build())
    assert paths(trace) == [path]
    assert trace.tables.layers["role"].to_list() == ["data" if path == "to" else "layer"]


def test_without_marks_a_step_ends_with_the_optimizers() -> None:
    b = TraceBuilder()
    for i in range(3):
        annotate(b, "Optimizer.step#SGD.step", 1000 * i + 800, 1000 * i + 900)
        op(b, "aten::relu", 1000 * i + 10, 1000 * i + 20)
        launch(b, i, 1000 * i + 15)
    trace = attribute(b.build())
    assert trace.tables.steps.select("start", "duration", "source").rows() == [
        (0, 900, "Optimizer.step"), (900, 1000, "Optimizer.step"), (1900, 1000, "Optimizer.step"),
    ]  # fmt: skip
    assert trace.tables.activities["step"].to_list() == [0, 1, 2]


@pytest.mark.parametrize("kind", ["nvtx", "annotation"])
def test_a_range_that_was_never_ended_is_a_problem_and_no_layer(kind: str) -> None:
    b = TraceBuilder()
    annotate(b, "training", 0, 10_000, kind)
    for number in range(3):
        at = 1000 + 1000 * number
        annotate(b, f"ProfilerStep#{number}", at, at + 900, "step")
        annotate(b, "conv1", at + 100, at + 400, kind)
        launch(b, 2 * number, at + 200)
        launch(b, 2 * number + 1, at + 500)  # in no layer
    annotate(b, "forgotten", 1050, 9000, kind)
    trace = attribute(b.build())
    assert paths(trace) == ["conv1", "(outside all layers)"] * 3
    (entry,) = trace.tables.ledger.filter(pl.col("reason") == "unclosed").to_dicts()
    assert (entry["severity"], entry["count"], entry["detail"]) == ("problem", 1, "forgotten")


@pytest.mark.parametrize("kind", ["nvtx", "annotation"])
def test_ranges_nest_to_any_depth(kind: str) -> None:
    depth = 42
    b = TraceBuilder()
    for i in range(depth):
        annotate(b, f"depth{i}", 100 * i, 100 * (2 * depth - i), kind)
        launch(b, i, 100 * i + 5)
    found = paths(attribute(b.build()))
    assert [str(path).rpartition(".")[2] for path in found] == [f"depth{i}" for i in range(depth)]


def test_ranges_on_a_cpu_nest_to_any_depth() -> None:
    depth = 42
    b = TraceBuilder()
    for i in range(depth):
        annotate(b, f"depth{i}", 100 * i, 100 * (2 * depth - i), "nvtx")
    trace = attribute(b.build())
    time = trace.tables.activities.group_by("range").agg(pl.col("duration").sum()).sort("range")
    assert time["duration"].to_list() == [200] * (depth - 1) + [200]
    first = trace.tables.activities.sort("start").head(depth)
    deepest = trace.tables.layers["path"].gather(first["layer"])
    assert [str(path).count(".") for path in deepest] == list(range(depth))


def test_thousands_of_nested_ranges_have_paths_of_bounded_length() -> None:
    depth = 3000
    b = TraceBuilder()
    for i in range(depth):
        annotate(b, f"depth{i}", 100 * i, 100 * (2 * depth - i), "nvtx")
    launch(b, 1, 100 * depth)
    trace = attribute(b.build())
    (path,) = paths(trace)
    assert str(path).count(".") == DEEPEST_PATH - 1
    (entry,) = trace.tables.ledger.filter(pl.col("reason") == "deep_range").to_dicts()
    assert (entry["severity"], entry["count"]) == ("note", depth - DEEPEST_PATH)


def test_the_paths_of_nested_long_names_are_cut() -> None:
    depth, long = 60, 1000
    b = TraceBuilder()
    for i in range(depth):
        annotate(b, f"{i:03}" + "x" * long, 100 * i, 100 * (2 * depth - i), "nvtx")
    launch(b, 1, 100 * depth)
    trace = attribute(b.build())
    assert max(map(len, trace.tables.layers["path"])) <= LONGEST_PATH
    (path,) = paths(trace)
    within = str(path).count(".") + 1
    (entry,) = trace.tables.ledger.filter(pl.col("reason") == "deep_range").to_dicts()
    assert (entry["severity"], entry["count"]) == ("note", depth - within)


def test_a_trace_of_nothing() -> None:
    trace = attribute(TraceBuilder().build())
    assert trace.tables.activities.is_empty()
    assert trace.tables.layers.is_empty()
    assert trace.tables.steps.is_empty()


def test_the_layers_of_a_tensorrt_engine_are_its_ranges() -> None:
    b = TraceBuilder()
    for at in (0, 1000):
        ranges = (
            ("ExecutionContext::enqueue", 0, 500),
            ("conv1 + relu1", 10, 200),
            ("fc", 210, 400),
        )
        for text, start, end in ranges:
            b.row("ranges", text=text, kind="nvtx", domain="TensorRT", process=9, thread=1,
                  start=at + start, duration=end - start)  # fmt: skip
        launch(b, at + 1, at + 50)
        launch(b, at + 2, at + 300)
    found = paths(attribute(b.build()))
    assert found == ["ExecutionContext::enqueue.conv1 + relu1", "ExecutionContext::enqueue.fc"] * 2


def test_the_node_of_a_cpp_function_belongs_to_the_operator_of_its_name() -> None:
    """As FBGEMM's embedding bags are recorded: the lookup itself has no sequence number."""
    b = TraceBuilder()
    lookup = "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function"
    node = "torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>"
    for number in range(2):
        at = 1000 * number
        op(b, "fbgemm::bounds_check_indices", at + 10, at + 90)
        op(b, "aten::zero_", at + 20, at + 80, sequence=number)
        launch(b, 4 * number, at + 30)
        op(b, lookup, at + 100, at + 190)
        launch(b, 4 * number + 1, at + 110)
    for number in (1, 0):
        at = 5000 - 1000 * number
        engine = f"autograd::engine::evaluate_function: {node}"
        op(b, engine, at, at + 300, thread=2, sequence=number)
        op(b, node, at + 10, at + 290, thread=2, sequence=number)
        launch(b, 4 * number + 2, at + 20, thread=2)
    trace = attribute(b.build())
    checks, lookups = ([f"{name}_{n}" for n in range(2)] for name in
                       ("fbgemm::bounds_check_indices", lookup))  # fmt: skip
    assert paths(trace) == [
        *(one for pair in zip(checks, lookups, strict=True) for one in pair),
        lookups[1],
        lookups[0],
    ]
    assert trace.tables.activities["direction"].to_list() == ["forward"] * 4 + ["backward"] * 2


def test_operators_that_a_checkpoint_aborts_do_no_work() -> None:
    """It recomputes a linear layer until the inputs of its product are saved."""
    b = TraceBuilder()
    op(b, "aten::linear", 0, 100)
    product = op(b, "aten::addmm", 10, 90)
    op(b, "aten::mul", 20, 80)
    op(b, "autograd::engine::evaluate_function: ReluBackward0", 200, 500, thread=2)
    op(b, "ReluBackward0", 210, 490, thread=2)
    for depth, name in enumerate(("aten::linear", "aten::addmm", "aten::detach")):
        op(b, name, 220 + 10 * depth, 320 - 10 * depth, thread=2)
    gradient = op(b, "aten::threshold_backward", 330, 480, thread=2)
    activities = attribute(b.build()).tables.activities
    assert activities.select("op", "duration").rows() == [(product, 100), (gradient, 300)]


def test_the_batch_that_an_iterator_fetches_is_data() -> None:
    """TensorFlow's IteratorGetNext copies its batch to the device; it is in no layer."""
    b = TraceBuilder(framework="TensorFlow")
    op(b, "IteratorGetNext", 0, 50, scope="IteratorGetNext")
    launch(b, 1, 10)
    op(b, "Conv2D", 100, 150, scope="net/conv/Conv2D")
    launch(b, 2, 110)
    b.copy("HtoD", 200, 20, process=9, correlation=1)
    b.kernel("implicit_convolve_sgemm", 220, 50, process=9, correlation=2)
    tables = attribute(b.build()).tables
    layers = tables.layers.with_row_index("layer")
    rows = tables.activities.select("start", "layer", "direction").join(layers, on="layer")
    assert rows.filter(start=200).select("path", "role", "direction").rows() == [
        ("IteratorGetNext", "data", None)
    ]
    assert rows.filter(start=220).select("path", "role").rows() == [("net.conv", "layer")]

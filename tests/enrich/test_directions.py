"""Directions: forward, backward and optimizer, which add up to the time."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import traceana
from tests.enrich.test_attribution import annotate, launch, op, paths
from tests.support.manifest import TRACES
from tests.support.opened import opened
from tests.support.traces import TraceBuilder
from traceana.analyze.flops import flops
from traceana.analyze.layers import layers
from traceana.enrich import attribute, with_classes
from traceana.trace import Trace

TIMES = ("forward_ns", "backward_ns", "optimizer_ns", "other_ns")


def directions(trace: Trace) -> list[str | None]:
    """Return the direction of every activity."""
    return trace.tables.activities["direction"].to_list()


def nvtx(b: TraceBuilder, text: str, start: int, end: int, thread: int = 1) -> None:
    """Add an operator as ``emit_nvtx`` writes it."""
    annotate(b, text, start, end, "nvtx", thread)


@pytest.mark.parametrize("node", ["MmBackward, seq = 7", "MmBackward, stashed seq=7"])
def test_operators_in_and_between_nodes_of_emit_nvtx_are_of_the_nodes(node: str) -> None:
    """Those inside have sequence numbers of the engine's thread, which begin at 0."""
    b = TraceBuilder()
    nvtx(b, "relu, seq = 0", 0, 10)
    nvtx(b, "torch.nn.functional.linear, seq = 7", 20, 60)
    nvtx(b, "mm, seq = 7", 30, 50)
    nvtx(b, node, 100, 150, thread=2)
    nvtx(b, "mm, seq = 0", 110, 140, thread=2)
    nvtx(b, "sum, seq = 0", 160, 170, thread=2)  # the engine reduces the gradient of a bias
    nvtx(b, "torch::autograd::AccumulateGrad", 180, 199, thread=2)
    nvtx(b, "add_, seq = 0", 185, 195, thread=2)
    nvtx(b, "ReluBackward0, seq = 0", 200, 220, thread=2)
    for correlation, (at, thread) in enumerate([(35, 1), (120, 2), (165, 2), (190, 2), (210, 2)]):
        launch(b, correlation, at, thread=thread)
    trace = attribute(b.build())
    assert paths(trace) == ["linear_0"] * 4 + ["relu_0"]
    assert directions(trace) == ["forward"] + ["backward"] * 4


def test_gradients_are_accumulated_for_the_layer_of_the_node_before() -> None:
    b = TraceBuilder()
    evaluates = "autograd::engine::evaluate_function: "
    op(b, "aten::conv2d", 0, 10, sequence=1)
    op(b, "aten::linear", 20, 30, sequence=2)
    op(b, f"{evaluates}torch::autograd::AccumulateGrad", 40, 50)  # its node was not recorded
    op(b, f"{evaluates}AddmmBackward0", 100, 110, sequence=2)
    for start in (120, 140):  # of the bias, of the weight
        op(b, f"{evaluates}torch::autograd::AccumulateGrad", start, start + 10)
        op(b, "torch::autograd::AccumulateGrad", start + 2, start + 9)
    op(b, f"{evaluates}ConvolutionBackward0", 200, 210, sequence=1)
    op(b, f"{evaluates}torch::autograd::AccumulateGrad", 220, 230)
    for correlation, at in enumerate((45, 105, 125, 145, 205, 225)):
        launch(b, correlation, at)
    trace = attribute(b.build())
    assert paths(trace) == ["(outside all layers)", *["linear_0"] * 3, *["conv2d_0"] * 2]
    assert directions(trace) == ["backward"] * 6
    result = layers(trace)
    assert any("backward kernels not linked to layers: 16.7 %" in note for note in result.notes)


def test_a_gradient_that_is_accumulated_before_the_first_recorded_node_is_of_no_layer() -> None:
    b = TraceBuilder()
    op(b, "torch::autograd::AccumulateGrad", 0, 10)
    op(b, "aten::linear", 20, 30, sequence=2)
    op(b, "AddmmBackward0", 40, 50, sequence=2)
    for correlation, at in enumerate((5, 25, 45)):
        launch(b, correlation, at)
    assert paths(attribute(b.build())) == ["(outside all layers)", "linear_0", "linear_0"]


def test_buckets_that_the_engine_copies_behind_the_last_node_are_of_no_layer() -> None:
    b = TraceBuilder()
    op(b, "aten::conv2d", 0, 10, sequence=1)
    op(b, "autograd::engine::evaluate_function: ConvolutionBackward0", 100, 150, thread=2,
       sequence=1)  # fmt: skip
    op(b, "torch.distributed.ddp.reducer::copy_bucket_to_grad", 200, 220, thread=2)
    op(b, "aten::copy_", 205, 215, thread=2)
    for correlation, at in enumerate((110, 210)):
        launch(b, correlation, at, thread=2)
    frame = layers(attribute(b.build())).frame
    assert frame.select("layer", "backward_ns").rows() == [("conv2d_0", 10), ("(collective)", 10)]


def _without_numbers(forward: list[str], backward: list[str], steps: int = 2) -> Trace:
    b = TraceBuilder()
    correlation = 0
    for i in range(steps):
        at = 10_000 * i
        annotate(b, f"ProfilerStep#{i}", at, at + 9_000, "step")
        for thread, names in ((1, forward), (2, backward)):
            for name in names:
                at += 100
                op(b, name, at, at + 90, thread=thread)
                launch(b, correlation, at + 10, thread=thread)
                correlation += 1
    return attribute(b.build())


@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        (["aten::conv2d", "aten::relu_", "aten::conv2d"],
         ["Conv2DBackward", "ReluBackward1", "Conv2DBackward"]),
        (["Convolution", "Activation", "Convolution"],
         ["_backward_Convolution", "_backward_Activation", "_backward_Convolution"]),
    ],
)  # fmt: skip
def test_without_numbers_a_backward_pass_is_the_forward_pass_in_reverse(
    forward: list[str], backward: list[str]
) -> None:
    trace = _without_numbers(forward, backward)
    here = paths(trace)
    assert here[:3] == here[5:2:-1]
    assert here[6:] == here[:6]
    assert len(set(here)) == 3
    assert directions(trace) == (["forward"] * 3 + ["backward"] * 3) * 2


def test_without_numbers_and_with_other_counts_no_backward_layer_is_guessed() -> None:
    trace = _without_numbers(["aten::conv2d", "aten::conv2d"], ["Conv2DBackward"])
    frame = layers(trace).frame.select("layer", *TIMES).rows()
    assert frame == [
        ("conv2d_0", 20, 0, 0, 0), ("conv2d_1", 20, 0, 0, 0), ("(outside all layers)", 0, 20, 0, 0),
    ]  # fmt: skip
    assert any(
        "backward kernels not linked to layers: 100.0 %" in note for note in layers(trace).notes
    )


def test_without_numbers_in_place_operators_are_separated_by_count() -> None:
    forward = ["aten::add", "aten::add_", "aten::add"]
    trace = _without_numbers(forward, ["AddBackward0"], steps=1)
    assert paths(trace) == ["add_0", "add__0", "add_1", "add__0"]


def _updated(*update: str, ranges: tuple[str, ...] = ()) -> Trace:
    """Return a step whose backward pass is followed by ``update``, then by a second step."""
    b = TraceBuilder()
    correlation = 0
    for i in range(2):
        at = 10_000 * i
        annotate(b, f"ProfilerStep#{i}", at, at + 9_000, "step")
        for text in ranges:
            annotate(b, text, at + 5_000, at + 8_000)
        names = ["aten::linear", "autograd::engine::evaluate_function: AddmmBackward0"]
        for j, name in enumerate((*names, *update)):
            start = at + 1_000 * j
            columns = {"sequence": i} if j < 2 else {}
            op(b, name, start, start + 900, **columns)
            launch(b, correlation, start + 10)
            correlation += 1
    return attribute(b.build())


@pytest.mark.parametrize(
    "update",
    [
        ("aten::mul", "aten::sub_"),
        ("aten::add_", "aten::zero_"),
        ("aten::_fused_adam_",),
        ("aten::_foreach_add_", "aten::_foreach_addcdiv_"),
        ("sgd_mom_update",),
        ("mp_adamw_update",),
    ],
)
def test_what_updates_parameters_behind_the_backward_pass_is_the_optimizers(
    update: tuple[str, ...],
) -> None:
    trace = _updated(*update)
    assert directions(trace) == ["forward", "backward", *["optimizer"] * len(update)] * 2
    frame = layers(trace).frame
    assert frame.filter(role="optimizer")["optimizer_ns"].item() == 20 * len(update)


def test_what_is_no_update_behind_the_backward_pass_stays_forward() -> None:
    """A metric, in place or not, where an optimizer is on record; and a pass without gradients."""
    metric = _updated("aten::add_", ranges=("Optimizer.step#SGD.step",))
    assert directions(metric) == ["forward", "backward", "forward"] * 2
    evaluation = _updated("aten::conv2d", "aten::add_")
    assert directions(evaluation) == ["forward", "backward", "forward", "forward"] * 2


def _of_closures(*closures: str) -> Trace:
    """Return a step of an optimizer that runs ``closures``, each before an update.

    A closure is a word of z (clears gradients), t (a tensor of no layer), f (forward) and b.
    """
    b = TraceBuilder()
    at, correlation, sequence = 1_000, 0, 0
    for closure in closures:
        for letter in f"{closure}u":
            name, thread, columns = {
                "z": ("aten::zero_", 1, {}),
                "t": ("aten::arange", 1, {}),
                "f": ("aten::linear", 1, {"sequence": sequence}),
                "b": (
                    "autograd::engine::evaluate_function: AddmmBackward0",
                    2,
                    {"sequence": sequence},
                ),
                "u": ("aten::mm", 1, {}),
            }[letter]
            if letter == "z":
                annotate(b, "Optimizer.zero_grad#SGD.zero_grad", at, at + 900)
            op(b, name, at, at + 900, thread=thread, **columns)
            launch(b, correlation, at + 10, thread=thread)
            at, correlation, sequence = at + 1_000, correlation + 1, sequence + (letter == "b")
    annotate(b, "Optimizer.step#SGD.step", 500, at)
    return attribute(b.build())


def test_what_the_closure_of_an_optimizers_step_runs_is_no_update() -> None:
    """LBFGS calls its closure again and again; Lightning passes one to every optimizer."""
    trace = _of_closures("ztfb", "zfb")
    assert directions(trace) == [
        *("optimizer", "forward", "forward", "backward", "optimizer"),
        *("optimizer", "forward", "backward", "optimizer"),
    ]
    assert paths(trace)[2:4] == ["linear_0", "linear_0"]
    assert layers(trace).frame.filter(role="optimizer")["optimizer_ns"].item() == 40


def test_a_closure_that_the_end_of_the_recording_cuts_is_no_update() -> None:
    """Lightning's profiler ends after the forward pass, within the last step of the optimizer."""
    b = TraceBuilder()
    for step, letters in enumerate(("fbu", "f")):
        at = 10_000 * step
        for letter in letters:
            backward = "autograd::engine::evaluate_function: AddmmBackward0"
            name = {"f": "aten::linear", "b": backward, "u": "aten::_foreach_add_"}[letter]
            numbered = {} if letter == "u" else {"sequence": step}
            op(b, name, at + 100, at + 900, thread=1 + (letter == "b"), **numbered)
            launch(b, at, at + 110, thread=1 + (letter == "b"))
            at += 1_000
        annotate(b, "Optimizer.step#SGD.step", 10_000 * step, 10_000 * step + 5_000)
    assert directions(attribute(b.build())) == ["forward", "backward", "optimizer", "forward"]


def test_products_of_an_optimizer_without_a_closure_are_its_own() -> None:
    assert directions(_of_closures("z")) == ["optimizer", "optimizer"]


def test_kernels_of_apex_without_an_operator_are_the_optimizers() -> None:
    b = TraceBuilder()
    op(b, "aten::conv2d", 0, 10)
    launch(b, 1, 5)
    b.row("calls", name="cudaLaunchKernel", process=9, thread=1, start=50, duration=2,
          correlation=2)  # fmt: skip
    b.kernel("void multi_tensor_apply_kernel<AdamFunctor>", 90, 7, correlation=2, process=9)
    frame = layers(attribute(b.build())).frame
    assert frame.select("layer", *TIMES).rows() == [
        ("conv2d_0", 10, 0, 0, 0), ("(optimizer)", 0, 0, 7, 0),
    ]  # fmt: skip


@pytest.mark.parametrize("missing", [0, 3])
def test_work_launched_before_the_recording_is_in_no_step(
    missing: int,
) -> None:
    """Three steps of twelve kernels; then the end of a step before, or the first step's begin."""
    b = TraceBuilder()
    names = [f"k{i}" for i in range(12)]
    steps = 4
    for step in range(steps):
        at = 100_000 * step
        annotate(b, f"ProfilerStep#{step}", at, at + 90_000, "step")
        for i, name in enumerate(names):
            if step == 0 and i < missing:
                b.kernel(name, at + 30_000 + 10 * i, 5, correlation=7_000 + i, process=9)
                continue
            correlation = 100 * step + i
            op(b, f"aten::op{i}", at + 100 * i, at + 100 * i + 50)
            b.row("calls", name="cudaLaunchKernel", process=9, thread=1, start=at + 100 * i + 5,
                  duration=2, correlation=correlation)  # fmt: skip
            b.kernel(name, at + 30_000 + 10 * i, 5, correlation=correlation, process=9)
    for i, name in enumerate(names[4:]):  # of the step before: they run into the first
        b.kernel(name, 10 * i, 5, correlation=9_000 + i, process=9)
    trace = attribute(b.build())
    of_step = trace.tables.activities.group_by("step", "layer").len().drop_nulls("step")
    assert of_step.group_by("step").agg(pl.col("len").sum()).sort("step")["len"].to_list() == [
        12 - missing, 12, 12, 12,
    ]  # fmt: skip
    assert (of_step["len"] == 1).all()
    assert trace.tables.activities["step"].null_count() == 8 + missing
    before = trace.tables.activities.tail(8)
    reported = trace.tables.layers["path"].gather(before["layer"]).to_list()
    assert reported == [f"op{i}_0" for i in range(4, 12)]


def test_an_unknown_direction_is_null() -> None:
    b = TraceBuilder()
    conv, fc = b.layer("conv1"), b.layer("fc")
    b.kernel("a", 0, 5, layer=conv)
    b.kernel("b", 5, 7, layer=fc, direction="forward")
    frame = layers(b.build()).frame
    assert frame.select("layer", *TIMES, "time_ns").rows() == [
        ("conv1", None, None, None, 5, 5), ("fc", 7, 0, 0, 0, 7),
    ]  # fmt: skip


def test_backward_products_of_a_pyprof_recording_are_of_their_linear_layers() -> None:
    path = TRACES / "nvprof" / "language_model_pyprof_v100.sql"
    if not path.is_file():
        pytest.skip("no shared traces")
    frame = layers(opened(path)).frame
    linear = frame.filter(pl.col("layer").str.starts_with("linear_"))
    assert (linear["backward_ns"] > linear["forward_ns"]).all()
    assert frame.filter(role="optimizer").select(TIMES).rows() == [(0, 0, 919_258, 0)]


def test_the_oldest_kineto_has_its_backward_time_on_the_forward_layers() -> None:
    path = TRACES / "kineto" / "resnet50_train_v100_oldest_schema.json.gz"
    if not path.is_file():
        pytest.skip("no shared traces")
    trace = opened(path)
    frame = layers(trace).frame
    assert not frame["layer"].str.contains("Backward").any()
    convolutions = frame.filter(pl.col("layer").str.starts_with("conv2d_"))
    assert convolutions.height == 53
    assert (convolutions["backward_ns"] > 0).all()
    launched = trace.tables.activities.filter(pl.col("kind") != "sync").drop_nulls("step")
    known = launched.filter(trace.tables.layers["role"].gather(launched["layer"]) != "unattributed")
    calls = known.group_by("layer", "step").len()
    assert (calls.group_by("layer").agg(pl.col("len").n_unique())["len"] == 1).all()


@pytest.fixture(scope="module")
def checkpointed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record a step of two linear layers in a non-reentrant checkpoint."""
    torch = pytest.importorskip("torch")
    from torch.utils.checkpoint import checkpoint

    block = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    path = tmp_path_factory.mktemp("checkpoint") / "step.json"
    with torch.profiler.profile(record_shapes=True) as profiler:
        checkpoint(block, torch.randn(32, 64), use_reentrant=False).sum().backward()
    profiler.export_chrome_trace(str(path))
    return path


@pytest.mark.frameworks
def test_the_operator_that_a_checkpoint_leaves_is_not_counted(checkpointed: Path) -> None:
    """The second layer's product is recomputed no further than its inputs are saved."""
    trace = traceana.open(checkpointed)
    product = 2 * 32 * 64 * 256
    result = flops(trace).frame.filter(pl.col("operator") == "aten::linear")
    # Both run forward once; of the recomputation the first alone.
    assert result["flops"].sum() == 3 * product
    names = trace.tables.ops["name"].cast(pl.String)
    added = trace.tables.activities.filter(
        names.gather(trace.tables.activities["op"]) == "aten::addmm"
    )
    assert added.height == 3


@pytest.mark.parametrize(
    ("marked", "direction"), [(None, "fprop"), ("forward", "fprop"), ("backward", None)]
)
def test_a_convolution_of_jax_is_forward_unless_its_scope_is_of_the_backward_pass(
    marked: str | None, direction: str | None
) -> None:
    b = TraceBuilder()
    scope = "jit(step)/conv1/conv_general_dilated"
    b.kernel("volta_sgemm_128x64_nn", 0, 10, stream=7, scope=scope, direction=marked)
    episodes = with_classes(b.build()).tables.episodes
    assert episodes.select("algorithm", "direction").rows() == [("gemm", direction)]


@pytest.mark.parametrize(
    ("meta", "node", "hint"),
    [
        ({"framework": "PyTorch", "format": "kineto"}, None, ""),
        (
            {"framework": "PyTorch", "format": "kineto"},
            7,
            " (replays of CUDA graphs: --capture FILE, a recording of the capture)",
        ),
        (
            {"framework": "PyTorch", "format": "nsys"},
            None,
            " (record sequence numbers: torch.profiler, or torch.autograd.profiler.emit_nvtx)",
        ),
        (
            {"framework": "JAX", "format": "xplane"},
            7,
            " (name the layers: jax.named_scope, or Flax Linen)",
        ),
    ],
)
def test_the_hint_on_lost_backward_kernels_fits_the_profiler(
    meta: dict[str, str], node: int | None, hint: str
) -> None:
    b = TraceBuilder(**meta)
    b.name("dgrad", category="conv", direction="dgrad")
    b.kernel("dgrad", 0, 100, graph_node=node, direction="backward")
    note = f"backward kernels not linked to layers: 100.0 % of their time{hint}"
    assert note in layers(b.build()).notes

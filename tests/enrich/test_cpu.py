"""Work on a CPU: operators by kind and nesting, all their time in the rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import polars as pl
import pytest

import traceana
from tests.enrich.test_attribution import annotate, op, paths
from tests.enrich.test_thunks import WAIT
from tests.support.forked import script, with_torch
from tests.support.frameworks import needs
from tests.support.manifest import chosen
from tests.support.traces import TraceBuilder
from traceana.columns.intervals import length, times, union
from traceana.enrich import attribute
from traceana.trace import Trace

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
TRACES = sorted(
    file
    for pattern in ("*.json.gz", "*.sqlite", "*.xplane.pb", "*.xplane.pb.gz")
    for file in FIXTURES.rglob(pattern)
    if not {"gpu", "h200", "programs"} & {*file.parts}
)
REPEATS = 5

U_NET = """
import sys
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, padding=1)
        self.deep = nn.Conv2d(8, 16, 3, padding=1, stride=2)
        self.norm = nn.BatchNorm2d(16)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.out = nn.Conv2d(16, 2, 1)

    def forward(self, image):
        wide = torch.relu(self.down(image))
        deep = torch.relu(self.norm(self.deep(wide)))
        return self.out(torch.cat([wide, self.up(deep)], 1))


model = UNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
images, labels = torch.randn(2, 3, 32, 32), torch.randint(0, 2, (2, 32, 32))


def step():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()


step()
for number in range(int(sys.argv[2])):
    with torch.profiler.profile() as profiler:
        for _ in range(2):
            step()
            profiler.step()
    profiler.export_chrome_trace(f"{sys.argv[1]}/{number}.json")
"""

CONTAINERS = """
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
block = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
image = torch.randn(2, 3, 16, 16, requires_grad=True)
compiled = torch.compile(block, backend="aot_eager")
functions = {
    "checkpoint": lambda: checkpoint(block, image, use_reentrant=True),
    "compiled": lambda: compiled(image),
}
for name, function in functions.items():
    function().sum().backward()
    with torch.profiler.profile(with_stack=True) as profiler:
        function().sum().backward()
    profiler.export_chrome_trace(f"{sys.argv[1]}/{name}.json")
"""


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of both scripts' traces, made by one process."""
    needs("torch")
    folder = tmp_path_factory.mktemp("recorded")
    with_torch(folder / "log", script, U_NET + CONTAINERS, str(folder), str(REPEATS))
    return folder


@pytest.fixture(scope="session")
def u_nets(recorded: Path) -> list[Trace]:
    """Traces of one script with a transposed convolution, recorded several times."""
    return [traceana.open(recorded / f"{number}.json") for number in range(REPEATS)]


@pytest.fixture(scope="session")
def containers(recorded: Path) -> dict[str, Trace]:
    """Traces of a reentrant checkpoint and of a compiled function around convolutions."""
    return {name: traceana.open(recorded / f"{name}.json") for name in ("checkpoint", "compiled")}


def names(trace: Trace) -> list[str]:
    """Return the name of every activity."""
    return trace.tables.names["name"].gather(trace.tables.activities["name_id"]).to_list()


def timed(trace: Trace) -> list[tuple[str, int, int]]:
    """Return name, start and duration of every activity, in order of time."""
    start, duration = trace.tables.activities["start"], trace.tables.activities["duration"]
    return sorted(zip(names(trace), start, duration, strict=True), key=lambda row: row[1:])


def assert_conserved(trace: Trace) -> None:
    """Assert that activities do not overlap and add up to the time inside operators.

    Where XLA waits for its thunks and none runs, the work of a pool is added, once: some of it.
    """
    rows = trace.tables.activities.sort("process", "stream", "start", "duration")
    next_start = pl.col("start").shift(-1).over("process", "stream")
    overlapping = rows.filter(next_start < pl.col("start") + pl.col("duration"))
    assert overlapping.is_empty()
    if trace.tables.ops.height:
        outermost = trace.tables.ops.filter(pl.col("depth") == 0)
        waits = trace.tables.ranges.filter(pl.col("text").cast(pl.String) == WAIT)
        if waits.height:
            inside, busy, all_busy = (
                length(union(*times(table)))
                for table in (
                    outermost,
                    rows,
                    pl.concat(one.select("start", "duration") for one in (rows, waits)),
                )
            )
            assert inside <= busy <= all_busy
            total, own = (int(one["duration"].to_numpy().sum()) for one in (rows, outermost))
            assert total - own == busy - inside
            return
        by_thread = outermost.group_by("process", "thread").agg(pl.col("duration").sum())
        reported = rows.group_by("process", pl.col("stream").alias("thread")).agg(
            pl.col("duration").sum()
        )
        assert reported.sort("process", "thread").equals(by_thread.sort("process", "thread"))


@pytest.mark.slow
@pytest.mark.parametrize("file", chosen(TRACES))
def test_the_activities_of_a_cpu_trace_add_up_to_the_time_inside_operators(file: Path) -> None:
    trace = traceana.open(file)
    assert trace.on_cpu
    assert_conserved(trace)


@pytest.mark.slow
def test_repeated_recordings_of_a_u_net_have_the_same_kernels(u_nets: list[Trace]) -> None:
    first = Counter(names(u_nets[0]))
    assert first["aten::_convolution"] == 2  # a transposed convolution a step
    for trace in u_nets:
        assert Counter(names(trace)) == first
        assert_conserved(trace)
    for other in u_nets[1:]:
        changes = str(traceana.diff(u_nets[0], other).summary.changes)
        assert "kernels only" not in changes


def test_all_convolutions_of_a_u_net_are_in_the_class_with_all_of_their_time(
    u_nets: list[Trace],
) -> None:
    (trace, *_) = u_nets
    name = trace.tables.ops["name"].cast(pl.String)
    outermost = trace.tables.ops["duration"].filter(
        name.str.contains("^aten::conv(?:2d|_transpose2d|olution_backward)$")
    )
    category = trace.tables.names["category"].gather(trace.tables.activities["name_id"])
    of_class = trace.tables.activities["duration"].filter(category == "conv")
    # The nodes of the backward graph only hand on: their self time counts as well.
    assert len(outermost) == len(of_class) == 2 * (4 + 4)
    assert of_class.sum() >= outermost.sum()


@pytest.mark.parametrize("name", ["checkpoint", "compiled"])
def test_checkpoints_and_compiled_functions_are_entered(
    containers: dict[str, Trace], name: str
) -> None:
    trace = containers[name]
    found = Counter(names(trace))
    # A checkpoint computes its block a second time.
    assert found["aten::mkldnn_convolution"] == (4 if name == "checkpoint" else 2)
    assert found["aten::convolution_backward"] == 2
    own = "CheckpointFunction" if name == "checkpoint" else "CompiledFunction"
    assert found[own] >= 1
    assert_conserved(trace)


def test_an_operator_that_only_dispatches_gives_its_self_time_to_what_it_calls() -> None:
    b = TraceBuilder()
    op(b, "aten::conv2d", 0, 1000)
    op(b, "aten::convolution", 1, 999)
    conv = op(b, "aten::mkldnn_convolution", 5, 995)
    op(b, "aten::empty", 10, 30)
    relu = op(b, "aten::relu", 1000, 1100)
    trace = attribute(b.build())
    assert trace.on_cpu
    assert trace.tables.activities["op"].to_list() == [conv, relu]
    assert trace.tables.activities["device"].unique().to_list() == [-1]
    assert timed(trace) == [("aten::mkldnn_convolution", 0, 1000), ("aten::relu", 1000, 100)]
    assert paths(trace) == ["conv2d_0", "relu_0"]


def test_a_transposed_convolution_is_whole_however_long_its_copies_take() -> None:
    for until in (20, 980):
        b = TraceBuilder()
        op(b, "aten::conv_transpose2d", 0, 1000)
        op(b, "aten::_convolution", 5, 995)
        op(b, "aten::contiguous", 10, until)
        op(b, "aten::copy_", 12, until)
        assert timed(attribute(b.build())) == [("aten::_convolution", 0, 1000)]


@pytest.mark.parametrize("name", ["aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward"])
def test_a_recurrent_layer_is_whole_though_it_adds_its_biases(name: str) -> None:
    build = TraceBuilder()
    op(build, name, 0, 1_000)
    op(build, "aten::add", 10, 20)
    op(build, "aten::copy_", 900, 30)
    trace = attribute(build.build())
    rows = trace.tables.activities.select("name_id", "duration").rows()
    assert [(trace.tables.names["name"][at], time) for at, time in rows] == [(name, 1_000)]


def test_the_sum_of_a_bias_is_part_of_the_gradient_that_takes_it() -> None:
    b = TraceBuilder()
    op(b, "autograd::engine::evaluate_function: ConvolutionBackward0", 0, 1000)
    op(b, "ConvolutionBackward0", 10, 990)
    op(b, "aten::convolution_backward", 20, 980)
    op(b, "aten::sum", 30, 960)
    assert timed(attribute(b.build())) == [("aten::convolution_backward", 0, 1000)]


def test_self_time_goes_to_the_operator_that_follows_and_last_to_the_one_before() -> None:
    b = TraceBuilder()
    op(b, "AddmmBackward0", 0, 1000)
    op(b, "aten::t", 10, 20)
    op(b, "aten::mm", 100, 300)
    op(b, "aten::t", 310, 320)
    op(b, "aten::mm", 400, 900)
    op(b, "aten::t", 910, 920)
    assert timed(attribute(b.build())) == [("aten::mm", 0, 300), ("aten::mm", 300, 700)]


def test_self_time_of_what_may_compute_itself_is_rows_of_its_own() -> None:
    b = TraceBuilder()
    op(b, "autograd::engine::evaluate_function: MineBackward", 0, 1000)
    mine = op(b, "MineBackward", 10, 990)
    op(b, "aten::empty", 20, 30)
    op(b, "aten::conv2d", 100, 300)
    op(b, "aten::mkldnn_convolution", 110, 290)
    op(b, "aten::relu", 300, 400)
    trace = attribute(b.build())
    assert timed(trace) == [
        ("MineBackward", 0, 100),
        ("aten::mkldnn_convolution", 100, 200),
        ("aten::relu", 300, 100),
        ("MineBackward", 400, 600),
    ]
    assert trace.tables.activities["op"].to_list().count(mine) == 2


def test_an_operator_of_no_duration_ran_all_the_same() -> None:
    b = TraceBuilder()
    op(b, "aten::relu", 0, 10)
    op(b, "aten::clamp_min", 4, 4)
    op(b, "aten::add", 20, 20)
    assert timed(attribute(b.build())) == [("aten::clamp_min", 0, 10), ("aten::add", 20, 0)]


def test_a_copy_is_what_a_conversion_does() -> None:
    b = TraceBuilder()
    op(b, "aten::to", 0, 100)
    op(b, "aten::_to_copy", 1, 99)
    op(b, "aten::empty_strided", 2, 10)
    op(b, "aten::copy_", 20, 90)
    op(b, "aten::view", 100, 110)  # outermost: without a parent
    assert timed(attribute(b.build())) == [("aten::copy_", 0, 100), ("aten::view", 100, 10)]


def test_activities_of_one_cpu_thread_never_overlap() -> None:
    b = TraceBuilder()
    op(b, "a", 0, 100)
    op(b, "b", 0, 60)
    op(b, "b", 60, 98)
    op(b, "c", 5, 20)
    op(b, "a", 200, 205)  # the same name without anything inside
    op(b, "a", 90, 120, thread=2)
    trace = attribute(b.build())
    assert_conserved(trace)
    assert trace.tables.activities["duration"].sum() == 100 + 5 + 30


def test_an_operator_that_outlasts_the_one_around_it_is_cut() -> None:
    b = TraceBuilder()
    op(b, "mine", 0, 100)
    op(b, "aten::relu", 40, 130)
    assert timed(attribute(b.build())) == [("mine", 0, 40), ("aten::relu", 40, 60)]


def test_the_range_of_an_activity_is_the_one_around_its_operator() -> None:
    b = TraceBuilder()
    op(b, "aten::linear", 0, 100)
    op(b, "aten::addmm", 20, 90)
    inner = annotate(b, "inside", 10, 95)
    trace = attribute(b.build())
    assert timed(trace) == [("aten::addmm", 0, 100)]
    assert trace.tables.activities["range"].to_list() == [inner]


def test_ranges_of_steps_and_passes_are_no_work_however_little_is_in_them() -> None:
    """Short layers leave most of a step to the interpreter: they are what ran all the same."""
    b = TraceBuilder()
    annotate(b, "iteration 0", 0, 1000, "nvtx")
    annotate(b, "forward", 100, 400, "nvtx")
    annotate(b, "forward: conv1", 110, 150, "nvtx")
    annotate(b, "helper", 120, 130, "nvtx")
    annotate(b, "backward", 500, 900, "nvtx")
    annotate(b, "backward: conv1", 510, 570, "nvtx")
    trace = attribute(b.build())
    assert timed(trace) == [
        ("forward: conv1", 110, 10),
        ("helper", 120, 10),
        ("forward: conv1", 130, 20),
        ("backward: conv1", 510, 60),
    ]
    assert trace.tables.activities["direction"].to_list() == ["forward"] * 3 + ["backward"]

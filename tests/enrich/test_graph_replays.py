"""The work of CUDA graph replays has the operators, layers and directions of its capture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import traceana
from tests.readers.nsys import writing
from tests.support.graph_replays import (
    LAYERS,
    PRODUCTS,
    as_replays,
    events,
    network,
    row,
    steps,
    write,
)
from tests.support.inductor import convolution, on_gpu
from tests.support.manifest import FIXTURES, TRACES
from tests.support.opened import opened
from traceana.analyze.lines import lines
from traceana.errors import UsageError
from traceana.match.alignment import agreed
from traceana.trace import Trace

NAMES = ["conv2d_0", "relu_0", "conv2d_1", "linear_0"]


def layers(trace: Trace) -> list[str | None]:
    kernels = trace.tables.activities.filter(pl.col("kind") == "kernel").sort("start")
    return trace.tables.layers["path"].gather(kernels["layer"]).to_list()


@pytest.fixture
def eager(tmp_path: Path) -> Path:
    return write(network(3), tmp_path / "eager.json")


def replayed(path: Path, *, capture: int | None, first: int = 0) -> Path:
    whole = network(3)
    spans = list(steps(whole))[first:]
    return write(as_replays(whole, spans, capture=capture), path)


def test_replays_have_the_layers_of_the_capture_in_the_trace(tmp_path: Path) -> None:
    trace = traceana.open(replayed(tmp_path / "replays.json", capture=0))
    assert layers(trace) == NAMES * 3
    kernels = trace.tables.activities.filter(pl.col("kind") == "kernel")
    assert set(trace.tables.ops["name"].gather(kernels["op"])) == {name for name, *_ in LAYERS}
    assert set(kernels["direction"]) == {"forward"}
    assert kernels["layer_confidence"].to_list() == [0.98] * 12
    assert trace.tables.names["name"].to_list().count("(captured launch)") == 0
    assert "sync" not in trace.tables.activities["kind"]


def test_every_replay_executes_its_operators(tmp_path: Path, eager: Path) -> None:
    trace = traceana.open(replayed(tmp_path / "replays.json", capture=0))
    found = [one.flops().totals["flops"] for one in (traceana.open(eager), trace)]
    # The ReLU counts 8 * 16 * 30 * 30 more.
    assert found == [3 * (PRODUCTS + 115_200)] * 2


def test_replays_have_the_layers_of_the_recording_of_the_capture(tmp_path: Path) -> None:
    trace = replayed(tmp_path / "replays.json", capture=None)
    assert set(layers(traceana.open(trace))) == {"(outside all layers)"}
    captured = {
        **network(1),
        "traceEvents": [e for e in network(1)["traceEvents"] if e["cat"] != "kernel"],
    }
    recording = write(captured, tmp_path / "capture.json")
    found = traceana.open(trace, capture=recording)
    assert layers(found) == NAMES * 3
    assert found.tables.activities["layer_confidence"].unique().to_list() == [0.98]


def test_replays_have_the_layers_of_the_network_without_graphs(tmp_path: Path, eager: Path) -> None:
    found = traceana.open(replayed(tmp_path / "replays.json", capture=None), capture=eager)
    assert layers(found) == NAMES * 3
    assert found.flops().totals["flops"] == 3 * (PRODUCTS + 115_200)
    reasons = dict(found.tables.ledger.select("reason", "count").iter_rows())
    assert reasons["graph_sequence"] == 12


def test_replays_have_the_layers_of_earlier_steps_without_graphs(tmp_path: Path) -> None:
    assert layers(traceana.open(replayed(tmp_path / "r.json", capture=None, first=1))) == NAMES * 3


def test_another_network_gives_no_layers(tmp_path: Path) -> None:
    other = network(1)
    for event in other["traceEvents"]:
        event["name"] = {"aten::conv2d": "aten::softmax"}.get(event["name"], event["name"])
    other["traceEvents"] = [e for e in other["traceEvents"] if e["cat"] != "kernel"]
    recording = write(other, tmp_path / "other.json")
    found = traceana.open(replayed(tmp_path / "replays.json", capture=None), capture=recording)
    assert set(layers(found)) == {"(outside all layers)"}
    reasons = dict(found.tables.ledger.select("reason", "count").iter_rows())
    assert reasons["graph_unknown"] == 12


def test_a_part_that_fits_several_layers_gets_none(tmp_path: Path) -> None:
    """A graph of one of two equal blocks: either may be meant."""
    block, twice = network(1), network(2)
    twice["traceEvents"] = [
        event for event in twice["traceEvents"] if event["cat"] != "user_annotation"
    ] + [
        row("user_annotation", f"layer{4 * half + n}", 1000 * half + 100 * n + 5, 90, 1)
        for half in range(2)
        for n in range(4)
    ]
    reference = write(twice, tmp_path / "blocks.json")
    replays = write(as_replays(block, list(steps(block)), capture=None), tmp_path / "block.json")
    found = traceana.open(replays, capture=reference)
    assert layers(traceana.open(reference)) == [f"layer{n}" for n in range(8)]
    assert set(layers(found)) == {"(outside all layers)"}


def test_capture_needs_a_trace_with_graphs(eager: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no launch of a CUDA graph"):
        traceana.open(eager, capture=eager)
    bundle = traceana.open(eager).save(tmp_path / "bundle")
    with pytest.raises(UsageError, match="bundle"):
        traceana.open(replayed(tmp_path / "r.json", capture=None), capture=bundle)
    with pytest.raises(UsageError, match="keeps its layers"):
        traceana.open(bundle, capture=eager)


def test_code_of_graphs_that_are_replayed_is_of_no_use(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    code = on_gpu([convolution("buf0", "primals_2"), ("triton_relu_0", ["buf0"], ["buf1"])])
    (tmp_path / "code" / "graph.py").write_text(code, "utf-8")
    trace = replayed(tmp_path / "r.json", capture=None)
    with pytest.raises(UsageError, match="ran as CUDA graphs"):
        traceana.open(trace, inductor_cache=tmp_path / "code")


def test_nodes_of_nsys_have_the_layer_in_which_they_were_captured(tmp_path: Path) -> None:
    """Replayed nodes are copies of copies; their originals were captured within NVTX ranges."""
    node = [
        {"start": at, "globalTid": writing.gid(7, 8), "graphNodeId": n, "originalGraphNodeId": of}
        for at, n, of in (
            (110, 1, None),
            (210, 2, None),
            (300, 11, 1),
            (301, 12, 2),
            (310, 21, 11),
            (311, 22, 12),
        )
    ]
    tables = {
        "NVTX_EVENTS": [
            writing.nvtx(100, 150, text="layer1"),
            writing.nvtx(200, 250, text="layer2"),
        ],
        "CUDA_GRAPH_NODE_EVENTS": node,
        "StringIds": [*writing.STRINGS, {"id": 90, "value": "cudaGraphLaunch_v10000"}],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [writing.call(400, 410, correlationId=5, nameId=90)],
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            writing.kernel(500, 510, correlationId=5, graphNodeId=21),
            writing.kernel(520, 530, correlationId=5, graphNodeId=22),
            writing.kernel(540, 550, correlationId=5, graphNodeId=99),
        ],
    }
    trace = writing.trace_of(writing.export(tmp_path / "graph.sqlite", tables))
    assert trace.tables.activities["capture_time"].to_list() == [10, 110, None]
    attributed = traceana.open(tmp_path / "graph.sqlite")
    assert layers(attributed)[:2] == ["layer1", "layer2"]


@pytest.mark.exhaustive(after=2)
@pytest.mark.skipif(not TRACES.is_dir(), reason="no shared traces")
@pytest.mark.parametrize(
    "name",
    ["resnet50_train_v100_workers4", "recsys_rank0", "timesformer_mi300x", "dlrm_8xv100/rank0"],
)
@pytest.mark.parametrize("source", ["capture", "eager"])
def test_replays_made_of_real_steps_have_their_layers(
    name: str, source: str, tmp_path: Path
) -> None:
    path = TRACES / "kineto" / f"{name}.json.gz"
    whole = events(path)
    times = [e["ts"] for e in whole["traceEvents"] if e.get("ph") == "X"]
    spans = list(steps(whole)) or [(min(times), max(times) + 1)]
    span = spans[min(1, len(spans) - 1)]
    rewritten = as_replays(whole, [span], capture=0 if source == "capture" else None, node_ids=True)
    replays = write(rewritten, tmp_path / "replays.json")
    found = traceana.open(replays, capture=path if source == "eager" else None)
    work = compared(found, opened(path))
    total = float(work["duration"].sum())
    right = pl.col("path") == pl.col("truth")
    wrong = work.filter((pl.col("layer_confidence") > 0.9) & ~right)
    assert wrong.is_empty()
    assert (
        float(work.filter(right)["duration"].sum())
        >= (0.95 if source == "capture" else 0.8) * total
    )


def compared(found: Trace, eager: Trace) -> pl.DataFrame:
    """Return the work of replays in ``found``, with its layer in ``eager`` as ``truth``."""
    key = ["start", "name_text", "stream", "device"]
    frames = []
    for trace, label in ((found, "path"), (eager, "truth")):
        work = trace.tables.activities.with_columns(
            trace.tables.layers["path"].gather(trace.tables.activities["layer"]).alias(label),
            trace.tables.names["name"]
            .gather(trace.tables.activities["name_id"])
            .alias("name_text"),
        ).filter(pl.col("kind").is_in(["kernel", "memcpy", "memset"]))
        last = work["start"].max()
        frames.append(work.with_columns(pl.col("start") - last))
    calls = found.tables.calls["name"].cast(pl.String)
    of_graph = calls.gather(frames[0]["call"]).eq("cudaGraphLaunch").fill_null(value=False)
    return frames[0].filter(of_graph).join(frames[1].select(*key, "truth"), on=key, how="left")


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=60), st.data()
)
def test_launches_without_a_node_are_left_out(
    made: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Every activity gets its own launch, or one of the same layer, or none."""
    kinds = np.array([kind for kind, _ in made])
    bits = np.array([1 << of if kind == 0 else 0 for kind, of in made], dtype=np.uint32)
    count = len(made)
    lost = data.draw(st.sets(st.integers(0, count - 1), max_size=min(4, count - 1)))
    kept = np.array([i for i in range(count) if i not in lost])
    own = np.arange(count)
    source = agreed(
        lambda i, j: np.where(
            (kinds[j] == kinds[kept[i]]) & (bits[j] == bits[kept[i]]), 4, -np.inf
        ),
        (len(kept), count),
        1,
        own,
    )
    pairs = [(launch, i) for i, launch in enumerate(source.tolist()) if launch >= 0]
    assert pairs == sorted(pairs)
    assert all(kinds[launch] == kinds[kept[i]] for launch, i in pairs)
    if not lost:
        assert source.tolist() == own.tolist()
    # Where each launch is of a kind that no other is, the alignment is certain.
    if len(set(zip(kinds.tolist(), bits.tolist(), strict=True))) == count:
        assert source.tolist() == kept.tolist()


def test_a_training_step_as_one_graph_has_the_layers_of_the_eager_run() -> None:
    """The graph adds up gradients, which the eager run does not, and runs branches on streams."""
    eager = opened(FIXTURES / "gpu" / "resnet18_b8.json.gz")
    path = FIXTURES / "gpu" / "resnet18_b8_graph.json.gz"
    graph = traceana.open(path, capture=FIXTURES / "gpu" / "resnet18_b8.json.gz")

    def kernels(trace: Trace) -> dict[tuple[str, str], int]:
        """Return the kernels of each layer and pass in a step."""
        work = trace.tables.activities.filter(pl.col("call").is_not_null())
        layers = trace.tables.layers.select("path", "role")[work["layer"]]
        counted = work.with_columns(*layers).filter(pl.col("role") == "layer")
        by_pass = counted.group_by("path", "direction").len().rows()
        return {(path, direction): many // 5 for path, direction, many in by_pass}

    assert kernels(graph) == kernels(eager)
    work = graph.tables.activities
    roles = graph.tables.layers["role"].cast(pl.String).gather(work["layer"])
    time_ns = work["duration"].to_numpy()
    assert time_ns[(roles != "unattributed").to_numpy()].sum() >= 0.92 * time_ns.sum()
    reasons = dict(graph.tables.ledger.select("reason", "count").iter_rows())
    # 62 additions of gradients in each of 5 steps.
    assert reasons["graph_unknown"] == 310


def test_json_of_the_generator_is_a_trace(tmp_path: Path) -> None:
    """The replays are launched by one call each, and the operators are gone."""
    whole = json.loads(replayed(tmp_path / "r.json", capture=None).read_text("utf-8"))
    names = [event["name"] for event in whole["traceEvents"] if event["ph"] == "X"]
    assert names.count("cudaGraphLaunch") == 3
    assert not [name for name in names if name.startswith("aten::")]


def in_lines(rows: dict[str, Any]) -> dict[str, Any]:
    """Return ``rows`` with a line of Python around each operator: ``net.py(1)`` … by operator."""
    lines = [
        {**e, "cat": "python_function", "name": f"net.py({e['ts'] % 1000 // 100 + 1:.0f}): forward"}
        for e in rows["traceEvents"]
        if e["cat"] == "cpu_op"
    ]
    for line in lines:
        line["args"] = {"Python id": 1}
    return {**rows, "traceEvents": [*lines, *rows["traceEvents"]]}


def lines_of(trace: Trace) -> list[str]:
    kernels = trace.work.filter(pl.col("kind") == "kernel").sort("start")
    return kernels["line"].cast(pl.String).to_list()


def flops_of_lines(trace: Trace) -> dict[int, int]:
    counted = lines(trace).frame.filter(pl.col("flops") > 0)
    return dict(counted.select("line", "flops").iter_rows())


def test_replays_have_the_lines_of_the_capture(tmp_path: Path) -> None:
    whole = in_lines(network(3))
    here = write(as_replays(whole, list(steps(whole)), capture=0), tmp_path / "replays.json")
    expected = [f"net.py:{number}" for number in (1, 2, 3, 4)] * 3
    trace = traceana.open(here)
    assert lines_of(trace) == expected
    flops = flops_of_lines(trace)
    assert sum(flops.values()) == 3 * (PRODUCTS + 115_200)
    # Those of another recording.
    replays = write(as_replays(whole, list(steps(whole)), capture=None), tmp_path / "alone.json")
    eager = write(whole, tmp_path / "eager.json")
    other = traceana.open(replays, capture=eager)
    assert lines_of(other) == expected
    assert flops_of_lines(other) == flops

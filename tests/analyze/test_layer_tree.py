"""The tree of layers: children add up to their parent, the root to all work."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.traces import TraceBuilder
from traceana.analyze import layer_tree as module
from traceana.analyze.layer_tree import folded_tree, layer_tree
from traceana.analyze.layers import layer_classes, layers
from traceana.trace import Trace


def built(*rows: tuple[str | None, str, int]) -> Trace:
    """Return a trace with a kernel for each (layer, category, duration)."""
    builder = TraceBuilder()
    known: dict[str, int] = {}
    at = 0
    for layer, category, duration in rows:
        builder.name(category, category=category)
        row = None
        if layer is not None:
            row = known.setdefault(layer, -1)
            if row < 0:
                row = known[layer] = builder.layer(layer, "Module")
        builder.kernel(category, at, duration, layer=row)
        at += duration
    return builder.build()


def check(tree: pl.DataFrame) -> None:
    """Assert that every node's time is at least that of its children, and equal if it has any."""
    numbered = tree.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    assert tree["parent"].null_count() == 1
    assert tree["parent"].to_list()[0] is None
    below = numbered.filter(pl.col("parent").is_not_null())
    assert (below["parent"] < below["row"]).all()
    added = below.group_by("parent").agg(pl.col("time_ns").sum(), pl.col("calls").sum())
    both = added.join(numbered, left_on="parent", right_on="row")
    assert both["time_ns"].to_list() == both["time_ns_right"].to_list()
    assert both["calls"].to_list() == both["calls_right"].to_list()


def check_folded(tree: pl.DataFrame, time_ns: int) -> None:
    """Assert that own times add up to all work, and with those of the children to the total."""
    assert tree["own_ns"].sum() == time_ns == tree["time_ns"][0]
    children = tree.group_by(row="parent").agg(pl.col("time_ns").sum().alias("inside"))
    rows = tree.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    both = rows.join(children, on="row", how="left").with_columns(pl.col("inside").fill_null(0))
    assert (both["own_ns"] + both["inside"] == both["time_ns"]).all()
    spread = tree.drop_nulls("min_ns")
    assert (spread["min_ns"] * spread["count"] <= spread["time_ns"]).all()
    assert (spread["max_ns"] * spread["count"] >= spread["time_ns"]).all()


def test_a_module_is_as_long_as_its_layers() -> None:
    tree = layer_tree(
        built(("net.conv1", "conv", 60), ("net.relu", "activation", 10), ("net.fc", "gemm", 30))
    )
    check(tree)
    assert tree.select("label", "time_ns").rows() == [
        ("all work", 100),
        ("net", 100),
        ("conv1", 60),
        ("conv", 60),
        ("relu", 10),
        ("activation", 10),
        ("fc", 30),
        ("gemm", 30),
    ]


def test_the_category_of_a_node_is_that_of_most_of_its_time() -> None:
    tree = layer_tree(built(("net.a", "conv", 40), ("net.b", "gemm", 35), ("net.c", "gemm", 10)))
    assert dict(tree.select("path", "category").rows())["net"] == "gemm"


def test_work_outside_layers_is_below_the_root() -> None:
    tree = layer_tree(built(("a", "conv", 3), (None, "memset", 4)))
    check(tree)
    assert tree.filter(pl.col("parent") == 0)["time_ns"].to_list() == [3, 4]


def test_the_own_work_of_a_module_is_beside_its_layers() -> None:
    tree = layer_tree(built(("net", "memset", 5), ("net.a", "conv", 7)))
    check(tree)
    assert tree.filter(pl.col("parent") == 1)["label"].to_list() == ["memset", "a"]


def test_small_nodes_are_merged_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_NODES", 10)
    small = [(f"net.s{number}", "conv", 1) for number in range(20)]
    tree = layer_tree(built(("net.big", "gemm", 10_000_000), *small))
    check(tree)
    assert "20 smaller" in tree["label"].to_list()
    assert tree["time_ns"][0] == 10_000_020


def test_without_work_there_is_no_tree() -> None:
    assert layer_tree(TraceBuilder().build()).is_empty()


def _own(trace: Trace, depth: int | None = None) -> list[tuple[str, int, int]]:
    """Return the folded tree's nodes, indented, with their own and total times."""
    tree = folded_tree(layers(trace).frame, depth)
    return [
        ("  " * level + node, own, total)
        for level, node, own, total in tree.select("depth", "node", "own_ns", "time_ns").rows()
    ]


def test_a_node_has_its_own_and_its_total_time() -> None:
    trace = built(
        ("net", "memset", 5), ("net.a.conv", "conv", 7), ("net.a.relu", "conv", 2), (None, "x", 1)
    )
    assert _own(trace) == [
        ("all work", 0, 15),
        ("  net", 5, 14),
        ("    a", 0, 9),
        ("      conv", 7, 7),
        ("      relu", 2, 2),
        ("  (outside all layers)", 1, 1),
    ]


def test_what_is_deeper_is_part_of_its_parent() -> None:
    trace = built(("net", "memset", 5), ("net.a.conv", "conv", 7), ("net.b", "conv", 2))
    assert _own(trace, depth=2) == [
        ("all work", 0, 14),
        ("  net", 5, 14),
        ("    a", 7, 7),
        ("    b", 2, 2),
    ]


def test_repeated_blocks_are_one_row_with_their_number_and_spread() -> None:
    blocks = [
        (f"net.block{number}.{part}", "gemm", number + time)
        for number in (*range(3), 4)
        for part, time in (("attn.qkv", 10), ("mlp", 20))
    ]
    tree = folded_tree(layers(built(*blocks, ("net.head", "gemm", 5))).frame)
    rows = tree.select("layer", "count", "own_ns", "time_ns", "min_ns", "max_ns").rows()
    assert rows == [
        ("all work", 1, 0, 139, None, None),
        ("net", 1, 0, 139, None, None),
        ("net.block{0,1,…,4}", 4, 0, 134, 30, 38),
        ("net.block{0,1,…,4}.attn", 4, 0, 47, 10, 14),
        ("net.block{0,1,…,4}.attn.qkv", 4, 47, 47, 10, 14),
        ("net.block{0,1,…,4}.mlp", 4, 87, 87, 20, 24),
        ("net.head", 1, 5, 5, None, None),
    ]


def test_other_blocks_of_a_name_are_rows_of_their_own() -> None:
    blocks = ("a0.conv", "a1.conv", "a2.fc", "a3.conv")
    tree = folded_tree(layers(built(*((path, "conv", 1) for path in blocks))).frame)
    assert tree["layer"].to_list() == ["all work", "a{0,1,3}", "a{0,1,3}.conv", "a2", "a2.fc"]


_PATHS = st.lists(st.sampled_from(["a", "b0", "b1", "b2"]), min_size=1, max_size=4).map(".".join)
_ROWS = st.lists(
    st.tuples(
        st.one_of(st.none(), _PATHS),
        st.sampled_from(["conv", "gemm", "memset"]),
        st.integers(1, 10**12),
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.slow
@given(_ROWS)
def test_times_add_up_at_every_node(rows: list[tuple[str | None, str, int]]) -> None:
    tree = layer_tree(built(*rows))
    check(tree)
    assert tree["time_ns"][0] == sum(duration for _, _, duration in rows)
    check_folded(folded_tree(layers(built(*rows)).frame), tree["time_ns"][0])


def test_the_class_of_a_layer_is_the_one_that_computes() -> None:
    classes = layer_classes(
        built(
            *(("conv", "layout", 90), ("conv", "conv", 10), ("fc", "collective", 90)),
            *(("fc", "bias", 5), ("fc", "activation", 6), ("pad", "memset", 3)),
        )
    )
    assert dict(classes.rows()) == {"conv": "conv", "fc": "activation", "pad": "memset"}

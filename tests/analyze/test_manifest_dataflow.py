"""The layers that generated kernels compute, from what they read and feed: built graphs."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from traceana.analyze.manifest_dataflow import layers_of_rows
from traceana.runs.layer_manifest import Layer
from traceana.trace.schema import conform

Node = tuple[str, Sequence[int]]
"""The name of a call, and the positions of those that it reads."""

CONV, GRADIENT = "aten::convolution", "aten::convolution_backward"


def calls(*rows: tuple[str, str, int, int]) -> list[Layer]:
    """Return the calls of a manifest: path, type, channels of what each reads and writes."""
    return [
        Layer(
            path=path,
            type=kind,
            framework_type=kind,
            position=position,
            inputs=((2, before, 8, 8),),
            outputs=((2, behind, 8, 8),),
        )
        for position, (path, kind, before, behind) in enumerate(rows)
    ]


def graph(nodes: Sequence[Node], *, backward: bool = False) -> pl.DataFrame:
    """Return the table of a graph; each call is a layer of its own, by its position."""
    return conform(
        "graph_calls",
        pl.DataFrame(
            {
                "graph": [0] * len(nodes),
                "backward": [backward] * len(nodes),
                "name": [name for name, _ in nodes],
                "generated": ["fused" in name for name, _ in nodes],
                "reads": [list(reads) for _, reads in nodes],
                "layer": list(range(len(nodes))),
            }
        ),
    )


BRANCHES: list[Node] = [
    (CONV, []),
    ("cpp_fused_relu_0", [0]),
    (CONV, [1]),
    ("cpp_fused_max_pool2d_with_indices_1", [1]),
    (CONV, [3]),
    ("cpp_fused_cat_relu_2", [2, 4]),
    (CONV, [5]),
]
POSITIONS = {0: 0, 2: 2, 4: 5, 6: 7}


def of_branches(narrow: int, side: int) -> list[Layer]:
    """Return two branches, one of them behind a pooling layer; the results are joined."""
    return calls(
        ("entry", "Conv2d", 3, 4),
        ("relu", "ReLU", 4, 4),
        ("a.conv", "Conv2d", 4, narrow),
        ("a.relu", "ReLU", narrow, narrow),
        ("b.pool", "MaxPool2d", 4, 4),
        ("b.conv", "Conv2d", 4, side),
        ("b.relu", "ReLU", side, side),
        ("last", "Conv2d", narrow + side, 8),
    )


def test_shapes_tell_which_branch_a_layer_is_of() -> None:
    found = layers_of_rows(graph(BRANCHES), POSITIONS, of_branches(2, 3), ())
    assert found == {1: ["relu"], 3: ["b.pool"], 5: ["a.relu", "b.relu"]}


def test_equal_shapes_leave_it_open() -> None:
    found = layers_of_rows(graph(BRANCHES), POSITIONS, of_branches(4, 4), ())
    # The activation of the first branch might run before the second one.
    assert not {1, 5} & found.keys()


def test_a_backward_graph_is_read_in_reverse() -> None:
    nodes: list[Node] = [
        (GRADIENT, []),
        ("cpp_fused_threshold_backward_0", [0]),
        (GRADIENT, [1]),
        ("cpp_fused_threshold_backward_1", [0]),
        (GRADIENT, [3]),
        ("cpp_fused_max_pool2d_with_indices_backward_2", [2]),
        ("cpp_fused_add_threshold_backward_3", [4, 5]),
        (GRADIENT, [6]),
    ]
    positions = {0: 7, 2: 5, 4: 2, 7: 0}
    found = layers_of_rows(graph(nodes, backward=True), positions, of_branches(2, 3), ())
    assert found == {1: ["b.relu"], 3: ["a.relu"], 5: ["b.pool"], 6: ["relu"]}


def test_kernels_beside_a_product_of_unknown_layer_are_left_out() -> None:
    positions = {row: position for row, position in POSITIONS.items() if row != 2}
    found = layers_of_rows(graph(BRANCHES), positions, of_branches(2, 3), ())
    assert not {1, 5} & found.keys()


def test_a_change_of_a_weights_layout_is_of_no_layer() -> None:
    """Its name has the operators of what runs before its convolution."""
    nodes: list[Node] = [
        (CONV, []),
        ("triton_poi_fused_convolution_relu_0", []),
        ("triton_poi_fused_relu_1", [0]),
        (CONV, [2, 1]),
    ]
    known = calls(
        ("entry", "Conv2d", 3, 4), ("relu", "ReLU", 4, 4), ("flat", "Flatten", 4, 4),
        ("last", "Conv2d", 4, 4),
    )  # fmt: skip
    assert layers_of_rows(graph(nodes), {0: 0, 3: 3}, known, ()) == {1: [], 2: ["relu"]}


def test_a_row_of_more_than_eight_layers_is_left_out() -> None:
    nodes: list[Node] = [(CONV, []), ("triton_poi_fused_relu_0", [0]), (CONV, [1])]
    for count, found in ((8, True), (9, False)):
        between = [(f"relu{number}", "ReLU", 4, 4) for number in range(count)]
        known = calls(("entry", "Conv2d", 3, 4), *between, ("last", "Conv2d", 4, 4))
        assert (1 in layers_of_rows(graph(nodes), {0: 0, 2: count + 1}, known, ())) is found

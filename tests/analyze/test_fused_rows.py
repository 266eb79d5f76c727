"""The time of rows of several layers, divided among the layers by the bytes that they move."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from traceana.analyze.fused_rows import divided, fused_parts
from traceana.runs.layer_manifest import Input, Layer, Manifest, manifest

IMAGE = (2, 8, 4, 4)


def model(*layers: tuple[str, str, tuple[int, ...] | None]) -> Manifest:
    """Return a manifest of layers that take and give one shape."""
    return manifest(
        network="test",
        framework="pytorch",
        inputs=(Input(shape=IMAGE, dtype="float32"),),
        layers=tuple(
            Layer(
                path=path,
                type=kind,
                framework_type=kind,
                position=position,
                inputs=() if shape is None else (shape,),
                outputs=() if shape is None else (shape,),
            )
            for position, (path, kind, shape) in enumerate(layers)
        ),
    )


def table(*rows: tuple[str, str, int]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=["layer", "type", "time_ns"], orient="row")


def test_layers_have_their_part_by_elements() -> None:
    known = model(
        ("net.0", "Conv2d", IMAGE),
        ("net.1", "BatchNorm2d", IMAGE),
        ("net.2", "MaxPool2d", (2, 8, 4, 8)),
        ("net.3", "Flatten", IMAGE),
    )
    found = divided(table(("net.0", "Conv2d", 5), ("net.1+2+3", "fused", 1_000)), known)
    assert found.rows() == [
        ("net.1+2+3", "net.1", "BatchNorm2d", 1 / 3, 333),
        ("net.1+2+3", "net.2", "MaxPool2d", 2 / 3, 667),
        ("net.1+2+3", "net.3", "Flatten", 0.0, 0),
    ]


def test_the_time_of_a_product_is_not_divided_by_bytes() -> None:
    known = model(("fc", "Linear", IMAGE), ("act", "ReLU", IMAGE))
    assert divided(table(("fc+act", "fused", 1_000)), known).is_empty()


def test_a_name_is_that_of_the_nearest_layer() -> None:
    """A block and the network around it may have an activation of one name."""
    known = {"relu", "layer1.0.bn1", "layer1.0.relu", "bn1", "pool"}
    assert fused_parts("layer1.0.bn1+relu", "fused", known) == ("layer1.0.bn1", "layer1.0.relu")
    assert fused_parts("bn1+relu+pool", "fused", known) == ("bn1", "relu", "pool")


def test_without_shapes_nothing_is_divided() -> None:
    unknown = model(("1", "BatchNorm2d", IMAGE), ("2", "ReLU", None))
    assert divided(table(("1+2", "fused", 1_000)), unknown).is_empty()
    assert divided(table(("1+2", "fused", 1_000)), None).is_empty()
    # A name of the program, not of fused layers.
    known = model(("1", "BatchNorm2d", IMAGE), ("2", "ReLU", IMAGE))
    assert divided(table(("1+2", "Conv2d", 1_000)), known).is_empty()


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=8), st.integers(0, 10**15))
def test_the_parts_add_up_to_the_row(sizes: list[int], time: int) -> None:
    layers = [(f"net.{one}", "ReLU", (size,)) for one, size in enumerate(sizes)]
    name = "net." + "+".join(map(str, range(len(sizes))))
    found = divided(table((name, "fused", time)), model(*layers))
    assert found.height == len(sizes)
    assert found["time_ns"].sum() == time
    exact = [time * size / sum(sizes) for size in sizes]
    assert all(abs(a - b) <= 1 + b * 1e-12 for a, b in zip(found["time_ns"], exact, strict=True))

"""The features by which the layers of two runs are matched."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from traceana.analyze.fused_rows import fused_parts
from traceana.analyze.layer_operands import operands
from traceana.analyze.layers import layers
from traceana.analyze.manifest_layers import paired, with_names_of
from traceana.timeline.work import work
from traceana.trace import per_trace
from traceana.trace.taxonomy import PRODUCTS
from traceana.trace.work import layer_labels
from traceana.vocabulary.layer_types import Type, plain_word, type_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from traceana.analyze.layer_operands import Operands
    from traceana.runs.layer_manifest import Layer as ManifestLayer
    from traceana.runs.layer_manifest import Manifest
    from traceana.trace import Trace

_SEPARATOR: Final = re.compile(r"[./]")
_SUFFIX: Final = re.compile(r"_\d+$")
_INSTANCE: Final = re.compile(r"_\d+(?=[./]|$)")
MOST_IN_MODEL: Final = 0.75
"""Least part of the nested paths that begin with the model's."""
_NUMBERED: Final = re.compile(r"^(.*?)(?:_\d+)?$")


class Layer(msgspec.Struct, frozen=True):
    """One layer of a run. None: a feature in neither the trace nor its manifest.

    ``path`` is None for numbered names (``Conv2d_3``), which are in ``number``. Shapes are of one
    image, their axes sorted; ``weight`` is the number of elements of the weight, ``kernel`` its
    sorted extents where it is a parameter; ``memory_format`` is the input's; ``flops`` are per step
    and image, of the forward pass: training and inference share it, and compilers merge layers of
    the backward pass.
    """

    label: str
    type: str | None = None
    layer_type: Type | None = None
    path: str | None = None
    number: str | None = None
    takes: str | None = None
    gives: str | None = None
    weight: int | None = None
    flops: float | None = None
    category: str | None = None
    backward: bool | None = None
    kernel: str | None = None
    memory_format: str | None = None
    holds: bool = False


class RunLayers(msgspec.Struct, frozen=True):
    """The layers of one run in the order of the model, and its batch size, None if unknown."""

    layers: tuple[Layer, ...]
    batch: int | None = None


@per_trace
def run_layers(trace: Trace, model: Manifest | None = None) -> RunLayers:
    """Return the layers of ``trace`` that have work, in the order of the model.

    The order is from ``model``, the trace's layer manifest; other layers are in order of execution
    (:func:`execution_order`).
    """
    trace = with_names_of(trace, model)
    table = _folded(layers(trace, direction=True, model=model).frame)
    if table.is_empty():
        return RunLayers(())
    label_of = dict(
        layer_labels(trace.tables)
        .with_row_index("layer_row")
        .filter(pl.col("role") == "layer")
        .select("layer_row", pl.col("layer_path").cast(pl.String))
        .iter_rows()
    )
    described = {} if model is None else paired(trace, model).layer_of
    positions = {row: layer.position for row, layer in described.items()}
    positions |= {} if model is None else _of_fused_rows(trace, model)
    order = execution_order(
        trace, label_of, {label_of[row]: at for row, at in positions.items() if row in label_of}
    )
    recorded = operands(trace)
    weight = {label_of[row]: operand for row, operand in weights(recorded, described).items()}
    formats = {label_of[row]: operand.memory_format for row, operand in recorded.items()}
    rows = sorted(table.to_dicts(), key=lambda row: order.get(row["layer"], len(order)))
    of_class = _categories(trace, label_of)
    batch = _batch([row["input_shape"] for row in rows], attends="attention" in of_class.values())
    steps = max(trace.tables.steps["number"].n_unique(), 1)
    trains = any(row["backward"] for row in rows)
    labels = [row["layer"] for row in rows]
    modules = {plain_name(module) for label in labels for module in modules_of(label)}
    # Instructions that XLA made (loop_fusion.3) are of no layer, and have no type.
    made = re.compile(r"\.\d+$")
    of_model = [row["layer"] for row in rows if row["type"] or not made.search(row["layer"])]
    prefix = _common_prefix(of_model)
    suffix = _common_suffix(of_model, prefix)
    features = []
    for row in rows:
        name, counted = _named(row["layer"], row["type"], prefix, suffix)
        flops = row["flops"]
        extents, parameter = weight.get(row["layer"], ((), False))
        features.append(
            Layer(
                label=row["layer"],
                type=row["type"],
                layer_type=type_of(row["type"]),
                path=name,
                number=counted,
                takes=_per_image(row["input_shape"], batch),
                gives=_per_image(row["output_shape"], batch),
                weight=prod(extents) if row["layer"] in weight else None,
                flops=flops / steps / (batch or 1) if flops else None,
                category=of_class.get(row["layer"]),
                backward=row["backward"] if trains else None,
                kernel=_by_size(extents) if extents and parameter else None,
                memory_format=formats.get(row["layer"]),
                holds=plain_name(row["layer"]) in modules,
            )
        )
    return RunLayers(tuple(features), batch)


def _of_fused_rows(trace: Trace, model: Manifest) -> dict[int, int]:
    """Return the position of the first layer of each fused row, by row of ``layers``.

    Its kernels are of several layers, which may have run on either side of others.
    """
    position = {layer.path: layer.position for layer in model.layers}
    rows = trace.tables.layers.select(pl.col("path", "type").cast(pl.String)).iter_rows()
    return {
        row: min(position[part] for part in parts)
        for row, (path, kind) in enumerate(rows)
        if (parts := fused_parts(path, kind, position))
    }


def _folded(passes: pl.DataFrame) -> pl.DataFrame:
    """Return a table by layer and pass summed to one row per layer."""
    back = pl.col("direction").is_in(["dgrad", "wgrad", "backward"]).fill_null(False)
    return (
        passes.filter(pl.col("role") == "layer")
        .group_by("layer", maintain_order=True)
        .agg(
            pl.col("type", "input_shape", "output_shape").first(),
            pl.col("flops").filter(~back).sum(),
            (back & (pl.col("time_ns") > 0)).any().alias("backward"),
        )
    )


def _categories(trace: Trace, label_of: dict[int, str]) -> dict[str, str]:
    """Return by layer the category with most of its time."""
    from traceana.analyze.layers import located

    named = pl.DataFrame(
        {"layer_row": list(label_of), "label": list(label_of.values())},
        schema={"layer_row": pl.UInt32, "label": pl.String},
    )
    rows = (
        located(trace)
        .join(named, on="layer_row")
        .group_by("label", "category")
        .agg(pl.col("time_ns").sum())
        .sort("time_ns", "category", descending=[True, False])
        .unique("label", keep="first", maintain_order=True)
        .filter(~pl.col("category").is_in(["other", "fused"]))
    )
    return dict(rows.select("label", "category").iter_rows())


def _batch(shapes: list[str | None], *, attends: bool) -> int | None:
    """Return the most frequent first extent of the layers' inputs, None where it is not known.

    In a transformer (``attends``) the rows of a matrix may be the tokens of all sequences, as where
    it is compiled. Their number is then a multiple of the batch, which inputs of more axes have
    first; without those the batch is not known.
    """
    known = [shape for text in shapes if (shape := _shape(text))]
    first = _most_frequent(shape[0] for shape in known)
    deep = [shape for shape in known if len(shape) > 2]
    if first is None or not attends or any(shape[0] == first for shape in deep):
        return first
    sequences = _most_frequent(shape[0] for shape in deep if first // (shape[0] or 1) in shape[1:])
    return None if sequences is None or first % sequences else sequences


def _most_frequent(extents: Iterable[int]) -> int | None:
    """Return the most frequent extent, the least of several, null without one above 0."""
    most = Counter(extents).most_common()
    return min((size for size, count in most if count == most[0][1]), default=0) or None


def _shape(text: str | None) -> list[int] | None:
    shape = None if text is None else json.loads(text)
    if not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
        return None
    return shape


def _per_image(text: str | None, batch: int | None) -> str | None:
    """Return a shape without its batch, its axes sorted, independent of the memory layout."""
    shape = _shape(text)
    if not shape:
        return None
    first = shape[0]
    if batch and first % batch == 0:
        first //= batch
    return _by_size([first, *shape[1:]])


def _by_size(shape: Sequence[int]) -> str:
    return "x".join(str(size) for size in sorted(shape) if size != 1) or "1"


def modules_of(label: str) -> list[str]:
    """Return the labels of the modules around a layer."""
    return [label[: part.start()] for part in _SEPARATOR.finditer(label)]


def plain_name(path: str) -> str:
    """Return a path without case and instance numbers: ``net.bn`` of ``Net_1.bn_2``."""
    return _INSTANCE.sub("", path.casefold())


def _common_prefix(labels: list[str]) -> list[str]:
    """Return the leading parts that most paths of several parts have in common.

    Other paths are of functions outside the model, such as its loss.
    """
    nested = [path for label in labels if len(path := _SEPARATOR.split(label)) > 1]
    ((first, count),) = Counter(path[0] for path in nested).most_common(1) or [("", 0)]
    if count < max(2, len(labels) / 2, MOST_IN_MODEL * len(nested)):
        return []
    inside = [path for path in nested if path[0] == first]
    least, most = min(path[:-1] for path in inside), max(path[:-1] for path in inside)
    different = (at for at, part in enumerate(least) if part != most[at])
    return least[: next(different, len(least))]


def _common_suffix(labels: list[str], prefix: list[str]) -> str:
    """Return the suffix (``_1``) of all parts of all paths that begin with ``prefix``, or none.

    TensorFlow appends it to each scope of a model that is built a second time.
    """
    paths = [path for label in labels if (path := _SEPARATOR.split(label))[: len(prefix)] == prefix]
    nested = [path for path in paths if len(path) > 1]
    if len(nested) < 2 or len(nested) * 2 < len(labels):
        return ""
    matches = [_SUFFIX.search(part) for path in nested for part in path]
    suffixes = {match[0] if match else "" for match in matches}
    return suffixes.pop() if len(suffixes) == 1 else ""


def _named(
    label: str, type_: str | None, prefix: list[str], suffix: str
) -> tuple[str | None, str | None]:
    """Return the path if it is not a default name, else the numbered name."""
    parts = _SEPARATOR.split(label)
    inside = len(parts) > len(prefix) and parts[: len(prefix)] == prefix
    kept = [part.removesuffix(suffix) for part in parts[len(prefix) :]] if inside else parts
    path = ".".join(kept)
    last = kept[-1]
    base = _NUMBERED.match(last)
    if type_ and base and base[1] != last and plain_word(base[1]) == plain_word(type_):
        return None, path
    return path, None


def execution_order(
    trace: Trace, label_of: Mapping[int, str], positions: Mapping[str, int]
) -> dict[str, int]:
    """Return the position of each layer with work; ``label_of`` maps rows of ``layers`` to names.

    Layers are ordered by the time in the step at which half of their forward work has begun, as
    the median over the steps: work that a scheduler moves forward (casts, random numbers) or back
    (moving averages) is short. In a layer with convolutions or GEMMs only these count, because
    transposing a weight can take longer and run earlier. ``positions`` of a manifest come first; a
    layer that is not in it comes after the layer that ran before it.
    """
    names = pl.DataFrame(
        {"layer": list(label_of), "label": list(label_of.values())},
        schema={"layer": pl.UInt32, "label": pl.String},
    )
    begins = trace.tables.steps.select(
        pl.int_range(pl.len(), dtype=pl.UInt32).alias("step"), pl.col("start").alias("of_step")
    )
    products = trace.tables.names.with_row_index("name_id").filter(
        pl.col("category").cast(pl.String).is_in(PRODUCTS)
    )["name_id"]
    rows = (
        work(trace, "layer", "step", "direction", "start", "duration", "name_id")
        .join(names, on="layer", how="inner", maintain_order="left")
        .join(begins, on="step", how="left", maintain_order="left")
        .with_columns(
            (pl.col("start") - pl.col("of_step").fill_null(0)).alias("at"),
            (pl.col("direction") == "backward").fill_null(False).alias("back"),
            pl.col("name_id").is_in(products.implode()).alias("product"),
        )
        .filter(~pl.col("back") | pl.col("back").all().over("label"))
        .filter(pl.col("product") | ~pl.col("product").any().over("label"))
    )
    whole = pl.col("duration").sum().over("label", "step")
    ordered = (
        rows.sort("at", "duration")
        .filter(pl.col("duration").cum_sum().over("label", "step") * 2 >= whole)
        .unique(["label", "step"], keep="first", maintain_order=True)
        .group_by("label")
        .agg(pl.col("at").median())
        .sort("at", "label")["label"]
        .to_list()
    )
    if not positions:
        return {label: place for place, label in enumerate(ordered)}
    place: dict[str, tuple[int, int]] = {}
    last = -1
    for ran, label in enumerate(ordered):
        last = positions.get(label, last)
        place[label] = (last, -1 if label in positions else ran)
    return {label: at for at, label in enumerate(sorted(place, key=place.__getitem__))}


def weights(
    recorded: Mapping[int, Operands], described: Mapping[int, ManifestLayer]
) -> dict[int, tuple[tuple[int, ...], bool]]:
    """Return by row of ``layers`` the extents of its weight, and whether it is a parameter.

    ``described`` are the layers of a manifest. Without one the weight is from the operators
    (``recorded``), where the second operand may be an activation.
    """
    weight_of = {
        row: (tuple(operand.weight), operand.parameter)
        for row, operand in recorded.items()
        if operand.weight
    }
    for row, layer in described.items():
        if "weight" in layer.parameters:
            weight_of[row] = (tuple(layer.parameters["weight"]), True)
    return weight_of

"""Time, work and rates by layer, as rows that add up to the work of the trace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Final

import polars as pl
from msgspec.structs import replace

from traceana.analyze.charges import charges, on_flops
from traceana.analyze.coverage import counted, incomplete
from traceana.analyze.kernels import far_calls_of_layers
from traceana.analyze.layer_operands import Operands, operands
from traceana.analyze.manifest_layers import paired, with_names_of
from traceana.analyze.measured import COLUMNS as MEASURED
from traceana.analyze.measured import added, measured_notes, measured_sums, with_measured_rates
from traceana.analyze.rates import COLUMNS as COSTS
from traceana.analyze.rates import (
    UNEXPLAINED,
    bound,
    machine,
    peak_note,
    peaks_by,
    with_flop_rates,
)
from traceana.enrich.layers.source import SEPARATOR
from traceana.result import Result, sums, with_share
from traceana.settings import UNSCOPED_PERCENT
from traceana.table import (
    COUNT,
    NUMBER,
    PART,
    PARTS,
    PATH,
    SHARE,
    TEXT,
    TIME,
    Column,
    Columns,
    conformed,
    laid_out,
    names_of,
    whole_sum,
)
from traceana.timeline.work import why_no_work, work
from traceana.trace.taxonomy import NO_ARITHMETIC, PRODUCTS
from traceana.trace.work import OUTSIDE, PASSES
from traceana.vocabulary.operators import COMPILED_REGION

if TYPE_CHECKING:
    from traceana.flops.peaks import Peaks
    from traceana.runs.layer_manifest import Layer, Manifest
    from traceana.trace import Trace
    from traceana.vocabulary.option_words import LayersBy

DIRECTIONS: Final = ("forward_ns", "backward_ns", "optimizer_ns", "other_ns")
"""Columns of :func:`by_direction`."""

_BACKWARD: Final = ("dgrad", "wgrad", "backward")

SHAPES: Final = ("input_shape", "output_shape")

INSIDE: Final = ("layout", "bias", "activation")
"""Categories with a column: the time of a layer besides its computation."""

_BY_DIRECTION: Final = "; null where the row has none of it and work whose direction is not known"
_COUNTERS: Final = ("measured", "measured_flops", "measured_flops_per_s", "dram_bytes")
COLUMNS: Final = laid_out(
    (
        Column(
            "layer",
            PATH,
            "path of the layer; of other rows in parentheses the role, `(optimizer)`, or the "
            "reason: `(launched before capture)`, `(outside all layers)`. With `--depth N` the "
            "first N parts of the path, with `--by type` the type",
        ),
        Column("type", TEXT, "its type, where known"),
        Column(
            "role",
            TEXT,
            "`layer`, `optimizer`, `data`, `collective`, `algorithm search` (trials of autotuners "
            "and concurrent work), `hooks` (what PyTorch runs for the hooks of modules), "
            "`unattributed`",
        ),
        Column(
            "position",
            NUMBER,
            "order in the manifest, else of first execution; null for a role",
            type=pl.Int32,
        ),
        Column(
            "direction",
            PART,
            "with `--direction` only: `dgrad` or `wgrad` of convolutions and products whose kernel "
            "names have it, `forward`, `backward` of everything else, `optimizer`, or null",
            title="pass",
            type=PASSES,
        ),
        Column("calls", COUNT, "pieces of device work", additive=True),
        Column("forward_ns", TIME, "time of the forward pass" + _BY_DIRECTION, additive=True),
        Column("backward_ns", TIME, "time of the backward pass" + _BY_DIRECTION, additive=True),
        Column("optimizer_ns", TIME, "time of the optimizer" + _BY_DIRECTION, additive=True),
        Column("other_ns", TIME, "time whose direction is not known", additive=True),
        Column(
            "time_ns",
            TIME,
            "sum of the four times; with `--direction`, of that direction",
            additive=True,
        ),
        Column("share", SHARE, "of all work"),
        Column("algorithm", PARTS, "algorithms of its convolutions, most time first"),
        *COSTS,
        Column(
            "input_shape",
            TEXT,
            "JSON list, of the first input, batch first: from the layer manifest, whose channels "
            "stand behind the batch, else of the layer's first operator; null where several layers "
            "are folded",
        ),
        Column("output_shape", TEXT, "the same of the first output"),
        *(
            Column(
                f"{category}_ns",
                TIME,
                f"part of `time_ns` in kernels of class {category}",
                additive=True,
            )
            for category in INSIDE
        ),
        *(column for column in MEASURED if column.name in _COUNTERS),
    ),
    hidden="role position over_peak bytes of_attainable input_shape output_shape bias_ns "
    "activation_ns measured measured_flops_per_s",
    dropped="dram_bytes measured_flops layout_ns arithmetic_intensity executed_flops calls bar "
    "type optimizer_ns other_ns flops flops_per_s algorithm bound of_peak",
    bars="share",
)


def columns_by(by: LayersBy = "layer", *, direction: bool = False, costs: bool = True) -> Columns:
    """Return the columns of :func:`layers`."""
    left_out = {*(DIRECTIONS if direction else ["direction"])}
    if not costs:
        left_out |= {*names_of(COSTS), *SHAPES}
    columns = tuple(column for column in COLUMNS if column.name not in left_out)
    if by == "layer":
        return columns
    # The type is the key, and has the place of the path.
    layer, kind, *others = columns
    return (replace(layer, title="type"), replace(kind, shown=False), *others)


def layers(
    trace: Trace,
    *,
    by: LayersBy = "layer",
    depth: int | None = None,
    direction: bool = False,
    costs: bool = True,
    model: Manifest | None = None,
    peaks: Peaks | None = None,
) -> Result:
    """Return one row per layer, and one per role outside layers (optimizer, data, collective …).

    ``by`` "type" folds all layers of a type into one row, ``depth`` those whose paths begin with
    the same parts. With ``direction`` there is a row per pass (``direction``: forward, dgrad,
    wgrad, backward, optimizer or null) instead of a column per pass. ``model`` has the types of
    layers, and the shapes of layers without shapes in the trace; ``peaks`` are used where the
    device is not recorded.

    The columns are those of :func:`columns_by`; without ``costs`` there are no shapes and rates. In
    order of position, roles last.
    """
    trace = with_names_of(trace, model)
    described = costs or model is not None
    shapes, on_shapes = _shapes_of(trace, model) if described else (None, ())
    names = layer_keys(_described(trace.tables.layers, shapes), by, depth)
    charged = charges(trace, model) if costs else None
    work = with_layer_keys(
        located(trace, None if charged is None else charged.coverage["reason"]), names
    )
    keys = [*_KEYS, *(["direction"] if direction else [])]
    if direction:
        work = work.with_columns(pl.col("pass").alias("direction"))
    time = pl.col("time_ns")
    times = () if direction else DIRECTIONS
    algorithms = (
        work.filter(pl.col("category") == "conv")
        .group_by(*keys, "part")
        .agg(time.sum())
        .sort(["time_ns", "part"], descending=[True, False])
        .group_by(keys, maintain_order=True)
        .agg(pl.col("part").str.join(", ").alias("algorithm"))
    )
    frame = (
        work.group_by(keys)
        .agg(
            pl.col("calls").sum(),
            *([] if direction else by_direction()),
            time.sum(),
            *(time.filter(pl.col("category") == name).sum().alias(f"{name}_ns") for name in INSIDE),
            *added(),
        )
        .join(algorithms, on=keys, how="left", nulls_equal=True)
    )
    notes: tuple[str, ...] = ()
    if shapes is not None and charged is not None:
        of_trace, on_peak = machine(trace)
        by_layer = with_layer_keys(charged.frame.rename({"layer": "layer_row"}), names)
        frame = with_flop_rates(frame, keys, work, by_layer, of_trace or peaks)
        # The shapes of rows with one layer.
        alone = names.filter(pl.len().over("layer", "role") == 1).join(shapes, on="layer_row")
        frame = frame.join(alone.select("layer", "role", *SHAPES), on=["layer", "role"], how="left")
        if frame.height:
            notes = (*on_shapes, *charged.notes, *on_flops(trace, charged))
        if (frame["flops"] > 0).any():
            notes += (on_peak if of_trace is not None or peaks is None else peak_note(peaks),)
            over = frame.filter(pl.col("over_peak") == UNEXPLAINED)["layer"].unique().sort()
            if over.len():
                notes += (f"above peak, unexplained: {', '.join(over)}",)
            if not direction:
                notes += _on_products(frame, keys, work, by_layer, of_trace or peaks)
    frame = with_measured_rates(with_share(frame), trace).sort(
        "position", "layer", "role", *keys[len(_KEYS) :], nulls_last=True, maintain_order=True
    )
    columns = columns_by(by, direction=direction, costs=costs)
    frame = conformed(frame, columns)
    measured = ["measured_flops", "dram_bytes"] if trace.tables.counters.height else []
    totals = sums(frame, "calls", *times, "time_ns", *measured, *(("flops",) if costs else ()))
    notes = (*(far_calls_of_layers(trace) if costs else ()), *notes)
    return Result(frame, totals, (*_notes(trace, frame, work), *notes), columns)


def _on_products(
    frame: pl.DataFrame,
    keys: list[str],
    work: pl.DataFrame,
    charged: pl.DataFrame,
    peaks: Peaks | None,
) -> tuple[str, ...]:
    """Return a note on memory-bound layers of ``frame`` whose products alone are compute-bound.

    ``work`` is located work by the same ``keys``, ``charged`` its charges.
    """
    products = (
        charged.filter(pl.col("product"))
        .group_by(keys)
        .agg(pl.col("flops").sum(), whole_sum("bytes"))
        .join(peaks_by(work, keys, peaks, charged), on=keys, nulls_equal=True)
        .filter(
            bound(pl.col("flops"), pl.col("bytes"), pl.col("_peak"), pl.col("_bandwidth"))
            == "compute"
        )
    )
    unlike = frame.filter(pl.col("bound") == "memory").join(
        products, on=keys, how="semi", nulls_equal=True
    )
    if unlike.is_empty():
        return ()
    counted_layers = (
        "1 memory-bound layer has"
        if unlike.height == 1
        else (f"{unlike.height:,} memory-bound layers have")
    )
    return (
        f"{counted_layers} compute-bound products (flops --by gemm): the bytes of a layer are of "
        "all its kernels, with casts and bias gradients",
    )


_DESCRIBED: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "layer_row": pl.UInt32,
    "described_type": pl.String,
    "described_position": pl.Int64,
    "input_shape": pl.String,
    "output_shape": pl.String,
}


def _shapes_of(trace: Trace, model: Manifest | None) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return by ``layer_row`` its type and position in the manifest and its shapes, and notes.

    :data:`SHAPES` are JSON lists, batch first; the manifest's have the channels after the batch.
    Without a manifest, and for a layer whose input has a different number of elements there, the
    shapes are from the layer's first operator (:func:`traceana.analyze.layer_operands.operands`).
    It has no output in PyTorch.
    """
    partner = {} if model is None else paired(trace, model).layer_of
    seen = operands(trace)
    rows: dict[int, tuple[str | None, int | None, str | None, str | None]] = {
        row: (None, None, _json(operand.input), _json(operand.output))
        for row, operand in seen.items()
    }
    other: list[str] = []
    # TensorFlow pads the input of a dilated convolution and rearranges it.
    rearranges = bool((trace.tables.ops["name"] == "SpaceToBatchND").any())
    # The first operator of a module's functions may have another input than the module.
    around = frozenset() if model is None else model.container_paths()
    for row, layer in partner.items():
        first = layer.inputs[0] if layer.inputs else None
        comparable = row in seen and layer.path not in around and not _of_state(seen[row], layer)
        recorded = seen[row].input if comparable else None
        differs = first is not None and recorded is not None and prod(recorded) != prod(first)
        if differs and not (rearranges and any(step > 1 for step in layer.dilation or ())):
            other.append(layer.path)
            rows[row] = (layer.type, layer.position, *rows[row][2:])
            continue
        output = layer.outputs[0] if layer.outputs else None
        rows[row] = (layer.type, layer.position, _json(first), _json(output))
    notes: tuple[str, ...] = ()
    if other:
        others = "1 layer has another input size in the trace"
        dots = ""
        if len(other) > 1:
            others, dots = f"{len(other)} layers have other input sizes in the trace", " ..."
        notes = (f"layer manifest differs in batch or model: {others} ({other[0]}{dots})",)
    return pl.DataFrame(
        [(row, *values) for row, values in rows.items()], schema=_DESCRIBED, orient="row"
    ), notes


def _of_state(seen: Operands, layer: Layer) -> bool:
    """Return whether ``seen`` is the product of a recurrent layer's state, not of its input."""
    recurrent = layer.parameters.get("recurrent_kernel")
    weight = seen.weight
    return recurrent is not None and weight is not None and prod(weight) == prod(recurrent)


def _json(shape: Sequence[int] | None) -> str | None:
    return None if shape is None else json.dumps(shape)


def _described(layers: pl.DataFrame, shapes: pl.DataFrame | None) -> pl.DataFrame:
    """Return ``layers`` with the types and the order of the manifest.

    A layer that is not in the manifest comes after the layer that ran before its first execution.
    """
    if shapes is None:
        return layers
    position = pl.col("described_position")
    described = (
        layers.with_row_index("layer_row")
        .join(
            shapes.select("layer_row", "described_type", "described_position"),
            on="layer_row",
            how="left",
            maintain_order="left",
        )
        .sort("position", maintain_order=True)
        .with_columns(position.forward_fill().fill_null(-1).alias("behind"))
        .sort("behind", position.is_null(), maintain_order=True)
    )
    return (
        described.with_columns(
            pl.coalesce("described_type", "type").alias("type"),
            pl.int_range(pl.len()).cast(layers.schema["position"]).alias("position"),
        )
        .sort("layer_row")
        .select(layers.columns)
    )


def _notes(trace: Trace, frame: pl.DataFrame, work: pl.DataFrame) -> tuple[str, ...]:
    if frame.is_empty():
        return (why_no_work(trace),)
    notes = measured_notes(trace)
    backward = work.filter(pl.col("pass").is_in(_BACKWARD))
    if lost := int(backward.filter(role="unattributed")["time_ns"].sum()):
        share = 100 * lost / int(backward["time_ns"].sum())
        note = f"backward kernels not linked to layers: {share:.1f} % of their time"
        advice = _linking(trace)
        notes = (f"{note} ({advice})" if advice else note, *notes)
    if not (frame["role"] == "layer").any():
        return (_why_no_layers(trace), *notes)
    whole = max(int(frame["time_ns"].sum()), 1)
    if trace.meta.framework == "JAX":
        outside = int(frame.filter(pl.col("layer") == OUTSIDE)["time_ns"].sum())
        if (share := 100 * outside / whole) >= UNSCOPED_PERCENT:
            return (f"time without a layer's name scope: {share:.1f} % ({_NAMING})", *notes)
        return notes
    # Backward passes of torch.compile that are not divided by layer.
    without_shapes = not trace.tables.ops["input_shapes"].count()
    if "backward_ns" in frame.columns and without_shapes:
        regions = frame.filter(pl.col("layer").str.starts_with(COMPILED_REGION))
        if (share := 100 * int(regions["backward_ns"].sum()) / whole) >= UNSCOPED_PERCENT:
            reason = "without recorded shapes nothing tells its calls apart: record_shapes=True"
            notes = (
                *notes,
                f"backward time in regions of torch.compile: {share:.1f} % ({reason})",
            )
    return notes


def _linking(trace: Trace) -> str:
    """Return what links the backward kernels of ``trace`` to layers; empty where nothing does."""
    if trace.meta.framework == "JAX":
        return "name the layers: jax.named_scope, or Flax Linen"
    if trace.meta.framework == "TensorFlow":
        return "name the layers: tf.name_scope inside a tf.function"
    nodes = trace.tables.activities["graph_node"]
    if nodes.count() > nodes.null_count():
        return "replays of CUDA graphs: --capture FILE, a recording of the capture"
    if trace.meta.format == "kineto":
        # torch.profiler records sequence numbers wherever PyTorch has them.
        return ""
    return "record sequence numbers: torch.profiler, or torch.autograd.profiler.emit_nvtx"


_NAMING: Final = (
    "inside jax.jit, jax.named_scope and Flax Linen add name scopes, NNX does not; XLA drops some "
    "of them"
)


def _why_no_layers(trace: Trace) -> str:
    if trace.meta.framework == "TensorFlow":
        return "no layers in the trace: TensorFlow records name scopes only inside a tf.function"
    if trace.meta.framework != "JAX":
        return (
            "no layers in the trace: record nn.Module events, or NVTX or record_function ranges "
            "around the layers"
        )
    if (
        trace.tables.ops["scope"].is_null().all()
        and trace.tables.activities["scope"].is_null().all()
    ):
        return "no layers: no name scopes in this file (XLA writes them to .xplane.pb)"
    return f"no layers: no name scopes in the program ({_NAMING})"


def layer_classes(
    trace: Trace,
    *,
    by: LayersBy = "layer",
    depth: int | None = None,
    direction: bool = False,
    model: Manifest | None = None,
) -> pl.DataFrame:
    """Return the class that computes of each layer: ``layer`` and ``category``.

    It is the class with most time among those with most FLOPs (:data:`PRODUCTS`), else among those
    that compute, else among all. Layers have the names, and are grouped, as in
    :func:`traceana.analyze.layers.layers`; with ``direction`` there is a row per pass.
    """
    trace = with_names_of(trace, model)
    work = with_layer_keys(located(trace), layer_keys(trace.tables.layers, by, depth))
    keys = ["layer", *(["direction"] if direction else [])]
    category = pl.col("category")
    rank = (
        pl.when(category.is_in(PRODUCTS))
        .then(0)
        .when(category.is_in((*NO_ARITHMETIC, "indexing")))
        .then(2)
        .otherwise(1)
    )
    of_layers = work.filter(pl.col("role") == "layer").with_columns(
        pl.col("pass").alias("direction")
    )
    return (
        of_layers.filter(rank == rank.min().over(keys))
        .group_by(*keys, "category")
        .agg(pl.col("time_ns").sum())
        .sort("time_ns", "category", descending=[True, False])
        .unique(keys, keep="first", maintain_order=True)
        .select(*keys, "category")
    )


def by_direction() -> list[pl.Expr]:
    """Return the sums of ``time_ns`` by direction (:data:`DIRECTIONS`), which add up to its sum.

    ``other_ns`` is of work with unknown direction. Where there is such work, a direction
    without any time is null: the work may be of that direction.
    """
    time = pl.col("time_ns")
    of = {
        name: time.filter(pl.col("direction") == name.removesuffix("_ns")).sum()
        for name in DIRECTIONS[:-1]
    }
    other = time.filter(pl.col("direction").is_null()).sum()
    return [
        *(
            pl.when((value > 0) | (other == 0)).then(value).alias(name)
            for name, value in of.items()
        ),
        other.alias(DIRECTIONS[-1]),
    ]


def located(trace: Trace, reason: pl.Series | None = None) -> pl.DataFrame:
    """Return the work by ``layer_row``, ``direction``, class, precision and tensor cores.

    ``reason`` is the reason why each row of ``work(trace)`` has no FLOP count
    (:func:`traceana.analyze.charges.charges`). Columns: ``direction`` (forward, backward,
    optimizer or null), ``pass`` (of :data:`PASSES`, or null), ``category``, ``part``,
    ``precision``, ``tensor_core``, ``calls``, ``time_ns``, ``counted_ns`` (of counted work),
    ``incomplete`` (whether some of it has no count) and those of
    :func:`traceana.analyze.measured.measured_sums`.
    """
    classes = ("category", "part", "precision", "tensor_core")
    keys = ("layer", "direction", "pass", *classes)
    why = pl.col("reason")
    return (
        work(trace, *keys, "duration")
        .with_columns(pl.lit(None, pl.String).alias("reason") if reason is None else reason)
        # A sum of a column takes a fraction of the time of a filtered sum in each group.
        .with_columns(
            pl.when(counted(why)).then("duration").otherwise(0).alias("counted_ns"),
            incomplete(why).fill_null(False).alias("incomplete"),
        )
        .group_by(keys)
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            pl.col("duration").sum().alias("time_ns"),
            pl.col("counted_ns").sum(),
            pl.col("incomplete").any(),
        )
        .join(measured_sums(trace, *keys), on=keys, how="left", nulls_equal=True)
        .with_columns(pl.col("direction", "category", "part", "precision").cast(pl.String))
        .rename({"layer": "layer_row"})
    )


_KEYS: Final = ("layer", "type", "role", "position")
LAYER_KEYS: Final = ("layer", "role")
"""Columns that identify a row of :func:`layers`; with ``direction`` that too."""


def layer_keys(layers: pl.DataFrame, by: LayersBy, depth: int | None) -> pl.DataFrame:
    """Return the :data:`_KEYS` of each row of ``layers`` (``layer_row``) in a table by layer.

    ``layer`` is the path, cut to ``depth`` parts if given, or the type. Rows without a layer have
    their role, or the reason, in parentheses. ``position`` is the first position of the row's
    layers.
    """
    path, kind = pl.col("path"), pl.col("type")
    is_layer = pl.col("role") == "layer"
    label = (
        path if depth is None else path.str.split(SEPARATOR).list.head(depth).list.join(SEPARATOR)
    )
    if by == "type":
        label = kind.fill_null("(no type)")
    named = layers.with_row_index("layer_row").with_columns(pl.col("role").cast(pl.String))
    types = named.filter(is_layer).select(path.alias("label"), kind.alias("type_of_label"))
    return (
        named.with_columns(
            pl.when(is_layer)
            .then(label)
            .when(pl.col("role") == "unattributed")
            .then(path)
            .otherwise("(" + pl.col("role") + ")")
            .alias("label")
        )
        .join(
            types.unique("label", keep="first", maintain_order=True),
            on="label",
            how="left",
            maintain_order="left",
        )
        .with_columns(
            pl.when(is_layer).then(pl.col("position").min().over("label", "role")).alias("position")
        )
        .select(
            "layer_row",
            pl.col("label").alias("layer"),
            pl.when(is_layer)
            .then(pl.col("label") if by == "type" else pl.col("type_of_label"))
            .alias("type"),
            "role",
            "position",
        )
    )


def with_layer_keys(rows: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
    """Return ``rows`` (with ``layer_row``) with their :func:`layer_keys`."""
    return rows.join(keys, on="layer_row", how="left", maintain_order="left").with_columns(
        pl.col("role").fill_null("unattributed"), pl.col("layer").fill_null(OUTSIDE)
    )

"""Episodes: convolutions of one or several kernels.

Three passes find the activities that can be part of a convolution, cut runs of them into episodes
(preparation, products, completion), and find the direction of each episode: fprop, dgrad or wgrad.
"""

from __future__ import annotations

from typing import Final

import msgspec
import polars as pl

from traceana.columns.distinct import ascii_classes, numbered
from traceana.columns.nesting import NONE, from_rows, take
from traceana.enrich.refine.situations import QUEUE, Context, Operators, by_queue

_COMPUTING: Final = ("conv", "gemm")
_PARTS: Final = (*_COMPUTING, "layout")
_COMPLEX: Final = ("c64", "c128")
_BETWEEN: Final = "|"
_PROCESS_DEVICE: Final = tuple(column for column in QUEUE if column != "stream")


def possible_parts(
    activities: pl.DataFrame, names: pl.DataFrame, operators: Operators, context: Context
) -> pl.DataFrame:
    """Return the activities that can be part of a convolution, run by run in order of time.

    A run is the launches of one convolution operator, or, without such an operator, consecutive
    possible parts on a stream. Columns: ``row`` (of ``activities``), ``run``, ``start``,
    ``stream``, ``process_device`` (a number), ``convolution`` (row of the operator, or null),
    ``scoped`` (whether its name scope is a convolution's), ``direction_by_name`` (of the scope),
    ``direction`` and ``layer`` (of the activity), and those of the name: ``name_id``, ``category``,
    ``algorithm``, ``named_direction``, ``directions``, ``function``, ``precision``, ``phase`` and
    ``phase_by_name``.
    """
    by_name = _name_facts(names, context)
    op = from_rows(activities["op"])
    convolution = take(operators.convolution_of, op)
    of_operator, name = pl.Series(convolution != NONE), activities["name_id"]
    is_part = by_name["category"].is_in(_PARTS).fill_null(value=False)
    launched = pl.Series(convolution == op)
    owned = of_operator & (activities["kind"] != "sync") & (launched | is_part.gather(name))
    unowned = ~of_operator & activities["kind"].is_in(["kernel", "op"])
    is_convolution = (by_name["category"] == "conv").fill_null(value=False)
    scopes = operators.scopes.filter("convolution")["scope"]
    without_operator = unowned & (
        is_convolution.gather(name) | activities["scope"].is_in(scopes.implode())
    )
    candidates = (
        activities.lazy()
        .select("name_id", "kind", "start", "op", "scope", "direction", "layer", *QUEUE)
        .with_row_index("row")
        .with_columns(pl.Series("convolution", convolution))
        # Without a convolution no run is one, and its rows have no use.
        .filter(owned | unowned if without_operator.fill_null(value=False).any() else owned)
        .join(by_name.lazy(), on="name_id", how="left", maintain_order="left")
        .join(
            operators.scopes.lazy().select(
                "scope", pl.col("convolution").alias("scoped"), "direction_by_name"
            ),
            on="scope",
            how="left",
            maintain_order="left",
        )
        .collect()
    )
    (process_device,) = numbered(candidates.select(_PROCESS_DEVICE))
    candidates = candidates.with_columns(pl.Series("process_device", process_device))
    has_operator = pl.col("convolution") != NONE
    of_operators = candidates.filter(has_operator).with_columns(pl.col("convolution").alias("run"))
    # Without an operator, consecutive possible parts on a stream are a run.
    possible = (pl.col("category").is_in(_PARTS) | pl.col("phase_by_name")).fill_null(False)
    run = pl.struct("possible", "op", "scope", "queue").rle_id().cast(pl.Int64)
    runs_by_stream = (
        _with_tiles_together(by_queue(candidates.filter(~has_operator)))
        .with_columns(possible.alias("possible"))
        .with_columns((run + len(operators.of_op)).alias("run"))
        .filter("possible")
    )
    runs = [of_operators, runs_by_stream]
    columns = [
        *by_name.columns,
        *("row", "run", "start", "stream", "process_device", "convolution"),
        *("scoped", "direction_by_name", "direction", "layer"),
    ]
    return (
        pl.concat(
            [frame.select(columns) for frame in runs if frame.height]
            or [of_operators.select(columns)]
        )
        .sort("run", "start", "row")
        .with_columns(pl.when(pl.col("convolution") != NONE).then("convolution"))
    )


def _with_tiles_together(rows: pl.DataFrame) -> pl.DataFrame:
    """Return ``rows`` with one ``queue`` for the streams of FFT convolutions, in order of time.

    An FFT convolution computes its tiles on several streams of a device.
    """
    product = (pl.col("category") == "gemm") & pl.col("precision").is_in(_COMPLEX)
    transform = (pl.col("category") == "conv") & pl.col("algorithm").is_in(_FFT)
    tiled = (product | transform).fill_null(False)
    if not rows.select(transform.any()).item():
        return rows
    together = tiled.any().over("queue") & transform.any().over("process_device")
    return (
        rows.with_columns(together.fill_null(False).alias("together"))
        .with_columns(
            pl.when("together")
            .then(pl.col("queue").min().over("process_device", "together"))
            .otherwise("queue")
            .alias("queue")
        )
        .sort("queue", "start", "row")
    )


def _name_facts(names: pl.DataFrame, context: Context) -> pl.DataFrame:
    text = names["name"]
    phase = pl.coalesce(
        *(
            pl.when(text.str.contains(ascii_classes(pattern.name))).then(pl.lit(pattern.phase))
            for pattern in context.phases
        )
    )
    directions = pl.coalesce(
        pl.lit(None, pl.String),
        *(
            pl.when(text.str.contains(ascii_classes(pattern.name))).then(
                pl.lit(_BETWEEN.join(pattern.directions))
            )
            for pattern in context.directions
        ),
    )
    category = names["category"]
    return names.select(
        pl.int_range(pl.len(), dtype=pl.UInt32).alias("name_id"),
        "category",
        "algorithm",
        pl.col("direction").alias("named_direction"),
        "function",
        "precision",
        phase.alias("phase"),
        directions.alias("directions"),
    ).with_columns(
        pl.col("phase").is_not_null().alias("phase_by_name"),
        pl.coalesce(
            pl.when(category.is_in(["memcpy", "memset"])).then(pl.lit("before")),
            pl.when(category == "layout").then(pl.lit("layout")),
            "phase",
            pl.when(category.is_in(_COMPUTING)).then(pl.lit("main")),
            pl.lit("after"),
        ).alias("phase"),
    )


_RANK: Final = {"before": 0, "main": 1, "after": 2}
_LAYOUT_CHANGES: Final = ("nchw_to_nhwc", "nhwc_to_nchw")


class Episodes(msgspec.Struct, frozen=True):
    """Episodes and the activities in them.

    ``table`` has one row per episode: ``op``, ``algorithm``, ``direction``. ``members`` has one row
    per activity of an episode: ``row`` (of the activities), ``episode`` and ``main`` (whether it is
    neither preparation nor completion).
    """

    table: pl.DataFrame
    members: pl.DataFrame


def find_episodes(possible: pl.DataFrame, ops: pl.DataFrame, known: Operators) -> Episodes:
    """Return the episodes of the runs of ``possible`` parts.

    Within a run, preparation, products and completion follow each other. A part of an earlier phase
    starts a new segment, and so does a product of another kind. Consecutive segments of one
    algorithm and direction are one episode: a convolution that is computed in pieces. ``known`` is
    what is known of ``ops``.
    """
    if possible.is_empty():
        return Episodes(
            pl.DataFrame(schema={"op": pl.UInt32, "algorithm": pl.String, "direction": pl.String}),
            pl.DataFrame(schema={"row": pl.UInt32, "episode": pl.UInt32, "main": pl.Boolean}),
        )
    parts = _with_segments(_with_phase_ranks(possible))
    segments = _segments(parts)
    segments = _with_directions(segments, ops, known)
    episode = pl.struct("run", "algorithm", "direction").rle_id().cast(pl.Int64)
    segments = segments.with_columns(episode.alias("episode"))
    table = (
        segments.group_by("episode", maintain_order=True)
        .agg(pl.col("convolution", "algorithm", "direction").first(), pl.col("start").min())
        .sort("start", "episode")
        .with_row_index("number")
    )
    members = (
        parts.join(segments.select("segment", "episode"), on="segment", how="inner")
        .join(table.select("episode", "number"), on="episode", how="inner")
        .select("row", pl.col("number").alias("episode"), (pl.col("rank") == 1).alias("main"))
    )
    return Episodes(
        table.select(pl.col("convolution").cast(pl.UInt32).alias("op"), "algorithm", "direction"),
        members,
    )


def _with_phase_ranks(parts: pl.DataFrame) -> pl.DataFrame:
    """Return ``parts`` with ``rank``, the number of their phase; layout changes by their order.

    A layout change like the first one of the run prepares, the inverse one completes. Of changes
    whose name does not have the layouts, the first one after a product completes it, and the others
    prepare the next product.
    """
    layout = pl.col("phase") == "layout"
    change = pl.when(layout & pl.col("function").is_in(_LAYOUT_CHANGES)).then("function")
    main = pl.col("phase") == "main"
    begins = (pl.col("run") != pl.col("run").shift()).fill_null(True)
    changes = (
        parts.select("run", change.alias("first_change")).drop_nulls().unique("run", keep="first")
    )
    with_changes = parts.join(changes, on="run", how="left", maintain_order="left").with_columns(
        change.alias("change"),
        _count_since(begins, main).alias("after_main"),
        _count_since(begins | main, layout & change.is_null()).alias("nth"),
    )
    completes = (
        pl.when(pl.col("change").is_not_null())
        .then(pl.col("change") != pl.col("first_change"))
        .otherwise((pl.col("after_main") > 0) & (pl.col("nth") == 1))
    )
    rank = (
        pl.when(layout)
        .then(pl.when(completes).then(2).otherwise(0))
        .otherwise(pl.col("phase").replace_strict(_RANK, default=None, return_dtype=pl.Int32))
    )
    return with_changes.with_columns(rank.alias("rank")).drop(
        "change", "after_main", "first_change", "nth"
    )


def _count_since(begins: pl.Expr, counted: pl.Expr) -> pl.Expr:
    """Return the number of ``counted`` rows since the last row that ``begins``, both included."""
    total = counted.cast(pl.Int64).cum_sum()
    return total - pl.when(begins).then(total - counted.cast(pl.Int64)).forward_fill()


_FFT: Final = ("fft", "fft_tiling")
_BY_TRANSFORMS: Final = (*_FFT, "winograd_nonfused")
"""Algorithms of a preparation, products and completion: no kernel of another is among them."""


def _with_segments(parts: pl.DataFrame) -> pl.DataFrame:
    """Return ``parts`` with ``segment``, stream by stream of each run, in order of time.

    A segment has one algorithm as far as the names have it. ``between`` is whether transforms of
    FFT convolutions are before and behind in the run.
    """
    product = pl.when(pl.col("category") == "gemm").then("name_id")
    kind = pl.struct("category", "algorithm", "named_direction", product.alias("product"))
    rank, main = pl.col("rank"), pl.col("rank") == 1
    convolution = pl.col("category") == "conv"
    # Runs are contiguous, and so are the phases: what stands before a row is asked of its
    # neighbours, for a window per run takes ten times as long.
    same_run = pl.col("run") == pl.col("run").shift()
    other_stream = ~same_run | pl.col("stream").ne_missing(pl.col("stream").shift())
    fft = (convolution & pl.col("algorithm").is_in(_FFT)).fill_null(False)
    # Tiles on other streams complete while one is prepared; another convolution waits for them.
    waits_for_all = ~fft | pl.col("directions").is_not_null()
    waits = (rank == 0) & (rank.shift() > 0) & same_run & waits_for_all
    by_phase = (
        other_stream
        | (rank < rank.shift())
        | pl.col("waits")
        | (main & main.shift() & (pl.col("kind") != pl.col("kind").shift()))
    )
    algorithm = pl.when(convolution & (pl.col("algorithm") != "unknown")).then("algorithm")
    phases_of_named = pl.when(pl.col("named").is_not_null()).then("phases")
    named_before = pl.when(phases_of_named.forward_fill().shift() == pl.col("phases")).then(
        pl.col("named").forward_fill().shift()
    )
    of_transforms = pl.col("named").is_in(_BY_TRANSFORMS) | named_before.is_in(_BY_TRANSFORMS)
    prepares = (rank == 0) & (rank.shift() == 0)
    by_name = (pl.col("named") != named_before) & (of_transforms | prepares)
    run_of_fft = pl.when(fft).then("run")
    fft_so_far = run_of_fft.forward_fill() == pl.col("run")
    fft_to_come = run_of_fft.backward_fill().shift(-1) == pl.col("run")
    between = (fft_so_far & fft_to_come).fill_null(False)
    return (
        parts.with_columns(between.alias("between"), waits.fill_null(False).alias("waits"))
        .sort("run", "stream", "start", "row")
        .with_columns(kind.rle_id().alias("kind"), algorithm.alias("named"))
        .with_columns(by_phase.fill_null(True).alias("by_phase"))
        .with_columns(pl.col("by_phase").cum_sum().alias("phases"))
        .with_columns((by_name.fill_null(False) | pl.col("by_phase")).cum_sum().alias("segment"))
        .drop("named", "by_phase", "phases", "waits")
    )


def _segments(parts: pl.DataFrame) -> pl.DataFrame:
    """Return one row per segment of a convolution, with its algorithm."""
    convolution, product = pl.col("category") == "conv", pl.col("category") == "gemm"
    known = pl.col("algorithm").filter(convolution & (pl.col("algorithm") != "unknown"))
    of_main = pl.col("algorithm").filter(
        convolution & (pl.col("algorithm") != "unknown") & (pl.col("rank") == 1)
    )
    complex_product = product & pl.col("precision").is_in(_COMPLEX)
    segments = (
        parts.group_by("segment", maintain_order=True)
        .agg(
            pl.col("run", "convolution", "process_device", "direction_by_name").first(),
            pl.col("start").min(),
            (pl.col("rank") == 1).any().alias("multiplies"),
            (pl.col("rank") == 2).any().alias("completes"),
            pl.coalesce(
                pl.col("directions").filter(pl.col("rank") == 1).drop_nulls().first(),
                pl.col("directions").drop_nulls().first(),
            ).alias("directions"),
            pl.col("scoped").fill_null(False).any(),
            pl.col("direction").first().cast(pl.String).alias("activity_direction"),
            pl.col("layer").first(),
            *(
                (convolution & (pl.col("named_direction") == way)).any().alias(f"names_{way}")
                for way in _DIRECTIONS
            ),
            # The tiles of an FFT convolution may be multiplied on a stream without transforms.
            (convolution | (complex_product & pl.col("between"))).any().alias("certain"),
            pl.coalesce(
                of_main.first(),
                known.first(),
                pl.when(complex_product.any()).then(pl.lit("fft")),
                pl.when(product.any()).then(pl.lit("gemm")),
                pl.when(convolution.any()).then(pl.lit("unknown")),
            ).alias("algorithm"),
        )
        .filter(pl.col("convolution").is_not_null() | pl.col("scoped") | pl.col("certain"))
        .sort("run", "start", "segment")
    )
    # A segment without a product belongs to the convolution before it, else to the next one.
    algorithm = pl.col("algorithm")
    its_run = pl.when(algorithm.is_not_null()).then("run")
    return segments.with_columns(
        pl.coalesce(
            pl.when(its_run.forward_fill() == pl.col("run")).then(algorithm.forward_fill()),
            pl.when(its_run.backward_fill() == pl.col("run")).then(algorithm.backward_fill()),
        ).alias("algorithm")
    ).filter(algorithm.is_not_null())


_DIRECTIONS: Final = ("fprop", "dgrad", "wgrad")
# The last input of aten::convolution_backward: [gradient of input, of weight, of bias].
_MASK: Final = r"\[(True|False), (True|False), (?:True|False)\]\"?\]$"


def _with_directions(segments: pl.DataFrame, ops: pl.DataFrame, known: Operators) -> pl.DataFrame:
    """Return ``segments`` with ``direction``: fprop, dgrad, wgrad, or null where undecided.

    The operator decides (its name, or the mask of its outputs). If it computes both gradients, the
    kernels' names decide, then the order: all of PyTorch's libraries compute the gradient of the
    input first. Without an operator only names decide. TensorFlow computes a transposed convolution
    with the operators of a convolution: :func:`_direction_in_pass`.
    """
    mask = pl.col("inputs").str.extract_groups(_MASK).struct
    with_operator = segments.select(pl.col("convolution").cast(pl.UInt32)).unique().drop_nulls()
    row = with_operator["convolution"]
    transposed = _transposed_layers(ops, known)
    operators = (
        with_operator.with_columns(
            known.direction_by_name(row).alias("named"),
            ops["inputs"].gather(row),
            ops["direction"].gather(row).cast(pl.String).alias("pass"),
            ops["layer"].gather(row).is_in(transposed.implode()).alias("transposed"),
        )
        .with_columns(
            _direction_in_pass(pl.col("named"), pl.col("pass"), pl.col("transposed")).alias(
                "named"
            ),
            *((mask.field(str(i)) == "True").alias(n) for i, n in ((1, "input"), (2, "weight"))),
        )
        .select(
            pl.col("convolution").cast(pl.Int64),
            pl.coalesce(
                pl.when(pl.col("named").is_in(_DIRECTIONS)).then("named"),
                pl.when(pl.col("named").is_null() & (pl.col("pass") == "forward")).then(
                    pl.lit("fprop")
                ),
                pl.when(pl.col("input") & ~pl.col("weight")).then(pl.lit("dgrad")),
                pl.when(pl.col("weight") & ~pl.col("input")).then(pl.lit("wgrad")),
            ).alias("by_operator"),
            (pl.col("named") == "backward").fill_null(False).alias("both"),
        )
    )
    owned = pl.col("convolution").is_not_null()
    named, in_pass = pl.col("direction_by_name"), pl.col("activity_direction")
    transposed_scopes = segments.filter("scoped", (named == "dgrad") & (in_pass == "forward"))[
        "layer"
    ]
    transposed = transposed.extend(transposed_scopes.drop_nulls())
    of_scope = _direction_in_pass(named, in_pass, pl.col("layer").is_in(transposed.implode()))
    by_scope = pl.coalesce(
        pl.when(of_scope.is_in(_DIRECTIONS)).then(of_scope),
        # JAX marks transposed operators as backward; all others are forward.
        pl.when(pl.col("activity_direction").fill_null("forward") == "forward").then(
            pl.lit("fprop")
        ),
    )
    run = pl.col("run")
    first = (run != run.shift()).fill_null(True)
    last = (run != run.shift(-1)).fill_null(True)
    behind_wgrad = pl.when(pl.col("by_kernels") == "wgrad").then(run).forward_fill() == run
    before_dgrad = pl.when(pl.col("by_kernels") == "dgrad").then(run).backward_fill() == run
    by_order = pl.coalesce(
        pl.when(behind_wgrad).then(pl.lit("wgrad")),
        pl.when(before_dgrad).then(pl.lit("dgrad")),
        # Only the first and the last segment are certain.
        pl.when(first & ~last).then(pl.lit("dgrad")),
        pl.when(last & ~first).then(pl.lit("wgrad")),
    )
    of_operators = segments.join(operators, on="convolution", how="left", maintain_order="left")
    return _with_kernel_directions(of_operators).with_columns(
        pl.coalesce(
            "by_operator",
            pl.when("scoped").then(by_scope),
            "by_kernels",
            pl.when(owned & pl.col("both").fill_null(False)).then(by_order),
        ).alias("direction")
    )


def _with_kernel_directions(segments: pl.DataFrame) -> pl.DataFrame:
    """Return ``segments`` with ``by_kernels``: the direction that the names of the kernels have.

    A kernel of several directions (``directions``) has the backward one under an operator of
    ``both`` gradients. Without an operator it has the first one, or the weight's behind the
    gradient of the input. A segment without a product has the direction of the convolution that it
    prepares or completes.
    """
    owned = pl.col("convolution").is_not_null()
    named_directions = pl.col("directions").str.split(_BETWEEN)
    named = (
        pl.when("names_wgrad")
        .then(pl.lit("wgrad"))
        .when("names_dgrad")
        .then(pl.lit("dgrad"))
        .when("names_fprop")
        # A backward convolution with forward kernels computes the gradient of the input.
        .then(pl.when(owned).then(pl.lit("dgrad")).otherwise(pl.lit("fprop")))
        .when(pl.col("both").fill_null(False))
        .then(named_directions.list.last())
        .when(~named_directions.list.contains("wgrad"))
        .then(named_directions.list.first())
    )
    device = "process_device"
    before = pl.col("named").shift().over(device)
    same_run = (pl.col("run") == pl.col("run").shift()) & (
        pl.col("algorithm") == pl.col("algorithm").shift()
    )
    continues = before.is_null() & same_run
    forward_or_weight = pl.col("named").is_null() & named_directions.is_not_null()
    product_direction = (
        pl.when(~forward_or_weight)
        .then("named")
        .when(~continues.fill_null(False))
        .then(pl.when(before == "dgrad").then(pl.lit("wgrad")).otherwise(pl.lit("fprop")))
    )
    of_products = (
        segments.filter("multiplies")
        .sort(device, "start", "segment")
        .with_columns(named.alias("named"))
        .with_columns(product_direction.alias("chosen"), forward_or_weight.alias("continued"))
        .select(
            "segment",
            pl.when("continued")
            .then(pl.col("chosen").forward_fill().over(device))
            .otherwise("chosen")
            .alias("of_product"),
        )
    )
    same_product = ("run", "algorithm")
    next_product = pl.col("of_product").backward_fill().over(same_product)
    last_product = pl.col("of_product").forward_fill().over(same_product)
    direction_served = pl.when("completes").then(last_product).otherwise(next_product)
    return (
        segments.with_columns(named.alias("named"))
        .join(of_products, on="segment", how="left", maintain_order="left")
        .with_columns(
            pl.when("multiplies")
            .then("of_product")
            .otherwise(
                pl.coalesce(
                    pl.when(named_directions.is_null()).then("named"),
                    direction_served,
                    next_product,
                    last_product,
                    "named",
                )
            )
            .alias("by_kernels")
        )
        .drop("named", "of_product")
    )


def _transposed_layers(ops: pl.DataFrame, known: Operators) -> pl.Series:
    """Return the layers with an operator of a data gradient in the forward pass."""
    gradients = known.names.with_row_index("number").filter(pl.col("direction") == "dgrad")
    if gradients.is_empty():
        return ops["layer"].clear()
    operator = known.situations["operator"].gather(known.of_op)
    forward = ops["direction"].cast(pl.String) == "forward"
    chosen = operator.is_in(gradients["number"].implode()) & forward
    return ops["layer"].filter(chosen.fill_null(value=False)).drop_nulls().unique()


def _direction_in_pass(named: pl.Expr, in_pass: pl.Expr, transposed: pl.Expr) -> pl.Expr:
    """Return the direction of an operator from the one in its name and from its pass.

    The forward pass of a transposed convolution is the data gradient of a convolution, and its data
    gradient is the forward pass of one. A forward convolution in the backward pass of another layer
    is recomputed.
    """
    return (
        pl.when((named == "dgrad") & (in_pass == "forward"))
        .then(pl.lit("fprop"))
        .when((named == "fprop") & (in_pass == "backward") & transposed)
        .then(pl.lit("dgrad"))
        .otherwise(named)
    )

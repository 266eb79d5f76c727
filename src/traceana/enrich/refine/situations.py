"""The situation of each activity: the context that determines its class, and the context rules.

The context is the operators around the launch (:class:`Operators`), whether an addition is along
channels (by the recorded shapes), the precision (by the recorded types), whether a GEMM is batched
(by the launch's grid), and without an operator the product before a sum.
"""

from __future__ import annotations

import functools
import math
from importlib import resources
from typing import Final, Literal

import msgspec
import numpy as np
import polars as pl
import rtoml

from traceana.columns.distinct import ascii_classes, numbered
from traceana.columns.nesting import NONE, WIDEST, Ints, Tree, from_rows
from traceana.enrich.classify.ruleset import ClassValue
from traceana.trace import Trace

_SCOPE_TAIL: Final = r"([^/]+?)(?:_\d+)?/?$"


class Operators(msgspec.Struct, frozen=True):
    """The operators of a trace, with classified names and numbered situations.

    ``names`` has one row per distinct operator name or last part of a name scope: ``text``, the
    class columns and ``within``, a bit for each pattern of ``withins``. ``situations`` has one row
    per distinct situation: ``operator`` and ``purpose`` (rows of ``names``; purpose -1 without),
    ``within`` and ``channel``. ``of_op`` is the row of ``situations`` of each operator,
    ``convolution_of`` the row of the nearest enclosing convolution, or -1. ``scopes`` has one row
    per distinct scope: ``scope``, ``situation``, ``convolution`` (whether its last part is one) and
    ``direction_by_name``.
    """

    names: pl.DataFrame
    withins: tuple[str, ...]
    situations: pl.DataFrame
    of_op: Ints
    convolution_of: Ints
    scopes: pl.DataFrame

    @classmethod
    def of(cls, trace: Trace, classes: pl.DataFrame, context: Context) -> Operators:
        """Return the situations of the operators and of the distinct scopes of the activities.

        ``classes`` are those of their texts (:func:`operator_texts`).
        """
        withins = tuple({rule.within: None for rule in context.rules if rule.within})
        ops, scopes = trace.tables.ops, _scopes(trace)
        texts = classes["name"]
        bits = [
            texts.str.contains(ascii_classes(within)).cast(pl.Int64) * (1 << i)
            for i, within in enumerate(withins)
        ]
        purposeless = texts.str.contains(ascii_classes(context.purposeless))
        names = classes.rename({"name": "text"}).with_columns(
            (pl.col("category") == "conv").alias("is_convolution"),
            (pl.col("category").is_in(context.purposes) & ~purposeless).alias("is_purpose"),
            sum(bits, pl.zeros(len(texts), pl.Int64, eager=True)).alias("within"),
        )
        name = _rows_of_names(ops["name"], names)
        tree = Tree.of_table(ops)
        row = np.arange(ops.height)
        convolution = names["is_convolution"].to_numpy()
        purpose = names["is_purpose"].to_numpy()
        within = names["within"].to_numpy()[name] if ops.height else np.empty(0, np.int64)
        of_ops = pl.DataFrame(
            {
                "operator": name,
                "purpose": tree.inherit(np.where(purpose[name], name, NONE)),
                "within": tree.united(within),
                "channel": _adds_per_channel(ops, names["text"], name),
            }
        )
        owner = tree.inherit(np.where(convolution[name], row, NONE))
        of_scopes = _scope_situations(scopes, names)
        all_rows = pl.concat([of_ops, of_scopes.select(of_ops.columns)])
        situations, numbered = _distinct_rows(all_rows)
        return cls(
            names,
            withins,
            situations,
            numbered[: ops.height],
            owner,
            pl.DataFrame(
                {
                    "scope": scopes,
                    "situation": numbered[ops.height :],
                    "convolution": pl.Series(convolution).gather(of_scopes["operator"]),
                    "direction_by_name": names["direction"].gather(of_scopes["operator"]),
                }
            ),
        )

    def direction_by_name(self, op: pl.Series) -> pl.Series:
        """Return the direction in the name of each of the operators ``op``."""
        operator = self.situations["operator"].gather(self.of_op[op.to_numpy()])
        return self.names["direction"].gather(operator)


def operator_texts(trace: Trace) -> pl.Series:
    """Return the distinct names of operators and last parts of the name scopes of activities."""
    of_ops = (
        trace.tables.ops["name"].unique(maintain_order=True).cast(pl.String).fill_null(_UNNAMED)
    )
    return pl.concat([of_ops, _tails(_scopes(trace))]).unique(maintain_order=True)


def _scopes(trace: Trace) -> pl.Series:
    return trace.tables.activities["scope"].drop_nulls().unique(maintain_order=True)


def _tails(scopes: pl.Series) -> pl.Series:
    return scopes.cast(pl.String).str.extract(_SCOPE_TAIL).fill_null(_UNNAMED)


def _rows_of_names(column: pl.Series, names: pl.DataFrame) -> Ints:
    """Return the row in ``names`` of each value of ``column``."""
    distinct = column.unique(maintain_order=True)
    texts = distinct.cast(pl.String).fill_null(_UNNAMED)
    rows = pl.DataFrame({"key": distinct, "text": texts}).join(
        names.select("text").with_row_index("row"), on="text", how="left", maintain_order="left"
    )
    rows_of_column = (
        column.alias("key")
        .to_frame()
        .join(
            rows.select("key", "row"),
            on="key",
            how="left",
            nulls_equal=True,
            maintain_order="left",
        )
    )
    return from_rows(rows_of_column["row"])


def _scope_situations(scopes: pl.Series, names: pl.DataFrame) -> pl.DataFrame:
    operator = from_rows(
        _tails(scopes)
        .alias("text")
        .to_frame()
        .join(
            names.select("text").with_row_index("row"), on="text", how="left", maintain_order="left"
        )["row"]
    )
    is_purpose = names["is_purpose"].to_numpy()[operator]
    return pl.DataFrame(
        {
            "scope": scopes,
            "operator": operator,
            "purpose": np.where(is_purpose, operator, NONE),
            "within": names["within"].to_numpy()[operator],
            "channel": pl.Series([None] * len(scopes), dtype=pl.Boolean),
        }
    )


def _distinct_rows(rows: pl.DataFrame) -> tuple[pl.DataFrame, Ints]:
    """Return the distinct ``rows``, by first appearance, and the number of each row among them.

    The columns are numbers from -1 on and, last, a flag.
    """
    *columns, flag = rows.columns
    bases = [int(rows[name].max() or 0) + 2 for name in columns]  # type: ignore[arg-type]
    if math.prod(bases) * 3 >= WIDEST:
        distinct = rows.unique(maintain_order=True)
        number = distinct.with_row_index("number")
        joined = rows.join(
            number, on=rows.columns, how="left", nulls_equal=True, maintain_order="left"
        )
        return distinct, from_rows(joined["number"])
    code = rows[flag].cast(pl.Int64).fill_null(NONE).to_numpy() + 1
    for name, base in zip(columns, bases, strict=True):
        code = code * base + rows[name].to_numpy() + 1
    # One number is compared several times as fast as four columns.
    codes = pl.Series("code", code).to_frame()
    first = codes.with_row_index("row").unique("code", keep="first", maintain_order=True)
    number = first.select("code").with_row_index("number")
    joined = codes.join(number, on="code", how="left", maintain_order="left")
    return rows[first["row"]], from_rows(joined["number"])


_UNNAMED: Final = ""
"""Stands for the operator without a name: a name of its own, in no class."""
_TWO_OPERANDS: Final = r"^\[\[([0-9, ]+)\], \[([0-9, ]+)\]"
_OPERANDS: Final = r"^\[\["
_ADDS: Final = r"^aten::add_?$"


def _adds_per_channel(ops: pl.DataFrame, texts: pl.Series, name: Ints) -> pl.Series:
    """Return whether the second input has one number per channel of the first; null if unknown.

    ``name`` is the index of each operator's name in ``texts``. The channels are the second
    dimension of three or more (NCL, NCHW, NCDHW) or the last of any. The result is null except for
    additions with recorded shapes.
    """
    added = (
        texts.str.contains(_ADDS).to_numpy()[name] & ops["input_shapes"].is_not_null().to_numpy()
    )
    rows = np.flatnonzero(added)
    unknown = pl.repeat(None, ops.height, dtype=pl.Boolean, eager=True)
    if not len(rows):
        return unknown
    shapes = pl.col("shapes")
    adds = pl.DataFrame({"shapes": ops["input_shapes"].gather(rows)}).select(
        pl.when(shapes.str.contains(_OPERANDS)).then("shapes").alias("shapes")
    )
    operands = pl.col("shapes").str.extract_groups(_TWO_OPERANDS).struct
    added = pl.col("added").list.eval(pl.element().filter(pl.element() != 1))
    # The bias of a tensor with one channel is a single number.
    size = (
        pl.when(added.list.len() == 0).then(1).when(added.list.len() == 1).then(added.list.first())
    )
    second = pl.when(pl.col("to").list.len() >= 3).then(pl.col("to").list.get(1, null_on_oob=True))
    by_shapes = (
        adds.unique()
        .drop_nulls()
        .with_columns(
            _dimensions(operands.field("1")).alias("to"),
            _dimensions(operands.field("2")).alias("added"),
        )
        .select(
            "shapes",
            ((size == second) | (size == pl.col("to").list.last()))
            .fill_null(False)
            .alias("channel"),
        )
    )
    per_channel = adds.join(by_shapes, on="shapes", how="left", maintain_order="left")["channel"]
    return unknown.scatter(rows, per_channel)


def _dimensions(text: pl.Expr) -> pl.Expr:
    return text.str.split(", ").cast(pl.List(pl.Int64))


MULTIPLIED: Final = ("attention", "conv", "gemm", "rnn")
"""Categories of kernels that multiply the operator's inputs."""

_FIRST_TYPE: Final = r'"(?:struct |class )?(?:c10::|at::)?(\w[\w<>: ]*)"'
# PyTorch's names and HLO's. Single precision is omitted, because it may be computed as TF32.
_PRECISIONS: Final = {
    **dict.fromkeys(("Half", "half", "float16", "f16"), "fp16"),
    **dict.fromkeys(("BFloat16", "bfloat16", "bf16"), "bf16"),
    **dict.fromkeys(("double", "float64", "f64"), "fp64"),
    **dict.fromkeys(("Float8_e4m3fn", "Float8_e4m3fnuz", "Float8_e5m2", "Float8_e5m2fnuz"), "fp8"),
    **dict.fromkeys(("f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz"), "fp8"),
    **dict.fromkeys(("signed char", "int8", "s8"), "int8"),
    **dict.fromkeys(("complex<float>", "complex64", "c64"), "c64"),
    **dict.fromkeys(("complex<double>", "complex128", "c128"), "c128"),
}


def operand_precision(trace: Trace) -> pl.Series:
    """Return the precision of the first typed input of each activity's operator.

    For kernels of a compiled program, the input is that of the instruction. Null if no type is
    recorded, or if the type does not determine the precision.
    """
    activities = trace.tables.activities
    of_op = _precisions(trace.tables.ops["input_types"].gather(activities["op"]))
    of_instruction = _precisions(
        trace.tables.instructions["input_types"].gather(activities["instruction"])
    )
    return pl.select(pl.coalesce(of_op, of_instruction)).to_series()


def _precisions(types: pl.Series) -> pl.Series:
    """Return the precision of each JSON list of types."""
    if types.null_count() == len(types):
        return types
    lists = types.alias("types").to_frame()
    first = pl.col("types").str.extract(_FIRST_TYPE)
    precision = first.replace_strict(_PRECISIONS, default=None, return_dtype=pl.String)
    by_types = lists.unique().drop_nulls().with_columns(precision.alias("precision"))
    return lists.join(by_types, on="types", how="left", maintain_order="left")["precision"]


_SPLITS: Final = r"(?i)split_?k|stream_?k"
_PERSISTENT: Final = r"^nvjet_"
"""GEMMs whose blocks loop over tiles and matrices: their grid has the size of the device."""
MOST_SLICES: Final = 16
"""cuBLAS splits the inner dimension of a GEMM into this many slices, with few exceptions. Batches
of attention are heads times sequences, so nearly all are larger."""
QUEUE: Final = ("rank", "process", "device", "stream")
"""Columns of the stream of an activity."""


def by_queue(rows: pl.DataFrame) -> pl.DataFrame:
    """Return ``rows``, in the order of the activities, stream by stream in order of time.

    Further column: ``queue``, the number of the stream.
    """
    (queue,) = numbered(rows.select(QUEUE))
    order = np.lexsort((rows["start"].to_numpy(), queue))
    return rows.with_columns(pl.Series("queue", queue))[order]


def counts_a_batch(activities: pl.DataFrame, names: pl.DataFrame) -> pl.Series:
    """Return whether the blocks along z of a GEMM's grid are of the matrices of a batch.

    Up to :data:`MOST_SLICES` blocks are the slices of a split-K GEMM, more are a batch. Split-K by
    name, or by the next kernel on the stream, which adds up the slices, is none. Null except for
    GEMMs whose name does not show whether they are batched, and for kernels that loop over the
    batch. Null too if the grid is not recorded.
    """
    splits = names["name"].str.contains(_SPLITS)
    product = names["category"] == "gemm"
    loops = names["name"].str.contains(_PERSISTENT)
    undecided = product & names["batched"].is_null() & (splits | ~loops)
    name = activities["name_id"]
    result = pl.repeat(None, activities.height, dtype=pl.Boolean, eager=True)
    if not undecided.gather(name.unique()).any():
        return result
    rows = np.flatnonzero(product.to_numpy()[name.to_numpy()])
    products = by_queue(
        activities.select("name_id", "start", "grid_z", *QUEUE)[rows].with_columns(
            pl.Series("row", rows),
            splits.gather(name[rows]).alias("splits"),
            undecided.gather(name[rows]).alias("undecided"),
        )
    )
    sliced = pl.col("splits") | pl.col("splits").shift(-1).over("queue").fill_null(False)
    counted = products.select(
        "row", pl.when("undecided").then((pl.col("grid_z") > MOST_SLICES) & ~sliced).alias("many")
    )
    return result.scatter(counted["row"], counted["many"])


_BIASES: Final = (pl.col("category") == "elementwise") & (pl.col("function") == "add") | (
    pl.col("category") == "reduction"
) & (pl.col("function") == "sum")


def product_before(
    activities: pl.DataFrame, names: pl.DataFrame, convolution_of: pl.Series
) -> pl.Series:
    """Return the direction of the product that ran before each sum or addition of PyTorch's.

    It is the kernel before on the stream: fprop, dgrad or wgrad for a convolution
    (``convolution_of``: the direction of each activity's episode), wgrad for a GEMM of layout nt,
    which PyTorch calls for the gradient of a weight. Null for activities with an operator or a name
    scope, whose class these decide.
    """
    result = pl.repeat(None, activities.height, dtype=pl.String, eager=True)
    is_bias_sum = names.select(_BIASES & (pl.col("library") == "aten")).to_series()
    alone = activities["op"].is_null() & activities["scope"].is_null()
    wanted_rows = is_bias_sum.gather(activities["name_id"]).fill_null(value=False) & alone
    if not wanted_rows.any():
        return result
    is_product = names["category"] == "gemm"
    product = is_product & (names["gemm_layout"] == "nt")
    slices = is_product & names["name"].str.contains(_SPLITS) & names["gemm_layout"].is_null()
    name = activities["name_id"]
    kernels = activities["kind"] == "kernel"
    rows = by_queue(
        activities.select("start", *QUEUE)
        .with_row_index("row")
        .with_columns(
            wanted_rows.alias("asked"),
            convolution_of.alias("convolution"),
            product.gather(name).fill_null(value=False).alias("product"),
            slices.gather(name).fill_null(value=False).alias("slices"),
        )
        .filter(kernels)
    )
    product_direction = (
        pl.when(pl.col("convolution").is_not_null())
        .then("convolution")
        .when("product")
        .then(pl.lit("wgrad"))
        .when(~pl.col("slices"))
        .then(pl.lit(""))
    )
    before = product_direction.forward_fill().shift().over("queue")
    with_product = rows.with_columns(before.alias("before")).filter("asked", pl.col("before") != "")
    return result.scatter(with_product["row"], with_product["before"])


Phase = Literal["before", "main", "after"]


class PhasePattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ``phase`` within a convolution of the kernels that match ``name``."""

    phase: Phase
    name: str


class DirectionPattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ``directions`` of convolutions whose kernels match ``name``, the forward one first."""

    directions: tuple[str, ...]
    reason: str
    name: str


class ContextRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Conditions on the name and context of an activity, and the class if they are met.

    ``context.toml`` explains the conditions; an omitted condition always holds. Columns that are
    neither in ``set`` nor in ``from_episode`` or ``from_purpose`` keep the value of the name.
    """

    id: str
    reason: str
    category: tuple[str, ...] = ()
    function: tuple[str, ...] = ()
    library: tuple[str, ...] = ()
    precision: tuple[str, ...] = ()
    operand: tuple[str, ...] = ()
    batched_unknown: bool = False
    precision_unknown: bool = False
    operator: str | None = None
    within: str | None = None
    purpose: tuple[str, ...] = ()
    own_purpose: bool = False
    channel: bool = False
    episode: bool = False
    many: bool | None = None
    behind: str | None = None
    name: str | None = None
    set: dict[str, ClassValue] = msgspec.field(default_factory=dict)
    from_episode: tuple[str, ...] = ()
    from_purpose: tuple[str, ...] = ()


class Context(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole of ``context.toml``."""

    purposes: tuple[str, ...]
    purposeless: str
    phases: tuple[PhasePattern, ...]
    directions: tuple[DirectionPattern, ...]
    rules: tuple[ContextRule, ...]


@functools.cache
def context() -> Context:
    """Return traceana's context rules."""
    text = (resources.files("traceana.enrich.refine") / "context.toml").read_text(encoding="utf-8")
    return msgspec.convert(rtoml.loads(text), Context)

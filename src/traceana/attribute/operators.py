"""Framework operators: those that only NVTX tells of, their nesting, their direction."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from traceana.attribute.nesting import Nesting, inherit, to_rows

# torch.autograd.profiler.emit_nvtx: "aten::conv2d, op_id = 7, seq = 3, sizes = [[64, 3, 224, 224]]"
_EMIT_NVTX: Final = (
    r"^(?P<name>[^,{]+?)(?:, op_id = \d+|, seq = (?P<sequence>-?\d+))*"
    r"(?:, sizes = (?P<shapes>\[.*?\]))?(?:, input_op_ids = .*)?$"
)
# PyProf: "{'mod': 'torch', 'op': 'conv2d', 'args': [{'name': '', 'type': 'tensor', 'shape': …"
# It wraps attribute look-ups too (``__getattr__``), which are no operators.
_PYPROF: Final = r"^\{'mod': '(?P<module>[^']*)', 'op': '(?P<function>[^'_][^']*|_[^'_][^']*)'"
# An argument by position: its name is empty. Tensors have a shape and a dtype, others a value.
_PYPROF_ARGUMENT: Final = (
    r"\{'name': '', 'type': '[^']*'"
    r"(?:, 'shape': \([^)]*\)(?:, 'dtype': '[^']*')?|, 'value': (?:\([^)]*\)|\[[^\]]*\]|[^{}]*))?\}"
)

OPERATOR_TEXT: Final = r", (?:op_id|seq) = -?\d+|^torch::autograd::|^\{'(?:mod|traceMarker)':"
"""Ranges that stand for one operator, or for the source line that called it (PyProf)."""

_OF_BACKEND: Final = r"^(?:gloo|mpi|ucc):"
# PyTorch's nodes of the backward graph; MXNet's operators for gradients.
_BACKWARD: Final = r"^autograd::engine::evaluate_function: |Backward\d*$|^_backward_"


def from_nvtx(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the operators that ``emit_nvtx`` or PyProf wrote as NVTX ranges.

    Columns: those of ``ops`` that such a range can tell; shapes as JSON text.
    """
    text = pl.col("text").cast(pl.String)
    arguments = pl.col("_text").str.extract_all(_PYPROF_ARGUMENT)
    emitted = pl.col("_text").str.extract_groups(_EMIT_NVTX).struct
    traced = pl.col("_text").str.extract_groups(_PYPROF).struct
    return (
        ranges.lazy()
        .filter(pl.col("kind") == "nvtx")
        .with_columns(text.alias("_text"))
        .filter(pl.col("_text").str.contains(OPERATOR_TEXT))
        .select(
            pl.coalesce(
                pl.concat_str(traced.field("module"), traced.field("function"), separator="."),
                emitted.field("name"),
            ).alias("name"),
            "process",
            "thread",
            "start",
            "duration",
            emitted.field("sequence").cast(pl.Int64, strict=False).alias("sequence"),
            pl.coalesce(_joined(arguments, _shape()), emitted.field("shapes")).alias(
                "input_shapes"
            ),
            _joined(arguments, _quoted(_told(r"'dtype': '([\w.]*)'"))).alias("input_types"),
            _joined(arguments, _quoted(_value())).alias("inputs"),
        )
        .filter(pl.col("name").is_not_null())
        .with_columns(pl.col("name").cast(pl.Categorical))
        .collect()
    )


def _joined(arguments: pl.Expr, part: pl.Expr) -> pl.Expr:
    """Return a JSON list of ``part`` of each of PyProf's arguments, null where there are none."""
    parts = arguments.list.eval(part)
    return pl.when(parts.list.len() > 0).then(pl.format("[{}]", parts.list.join(", ")))


def _told(pattern: str) -> pl.Expr:
    return pl.element().str.extract(pattern).fill_null("")


def _shape() -> pl.Expr:
    return pl.format("[{}]", _told(r"'shape': \(([^)]*?),?\)"))


def _value() -> pl.Expr:
    sequence = _told(r"'value': [\[(]([^\])]*?),?[\])]\}$")
    plain = _told(r"'value': ([\w.+-]+)\}$").replace("None", "")
    return pl.when(sequence != "").then(pl.format("[{}]", sequence)).otherwise(plain)


def _quoted(text: pl.Expr) -> pl.Expr:
    """Return ``text`` in quotes; it holds neither quotes nor backslashes."""
    return pl.format('"{}"', text.str.replace_all(r'["\\]', ""))


def with_nesting(ops: pl.DataFrame, nesting: Nesting) -> pl.DataFrame:
    """Return ``ops`` with parent, depth and direction.

    An operator is backward when it, or one around it, is a node of autograd's backward graph. A
    collective that a backend's thread carries out has none: that thread is in neither pass.
    """
    # A pattern is run on the distinct names only: there are thousands of operators a name.
    names = ops.select(pl.col("name").unique()).with_columns(
        pl.col("name").cast(pl.String).str.contains(_BACKWARD).alias("backward"),
        pl.col("name").cast(pl.String).str.contains(_OF_BACKEND).alias("of_backend"),
    )
    marked = ops.select("name").join(names, on="name", how="left", maintain_order="left")
    backward = np.where(marked["backward"].fill_null(False).to_numpy(), 1, -1).astype(np.int64)
    is_backward = pl.Series(inherit(nesting, backward) == 1)
    return ops.with_columns(
        to_rows(nesting.parent).alias("parent"),
        pl.Series("depth", nesting.depth, dtype=pl.Int32),
        pl.when(is_backward)
        .then(pl.lit("backward"))
        .when(marked["of_backend"].fill_null(value=False).not_())
        .then(pl.lit("forward"))
        .alias("direction"),
    )

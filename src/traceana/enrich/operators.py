"""Framework operators: operators recorded as NVTX ranges, nesting and direction."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import polars as pl

from traceana.enrich.nesting import NONE, Flags, Nesting, from_rows, inherit, to_rows
from traceana.enrich.texts import Texts

# torch.autograd.profiler.emit_nvtx: "aten::conv2d, op_id = 7, seq = 3, sizes = [[64, 3, 224, 224]]"
# In old versions "conv2d, seq=3" and "AddmmBackward, stashed seq=3".
_EMIT_NVTX: Final = (
    r"^(?P<name>[^,{]+?)(?:, op_id = \d+|, (?:stashed )?seq ?= ?(?P<sequence>-?\d+))*"
    r"(?:, sizes = (?P<shapes>\[.*?\]))?(?:, input_op_ids = .*)?$"
)
# PyProf: "{'mod': 'torch', 'op': 'conv2d', 'args': [{'name': '', 'type': 'tensor', 'shape': …"
# It wraps attribute lookups too (``__getattr__``), which are not operators.
_PYPROF: Final = r"^\{'mod': '(?P<module>[^']*)', 'op': '(?P<function>[^'_][^']*|_[^'_][^']*)'"
# A positional argument has an empty name. Tensors have a shape and a dtype, others a value.
_PYPROF_ARGUMENT: Final = (
    r"\{'name': '', 'type': '[^']*'"
    r"(?:, 'shape': \([^)]*\)(?:, 'dtype': '[^']*')?|, 'value': (?:\([^)]*\)|\[[^\]]*\]|[^{}]*))?\}"
)

OPERATOR_TEXT: Final = (
    r", (?:op_id|(?:stashed )?seq) ?= ?-?\d+|^torch::autograd::|^\{'(?:mod|traceMarker)':"
)
"""Ranges that represent one operator, or the source line of its call (PyProf)."""

_DETACH: Final = r"^(?:aten::)?detach$"
_OF_BACKEND: Final = r"^(?:gloo|mpi|ucc):"
# PyTorch's nodes of the backward graph; MXNet's operators for gradients.
_NODE: Final = (
    r"^autograd::engine::evaluate_function: |\btorch::autograd::\w|Backward\d*$|^_backward_"
)


def from_nvtx(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the operators that ``emit_nvtx`` or PyProf wrote as NVTX ranges.

    The columns are those of ``ops`` that such a range records.
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
            _joined(arguments, _quoted(_extracted(r"'dtype': '([\w.]*)'"))).alias("input_types"),
            _joined(arguments, _quoted(_value())).alias("inputs"),
        )
        .filter(pl.col("name").is_not_null())
        .with_columns(pl.col("name").cast(pl.Categorical))
        .collect()
    )


def _joined(arguments: pl.Expr, part: pl.Expr) -> pl.Expr:
    """Return a JSON list of ``part`` of each of PyProf's arguments, null without arguments."""
    parts = arguments.list.eval(part)
    return pl.when(parts.list.len() > 0).then(pl.format("[{}]", parts.list.join(", ")))


def _extracted(pattern: str) -> pl.Expr:
    return pl.element().str.extract(pattern).fill_null("")


def _shape() -> pl.Expr:
    return pl.format("[{}]", _extracted(r"'shape': \(([^)]*?),?\)"))


def _value() -> pl.Expr:
    sequence = _extracted(r"'value': [\[(]([^\])]*?),?[\])]\}$")
    plain = _extracted(r"'value': ([\w.+-]+)\}$").replace("None", "")
    return pl.when(sequence != "").then(pl.format("[{}]", sequence)).otherwise(plain)


def _quoted(text: pl.Expr) -> pl.Expr:
    """Return ``text`` in quotes, without quotes and backslashes inside."""
    return pl.format('"{}"', text.str.replace_all(r'["\\]', ""))


def is_node(names: Texts) -> Flags:
    """Return which operators are nodes of the backward graph, by their ``names``."""
    return names.matching(_NODE)


def with_nesting(ops: pl.DataFrame, names: Texts, nesting: Nesting) -> pl.DataFrame:
    """Return ``ops``, whose names are ``names``, with parent, depth and direction.

    An operator is backward if it, or an operator around it, is a node of autograd's backward graph,
    or if it runs between nodes on a thread of the autograd engine, which reduces and adds gradients
    there. A collective on a backend's thread has no direction, because that thread belongs to
    neither pass.
    """
    node = is_node(names)
    backward = np.where(node | _between_nodes(ops, nesting, node), 1, NONE).astype(np.int64)
    of_backend = pl.Series(names.matching(_OF_BACKEND))
    return ops.with_columns(
        to_rows(nesting.parent).alias("parent"),
        pl.Series("depth", nesting.depth, dtype=pl.Int32),
        pl.when(pl.Series(inherit(nesting, backward) == 1))
        .then(pl.lit("backward"))
        .when(of_backend.not_())
        .then(pl.lit("forward"))
        .alias("direction"),
    )


def _between_nodes(ops: pl.DataFrame, nesting: Nesting, node: Flags) -> Flags:
    """Return which outermost operators the autograd engine runs outside its nodes.

    A thread belongs to the engine if it runs nodes and creates none: no other outermost operator on
    it has a sequence number above 0 (the count starts at 0 on each thread). If no thread of the
    process has such a number, a thread that starts with a node belongs to the engine. The backward
    pass of a CPU runs on the thread of the forward pass, which does not belong to the engine.
    """
    roots = ops.select("process", "start", pl.col("sequence").fill_null(0)).with_columns(
        pl.Series("thread", nesting.key), pl.Series("node", node)
    )
    roots = roots.with_row_index("row").filter(pl.Series(nesting.parent == NONE))
    creates = ~pl.col("node") & (pl.col("sequence") > 0)
    found = (
        roots.sort("start", maintain_order=True)
        .with_columns(creates.any().over("process").alias("numbered"))
        .filter(
            pl.col("node").any().over("thread")
            & creates.any().over("thread").not_()
            & (pl.col("numbered") | pl.col("node").first().over("thread"))
            & ~pl.col("node")
        )
    )
    between = np.zeros(ops.height, dtype=np.bool_)
    between[found["row"].to_numpy()] = True
    return between


class EarlyStopped(msgspec.Struct, frozen=True):
    """Operators at which a checkpoint stopped recomputing (early stop), and those ``around`` them.

    A non-reentrant checkpoint stops recomputing as soon as all tensors that the backward pass needs
    are saved. The last operator has saved its inputs and is aborted by an exception, with all
    operators around it up to the node of the backward graph. It contains ``detach`` only, whereas
    all operators of its name in the forward pass contain others.
    """

    innermost: Flags
    around: Flags

    @classmethod
    def of(cls, ops: pl.DataFrame) -> EarlyStopped:
        """Return those among ``ops``, which have parent and direction."""
        innermost, around = (np.zeros(ops.height, dtype=np.bool_) for _ in range(2))
        names = Texts.of(ops["name"])
        detaches = names.matching(_DETACH)
        if not detaches.any():
            return cls(innermost, around)
        parent, node = from_rows(ops["parent"]), is_node(names)
        backward = (ops["direction"] == "backward").fill_null(value=False).to_numpy()
        holds, computes = (np.zeros(ops.height, dtype=np.bool_) for _ in range(2))
        inner = parent != NONE
        holds[parent[inner]] = True
        computes[parent[inner & ~detaches]] = True
        innermost = backward & ~node & ~detaches & holds & ~computes
        complete, incomplete = (np.zeros(names.null + 1, dtype=np.bool_) for _ in range(2))
        complete[names.code_of_row[~backward]] = True
        incomplete[names.code_of_row[~backward & ~computes]] = True
        innermost &= (complete & ~incomplete)[names.code_of_row]
        above = parent[innermost]
        while len(above := above[(above != NONE) & ~node[above]]):
            around[above] = True
            above = parent[above]
        return cls(innermost, around)

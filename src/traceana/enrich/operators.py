"""Framework operators: from NVTX ranges, their nesting and direction, backward to forward."""

from __future__ import annotations

import re
from typing import Final

import msgspec
import numpy as np
import polars as pl

from traceana.columns.distinct import Texts, ascii_classes, thread_numbers
from traceana.columns.nesting import (
    NONE,
    Flags,
    Ints,
    Nesting,
    from_rows,
    to_rows,
)

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

    def listed(part: pl.Expr) -> pl.Expr:
        """Return a JSON list of ``part`` of each of PyProf's arguments, null without arguments."""
        parts = arguments.list.eval(part)
        return pl.when(parts.list.len() > 0).then(pl.format("[{}]", parts.list.join(", ")))

    def extracted(pattern: str) -> pl.Expr:
        return pl.element().str.extract(pattern).fill_null("")

    def quoted(text: pl.Expr) -> pl.Expr:
        """Return ``text`` in quotes, without quotes and backslashes inside."""
        return pl.format('"{}"', text.str.replace_all(r'["\\]', ""))

    shape = pl.format("[{}]", extracted(r"'shape': \(([^)]*?),?\)"))
    sequence = extracted(r"'value': [\[(]([^\])]*?),?[\])]\}$")
    plain = extracted(r"'value': ([\w.+-]+)\}$").replace("None", "")
    value = pl.when(sequence != "").then(pl.format("[{}]", sequence)).otherwise(plain)
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
            pl.coalesce(listed(shape), emitted.field("shapes")).alias("input_shapes"),
            listed(quoted(extracted(r"'dtype': '([\w.]*)'"))).alias("input_types"),
            listed(quoted(value)).alias("inputs"),
        )
        .filter(pl.col("name").is_not_null())
        .with_columns(pl.col("name").cast(pl.Categorical))
        .collect()
    )


def is_node(names: Texts) -> Flags:
    """Return which operators are nodes of the backward graph, by their ``names``."""
    return names.matching(_NODE)


def with_nesting(ops: pl.DataFrame, names: Texts, nesting: Nesting) -> pl.DataFrame:
    """Return ``ops``, whose names are ``names``, with parent, depth and direction.

    An operator is backward if it, or an operator around it, is a node of autograd's backward graph,
    or if it runs between nodes on a thread of the autograd engine, which reduces and adds gradients
    there. A collective on a backend's thread has no direction, because that thread belongs to
    neither pass.

    A thread belongs to the engine if it runs nodes and creates none: no other outermost operator on
    it has a sequence number above 0 (the count starts at 0 on each thread). If no thread of the
    process has such a number, a thread that starts with a node belongs to the engine. The backward
    pass of a CPU runs on the thread of the forward pass, which does not belong to the engine.
    """
    node = is_node(names)
    roots = ops.select("process", "start", pl.col("sequence").fill_null(0)).with_columns(
        pl.Series("thread", nesting.key), pl.Series("node", node)
    )
    creates = ~pl.col("node") & (pl.col("sequence") > 0)
    between = (
        roots.with_row_index("row")
        .filter(pl.Series(nesting.parent == NONE))
        .sort("start", maintain_order=True)
        .with_columns(creates.any().over("process").alias("numbered"))
        .filter(
            pl.col("node").any().over("thread")
            & creates.any().over("thread").not_()
            & (pl.col("numbered") | pl.col("node").first().over("thread"))
            & ~pl.col("node")
        )
    )
    backward = np.where(node, 1, NONE).astype(np.int64)
    backward[between["row"].to_numpy()] = 1
    of_backend = pl.Series(names.matching(_OF_BACKEND))
    return ops.with_columns(
        to_rows(nesting.parent).alias("parent"),
        pl.Series("depth", nesting.depth, dtype=pl.Int32),
        pl.when(pl.Series(nesting.inherit(backward) == 1))
        .then(pl.lit("backward"))
        .when(of_backend.not_())
        .then(pl.lit("forward"))
        .alias("direction"),
    )


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


_EVALUATES: Final = "^autograd::engine::evaluate_function: "
# The node of an in-place operator on a view: it runs the operator's own node inside, and has a
# sequence number that no operator has.
_OF_VIEW: Final = r"^torch::autograd::CopySlices$"
# The last is the node of the view after the operator.
_AFTER_VIEW: Final = r"(?:^|: )(?:torch::autograd::CopySlices|AsStridedBackward\d*)$"
_ACCUMULATES: Final = r"\btorch::autograd::AccumulateGrad$"


def forward_of(
    ops: pl.DataFrame, names: Texts, nesting: Nesting, links: pl.DataFrame, step: Ints
) -> Ints:
    """Return the row of the forward operator whose gradient each operator computes, or NONE.

    ``ops`` have a direction, ``names`` and ``step`` are the name and the step of each. The first of
    these decides:

    1. A flow from the forward to the backward operator.
    2. The sequence number. It grows when a node is created, so the last forward operator with
       number *s* created node *s*. In place on a view an operator creates further nodes
       (:func:`_forward_by_sequence`).
    3. In a process without both, the order: a backward pass runs in reverse.

    Operators inside a backward node, and the engine's call of the node, belong to the node,
    whatever their own number. So do operators that the engine runs after the node, such as
    AccumulateGrad: a gradient is accumulated as soon as it is computed.
    """
    node = is_node(names) & (ops["direction"] == "backward").fill_null(False).to_numpy()
    forward = _forward_by_flow(ops, nesting, links)
    by_number = _with_custom_nodes(
        ops, names, nesting, node, _forward_by_sequence(ops, names, node)
    )
    forward = np.where(forward == NONE, by_number, forward)
    forward = np.where(
        forward == NONE, _forward_by_order(ops, nesting, node, forward, step), forward
    )
    # PyTorch writes the engine's call of a node without its sequence number if a range of hooks
    # overlaps it: it has that of the node inside.
    parent = nesting.parent
    for pattern in (_OF_VIEW, _EVALUATES):
        inner = np.flatnonzero((forward != NONE) & (parent != NONE))
        around = names.matching(pattern)[parent[inner]] & (forward[parent[inner]] == NONE)
        forward[parent[inner[around]]] = forward[inner[around]]
    forward = nesting.inherit(forward)

    # What the engine runs between nodes, such as AccumulateGrad, belongs to the node before it.
    order = np.lexsort((ops["start"].to_numpy(), nesting.key))
    order = order[parent[order] == NONE]
    if not len(order):
        return forward
    backward = (ops["direction"] == "backward").fill_null(False).to_numpy()[order]
    follows = backward & (names.matching(_ACCUMULATES) | ~node)[order]
    leader = np.maximum.accumulate(np.where(follows, NONE, np.arange(len(order))))
    belongs = (leader != NONE) & (forward[order] == NONE)
    belongs &= backward[leader] & (nesting.key[order[leader]] == nesting.key[order])
    forward[order[belongs]] = forward[order[leader[belongs]]]
    return nesting.inherit(forward)


def _forward_by_flow(ops: pl.DataFrame, nesting: Nesting, links: pl.DataFrame) -> Ints:
    forward = np.full(ops.height, NONE, dtype=np.int64)
    if links.is_empty():
        return forward
    ends = (
        links.select(process=f"{end}_process", thread=f"{end}_thread") for end in ("from", "to")
    )
    op_keys, *keys_of_ends = thread_numbers(ops, *ends)
    # Threads without operators have no number in the nesting.
    key = np.full(max(int(keys.max(initial=0)) for keys in (op_keys, *keys_of_ends)) + 1, NONE)
    key[op_keys] = nesting.key
    source, sink = (
        nesting.innermost(key[keys], links[f"{end}_time"].to_numpy())
        for keys, end in zip(keys_of_ends, ("from", "to"), strict=True)
    )
    matched = (source != NONE) & (sink != NONE)
    forward[sink[matched]] = source[matched]
    return forward


def _forward_by_sequence(ops: pl.DataFrame, names: Texts, node: Flags) -> Ints:
    """Return the operator whose number each node has.

    In place on a view, an operator creates its node, that of the base, and that of the view as it
    is then, with consecutive numbers. It is the last operator before the number, if a later one has
    a larger number. Only processes whose forward operators are on one thread, with growing numbers,
    have these.
    """
    numbered = (
        ops.lazy()
        .with_row_index("op")
        .with_columns(pl.Series("node", node))
        .filter(pl.col("sequence") >= 0)
        .select("op", "process", "thread", "sequence", "start", "direction", "node")
    )
    creators = (
        numbered.filter(pl.col("direction") == "forward")
        .sort("start", maintain_order=True)
        .select("process", "thread", "sequence", "start", pl.col("op").alias("forward"))
    )
    # Numbers are per thread and may repeat: the last creator before the backward node counts.
    creators_of_nodes = (
        numbered.filter("node")
        .sort("start")
        .join_asof(
            creators,
            on="start",
            by=["process", "sequence"],
            strategy="backward",
            check_sortedness=False,
        )
        .filter(pl.col("forward").is_not_null())
        .select("op", "forward")
        .collect()
    )
    forward = np.full(ops.height, NONE, dtype=np.int64)
    forward[creators_of_nodes["op"].to_numpy()] = creators_of_nodes["forward"].to_numpy()
    of_views = node & (forward == NONE) & names.matching(_AFTER_VIEW)
    if not of_views.any():
        return forward
    nodes_of_views = numbered.filter(pl.col("op").is_in(np.flatnonzero(of_views)))
    numbers_grow = (pl.col("sequence").diff().fill_null(0) >= 0).all().over("process")
    on_one_thread = (pl.col("thread").n_unique() == 1).over("process")
    creators_of_nodes = (
        nodes_of_views.sort("sequence")
        .join_asof(
            creators.filter(pl.col("sequence") > 0)
            .with_columns(pl.col("sequence").max().over("process").alias("last"))
            .filter(numbers_grow & on_one_thread)
            .select("process", "sequence", "last", "forward")
            .sort("sequence", maintain_order=True),
            on="sequence",
            by="process",
            strategy="backward",
            check_sortedness=False,
        )
        .filter(pl.col("last") > pl.col("sequence"))
        .select("op", "forward")
        .collect()
    )
    forward[creators_of_nodes["op"].to_numpy()] = creators_of_nodes["forward"].to_numpy()
    return forward


_CUSTOM_NODE: Final = re.compile(r"CppNode<(?:.*::)?(\w+)>$")
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_NO_NAME: Final = frozenset(("op", "function", "fn", "autograd", "torch"))


def _words(name: str) -> frozenset[str]:
    return frozenset(word.lower() for word in _WORD.findall(name)) - _NO_NAME


def _with_custom_nodes(
    ops: pl.DataFrame, names: Texts, nesting: Nesting, node: Flags, forward: Ints
) -> Ints:
    """Return ``forward``, where nodes of C++ functions have the operator of their name.

    Such an operator may have no number of its own, as FBGEMM's: the last one with the node's number
    ran before it. ``CppNode<SplitLookupFunction_rowwise_adagrad_Op>`` is of the next operator whose
    name has all these words: ``fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function``.
    """
    texts = dict(zip(names.codes.tolist(), names.distinct.cast(pl.String).to_list(), strict=True))
    matches = {code: _CUSTOM_NODE.search(text or "") for code, text in texts.items()}
    custom = {code: match[1] for code, match in matches.items() if match is not None}
    if not custom:
        return forward
    is_forward = (ops["direction"] == "forward").fill_null(False).to_numpy()
    code = names.code_of_row
    words = {
        candidate: _words(texts.get(candidate) or "")
        for candidate in np.unique(code[is_forward]).tolist()
    }
    start, result = ops["start"].to_numpy(), forward.copy()
    for node_code, function in custom.items():
        rows = np.flatnonzero(node & (code == node_code) & (forward != NONE))
        wanted = _words(function)
        fitting = [
            candidate
            for candidate, candidate_words in words.items()
            if wanted and wanted <= candidate_words
        ]
        if not len(rows) or not fitting:
            continue
        named = is_forward & (code == min(fitting, key=lambda candidate: len(words[candidate])))
        last = forward[rows]
        around = nesting.nearest(named, last)
        for key in np.unique(nesting.key[last]).tolist():
            calls = np.flatnonzero(named & (nesting.key == key))
            calls = calls[np.argsort(start[calls], kind="stable")]
            outside = np.flatnonzero((nesting.key[last] == key) & (around == NONE))
            next_call = np.searchsorted(start[calls], start[last[outside]], side="right")
            has_next = next_call < len(calls)
            around[outside[has_next]] = calls[next_call[has_next]]
        is_earlier = (around != NONE) & (start[around] < start[rows])
        result[rows[is_earlier]] = around[is_earlier]
    return result


_KEY: Final = r"(?i)^autograd::engine::evaluate_function: |^\w+::|^_backward_|Backward\d*$|_"


def _forward_by_order(
    ops: pl.DataFrame, nesting: Nesting, node: Flags, forward: Ints, step: Ints
) -> Ints:
    """Return the forward operator of each node, for processes in which no node has one yet.

    A node has the name of the operator that created it: ``CudnnConvolutionBackward`` is created by
    ``aten::cudnn_convolution``, ``_backward_Convolution`` by ``Convolution``. The nodes of a name
    run in reverse order of the operators of that name before them in the step. They are paired if
    there are equally many of both.
    """
    forward_row = np.full(ops.height, NONE, dtype=np.int64)
    rows = ops.select("process", "start", "name").with_columns(
        pl.Series("node", node), pl.Series("known", forward != NONE), pl.Series("step", step)
    )
    of_process = rows.filter("node").group_by("process").agg(pl.col("known").any())
    unpaired = of_process.filter(~pl.col("known"))["process"]
    if not len(unpaired):
        return forward_row
    open_ = rows["process"].is_in(unpaired.implode(), nulls_equal=True)
    keys = rows.select(pl.col("name").unique()).with_columns(
        pl.col("name")
        .cast(pl.String)
        .str.replace_all(ascii_classes(_KEY), "")
        .str.to_lowercase()
        .alias("key"),
        pl.col("name").cast(pl.String).str.ends_with("_").alias("in_place"),
    )
    candidates = (
        rows.with_row_index("row")
        .join(keys, on="name", how="left", maintain_order="left")
        .with_columns(pl.col("key").rank("dense").cast(pl.Int64).alias("code"))
    )
    # Of nested operators of one name, the outermost counts.
    code = candidates["code"].fill_null(NONE).to_numpy()
    parent = nesting.parent
    inner = (parent != NONE) & (code[parent] == code) & (node[parent] == node)
    forwards = (ops["direction"] == "forward").fill_null(False).to_numpy()
    wanted = open_.to_numpy() & ~inner & (node | forwards)
    chosen = candidates.filter(pl.Series(wanted))
    chosen = chosen.filter(pl.col("node").any().over("process", "key")).sort("start", "row")
    of_any = _mirrored_pairs(chosen)
    by_kind = [
        _mirrored_pairs(chosen.filter(pl.col("node") | (pl.col("in_place") == in_place)))
        for in_place in (False, True)
    ]
    # ``add`` and ``add_`` create nodes of one name. If the count of only one of them equals the
    # count of the nodes, that one created them.
    of_one_kind = pl.concat(by_kind).filter(pl.len().over("row") == 1)
    pairs = pl.concat([of_any, of_one_kind]).unique("row", keep="first", maintain_order=True)
    forward_row[pairs["row"].to_numpy()] = pairs["forward"].to_numpy()
    return forward_row


def _mirrored_pairs(chosen: pl.DataFrame) -> pl.DataFrame:
    """Return ``row`` and ``forward`` of the nodes of passes with as many nodes as operators.

    ``chosen`` is in order of time. A pass is a run of operators of a key and the run of nodes of
    that key after it.
    """
    key = ["process", "step", "key"]
    node = pl.col("node")
    begins = node.shift(1).over(key).fill_null(value=False) & ~node
    passes = chosen.with_columns(begins.cum_sum().over(key).alias("pass"))
    of_pass = [*key, "pass"]
    even = passes.filter(node.sum().over(of_pass) == node.not_().sum().over(of_pass))
    position = pl.int_range(pl.len()).over(of_pass)
    forward = even.filter(~node).with_columns(position.alias("position"))
    backward = even.filter(node).with_columns(
        (pl.len().over(of_pass) - 1 - position).alias("position")
    )
    return backward.join(
        forward.select(*of_pass, "position", pl.col("row").alias("forward")),
        on=[*of_pass, "position"],
    ).select("row", "forward")

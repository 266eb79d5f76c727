"""Trees of layers: one for tables, with repeated blocks folded, and one for pictures."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import polars as pl

from traceana.analyze.layers import (
    DIRECTIONS,
    columns_by,
    layer_keys,
    located,
    with_layer_keys,
)
from traceana.enrich.layers.source import SEPARATOR
from traceana.result import share_of
from traceana.table import (
    COUNT,
    FLOPS,
    NUMBER,
    OF_FLOPS,
    ONE_CALL,
    PATH,
    SHARE,
    TEXT,
    TIME,
    Column,
    by_name,
    conformed,
    laid_out,
)

if TYPE_CHECKING:
    from traceana.trace import Trace

_Key: TypeAlias = tuple[str, ...]
"""The labels of a node and of those around it, outermost first."""
ROOT: Final = "all work"
_SMALLER: Final = "\x1f"
"""The label of the merged nodes in the key of one; no part of a path is one."""
_SUMS: Final = ("calls", *DIRECTIONS, "time_ns", "flops")
_OF_LAYER: Final = by_name(columns_by())
COLUMNS: Final = laid_out(
    (
        Column(
            "node",
            TEXT,
            "its part of the path; of several nodes with their numbers: `block{0..11}`",
            title="layer",
        ),
        Column("layer", PATH, "its path"),
        Column("depth", NUMBER, "0 for the root"),
        Column("parent", NUMBER, "row of the parent, from 0; null for the root"),
        _OF_LAYER["type"],
        _OF_LAYER["role"],
        Column("count", COUNT, "nodes in this row"),
        *(_OF_LAYER[name] for name in ("calls", *DIRECTIONS)),
        Column(
            "own_ns",
            TIME,
            "time outside of its children; these times add up to all work. With `--depth N`, nodes "
            "deeper than N are part of their parent",
            additive=True,
        ),
        Column("time_ns", TIME, "time with its children", additive=True),
        Column("share", SHARE, "of all work"),
        Column(
            "min_ns",
            TIME,
            "least `time_ns` of the nodes in this row, null for one",
            scale=ONE_CALL,
            additive=True,
        ),
        Column(
            "max_ns",
            TIME,
            "greatest `time_ns` of them, null for one",
            scale=ONE_CALL,
            additive=True,
        ),
        Column("flops", FLOPS, "FLOPs with its children", scale=OF_FLOPS, additive=True),
    ),
    hidden="layer depth parent role",
    dropped="calls bar type other_ns optimizer_ns flops max_ns min_ns own_ns",
    bars="share",
)
_FOLDED: Final = {column.name: column.dtype for column in COLUMNS if column.name != "share"}
_LAST_NUMBER: Final = re.compile(r"(.*\D|)(\d+)(\D*)", re.DOTALL)
_MOST_LISTED: Final = 3
"""Numbers of folded nodes that are listed where they are not consecutive."""


class _Node:
    """A node of the tree of layers: a part of a path, and the rows of its own work, if any."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.type: str | None = None
        self.role = "layer"
        self.children: dict[str, _Node] = {}
        self.own: list[dict[str, Any]] = []
        self.sums: dict[str, int | None] = {}
        self.alike: object = None

    def add_up(self) -> None:
        """Sum up the subtree, and set ``alike``, which is equal in nodes that are folded."""
        for child in self.children.values():
            child.add_up()
        parts = [*self.own, *(child.sums for child in self.children.values())]
        for name in _SUMS:
            values = [part[name] for part in parts if part.get(name) is not None]
            self.sums[name] = sum(values) if values else None
        numbered = _LAST_NUMBER.fullmatch(self.label)
        label = (numbered[1], numbered[3]) if numbered else self.label
        # The type of a range is the operator with most of its time, which may vary.
        kind = () if self.children else (self.type, self.own[0].get("input_shape"))
        below = tuple(child.alike for child in self.children.values())
        self.alike = label, self.role, kind, below


def folded_tree(layers: pl.DataFrame, depth: int | None = None) -> pl.DataFrame:
    """Return one row per node of the tree of ``layers``, parents before children.

    ``layers`` has a row per layer: :func:`traceana.analyze.layers.layers`. The root is all work;
    below it are the layers by the parts of their paths, and the roles outside layers. Siblings are
    one row if their labels differ only in the last number, and so do their subtrees; leaves have
    the same type and input shape, and without children the same FLOPs. Nodes deeper than ``depth``
    are part of their parent.

    The columns are :data:`COLUMNS`; ``own_ns`` adds up to the time of all work.
    """
    root = _Node(ROOT)
    for row in layers.iter_rows(named=True):
        node = root
        for part in row["layer"].split(SEPARATOR) if row["role"] == "layer" else [row["layer"]]:
            node = node.children.setdefault(part, _Node(part))
        node.own.append(row)
        node.type, node.role = row["type"], row["role"]
    if layers.is_empty():
        return conformed(pl.DataFrame(schema=_FOLDED), COLUMNS)
    root.add_up()
    rows: list[dict[str, Any]] = []

    def enter(nodes: list[_Node], level: int, parent: int | None, above: str) -> None:
        label, number = _label([node.label for node in nodes]), len(rows)
        path = f"{above}{SEPARATOR}{label}" if above else label
        times = [node.sums["time_ns"] or 0 for node in nodes]
        children = [node.children.values() for node in nodes if level != depth]
        # Folded nodes have the same children in the same order.
        slots = list(zip(*children, strict=True))
        inside = sum(node.sums["time_ns"] or 0 for slot in slots for node in slot)
        types = {node.type for node in nodes}
        sums = {name: [node.sums[name] for node in nodes] for name in _SUMS}
        recorded = {
            name: [value for value in values if value is not None] for name, values in sums.items()
        }
        rows.append(
            {
                "node": label,
                "layer": path,
                "depth": level,
                "parent": parent,
                "type": types.pop() if len(types) == 1 else None,
                "role": nodes[0].role if level else None,
                "count": len(nodes),
                **{name: sum(values) if values else None for name, values in recorded.items()},
                "own_ns": sum(times) - inside,
                "min_ns": min(times) if len(nodes) > 1 else None,
                "max_ns": max(times) if len(nodes) > 1 else None,
            }
        )
        folded: dict[object, list[_Node]] = {}
        for slot in slots:
            # Blocks are alike where some are cut by the ends of the recording; leaves alone have to
            # compute the same.
            same = None if slot[0].children else slot[0].sums["flops"]
            folded.setdefault((slot[0].alike, same), []).extend(slot)
        for alike in folded.values():
            enter(alike, level + 1, number, path if level else "")

    enter([root], 0, None, "")
    frame = pl.DataFrame(rows, schema=_FOLDED)
    return conformed(frame.with_columns(share_of(root.sums["time_ns"] or 0)), COLUMNS)


def _label(labels: list[str]) -> str:
    """Return one label of nodes whose labels differ in the last number: ``block{0..11}``."""
    matches = [_LAST_NUMBER.fullmatch(label) for label in dict.fromkeys(labels)]
    if len(matches) == 1:
        return labels[0]
    numbers = sorted({int(numbered[2]) for numbered in matches if numbered})
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        text = f"{numbers[0]}..{numbers[-1]}"
    elif len(numbers) <= _MOST_LISTED:
        text = ",".join(map(str, numbers))
    else:
        text = f"{numbers[0]},{numbers[1]},…,{numbers[-1]}"
    (before, _, after) = matches[0].groups() if matches[0] else ("", "", "")
    return f"{before}{{{text}}}{after}"


SMALLEST: Final = 50_000
"""Nodes below this part of the whole are one node of their parent, if there are many nodes."""

MOST_NODES: Final = 20_000

_TREE: Final[dict[str, type[pl.DataType]]] = {
    "parent": pl.Int64,
    "label": pl.String,
    "path": pl.String,
    "category": pl.String,
    "calls": pl.Int64,
    "time_ns": pl.Int64,
}


def layer_tree(trace: Trace) -> pl.DataFrame:
    """Return the tree of the work of ``trace``: :func:`work_tree`."""
    return work_tree(
        with_layer_keys(located(trace), layer_keys(trace.tables.layers, "layer", None))
    )


def work_tree(work: pl.DataFrame, also: str | None = None) -> pl.DataFrame:
    """Return one row per node, parents before children, siblings in order of first execution.

    The root is all work; below it are the layers by the parts of their paths, and the roles outside
    layers; in each layer its own work, a node per pass and category. ``work`` has ``layer``,
    ``role``, ``position`` (the order of layers), ``direction``, ``category``, ``calls`` and
    ``time_ns``.

    Columns: ``parent`` (row number, null for the root), ``label``, ``path``, ``category`` (with
    most of its time), ``calls``, ``time_ns`` (with its children). The children of a node add up to
    its time. With more than :data:`MOST_NODES` nodes, small ones are merged into one child of their
    parent, with their number in its label. Empty without work. The column ``also`` of ``work`` is
    summed as ``time_ns``.
    """
    further = pl.lit(0) if also is None else pl.col(also).sum()
    leaves = (
        work.group_by("layer", "role", "position", "direction", "category")
        .agg(pl.col("calls").sum(), pl.col("time_ns").sum(), further.alias("also"))
        .sort("position", "layer", "direction", "category", nulls_last=True)
    )
    calls: Counter[_Key] = Counter()
    sums: Counter[_Key] = Counter()
    times: defaultdict[_Key, Counter[str]] = defaultdict(Counter)
    for layer, role, _, direction, category, count, time, more in leaves.iter_rows():
        path = layer.split(SEPARATOR) if role == "layer" else [layer]
        parts = (*path, " ".join(filter(None, (direction, category))))
        for depth in range(len(parts) + 1):
            calls[parts[:depth]] += count
            sums[parts[:depth]] += more
            times[parts[:depth]][category] += time
    least = times[()].total() / SMALLEST if len(times) > MOST_NODES else 0
    small = {key for key, of in times.items() if of.total() < least}
    smaller: Counter[_Key] = Counter()
    shown: dict[_Key, tuple[str, str, str, int, int, int]] = {}
    for key, of in times.items():
        above = key[:-1]
        if key not in small:
            label, path_ = (key[-1], SEPARATOR.join(key)) if key else (ROOT, ROOT)
            heaviest = min(of, key=lambda kind: (-of[kind], kind))
            shown[key] = label, path_, heaviest, calls[key], of.total(), sums[key]
        elif above not in small:
            # Where the last of them is; what is below it is part of its time.
            *_, known_calls, known_time, known_sum = shown.pop(
                (*above, _SMALLER), ("", "", "", 0, 0, 0)
            )
            smaller[above] += 1
            label = f"{smaller[above]} smaller"
            counted = known_calls + calls[key], known_time + of.total(), known_sum + sums[key]
            shown[*above, _SMALLER] = label, SEPARATOR.join(above), "other", *counted
    number = {key: row for row, key in enumerate(shown)}
    rows = [(number[key[:-1]] if key else None, *row) for key, row in shown.items()]
    tree = pl.DataFrame(rows, schema={**_TREE, "also": pl.Int64}, orient="row")
    return tree.drop("also") if also is None else tree.rename({"also": also})

"""The program's lines as a tree of calls, with the work and the waits of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl
from msgspec import Struct

from traceana.analyze.lines import by_frame

if TYPE_CHECKING:
    from traceana.trace import Trace

FIGURES: Final = ("calls", "time_ns", "idle_ns", "host_ns")


class _Node(Struct):
    """A line with the figures of itself and of the lines that it calls."""

    parent: int | None
    place: str
    text: str | None
    figures: list[int]
    children: list[int]


def line_tree(trace: Trace) -> pl.DataFrame:
    """Return the tree of the program's lines: each before those that it calls, most time first.

    Columns: ``parent`` (row number, null for the root), ``depth``, ``place`` (``train.py:41``, the
    reason of work without a line, of the root empty), ``text`` (of the line, else its function),
    and the :data:`FIGURES`, with those of the lines that it calls. Equal frames of several ranks
    are one node.
    """
    nodes = [_Node(None, "", None, [0] * len(FIGURES), [])]
    node_of_key: dict[tuple[int, str, str | None], int] = {}

    def node(parent: int, place: str, text: str | None, function: str | None) -> int:
        key = parent, place, function
        if key not in node_of_key:
            node_of_key[key] = len(nodes)
            nodes[parent].children.append(len(nodes))
            nodes.append(_Node(parent, place, text or function, [0] * len(FIGURES), []))
        return node_of_key[key]

    frames = trace.tables.frames
    node_of_frame: list[int] = []
    # A caller has a smaller number.
    for file, line, function, text, parent in frames.select(
        "file", "line", "function", "text", "parent"
    ).iter_rows():
        above = 0 if parent is None else node_of_frame[parent]
        place = file if line is None else f"{file}:{line}"
        node_of_frame.append(node(above, place, text, function))
    for frame, file, *figures in by_frame(trace).select("place", "file", *FIGURES).iter_rows():
        at = node_of_frame[frame] if frame < frames.height else node(0, file, None, None)
        nodes[at].figures = [sum(pair) for pair in zip(nodes[at].figures, figures, strict=True)]
    for child in reversed(nodes[1:]):
        above = nodes[child.parent or 0]
        above.figures = [sum(pair) for pair in zip(above.figures, child.figures, strict=True)]

    rows: list[tuple[int | None, int, str, str | None, int, int, int, int]] = []
    pending: list[tuple[int, int | None, int]] = [(0, None, 0)]
    while pending:
        number, parent_row, depth = pending.pop()
        child = nodes[number]
        calls, time, idle, host = child.figures
        if child.parent is not None and not (time or idle or host):
            continue
        row = len(rows)
        rows.append((parent_row, depth, child.place, child.text, calls, time, idle, host))
        by_time = sorted(child.children, key=lambda at: nodes[at].figures[1:])
        pending += [(at, row, depth + 1) for at in by_time]
    schema = {
        **{"parent": pl.UInt32, "depth": pl.Int64, "place": pl.String, "text": pl.String},
        **dict.fromkeys(FIGURES, pl.Int64),
    }
    return pl.DataFrame(rows, schema=schema, orient="row")

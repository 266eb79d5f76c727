"""HTA's critical path with changed edges: ``python contender_whatif.py FILE INSTANCE JSON``.

The window is a ``ProfilerStep`` annotation, by its ``INSTANCE``. ``JSON`` is a list of triples:
``kernel``, ``memcpy`` or ``data`` (host time within a data loader's range), a regular expression of
names, and a factor. Prints JSON: one object a triple, with the length of the longest path before
and after, in µs. Runs in HTA's environment, so it imports nothing of traceana.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
import warnings
from importlib import import_module
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any


def _of_work(graph: Any, what: str, pattern: str) -> list[tuple[int, int]]:
    """Return the edges that are the time of kernels, or of copies, with such a name."""
    found = []
    for (begin, end), event in graph.edge_to_event_map.items():
        edge = graph.edges[begin, end]["object"]
        on_device = graph.trace_df.stream.loc[event] != -1 if event >= 0 else False
        is_work = edge.type.value == "critical_path_operator"
        name = graph._get_node_name(event)
        is_kernel = not name.startswith(("Memcpy", "Memset"))
        wanted = is_kernel if what == "kernel" else name.startswith("Memcpy")
        if on_device and is_work and wanted and re.search(pattern, name):
            found.append((begin, end))
    return found


def _of_loading(graph: Any) -> list[tuple[int, int]]:
    """Return the edges of host time within a data loader's range on its thread."""
    frame = graph.trace_df
    loading = [number for number in frame.index if "DataLoader" in graph._get_node_name(number)]
    spans = [
        (frame.tid.loc[one], frame.ts.loc[one], frame.ts.loc[one] + frame.dur.loc[one])
        for one in loading
    ]
    found = []
    for begin, end in graph.edges:
        first, last = graph.node_list[begin], graph.node_list[end]
        events = first.ev_idx, last.ev_idx
        threads = {frame.tid.loc[event] for event in events if event >= 0}
        if any(
            threads == {thread} and since <= first.ts and last.ts <= until
            for thread, since, until in spans
        ):
            found.append((begin, end))
    return found


def _length(graph: Any) -> float:
    graph.critical_path()
    path = graph.critical_path_nodes
    return float(sum(graph.edges[pair]["weight"] for pair in pairwise(path)))


def _changed(graph: Any, what: str, pattern: str, factor: float) -> dict[str, Any]:
    edges = _of_loading(graph) if what == "data" else _of_work(graph, what, pattern)
    before = _length(graph)
    for edge in edges:
        graph.edges[edge]["weight"] *= factor
    after = _length(graph)
    for edge in edges:
        graph.edges[edge]["weight"] = graph.edges[edge]["object"].weight
    return {"edges": len(edges), "before": before, "after": after}


def main() -> None:
    """Print what HTA's longest path becomes with each of the changes."""
    warnings.filterwarnings("ignore")
    analysis = import_module("hta.trace_analysis").TraceAnalysis
    logging.disable(logging.CRITICAL)
    file, instance = Path(sys.argv[1]).resolve(), int(sys.argv[2])
    # HTA prints progress on stdout.
    with contextlib.redirect_stdout(sys.stderr):
        opened = analysis(trace_files={0: file.name}, trace_dir=str(file.parent))
        graph, _ = opened.critical_path_analysis(0, "ProfilerStep", instance)
        found = [_changed(graph, *change) for change in json.loads(sys.argv[3])]
    packages = {name: version(name) for name in ("HolisticTraceAnalysis", "pandas")}
    print(json.dumps({"packages": packages, "changes": found}))


if __name__ == "__main__":
    main()

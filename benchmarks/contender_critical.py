"""HTA's critical path of one Kineto trace: ``python contender_critical.py FILE`` prints JSON.

One object a window: the whole trace, and each of its ``ProfilerStep`` annotations. Times are µs.
Runs in HTA's environment, so it imports nothing of traceana.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import warnings
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

_PARTS = {
    "gpu_compute_bound": "gpu",
    "gpu_communication_bound": "gpu",
    "gpu_kernel_kernel_overhead": "between",
    "gpu_kernel_launch_overhead": "between",
    "cpu_bound": "cpu",
}


def _path(opened: Any, annotation: str, instance: int) -> dict[str, Any]:
    window = {"window": f"{annotation} {instance}" if annotation else "all"}
    try:
        graph, _ = opened.critical_path_analysis(0, annotation, instance)
        edges = graph.get_critical_path_breakdown()
    # An exception of HTA is its result.
    except Exception as error:  # noqa: BLE001
        return {**window, "error": f"{type(error).__name__}: {error}"[:120]}
    figures = {"total": int(edges.duration.sum()), "gpu": 0, "between": 0, "cpu": 0}
    for part, time in edges.groupby("bound_by").duration.sum().items():
        if part in _PARTS:
            figures[_PARTS[part]] += int(time)
    nodes = [graph.node_list[number].ts for number in graph.critical_path_nodes]
    return {**window, **figures, "from_first_to_last": int(nodes[-1] - nodes[0])}


def main() -> None:
    """Print HTA's critical paths of the file given as argument."""
    warnings.filterwarnings("ignore")
    analysis = import_module("hta.trace_analysis").TraceAnalysis
    logging.disable(logging.CRITICAL)
    file = Path(sys.argv[1]).resolve()
    # HTA prints progress on stdout.
    with contextlib.redirect_stdout(sys.stderr):
        opened = analysis(trace_files={0: file.name}, trace_dir=str(file.parent))
        names = opened.t.symbol_table.get_sym_table()
        frame = opened.t.get_trace(0)
        steps = sum("ProfilerStep" in names[number] for number in frame.name)
        paths = [_path(opened, "", 0)]
        paths += [_path(opened, "ProfilerStep", number) for number in range(steps)]
    packages = {name: version(name) for name in ("HolisticTraceAnalysis", "pandas")}
    print(json.dumps({"packages": packages, "paths": paths}))


if __name__ == "__main__":
    main()

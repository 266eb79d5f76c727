"""The copies of several runs by direction and host memory, as NVIDIA's review of frameworks has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from traceana.analyze.transfers import transfers as of_one
from traceana.compare.many.run import Run
from traceana.compare.many.table import Table, table
from traceana.compare.many.work import basis, comparable, unmarked

_KEYS: Final = ("direction", "host_memory")
_FIGURES: Final = (
    *("count", "bytes", "mean_bytes", "bytes_per_s", "time_ns", "share", "exposed_ns"),
    *("waits", "step_count", "step_bytes", "step_ns", "step_share"),
)


def transfers(runs: Sequence[Run]) -> Table:
    """Return the copies by direction and host memory.

    Columns: ``direction``, ``host_memory``, then those of
    :func:`traceana.analyze.transfers.transfers` from ``count`` on that do not depend on the machine
    alone (``bytes_per_s`` is the throughput), and ``to_first``. The rows of a run are all
    its copies.
    """
    parts = [(run.label, of_one(run.trace).frame.select(*_KEYS, *_FIGURES)) for run in runs]
    time, _ = basis(runs)
    count, size = ("step_count", "step_bytes") if time == "step_ns" else ("count", "bytes")
    notes = [f"{label}: no copies in it" for label, frame in parts if frame.is_empty()]
    figures = (count, size, "bytes_per_s", time)
    told = [*unmarked(runs), *notes]
    return table(parts, _KEYS, figures, time, ratios=comparable(runs), notes=told)

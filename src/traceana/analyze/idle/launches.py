"""How devices are fed: launches, kernels shorter than their launch, and time in the queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.analyze.idle.windows import PLACE, measured_windows
from traceana.analyze.intervals import rows_by_place
from traceana.enrich.nesting import Ints

if TYPE_CHECKING:
    from traceana.trace import Trace

Mask = npt.NDArray[np.bool_]

_SCHEMA: Final = {
    "rank": pl.Int32,
    "device": pl.Int32,
    "launches": pl.Int64,
    "step_launches": pl.Float64,
    "launch_bound": pl.Int64,
    "launch_bound_ns": pl.Int64,
    "launch_bound_share": pl.Float64,
    "queue_median_ns": pl.Int64,
    "queue_p95_ns": pl.Int64,
}


def launches(trace: Trace, measured: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return one row a ``rank`` and ``device`` that calls launched work on.

    ``launches``
        Calls that launched work of any kind. ``step_launches``: mean over the measured steps.
    ``launch_bound``, ``launch_bound_ns``, ``launch_bound_share``
        Kernels whose launching call lasts longer than all that it launched, their summed time, and
        their part of the number of kernels whose launch is known.
    ``queue_median_ns``, ``queue_p95_ns``
        Of the kernels' start less the end of their launching call: median and 95th percentile, the
        lower of two. Negative where the kernel starts before the call returns.

    ``measured`` is :func:`traceana.analyze.idle.windows.measured_windows` of the trace, where it is
    at hand.
    """
    if measured is None:
        measured = measured_windows(trace)
    work = trace.activities.select(*PLACE, "kind", "start", "duration", "call", "step").filter(
        (pl.col("kind") != "sync") & pl.col("call").is_not_null() & pl.col("device").is_not_null()
    )
    steps = {(rank, device): count for rank, device, count in measured.group_by(PLACE).len().rows()}
    inside = work["step"].is_in(measured["step"].unique().implode()).fill_null(value=False)
    in_steps, call = inside.to_numpy(), work["call"].to_numpy()
    kernels = _Kernels.of(trace, work)
    rows = []
    for place, here in rows_by_place(work):
        first = here[_first(call[here])]
        count = steps.get(place)
        of_step = int(in_steps[first].sum()) / count if count else None
        rows.append((*place, len(first), of_step, *kernels.figures(here)))
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")


def _first(calls: Ints) -> Ints:
    """Return where in ``calls`` each is found first."""
    if (calls[1:] >= calls[:-1]).all():
        order = np.arange(len(calls))
    else:
        order = np.argsort(calls, kind="stable")
        calls = calls[order]
    return order[np.concatenate(([True], calls[1:] != calls[:-1]))]


@dataclass(frozen=True, slots=True)
class _Kernels:
    """Which rows of the launched work are kernels, which of them are bound, and their queue."""

    kernel: Mask
    bound: Mask
    duration: Ints
    queued: Ints

    @classmethod
    def of(cls, trace: Trace, work: pl.DataFrame) -> _Kernels:
        """Look at ``work``, all of which calls launched."""
        kernel = work["kind"].is_in(["kernel", "graph"]).to_numpy()
        call, duration = work["call"].to_numpy(), work["duration"].to_numpy()
        took = trace.calls["duration"].to_numpy()
        # Sums are exact: nothing that one call launches lasts 2**53 ns, a hundred days.
        launched = np.bincount(call[kernel], duration[kernel], minlength=len(took))
        queued = work["start"].to_numpy() - (trace.calls["start"].to_numpy() + took)[call]
        return cls(kernel, kernel & (launched < took)[call], duration, queued)

    def figures(self, rows: Ints) -> tuple[int | float | None, ...]:
        """Return the last five columns of :func:`launches` for ``rows``, of one device."""
        kernels = rows[self.kernel[rows]]
        if not len(kernels):
            return (None,) * 5
        bound = kernels[self.bound[kernels]]
        queued = pl.Series(self.queued[kernels])
        return (
            len(bound),
            int(self.duration[bound].sum()),
            len(bound) / len(kernels),
            *(int(queued.quantile(part, "lower")) for part in (0.5, 0.95)),  # type: ignore[arg-type]
        )

"""Any number of runs, compared."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import polars as pl

from traceana.compare import many
from traceana.compare.many import Run, Table
from traceana.compare.opened import opened, recorded_batch

if TYPE_CHECKING:
    from traceana.trace import Trace

By = Literal["summary", "layer", "class", "algorithm", "kernel", "gemm", "epilogue", "transfer"]

_TABLES: Final[dict[By, Callable[[Sequence[Run]], Table]]] = {
    "summary": many.summary,
    "layer": many.layers,
    "class": many.classes,
    "algorithm": many.algorithms,
    "kernel": many.kernels,
    "gemm": many.gemms,
    "epilogue": many.epilogues,
    "transfer": many.transfers,
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Several runs side by side.

    The properties are frames of one row a run and item; :meth:`by` gives the same as a
    :class:`~traceana.compare.many.table.Table`, which can be turned (:meth:`Table.pivot`).
    """

    runs: tuple[Run, ...]

    def by(self, what: By) -> Table:
        """Return the table of all runs; each is described at its function in ``compare.many``."""
        return _TABLES[what](self.runs)

    @property
    def summary(self) -> pl.DataFrame:
        """One row a run: :func:`traceana.compare.many.summary.summary`."""
        return self.by("summary").frame

    @property
    def layers(self) -> pl.DataFrame:
        """Forward and backward time by layer: :func:`traceana.compare.many.layers.layers`."""
        return self.by("layer").frame

    @property
    def classes(self) -> pl.DataFrame:
        """The work by class: :func:`traceana.compare.many.work.classes`."""
        return self.by("class").frame

    @property
    def algorithms(self) -> pl.DataFrame:
        """The work by algorithm: :func:`traceana.compare.many.work.algorithms`."""
        return self.by("algorithm").frame

    @property
    def kernels(self) -> pl.DataFrame:
        """The work by kernel: :func:`traceana.compare.many.work.kernels`."""
        return self.by("kernel").frame

    @property
    def gemms(self) -> pl.DataFrame:
        """Matrix products by tile: :func:`traceana.compare.many.gemm.gemms`."""
        return self.by("gemm").frame

    @property
    def epilogues(self) -> pl.DataFrame:
        """Bias and activations: :func:`traceana.compare.many.epilogue.epilogues`."""
        return self.by("epilogue").frame

    @property
    def transfers(self) -> pl.DataFrame:
        """Copies by direction: :func:`traceana.compare.many.transfers.transfers`."""
        return self.by("transfer").frame


def compare(
    runs: Sequence[Trace | str | os.PathLike[str]] | Mapping[str, Trace | str | os.PathLike[str]],
) -> Comparison:
    """Return several runs side by side; the first is the one that ratios are to.

    Traces that are given by path are opened, with the layer manifest that lies beside them. A
    mapping gives the runs their labels, else they are called after their files. Raises
    ``ValueError`` for fewer than two runs, and the errors of :mod:`traceana.errors`.
    """
    given = list(runs.values()) if isinstance(runs, Mapping) else list(runs)
    if len(given) < 2:
        raise ValueError(f"{len(given)} runs cannot be compared: give two or more")
    found = [opened(one) for one in given]
    names = (
        [str(name) for name in runs]
        if isinstance(runs, Mapping)
        else many.labels([Path(trace.meta.source) for trace, _ in found])
    )
    batches = [recorded_batch(one) for one in given]
    named = zip(names, found, batches, strict=True)
    return Comparison(tuple(Run(name, *one, batch) for name, one, batch in named))

"""Any number of runs, compared."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import polars as pl

from traceana.compare import many
from traceana.compare.many import Run, Table
from traceana.compare.opened import opened, recorded_batch
from traceana.compare.pairs_file import Pairs
from traceana.compare.recorded import runs_in

if TYPE_CHECKING:
    from traceana.describe import Manifest
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


Given: TypeAlias = "Trace | str | os.PathLike[str]"


def compare(
    runs: Sequence[Given] | Mapping[str, Given] | str | os.PathLike[str],
    *,
    models: Sequence[Manifest | None] | None = None,
    pairs: Sequence[Pairs | None] | None = None,
) -> Comparison:
    """Return several runs side by side; the first is the one that ratios are to.

    Traces that are given by path are opened, with the layer manifest that lies beside them; in a
    sequence of paths, or as the only one, a sweep or a folder of recorded runs stands for its runs.
    A mapping gives the runs their labels, else they are called after what they differ in, or after
    their files. ``models`` are the runs' layer manifests; ``pairs`` force layers of the first run
    on layers of each of the others (:mod:`traceana.compare.pairs_file`). Raises ``ValueError`` for
    fewer than two runs, or another number of models or pairs, and the errors of
    :mod:`traceana.errors`.
    """
    names, given = _given(runs)
    if len(given) < 2:
        raise ValueError(f"{len(given)} runs cannot be compared: give two or more")
    models = [None] * len(given) if models is None else models
    forced = [None] * (len(given) - 1) if pairs is None else pairs
    if len(models) != len(given) or len(forced) != len(given) - 1:
        raise ValueError(f"{len(given)} runs have as many models, and pairs for all but the first")
    found = [opened(one, model) for one, model in zip(given, models, strict=True)]
    if not names:
        names = many.labels([Path(trace.meta.source) for trace, _ in found])
    return Comparison(
        tuple(
            Run(name, trace, model, recorded_batch(one), own)
            for name, (trace, model), one, own in zip(
                names, found, given, (None, *forced), strict=True
            )
        )
    )


def _given(
    runs: Sequence[Given] | Mapping[str, Given] | str | os.PathLike[str],
) -> tuple[Sequence[str], Sequence[Given]]:
    """Return the labels, none where they are those of the traces' files, and the runs."""
    if isinstance(runs, Mapping):
        return [str(name) for name in runs], list(runs.values())
    listed = [runs] if isinstance(runs, str | os.PathLike) else list(runs)
    paths = [Path(one) for one in listed if isinstance(one, str | os.PathLike)]
    if len(paths) < len(listed):
        return [], listed
    found = runs_in(paths)
    return found.labels, found.paths

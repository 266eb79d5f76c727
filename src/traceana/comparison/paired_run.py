"""One of the two runs of a diff: its compared steps, and the cells of its work."""

from __future__ import annotations

import msgspec
import polars as pl

from traceana.comparison.compared_run import Run, RunSteps
from traceana.comparison.layer_features import RunLayers
from traceana.comparison.verdicts import RowTimes


class PairedRun(msgspec.Struct, frozen=True):
    """A run of a diff: the compared steps, and their cells with ``pair``.

    ``pair`` is the row of :func:`traceana.comparison.diff.layer_rows` of a cell's layer or role.
    """

    run: Run
    steps: RunSteps
    cells: pl.DataFrame

    @property
    def layers(self) -> RunLayers:
        """The layers of the run."""
        return self.run.layers

    def times(self, chosen: pl.Expr) -> RowTimes:
        """Return the time of the ``chosen`` cells in each step, as one row."""
        row = pl.when(chosen).then(pl.lit(0)).alias("_row")
        return RowTimes.of(self.steps, self.cells.with_columns(row)["_row"], 1)

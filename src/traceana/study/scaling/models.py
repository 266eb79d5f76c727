"""The models fitted to each series, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from traceana.study.missing import command
from traceana.study.scaling.fit import FEWEST_COUNTS, GATHERINGS, Fit, fits
from traceana.study.scaling.series import SERIES, SHARED

FITTED: Final = dict(zip(GATHERINGS, ("linear_ns", "logarithmic_ns"), strict=True))
"""The columns of the models' times."""

SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "network": pl.String,
    "run": pl.String,
    "scaling": pl.String,
    "batch": pl.Int64,
    "model": pl.String,
    "compute_ns": pl.Int64,
    "gather_ns": pl.Int64,
    "residual_ns": pl.Int64,
    "residual_share": pl.Float64,
    "fits_better": pl.Boolean,
}
"""One row a series and model. ``compute_ns`` is the step's time on one device without gathering,
``gather_ns`` what N - 1 or log₂ N is multiplied by; ``residual_ns`` the root of the mean square of
what the model leaves, ``residual_share`` that over the mean of the steps' times."""


def with_models(frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, list[str]]:
    """Return the rows of series with the columns of :data:`FITTED`, the models, and refusals.

    A series with fewer than three numbers of devices has no models: a sentence says so.
    """
    parts, rows, refusals = [], [], []
    for keys, series in frame.group_by(SERIES, maintain_order=True):
        timed = series.drop_nulls("step_ns")
        shared = series["scaling"][0] == SHARED
        found = fits(timed["devices"].to_list(), timed["step_ns"].to_list(), shared_batch=shared)
        if found is None:
            refusals.append(_refusal(series, timed["devices"].n_unique()))
        parts.append(_predicted(series, found or ()))
        rows += [_row(dict(zip(SERIES, keys, strict=True)), fit, found) for fit in found or ()]
    if not parts:
        return _predicted(frame, ()), pl.DataFrame(schema=SCHEMA), []
    return pl.concat(parts), pl.DataFrame(rows, schema=SCHEMA), refusals


def _predicted(series: pl.DataFrame, found: Sequence[Fit]) -> pl.DataFrame:
    columns = {column: pl.Series([None] * series.height, dtype=pl.Int64)
               for column in FITTED.values()}  # fmt: skip
    for fit in found:
        times = fit.step_ns(series["devices"].to_list()).round()
        columns[FITTED[fit.gathering]] = pl.Series(times).cast(pl.Int64)
    return series.with_columns(values.alias(name) for name, values in columns.items())


def _row(series: dict[str, Any], fit: Fit, found: Sequence[Fit] | None) -> dict[str, Any]:
    first, second = found or (fit, fit)
    return {
        **series,
        "model": fit.gathering,
        "compute_ns": round(fit.compute_ns),
        "gather_ns": round(fit.gather_ns),
        "residual_ns": round(fit.residual_ns),
        "residual_share": fit.residual_share,
        "fits_better": fit is first and first.residual_ns < second.residual_ns,
    }


def _refusal(series: pl.DataFrame, counts: int) -> str:
    name, network, batch, kind = (series[key][0] for key in ("run", "network", "batch", "scaling"))
    wanted = ("processes", (1, 2, 4))
    words = command(series["framework"][0], network, f"--batch {batch}", sweep=wanted)
    return (
        f"{name} on {network or 'an unnamed network'}, {kind} {batch}: no model is fitted to fewer "
        f"than {FEWEST_COUNTS} numbers of devices, and {counts} "
        f"{'is' if counts == 1 else 'are'} there; {words}"
    )

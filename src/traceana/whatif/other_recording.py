"""Factors of convolutions that take as long as in another recording, or as timed algorithms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.analyze.convolutions import each_convolution
from traceana.analyze.executed_flops import SHAPE
from traceana.errors import NoSuchSelectionError
from traceana.whatif.factors import Factors

if TYPE_CHECKING:
    from traceana.enrich.nesting import Flags
    from traceana.trace import Trace

_EXTENTS: Final = [name for name in SHAPE if name not in ("stride", "element_bytes")]
"""What a convolution is known by. Input and output determine the stride, which PyTorch does not
always record."""
_KEY: Final = [*_EXTENTS, "direction"]
_WHOLE: Final = pl.col("time_ns") + pl.col("layout_ns")


def as_in(trace: Trace, chosen: Flags, source: str) -> Factors:
    """Return the factors of the ``chosen`` convolutions if they take as long as in ``source``.

    ``source`` is a trace: then from the lower to the upper quartile of those of the same shape and
    direction, layout changes included. Or it is a file of timed algorithms, ``docs/algorithms.md``:
    then the quartiles of the runs of the fastest algorithm for the shape and direction, or with
    ``ALGORITHM@`` before the file of that one, reorders included. Raises
    :class:`~traceana.errors.NoSuchSelectionError` where no shape is in both, and what
    :func:`traceana.open` raises.
    """
    there = _times(source)
    here = (
        _known(trace)
        .filter(_WHOLE > 0)
        .join(there, on=_KEY, how="inner")
        .select("episode", pl.col("least") / _WHOLE, pl.col("most") / _WHOLE)
    )
    episodes = trace.activities.select("episode").with_row_index("row")
    found = (
        episodes.filter(pl.Series(chosen)).join(here, on="episode", how="inner").drop_nulls("least")
    )
    if found.is_empty():
        raise NoSuchSelectionError(f"no selected convolution has a shape of one in {source}")
    ends = (found[end].to_numpy() for end in ("least", "most"))
    return Factors.of_rows(trace, found["row"].cast(pl.Int64).to_numpy(), *ends)


def _known(trace: Trace) -> pl.DataFrame:
    """Return the convolutions of ``trace`` whose shape is known, without trials; a dilation that is
    not recorded is 1."""
    return (
        each_convolution(trace)
        .filter(~pl.col("tried"), pl.col("batch").is_not_null())
        .with_columns(
            pl.col("direction").cast(pl.String),
            pl.col("dilation").fill_null(pl.col("window").list.eval(pl.element() * 0 + 1)),
        )
    )


def _times(source: str) -> pl.DataFrame:
    """Return ``least`` and ``most`` (ns) by :data:`_KEY`."""
    from traceana.flops.timed_algorithms import ALGORITHMS, is_study, read
    from traceana.opening import open_trace

    algorithm, _, path = source.rpartition("@")
    if algorithm not in ("", *ALGORITHMS):
        algorithm, path = "", source
    if not is_study(path):
        return (
            _known(open_trace(path))
            .group_by(_KEY)
            .agg(
                _WHOLE.quantile(0.25, "linear").alias("least"),
                _WHOLE.quantile(0.75, "linear").alias("most"),
            )
        )
    study = read(path)
    layers = {layer.path: layer for layer in study.layers}
    rows = []
    for each in study.measurements:
        if each.times_ns and algorithm in ("", each.algorithm):
            shape = layers[each.layer].convolution(each.batch)
            least, median, most = np.quantile(each.times_ns, [0.25, 0.5, 0.75])
            reorder = float(np.median(each.reorder_ns or (0,)))
            rows.append(
                {name: getattr(shape, name) for name in _EXTENTS}
                | {"direction": each.direction, "median": median}
                | {"least": least + reorder, "most": most + reorder}
            )
    schema = {name: SHAPE[name] for name in _EXTENTS} | {
        "direction": pl.String, "median": pl.Float64, "least": pl.Float64, "most": pl.Float64
    }  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row").sort("median").unique(_KEY, keep="first")

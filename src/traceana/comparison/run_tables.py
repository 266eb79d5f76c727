"""Tables of several runs side by side: by class, algorithm, kernel, GEMM, copy, or epilogue.

Bias and activations of several runs by library (Kim et al. 2017, Table IV).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import polars as pl
from msgspec.structs import replace

from traceana.analyze.transfers import transfers as of_one
from traceana.comparison.compared_run import KEYS, OTHER, Kind, Run, keyed
from traceana.result import ratio, with_share

RUN: Final = "run"
ITEM: Final = "item"
RATIO: Final = "to_first"

_WHOLE: Final = "totals of whole recordings"
SGEMM: Final = ("fp32", "tf32")
"""The operand types of SGEMM in BLAS; TF32 uses the same interface."""
_KEYS: Final = ("direction", "host_memory")
_FIGURES: Final = (
    *("count", "bytes", "mean_bytes", "bytes_per_s", "time_ns", "share", "exposed_ns"),
    *("blocking", "step_count", "step_bytes", "step_ns", "step_share"),
)


class Table(msgspec.Struct, frozen=True):
    """One row per run and item.

    ``frame`` begins with ``run`` (its label), ``item`` (the number of the item, the same in all
    runs) and the columns ``keys``, which identify the item; a run has rows only for its own items.
    ``figures`` are the columns shown side by side, the most important first; ``time`` is
    the basis of ``to_first``: each item's sum over that of the first run, null where that is 0.
    ``runs`` are the labels in their order.
    """

    frame: pl.DataFrame
    keys: tuple[str, ...]
    figures: tuple[str, ...]
    time: str
    runs: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def pivot(self) -> pl.DataFrame:
        """Return one row per item: ``keys``, then the ``figures`` of each run.

        :meth:`column` names their columns. Numbers of several rows of an item are summed, texts
        joined by commas.
        """
        kinds = self.frame.schema
        by_item = self.frame.group_by(RUN, ITEM, maintain_order=True).agg(
            _together(figure, kinds[figure]) for figure in self.figures
        )
        wide = self.frame.select(ITEM, *self.keys).unique(ITEM, keep="first").sort(ITEM)
        for run in self.runs:
            own = by_item.filter(pl.col(RUN) == run).drop(RUN)
            named = {figure: self.column(run, figure) for figure in self.figures}
            wide = wide.join(own.rename(named), on=ITEM, how="left", maintain_order="left")
        return wide.drop(ITEM)

    @staticmethod
    def column(run: str, figure: str) -> str:
        """Return the name of a column of :meth:`pivot`."""
        return f"{run} {figure}"


def table(
    parts: Sequence[tuple[str, pl.DataFrame]],
    keys: tuple[str, ...],
    figures: tuple[str, ...],
    time: str,
    *,
    ratios: bool,
    last: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Table:
    """Return the table of ``parts``, one labelled frame per run.

    ``keys`` identify the items and are columns of every frame; items are sorted by their ``time``
    in all runs, those whose first key is in ``last`` at the end. ``to_first`` is appended as the
    last of the figures; it is null without ``ratios``.
    """
    labels = tuple(label for label, _ in parts)
    rows = pl.concat(
        [frame.with_columns(pl.lit(label).alias(RUN)) for label, frame in parts], how="vertical"
    )
    items = (
        rows.group_by(keys)
        .agg(pl.col(time).sum().alias("_most"))
        .sort(
            [pl.col(keys[0]).is_in(list(last)), "_most", *keys],
            descending=[False, True, *(False for _ in keys)],
            nulls_last=True,
        )
        .drop("_most")
        .with_row_index(ITEM)
        .with_columns(pl.col(ITEM).cast(pl.Int64))
    )
    numbered = rows.join(items, on=list(keys), how="left", nulls_equal=True, maintain_order="left")
    return Table(
        with_ratio(numbered, labels, time, ratios=ratios).select(
            RUN, ITEM, *keys, *(c for c in rows.columns if c not in (RUN, *keys)), RATIO
        ),
        keys,
        (*figures, RATIO),
        time,
        labels,
        tuple(notes),
    )


def with_ratio(
    rows: pl.DataFrame, labels: Sequence[str], time: str, *, ratios: bool
) -> pl.DataFrame:
    """Return ``rows`` by run and item with ``to_first`` (see :class:`Table`).

    It is null without ``ratios``.
    """
    summed = rows.group_by(RUN, ITEM).agg(pl.col(time).sum().alias("_sum"))
    first = summed.filter(pl.col(RUN) == labels[0]).select(ITEM, pl.col("_sum").alias("_first"))
    known = (pl.col("_first") > 0) & ratios
    to_first = pl.when(known).then(ratio(pl.col("_sum"), pl.col("_first")))
    by_item = summed.join(first, on=ITEM, how="left").select(RUN, ITEM, to_first.alias(RATIO))
    place = {label: at for at, label in enumerate(labels)}
    order = pl.col(RUN).replace_strict(place, return_dtype=pl.Int64)
    return rows.join(by_item, on=[RUN, ITEM], how="left", maintain_order="left").sort(
        order, ITEM, maintain_order=True
    )


def _together(figure: str, kind: pl.DataType) -> pl.Expr:
    column = pl.col(figure)
    if kind == pl.String:
        return column.drop_nulls().unique(maintain_order=True).str.join(", ").replace("", None)
    if figure == RATIO:
        return column.first()
    return pl.when(column.is_not_null().any()).then(column.sum())


def classes(runs: Sequence[Run]) -> Table:
    """Return all work by category and part, as in ``report``."""
    return work(runs, "class")


def algorithms(runs: Sequence[Run]) -> Table:
    """Return all work by category, convolutions by algorithm and pass."""
    return work(runs, "algorithm")


def kernels(runs: Sequence[Run]) -> Table:
    """Return all work by the name of the kernel."""
    return work(runs, "kernel")


def work(runs: Sequence[Run], by: Kind, notes: Sequence[str] = ()) -> Table:
    """Return all work by the columns :data:`traceana.comparison.compared_run.KEYS` of ``by``.

    Columns: those of :func:`added`, then ``to_first``. The rows of a run add up to all its work.
    """
    keys = KEYS[by]
    parts = [(run.label, added(run, keys, lambda cells: keyed(cells, by))) for run in runs]
    time, calls = basis(runs)
    return table(
        parts,
        keys,
        (time, calls),
        time,
        ratios=comparable(runs),
        last=[OTHER],
        notes=[*unmarked(runs), *notes],
    )


def added(
    run: Run, keys: Sequence[str], prepared: Callable[[pl.DataFrame], pl.DataFrame]
) -> pl.DataFrame:
    """Return the work of ``run`` by ``keys``, columns of its cells when they are ``prepared``.

    Columns: ``keys``, ``calls`` and ``time_ns`` (of the whole recording), ``step_calls`` and
    ``step_ns`` (means over the measured steps, time rounded down; null without marked steps),
    ``share`` (of all work of the recording). Most time first.
    """
    figures = [pl.col("calls", "time_ns").sum()]
    frame = prepared(run.whole.cells).group_by(keys).agg(figures)
    if run.measured.marked:
        steps = run.measured.count
        own = prepared(run.measured.cells).group_by(keys).agg(figures)
        means = own.select(
            *keys,
            (pl.col("calls") / steps).alias("step_calls"),
            (pl.col("time_ns") // steps).alias("step_ns"),
        )
        frame = frame.join(means, on=keys, how="left", nulls_equal=True)
        frame = frame.with_columns(pl.col("step_calls", "step_ns").fill_null(0))
    else:
        frame = frame.with_columns(
            pl.lit(None, pl.Float64).alias("step_calls"), pl.lit(None, pl.Int64).alias("step_ns")
        )
    return with_share(frame).sort(
        ["time_ns", *keys], descending=[True, *(False for _ in keys)], nulls_last=True
    )


def marked(runs: Sequence[Run]) -> bool:
    """Return whether all runs mark steps; if not, whole recordings are compared."""
    return all(run.measured.marked for run in runs)


def basis(runs: Sequence[Run]) -> tuple[str, str]:
    """Return the columns of time and calls by which ``runs`` are compared."""
    return ("step_ns", "step_calls") if marked(runs) else ("time_ns", "calls")


def comparable(runs: Sequence[Run]) -> bool:
    """Return whether ratios of :func:`basis` are meaningful.

    They are for steps, and for recordings without steps with equal numbers of kernels; other
    recordings may have different numbers of iterations.
    """
    if marked(runs):
        return True
    return not any(run.measured.marked for run in runs) and len(set(_kernels(runs))) == 1


def _kernels(runs: Sequence[Run]) -> list[int]:
    kernel = pl.col("kind").is_in(["kernel", "op", "graph"])
    return [int(run.whole.cells.filter(kernel)["calls"].sum()) for run in runs]


def unmarked(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the notes on runs without steps."""
    without = [run.label for run in runs if not run.measured.marked]
    if not without:
        return ()
    if len(without) < len(runs):
        return (f"no steps marked in {', '.join(without)}: {_WHOLE}, no ratios",)
    if comparable(runs):
        return (f"no steps marked: {_WHOLE} (equal kernel counts)",)
    counts = ", ".join(f"{count:,}" for count in _kernels(runs))
    return (f"no steps marked: {_WHOLE}, no ratios (kernel counts {counts})",)


def gemms(runs: Sequence[Run]) -> Table:
    """Return the GEMMs by kernel.

    The items are ``gemm`` (tile and layout as the name prints them, ``128x64_nn``), ``form``
    (``plain``, ``batched``, ``strided batched``, ``plain or batched``), ``precision``,
    ``library``; ``tile`` and ``gemm_layout`` are the parts of ``gemm``. Columns of figures: those
    of :func:`traceana.comparison.run_tables.added` and ``to_first``. All other work is a further
    item: the rows of a run add up to all its work.
    """
    return work(runs, "gemm", _without(runs, "GEMMs"))


def sgemms(runs: Sequence[Run]) -> Table:
    """Return the rows of :func:`gemms` with the operand types of SGEMM: fp32 and tf32."""
    whole = gemms(runs)
    kept = whole.frame.filter(pl.col("precision").is_in(SGEMM))
    have = set(kept[RUN])
    notes = [f"{run.label}: no SGEMM" for run in runs if run.label not in have]
    return replace(whole, frame=kept, notes=(*whole.notes, *notes))


def _without(runs: Sequence[Run], what: str) -> list[str]:
    return [
        f"{run.label}: no {what}"
        for run in runs
        if run.whole.cells.filter(pl.col("category") == "gemm").is_empty()
    ]


def transfers(runs: Sequence[Run]) -> Table:
    """Return the copies by direction and host memory.

    Columns: ``direction``, ``host_memory``, then those of
    :func:`traceana.analyze.transfers.transfers` from ``count`` on, without those of the machine
    alone (``bytes_per_s`` is the bandwidth), and ``to_first``. The rows of a run are all its
    copies.
    """
    parts = [(run.label, of_one(run.trace).frame.select(*_KEYS, *_FIGURES)) for run in runs]
    time, _ = basis(runs)
    count, size = ("step_count", "step_bytes") if time == "step_ns" else ("count", "bytes")
    notes = [f"{label}: no copies" for label, frame in parts if frame.is_empty()]
    figures = (count, size, "bytes_per_s", time)
    all_notes = [*unmarked(runs), *notes]
    return table(parts, _KEYS, figures, time, ratios=comparable(runs), notes=all_notes)


SEPARATE: Final = "separate kernel"
FUSED: Final = "fused"

_EPILOGUE_KEYS: Final = ("operation", "direction", "library", "how")
_NEITHER: Final = ("bn_stats",)
"""Epilogues that are neither a bias nor an activation."""

_GRADIENTS: Final = {"drelu": "relu", "dgelu": "gelu", "bgrad": "bias"}
"""The forward operation of cuBLASLt's epilogues of the backward pass."""

_PASSES: Final = {
    **{"forward": "forward", "fprop": "forward"},
    **{"backward": "backward", "dgrad": "backward", "wgrad": "backward"},
}


def epilogues(runs: Sequence[Run]) -> Table:
    """Return the time of bias additions and activations, by library.

    The items are ``operation`` (``bias``, or the activation: ``relu`` …), ``direction``
    (``forward``, ``backward``, null if neither the operator nor the name implies one) and ``how``:
    ``separate kernel``, or ``fused`` for convolution and GEMM kernels whose names imply such an
    epilogue. The time of fused operations is unknown: it is null, and ``calls`` counts them. Each
    row also has a ``library`` (null: unknown). Other columns: those of
    :func:`traceana.comparison.run_tables.added` and ``to_first``. All other work is a further item:
    the rows of a run add up to all its work.
    """
    time, calls = basis(runs)
    parts = [
        (run.label, pl.concat([added(run, _EPILOGUE_KEYS, _separate), _fused_calls(run)]))
        for run in runs
    ]
    notes = [
        f"{label}: no bias additions or activations"
        for label, frame in parts
        if (frame["operation"] == OTHER).all()
    ]
    if any((frame["how"] == FUSED).any() for _, frame in parts):
        notes.append("fused: part of a convolution or GEMM kernel, no time of its own")
    return table(
        parts,
        ("operation", "direction", "how"),
        (time, "library", calls),
        time,
        ratios=comparable(runs),
        last=[OTHER],
        notes=[*unmarked(runs), *notes],
    )


def _fused_calls(run: Run) -> pl.DataFrame:
    """Return the calls of operations fused into other kernels."""
    found = added(run, _EPILOGUE_KEYS, _fused)
    return found.with_columns(
        pl.lit(None, found.schema[column]).alias(column)
        for column in ("time_ns", "step_ns", "share")
    )


def _separate(cells: pl.DataFrame) -> pl.DataFrame:
    """Return all ``cells``, those of separate kernels with their keys."""
    category = pl.col("category")
    here = category.is_in(["bias", "activation"])
    operation = (
        pl.when(category == "bias")
        .then(pl.lit("bias"))
        .when(category == "activation")
        .then(pl.col("function").fill_null("activation"))
        .otherwise(pl.lit(OTHER))
    )
    return cells.select(
        "calls",
        "time_ns",
        operation.alias("operation"),
        pl.when(here).then(_direction()).alias("direction"),
        pl.when(here).then("library").alias("library"),
        pl.when(here).then(pl.lit(SEPARATE)).alias("how"),
    )


def _fused(cells: pl.DataFrame) -> pl.DataFrame:
    """Return the convolutions and GEMMs among ``cells`` once per part of their epilogue."""
    done = pl.col("category").is_in(["conv", "gemm"]) & pl.col("epilogue").is_not_null()
    return (
        cells.filter(done)
        .select(
            "calls",
            "time_ns",
            pl.col("epilogue").str.split("+").alias("operation"),
            _direction().alias("direction"),
            "library",
            pl.lit(FUSED).alias("how"),
        )
        .explode("operation")
        .filter(~pl.col("operation").is_in(_NEITHER))
        .with_columns(
            pl.when(pl.col("operation").is_in(list(_GRADIENTS)))
            .then(pl.lit("backward"))
            .otherwise("direction")
            .alias("direction"),
            pl.col("operation").replace(_GRADIENTS),
        )
    )


def _direction() -> pl.Expr:
    named = pl.col("named_direction").replace_strict(_PASSES, default=None, return_dtype=pl.String)
    return pl.coalesce("direction", named)

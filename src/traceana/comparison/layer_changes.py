"""What the finders of changes look at, and what they give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np
import polars as pl

from traceana.comparison.compared_run import Sample
from traceana.comparison.layer_features import Side
from traceana.comparison.verdicts import Times

_PRODUCTS: Final = ("conv", "gemm")
_UNTOLD: Final = ("unknown", "(unknown)")


@dataclass(frozen=True, slots=True)
class Half:
    """One run: its steps, its cells with ``pair`` (row of the pairs of layers), what else it does.

    ``loading`` is the host's time in the data loader in each step (ns), null where the trace shows
    no loader.
    """

    sample: Sample
    cells: pl.DataFrame
    side: Side
    loading: Times | None

    def time(self, chosen: pl.Expr) -> Times:
        """Return the time of the cells that are ``chosen`` in each step (ns)."""
        rows = self.cells.filter(chosen)
        times = np.zeros(self.sample.count, dtype=np.int64)
        np.add.at(times, rows["step"].cast(pl.Int64).to_numpy(), rows["time_ns"].to_numpy())
        return times

    def calls(self, chosen: pl.Expr) -> float:
        """Return the mean number of calls a step of the cells that are ``chosen``."""
        return int(self.cells.filter(chosen)["calls"].sum()) / self.sample.count


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is not as it was: ``kind`` (see ``docs/diff.md``), and where.

    ``before`` and ``after`` are what it was in a and is in b; ``layers`` how many pairs of layers
    it is of, ``layer_a`` and ``layer_b`` the one with the most effect. ``a`` and ``b`` are the time
    that it is about in each step of either side (ns).
    """

    kind: str
    a: Times
    b: Times
    subject: str | None = None
    before: str | None = None
    after: str | None = None
    count_a: float | None = None
    count_b: float | None = None
    layers: int | None = None
    layer_a: str | None = None
    layer_b: str | None = None


def algorithms(a: Half, b: Half, pairs: pl.DataFrame) -> Iterator[Change]:
    """Yield the convolutions whose main algorithm of a pass is another: one change a switch."""
    conv = (pl.col("category") == "conv") & ~pl.col("part").is_in(_UNTOLD)
    main = [_main(half, conv, "pass", "part") for half in (a, b)]
    both = main[0].join(main[1], on=["pair", "pass"], suffix="_b", nulls_equal=True)
    switched = both.filter(pl.col("part") != pl.col("part_b")).sort("pass", "part", "part_b")
    keys = switched.select("pass", "part", "part_b").rows()
    rows = switched["pair"].to_list()
    for key, group in groupby(zip(keys, rows, strict=True), key=lambda entry: entry[0]):
        of = [row for _, row in group]
        direction, before, after = key
        chosen = (
            pl.col("pair").is_in(of)
            & (pl.col("category") == "conv")
            & (pl.col("pass").cast(pl.String).eq_missing(pl.lit(direction)))
        )
        yield _of_layers("algorithm", a, b, pairs, of, chosen, direction, before, after)


def biases(a: Half, b: Half, pairs: pl.DataFrame) -> Iterator[Change]:
    """Yield the products whose bias is a kernel of its own on one side only."""
    product = pl.col("category").is_in(_PRODUCTS)
    apart = pl.col("category") == "bias"
    own = [set(half.cells.filter(apart)["pair"].drop_nulls()) for half in (a, b)]
    products = [set(half.cells.filter(product)["pair"].drop_nulls()) for half in (a, b)]
    shared = products[0] & products[1]
    for kind, of in (
        ("bias_apart", (own[1] - own[0]) & shared),
        ("bias_fused", (own[0] - own[1]) & shared),
    ):
        if of:
            yield _of_layers(kind, a, b, pairs, sorted(of), pl.col("pair").is_in(of) & apart)


def shapes(a: Half, b: Half, pairs: pl.DataFrame) -> Iterator[Change]:
    """Yield the layers whose input or weight has another shape: one change a pair of shapes."""
    for kind in ("shape", "weight"):
        yield from _other(kind, a, b, pairs)


def memory_formats(a: Half, b: Half, pairs: pl.DataFrame) -> Iterator[Change]:
    """Yield the layers whose input has another memory format: one change a pair of formats.

    Where no strides are recorded the kernels of the layer tell it: a convolution that computes in
    NHWC takes ``channels_last`` if nothing in the layer turns its input, else ``contiguous``.
    """
    rows = pairs.with_row_index("pair")
    for side, half in (("a", a), ("b", b)):
        rows = rows.join(_formats_by_kernels(half), on="pair", how="left", maintain_order="left")
        known = pl.coalesce(f"memory_format_{side}", "format")
        rows = rows.with_columns(known.alias(f"memory_format_{side}")).drop("format")
    yield from _other("memory_format", a, b, rows.drop("pair"))


def _formats_by_kernels(half: Half) -> pl.DataFrame:
    """Return ``pair`` and ``format`` of those whose convolutions tell it by their names."""
    name, conv = pl.col("name").str.to_lowercase(), pl.col("category") == "conv"
    turned = (pl.col("category") == "layout") & (pl.col("function") == "nchw_to_nhwc")
    last, first = ((conv & name.str.contains(one, literal=True)).any() for one in ("nhwc", "nchw"))
    format_ = (
        pl.when(last & first)
        .then(None)
        .when(last & ~turned.any())
        .then(pl.lit("channels_last"))
        .when(last | first)
        .then(pl.lit("contiguous"))
    )
    return (
        half.cells.filter(
            pl.col("pair").is_not_null()
            & (pl.col("role") == "layer")
            & ~pl.col("direction").is_in(["backward", "optimizer"]).fill_null(value=False)
        )
        .group_by("pair")
        .agg(format_.alias("format"))
        .drop_nulls()
    )


def _other(kind: str, a: Half, b: Half, pairs: pl.DataFrame) -> Iterator[Change]:
    """Yield the pairs whose columns ``kind`` differ on both sides: one change a pair of values."""
    columns = f"{kind}_a", f"{kind}_b"
    other = (
        pairs.with_row_index("pair")
        .filter(pl.col(columns[0]) != pl.col(columns[1]))
        .sort(*columns, "pair")
    )
    for (before, after), rows in other.group_by(*columns, maintain_order=True):
        of = rows["pair"].to_list()
        chosen = pl.col("pair").is_in(of)
        yield _of_layers(kind, a, b, pairs, of, chosen, None, str(before), str(after))


def precisions(a: Half, b: Half, pairs: pl.DataFrame) -> Iterator[Change]:
    """Yield the products whose main precision is another, or if not, their use of tensor cores."""
    product = pl.col("category").is_in(_PRODUCTS)
    told_of: set[tuple[int, str]] = set()
    for kind, column in (("precision", "precision"), ("tensor_cores", "tensor_core")):
        told = product & pl.col(column).is_not_null()
        main = [_main(half, told, "category", column) for half in (a, b)]
        both = main[0].join(main[1], on=["pair", "category"], suffix="_b")
        other = both.filter(
            (pl.col(column) != pl.col(f"{column}_b"))
            & ~pl.Series(
                [r in told_of for r in both.select("pair", "category").iter_rows()],
                dtype=pl.Boolean,
            )
        )
        told_of |= set(other.select("pair", "category").iter_rows())
        keyed = other.with_columns(pl.col(column, f"{column}_b").cast(pl.String))
        for (category, before, after), rows in keyed.group_by(
            "category", column, f"{column}_b", maintain_order=True
        ):
            of = rows["pair"].to_list()
            chosen = pl.col("pair").is_in(of) & (pl.col("category") == category)
            yield _of_layers(kind, a, b, pairs, of, chosen, str(category), str(before), str(after))


def _main(half: Half, chosen: pl.Expr, key: str, value: str) -> pl.DataFrame:
    """Return by pair and ``key`` the ``value`` that most of the chosen time has."""
    return (
        half.cells.filter(chosen & pl.col("pair").is_not_null() & (pl.col("role") == "layer"))
        .with_columns(pl.col(key).cast(pl.String))
        .group_by("pair", key, value)
        .agg(pl.col("time_ns").sum())
        .sort("time_ns", value, descending=[True, False])
        .unique(["pair", key], keep="first", maintain_order=True)
        .select("pair", key, value)
        .sort("pair", key)
    )


def _of_layers(
    kind: str,
    a: Half,
    b: Half,
    pairs: pl.DataFrame,
    of: list[int],
    chosen: pl.Expr,
    subject: str | None = None,
    before: str | None = None,
    after: str | None = None,
) -> Change:
    most = _most(a, b, chosen)
    return Change(
        kind,
        a.time(chosen),
        b.time(chosen),
        subject,
        before,
        after,
        a.calls(chosen),
        b.calls(chosen),
        len(of),
        None if most is None else pairs["a"][most],
        None if most is None else pairs["b"][most],
    )


def _most(a: Half, b: Half, chosen: pl.Expr) -> int | None:
    """Return the pair whose chosen time differs most."""
    sums = [
        half.cells.filter(chosen).group_by("pair").agg(pl.col("time_ns").sum() / half.sample.count)
        for half in (a, b)
    ]
    both = sums[0].join(sums[1], on="pair", how="full", coalesce=True, suffix="_b").fill_null(0)
    apart = both.with_columns((pl.col("time_ns_b") - pl.col("time_ns")).abs().alias("_apart"))
    ordered = apart.sort("_apart", "pair", descending=[True, False])
    return int(ordered["pair"][0]) if ordered.height else None

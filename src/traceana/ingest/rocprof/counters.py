"""The counters of rocprof: a row a dispatch of a kernel, from any layout.

rocprofv3 prints a row for each counter of a dispatch, rocprof and rocprofv2 a column for each.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.ingest.integrity import LONGEST_TRACE_NS
from traceana.ingest.names import UNNAMED, demangle
from traceana.ingest.rocprof.activities import plain_names, sizes
from traceana.ingest.rocprof.csv_tables import COUNTER
from traceana.trace import Ledger
from traceana.trace.schema import COUNTERS

_KIB: Final = 1024
_OPERATIONS: Final = 512
"""What an SQ_INSTS_VALU_MFMA_MOPS counter counts one for."""
_TENSOR_OPS: Final = "tensor_ops"
COLUMNS: Final = {
    # counter or derived metric: column of `counters`, what its unit is worth there
    "FETCH_SIZE": ("dram_read_bytes", _KIB),
    "FetchSize": ("dram_read_bytes", _KIB),
    "WRITE_SIZE": ("dram_write_bytes", _KIB),
    "WriteSize": ("dram_write_bytes", _KIB),
    "OccupancyPercent": ("achieved_occupancy_percent", 1),
    "SQ_INSTS_MFMA": ("tensor_instructions", 1),
    "SQ_INSTS_VALU_MFMA": ("tensor_instructions", 1),
    **{
        f"SQ_INSTS_VALU_MFMA_MOPS_{kind}": (_TENSOR_OPS, _OPERATIONS)
        for kind in ("F16", "BF16", "F32", "F64", "I8", "F8", "XF32", "F6F4")
    },
}
"""Wave instructions of the VALU are left out: how many lanes were active is not counted."""
_LARGEST: Final = float(1 << 44)
"""Larger values are damaged; sums of those below fit int64."""
_DISPATCH: Final = ("guid", "process", "dispatch")
_FACTS: Final = ("name", "device", "start", "end")


def dispatches(rows: pl.DataFrame, ledger: Ledger) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the dispatches and the values of ``rows``, one for each counter of a dispatch.

    Both have the number of the dispatch in ``row``. Rows whose name or times are not those of
    their dispatch are counted in ``ledger``.
    """
    found = rows.filter(pl.col("dispatch").is_not_null() & pl.col("counter").is_not_null())
    lost = rows.height - found.height
    ledger.add("malformed", lost, table="counters", kept=True, detail="rows without a dispatch")
    number = pl.struct(_DISPATCH).rank("dense") - 1
    found = found.with_columns(number.cast(pl.UInt32).alias("row"))
    first = found.unique("row", keep="first", maintain_order=True)
    alike = found.select("row", *_FACTS).join(first, on="row", how="left", maintain_order="left")
    differs = pl.any_horizontal(pl.col(f).ne_missing(pl.col(f"{f}_right")) for f in _FACTS)
    count = int(alike.select(differs.sum()).item())
    detail = "rows with another name or time than their dispatch"
    ledger.add("damaged", count, table="counters", kept=True, detail=detail)
    return first, found.select("row", "counter", "value")


def wide_values(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the values of ``kernels``, which have a column for each counter, by ``row``."""
    columns = [name for name in kernels.columns if name.startswith(COUNTER)]
    if not columns:
        return pl.DataFrame(schema={"row": pl.UInt32, "counter": pl.String, "value": pl.String})
    values = kernels.select("row", *columns).unpivot(
        index="row", variable_name="counter", value_name="value"
    )
    return values.with_columns(pl.col("counter").str.strip_prefix(COUNTER)).filter(
        pl.col("value").is_not_null()
    )


def table(measured: pl.DataFrame, values: pl.DataFrame, ledger: Ledger) -> pl.DataFrame:
    """Return ``counters`` of the dispatches ``measured``, with ``row``, and their ``values``."""
    used = values.filter(pl.col("counter").is_in(list(COLUMNS)))
    number = pl.col("value").str.strip_chars(" ").cast(pl.Float64, strict=False)
    possible = number.is_between(0, _LARGEST)
    read = used.with_columns(pl.when(possible).then(number).alias("value"))
    ledger.add(
        "lost_field",
        read["value"].null_count(),
        table="counters",
        kept=True,
        detail="values without a possible number",
    )
    once = read.unique(["row", "counter"], keep="first", maintain_order=True)
    ledger.add("repeated", read.height - once.height, table="counters", kept=True, detail="values")
    figures = once.group_by("row").agg(*_columns(once["counter"].unique().to_list()))
    duration = pl.col("end") - pl.col("start")
    names = plain_names(measured["name"])
    ledger.add("unnamed", names.null_count(), table="counters", kept=True)
    names = names.fill_null(UNNAMED)
    plain = demangle(names.unique())
    plain.count_failures(ledger)
    facts = measured.select(
        "row",
        "guid",
        "dispatch",
        pl.col("dispatch").alias("launch"),
        names.replace(plain.names).alias("name"),
        "process",
        "device",
        "stream",
        *(size.cast(pl.Int32, strict=False) for size in sizes()),
        pl.when(duration.is_between(0, LONGEST_TRACE_NS)).then(duration).alias("duration"),
    )
    lost = measured.filter(pl.col("start").is_not_null()).height - facts["duration"].count()
    ledger.add("lost_field", lost, table="counters", kept=True, detail="impossible durations")
    return facts.join(figures, on="row", how="left", maintain_order="left")


def _columns(names: list[str]) -> list[pl.Expr]:
    """Return the aggregates of the values of a dispatch, for the columns of ``names``."""
    found: dict[str, list[pl.Expr]] = {}
    for name, (column, worth) in COLUMNS.items():
        if name in names:
            one = pl.col("value").filter(pl.col("counter") == name).first() * worth
            found.setdefault(column, []).append(one)
    sums = {
        column: pl.sum_horizontal(parts) if column == _TENSOR_OPS else pl.coalesce(parts)
        for column, parts in found.items()
    }
    sides = [sums[c] for c in ("dram_read_bytes", "dram_write_bytes") if c in sums]
    if len(sides) == 2:
        sums["dram_bytes"] = pl.sum_horizontal(sides, ignore_nulls=False)
    return [
        (one if COUNTERS[column] == pl.Float64 else one.round().cast(pl.Int64)).alias(column)
        for column, one in sums.items()
    ]

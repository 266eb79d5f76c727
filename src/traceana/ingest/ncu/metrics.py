"""Nsight Compute's metrics: their columns in ``counters``, their units and number formats."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import polars as pl

_OPERATIONS: Final = {
    f"{letter}{operation}": f"fp{bits}_{operation}"
    for letter, bits in (("d", 64), ("f", 32), ("h", 16))
    for operation in ("add", "mul", "fma")
}
COLUMNS: Final = {
    # metric name, or label of the details page: column
    "gpu__time_duration.sum": "duration",
    "gpu__time_duration.avg": "duration",
    "gpu__time_duration.max": "duration",
    "Duration": "duration",
    "dram__bytes.sum": "dram_bytes",
    "dram__bytes_read.sum": "dram_read_bytes",
    "dram__bytes_write.sum": "dram_write_bytes",
    # since Blackwell
    "dram__bytes_op_read.sum": "dram_read_bytes",
    "dram__bytes_op_write.sum": "dram_write_bytes",
    "sm__inst_executed_pipe_tensor.sum": "tensor_instructions",
    "smsp__inst_executed_pipe_tensor.sum": "tensor_instructions",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": "tensor_active_percent",
    # The same counter once per multiprocessor, once per quarter of one.
    **{
        f"{unit}__sass_thread_inst_executed_op_{operation}_pred_on.sum": column
        for unit in ("sm", "smsp")
        for operation, column in _OPERATIONS.items()
    },
}
_TENSOR_OPS: Final = re.compile(r"(sm__ops_path_tensor_\w+)\.sum")
_BY_TYPE: Final = "sm__ops_path_tensor_src_"
_PREFIXES: Final = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_SECONDS: Final = {
    # to nanoseconds; long forms: Nsight Compute before 2024
    **dict.fromkeys(("ns", "nsecond"), 1.0),
    **dict.fromkeys(("us", "usecond"), 1e3),
    **dict.fromkeys(("ms", "msecond"), 1e6),
    **dict.fromkeys(("s", "second"), 1e9),
}
_OTHER_LOCALE: Final = r"^-?[0-9.]*,(?:[0-9]{1,2}|[0-9]{4,})$|^[0-9]{1,3}(?:\.[0-9]{3}){2,}(?:,|$)"
_COUNTED: Final = re.compile(r"([KMGTP]?)(?:byte|inst|ops?|FLOPs?)?")


def factor(unit: str) -> float | None:
    """Return the factor from ``unit`` to nanoseconds, bytes, counts or percent.

    None for other units, rates among them.
    """
    if unit == "%":
        return 1.0
    if unit in _SECONDS:
        return _SECONDS[unit]
    counted = _COUNTED.fullmatch(unit)
    return None if counted is None else _PREFIXES[counted[1]]


def known(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the metrics among ``names`` for each column of ``counters``.

    The first that is not null counts; those of ``tensor_ops`` are summed. A metric that another
    includes (``…_src_fp16_dst_fp32`` in ``…_src_fp16``) is left out, as are the counts by
    instruction (``…_op_hmma_…``) where there are counts by type, which include them.
    """
    listed = list(names)
    found: dict[str, list[str]] = {}
    for name in COLUMNS:
        if name in listed:
            found.setdefault(COLUMNS[name], []).append(name)
    tensor = {m[1]: name for name in listed if (m := _TENSOR_OPS.fullmatch(name))}
    if any(stem.startswith(_BY_TYPE) for stem in tensor):
        tensor = {stem: name for stem, name in tensor.items() if stem.startswith(_BY_TYPE)}
    parts = [
        name
        for stem, name in tensor.items()
        if not any(stem.startswith(f"{other}_") for other in tensor)
    ]
    if parts:
        found["tensor_ops"] = parts
    return found


def number(text: pl.Expr, *, decimal_comma: bool) -> pl.Expr:
    """Return the values of ``text`` as float64: ``1,234.50``, null for ``n/a`` and the like.

    With ``decimal_comma`` they are ``1.234,50``.
    """
    thousands = "." if decimal_comma else ","
    plain = text.str.replace_all(thousands, "", literal=True)
    if decimal_comma:
        plain = plain.str.replace(",", ".", literal=True)
    value = plain.cast(pl.Float64, strict=False)
    return pl.when(value.is_finite()).then(value)


def has_decimal_comma(values: pl.Series) -> bool:
    """Return whether ``values``, all of a table, were printed with a decimal comma.

    ``ncu`` prints in the machine's locale. ``1.234`` is ambiguous; percentages (``65,77``) and
    numbers above a million (``2.508.800``) are not.
    """
    return bool(values.str.contains(_OTHER_LOCALE).any())


def combined(found: dict[str, list[str]]) -> list[pl.Expr]:
    """Return the columns of ``counters`` for the result of :func:`known`."""
    columns = []
    for column, names in found.items():
        if column == "tensor_ops":
            some = pl.any_horizontal(pl.col(name).is_not_null() for name in names)
            value: pl.Expr = pl.when(some).then(pl.sum_horizontal(names))
        else:
            value = pl.coalesce(names)
        if column != "tensor_active_percent":
            value = value.round().cast(pl.Int64, strict=False)
        columns.append(value.alias(column))
    sides = ("dram_read_bytes", "dram_write_bytes")
    if "dram_bytes" not in found and all(side in found for side in sides):
        columns.append(
            pl.sum_horizontal(
                *(pl.coalesce(found[side]).round().cast(pl.Int64, strict=False) for side in sides),
                ignore_nulls=False,
            ).alias("dram_bytes")
        )
    return columns

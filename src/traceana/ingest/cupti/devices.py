"""Which of the described devices a trace is about."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import polars as pl

from traceana.ingest.tables import as_int
from traceana.trace.schema import DEVICES

_LARGEST: Final = {pl.Int32: 2**31 - 1, pl.Int64: 2**63 - 1}


def fact(record: dict[str, Any], column: str, *keys: str) -> int | None:
    """Return the first of ``keys`` in ``record`` that is positive and fits ``devices.column``."""
    limit = _LARGEST[DEVICES[column]]  # type: ignore[index]
    values = (as_int(record.get(key)) for key in keys)
    return next((v for v in values if v is not None and 0 < v <= limit), None)


def capability(record: dict[str, Any], major: str, minor: str) -> str | None:
    """Return e.g. ``8.0``, None where either number is missing."""
    first, second = fact(record, "multiprocessors", major), as_int(record.get(minor))
    return None if first is None or second is None else f"{first}.{second}"


def of_work(described: Iterable[dict[str, Any]], used: pl.Series) -> pl.DataFrame:
    """Return the devices that did work, or all that the file describes when none did.

    ``described`` are rows of ``devices``. ``used`` holds the device numbers of the activities; one
    that is not described gets a row without properties.
    """
    known = (
        pl.DataFrame(list(described), schema=DEVICES, strict=False)
        .filter(pl.col("device") >= 0)
        .unique("device", keep="first", maintain_order=True)
        .sort("device")
    )
    wanted = used.drop_nulls().unique().sort().cast(DEVICES["device"]).alias("device")
    if not len(wanted):
        return known
    return wanted.to_frame().join(known, on="device", how="left", maintain_order="left")

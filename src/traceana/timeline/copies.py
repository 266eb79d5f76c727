"""Each copy of a trace: direction, kind of host memory, whether the call blocked, link and peak."""

from __future__ import annotations

import functools
import re
from importlib import resources
from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl
import rtoml

from traceana.flops.peaks import Peaks, peaks_of
from traceana.trace import per_small_trace

if TYPE_CHECKING:
    from traceana.trace import Trace

HOST_DIRECTIONS: Final = ("HtoD", "DtoH", "HtoA", "AtoH", "unified_HtoD", "unified_DtoH")
"""Copies over the link between host and device."""

_FROM_HOST: Final = ("HtoD", "HtoA", "HtoH", "unified_HtoD")
_TO_HOST: Final = ("DtoH", "AtoH", "unified_DtoH")
_WITHIN_DEVICE: Final = ("DtoD", "AtoA", "AtoD", "DtoA")
_BETWEEN_DEVICES: Final = (*_WITHIN_DEVICE, "PtoP")

SYNCHRONOUS: Final = "synchronous"
STAGED: Final = "staged"
ASYNCHRONOUS: Final = "asynchronous"
BLOCKING: Final = (SYNCHRONOUS, STAGED, ASYNCHRONOUS)

_COPY_CALL: Final = r"^(?:cuda|hip)Memcpy|^cuMemcpy"
_ENQUEUED: Final = r"^(?:cuda|cu|hip)(?:GraphLaunch|MemPrefetchAsync)"

DEVICE_MEMORY: Final = "device memory"
"""The link of a copy within a device. Its peak is half the memory bandwidth: each byte is read and
written."""


@per_small_trace
def copies(trace: Trace) -> pl.DataFrame:
    """Return the copies of ``trace``, in their order.

    Columns of activities: ``rank``, ``device``, ``start``, ``duration``, ``bytes``, ``call``,
    ``op``, ``range``, ``layer`` and ``step_row`` (their ``step``). Further columns:

    ``direction``
        CUPTI's copy kind; ``unified_HtoD``, ``unified_DtoH``, ``unified_DtoD`` for migrations of
        unified memory, which no call starts.
    ``host_memory``
        The kind of host memory; null for copies without host memory.
    ``blocking``
        Whether the copying call blocks the host, by the API's documentation (:func:`_blocking`);
        null where the call, or the memory that decides, is not recorded.
    """
    columns = (
        *("rank", "device", "start", "duration", "bytes", "call", "op", "range", "layer", "step"),
        *("copy_kind", "correlation", "source_memory", "destination_memory"),
    )
    copied = trace.tables.activities.select(columns).filter(
        trace.tables.activities["kind"] == "memcpy"
    )
    frame = copied.select(
        *columns[:-5],
        pl.col("step").alias("step_row"),
        _direction().alias("direction"),
        host_memory(_direction()).alias("host_memory"),
    )
    return frame.with_columns(_blocking(trace, frame))


def blocking_copies(trace: Trace) -> pl.Series:
    """Return for each activity whether it is a copy whose call blocks; null for other activities,
    and where that is not recorded."""
    rows = (trace.tables.activities["kind"] == "memcpy").arg_true()
    blocks = pl.repeat(None, trace.tables.activities.height, dtype=pl.Boolean, eager=True)
    return blocks.scatter(rows, copies(trace)["blocking"] != ASYNCHRONOUS)


def host_memory(direction: pl.Expr) -> pl.Expr:
    """Return the kind of host memory of a copy in ``direction``; null without host memory."""
    return (
        pl.when(direction.is_in(_FROM_HOST))
        .then(pl.col("source_memory").cast(pl.String).fill_null("unknown"))
        .when(direction.is_in(_TO_HOST))
        .then(pl.col("destination_memory").cast(pl.String).fill_null("unknown"))
    )


def _direction() -> pl.Expr:
    kind = pl.col("copy_kind").cast(pl.String).fill_null("unknown")
    # In CUPTI's records a migration has no correlation id, and managed memory on both sides.
    migrated = (
        pl.col("correlation").is_null()
        & (pl.col("source_memory") == "managed")
        & (pl.col("destination_memory") == "managed")
        & kind.is_in(["HtoD", "DtoH", "DtoD"])
    )
    return pl.when(migrated).then("unified_" + kind).otherwise(kind)


def _blocking(trace: Trace, frame: pl.DataFrame) -> pl.Series:
    """Return ``blocking`` of each copy.

    Source: CUDA Runtime API, "API synchronization behavior". A call without ``Async`` blocks,
    except for copies between devices. A call with ``Async`` blocks only for copies within the host;
    from pageable memory the driver stages the bytes and may block (``staged``). With unknown host
    memory ``blocking`` is null. Copies of a launched graph and prefetches are asynchronous.
    """
    name = pl.col("name").cast(pl.String)
    traits = trace.tables.calls.select(pl.col("name").unique()).select(
        "name",
        name.str.contains(_COPY_CALL).alias("copies"),
        name.str.contains("Async", literal=True).alias("async"),
        name.str.contains(_ENQUEUED).alias("enqueued"),
    )
    calls = trace.tables.calls["name"].gather(frame["call"]).to_frame()
    kinds = calls.join(traits, on="name", how="left", maintain_order="left").drop("name")
    direction, memory = pl.col("direction"), pl.col("host_memory")
    between = direction.is_in(_BETWEEN_DEVICES)
    within_host = direction == "HtoH"
    return (
        frame.select("direction", "host_memory")
        .hstack(kinds)
        .select(
            pl.when(pl.col("enqueued"))
            .then(pl.lit(ASYNCHRONOUS))
            .when(pl.col("copies").not_() | (direction == "unknown"))
            .then(None)
            .when(pl.col("async").not_())
            .then(pl.when(between).then(pl.lit(ASYNCHRONOUS)).otherwise(pl.lit(SYNCHRONOUS)))
            .when(pl.col("copies").is_null() | (memory == "unknown"))
            .then(None)
            .when(within_host)
            .then(pl.lit(SYNCHRONOUS))
            .when(memory == "pageable")
            .then(pl.lit(STAGED))
            .otherwise(pl.lit(ASYNCHRONOUS))
            .cast(pl.Enum(BLOCKING))
            .alias("blocking")
        )
        .to_series()
    )


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A kind of link between host and device: its rate, or its lanes and encoding."""

    name: str
    bytes_per_s: int | None = None
    transfers_per_s: int = 0
    lanes: int = 0
    encoding: tuple[int, int] = (1, 1)

    @property
    def peak(self) -> int:
        """Unidirectional bytes per second, packet headers included; rounded down."""
        if self.bytes_per_s is not None:
            return self.bytes_per_s
        payload, coded = self.encoding
        return self.transfers_per_s * self.lanes * payload // (coded * 8)


class LinkRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Devices whose name contains one of ``words`` use ``link``; None: unknown."""

    words: tuple[str, ...]
    link: str | None = None


class Links(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``links.toml``."""

    links: dict[str, Link]
    devices: tuple[LinkRule, ...]
    capabilities: dict[str, str]


@functools.cache
def known_links() -> Links:
    """Return the content of ``links.toml``."""
    text = (resources.files("traceana.analyze") / "links.toml").read_text(encoding="utf-8")
    return msgspec.convert(rtoml.loads(text), Links)


def link_of(name: str | None, vendor: str | None, compute_capability: str | None) -> Link | None:
    """Return the link between the host and a device; None where unknown."""
    table = known_links()
    words = _words(name or "")
    for entry in table.devices:
        if any(_words(word) in words for word in entry.words):
            return None if entry.link is None else table.links[entry.link]
    # AMD's architecture numbers have the form of compute capabilities, with another meaning.
    link = table.capabilities.get(compute_capability or "") if vendor == "NVIDIA" else None
    return None if link is None else table.links[link]


def link_peaks(devices: pl.DataFrame) -> pl.DataFrame:
    """Return one row per device and direction with a known peak.

    Columns: ``rank``, ``device``, ``direction``, ``link`` (its name), ``peak_bytes_per_s``.
    ``devices`` is the canonical table. ``PtoP`` has no rows: those links are not recorded.
    """
    rows = []
    for device in devices.unique(["rank", "device"], keep="first").iter_rows(named=True):
        key = (device["rank"], device["device"])
        link = link_of(device["name"], device["vendor"], device["compute_capability"])
        if link is not None:
            rows += [(*key, direction, link.name, link.peak) for direction in HOST_DIRECTIONS]
        peaks = peaks_of(device)
        datasheet = peaks.bandwidth if isinstance(peaks, Peaks) else None
        bandwidth = device["bandwidth_bytes_per_s"] if datasheet is None else int(datasheet)
        if bandwidth:
            both = (DEVICE_MEMORY, bandwidth // 2)
            rows += [(*key, direction, *both) for direction in _WITHIN_DEVICE]
    schema = {
        "rank": pl.Int32,
        "device": pl.Int32,
        "direction": pl.String,
        "link": pl.String,
        "peak_bytes_per_s": pl.Int64,
    }
    return pl.DataFrame(rows, schema=schema, orient="row")


def _words(text: str) -> str:
    return f" {' '.join(re.findall(r'[a-z0-9]+', text.lower()))} "

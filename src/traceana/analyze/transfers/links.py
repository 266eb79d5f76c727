"""The links that copies go over, and how fast each can be one way (``links.toml``)."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any, Final

import msgspec
import polars as pl

from traceana.flops.peaks import Peaks, peaks_of

DEVICE_MEMORY: Final = "device memory"
"""The "link" of a copy within a device: its peak is half the memory's bandwidth, for each byte is
read and written."""

HOST_DIRECTIONS: Final = ("h2d", "d2h", "h2a", "a2h", "unified_h2d", "unified_d2h")
OWN_DIRECTIONS: Final = ("d2d", "a2a", "a2d", "d2a")


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A kind of link between host and device: its rate as such, or by lanes and encoding."""

    name: str
    bytes_per_s: int | None = None
    transfers_per_s: int = 0
    lanes: int = 0
    encoding: tuple[int, int] = (1, 1)

    @property
    def peak(self) -> int:
        """Bytes per second, one way, before any packet's header; rounded down."""
        if self.bytes_per_s is not None:
            return self.bytes_per_s
        payload, coded = self.encoding
        return self.transfers_per_s * self.lanes * payload // (coded * 8)


class DeviceWords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Devices whose name has one of ``words`` are on ``link``; none: it cannot be told."""

    words: tuple[str, ...]
    link: str | None = None


class Links(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole of ``links.toml``."""

    links: dict[str, Link]
    devices: tuple[DeviceWords, ...]
    capabilities: dict[str, str]


@functools.cache
def known() -> Links:
    """Return what ``links.toml`` says."""
    text = (resources.files("traceana.analyze.transfers") / "links.toml").read_text(
        encoding="utf-8"
    )
    return msgspec.convert(tomllib.loads(text), Links)


def link_of(name: str | None, vendor: str | None, compute_capability: str | None) -> Link | None:
    """Return the link between the host and a device; None where nothing tells."""
    table = known()
    words = _words(name or "")
    for entry in table.devices:
        if any(_words(word) in words for word in entry.words):
            return None if entry.link is None else table.links[entry.link]
    # AMD's numbers of architectures look like compute capabilities, and are none.
    told = table.capabilities.get(compute_capability or "") if vendor == "NVIDIA" else None
    return None if told is None else table.links[told]


def peaks(devices: pl.DataFrame) -> pl.DataFrame:
    """Return one row a device and direction whose peak is known.

    Columns: ``rank``, ``device``, ``direction``, ``link`` (its name), ``peak_bytes_per_s``.
    ``devices`` is the canonical table. Links between devices are in no trace: ``p2p`` has no rows.
    """
    rows = []
    for device in devices.unique(["rank", "device"], keep="first").iter_rows(named=True):
        place = (device["rank"], device["device"])
        link = link_of(device["name"], device["vendor"], device["compute_capability"])
        if link is not None:
            rows += [(*place, direction, link.name, link.peak) for direction in HOST_DIRECTIONS]
        bandwidth = _bandwidth(device)
        if bandwidth:
            both = (DEVICE_MEMORY, bandwidth // 2)
            rows += [(*place, direction, *both) for direction in OWN_DIRECTIONS]
    schema = {
        "rank": pl.Int32,
        "device": pl.Int32,
        "direction": pl.String,
        "link": pl.String,
        "peak_bytes_per_s": pl.Int64,
    }
    return pl.DataFrame(rows, schema=schema, orient="row")


def _bandwidth(device: Mapping[str, Any]) -> int | None:
    """Return the bandwidth of the device's memory (bytes/s): the data sheet's, else the trace's."""
    machine = peaks_of(device)
    of_machine = machine.bandwidth if isinstance(machine, Peaks) else None
    return device["bandwidth_bytes_per_s"] if of_machine is None else int(of_machine)


def _words(text: str) -> str:
    return f" {' '.join(re.findall(r'[a-z0-9]+', text.lower()))} "

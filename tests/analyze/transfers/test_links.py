"""The peak of the host link: from the data, by the device, null where unknown."""

from __future__ import annotations

import polars as pl
import pytest

from traceana.timeline.copies import DEVICE_MEMORY, known_links, link_of, link_peaks
from traceana.trace.schema import conform


@pytest.mark.parametrize(
    ("link", "peak"),
    [
        # 8 GT/s of 16 lanes, 128 bits of payload in 130: 8e9 * 16 / 8 * 128 / 130
        ("pcie3", 15_753_846_153),
        ("pcie4", 31_507_692_307),
        ("pcie5", 63_015_384_615),
        ("pcie4_x8", 15_753_846_153),
        ("nvlink_c2c", 450_000_000_000),
    ],
)
def test_peaks_are_those_of_the_specification(link: str, peak: int) -> None:
    assert known_links().links[link].peak == peak


@pytest.mark.parametrize(
    ("name", "vendor", "capability", "link"),
    [
        ("Tesla V100-SXM2-16GB", "NVIDIA", "7.0", "PCIe 3 x16"),
        ("NVIDIA A100-PG509-200", "NVIDIA", "8.0", "PCIe 4 x16"),
        ("NVIDIA A10", "NVIDIA", "8.6", "PCIe 4 x16"),
        ("NVIDIA A2", "NVIDIA", "8.6", "PCIe 4 x8"),
        ("NVIDIA RTX A2000", "NVIDIA", "8.6", "PCIe 4 x16"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA", "9.0", "PCIe 5 x16"),
        ("NVIDIA GH200 480GB", "NVIDIA", "9.0", "NVLink-C2C"),
        ("NVIDIA GB200", "NVIDIA", "10.0", "NVLink-C2C"),
        ("NVIDIA B200", "NVIDIA", "10.0", "PCIe 5 x16"),
        ("NVIDIA GeForce RTX 2080 Ti", "NVIDIA", "7.5", "PCIe 3 x16"),
        ("NVIDIA GeForce RTX 4060 Ti", "NVIDIA", "8.9", "PCIe 4 x8"),
        ("NVIDIA GeForce RTX 4060 Laptop GPU", "NVIDIA", "8.9", None),
        ("NVIDIA GB10", "NVIDIA", "12.1", None),
        ("AMD Instinct MI300X VF", "AMD", "9.4", "PCIe 5 x16"),
        ("AMD Instinct MI300A", "AMD", "9.4", None),
        # AMD's numbers of architectures are no compute capabilities.
        ("AMD Radeon Graphics", "AMD", "9.0", None),
        (None, None, "9.0", None),
        (None, "NVIDIA", "8.0", "PCIe 4 x16"),
        (None, "NVIDIA", "99.9", None),
        ("", None, None, None),
        (".*[", "NVIDIA", None, None),
    ],
)
def test_the_link_of_a_device(
    name: str | None, vendor: str | None, capability: str | None, link: str | None
) -> None:
    found = link_of(name, vendor, capability)
    assert (found and found.name) == link


def test_every_link_that_is_named_is_there() -> None:
    table = known_links()
    named = {entry.link for entry in table.devices} | set(table.capabilities.values())
    assert named - {None} <= set(table.links)
    assert len(set().union(*(entry.words for entry in table.devices))) == sum(
        len(entry.words) for entry in table.devices
    ), "a word stands in two entries"


def test_a_copy_within_a_device_has_half_the_bandwidth() -> None:
    devices = conform(
        "devices", pl.DataFrame({"device": [0], "bandwidth_bytes_per_s": [2_000_000_001]})
    )
    rows = link_peaks(devices).filter(pl.col("direction") == "DtoD")
    assert rows.select("link", "peak_bytes_per_s").rows() == [(DEVICE_MEMORY, 1_000_000_000)]
    assert "PtoP" not in link_peaks(devices)["direction"]

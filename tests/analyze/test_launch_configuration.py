"""Occupancy, waves and tail of a kernel follow from its launch configuration and its device."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from math import ceil, prod
from typing import Any

import polars as pl
import pytest

from tests.support.manifest import FIXTURES
from tests.support.opened import opened
from tests.support.traces import TraceBuilder
from traceana.analyze.kernels import kernels
from traceana.report.pages import kernels as page
from traceana.report.terminal import Terminal, render
from traceana.trace import Trace


def launched(*launches: tuple[int, int, int, int, int], **device: Any) -> Trace:
    """Return launches of one kernel: duration, blocks, threads, registers, shared memory."""
    b = TraceBuilder()
    a100 = {"name": "A100", "vendor": "NVIDIA", "compute_capability": "8.0", "multiprocessors": 108}
    b.row("devices", device=0, **(a100 | device))
    for at, (duration, blocks, threads, registers, shared) in enumerate(launches):
        sizes = {"grid_x": blocks, "grid_y": 1, "grid_z": 1}
        sizes |= {"block_x": threads, "block_y": 1, "block_z": 1}
        sizes |= {"registers": registers, "shared_memory": shared}
        b.kernel("k", 10_000 * at, duration, **sizes)
    return b.build()


def row(trace: Trace) -> dict[str, Any]:
    return kernels(trace).frame.row(0, named=True)


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks_held"),
    [
        (256, 32, 0, 8),  # 64 warps
        (32, 16, 0, 32),  # block slots
        (256, 128, 0, 2),  # registers: 4,096 a warp, 4 warps in each of the 4 partitions
        (128, 32, 40_000, 4),  # 41,088 bytes of 167,936 with the reserved kilobyte
        (1024, 64, 0, 1),
    ],
)
def test_a_multiprocessor_holds_what_its_resources_allow(
    threads: int, registers: int, shared: int, blocks_held: int
) -> None:
    slots = blocks_held * 108
    one = row(launched((1000, 2 * slots, threads, registers, shared)))
    assert one["theoretical_occupancy"] == pytest.approx(blocks_held * threads / 2048)
    assert one["estimated_occupancy"] == one["theoretical_occupancy"]
    assert (one["waves"], one["tail_share"]) == (2, 0)
    few = row(launched((1000, slots // 4, threads, registers, shared)))
    assert few["estimated_occupancy"] == pytest.approx(few["theoretical_occupancy"] / 4, rel=0.05)
    assert few["tail_share"] == pytest.approx(0.75, rel=0.05)
    more = row(launched((1000, slots + 1, threads, registers, shared)))
    assert more["tail_share"] == pytest.approx(0.5, rel=0.05)


def test_the_configuration_with_most_time_stands_for_the_kernel() -> None:
    trace = launched((900, 10, 64, 32, 0), (500, 20, 64, 32, 0), (500, 20, 64, 32, 0))
    one = row(trace)
    assert (one["configurations"], one["grid"], one["block"]) == (2, "20", "64")
    assert (one["registers"], one["shared_memory"], one["calls"]) == (32, 0, 3)


@pytest.mark.parametrize(
    "device",
    [
        {"vendor": "AMD", "compute_capability": "9.0"},
        {"compute_capability": None},
        {"compute_capability": "3.5"},
    ],
)
def test_occupancy_of_another_device_is_not_known(device: dict[str, Any]) -> None:
    one = row(launched((1000, 10, 64, 32, 0), **device))
    assert (one["grid"], one["theoretical_occupancy"], one["waves"]) == ("10", None, None)


def test_without_multiprocessors_there_are_no_waves() -> None:
    one = row(launched((1000, 10, 64, 32, 0), multiprocessors=None))
    assert one["theoretical_occupancy"] == 1
    assert (one["estimated_occupancy"], one["waves"], one["tail_share"]) == (None, None, None)


@pytest.mark.parametrize("name", ["alexnet_b128", "resnet18_b8", "vgg11_b32"])
def test_the_estimate_is_that_of_kineto(name: str) -> None:
    file = FIXTURES / f"gpu/{name}.json.gz"
    recorded: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)
    for event in json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]:
        if event.get("cat") == "kernel":
            of = event["args"]
            figures = of["est. achieved occupancy %"], of["shared memory"]
            recorded[event["name"]].add(figures)
    frame = kernels(opened(file)).frame.filter(pl.col("name").cast(pl.String).is_unique())
    compared = 0
    alike = frame.filter(pl.col("configurations") == 1)
    for kernel, block, estimate in alike.select("name", "block", "estimated_occupancy").rows():
        ((percent, shared),) = recorded[kernel]
        # Kineto takes the limit of a block without opting in to more.
        if shared <= 48 * 1024:
            threads = prod(map(int, block.split("x")))
            # Kineto counts threads: a warp that is not full is a part of one.
            full = threads / (32 * ceil(threads / 32))
            assert 100 * estimate * full == pytest.approx(percent, abs=0.51), kernel
            compared += 1
    assert compared > 5


def test_a_narrow_terminal_leaves_them_out() -> None:
    shown = page.kernels(opened(FIXTURES / "gpu/resnet18_b8.json.gz")).page(limit=3)
    assert "waves" not in render(shown, Terminal(80))
    assert "waves" in render(shown, Terminal(120))

"""Paths of recorded traces: causally possible, and as HolisticTraceAnalysis (HTA) has them.

HTA's figures were measured with version 0.5.0, pandas 2.3.3 (``python -m benchmarks.critical``).
It gives no weight to host time between outermost operators and to calls that block, so shares are
compared without host time outside operators and calls. docs/idle.md has where it differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import polars as pl
import pytest

from tests.support.manifest import TRACES
from tests.support.opened import opened
from traceana.timeline.critical import GPU_WORK, segments
from traceana.timeline.idle_gaps import outside

POINTS = 0.03
KINETO = TRACES / "kineto"


@dataclass(frozen=True)
class Peer:
    """HTA's path of one window, in µs: the row of the step, None of a trace without steps."""

    trace: str
    step: int | None
    total: int
    gpu: int
    between: int
    """Kernel-kernel and launch delays."""

    @property
    def on_device(self) -> float:
        return (self.gpu + self.between) / self.total


ALIKE = (
    Peer("alexnet_forward_a100", None, 43355655, 60572, 11744),
    Peer("cnn_train_nccl_a100", 1, 101398, 0, 0),
    Peer("cnn_train_ns_resolution_v100", 1, 95735, 93692, 2043),
    Peer("many_kernels_a100", 1, 252853, 0, 0),
    Peer("recsys_rank0", 0, 267581, 948, 36),
    Peer("timesformer_h100", 0, 156304, 151870, 1309),
    Peer("timesformer_mi300x", 0, 141502, 117560, 465),
    Peer("toy_train_mi250", 0, 7448, 0, 0),
)
"""Work of the GPU has the same share."""

DELAYS_BEFORE_THE_LAUNCH = (
    Peer("eager_b200", None, 61917, 56, 2218),
    Peer("recsys_rank1", 0, 272736, 220, 17103),
)
"""HTA's delays between kernels are times in which the second kernel had not been launched."""

WAITS_ACROSS_STREAMS = (
    Peer("diff_test_v100", 1, 117122, 55405, 61717),
    Peer("negative_queue_length", 1, 215565, 27008, 188557),
    Peer("resnet_act_checkpoint_mi300x", 1, 18982, 6142, 12840),
)
"""Recorded without synchronization events: HTA draws no edge between streams, and counts work of
another stream that was waited for as a delay between kernels."""


@cache
def shares(trace: str, step: int | None) -> tuple[int, float, float]:
    """Return the length of our path, ns, and the shares of GPU work and of all device time in it,
    without host time outside operators and calls."""
    path = segments(opened(KINETO / f"{trace}.json.gz")).with_columns(
        pl.col("class").cast(pl.String)
    )
    if step is not None:
        path = path.filter(pl.col("step_row") == step)
    outside = (pl.col("class") == "host") & ~pl.col("part").is_in(["call", "operator"]).fill_null(
        value=False
    )
    path = path.filter(~outside)
    time: dict[str, int] = dict(path.group_by("class").agg(pl.col("time_ns").sum()).iter_rows())
    total = sum(time.values())
    work = sum(time.get(what, 0) for what in GPU_WORK)
    return total, work / total, (work + time.get("gap", 0) + time.get("launch", 0)) / total


without_traces = pytest.mark.skipif(not KINETO.is_dir(), reason="no shared traces")


@without_traces
@pytest.mark.parametrize("peer", ALIKE, ids=lambda peer: peer.trace)
def test_the_share_of_the_gpu_is_that_of_the_peer(peer: Peer) -> None:
    _, work, on_device = shares(peer.trace, peer.step)
    assert work == pytest.approx(peer.gpu / peer.total, abs=POINTS)
    assert on_device == pytest.approx(peer.on_device, abs=POINTS)


@without_traces
@pytest.mark.parametrize(
    "peer",
    [peer for peer in ALIKE if peer.trace.startswith(("alexnet", "cnn_train_ns", "timesformer"))],
    ids=lambda peer: peer.trace,
)
def test_where_one_thread_launches_the_path_is_as_long_as_the_peers(peer: Peer) -> None:
    total, _, _ = shares(peer.trace, peer.step)
    if peer.step is None:
        # HTA's path is that of the whole recording.
        ((_, before, after),) = outside(opened(KINETO / f"{peer.trace}.json.gz")).rows()
        total += before + after
    assert total / 1_000 == pytest.approx(peer.total, rel=POINTS)


@without_traces
@pytest.mark.parametrize("peer", DELAYS_BEFORE_THE_LAUNCH, ids=lambda peer: peer.trace)
def test_the_share_of_work_is_that_of_the_peer(peer: Peer) -> None:
    _, work, on_device = shares(peer.trace, peer.step)
    assert work == pytest.approx(peer.gpu / peer.total, abs=POINTS)
    assert on_device < peer.on_device


@without_traces
@pytest.mark.parametrize("peer", WAITS_ACROSS_STREAMS, ids=lambda peer: peer.trace)
def test_the_time_on_the_device_is_that_of_the_peer(peer: Peer) -> None:
    total, work, on_device = shares(peer.trace, peer.step)
    assert on_device == pytest.approx(peer.on_device, abs=POINTS)
    assert total / 1_000 == pytest.approx(peer.total, rel=0.001)
    assert work > peer.gpu / peer.total


@without_traces
@pytest.mark.parametrize("trace", ["timesformer_h100", "timesformer_mi300x"])
def test_a_blocking_copy_ends_the_kernels_it_waited_for(trace: str) -> None:
    trace_of_file = opened(KINETO / f"{trace}.json.gz")
    path = segments(trace_of_file)
    kernels = int(
        trace_of_file.tables.activities.filter(pl.col("kind") == "kernel")["duration"].sum()
    )
    on_path = int(path.filter(pl.col("class") == "kernel")["time_ns"].sum())
    assert on_path > 0.98 * kernels
    in_copies = path.filter(
        (pl.col("class") == "host") & pl.col("name").str.contains("Memcpy").fill_null(value=False)
    )
    assert in_copies["time_ns"].sum() < 1_000_000

"""Calls to a CUDA device, against a stand-in that records them, with CPU tensors."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from workloads.algorithms.accelerator import Cuda
from workloads.algorithms.libraries import LibraryError
from workloads.algorithms.run import DeviceLostError
from workloads.algorithms.timing import LEAST, Timing

pytestmark = pytest.mark.frameworks


class Pretended:
    """``torch``, as far as it is used, with a clock that a run advances by ``milliseconds``."""

    def __init__(self, milliseconds: float = 2.0) -> None:
        self.calls: list[str] = []
        self.now = 0.0
        self.milliseconds = milliseconds
        self.available = True
        self.full = self.dead = False
        outer = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                self.at = -1.0

            def record(self) -> None:
                outer.calls.append("event")
                self.at = outer.now

            def elapsed_time(self, end: Event) -> float:
                assert outer.calls[-1] == "synchronize"
                return end.at - self.at

        properties = SimpleNamespace(name="a GPU", total_memory=1 << 30)
        self.cuda = SimpleNamespace(
            Event=Event,
            OutOfMemoryError=torch.cuda.OutOfMemoryError,
            is_available=lambda: self.available,
            current_device=lambda: 0,
            get_device_properties=lambda _: properties,
            current_stream=lambda: SimpleNamespace(cuda_stream=77),
            synchronize=self.synchronize,
            _sleep=lambda cycles: self.calls.append("sleep"),
        )
        self.version = SimpleNamespace(cuda="13.0")
        self.backends = SimpleNamespace(cudnn=SimpleNamespace(version=lambda: 92000))
        self.float32, self.uint8 = torch.float32, torch.uint8
        self.channels_last, self.contiguous_format = torch.channels_last, torch.contiguous_format

    def synchronize(self) -> None:
        self.calls.append("synchronize")
        if self.dead:
            raise RuntimeError("CUDA error: an illegal memory access\nmore words")

    def empty(self, shape: tuple[int, ...], *, device: str, **options: Any) -> torch.Tensor:
        assert device == "cuda"
        if self.full:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return torch.empty(shape, **options)

    def run(self) -> None:
        self.calls.append("run")
        self.now += self.milliseconds


def cuda_of(pretended: Pretended) -> Cuda:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", pretended)
        return Cuda()


@pytest.fixture
def pretended() -> Pretended:
    return Pretended()


def test_what_the_device_is(pretended: Pretended) -> None:
    cuda = cuda_of(pretended)
    assert (cuda.name, cuda.memory_bytes, cuda.stream) == ("a GPU", 1 << 30, 77)
    assert cuda.versions == {"cuda": "13.0"}
    pretended.available = False
    with pytest.raises(LibraryError, match="PyTorch found no GPU"):
        cuda_of(pretended)


def test_tensors(pretended: Pretended) -> None:
    cuda = cuda_of(pretended)
    last = cuda.random((2, 3, 4, 5), "nhwc")
    assert last.stride() == (60, 1, 15, 3)
    assert cuda.random((2, 3, 4, 5), "nchw").is_contiguous()
    assert 0.5 < float(last.std()) < 1.5
    assert int(cuda.unset((2, 3, 4, 5), "nchw").isnan().sum()) == 120
    assert (cuda.workspace(7).numel(), cuda.workspace(7).dtype) == (7, torch.uint8)
    pretended.full = True
    with pytest.raises(MemoryError):
        cuda.workspace(7)
    with pytest.raises(MemoryError):
        cuda.random((1, 1, 1, 1), "nchw")


def test_runs_are_queued_behind_a_delay(pretended: Pretended) -> None:
    times = cuda_of(pretended).times(
        Timing(warm_up=2, repetitions=4, limit_ns=10**9), pretended.run
    )
    assert times == (2_000_000,) * 4
    first = ["synchronize", "sleep", "event", "run", "event", "synchronize"]
    rest = ["synchronize", "sleep", *["event", "run", "event"] * 4, "synchronize"]
    assert pretended.calls == ["run", "run", *first, *rest]


def test_slow_runs_are_fewer(pretended: Pretended) -> None:
    slow = Timing(warm_up=0, repetitions=10, limit_ns=10_000_000)
    assert len(cuda_of(pretended).times(slow, pretended.run)) == 5
    slower = Timing(warm_up=0, repetitions=10, limit_ns=1)
    assert len(cuda_of(pretended).times(slower, pretended.run)) == LEAST


def test_a_lost_device(pretended: Pretended) -> None:
    cuda = cuda_of(pretended)
    pretended.dead = True
    with pytest.raises(DeviceLostError) as caught:
        cuda.wait()
    assert str(caught.value) == "CUDA error: an illegal memory access"

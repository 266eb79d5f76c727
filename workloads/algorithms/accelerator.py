"""Memory and timing on a GPU, for a bench."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from workloads.algorithms.libraries import LibraryError
from workloads.algorithms.run import DeviceLostError
from workloads.algorithms.timing import LEAST, Timing

_AHEAD = 20_000_000
"""Clock cycles that the GPU waits, about 10 ms, while the host queues the timed runs: the times are
then those of the GPU, without launch overhead."""


class Accelerator(Protocol):
    """A device whose tensors are PyTorch's."""

    name: str
    memory_bytes: int
    versions: dict[str, str]
    stream: int

    def random(self, shape: tuple[int, ...], layout: str) -> Any:
        """Return a tensor of normal random numbers. Raises :class:`MemoryError`."""

    def unset(self, shape: tuple[int, ...], layout: str) -> Any:
        """Return a tensor filled with NaN. Raises :class:`MemoryError`."""

    def workspace(self, size: int) -> Any:
        """Return ``size`` bytes of memory. Raises :class:`MemoryError`."""

    def wait(self) -> None:
        """Synchronize with the device; raises ``DeviceLostError`` where it failed."""

    def counted(self, name: str, run: Callable[[], None]) -> None:
        """Call ``run`` and wait for it, in an NVTX range ``name`` in a window of CUDA's profiler.

        ``ncu --nvtx --profile-from-start off`` then counts the kernels of ``run`` alone. Raises
        ``DeviceLostError`` where the device failed.
        """

    def times(self, timing: Timing, run: Callable[[], None]) -> tuple[int, ...]:
        """Return the nanoseconds of each timed call of ``run``, which queues work on the stream."""


class Cuda:
    """The current CUDA device of PyTorch."""

    def __init__(self) -> None:
        """Select the device. Raises :class:`LibraryError` where PyTorch has no CUDA device."""
        try:
            import torch
        except ModuleNotFoundError as error:
            raise LibraryError("cuDNN is measured with PyTorch: install it with CUDA") from error
        if not torch.cuda.is_available():
            raise LibraryError("PyTorch found no GPU: check torch.cuda.is_available()")
        self._torch = torch
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.name = str(properties.name)
        self.memory_bytes = int(properties.total_memory)
        self.versions = {"cuda": str(torch.version.cuda)}
        # Loads cuDNN; the tensor below creates the CUDA context of its handle.
        torch.backends.cudnn.version()
        self.stream = int(torch.cuda.current_stream().cuda_stream)

    def random(self, shape: tuple[int, ...], layout: str) -> Any:
        return self._filled(shape, layout, lambda tensor: tensor.normal_())

    def unset(self, shape: tuple[int, ...], layout: str) -> Any:
        return self._filled(shape, layout, lambda tensor: tensor.fill_(float("nan")))

    def workspace(self, size: int) -> Any:
        return self._allocated((size,), dtype=self._torch.uint8)

    def wait(self) -> None:
        try:
            self._torch.cuda.synchronize()
        except RuntimeError as error:
            raise DeviceLostError(str(error).splitlines()[0]) from error

    def counted(self, name: str, run: Callable[[], None]) -> None:
        cuda = self._torch.cuda
        self.wait()
        cuda.profiler.start()
        cuda.nvtx.range_push(name)
        try:
            run()
            self.wait()
        finally:
            cuda.nvtx.range_pop()
            cuda.profiler.stop()

    def times(self, timing: Timing, run: Callable[[], None]) -> tuple[int, ...]:
        for _ in range(timing.warm_up):
            run()
        (once,) = self._timed(1, run)
        affordable = timing.limit_ns // max(once, 1)
        return self._timed(max(min(timing.repetitions, affordable), LEAST), run)

    def _timed(self, repetitions: int, run: Callable[[], None]) -> tuple[int, ...]:
        event = self._torch.cuda.Event
        pairs = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(repetitions)]
        self.wait()
        self._torch.cuda._sleep(_AHEAD)
        for start, end in pairs:
            start.record()
            run()
            end.record()
        self.wait()
        return tuple(round(start.elapsed_time(end) * 1e6) for start, end in pairs)

    def _filled(self, shape: tuple[int, ...], layout: str, fill: Callable[[Any], Any]) -> Any:
        torch = self._torch
        order = torch.channels_last if layout == "nhwc" else torch.contiguous_format
        return fill(self._allocated(shape, dtype=torch.float32, memory_format=order))

    def _allocated(self, shape: tuple[int, ...], **options: Any) -> Any:
        try:
            return self._torch.empty(shape, device="cuda", **options)
        except self._torch.cuda.OutOfMemoryError as error:
            raise MemoryError(str(error)) from error

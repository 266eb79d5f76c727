"""The records of a scenario, as a profiler would write them. Times are nanoseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Direction = Literal["HtoD", "DtoH", "DtoD", "PtoP", "HtoH"]
Memory = Literal["pageable", "pinned", "managed"]
Waiting = Literal["stream", "event", "context", "stream_wait"]


@dataclass(frozen=True)
class GPU:
    """A device; the bandwidth (bytes/s) is in nsys's files alone."""

    name: str = "NVIDIA A100-SXM4-80GB"
    capability: tuple[int, int] = (8, 0)
    multiprocessors: int = 108
    memory_bytes: int = 84_990_623_744
    bandwidth: int = 2_039_040_000_000


@dataclass(frozen=True)
class Span:
    """Anything that lasts."""

    start: int
    end: int

    @property
    def duration(self) -> int:
        """Its length."""
        return self.end - self.start


@dataclass(frozen=True)
class Call(Span):
    """A call of the runtime, on a thread of the host."""

    name: str
    thread: int
    correlation: int


@dataclass(frozen=True)
class Work(Span):
    """Work on a stream of a device, asked for by the call of its correlation id.

    Correlation id 0: no call asked for it.
    """

    device: int
    stream: int
    correlation: int


@dataclass(frozen=True)
class Kernel(Work):
    """A kernel."""

    name: str
    blocks: int = 1


@dataclass(frozen=True)
class Copy(Work):
    """A copy; ``unified``: pages of managed memory that the driver moved."""

    direction: Direction
    bytes: int
    source: str
    destination: str
    unified: bool = False


@dataclass(frozen=True)
class Memset(Work):
    """A memory set."""

    bytes: int


@dataclass(frozen=True)
class Event:
    """A CUDA event as it was recorded on a stream."""

    number: int
    device: int
    stream: int
    correlation: int
    completed: int


@dataclass(frozen=True)
class Sync(Span):
    """CUPTI's record of a synchronization.

    It is within its call, also that of a stream's wait for an event: the length of the stream's
    wait is not recorded.
    """

    waiting: Waiting
    device: int
    stream: int | None
    correlation: int
    event: Event | None = None


@dataclass(frozen=True)
class Range(Span):
    """An annotation or, if ``operator``, a framework's operator on a thread of the host.

    ``arguments`` of an operator are in Kineto's files alone.
    """

    text: str
    thread: int
    operator: bool = False
    arguments: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Overhead(Span):
    """The profiler's own work."""

    text: str
    thread: int

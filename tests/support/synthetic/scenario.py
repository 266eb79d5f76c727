"""A run described call by call, with nothing left to chance.

Times are nanoseconds from the run's beginning, ``until`` is the moment at which something ends. A
scenario refuses what no GPU does: work that begins before it was asked for, and two pieces of work
at a time on one stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.support.synthetic.records import (
    GPU,
    Call,
    Copy,
    Direction,
    Event,
    Kernel,
    Memory,
    Memset,
    Overhead,
    Range,
    Sync,
    Waiting,
    Work,
)

CALL = 100
"""How long a call takes that is not told."""

STREAM = 7
THREAD = 11

_WAITS: dict[Waiting, str] = {
    "stream": "cudaStreamSynchronize",
    "event": "cudaEventSynchronize",
    "context": "cudaDeviceSynchronize",
    "stream_wait": "cudaStreamWaitEvent",
}
_HOST_SIDES: dict[Direction, tuple[bool, bool]] = {
    "HtoD": (True, False),
    "DtoH": (False, True),
    "DtoD": (False, False),
    "PtoP": (False, False),
    "HtoH": (True, True),
}


class Scenario:
    """The records of a run of one process; each method adds some and returns the main one."""

    def __init__(self, gpus: Sequence[GPU] = (GPU(),), *, process: int = 100) -> None:
        """Begin a run on ``gpus``, numbered from 0."""
        self.gpus = tuple(gpus)
        self.process = process
        self.calls: list[Call] = []
        self.work: list[Work] = []
        self.syncs: list[Sync] = []
        self.events: list[Event] = []
        self.ranges: list[Range] = []
        self.overheads: list[Overhead] = []
        self._correlation = 0

    def call(self, name: str, at: int, until: int, *, thread: int = THREAD) -> Call:
        """Add any call of the runtime."""
        self._correlation += 1
        call = Call(at, until, name, thread, self._correlation)
        self.calls.append(call)
        return call

    def launch(
        self,
        stream: int = STREAM,
        *,
        at: int,
        begins: int,
        duration: int,
        name: str = "gemm",
        blocks: int = 1,
        call: int = CALL,
        device: int = 0,
        thread: int = THREAD,
    ) -> Kernel:
        """Launch a kernel ``at``; it ``begins`` later and runs for ``duration``."""
        made = self.call("cudaLaunchKernel", at, at + call, thread=thread)
        end = begins + duration
        kernel = Kernel(begins, end, device, stream, made.correlation, name, blocks)
        self._add(kernel, made)
        return kernel

    def collective(
        self,
        stream: int,
        *,
        at: int,
        begins: int,
        duration: int,
        operation: str = "AllReduce_Sum_f32_RING_LL",
        device: int = 0,
        thread: int = THREAD,
    ) -> Kernel:
        """Launch one of NCCL's kernels."""
        name = f"ncclDevKernel_{operation}(ncclDevKernelArgsStorage<4096ul>)"
        return self.launch(
            stream,
            at=at,
            begins=begins,
            duration=duration,
            name=name,
            device=device,
            thread=thread,
        )

    def copy(
        self,
        direction: Direction,
        size: int,
        *,
        at: int,
        begins: int,
        duration: int,
        memory: Memory = "pinned",
        synchronous: bool = False,
        stream: int = STREAM,
        call: int = CALL,
        device: int = 0,
        thread: int = THREAD,
    ) -> Copy:
        """Copy ``size`` bytes; ``memory`` is the kind of the host's side or sides.

        A ``synchronous`` call returns when the copy has ended, else it takes ``call``.
        """
        name = "cudaMemcpy" if synchronous else "cudaMemcpyAsync"
        made = self.call(name, at, begins + duration if synchronous else at + call, thread=thread)
        source, destination = (memory if host else "device" for host in _HOST_SIDES[direction])
        copy = Copy(
            begins,
            begins + duration,
            device,
            stream,
            made.correlation,
            direction,
            size,
            source,
            destination,
        )
        self._add(copy, made)
        return copy

    def migrate(
        self, direction: Direction, size: int, *, begins: int, duration: int, device: int = 0
    ) -> Copy:
        """Let the driver move pages of unified memory, asked for by no call. nsys alone has it."""
        copy = Copy(
            begins,
            begins + duration,
            device,
            STREAM,
            0,
            direction,
            size,
            "managed",
            "managed",
            unified=True,
        )
        self.work.append(copy)
        return copy

    def memset(
        self,
        size: int,
        *,
        at: int,
        begins: int,
        duration: int,
        stream: int = STREAM,
        device: int = 0,
        thread: int = THREAD,
    ) -> Memset:
        """Set ``size`` bytes of the device's memory."""
        made = self.call("cudaMemsetAsync", at, at + CALL, thread=thread)
        memset = Memset(begins, begins + duration, device, stream, made.correlation, size)
        self._add(memset, made)
        return memset

    def sync(
        self,
        at: int,
        until: int,
        kind: Waiting = "context",
        *,
        stream: int | None = None,
        event: Event | None = None,
        device: int = 0,
        thread: int = THREAD,
    ) -> Sync:
        """Let the host wait for a ``stream``, an ``event`` or all of the device (``context``)."""
        made = self.call(_WAITS[kind], at, until, thread=thread)
        sync = Sync(at, until, kind, device, stream, made.correlation, event)
        self.syncs.append(sync)
        return sync

    def record_event(
        self,
        stream: int = STREAM,
        *,
        at: int,
        completed: int,
        call: int = CALL,
        device: int = 0,
        thread: int = THREAD,
    ) -> Event:
        """Record an event, which the stream reaches when earlier work has ``completed``."""
        made = self.call("cudaEventRecord", at, at + call, thread=thread)
        event = Event(len(self.events) + 1, device, stream, made.correlation, completed)
        self.events.append(event)
        return event

    def wait_event(
        self, event: Event, stream: int, *, at: int, call: int = CALL, thread: int = THREAD
    ) -> Sync:
        """Let ``stream`` wait for ``event``: later work on it begins after the event."""
        return self.sync(
            at,
            at + call,
            "stream_wait",
            stream=stream,
            event=event,
            device=event.device,
            thread=thread,
        )

    def malloc(self, at: int, until: int, *, thread: int = THREAD) -> Call:
        """Allocate memory of the device by the driver, which the host waits for."""
        return self.call("cudaMalloc", at, until, thread=thread)

    def free(self, at: int, until: int, *, thread: int = THREAD) -> Call:
        """Give memory back to the driver."""
        return self.call("cudaFree", at, until, thread=thread)

    def range(self, text: str, at: int, until: int, *, thread: int = THREAD) -> Range:
        """Add a range on a thread."""
        found = Range(at, until, text, thread)
        self.ranges.append(found)
        return found

    def operator(
        self,
        name: str,
        at: int,
        until: int,
        *,
        thread: int = THREAD,
        arguments: Mapping[str, object] | None = None,
    ) -> Range:
        """Run an operator of the framework: ``aten::conv2d``."""
        found = Range(at, until, name, thread, operator=True, arguments=arguments or {})
        self.ranges.append(found)
        return found

    def data_loader(self, at: int, until: int, *, thread: int = THREAD) -> Range:
        """Let a thread wait for the next batch, as torch.profiler annotates it."""
        text = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        return self.range(text, at, until, thread=thread)

    def step(self, number: int, at: int, until: int, *, thread: int = THREAD) -> Range:
        """Mark an iteration."""
        return self.range(f"ProfilerStep#{number}", at, until, thread=thread)

    def overhead(
        self, at: int, until: int, *, text: str = "Activity Buffer Request", thread: int = THREAD
    ) -> Overhead:
        """Let the profiler take its own time."""
        found = Overhead(at, until, text, thread)
        self.overheads.append(found)
        return found

    def _add(self, work: Work, made: Call) -> None:
        if work.start < made.start:
            raise ValueError(f"work begins at {work.start}, before it was asked for")
        for other in self.work:
            same = (other.device, other.stream) == (work.device, work.stream)
            if same and other.start < work.end and work.start < other.end:
                raise ValueError(f"stream {work.stream} is busy from {other.start} to {other.end}")
        self.work.append(work)


def waiting_for_another_device() -> Scenario:
    """Return a kernel that waits for the event of a copy on another device, for 3,010 ns."""
    run = Scenario([GPU(), GPU()])
    run.launch(at=0, begins=100, duration=900)
    run.copy("PtoP", 1 << 20, at=200, begins=400, duration=3_600, device=1, stream=20)
    run.wait_event(run.record_event(20, at=400, completed=4_000, device=1), 7, at=600)
    run.launch(at=800, begins=4_010, duration=100)
    return run


def overlapping(beside: Work, duration: int, percent: int) -> int:
    """Return when something of ``duration`` begins that ``beside`` hides ``percent`` of.

    It begins before ``beside`` ends and ends after. Raises ``ValueError`` where the hidden part is
    no whole number of nanoseconds, or longer than ``beside``.
    """
    hidden, rest = divmod(duration * percent, 100)
    if rest or hidden > beside.duration:
        raise ValueError(f"{percent} % of {duration} ns cannot be hidden exactly")
    return beside.end - hidden

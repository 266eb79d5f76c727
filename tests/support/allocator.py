"""A caching allocator whose snapshots have the structure of PyTorch's, and whose figures are known.

It follows what ``c10/cuda/CUDACachingAllocator.cpp`` records: sizes of events are requested bytes,
blocks are rounded up to 512, a block that another stream uses is freed later, the history is a ring
buffer.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

SEGMENT = 1 << 21
ROUNDED = 512
BEGIN_US = 1_700_000_000_000_000


def frame(file: str, line: int, name: str = "main") -> dict[str, Any]:
    return {"filename": file, "line": line, "name": name}


class Allocator:
    """Allocations on some devices, each in a segment of its own with a free block behind it."""

    def __init__(self, *, devices: int = 1, most_events: int | None = None) -> None:
        self.live: dict[int, tuple[int, int, list[Any]]] = {}
        """(device, requested bytes, frames) by address."""
        self.pending: dict[int, tuple[int, int, list[Any]]] = {}
        self.peaks: list[list[int]] = [[] for _ in range(devices)]
        """Requested bytes after each event of the history that changes them."""
        self.traces: list[list[dict[str, Any]]] = [[] for _ in range(devices)]
        self._most = most_events
        self._address = 0x7F00_0000_0000
        self._time = BEGIN_US

    def requested(self, device: int = 0) -> int:
        return sum(size for of, size, _ in self.live.values() if of == device)

    def allocate(
        self,
        size: int,
        frames: list[Any] | None = None,
        device: int = 0,
        address: int | None = None,
    ) -> int:
        if address is None:
            self._address += SEGMENT * (1 + size // SEGMENT)
            address = self._address
        stack = [] if frames is None else frames
        self.live[address] = device, size, stack
        self._event(device, "segment_alloc", addr=address, size=_segment(size))
        self._event(device, "alloc", addr=address, size=size, frames=stack)
        return address

    def free(self, address: int, *, at_once: bool = True) -> None:
        device, size, stack = self.live.pop(address)
        self._event(device, "free_requested", addr=address, size=size, frames=stack)
        self.pending[address] = device, size, stack
        if at_once:
            self.complete(address)

    def complete(self, address: int) -> None:
        device, size, stack = self.pending.pop(address)
        self._event(device, "free_completed", addr=address, size=size, frames=stack)
        self._event(device, "segment_free", addr=address, size=_segment(size))

    def fail(self, size: int, free: int, frames: list[Any], device: int = 0) -> None:
        self._event(device, "oom", device_free=free, size=size, frames=frames)

    def _event(self, device: int, action: str, **fields: Any) -> None:
        self._time += 10
        trace = self.traces[device]
        trace.append({"action": action, "stream": 0, "time_us": self._time, **fields})
        self.peaks[device].append(self.requested(device))
        if self._most is not None and len(trace) > self._most:
            del trace[0], self.peaks[device][0]

    def snapshot(self) -> dict[str, Any]:
        held = [(address, of, "active_allocated") for address, of in self.live.items()]
        held += [(address, of, "active_pending_free") for address, of in self.pending.items()]
        return {
            "segments": [
                _described(address, *of, state=state) for address, of, state in sorted(held)
            ],
            "device_traces": self.traces,
            "allocator_settings": {"expandable_segments": False, "roundup_power2_divisions": {}},
            "external_annotations": [],
        }

    def dump(self, path: Path, protocol: int = pickle.DEFAULT_PROTOCOL) -> Path:
        path.write_bytes(pickle.dumps(self.snapshot(), protocol))
        return path


def rounded(size: int) -> int:
    return -(-size // ROUNDED) * ROUNDED


def _segment(size: int) -> int:
    return -(-(rounded(size) + ROUNDED) // SEGMENT) * SEGMENT


def _described(
    address: int, device: int, size: int, frames: list[Any], *, state: str
) -> dict[str, Any]:
    used, whole = rounded(size), _segment(size)
    allocated = used if state == "active_allocated" else 0
    return {
        "device": device,
        "address": address,
        "total_size": whole,
        "allocated_size": allocated,
        "active_size": used,
        "requested_size": size,
        "stream": 0,
        "segment_type": "large" if size > 1 << 20 else "small",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": frames,
        "blocks": [
            {
                "address": address,
                "size": used,
                "requested_size": size,
                "state": state,
                "frames": frames,
            },
            {
                "address": address + used,
                "size": whole - used,
                # What the allocator left there from an earlier allocation.
                "requested_size": 77,
                "state": "inactive",
                "frames": [],
            },
        ],
    }

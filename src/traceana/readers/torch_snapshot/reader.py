"""Reads snapshots of PyTorch's caching allocator: its blocks of memory, and its history.

The keys are those of ``torch/cuda/memory.py`` and ``torch/csrc/cuda/Module.cpp``. The history is a
ring buffer, so it may begin late: what was allocated at its begin is what is allocated in the end,
less what the history allocates, plus what it frees.
"""

from __future__ import annotations

import math
from array import array
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from traceana.errors import CorruptError, NotATraceError
from traceana.plain_text import as_unicode
from traceana.readers.integrity import FARTHEST_NS, rebase
from traceana.readers.source import ByteSource, Progress
from traceana.readers.torch_snapshot.pickle_data import decode
from traceana.readers.torch_snapshot.stacks import Stacks
from traceana.trace import Ledger, Tables, Trace, TraceMeta
from traceana.trace.schema import conform

_OTHER: Final = 0
_ACTIONS: Final = {
    name: number
    for number, name in enumerate(
        (
            *("alloc", "free_requested", "free_completed", "segment_alloc", "segment_map"),
            *("segment_free", "segment_unmap", "oom", "snapshot"),
        ),
        start=1,
    )
}
_NUMBERS: Final = ("addr", "size", "time_us", "device_free")
_MISSING: Final = -(1 << 63)
"""In place of a number that an event lacks, or that int64 does not hold."""
_STATES: Final = {
    "active_allocated": "active_allocated",
    "active_pending_free": "active_pending_free",
    # So the documentation of PyTorch calls it.
    "active_awaiting_free": "active_pending_free",
    "inactive": "inactive",
}
_LONGEST_WORD: Final = 256
"""Characters of a setting or a type."""
_PER_DEVICE: Final = "device"


def read(path: Path, progress: Progress) -> Trace:
    """Return the Trace of a snapshot, with the tables ``memory`` and ``memory_blocks``.

    Raises ``NotATraceError`` where the pickle holds something else, ``CorruptError`` where its
    lists contradict each other, and the errors of
    :func:`~traceana.readers.torch_snapshot.pickle_data.decode`.
    """
    source = ByteSource(path, progress)
    ledger = Ledger()
    history = _History()
    snapshot = decode(source, "action", history.take)
    # torch.cuda.memory_snapshot() returns the segments alone.
    content = {"segments": snapshot} if isinstance(snapshot, list) else snapshot
    segments = content.get("segments") if isinstance(content, dict) else None
    if not isinstance(segments, list) or not all(isinstance(item, dict) for item in segments):
        raise NotATraceError(
            f"{path} is a pickle without memory segments: pass the file that "
            "torch.cuda.memory._dump_snapshot() wrote"
        )
    events = history.frame(content.get("device_traces") or [])
    blocks = _blocks(segments, history.stacks, ledger)
    if events is None or blocks is None:
        raise CorruptError(
            f"{path} refers to the same blocks or events several times: write the snapshot again "
            "with torch.cuda.memory._dump_snapshot()"
        )
    memory = _memory(events, blocks, ledger)
    ledger.add("malformed", history.malformed, table="memory")
    annotations = content.get("external_annotations")
    marks = len(annotations) if isinstance(annotations, list) else 0
    ledger.add("instant", marks, table="ranges", detail="external_annotations")
    ledger.add("oversized", history.stacks.left_out, table="memory", kept=True, detail="frames")
    excluded = int(ledger.frame().filter(pl.col("kept").not_())["count"].sum())
    is_timed = bool((memory["time"] != 0).any())
    tables, first_ns = rebase(
        {"memory": conform("memory", memory), "memory_blocks": conform("memory_blocks", blocks)},
        ledger,
    )
    meta = TraceMeta(
        source=str(path),
        format="torch_snapshot",
        producer="PyTorch",
        framework="PyTorch",
        epoch_ns=first_ns if is_timed else None,
        bytes_read=source.bytes_total,
        bytes_total=source.bytes_total,
        events=memory.height + blocks.height + excluded,
        properties=_settings(content.get("allocator_settings")),
    )
    return Trace(meta, Tables({**tables, "ledger": ledger.frame()}))


class _History:
    """The allocator's events, a column each, as they are decoded."""

    def __init__(self) -> None:
        self.stacks = Stacks()
        self.malformed = 0
        self._actions = bytearray()
        self._stacks = array("q")
        self._numbers = {name: array("q") for name in _NUMBERS}

    def take(self, items: list[Any]) -> int:
        """Add events, empty their dictionaries, and return their number."""
        events = [item for item in items if type(item) is dict and item]
        self.malformed += len(items) - len(events)
        actions = [event.get("action") for event in events]
        self._actions.extend(
            _ACTIONS.get(action, _OTHER) if type(action) is str else _OTHER for action in actions
        )
        for name, column in self._numbers.items():
            before = len(column)
            try:
                column.extend([event[name] for event in events])
            except (KeyError, TypeError, OverflowError):
                del column[before:]
                column.extend([_int64(event.get(name)) for event in events])
        number = self.stacks.number
        self._stacks.extend([number(event.get("frames")) for event in events])
        for event in events:
            # The pickle may refer to it until the end.
            event.clear()
        return len(events)

    def frame(self, devices: Any) -> pl.DataFrame | None:
        """Return the events, in order; ``devices`` has for each a list of the numbers of events
        that :meth:`take` returned. None if it has not all of them once."""
        if not isinstance(devices, list) or not all(isinstance(part, list) for part in devices):
            return None
        counts = [sum(item for item in part if type(item) is int) for part in devices]
        self.malformed += sum(type(item) is not int for part in devices for item in part)
        if sum(counts) != len(self._actions) or min(counts, default=0) < 0:
            return None
        return pl.DataFrame(
            {
                "action": np.frombuffer(self._actions, np.uint8),
                "device": np.repeat(np.arange(len(counts), dtype=np.int32), counts),
                **{
                    name: pl.Series(np.frombuffer(column, np.int64)).replace(_MISSING, None)
                    for name, column in self._numbers.items()
                },
                "frames": self.stacks.texts(np.frombuffer(self._stacks, np.int64)),
            }
        )


def _int64(value: Any) -> int:
    """Return ``value`` where it is an integer that int64 holds, else :data:`_MISSING`."""
    return value if type(value) is int and -(1 << 62) < value < 1 << 62 else _MISSING


def _blocks(segments: list[dict[str, Any]], stacks: Stacks, ledger: Ledger) -> pl.DataFrame | None:
    """Return the blocks of all segments; None if two segments have one list of blocks."""
    rows: list[tuple[Any, ...]] = []
    lists: set[int] = set()
    malformed = 0
    for segment in segments:
        blocks = segment.get("blocks")
        if not isinstance(blocks, list) or id(blocks) in lists:
            return None
        lists.add(id(blocks))
        pool = segment.get("segment_pool_id")
        is_expandable = segment.get("is_expandable")
        segment_columns = (
            _int64(segment.get("device")),
            _int64(segment.get("stream")),
            ".".join(str(_int64(part)) for part in pool[:2])
            if isinstance(pool, tuple | list)
            else None,
            address := _int64(segment.get("address")),
            _word(segment.get("segment_type")),
            is_expandable if isinstance(is_expandable, bool) else None,
        )
        for block in blocks:
            size = _int64(block.get("size")) if isinstance(block, dict) else _MISSING
            if size < 0:
                malformed += 1
                continue
            # PyTorch 1.13 and 2.0 keep the stack and the requested size in a history.
            past = block.get("history")
            last = past[0] if isinstance(past, list) and past else None
            described = {**block, **last} if isinstance(last, dict) else block
            requested = _int64(described.get("real_size", described.get("requested_size", size)))
            state = _STATES.get(_word(block.get("state")) or "")
            # Of a free block, it is the size that was requested last.
            requested = requested if state == "active_allocated" else _MISSING
            stack = stacks.number(described.get("frames"))
            rows.append((*segment_columns, address, size, requested, state, stack))
            if address != _MISSING:
                address += size
    ledger.add("malformed", malformed, table="memory_blocks")
    schema = {
        **{"device": pl.Int64, "stream": pl.Int64, "pool": pl.String, "segment": pl.Int64},
        **{"segment_type": pl.String, "expandable": pl.Boolean, "address": pl.Int64},
        **{"bytes": pl.Int64, "requested_bytes": pl.Int64, "state": pl.String, "frames": pl.Int64},
    }
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return frame.with_columns(
        pl.col(pl.Int64).exclude("frames").replace(_MISSING, None),
        stacks.texts(frame["frames"].to_numpy()).alias("frames"),
    )


def _word(value: Any) -> str | None:
    """Return ``value`` where it is a short text, else None."""
    return as_unicode(value) if type(value) is str and len(value) < _LONGEST_WORD else None


def _memory(events: pl.DataFrame, blocks: pl.DataFrame, ledger: Ledger) -> pl.DataFrame:
    """Return the table ``memory`` of the ``events``; those that it does not hold are counted."""
    valid = events.filter(pl.col("size") >= 0)
    ledger.add("malformed", events.height - valid.height, table="memory")

    def is_action(*names: str) -> pl.Expr:
        return pl.col("action").is_in([_ACTIONS[name] for name in names])

    def signed(added: pl.Expr, taken: pl.Expr) -> pl.Expr:
        return pl.when(added).then(pl.col("size")).when(taken).then(-pl.col("size"))

    # Allocated memory ends with the request, as in torch.cuda.memory_allocated(). A history without
    # requests (skip_actions) completes what it allocated.
    requested, completed = is_action("free_requested"), is_action("free_completed")
    address_action = pl.when(is_action("alloc") | requested | completed).then("action")
    previous = address_action.forward_fill().shift(1).over(_PER_DEVICE, "addr")
    skips = (completed & (previous == _ACTIONS["alloc"])).any() & requested.any().not_()
    freed = requested | (completed & skips.over(_PER_DEVICE))
    is_oom = is_action("oom")
    kept = valid.select(
        pl.when(pl.col("time_us").abs() < FARTHEST_NS // 1000)
        .then(pl.col("time_us") * 1000)
        .alias("time"),
        "device",
        pl.when(is_oom.not_()).then("addr").alias("address"),
        signed(is_action("alloc"), freed).alias("bytes"),
        signed(
            is_action("segment_alloc", "segment_map"), is_action("segment_free", "segment_unmap")
        ).alias("segment_bytes"),
        pl.when(is_oom).then("size").alias("failed_bytes"),
        pl.when(is_oom).then("device_free").alias("device_free_bytes"),
        "frames",
    )
    changes = pl.any_horizontal(pl.col("bytes", "segment_bytes", "failed_bytes").is_not_null())
    others = valid.filter(kept.select(changes.not_()).to_series())
    for reason, condition in (
        ("repeated", completed),
        ("instant", is_action("snapshot")),
        ("unknown_category", pl.col("action") == _OTHER),
    ):
        ledger.add(reason, others.filter(condition).height, table="memory")
    memory = kept.filter(changes)
    untimed = memory["time"].null_count()
    ledger.add("untimed", untimed, table="memory", kept=True)
    if untimed:
        time = pl.col("time").forward_fill().over(_PER_DEVICE).backward_fill().over(_PER_DEVICE)
        memory = memory.with_columns(time.fill_null(0))

    ends = blocks.group_by(pl.col("device").cast(pl.Int32)).agg(
        pl.col("requested_bytes").sum().alias("allocated"), pl.col("bytes").sum().alias("reserved")
    )
    memory = memory.join(ends, on="device", how="left", maintain_order="left")
    for total, change in (("allocated", "bytes"), ("reserved", "segment_bytes")):
        # Counted from the end: the snapshot has the totals after the last event.
        until = pl.col(change).fill_null(0).cum_sum().over(_PER_DEVICE)
        after = pl.col(total).fill_null(0) - pl.col(change).sum().over(_PER_DEVICE) + until
        is_possible = (after >= 0).all().over(_PER_DEVICE)
        memory = memory.with_columns(pl.when(is_possible).then(after).alias(total))
    ledger.add("other_end", _contradictions(memory, blocks), table="memory", kept=True)
    return memory


def _contradictions(memory: pl.DataFrame, blocks: pl.DataFrame) -> int:
    """Return the number of addresses that the history leaves allocated and the blocks do not."""
    left = (
        memory.filter(pl.col("bytes").is_not_null())
        .group_by("device", "address")
        .agg(pl.col("bytes").last())
        .filter(pl.col("bytes") > 0)
    )
    live = blocks.select(
        pl.col("device").cast(pl.Int32), "address", pl.col("requested_bytes").alias("bytes")
    )
    return left.join(live, on=["device", "address", "bytes"], how="anti").height


def _settings(settings: Any) -> dict[str, Any]:
    """Return the allocator's settings as properties: texts, flags and numbers."""
    properties: dict[str, Any] = {}
    for name, value in settings.items() if isinstance(settings, dict) else ():
        is_number = isinstance(value, float) and math.isfinite(value)
        is_number |= isinstance(value, int) and _int64(int(value)) != _MISSING
        setting = value if is_number else _word(value)
        if type(name) is str and setting not in (None, ""):
            properties[as_unicode(name)] = setting
    return properties

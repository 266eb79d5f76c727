"""Writes small rocpd databases of both layouts of its schema, and databases of rocprof."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.readers.rocprof import writing
from tests.readers.rocprof.writing import Kernel

Row = dict[str, Any]
UUID = "_00006409_00d1_70d1_a5cb_b5ab88214544"


class Rocpd:
    """The rows of one process; ``tracked`` is the layout with tracks and timestamps."""

    def __init__(self, *, tracked: bool, process: int = 800, uuid: str = UUID) -> None:
        self.uuid, self.process, self._tracked = uuid, process, tracked
        self.tables: dict[str, list[Row]] = {
            "metadata": [{"id": 1, "tag": "schema_version", "value": "3"}],
            "info_process": [{"id": 1, "pid": process, "command": "python train.py"}],
            "info_thread": [{"id": 1, "tid": 801}, {"id": 2, "tid": 0}],
            "info_agent": [self._agent(number) for number in range(3)],
            "string": [],
            "info_kernel_symbol": [],
            "event": [],
            "kernel_dispatch": [],
        }

    def add(self, table: str, /, **columns: Any) -> int:
        """Add a row and return its id."""
        rows = self.tables.setdefault(table, [])
        rows.append({"id": len(rows) + 1, **columns})
        return len(rows)

    def _agent(self, number: int) -> Row:
        facts = {
            "gfx_target_version": 90402, "cu_count": 304, "wave_front_size": 64,
            "max_engine_clk_fcompute": 2100,
        }  # fmt: skip
        return {
            "id": number + (4 if number else 0),
            "type": "GPU" if number else "CPU",
            "absolute_index": number + (4 if number else 0),
            "logical_index": number,
            "name": "gfx942",
            "model_name": "aqua_vanjaram",
            "product_name": "AMD Instinct MI300X",
            "extdata": json.dumps(facts),
        }

    def text(self, text: str) -> int:
        """Return the id of a text."""
        for row in self.tables["string"]:
            if row["string"] == text:
                return int(row["id"])
        return self.add("string", string=text)

    def activity(
        self, name: str, category: str, correlation: int, times: tuple[int, int],
        place: Row | None = None, message: str | None = None, **columns: Any,
    ) -> int:  # fmt: skip
        """Add an activity with its event, times and place, and return its event."""
        event = self.add(
            "event",
            category_id=self.text(category),
            stack_id=correlation,
            correlation_id=0,
            extdata="{}" if message is None else json.dumps({"message": message}),
        )
        where = {"pid": 1, **(place or {})}
        at: Row = dict(zip(("start", "end"), times, strict=True))
        if name == "sample":
            at = {"timestamp": times[0]}
        if self._tracked:
            at = {f"{side}_id": self.add("timestamp", value=one) for side, one in at.items()}
            where = {"track_id": self.add("track", **where)}
        elif name == "sample":
            where = {"track_id": self.add("track", **where, name_id=self.text(category))}
        self.add(name, **where, **at, event_id=event, **columns)
        return event

    def kernel(self, kernel: Kernel) -> None:
        """Add a dispatch, and the instances of its counters."""
        symbol = self.add(
            "info_kernel_symbol",
            kernel_name="_Z1kPf.kd",
            display_name=kernel.name,
            arch_vgpr_count=kernel.registers,
        )
        sizes: Row = {
            f"{what}_size_{axis}": value
            for what, values in (("workgroup", kernel.block), ("grid", kernel.grid))
            for axis, value in zip("xyz", values, strict=True)
        }
        event = self.activity(
            "kernel_dispatch", "KERNEL_DISPATCH", kernel.correlation, (kernel.start, kernel.end),
            {"tid": 1, "agent_id": kernel.agent + 4, "queue_id": 1, "stream_id": kernel.stream},
            kernel_id=symbol, dispatch_id=kernel.dispatch, group_segment_size=kernel.lds, **sizes,
        )  # fmt: skip
        for counter, value in kernel.counters.items():
            known = {row["name"]: row["id"] for row in self.tables.get("info_pmc", [])}
            number = known.get(counter) or self.add("info_pmc", name=counter, symbol=counter)
            # Two instances of the block that counts.
            for part in (value / 4, value * 3 / 4):
                self.add("pmc_event", event_id=event, pmc_id=number, value=part)

    def copy(self, number: int, direction: str, source: int, target: int, *times: int) -> None:
        """Add a copy of 4096 bytes."""
        agents = {0: 0, 1: 5, 2: 6}
        self.activity(
            "memory_copy", "MEMORY_COPY", number, (times[0], times[1]), {"tid": 1, "stream_id": 3},
            name_id=self.text(f"MEMORY_COPY_{direction}"), src_agent_id=agents[source],
            dst_agent_id=agents[target], size=4096,
        )  # fmt: skip

    def call(self, name: str, number: int, start: int, end: int, thread: int = 1) -> None:
        """Add a call of HIP."""
        self.activity(
            "region", "HIP_RUNTIME_API", number, (start, end), {"tid": thread},
            name_id=self.text(name),
        )  # fmt: skip

    def marker(self, text: str, number: int, start: int, end: int) -> None:
        """Add a range of ROCTx, or a mark where it has one time."""
        named = {} if start == end and not self._tracked else {"name_id": self.text("roctxMarkA")}
        message = None if text.startswith("roctx") else text
        if message is None:
            named = {"name_id": self.text(text)}
        self.activity(
            "sample" if start == end else "region", "MARKER_CORE_RANGE_API", number, (start, end),
            {"tid": 1}, message, **named,
        )  # fmt: skip


def rocpd_run(
    kernels: Sequence[Kernel] = writing.KERNELS, *, tracked: bool, process: int = 800,
    uuid: str = UUID,
) -> Rocpd:  # fmt: skip
    """Return the run that :mod:`tests.readers.rocprof.writing` writes as CSV."""
    run = Rocpd(tracked=tracked, process=process, uuid=uuid)
    for kernel in kernels:
        run.kernel(kernel)
    for number, one in enumerate(writing.COPIES):
        run.copy(20 + number, *one)
    for call in writing.HIP_CALLS:
        run.call(*call)
    for marker in writing.MARKERS:
        run.marker(*marker)
    return run


def rocpd(path: Path, *processes: Rocpd) -> Path:
    """Write a rocpd database; tables have the columns of their rows."""
    with closing(sqlite3.connect(path)) as connection:
        for one in processes:
            for name, rows in one.tables.items():
                _fill(connection, f"rocpd_{name}{one.uuid}", rows)
        connection.commit()
    return path


def _fill(connection: sqlite3.Connection, name: str, rows: list[Row]) -> None:
    columns = list(dict.fromkeys(column for row in rows for column in row)) or ["id"]
    listed = ", ".join(f'"{column}"' for column in columns)
    connection.execute(f'CREATE TABLE "{name}" ({listed})')
    if name.startswith("rocpd_kernel_dispatch"):
        plain = name.partition("_0")[0]
        connection.execute(f'CREATE VIEW IF NOT EXISTS "{plain}" AS SELECT * FROM "{name}"')
    marks = ", ".join("?" * len(columns))
    connection.executemany(
        f'INSERT INTO "{name}" VALUES ({marks})',
        [[row.get(column) for column in columns] for row in rows],
    )


def legacy(path: Path, tables: dict[str, list[Row]]) -> Path:
    """Write a database of rocprof."""
    with closing(sqlite3.connect(path)) as connection:
        for name, rows in tables.items():
            _fill(connection, name, rows)
        connection.commit()
    return path


def legacy_run(kernels: Sequence[Kernel] = writing.KERNELS) -> dict[str, list[Row]]:
    """Return the tables of the run that :mod:`tests.readers.rocprof.writing` writes as CSV."""

    def work(name: str, number: int, start: int, end: int) -> Row:
        return {
            "BeginNs": start, "EndNs": end, "dev-id": 1, "queue-id": 0, "Name": name, "pid": 800,
            "tid": 801, "roctx-range": name, "stream-id": 2, "Index": number,
        }  # fmt: skip

    def args(name: str) -> str:
        if "Launch" in name:
            return "( kernel(k) numBlocks({z(1) y(2) x(4}) dimBlocks({z(1) y(2) x(256}) stream(1))"
        return "( dst(0x7f) src(0x74) sizeBytes(4096) kind(1) stream(1))"

    calls = [
        {"BeginNs": start, "EndNs": end, "pid": 800, "tid": 801, "Name": name, "args": args(name),
         "Index": number}
        for name, number, start, end in writing.HIP_CALLS
    ]  # fmt: skip
    copies = [
        work(f"Copy{direction.title().replace('_', '')}", 20, start, end)
        for direction, _, _, start, end in writing.COPIES[:1]
    ]
    ops = [work(one.name, one.correlation, one.start, one.end) for one in kernels]
    ops.append(work('"<barrier packet>"', 0, 60_000, 60_100))
    ranges = [
        {"BeginNs": 600, "EndNs": 60_000, "pid": 800, "tid": 801, "Name": "step 0", "Index": 1}
    ]
    return {"HIP": calls, "OPS": ops, "COPY": copies, "rocTX": ranges, "KERN": []}

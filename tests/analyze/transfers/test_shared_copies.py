"""Counts, bytes, times and exposed times equal those of the files' own rows.

The rows are read here with SQL and ``json``, and the exposed times found by a sweep over the
sorted edges: nothing of traceana's takes part.
"""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pytest

from tests.support.manifest import chosen
from tests.support.opened import opened
from traceana.analyze.transfers import transfers

SHARED = Path(__file__).parents[4] / "shared" / "traces"
NSYS = sorted(SHARED.glob("nsys/*.sqlite"))
NVPROF = sorted(SHARED.glob("nvprof/*"))
KINETO = sorted(SHARED.glob("kineto/**/*.json.gz"))

DIRECTIONS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
NSYS_MEMORY = {0: "pageable", 1: "pinned", 2: "device", 4: "managed"}
NVPROF_MEMORY = {1: "pageable", 2: "pinned", 3: "device", 5: "managed"}
NAME = re.compile(r"Memcpy (.)to(.)(?: \((.*) -> (.*)\))?")

Key = tuple[str, str | None]


@dataclass(frozen=True)
class Row:
    """A copy or, without a ``key``, a kernel, as the file has it."""

    device: int
    start: int
    end: int
    key: Key | None = None
    bytes: int | None = None


def host_side(direction: str, source: str | None, destination: str | None) -> Key:
    side = source if direction.startswith("H") else destination if direction[3] == "H" else None
    return direction, side


def of_database(path: Path, memory: dict[int, str]) -> Iterator[Row]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        for table in ("KERNEL", "CONCURRENT_KERNEL"):
            if (name := f"CUPTI_ACTIVITY_KIND_{table}") in tables:
                for row in database.execute(f'SELECT deviceId, start, "end" FROM {name}'):
                    yield Row(*row)
        copies = 'SELECT deviceId, start, "end", copyKind, srcKind, dstKind, bytes'
        for device, start, end, kind, source, destination, size in database.execute(
            f"{copies} FROM CUPTI_ACTIVITY_KIND_MEMCPY"
        ):
            key = host_side(DIRECTIONS[kind], memory[source], memory[destination])
            yield Row(device, start, end, key, size)


def of_json(path: Path) -> Iterator[Row]:
    with gzip.open(path, "rt") as file:
        whole = json.load(file, parse_float=Decimal)
    # The first versions of torch.profiler wrote the events without anything around them.
    events = whole if isinstance(whole, list) else whole["traceEvents"]
    sizes = {  # AMD's copies have their size on the call
        event["args"]["correlation"]: int(event["args"][key])
        for event in events
        for key in ("size", "bytes")
        if "correlation" in event.get("args", {}) and key in event["args"]
    }
    for event in events:
        category = str(event.get("cat")).lower()
        if event["ph"] != "X" or category not in ("kernel", "gpu_memcpy", "memcpy"):
            continue
        start, duration = (int(Decimal(str(event[key])) * 1000) for key in ("ts", "dur"))
        args = event["args"]
        span = (int(args.get("device", event["pid"])), start, start + duration)
        if category == "kernel":
            yield Row(*span)
            continue
        first, second, source, destination = NAME.match(event["name"]).groups()  # type: ignore[union-attr]
        kinds = {"Pageable": "pageable", "Pinned": "pinned", "Device": "device"}
        source, destination = (kinds.get(kind, "unknown") for kind in (source, destination))
        key = host_side(f"{first}to{second}", source, destination)
        size = args.get("bytes", sizes.get(args.get("correlation")))
        yield Row(*span, key, None if size is None else int(size))


def rows_of(path: Path) -> list[Row]:
    if path in KINETO:
        return list(of_json(path))
    return list(of_database(path, NSYS_MEMORY if path in NSYS else NVPROF_MEMORY))


def swept(rows: list[Row]) -> Counter[Key | None]:
    """Return how long copies of each key ran on a device without a kernel; None: any copies."""
    exposed: Counter[Key | None] = Counter()
    edges: dict[int, list[tuple[int, int, Key | None]]] = defaultdict(list)
    for row in rows:
        edges[row.device] += [(row.start, 1, row.key), (row.end, -1, row.key)]
    for of_device in edges.values():
        running: Counter[Key | None] = Counter()
        last = 0
        for moment, change, key in sorted(of_device, key=lambda edge: edge[0]):
            if moment > last:
                active = [key for key, count in running.items() if count]
                # Kernels have no key.
                if active and None not in active:
                    for each in (*active, None):
                        exposed[each] += moment - last
                last = moment
            running[key] += change
    return exposed


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="no shared traces")
@pytest.mark.parametrize("path", chosen([*NSYS, *NVPROF, *KINETO]))
def test_the_figures_are_those_of_the_files_own_rows(path: Path) -> None:
    rows = rows_of(path)
    expected = {}
    exposed = swept(rows)
    for key in {row.key for row in rows if row.key is not None}:
        own = [row for row in rows if row.key == key]
        sizes = [row.bytes for row in own]
        expected[key] = (
            len(own),
            None if None in sizes else sum(size or 0 for size in sizes),
            sum(row.end - row.start for row in own),
            exposed[key],
        )
    result = transfers(opened(path))
    columns = ("direction", "host_memory", "count", "bytes", "time_ns", "exposed_ns")
    found = {
        (direction, memory): tuple(rest)
        for direction, memory, *rest in result.frame.select(columns).rows()
    }
    assert found == expected
    assert result.totals["exposed_ns"] == exposed[None]

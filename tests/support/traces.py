"""Small traces built by hand, in which every figure is known in closed form."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, cast

import polars as pl

from traceana import Trace
from traceana.trace import Ledger, Tables, TraceMeta
from traceana.trace import Trace as Data
from traceana.trace.taxonomy import CLASS_SCHEMA


def with_methods(trace: Data) -> Trace:
    """Return ``trace`` as users see it, whose methods type checkers then check."""
    return cast("Trace", trace)


class TraceBuilder:
    """Collects rows of the canonical tables and gives the Trace of them.

    The adders of rows that others refer to return the row's number. Times are nanoseconds.
    """

    def __init__(self, **meta: Any) -> None:
        self.meta = TraceMeta(**{"source": "built.json", "format": "kineto", **meta})
        self.ledger = Ledger()
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._names: dict[str, int] = {}

    def name(self, name: str, **classes: Any) -> int:
        """Give the activity name ``name`` its classes; its first mention decides them."""
        if name not in self._names:
            unclassified = {"category": "other", "rule": "test.rule"}
            self._names[name] = self._add("names", {"name": name, **unclassified, **classes})
        return self._names[name]

    def kernel(self, name: str, start: int, duration: int, **columns: Any) -> int:
        """Add a kernel, on device 0 by default."""
        return self._activity("kernel", name, start, duration, {"device": 0, **columns})

    def operator(self, name: str, start: int, duration: int, **columns: Any) -> int:
        """Add an operator of a CPU-only trace."""
        return self._activity("op", name, start, duration, {"device": -1, **columns})

    def copy(self, kind: str, start: int, duration: int, **columns: Any) -> int:
        """Add a copy of ``kind`` (``HtoD`` ...)."""
        name = f"Memcpy {kind}"
        self.name(name, category="memcpy", function=kind)
        columns = {"device": 0, "copy_kind": kind, **columns}
        return self._activity("memcpy", name, start, duration, columns)

    def memset(self, start: int, duration: int, **columns: Any) -> int:
        """Add a memory set."""
        self.name("Memset", category="memset")
        return self._activity("memset", "Memset", start, duration, {"device": 0, **columns})

    def sync(self, start: int, duration: int, **columns: Any) -> int:
        """Add a synchronization record."""
        return self._activity("sync", "Stream Sync", start, duration, {"device": 0, **columns})

    def step(self, number: int, start: int, duration: int, **columns: Any) -> int:
        """Add a step."""
        row = {"number": number, "start": start, "duration": duration, "source": "ProfilerStep"}
        return self._add("steps", {**row, **columns})

    def layer(self, path: str, type: str | None = None, **columns: Any) -> int:  # noqa: A002
        """Add a layer, or with ``role`` a row that is not a layer."""
        position = len(self._rows.get("layers", []))
        row = {"path": path, "type": type, "role": "layer", "position": position}
        return self._add("layers", {**row, **columns})

    def row(self, table: str, **columns: Any) -> int:
        """Add a row to any table."""
        return self._add(table, columns)

    def build(self) -> Trace:
        """Return the Trace."""
        tables = {name: _frame(rows) for name, rows in self._rows.items()}
        if "names" in tables:
            names = tables["names"]
            missing = [column for column in CLASS_SCHEMA if column not in names.columns]
            tables["names"] = names.with_columns(pl.lit(None).alias(name) for name in missing)
        return Trace(self.meta, Tables({**tables, "ledger": self.ledger.frame()}))

    def _activity(
        self, kind: str, name: str, start: int, duration: int, columns: dict[str, Any]
    ) -> int:
        row = {"name_id": self.name(name), "kind": kind, "start": start, "duration": duration}
        return self._add("activities", {**row, **columns})

    def _add(self, table: str, row: dict[str, Any]) -> int:
        rows = self._rows.setdefault(table, [])
        rows.append(row)
        return len(rows) - 1


def _frame(rows: Iterable[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), infer_schema_length=None)


@cache
def cnn_steps() -> Trace:
    """Return two warm-up-free training steps of a small CNN, and one warm-up step before them.

    Each step holds on device 0: a pageable HtoD copy (100 ns, 4096 bytes), conv1 forward by
    implicit precomp GEMM (1000 ns), its ReLU (200 ns), conv2 forward by Winograd (600 ns), a layout
    transpose (50 ns), a batched SGEMM (300 ns), conv1 backward (2000 ns) and the optimizer
    (150 ns): 4400 ns of work, one after the other without gaps, in a window of 5000 ns. The warm-up
    step is three times as long with the same work, and has 1000 ns of synchronization records.
    """
    b = TraceBuilder(framework="PyTorch", events=25, producer="torch 2.3")
    b.row("devices", device=0, name="Tesla V100-SXM2-16GB", vendor="NVIDIA")
    conv1 = b.layer("features.0", "Conv2d")
    relu = b.layer("features.1", "ReLU")
    conv2 = b.layer("features.2", "Conv2d")
    classifier = b.layer("classifier", "Linear")
    sgd = b.layer("Optimizer.step#SGD.step", role="optimizer")
    b.name("scudnn", category="conv", algorithm="implicit_precomp_gemm", family="gemm")
    b.name("winograd", category="conv", algorithm="winograd", family="winograd")
    b.name("relu", category="activation", function="relu")
    b.name("nchwToNhwc", category="layout", function="nchw_to_nhwc")
    b.name("sgemmBatched", category="gemm", precision="fp32", batched=True)
    b.name("adam", category="optimizer")
    start = 0
    for number, wall in ((1, 15_000), (2, 5_000), (3, 5_000)):
        s = b.step(number, start, wall)
        at = start
        forward, backward = {"direction": "forward"}, {"direction": "backward"}
        b.copy("HtoD", at, 100, bytes=4096, source_memory="pageable", step=s)
        b.kernel("scudnn", at + 100, 1000, layer=conv1, step=s, **forward)
        b.kernel("relu", at + 1100, 200, layer=relu, step=s, **forward)
        b.kernel("winograd", at + 1300, 600, layer=conv2, step=s, **forward)
        b.kernel("nchwToNhwc", at + 1900, 50, layer=conv2, step=s, **forward)
        b.kernel("sgemmBatched", at + 1950, 300, layer=classifier, step=s, **forward)
        b.kernel("scudnn", at + 2250, 2000, layer=conv1, step=s, **backward)
        b.kernel("adam", at + 4250, 150, layer=sgd, step=s, direction="optimizer")
        start += wall
    b.sync(12_000, 1_000)
    return b.build()

"""Whether the host waits for a copy, by its call and memory, as CUDA documents it."""

from __future__ import annotations

import pytest

from tests.support.traces import TraceBuilder
from traceana.analyze.copies import copies


def waits(call: str | None, kind: str, **memory: str) -> str | None:
    builder = TraceBuilder()
    row = None if call is None else builder.row("calls", name=call, start=0, duration=1)
    builder.copy(kind, 0, 10, bytes=1, correlation=1, call=row, **memory)
    (found,) = copies(builder.build())["waits"]
    return None if found is None else str(found)


@pytest.mark.parametrize(
    ("call", "kind", "memory", "expected"),
    [
        ("cudaMemcpy", "h2d", "pageable", "synchronous"),
        ("cudaMemcpy", "d2h", "pinned", "synchronous"),
        ("cudaMemcpy", "d2d", None, "asynchronous"),
        ("cudaMemcpy2D", "h2d", "pinned", "synchronous"),
        ("cudaMemcpyToSymbol", "h2d", "pageable", "synchronous"),
        ("cuMemcpyHtoD_v2", "h2d", "pageable", "synchronous"),
        ("hipMemcpyWithStream", "h2d", "unknown", "synchronous"),
        ("cudaMemcpyAsync", "h2d", "pageable", "staged"),
        ("cudaMemcpyAsync", "d2h", "pageable", "staged"),
        ("cudaMemcpyAsync_ptsz", "d2h", "pageable", "staged"),
        ("cudaMemcpyAsync", "h2d", "pinned", "asynchronous"),
        ("cudaMemcpyAsync", "h2h", "pinned", "synchronous"),
        ("cudaMemcpyAsync", "d2d", None, "asynchronous"),
        ("cudaMemcpyPeerAsync", "p2p", None, "asynchronous"),
        ("cuMemcpyDtoHAsync_v2", "d2h", "pinned", "asynchronous"),
        ("cudaMemcpyAsync", "h2d", "unknown", None),
        ("cudaMemcpyAsync", "unknown", None, None),
        ("cudaGraphLaunch", "h2d", "pageable", "asynchronous"),
        ("MemcpyH2D", "h2d", "pinned", None),
        ("cudaLaunchKernel", "d2d", None, None),
        (None, "h2d", "pinned", None),
    ],
)
def test_the_host_waits(
    call: str | None, kind: str, memory: str | None, expected: str | None
) -> None:
    side = "source_memory" if kind.startswith("h") else "destination_memory"
    assert waits(call, kind, **({} if memory is None else {side: memory})) == expected

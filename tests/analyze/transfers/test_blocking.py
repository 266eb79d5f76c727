"""Whether the call of a copy blocks the host, by its name and memory, as CUDA documents it."""

from __future__ import annotations

import pytest

from tests.support.traces import TraceBuilder
from traceana.timeline.copies import copies


def blocking(call: str | None, kind: str, **memory: str) -> str | None:
    builder = TraceBuilder()
    row = None if call is None else builder.row("calls", name=call, start=0, duration=1)
    builder.copy(kind, 0, 10, bytes=1, correlation=1, call=row, **memory)
    (found,) = copies(builder.build())["blocking"]
    return None if found is None else str(found)


@pytest.mark.parametrize(
    ("call", "kind", "memory", "expected"),
    [
        ("cudaMemcpy", "HtoD", "pageable", "synchronous"),
        ("cudaMemcpy", "DtoH", "pinned", "synchronous"),
        ("cudaMemcpy", "DtoD", None, "asynchronous"),
        ("cudaMemcpy2D", "HtoD", "pinned", "synchronous"),
        ("cudaMemcpyToSymbol", "HtoD", "pageable", "synchronous"),
        ("cuMemcpyHtoD_v2", "HtoD", "pageable", "synchronous"),
        ("hipMemcpyWithStream", "HtoD", "unknown", "synchronous"),
        ("cudaMemcpyAsync", "HtoD", "pageable", "staged"),
        ("cudaMemcpyAsync", "DtoH", "pageable", "staged"),
        ("cudaMemcpyAsync_ptsz", "DtoH", "pageable", "staged"),
        ("cudaMemcpyAsync", "HtoD", "pinned", "asynchronous"),
        ("cudaMemcpyAsync", "HtoH", "pinned", "synchronous"),
        ("cudaMemcpyAsync", "DtoD", None, "asynchronous"),
        ("cudaMemcpyPeerAsync", "PtoP", None, "asynchronous"),
        ("cuMemcpyDtoHAsync_v2", "DtoH", "pinned", "asynchronous"),
        ("cudaMemcpyAsync", "HtoD", "unknown", None),
        ("cudaMemcpyAsync", "unknown", None, None),
        ("cudaGraphLaunch", "HtoD", "pageable", "asynchronous"),
        ("MemcpyH2D", "HtoD", "pinned", None),
        ("cudaLaunchKernel", "DtoD", None, None),
        (None, "HtoD", "pinned", None),
    ],
)
def test_the_call_blocks(
    call: str | None, kind: str, memory: str | None, expected: str | None
) -> None:
    side = "source_memory" if kind.startswith("H") else "destination_memory"
    assert blocking(call, kind, **({} if memory is None else {side: memory})) == expected

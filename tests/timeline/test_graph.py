"""Which threads the critical path follows, and how far it reaches without device work."""

from __future__ import annotations

import polars as pl

from tests.support.traces import TraceBuilder
from traceana.timeline.critical import critical, segments


def test_without_device_work_the_path_reaches_from_the_first_call_to_the_end_of_the_last() -> None:
    b = TraceBuilder()
    for start, duration in ((10, 20), (50, 40)):
        b.row("calls", name="cudaMalloc", process=1, thread=1, start=start, duration=duration)
    frame = critical(b.build()).frame
    assert dict(frame.select("part", "time_ns").iter_rows()) == {"call": 60, None: 20}


def host_threads(operator: str, direction: str | None) -> dict[int, int]:
    """Return host time on the path by thread: 1 launches twice, 2 runs an operator in between."""
    b = TraceBuilder()
    for number, at in enumerate((0, 2_000)):
        call = b.row("calls", name="cudaLaunchKernel", process=1, thread=1, start=at, duration=100)
        b.kernel("k", at + 200, 100, process=1, stream=7, call=call, correlation=number)
    b.row("ops", name=operator, process=1, thread=2, start=1_000, duration=990, depth=0,
          direction=direction)  # fmt: skip
    found: dict[int, int] = {}
    for kind, thread, time in segments(b.build()).select("class", "thread", "time_ns").iter_rows():
        if kind == "host":
            found[thread] = found.get(thread, 0) + time
    return found


def test_the_host_waits_for_operators_of_the_backward_pass_alone() -> None:
    assert host_threads("MmBackward0", "backward") == {2: 1_790, 1: 110}
    # The thread of a communication backend: its operators belong to no pass.
    assert host_threads("gloo:all_reduce", None) == {1: 1_900}


def test_a_cpu_waits_for_its_pool_also_where_few_operators_have_a_layer() -> None:
    b = TraceBuilder(framework="JAX")
    layer = b.row("layers", path="outer", role="layer", position=0)
    b.row("steps", number=0, process=9, start=0, duration=1000, source="train", complete=True)
    b.row("ranges", text="train", kind="step", process=9, thread=1, start=0, duration=1000)
    for name, thread, start, end, of in (("slice", 1, 10, 20, layer), ("dot", 2, 50, 950, None)):
        op = b.row("ops", name=name, process=9, thread=thread, start=start, duration=end - start,
                   layer=of, depth=0)  # fmt: skip
        b.row("activities", kind="op", device=-1, op=op, process=9, stream=thread, start=start,
              duration=end - start, layer=of)  # fmt: skip
    path = segments(b.build())
    assert dict(path.group_by("operator").agg(pl.col("time_ns").sum()).iter_rows())["dot"] == 900

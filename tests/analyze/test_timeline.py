"""The windows of a timeline hold every event of their time, merged ones counted."""

from __future__ import annotations

import polars as pl

from tests.support.traces import TraceBuilder, cnn_steps
from traceana.analyze.timeline import Window, in_brief, timeline
from traceana.timeline.idle import idle
from traceana.timeline.steps import measured_steps
from traceana.trace import Trace


def during(
    frame: pl.DataFrame, window: Window, start: str = "start", length: str = "duration"
) -> int:
    """Return how many rows of ``frame`` overlap ``window``."""
    at, time = pl.col(start), pl.col(length)
    return frame.filter((at < window.end_ns) & (at + time > window.start_ns) & (time > 0)).height


def counted(window: Window, kind: str) -> int:
    """Return how many events of tracks of ``kind`` the window has, each of a merged one."""
    of = window.tracks["kind"].cast(pl.String).gather(window.events["track"])
    return int(window.events.filter(of == kind)["count"].sum())


def check(trace: Trace, window: Window) -> None:
    """Assert that the window has all events of its time, by kind."""
    assert window.left_out == 0
    assert counted(window, "stream") == during(trace.tables.activities, window)
    assert counted(window, "operators") == during(trace.tables.ops, window)
    ranges = sum(counted(window, kind) for kind in ("ranges", "annotations", "overhead"))
    assert ranges == during(trace.tables.ranges, window)
    assert counted(window, "calls") == during(trace.tables.calls, window)
    gaps = idle(trace, by="gap").frame
    assert counted(window, "idle") == during(gaps, window, "start_ns", "time_ns")
    order = window.events.select("track", "depth", "start_ns")
    assert order.equals(order.sort("track", "depth", "start_ns"))


def long_trace(kernels: int) -> Trace:
    builder = TraceBuilder()
    builder.name("k", category="conv")
    for number in range(kernels):
        builder.kernel("k", number * 1_000, 400 if number % 10 else 900)
    return builder.build()


def test_without_steps_the_capture_is_one_window() -> None:
    (window,) = timeline(long_trace(20))
    assert (window.step, window.start_ns, window.end_ns) == (None, 0, 19_400)
    check(long_trace(20), window)


def test_the_first_window_is_the_step_nearest_the_median() -> None:
    trace = cnn_steps()
    windows = timeline(trace)
    durations = dict(trace.tables.steps.select("number", "duration").iter_rows())
    measured = trace.tables.steps[list(measured_steps(trace).rows)]
    median = measured["duration"].median()
    first = windows[0].step
    assert first is not None
    assert isinstance(median, float | int)
    assert abs(durations[first] - median) == min(abs(one - median) for one in measured["duration"])
    assert len({window.step for window in windows}) == len(windows) == measured.height


def test_short_events_are_merged_and_counted() -> None:
    trace = long_trace(5_000)
    (window,) = timeline(trace, most=700)
    assert window.events.height <= 700
    assert window.merged == int(window.events.filter(pl.col("count") > 1)["count"].sum()) > 0
    assert counted(window, "stream") == 5_000
    assert window.events.filter(pl.col("count") > 1)["name"].null_count() > 0


def test_a_window_in_brief_has_the_outermost_events_of_its_main_tracks() -> None:
    builder = TraceBuilder()
    builder.name("k", category="conv")
    for stream in range(5):
        builder.kernel("k", 0, 100 * (stream + 1), stream=stream)
    for thread in range(4):
        for depth in range(2):
            builder.row(
                "ops", name=f"op{depth}", process=1, thread=thread, start=depth,
                duration=50 * (thread + 1) - depth, depth=depth,
            )  # fmt: skip
        builder.row(
            "ranges", text="r", kind="annotation", process=1, thread=thread, start=0, duration=500
        )
    (window,) = timeline(builder.build())
    brief = in_brief(window)
    tracks = brief.tracks.with_columns(pl.col("kind").cast(pl.String)).select("kind", "number")
    assert [row for row in tracks.rows() if row[0] == "stream"] == [
        ("stream", 2), ("stream", 3), ("stream", 4),
    ]  # fmt: skip
    assert [row for row in tracks.rows() if row[0] == "operators"] == [
        ("operators", 2), ("operators", 3),
    ]  # fmt: skip
    assert "ranges" not in tracks["kind"].to_list()
    assert counted(brief, "operators") == 2
    assert brief.events["depth"].unique().to_list() == [0]


def test_a_long_window_in_brief_merges_its_events() -> None:
    (window,) = timeline(long_trace(5_000), most=4_000)
    assert window.merged > 0
    brief = in_brief(window)
    assert brief.events.height <= 2_000
    assert counted(brief, "stream") == 5_000


def test_other_steps_follow_only_whole() -> None:
    trace = cnn_steps()
    whole = timeline(trace)
    first = whole[0].events.height
    assert [one.step for one in timeline(trace, most=first)] == [whole[0].step]
    assert timeline(trace, most=first)[0].merged == 0


def test_a_step_of_several_processes_is_one_window() -> None:
    builder = TraceBuilder()
    builder.name("k", category="conv")
    for rank in range(2):
        builder.step(7, 100 * rank, 1_000, process=10 + rank, rank=rank)
        builder.kernel("k", 500 + 300 * rank, 200, device=rank, rank=rank)
    (window,) = timeline(builder.build())
    assert (window.step, window.start_ns, window.end_ns) == (7, 0, 1_100)
    assert counted(window, "stream") == 2


def test_devices_of_all_ranks_are_above_their_threads() -> None:
    builder = TraceBuilder()
    builder.name("k", category="conv")
    for rank in range(2):
        of = {"process": rank, "rank": rank}
        builder.kernel("k", 0, 200, device=0, stream=7, **of)
        builder.row("ranges", text="f", kind="annotation", start=0, duration=500, thread=3, **of)
    (window,) = timeline(builder.build())
    kinds = window.tracks.select("kind", "rank").rows()
    shown = [row for row in kinds if row[0] in ("stream", "ranges")]
    assert shown == [("stream", 0), ("stream", 1), ("ranges", 0), ("ranges", 1)]


def test_annotations_of_a_stream_are_on_its_device_and_no_thread() -> None:
    builder = TraceBuilder()
    builder.name("k", category="conv")
    builder.kernel("k", 0, 200, device=1, stream=7)
    builder.row("ranges", text="f", kind="device", start=0, duration=200, device=1, thread=7)
    builder.row("ranges", text="Buffer Flush", kind="overhead", start=0, duration=9, thread=0)
    (window,) = timeline(builder.build())
    tracks = window.tracks.select("kind", "device", "number").rows()
    assert ("annotations", 1, 7) in tracks
    assert ("overhead", None, None) in tracks
    assert "ranges" not in {kind for kind, _, _ in tracks}


def test_every_rank_has_a_critical_path_of_its_own() -> None:
    builder = TraceBuilder()
    builder.name("k", category="conv")
    for rank in range(2):
        of = {"process": rank, "rank": rank}
        builder.step(7, 100 * rank, 1_000, **of)
        builder.kernel("k", 100 * rank, 1_000, device=0, stream=7, **of)
    (window,) = timeline(builder.build())
    assert window.tracks.filter(pl.col("kind") == "critical")["rank"].to_list() == [0, 1]
    for track in range(2):
        of_rank = window.events.filter(pl.col("track") == track)
        assert of_rank["time_ns"].sum() == 1_000


def test_a_synchronization_hides_no_kernel_of_its_stream() -> None:
    builder = TraceBuilder()
    builder.name("k", category="conv")
    builder.kernel("k", 0, 1_000, stream=7)
    builder.kernel("k", 1_500, 1_000, stream=7)
    builder.sync(500, 2_100, stream=7)
    (window,) = timeline(builder.build())
    kinds = window.tracks["kind"].cast(pl.String).gather(window.events["track"])
    stream = window.events.filter(kinds == "stream")
    assert stream.select("depth", "start_ns").rows() == [(0, 0), (0, 1_500), (1, 500)]


def test_without_work_there_is_no_window() -> None:
    assert timeline(TraceBuilder().build()) == ()


def test_counters_with_one_reading_have_their_value() -> None:
    """Each covers no time: their mean is the reading."""
    b = TraceBuilder()
    b.kernel("k", 0, 100)
    for name, value in (("Power", 300.0), ("Memory", 7.0)):
        b.row("samples", start=50, duration=0, device=0, name=name, value=value)
    (window,) = timeline(b.build())
    assert sorted(window.counters["mean"].to_list()) == [7.0, 300.0]

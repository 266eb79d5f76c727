"""Each finding has a trace in which it holds and one in which it must not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.traces import TraceBuilder, cnn_steps
from traceana.analyze.overview import overview

Build = Callable[[TraceBuilder], object]


def found(build: Build) -> dict[str, dict[str, object]]:
    """Return the findings by rule, of a trace with 10,000 ns of other work in eight kernels."""
    builder = TraceBuilder()
    builder.name("conv", category="conv", algorithm="fft")
    for number in range(100):
        name = f"elementwise {number % 8}"
        builder.name(name, category="elementwise")
        builder.kernel(name, 100 * number, 100)
    build(builder)
    rows = overview(builder.build()).attention.frame.to_dicts()
    return {str(row["rule"]): row for row in rows}


def convolution(builder: TraceBuilder) -> None:
    builder.kernel("conv", 10_000, 10)


def layout(share: float, *, with_convolution: bool = True) -> Build:
    def build(builder: TraceBuilder) -> None:
        builder.name("transpose", category="layout", function="nchw_to_nhwc")
        builder.kernel("transpose", 10_010, round(10_000 * share))
        if with_convolution:
            convolution(builder)

    return build


def named(category: str, time: int) -> Build:
    def build(builder: TraceBuilder) -> None:
        builder.name("named", category=category)
        builder.kernel("named", 10_000, time)

    return build


def copies(kind: str, memory: str, count: int, size: int, time: int) -> Build:
    def build(builder: TraceBuilder) -> None:
        for number in range(count):
            at = 10_000 + number * time
            builder.copy(kind, at, time, bytes=size, source_memory=memory)

    return build


def layer(time: int, others: int) -> Build:
    def build(builder: TraceBuilder) -> None:
        rows = [builder.layer("big"), *(builder.layer(f"l{n}") for n in range(others))]
        for number, row in enumerate(rows):
            builder.kernel(f"k{number}", 10_000, time if number == 0 else 1, layer=row)

    return build


def gap(time: int) -> Build:
    def build(builder: TraceBuilder) -> None:
        builder.kernel("elementwise 0", 10_000 + time, 100)

    return build


@pytest.mark.parametrize(
    ("rule", "holds", "fails"),
    [
        ("idle", gap(2_000), gap(900)),
        ("layout_around_convolutions", layout(0.05), layout(0.01)),
        ("layout_around_convolutions", layout(0.05), layout(0.5, with_convolution=False)),
        ("separate_bias_and_activation", named("bias", 2_000), named("bias", 900)),
        ("separate_bias_and_activation", named("activation", 2_000), named("softmax", 2_000)),
        ("collectives", named("collective", 2_000), named("collective", 900)),
        (
            "pageable_copies",
            copies("h2d", "pageable", 1, 9, 200),
            copies("h2d", "pinned", 1, 9, 200),
        ),
        (
            "pageable_copies",
            copies("h2d", "pageable", 1, 9, 200),
            copies("h2d", "pageable", 1, 9, 9),
        ),
        ("small_copies", copies("h2d", "pinned", 100, 9, 9), copies("h2d", "pinned", 99, 9, 9)),
        (
            "small_copies",
            copies("h2d", "pinned", 100, 9, 9),
            copies("h2d", "pinned", 100, 70_000, 9),
        ),
        ("host_copies", copies("h2d", "pinned", 1, 9, 2000), copies("d2d", "device", 1, 9, 2000)),
        ("one_layer", layer(6_000, 1), layer(2_000, 1)),
        ("one_layer", layer(6_000, 1), layer(6_000, 0)),
        ("one_kernel", named("pooling", 9_000), named("pooling", 1_000)),
    ],
)
def test_a_finding_shows_when_it_holds_and_not_else(rule: str, holds: Build, fails: Build) -> None:
    assert rule in found(holds)
    assert rule not in found(fails)


def test_unclassified_work() -> None:
    for share, shown in ((0.2, True), (0.05, False)):
        builder = TraceBuilder()
        builder.name("known", category="pooling")
        builder.kernel("known", 0, round(1000 * (1 - share)))
        builder.kernel("user_kernel", 1000, round(1000 * share))
        report = overview(builder.build())
        assert ("unclassified" in report.attention.frame["rule"]) is shown
        assert report.unclassified == pytest.approx(share)


def test_findings_carry_their_figures_and_come_by_the_time_at_stake() -> None:
    rows = overview(cnn_steps()).attention.frame.to_dicts()
    assert [(row["rule"], row["time_ns"]) for row in rows] == [
        ("one_kernel", 9000),
        ("one_layer", 9000),
        ("idle", 1200),
    ]
    assert rows[2]["share"] == pytest.approx(1200 / 10_000)
    assert rows[2]["count"] == 2, "measured steps"
    assert rows[1]["subject"] == "features.0"


def test_the_cpu_is_never_idle_and_its_kernels_are_operators() -> None:
    builder = TraceBuilder()
    builder.operator("aten::mm", 0, 10)
    builder.operator("aten::relu", 1000, 1)
    rules = overview(builder.build()).attention.frame["rule"].to_list()
    assert "idle" not in rules
    assert "one_operator" in rules


def test_nothing_stands_out() -> None:
    attention = overview(TraceBuilder().build()).attention
    assert attention.frame.is_empty()
    assert attention.notes == ("nothing stands out",)

"""The first screen of ``report`` has one basis, and says which."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.manifest import FIXTURES
from tests.support.opened import opened
from tests.support.traces import TraceBuilder
from traceana.report.page import Facts, Findings, Heading, Notes, Page, Table
from traceana.report.pages.idle import idle
from traceana.report.pages.info import info
from traceana.report.pages.kernels import kernels
from traceana.report.pages.layers import flops
from traceana.report.pages.report import MOST_CLASSES, report
from traceana.report.terminal import Terminal, render
from traceana.timeline.steps import select
from traceana.trace import Trace

MS = 1_000_000


def training(*, outside: int = 0, processes: int = 1, of_containers: bool = False) -> Trace:
    """Return a warm-up step of 40 ms and three of 10 ms, and a kernel of no step.

    The warm-up has a convolution of 30 ms; the others have 4 ms, the second of two launches, and
    the last has a copy of 2 ms. The processes of containers have the same id.
    """
    b = TraceBuilder(framework="PyTorch")
    b.name("conv", category="conv", algorithm="winograd")
    b.name("late", category="elementwise")
    layer = b.layer("features.0", "Conv2d")
    for process in range(processes):
        own: dict[str, Any] = {"rank": process} if processes > 1 else {}
        id_ = 1 if of_containers else process
        b.row("devices", device=0, name="V100", **own)
        row = b.step(1, 0, 40 * MS, process=id_, **own)
        b.kernel("conv", 0, 30 * MS, step=row, layer=layer, direction="forward", **own)
        for number in (2, 3, 4):
            start = 40 * MS + (number - 2) * 10 * MS
            row = b.step(number, start, 10 * MS, process=id_, **own)
            halves = 2 if number == 3 else 1
            for half in range(halves):
                b.kernel(
                    "conv",
                    start + half * 4 * MS // halves,
                    4 * MS // halves,
                    step=row,
                    layer=layer,
                    direction="forward",
                    **own,
                )
        b.copy("HtoD", start + 6 * MS, 2 * MS, step=row, bytes=3_000, **own)
        if outside:
            b.kernel("late", 70 * MS, outside, **own)
    return b.build()


def page_of(trace: Trace) -> Page:
    return report(trace).page()


def facts_of(page: Page) -> dict[str, str]:
    facts = next(block for block in page.blocks if isinstance(block, Facts))
    found: dict[str, str] = {}
    last = ""
    for label, value in facts.rows:
        last = label or last
        found[last] = f"{found[last]} | {value}" if last in found else value
    return found


def tables_of(page: Page) -> dict[str, Table]:
    return {one.columns[0].title: one for one in page.blocks if isinstance(one, Table)}


def test_every_table_has_means_per_measured_step() -> None:
    page = page_of(training())
    tables = tables_of(page)
    assert list(tables) == [
        "GPU time by class, per step", "Slowest layers, per step", "Transfers, per step",
    ]  # fmt: skip
    classes, layers, copies = (one.frame for one in tables.values())
    conv = classes.filter(classes["class"].str.starts_with("conv")).row(0, named=True)
    assert (conv["calls"], conv["time_ns"]) == (pytest.approx(4 / 3), 4 * MS)
    assert conv["share"] == pytest.approx(12 / 14)
    layer = layers.filter(layers["layer"] == "features.0").row(0, named=True)
    assert (layer["forward_ns"], layer["time_ns"]) == (4 * MS, 4 * MS)
    assert layer["share"] == pytest.approx(12 / 14)
    copy = copies.row(0, named=True)
    assert (copy["count"], copy["bytes"]) == (pytest.approx(1 / 3), 1_000)
    assert (copy["time_ns"], copy["exposed_ns"]) == (2 * MS // 3, 2 * MS // 3)
    assert (copy["mean_bytes"], copy["bytes_per_s"]) == (3_000, 3_000 * 1e9 / (2 * MS))


def test_one_line_says_what_the_tables_are_divided_by() -> None:
    facts = facts_of(page_of(training()))
    assert facts["Tables"] == (
        "mean of 3 steps · share: % of 4.67 ms GPU time · 68.2 % of GPU time is outside these steps"
    )
    assert facts["Kernels"] == "1.3 per step · 1 distinct"
    assert "process" not in facts["Tables"]
    facts = facts_of(page_of(training(processes=2)))
    assert facts["Tables"].startswith("mean of 3 steps of 2 processes · share: % of 4.67 ms")
    same_id = facts_of(page_of(training(processes=2, of_containers=True)))
    for label in ("Step time", "Tables", "Kernels"):
        assert same_id[label] == facts[label]


def test_work_outside_the_measured_steps_does_not_change_their_shares() -> None:
    alone, beside = (tables_of(page_of(training(outside=time))) for time in (0, 50 * MS))
    for title, table in alone.items():
        assert beside[title].frame.equals(table.frame)


def test_without_steps_the_basis_is_the_capture() -> None:
    b = TraceBuilder()
    b.name("conv", category="conv")
    for start in (0, 10):
        b.kernel("conv", start * MS, 4 * MS)
    page = page_of(b.build())
    assert facts_of(page)["Tables"] == (
        "sums over the capture: no steps marked · share: % of 8.00 ms GPU time"
    )
    (classes, _) = tables_of(page).values()
    assert classes.columns[0].title == "GPU time by class"
    assert classes.frame.row(0) == ("convolution", 2, 8 * MS, 1.0)


def test_selected_steps_are_all_measured() -> None:
    page = page_of(select(training(), steps=[3]))
    classes = tables_of(page)["GPU time by class, per step"].frame
    assert classes["calls"].to_list() == [2]
    assert facts_of(page)["Kernels"] == "2 per step · 1 distinct"


def savings(trace: Trace) -> tuple[str, list[str]]:
    page = page_of(trace)
    (title,) = [
        one.text for one in page.blocks if isinstance(one, Heading) and "saving" in one.text
    ]
    return title, [
        one.effect for block in page.blocks if isinstance(block, Findings) for one in block.items
    ]


def exposed(
    *,
    steps: bool,
    ahead: bool = False,
    devices: int = 1,
    framework: str | None = "PyTorch",
    kernel: str = "k",
) -> Trace:
    """Return work with exposed collectives of 5 ms in windows of 10 ms, or 5 ms, per step."""
    b = TraceBuilder(framework=framework)
    b.name(kernel, category="elementwise")
    b.name("reduce", category="collective", function="all_reduce")
    wall = (5 if ahead else 10) * MS
    for number in range(4):
        row = b.step(number, number * wall, wall) if steps else None
        for device in range(devices):
            at = number * 10 * MS
            b.kernel(kernel, at, 5 * MS, step=row, device=device)
            b.kernel("reduce", at + 5 * MS, 5 * MS, step=row, device=device)
    return b.build()


def test_a_saving_names_what_its_share_is_of() -> None:
    title, effects = savings(exposed(steps=True))
    assert title == "Recommendations, by estimated saving per step"
    assert "≈ 5.00 ms (50.0 % of step)" in effects
    title, effects = savings(exposed(steps=False))
    assert title == "Recommendations, by estimated saving"
    assert "≈ 20.00 ms (50.0 % of capture)" in effects
    title, effects = savings(exposed(steps=True, devices=2))
    assert title == "Recommendations, by estimated saving per step and device"


def test_a_host_that_runs_ahead_has_savings_of_the_step_on_the_gpu() -> None:
    trace = exposed(steps=True, ahead=True)
    _, effects = savings(trace)
    assert "≈ 5.00 ms (50.0 % of step)" in effects
    assert " (GPU) · queued by the host in " in facts_of(page_of(trace))["Step time"]


def test_sums_over_ranks_are_over_the_devices_of_each() -> None:
    b = TraceBuilder(framework="PyTorch")
    b.name("k", category="elementwise")
    for rank in (0, 1):
        for device in (4, 5):
            b.kernel("k", 0, MS, rank=rank, device=device)
    assert "Table  sums over the capture (4 devices)" in str(kernels(b.build()))


def reduced(*ranks: tuple[int, ...], world: int | None = None) -> Trace:
    """Return one step of each rank; collectives have these durations (ms) and end together."""
    b = TraceBuilder(framework="PyTorch", world_size=world)
    b.name("reduce", category="collective", function="all_reduce")
    for rank, durations in enumerate(ranks):
        row = b.step(1, 0, 100 * MS, rank=rank, process=rank)
        for number, time in enumerate(durations):
            # The clocks of the ranks differ.
            end = (20 * number + 10 + 3 * rank) * MS
            b.kernel("reduce", end - time * MS, time * MS, rank=rank, step=row, bytes=4)
    return b.build()


def test_the_rank_for_which_the_others_wait_longest_is_on_the_first_screen() -> None:
    # Rank 1 is last in the first two, and the others wait 4 + 2 and 6 + 8 ms for it: 10 ms each.
    facts = facts_of(page_of(reduced((5, 7, 1), (1, 1, 2), (3, 9, 3))))
    assert facts["Last to arrive"] == (
        "rank 1 in 2 of 3 collectives; the 2 others wait 10.00 ms each per step"
    )
    # 32 ms, of which 1 + 1 + 1 ms each is left after the waits.
    assert facts["Collectives"] == "10.67 ms = 7.67 wait + 3.00 transfer, per step and process"


def test_who_arrives_last_is_not_guessed() -> None:
    def last(*ranks: tuple[int, ...], world: int | None = None) -> str | None:
        return facts_of(page_of(reduced(*ranks, world=world))).get("Last to arrive")

    assert last((5, 7), (5, 7)) == "no waits in 2 collectives"
    assert last((5, 7), (5,)) == "not determined: collectives are not matched across the ranks"
    assert last((5, 7)) is None
    assert "Last to arrive" not in facts_of(page_of(training(processes=2)))


def test_the_part_of_waiting_is_of_the_collectives_that_match() -> None:
    facts = facts_of(page_of(reduced((5, 7), (5,))))
    assert "Collectives" not in facts


def launch(builder: TraceBuilder, start: int) -> int:
    return builder.row("calls", name="cudaLaunchKernel", start=start, duration=1_000)


def test_kernels_and_launches_are_counted_apart() -> None:
    b = TraceBuilder(framework="PyTorch")
    b.name("k")
    for number in range(4):
        start = number * 10 * MS
        row = b.step(number, start, 10 * MS)
        b.kernel("k", start + MS, MS, step=row, call=launch(b, start))
        # The launch of the second kernel is not recorded.
        b.copy("HtoD", start + 3 * MS, MS, step=row, bytes=8, call=launch(b, start + MS))
        b.kernel("k", start + 5 * MS, MS, step=row)
    trace = b.build()
    facts = facts_of(page_of(trace))
    expected = "2 per step · 1 distinct · 2 launches (with copies, memsets)"
    assert facts["Kernels"] == expected
    assert idle(trace).page().data.sections["devices"].frame["launches"].to_list() == [8]


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "alexnet_b128",
            [
                "no problems; normal: 1,696 events excluded, 2 remarks on kept events "
                "(--format json)"
            ],
        ),
        (
            "resnet18_b8_graph",
            [
                "note: 1,780 (26.73 ms) of activities, kept: work of CUDA graph replays without a "
                "layer: give a recording of the capture, or of the network without graphs "
                "(--capture)",
                "no problems; normal: 2,568 events excluded, 3 remarks on kept events "
                "(--format json)",
            ],
        ),
    ],
)
def test_what_is_normal_in_a_recording_is_one_line(name: str, lines: list[str]) -> None:
    (facts,) = info(opened(FIXTURES / "gpu" / f"{name}.json.gz")).page().blocks
    assert isinstance(facts, Facts)
    assert [text for label, text in facts.rows if label == "Integrity"] == lines


def test_a_note_on_rows_above_the_peak_needs_no_column() -> None:
    """A terminal of 60 columns has no room for the share of the peak."""
    found = flops(opened(FIXTURES / "gpu" / "alexnet_b128.json.gz"), by="class")
    text = render(found.page(), Terminal(60))
    note = "up to 198.4 % of peak: FLOPs of the direct convolution, fewer executed by Winograd"
    assert note in " ".join(text.split())
    assert "attainable" not in text


def test_each_capture_has_a_name() -> None:
    trace = reduced((5,), (1,))
    assert facts_of(page_of(trace))["GPU utilization"].startswith("3.0 % of step time")
    lines = facts_of(idle(trace).page())
    assert " of 100.0 ms capture of this rank · " in lines["rank 1 GPU 0"]


def test_the_mfu_is_that_of_flops() -> None:
    trace = opened(FIXTURES / "gpu/alexnet_b128.json.gz")
    facts = facts_of(page_of(trace))
    of_flops = next(block for block in flops(trace).page().blocks if block_is_mfu(block))
    assert isinstance(of_flops, Facts)
    assert dict(of_flops.rows)["MFU"] == f"{facts['MFU']} in convolutions and matrix products"
    assert (
        report(trace).summary.mfu
        == flops(trace).page().data.sections["utilization"].frame["mfu"][0]
    )
    assert "MFU" not in facts_of(page_of(training())), "no FLOPs are known"


def block_is_mfu(block: object) -> bool:
    return isinstance(block, Facts) and block.rows[0][0] == "MFU"


@pytest.mark.parametrize(
    ("framework", "kernel", "label"),
    [
        ("PyTorch", "k", "change: "),
        ("JAX", "k", "change: "),
        (None, "k", "change: "),
        (None, "cudnn::winograd", "change (PyTorch): "),
    ],
)
@pytest.mark.parametrize("steps", [True, False])
def test_every_finding_has_a_change(
    framework: str | None, kernel: str, label: str, *, steps: bool
) -> None:
    page = page_of(exposed(steps=steps, framework=framework, kernel=kernel))
    parts = [
        finding.parts
        for block in page.blocks
        if isinstance(block, Findings)
        for finding in block.items
    ]
    assert parts
    assert all(part.summary.startswith(label) for (part,) in parts)


def test_many_classes_are_folded() -> None:
    b = TraceBuilder(framework="PyTorch")
    categories = ("conv", "gemm", "normalization", "activation", "pooling", "softmax", "bias")
    for at, category in enumerate(categories):
        for part in range(3):
            name = f"{category} {part}"
            b.name(name, category=category, algorithm=name)
            b.kernel(name, (3 * at + part) * MS, MS // (1 + 2 * part))
    classes = next(iter(tables_of(page_of(b.build())).values()))
    assert classes.frame.height <= MOST_CLASSES
    assert max(classes.frame["share"].to_list()) > 0.1


def test_without_kernels_no_utilization_is_claimed() -> None:
    b = TraceBuilder(framework="PyTorch")
    b.row("devices", device=0, name="V100")
    b.memset(0, 2_000)
    found = report(b.build())
    page = found.page()
    facts = facts_of(page)["GPU utilization"]
    assert facts == "not determined: no kernels, only copies and memsets"
    assert found.summary.utilization is None
    large = [label for block in page.blocks if isinstance(block, Facts) for label, _ in block.large]
    assert "GPU utilization" not in large


@pytest.mark.parametrize("longest_ns", [2 * MS, MS // 5])
def test_one_long_call_of_a_slow_layer_has_a_note(longest_ns: int) -> None:
    """The layer of a shorter call is not among the slowest."""
    b = TraceBuilder(framework="PyTorch")
    b.name("conv", category="conv")
    for at in range(10):
        layer = b.layer(f"conv_{at}")
        for call in range(5):
            usual_ns = 300_000 if at else 1_000
            duration = usual_ns if (at, call) != (0, 2) else longest_ns
            b.kernel("conv", (5 * at + call) * 2 * MS, duration, layer=layer)
    notes = [
        text
        for block in page_of(b.build()).blocks
        if isinstance(block, Notes)
        for _, text in block.rows
        if "one call" in text
    ]
    far = "one call of 2,000 µs, 2,000 times its kernel's median of 1.0 µs: conv_0"
    assert notes == ([far] if longest_ns == 2 * MS else [])

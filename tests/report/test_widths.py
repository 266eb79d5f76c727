"""No screen is wider than its terminal, for every command and trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import polars as pl
import pytest
from rich.cells import cell_len

import traceana
from tests.support.opened import opened
from tests.support.traces import TraceBuilder
from traceana import Trace
from traceana.comparison.diff import VIEWS
from traceana.report.page import (
    Data,
    Facts,
    Finding,
    Findings,
    Heading,
    Page,
    Part,
    Rows,
    Table,
)
from traceana.report.pages.kernels import DROPPED, _dropped
from traceana.report.pages.single_table import table_of
from traceana.report.result import CommandResult
from traceana.report.terminal import Terminal, render
from traceana.result import Arranged
from traceana.table import ONE_CALL, Column, Kind
from traceana.vocabulary.option_words import (
    CompareBy,
    CriticalBy,
    FlopsBy,
    IdleBy,
    LayersBy,
    MemoryBy,
    TransfersBy,
)

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "traces"
FILES = [
    ROOT / "fixtures" / "alexnet-cpu-ranges.json.gz",
    ROOT / "fixtures" / "alexnet-cpu-nsys-2024.2.sqlite",
    SHARED / "kineto" / "cnn_train_nccl_a100.json.gz",
    SHARED / "kineto" / "timesformer_mi300x.json.gz",
    SHARED / "nsys" / "torch_train_2xh100.schema3.25.sqlite",
    SHARED / "xplane" / "jax_conv_mi300.xplane.pb",
]


def commands(trace: Trace) -> Iterator[tuple[str, Callable[[], CommandResult]]]:
    """Yield every command of one trace with every value of ``by``."""
    yield "report", trace.report
    yield "info", trace.info
    yield "advise", trace.advise
    yield "kernels", trace.kernels
    for name, by in (
        *(("layers", LayersBy), ("flops", FlopsBy)),
        *(("transfers", TransfersBy), ("idle", IdleBy)),
        *(("critical", CriticalBy), ("memory", MemoryBy)),
    ):
        for one in get_args(by):
            yield f"{name} {one}", lambda name=name, one=one: getattr(trace, name)(by=one)  # type: ignore[misc]
    yield "layers direction", lambda: trace.layers(direction=True)
    yield "transfers collectives", lambda: trace.transfers(collectives=True)
    if not trace.is_summary:
        yield "whatif", trace.whatif
        yield (
            "whatif sweep",
            lambda: trace.whatif(["host x 0.5", "host x 0.25..0.75 + host x 1"], sweep=True),
        )
    yield "flops explain", lambda: trace.flops(explain=True)


@pytest.mark.exhaustive(after=2)
@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_screen_is_wider_than_the_terminal(file: Path) -> None:
    if not file.exists():
        pytest.skip("no shared traces")
    wide = []
    for name, command in commands(opened(file)):
        result = command()
        page = result.page(limit=result.screenful)
        for width in (80, 120):
            longest = max(map(cell_len, render(page, Terminal(width)).splitlines()), default=0)
            if longest > width:
                wide.append((name, width, longest))
    assert not wide, wide


@pytest.mark.parametrize("width", [60, 80])
def test_a_remark_that_does_not_fit_is_below_its_heading(width: int) -> None:
    page = Page("report", (Heading("t" * 40, "r" * 25),), Data(Rows(pl.DataFrame())))
    lines = render(page, Terminal(width)).split()
    assert lines == ["t" * 40, "r" * 25]
    assert max(map(len, render(page, Terminal(width)).splitlines())) <= width


def test_facts_end_lines_between_facts() -> None:
    page = Page("report", (Facts((("a", "12345 · 678901 · 2"),)),), Data(Rows(pl.DataFrame())))
    assert render(page, Terminal(15)).splitlines() == ["a  12345", "   678901 · 2"]


def test_no_line_ends_between_a_number_and_its_unit() -> None:
    facts = Facts((("a", "wait for 23.5 % of the peak"),))
    page = Page("report", (facts,), Data(Rows(pl.DataFrame())))
    assert render(page, Terminal(15)).splitlines() == ["a  wait for", "   23.5 % of", "   the peak"]


def test_names_that_differ_in_their_class_alone_keep_it() -> None:
    """Rows of one name, batched or not, were the same: the column went before the mean time."""
    frame = pl.DataFrame(
        {
            "name": ["sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_kernel"] * 2,
            "category": ["gemm"] * 2,
            "algorithm": ["implicit_precomp_gemm"] * 2,
            "direction": ["forward"] * 2,
            "batched": [True, False],
            "time_ns": [2, 1],
        }
    )
    assert _dropped(frame, DROPPED)[-2:] == ("category", "batched")
    alike = _dropped(frame.head(1), DROPPED)
    assert alike.index("batched") < alike.index("waves") < alike.index("category")
    assert _dropped(frame.tail(1), DROPPED)[0] == "batched"
    assert _dropped(frame.with_columns(category=pl.lit("other")), DROPPED)[0] == "category"
    unknown = frame.with_columns(batched=pl.Series([False, None]))
    assert _dropped(unknown, DROPPED).index("batched") == len(DROPPED) - 1


def test_rows_of_one_name_show_how_their_shapes_differ() -> None:
    same = ", ".join(["[122]"] * 20)
    frame = pl.DataFrame(
        {
            "name": ["lookup"] * 3,
            "shapes": [f"[0] {same} [{last}] [] []" for last in (4711, 4712, 815)],
            "time_ns": [3_000, 2_000, 1_000],
        }
    )
    columns = (
        Column("name", Kind.KERNEL),
        Column("shapes", Kind.LONG),
        Column("time_ns", Kind.TIME),
    )
    text = render(Page("kernels", (Table(frame, columns),), Data(Rows(frame))), Terminal(60))
    for last in ("4711", "4712", "815"):
        assert text.count(last) == 1


def test_figures_go_before_names_of_kernels_that_do_not_show_how_they_differ() -> None:
    functions = (
        "PdV_kernel::lambda#2",
        "advec_mom_kernel::lambda#11",
        "advec_mom_kernel::lambda#7",
    )
    frame = pl.DataFrame(
        {
            "name": [f"clover::par_ranged2d_kernel<{function}>" for function in functions],
            "category": ["other"] * 3,
            "time_ns": [3, 2, 1],
            "mean_ns": [3, 2, 1],
        }
    )
    columns = (
        Column("name", Kind.KERNEL),
        Column("category", Kind.CATEGORY, title="class"),
        Column("time_ns", Kind.TIME),
        Column("mean_ns", Kind.TIME, scale=ONE_CALL),
    )
    shown = Arranged(frame, {}, (), 0, {}, columns=columns)
    table = table_of(shown, dropped=("category", "mean_ns"))
    page = Page("kernels", (table,), Data(Rows(frame)))
    lines = render(page, Terminal(52)).splitlines()
    assert "category" not in lines[0]
    assert [line.split("  ")[0] for line in lines[3:-1]] == [
        "clover::par_ranged…PdV_kernel::lambda#2>",
        "clover::par…advec_mom_kernel::lambda#11>",
        "clover::par_…advec_mom_kernel::lambda#7>",
    ]


def test_columns_of_zeros_go_before_columns_with_values() -> None:
    frame = pl.DataFrame(
        {"layer": ["conv"], "forward_ns": [0], "other_ns": [5], "optimizer_ns": [0]}
    )
    totals = {"optimizer_ns": 9, "other_ns": 5, "forward_ns": 3}
    times = (Column(name, Kind.TIME) for name in ("forward_ns", "other_ns", "optimizer_ns"))
    columns = (Column("layer", Kind.PATH), *times)
    hidden = {"optimizer_ns": 9, "forward_ns": 3}
    shown = Arranged(frame, totals, (), 1, hidden, columns=columns)
    table = table_of(shown, dropped=("other_ns", "optimizer_ns"))
    assert [one.name for one in table.columns] == [*frame.columns]
    # The forward time is what was asked for: it stays, though the rows on the screen have none.
    assert table.dropped == ("optimizer_ns", "other_ns", "optimizer_ns")


def test_the_title_of_a_group_is_whole_where_there_is_room() -> None:
    frame = pl.DataFrame({"name": ["k"], "1": [1], "2": [2]})
    columns = (
        Column("name", Kind.TEXT),
        Column("1", Kind.COUNT, title="calls", group="1 a long label"),
        Column("2", Kind.COUNT, title="calls", group="2 a long label"),
    )
    page = Page("compare", (Table(frame, columns),), Data(Rows(frame)))
    assert "1 a long label" in render(page, Terminal(80))
    assert max(map(len, render(page, Terminal(20)).splitlines())) <= 20


@pytest.mark.exhaustive(after=1)
@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 120])
def test_two_runs_fit_too(width: int) -> None:
    trace = opened(FILES[0])
    both = {"first run": trace, "b": trace}
    results = [traceana.diff(trace, trace, by=by) for by in (None, *VIEWS)]
    results += [traceana.compare(both, by=by) for by in get_args(CompareBy)]
    for result in results:
        text = render(result.page(limit=20), Terminal(width))
        assert max(map(len, text.splitlines())) <= width, text


def brief(*findings: Finding) -> Page:
    return Page("report", (Findings(findings, brief=True),), Data(Rows(pl.DataFrame())))


def test_an_effect_that_does_not_fit_beside_its_title_is_below_it() -> None:
    gain = "8.093 → 7.731 ms (6.912\u20139.041) · gain uncertain"
    page = brief(Finding("slow bias and activation kernels", gain, "a"), Finding("b", "≈ 1 ms", ""))
    lines = render(page, Terminal(80)).splitlines()
    assert lines[0] == "1. slow bias and activation kernels  8.093 → 7.731 ms (6.912\u20139.041)"
    assert lines[1] == f"{'':37}gain uncertain"
    assert lines[3] == f"2. b{'':33}≈ 1 ms"
    narrow = render(page, Terminal(40)).splitlines()
    assert narrow[:2] == [
        "1. slow bias and activation kernels",
        "   8.093 → 7.731 ms (6.912\u20139.041)",
    ]
    assert max(map(cell_len, narrow)) <= 40


def test_a_change_is_wrapped_and_not_cut() -> None:
    change = (
        "change: torch.set_float32_matmul_precision('high') and torch.backends.cudnn.allow_tf32"
    )
    page = brief(Finding("a", "b", "c", parts=(Part(1, "", f"{change} = True; another"),)))
    for width in (30, 60, 80, 120):
        lines = render(page, Terminal(width)).splitlines()
        assert max(map(cell_len, lines)) <= width
        text = " ".join(line.strip() for line in lines[2:]) if width > 30 else "".join(lines)
        assert "…" not in text
        assert width == 30 or text.startswith(f"{change} = True")
        assert ("another" in text) == (width == 120)


def test_120_columns_show_how_grids_fill_the_device() -> None:
    b = TraceBuilder(framework="PyTorch")
    device = {"vendor": "NVIDIA", "compute_capability": "9.0", "multiprocessors": 132}
    b.row("devices", device=0, name="H100", **device)
    block = {"block_x": 128, "block_y": 1, "block_z": 1, "registers": 32, "shared_memory": 0}
    for at, direction in enumerate(("forward", "dgrad", "wgrad")):
        name = f"sm80_xmma_{direction}_implicit_gemm_{'f32' * 12}_kernel__5x_cudnn"
        b.name(name, category="conv", algorithm="implicit_precomp_gemm", direction=direction)
        for call in range(4):
            grid = {"grid_x": 100 + call, "grid_y": 1, "grid_z": 1}
            b.kernel(name, (4 * at + call) * 10_000_000, 9_000_000 + call, **grid, **block)
    text = render(b.build().kernels().page(), Terminal(120))
    for title in ("algorithm", "occupancy", "waves", "tail"):
        assert title in text
    assert max(map(cell_len, text.splitlines())) <= 120

"""Pictures of analyses, for HTML: what is on which axis."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.timeline import in_brief
from traceana.columns.intervals import PER_DEVICE
from traceana.report import display_names, numbers
from traceana.report.cells import texts
from traceana.report.charts.colours import CLASS_COLOURS, EVENT_COLOURS, PALETTE
from traceana.report.page import Axis, Block, Chart, Icicle, Marks, Notes, Strip, Timeline
from traceana.table import Column, Kind
from traceana.timeline.idle_gaps import CAUSES
from traceana.trace.schema import CPU_DEVICE

if TYPE_CHECKING:
    from traceana.advise import Advice
    from traceana.analyze.per_step import Basis
    from traceana.analyze.timeline import Window
    from traceana.flops.peaks import Peaks

_MOST_POINTS: Final = 2_000
_MOST_STEPS: Final = 200
"""Bars of steps."""
_LEAST_SHARE: Final = 0.001
"""Share of the time of all rows: a point below it would only stretch the axes."""
_LEAST_INTENSITY: Final = 0.01
"""FLOP/B: a point below it computes next to nothing and would only stretch the axes."""


_WALL: Final = "wall time"
_WORK: Final = {
    **{"kernels": PALETTE[0], "work": PALETTE[0]},
    "exposed collectives": CLASS_COLOURS["collective"],
    "exposed copies": CLASS_COLOURS["memcpy"],
    _WALL: CLASS_COLOURS["other"],
}


def step_bars(steps: pl.DataFrame, parts: pl.DataFrame, ranks: pl.DataFrame) -> list[Chart]:
    """Return the time of each step: its kernels, exposed collectives and copies, and idle time.

    ``steps`` come from ``report``, ``parts`` from :func:`traceana.analyze.devices.step_parts`;
    several devices are shown as their mean. ``ranks`` has the ``rank`` of each ``process`` with
    exactly one.
    """
    named = _named_steps(steps, ranks).head(_MOST_STEPS)
    # Of steps without recorded work on a device, the wall time is known.
    whole = steps.select(pl.int_range(pl.len()).alias("step"), "wall_ns")
    alone = whole.join(parts, on="step", how="anti").select(
        "step",
        pl.lit(None, pl.Int32).alias("rank"),
        pl.lit(None, pl.Int32).alias("device"),
        pl.lit(_WALL).alias("part"),
        pl.col("wall_ns").alias("time_ns"),
    )
    parts = pl.concat([parts.cast({"step": pl.Int64}), alone])
    order = {name: at for at, name in enumerate((*_WORK, *CAUSES))}
    idle = {cause: f"idle: {display_names.part(cause)}" for cause in CAUSES}
    drawn = parts.join(named, left_on="step", right_on="row")
    # Where several processes share a name, a step is a mean, as with several devices.
    devices = drawn.select("name", "step", *PER_DEVICE).unique().group_by("name").len("devices")
    frame = (
        drawn.group_by("name", "part")
        .agg(pl.col("time_ns").sum(), pl.col("at").min())
        .join(devices, on="name")
        .with_columns(pl.col("time_ns") // pl.col("devices"))
        .sort("at", pl.col("part").replace_strict(order))
        .with_columns(pl.col("part").replace(idle))
    )
    if frame.is_empty():
        return []
    colours = _WORK | {idle[cause]: EVENT_COLOURS["idle"][cause] for cause in CAUSES}
    rest = steps.height - named.height
    several = devices["devices"].max() != 1
    return [
        Chart(
            f"Step time by part{', mean of the devices' if several else ''}"
            + (f" (first {named.height} of {steps.height} steps)" if rest else ""),
            f"{numbers.counted(named.height, 'step')}: time of kernels, of exposed collectives and "
            "copies, and idle time by cause.",
            Axis("" if steps["process"].n_unique() > 1 else "step", Kind.TEXT),
            Axis("time", Kind.TIME),
            (Marks(frame, "bar", "name", "time_ns", colour="part"),),
            height=170,
            colours=colours,
        )
    ]


def _named_steps(steps: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Return the ``name`` of each row of ``steps`` (``row``), in the order of a chart (``at``)."""
    number = pl.col("step").cast(pl.String)
    steps = steps.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    if steps["process"].n_unique() > 1:
        steps = steps.join(ranks, on="process", how="left").sort("step", "rank", "process")
        of = pl.coalesce(pl.format("rank {}", "rank"), pl.format("process {}", "process"))
        number = of if steps["step"].n_unique() == 1 else pl.format("{}, step {}", of, "step")
    warm_up = pl.when("warm_up").then(pl.lit(" (warm-up)")).otherwise(pl.lit(""))
    return steps.select("row", (number + warm_up).alias("name")).with_row_index("at")


def layer_icicle(tree: pl.DataFrame, basis: Basis | None = None) -> list[Icicle]:
    """Return the tree of layers; empty without layers, where all rows are outside of them.

    Its times are sums over a trace, or over the measured steps of ``basis``.
    """
    if tree["label"].str.starts_with("(").filter(tree["parent"] == 0).all():
        return []
    label = pl.struct("label", "category", "calls").map_elements(_node_label, pl.String)
    whole, per = tree["time_ns"].item(0), "" if basis is None else f" {basis.per}"
    steps = 1 if basis is None else basis.steps
    shown = tree.with_columns((pl.col("time_ns") / whole).alias("share"), label.alias("label"))
    return [
        Icicle(
            "Layers by time, coloured by the class with most time",
            f"{numbers.counted(tree.height - 1, 'node')} of the layer tree; widths are times, the "
            f"whole is {numbers.duration(whole // steps)}{per}.",
            shown,
            (
                Column("time_ns", Kind.TIME),
                Column("share", Kind.SHARE),
                Column("calls", Kind.COUNT),
                Column("category", Kind.CATEGORY, title="class"),
            ),
            steps,
        )
    ]


def _node_label(row: dict[str, str]) -> str:
    """Return the label of a node; a pass with a category gets the category's display name."""
    words = row["label"].split(" ")
    if words[-1] == row["category"]:
        return " ".join((*words[:-1], display_names.category(words[-1])))
    return row["label"]


def step_timeline(windows: tuple[Window, ...], steps: int) -> list[Timeline]:
    """Return the timeline of ``windows``, of a trace with ``steps`` steps; empty without any."""
    if not windows:
        return []
    # The first window is of the median step; the title has the steps in their order.
    drawn = sorted(window.step for window in windows if window.step is not None)
    listed = ", ".join(map(str, drawn))
    title = "Timeline of the capture"
    if listed:
        title = f"Timeline of step{'s' * (len(windows) > 1)} {listed}"
        if len(windows) < steps:
            title += " (other steps: traceana report --step N)"
    events = sum(window.events.height for window in windows)
    return [
        Timeline(
            title,
            f"{numbers.counted(events, 'event')} on tracks over time. Arrow keys select events, "
            "W and S zoom, A and D move, Escape ends the selection.",
            windows,
        )
    ]


def step_strip(windows: tuple[Window, ...]) -> list[Strip]:
    """Return the main tracks of the first of ``windows``, the median step; empty without any."""
    if not windows:
        return []
    window = in_brief(windows[0])
    title = "The capture in brief" if window.step is None else f"Step {window.step}, the median one"
    events = numbers.counted(window.events.height, "event")
    return [Strip(title, f"{events} on the main tracks over time.", (window,))]


_LOOKED_UP: Final = (
    Column("type", Kind.TEXT),
    Column("time_ns", Kind.TIME),
    Column("share", Kind.SHARE),
    Column("flops", Kind.FLOPS),
    Column("of_peak", Kind.SHARE),
    Column("bound", Kind.TEXT),
)
"""Columns in the tooltip of a point of a roofline."""


def roofline_chart(
    rows: pl.DataFrame, label: str, peaks: Peaks | None, by: str, notes: Sequence[tuple[str, str]]
) -> list[Block]:
    """Return arithmetic intensity and FLOP/s of ``rows`` below the ceilings of ``peaks``.

    ``rows`` have ``arithmetic_intensity``, ``flops_per_s``, ``flops``, ``time_ns`` and
    ``category``; ``by`` names the items of the rows. Below the chart are the ``notes``, and the
    number of rows left out, with their share of time and FLOPs. Empty without a known rate.
    """
    explained = _with_reasons(rows)
    plotted = explained.filter(pl.col("why").is_null())
    if plotted.is_empty():
        return []
    classes = texts(Kind.CATEGORY, plotted["category"].fill_null("other"))
    points = plotted.with_columns(pl.Series("category", classes, pl.String))
    intensities = plotted["arithmetic_intensity"].to_list()
    roof, labels = _ceilings(peaks, min(intensities), max(intensities))
    title = f"FLOP/s and arithmetic intensity by {by}"
    if peaks is not None and roof:
        title = f"Roofline by {by}, peaks of {peaks.name}"
    chart = Chart(
        title,
        f"{title}: {numbers.counted(plotted.height, 'point')}.",
        Axis("arithmetic intensity (FLOP/B)", Kind.INTENSITY, log=True),
        Axis("rate", Kind.FLOP_RATE, log=True),
        (
            *roof,
            Marks(
                points,
                "point",
                "arithmetic_intensity",
                "flops_per_s",
                colour="category",
                label=label,
                size="time_ns",
                shown=tuple(column for column in _LOOKED_UP if column.name in points.columns),
            ),
            # Above the points, which would hide them.
            *labels,
        ),
        height=380,
    )
    shown = (*_left_out(explained), *notes)
    return [chart, *([Notes(shown)] if shown else [])]


def _with_reasons(rows: pl.DataFrame) -> pl.DataFrame:
    """Return ``rows`` with the reason ``why`` each is left out of a roofline, null for points."""
    intensity, time, flops = (pl.col(name) for name in ("arithmetic_intensity", "time_ns", "flops"))
    least = f"{_LEAST_SHARE:.1%}".replace("%", " %")
    small = (time < _LEAST_SHARE * time.sum()) & (flops < _LEAST_SHARE * flops.sum())
    unknown = {
        "without a FLOP rate": ~(pl.col("flops_per_s") > 0).fill_null(False),
        "with unknown bytes": ~(intensity > 0).fill_null(False),
    }
    little = {
        f"below {least} of time and of FLOPs": small,
        f"below {_LEAST_INTENSITY} FLOP/B": intensity < _LEAST_INTENSITY,
    }
    for reasons in ({**unknown, **little}, unknown):
        explained = rows.with_columns(
            pl.coalesce(
                *(pl.when(which).then(pl.lit(reason)) for reason, which in reasons.items())
            ).alias("why")
        )
        # Points that are all of little work are drawn.
        if explained["why"].null_count():
            break
    beyond = pl.col("why").is_null() & (pl.col("why").is_null().cum_sum() > _MOST_POINTS)
    return explained.with_columns(
        pl.when(beyond).then(pl.lit(f"beyond {_MOST_POINTS:,}")).otherwise("why").alias("why")
    )


def _left_out(rows: pl.DataFrame) -> list[tuple[str, str]]:
    """Return a note on the ``rows`` with a reason ``why``: number, part of time and of FLOPs."""
    time, flops = (max(int(rows[name].sum()), 1) for name in ("time_ns", "flops"))
    lines = [
        f"{count:,} {why} ({numbers.share(of_time / time)} of time, "
        f"{numbers.share(of_flops / flops)} of FLOPs)"
        for why, count, of_time, of_flops in rows.drop_nulls("why")
        .group_by("why", maintain_order=True)
        .agg(pl.len(), pl.col("time_ns").sum(), pl.col("flops").sum().alias("of_flops"))
        .sort("len", descending=True, maintain_order=True)
        .iter_rows()
    ]
    return [("rows not drawn", "; ".join(lines))] if lines else []


def _ceilings(peaks: Peaks | None, low: float, high: float) -> tuple[list[Marks], list[Marks]]:
    """Return a line per peak rate of the device, from its memory's slope on if that is known, and
    the names of the lines.
    """
    if peaks is None or not peaks.flops:
        return [], []
    rows = []
    bandwidth = peaks.bandwidth or inf
    ridges = [rate / bandwidth for rate in peaks.flops.values()]
    left, right = min(low, *(ridge or low for ridge in ridges)) / 2, 2 * max(high, *ridges)
    for name, rate in peaks.flops.items():
        ridge = rate / bandwidth
        precision, _, unit = name.partition("_")
        if peaks.name.startswith(("Instinct", "Radeon")):
            unit = unit.replace("tensor", "matrix")
        label = f"{display_names.part(precision)} {unit.replace('_', ' ')}".strip()
        for intensity in sorted({left, ridge or low, right}):
            rows.append((label, intensity, min(rate, intensity * bandwidth)))
    frame = pl.DataFrame(rows, schema=["peak", "intensity", "rate"], orient="row")
    line, names = dashed_lines(frame, "intensity", "rate", "peak")
    return [line], [names]


def dashed_lines(
    frame: pl.DataFrame, x: str, y: str, name: str, line: str = ""
) -> tuple[Marks, Marks]:
    """Return the dashed lines of ``frame``, and their names, joined where lines end in one point.

    Lines are told apart by the column ``line``, by default by their ``name``.
    """
    ends = frame.group_by(line or name, maintain_order=True).last()
    names = ends.group_by(x, y, maintain_order=True).agg(
        pl.col(name).unique(maintain_order=True).str.join(", ")
    )
    return Marks(frame, "rule", x, y, colour=line or name), Marks(names, "text", x, y, label=name)


def bandwidths(sizes: pl.DataFrame) -> list[Chart]:
    """Return the bandwidth of copies by their size (``transfers --by size``); empty without any.

    Dashed lines are the peaks of the links that the copies went over.
    """
    sized = sizes.filter((pl.col("size") > 0) & (pl.col("bytes_per_s") > 0))
    if sized.is_empty():
        return []
    memory = pl.col("host_memory").cast(pl.String).replace("unknown", None)
    points = sized.with_columns(
        kind=pl.concat_str("direction", memory, separator=" ", ignore_nulls=True)
    )
    # The lines reach beyond the copies, so that copies of a single size have a line too.
    ends = sized.select(pl.concat_list(pl.col("size").min() / 2, pl.col("size").max() * 2.0))
    links = (
        sized.select(pl.format("peak of {}", "link"), "peak_bytes_per_s")
        .drop_nulls()
        .unique()
        .sort("link")
        .join(ends.explode("size"), how="cross")
    )
    lines, names = dashed_lines(links, "size", "peak_bytes_per_s", "link")
    looked_up = (
        Column("count", Kind.COUNT),
        Column("time_ns", Kind.TIME),
        Column("exposed_ns", Kind.TIME),
    )
    shown = tuple(column for column in looked_up if column.name in points.columns)
    marks = Marks(
        points, "point", "size", "bytes_per_s", colour="kind", size="time_ns", shown=shown
    )
    return [
        Chart(
            "Bandwidth by size of the copy",
            "Achieved bandwidth of copies, those of similar size together.",
            Axis("bytes per copy", Kind.BYTES, log=True),
            Axis("bandwidth", Kind.RATE, log=True),
            (lines, names, marks) if links.height else (marks,),
            height=260,
        )
    ]


def memory_over_time(slices: pl.DataFrame) -> list[Chart]:
    """Return the allocated memory of each device over time (``memory --by time``)."""
    if "allocated_bytes" not in slices.columns or slices.is_empty():
        return []
    cpu = pl.when(pl.col("device") == CPU_DEVICE).then(pl.lit("CPU"))
    device = cpu.otherwise(pl.format("GPU {}", "device"))
    named = slices.with_columns(
        of=pl.concat_str(pl.format("rank {}", "rank"), device, separator=", ", ignore_nulls=True)
    )
    return [
        Chart(
            "Allocated memory over time, the maximum of each of 40 slices",
            "Allocated memory of each device, the largest value of each slice of time.",
            Axis("time since the first event", Kind.TIME),
            Axis("allocated, maximum of the slice", Kind.BYTES),
            (Marks(named, "step", "start_ns", "allocated_bytes", colour="of"),),
            height=240,
        )
    ]


_PLAN_COLOURS: Final = {"step": "#0072b2", "saved": "#009e73", "gain uncertain": "#9aa0a6"}


def plan_bars(advice: Advice) -> list[Chart]:
    """Return the median step before the plan and what each change of it saves; empty without."""
    if not advice.plan:
        return []
    titles = {finding.rule.id: finding.rule.title for finding in advice.findings}
    first, last = advice.plan[0], advice.plan[-1]
    bars: list[tuple[str, int, int, str, int | None, int | None]]
    bars = [("step", 0, first.from_ns, "step", None, None)]
    bars += [
        (
            titles[stage.rule],
            stage.from_ns,
            stage.step_ns,
            "saved" if stage.certain else "gain uncertain",
            stage.low_ns,
            stage.high_ns,
        )
        for stage in advice.plan
    ]
    bars.append(("after all", 0, last.step_ns, "step", last.low_ns, last.high_ns))
    columns = ["change", "from_ns", "step_ns", "is", "low_ns", "high_ns"]
    frame = pl.DataFrame(bars, schema=columns, orient="row", infer_schema_length=None)
    return [
        Chart(
            "Step time by the plan",
            "; ".join(
                f"{titles[stage.rule]} {numbers.arrow(stage.from_ns, stage.step_ns)}"
                for stage in advice.plan
            ),
            Axis("", Kind.TEXT),
            Axis("median step", Kind.TIME),
            (
                Marks(
                    frame,
                    "bar",
                    "change",
                    "from_ns",
                    y_end="step_ns",
                    colour="is",
                    label="change",
                    shown=(
                        Column("low_ns", Kind.TIME, title="from"),
                        Column("high_ns", Kind.TIME, title="to"),
                    ),
                ),
            ),
            height=130,
            colours=_PLAN_COLOURS,
        )
    ]

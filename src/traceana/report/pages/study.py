"""``study``: a published study with the user's runs, and the published values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec
import polars as pl
from msgspec.structs import replace

from traceana.report import display_names
from traceana.report.columns import has_values, kind_of, scale_of, title_of
from traceana.report.page import Block, Column, Facts, Heading, Hidden, Page, Table
from traceana.report.pages.single_table import columns_of, data_of, notes_of
from traceana.report.panels import (
    Axis,
    Bars,
    Failure,
    Line,
    Panel,
    Panels,
    bytes_axis,
    flops_axis,
    summed,
    time_axis,
)
from traceana.report.result import CommandResult
from traceana.report.text import plain
from traceana.result import Arranged, arrange
from traceana.study import Name
from traceana.study.step_times import FITTED, MODELS, SERIES, STRONG
from traceana.study.study import Study
from traceana.study.timed_convolutions import DIRECTIONS


class Layout(msgspec.Struct, frozen=True):
    """The columns of a table with one row per run, or, with ``figures``, one row per item.

    With ``figures``, ``columns`` identify the item, and each figure has one column per run.
    """

    columns: tuple[str, ...]
    dropped: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    titles: Mapping[str, str] = msgspec.field(default_factory=lambda: {"direction": "pass"})


LAYOUTS: Final[Mapping[Name, Layout]] = {
    Name.BATCH: Layout(
        ("network", "run", "batch", "image_ns", "low_ns", "high_ns", "images_per_s", "step_ns",
         "steps", "timed", "status", "source"),
        ("timed", "step_ns", "steps", "source"),
    ),
    Name.RATIO: Layout(
        ("network", "batch", "device_kind", "run", "relative_speed", "images_per_s", "step_ns",
         "timed",
         "status", "reference", "source"),
        ("timed", "device_kind", "step_ns", "source"),
    ),
    Name.SCALING: Layout(
        ("network", "run", "scaling", "batch", "devices", "step_ns", "linear_ns",
         "logarithmic_ns", "images_per_s", "speedup", "efficiency", "communication_share",
         "exposed_share", "reduced_bytes", "of_parameters", "status", "source"),
        ("images_per_s", "exposed_share", "efficiency", "scaling", "linear_ns", "logarithmic_ns",
         "source"),
    ),
    Name.FRAMEWORKS: Layout(
        ("network", "layer", "type"),
        ("type", "other_ns", "optimizer_ns"),
        figures=("forward_ns", "backward_ns", "optimizer_ns", "other_ns", "time_ns"),
    ),
    Name.EPILOGUES: Layout(
        ("network", "operation", "direction"), figures=("time_ns", "library", "how", "calls"),
    ),
    Name.SGEMM: Layout(
        ("network", "gemm", "form"),
        ("mean_ns", "library"),
        figures=("time_ns", "calls", "mean_ns", "library"),
    ),
    Name.TRANSFERS: Layout(
        ("network", "direction"),
        figures=("count", "bytes", "bytes_per_s", "time_ns", "host_memory"),
        titles={"count": "calls"},
    ),
    Name.ALGORITHMS: Layout(
        ("network", "run", "direction", "batch", "algorithm", "time_ns", "low_ns", "high_ns",
         "fastest_ns", "workspace_bytes", "layers", "of_layers", "trials", "of_trials", "calls",
         "source"),
        ("calls", "fastest_ns", "source"),
    ),
    Name.LAYERWISE: Layout(
        ("network", "run", "batch", "layer", "direction", "algorithm", "time_ns",
         "executed_flops", "direct_flops", "workspace_bytes", "status", "source"),
        ("workspace_bytes", "direct_flops", "source"),
    ),
}  # fmt: skip

SECTIONS: Final[Mapping[str, str]] = {
    "models": "Models of the step time, fitted by least squares",
    "switches": "Batch sizes at which the algorithm changes",
}
"""The titles of the further tables of studies."""

RUN: Final = "run"
SOURCE: Final = "source"
_IN_HEADING: Final = "network"
"""A column with a single value is shown above the table."""
_STATUS: Final = "status"
LONGEST_TITLE: Final = 20
"""If a run's label is longer, the columns have the runs' numbers."""
SPARSE: Final = 0.5
"""If a smaller part of the cells of runs side by side has values, runs are listed in rows."""


def study(found: Study) -> CommandResult:
    """Return the rows of a study; its page has the runs side by side."""

    return CommandResult.of(
        found.result,
        partial(_page, found),
        screenful=40,
        pictures=lambda: [picture_of(found)] if found.result.frame.height else [],
        filterable=False,
    )


def _page(found: Study, shown: Arranged) -> Page:
    layout = LAYOUTS[found.name]
    frame = arrange(found.result, sort=shown.sort).frame
    blocks: list[Block] = [Heading(found.title)]
    if found.conditions:
        blocks.append(Facts(tuple(("", line) for line in found.conditions)))
    own = frame.filter(pl.col(SOURCE).is_null()) if SOURCE in frame.columns else frame
    if own.height:
        blocks += [_limited(one, shown.limit) for one in _own(own, layout)]
    blocks += _printed(frame, layout)
    for name, result in found.sections.items():
        blocks += [
            Heading(SECTIONS[name]),
            _table(result.frame, result.frame.columns, layout.titles),
        ]
    source = {
        "study": found.name.value,
        "title": found.title,
        "conditions": list(found.conditions),
        "missing": list(found.missing),
    }
    notes = notes_of((*shown.notes, *found.missing))
    return Page("study", (*blocks, *notes), data_of(shown, source, found.sections))


def _limited(block: Block, limit: int | None) -> Block:
    """Return a table with its first ``limit`` rows; other blocks as they are."""
    if not isinstance(block, Table) or limit is None or block.frame.height <= limit:
        return block
    return replace(block, frame=block.frame.head(limit), hidden=Hidden(block.frame.height - limit))


def _own(own: pl.DataFrame, layout: Layout) -> list[Block]:
    known = [column for column in layout.columns if column in own.columns]
    if own[_IN_HEADING].n_unique() == 1 and own[_IN_HEADING][0] is not None:
        known.remove(_IN_HEADING)
    if _STATUS in known and (own[_STATUS] == "ok").all():
        known.remove(_STATUS)
    if not layout.figures:
        single = (RUN,) if own[RUN].n_unique() == 1 else ()
        return [replace(_table(own, known, layout.titles), dropped=(*layout.dropped, *single))]
    items = own.select(known).unique(keep="first", maintain_order=True)
    if own.height < SPARSE * items.height * own[RUN].n_unique():
        rows = own.join(
            items.with_row_index("_item"), on=known, nulls_equal=True, maintain_order="left"
        ).sort("_item", maintain_order=True)
        columns = [*known, RUN, *layout.figures]
        return [replace(_table(rows, columns, layout.titles), dropped=layout.dropped)]
    runs = own[RUN].unique(maintain_order=True).to_list()
    if max(map(len, runs)) <= LONGEST_TITLE:
        return [_side_by_side(own, known, layout, {run: run for run in runs})]
    numbered = {run: f"run {number}" for number, run in enumerate(runs, start=1)}
    legend = Facts(tuple((title, run) for run, title in numbered.items()))
    return [legend, _side_by_side(own, known, layout, numbered)]


def _side_by_side(
    own: pl.DataFrame, keys: list[str], layout: Layout, titles: Mapping[str, str]
) -> Table:
    """Return one row per item and one column per run and figure, grouped by figure.

    ``titles`` has the title of each run's columns.
    """
    wide = own.select(keys).unique(keep="first", maintain_order=True)
    columns = list(columns_of(wide, keys, titles=layout.titles))
    for figure in layout.figures:
        if not has_values(own[figure]):
            continue
        for run, run_title in titles.items():
            name = f"{run} {figure}"
            rows = own.filter(pl.col(RUN) == run).group_by(keys, maintain_order=True)
            value = pl.col(figure).drop_nulls()
            one = value.sum() if own.schema[figure].is_integer() else value.first()
            some = rows.agg(pl.when(value.len() > 0).then(one).alias(name))
            wide = wide.join(some, on=keys, how="left", nulls_equal=True, maintain_order="left")
            if wide[name].null_count() < wide.height:
                title = layout.titles.get(figure, title_of(figure))
                columns.append(
                    Column(name, run_title, kind_of(figure), scale_of(figure) or figure, title)
                )
    return Table(wide, tuple(columns), dropped=layout.dropped)


def _printed(frame: pl.DataFrame, layout: Layout) -> list[Block]:
    """Return the published values by source, with one row per run and item."""
    if SOURCE not in frame.columns:
        return []
    columns = [RUN, *(name for name in (*layout.columns, *layout.figures) if name != RUN)]
    published = frame.filter(pl.col(SOURCE).is_not_null())
    blocks: list[Block] = []
    for (source,), rows in published.group_by(SOURCE, maintain_order=True):
        shown = [name for name in columns if name != SOURCE]
        blocks += [
            Heading(str(source)),
            replace(_table(rows, shown, layout.titles), dropped=layout.dropped),
        ]
    return blocks


def _table(frame: pl.DataFrame, columns: list[str], titles: Mapping[str, str]) -> Table:
    return Table(frame, columns_of(frame, columns, titles=titles))


_DIRECTION_TITLES: Final = {
    "fprop": "forward",
    None: "unknown pass",
}
_BATCH: Final = Axis("batch size", log=2)

_UNNAMED = "unnamed network"
_MOST: Final = 30
"""Maximum number of items in a picture."""
_ITEMS: Final[Mapping[Name, tuple[str, ...]]] = {
    Name.FRAMEWORKS: ("layer",),
    Name.EPILOGUES: ("operation", "direction"),
    Name.SGEMM: ("gemm", "form"),
    Name.TRANSFERS: ("direction", "host_memory"),
}
_PANELS: Final[Mapping[Name, Mapping[str, str]]] = {
    Name.FRAMEWORKS: {"forward_ns": "forward", "backward_ns": "backward"},
    Name.EPILOGUES: {"time_ns": ""},
    Name.SGEMM: {"time_ns": "time", "calls": "calls"},
    Name.TRANSFERS: {"bytes": "bytes", "bytes_per_s": "bandwidth", "time_ns": "time"},
}
_IDEAL = "ideal"
_DASHES = dict(zip(FITTED, ("--", "-."), strict=True))


def picture_of(study: Study) -> Panels:
    """Return the picture of ``study``, which has rows."""
    match study.name:
        case Name.BATCH:
            return batch_picture(study)
        case Name.RATIO:
            return ratio_picture(study)
        case Name.SCALING:
            return scaling_picture(study)
        case Name.ALGORITHMS:
            return algorithms_picture(study)
        case Name.LAYERWISE:
            return layerwise_picture(study)
        case _:
            return items_picture(study)


def algorithms_picture(study: Study) -> Panels:
    """Return time and workspace of each algorithm by batch, with one column per direction.

    Times of timed algorithms are sums over the layers on which all of them ran at that batch: sums
    over other layers do not compare. Without a recorded batch the times are bars.
    """
    frame = study.result.frame.filter(pl.col("batch").is_not_null())
    if frame.is_empty():
        return _without_batch(study)
    timed = pl.col("layers").is_not_null()
    frame = frame.with_columns(
        pl.when(timed).then("common_ns").otherwise("time_ns").alias("time_ns")
    )
    conditions = list(study.conditions)
    if (frame["common_layers"] < frame["of_layers"]).any():
        conditions.append("times: sums over the layers on which all algorithms ran")
    several = frame["run"].n_unique() > 1
    time, time_unit = time_axis("time", frame["time_ns"], log=10)
    held = frame.filter(pl.col("workspace_bytes") > 0)
    size, size_unit = bytes_axis("workspace", held["workspace_bytes"], log=10)
    times, sizes = [], []
    for direction, own in _by_direction(frame):
        title = _DIRECTION_TITLES.get(direction, str(direction))
        times.append(Panel(title, _BATCH, time, _lines(own, "time_ns", time_unit, several)))
        own = own.filter(pl.col("workspace_bytes") > 0)
        lines = _lines(own, "workspace_bytes", size_unit, several)
        sizes.append(Panel(f"{title}: workspace", _BATCH, size, lines))
    panels = times if held.is_empty() else [*times, *sizes]
    return Panels(study.title, conditions, panels, min(3, len(times)), share="row")


def _without_batch(study: Study) -> Panels:
    frame = study.result.frame.with_columns(
        pl.col("algorithm").fill_null("unknown").alias("layer"), pl.col("run").alias("_s")
    )
    rows = frame["layer"].unique(maintain_order=True).to_list()
    panels = _timed(frame, rows, [display_names.part(row) for row in rows])
    return Panels("Time of convolution algorithms", study.conditions, panels, 3, share="all")


def layerwise_picture(study: Study) -> Panels:
    """Return time by direction and forward FLOPs of each layer, at the largest batch."""
    whole = study.result.frame
    batch = whole["batch"].max()
    frame = whole if batch is None else whole.filter(pl.col("batch") == batch)
    several = frame["run"].n_unique() > 1
    known = frame["algorithm"].drop_nulls().unique()
    called = pl.col("algorithm").replace({name: display_names.part(name) for name in known})
    frame = frame.with_columns(
        pl.when(pl.lit(not several))
        .then(called)
        .when(pl.col("algorithm") == "unknown")
        .then("run")
        .otherwise(pl.format("{}, {}", "run", called))
        .alias("_s")
    )
    rows = frame["layer"].unique(maintain_order=True).to_list()
    panels = _timed(frame, rows, rows)
    forward = frame.filter(
        pl.col("direction").is_in(["fprop", "forward"]), pl.col("status") == "ok"
    )
    if forward["executed_flops"].is_not_null().any():
        axis, unit = flops_axis("executed FLOPs", forward["executed_flops"])
        bars = summed(forward, "_s", "layer", rows, "executed_flops", unit)
        panels.append(Panel("forward: executed FLOPs", axis, rows=rows, bars=bars))
    title = study.title if batch is None else f"{study.title}, batch {batch!s}"
    return Panels(title, study.conditions, panels, min(2, len(panels)), share="all")


def _timed(frame: pl.DataFrame, rows: list[str], names: list[str]) -> list[Panel]:
    """Return bars of the times of ``rows``, with titles ``names`` and one panel per direction."""
    time, unit = time_axis("time", frame["time_ns"])
    return [
        Panel(
            _DIRECTION_TITLES.get(direction, str(direction)),
            time,
            rows=names,
            bars=summed(own, "_s", "layer", rows, "time_ns", unit),
        )
        for direction, own in _by_direction(frame)
    ]


def _by_direction(frame: pl.DataFrame) -> list[tuple[str | None, pl.DataFrame]]:
    found = frame.partition_by("direction", as_dict=True, maintain_order=True)
    known = [(one, found.pop((one,))) for one in DIRECTIONS if (one,) in found]
    return [*known, *((one, rows) for (one,), rows in found.items())]


def _lines(frame: pl.DataFrame, column: str, unit: int, several: bool) -> list[Line]:
    lines = []
    for (run, algorithm), own in frame.group_by("run", "algorithm", maintain_order=True):
        rows = own.drop_nulls(column).sort("batch")
        label = display_names.part(str(algorithm or "unknown"))
        label = f"{run}, {label}" if several else label
        if column == "workspace_bytes" and (own["layers"] < own["of_layers"]).any():
            label += " (not on all layers)"
        lines.append(Line(label, rows["batch"].to_list(), (rows[column] / unit).to_list()))
    return lines


def batch_picture(study: Study) -> Panels:
    """Return the lines of ``study`` over the batch, with the interquartile range shaded.

    A failed run is a cross at its batch.
    """
    frame = study.result.frame.filter(pl.col("batch").is_not_null())
    y, unit = time_axis("time per image", frame["image_ns"], log=10)
    panels = [
        Panel(
            str(network or _UNNAMED),
            Axis("batch size", log=2),
            y,
            lines=[_line(str(run), rows, unit) for (run,), rows in _by_run(of_network)],
        )
        for (network,), of_network in frame.group_by("network", maintain_order=True)
    ]
    conditions = (
        [*study.conditions, "shaded: interquartile range of the steps"]
        if _spread(frame)
        else [*study.conditions]
    )
    return Panels(f"{study.title}, training", conditions, panels)


def _by_run(frame: pl.DataFrame) -> list[tuple[tuple[object, ...], pl.DataFrame]]:
    return list(frame.group_by("run", maintain_order=True))


def _spread(frame: pl.DataFrame) -> bool:
    return bool(frame["low_ns"].is_not_null().any())


def _line(run: str, rows: pl.DataFrame, unit: int) -> Line:
    ran = rows.filter(pl.col("image_ns").is_not_null()).sort("batch")
    failed = rows.filter(pl.col("status") != "ok").select("batch", "status")
    low, high = (
        None if ran[name].null_count() or ran.is_empty() else (ran[name] / unit).to_list()
        for name in ("low_ns", "high_ns")
    )
    return Line(
        run,
        ran["batch"].to_list(),
        (ran["image_ns"] / unit).to_list(),
        low,
        high,
        [Failure(batch, why) for batch, why in failed.iter_rows()],
    )


def items_picture(study: Study) -> Panels:
    """Return the bars of ``study``, with one panel per figure and one series per run.

    Only layers have rows. Of more than 30 items, those with the most time are drawn, in their
    order, with a line in the heading.
    """
    frame = study.result.frame.with_columns(
        _named(study, _ITEMS[study.name]).alias("_row"), _label(study.result.frame).alias("_label")
    )
    if "role" in frame.columns:
        frame = frame.filter(pl.col("role") == "layer")
    rows = frame["_row"].unique(maintain_order=True).to_list()
    conditions = list(study.conditions)
    if len(rows) > _MOST:
        most = frame.group_by("_row").agg(pl.col("time_ns").sum()).sort("time_ns", descending=True)
        kept = set(most["_row"].head(_MOST))
        conditions.append(f"{_MOST} of {len(rows)} rows, by time")
        rows = [row for row in rows if row in kept]
    drawn = _PANELS[study.name]
    # The passes are parts of one step.
    one_scale = study.name is Name.FRAMEWORKS
    panels = [
        _panel(frame, rows, column, title, tuple(drawn) if one_scale else (column,))
        for column, title in drawn.items()
    ]
    return Panels(
        study.title, conditions, panels, min(3, len(panels)), share="all", one_scale=one_scale
    )


def _named(study: Study, columns: Sequence[str]) -> pl.Expr:
    networks = study.result.frame["network"].drop_nulls().n_unique()
    parts = [*(["network"] if networks > 1 else []), *columns]
    return pl.concat_str(parts, separator=", ", ignore_nulls=True)


def _label(frame: pl.DataFrame) -> pl.Expr:
    if "source" not in frame.columns:
        return pl.col("run")
    printed = pl.format("{} ({})", "run", "source")
    return pl.when(pl.col("source").is_null()).then("run").otherwise(printed)


def _panel(
    frame: pl.DataFrame, rows: Sequence[str], column: str, title: str, scale: Sequence[str]
) -> Panel:
    """Return the bars of ``column``, on an axis for the columns ``scale``."""
    axis, size = _axis(column)(pl.concat([frame[each].rename("") for each in scale]))
    bars = summed(frame, "_label", "_row", rows, column, size)
    return Panel(title, axis, rows=[plain(row) for row in rows], bars=bars)


def _axis(column: str) -> Callable[[pl.Series], tuple[Axis, int]]:
    if column.endswith("_ns"):
        return lambda values: time_axis("time", values)
    if column == "bytes":
        return lambda values: bytes_axis("copied", values)
    if column == "bytes_per_s":
        return lambda _: (Axis("bandwidth (GB/s)"), 10**9)
    return lambda _: (Axis(column), 1)


def ratio_picture(study: Study) -> Panels:
    """Return the bars of ``study``; the dashed line is the reference."""
    frame = study.result.frame.filter(pl.col("network").is_not_null())
    named = frame.with_columns(
        pl.format("{}, batch {}, {}", "network", "batch", "device_kind").alias("_row")
    )
    rows = named["_row"].unique(maintain_order=True).to_list()
    bars = [
        _bars(str(run), rows, own) for (run,), own in named.group_by("run", maintain_order=True)
    ]
    references = ", ".join(frame["reference"].drop_nulls().unique(maintain_order=True))
    axis = Axis(f"images/s relative to {references}")
    return Panels(study.title, study.conditions, [Panel("", axis, rows=rows, bars=bars, mark=1.0)])


def _bars(run: str, rows: list[str], own: pl.DataFrame) -> Bars:
    found = {row: (speed, why) for row, speed, why in
             own.select("_row", "relative_speed", "status").iter_rows()}  # fmt: skip
    speeds = [found.get(row, (None, None))[0] for row in rows]
    notes = [why if why != "ok" else None for why in (found.get(row, (0, None))[1] for row in rows)]
    return Bars(run, speeds, notes)


def scaling_picture(study: Study) -> Panels:
    """Return the speedup of ``study`` by number of devices, and communication's share of the step.

    Each line of points has the line of the model with the smaller residual.
    """
    frame = study.result.frame
    models = study.sections[MODELS].frame if MODELS in study.sections else None
    panels: list[Panel] = []
    shares: list[Panel] = []
    devices = Axis("devices", log=2)
    for (network, run), rows in frame.group_by("network", "run", maintain_order=True):
        title = f"{run}, {network}" if network else str(run)
        counts = [float(count) for count in sorted(set(rows["devices"]))]
        lines = [Line(_IDEAL, counts, counts, dash=":")]
        share_lines = []
        for keys, series in rows.group_by("scaling", "batch", maintain_order=True):
            label = f"batch {keys[1]}" if keys[0] == STRONG else f"batch {keys[1]} per device"
            lines += [_points(label, series), *_model(models, series)]
            share_lines.append(_shares(label, series))
        panels.append(Panel(title, devices, Axis("speedup over one device", log=2), lines=lines))
        if measured := [line for line in share_lines if line.x]:
            share = Axis("communication (% of the step)")
            shares.append(Panel(title, devices, share, lines=measured))
    columns = 2 if len(panels) == 1 else min(3, len(panels))
    return Panels(study.title, study.conditions, [*panels, *shares], columns)


def _points(label: str, series: pl.DataFrame) -> Line:
    ran = series.drop_nulls("speedup")
    failed = series.filter(pl.col("status") != "ok").select("devices", "status")
    crosses = [Failure(count, why) for count, why in failed.iter_rows()]
    return Line(label, ran["devices"].to_list(), ran["speedup"].to_list(), failures=crosses)


def _model(models: pl.DataFrame | None, series: pl.DataFrame) -> list[Line]:
    """Return the line of the better model's speedup of ``series``."""
    if models is None:
        return []
    own = models.join(series, on=SERIES, how="semi", nulls_equal=True).filter("fits_better")
    ran = series.drop_nulls("speedup")
    return [
        Line(
            f"model {name}",
            ran["devices"].to_list(),
            (ran["speedup"] * ran["step_ns"] / ran[FITTED[name]]).to_list(),
            dash=_DASHES[name],
        )
        for name in own["model"]
    ]


def _shares(label: str, series: pl.DataFrame) -> Line:
    measured = series.drop_nulls("communication_share")
    shares = (measured["communication_share"] * 100).to_list()
    return Line(label, measured["devices"].to_list(), shares)

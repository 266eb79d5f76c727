"""The pictures of studies: what is on the axes, and what has a panel of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from traceana.report import display_names
from traceana.report.charts.colours import series_colours
from traceana.report.page import Axis, Block, Chart, Facts, Marks, Panels
from traceana.report.pages.analysis_pictures import dashed_lines
from traceana.report.pages.bars import grouped_bars
from traceana.study import Name
from traceana.study.step_times import FITTED, MODELS, SERIES, STRONG
from traceana.study.timed_convolutions import direction_order
from traceana.table import Column, Kind, by_name

if TYPE_CHECKING:
    from traceana.study.study import Study


class Picture(msgspec.Struct, frozen=True):
    """A panel for each of ``figures`` and each value of ``panel``.

    It has a line over ``x`` for each of ``series``, or, without ``x``, a bar for each of ``series``
    at each ``item``. Rows are filtered by ``where`` and sorted by ``order``. ``failed`` is the
    reason why a run has no value, ``reference`` a value to compare the bars with. ``remark`` is a
    line above the picture, null where it does not apply. Figures of one kind have an axis in common
    if they are ``shared``.
    """

    figures: tuple[str | pl.Expr, ...]
    x: str = ""
    item: pl.Expr = pl.lit("")
    series: pl.Expr = pl.col("run")
    panel: pl.Expr = pl.lit("")
    where: pl.Expr = pl.lit(True)
    order: pl.Expr = pl.int_range(pl.len())
    failed: pl.Expr = pl.lit(None, pl.String)
    reference: float | None = None
    remark: pl.Expr = pl.lit(None, pl.String)
    shared: bool = True
    title: str = ""
    columns: int = 3


def _item(*columns: str | pl.Expr) -> pl.Expr:
    """Return the text of ``columns``, with the network in front where there are several."""
    several = pl.col("network").drop_nulls().n_unique() > 1
    parts = [pl.when(several).then("network"), *columns]
    return pl.concat_str(parts, separator=", ", ignore_nulls=True)


def _text_if(condition: pl.Expr, text: str) -> pl.Expr:
    return pl.when(condition).then(pl.lit(text))


_FAILED: Final = pl.when(pl.col("status") != "ok").then("status")
_PASS: Final = pl.col("direction").replace("fprop", "forward").fill_null("unknown pass")
_ALGORITHM: Final = (
    pl.col("algorithm").fill_null("unknown").map_elements(display_names.part, pl.String)
)
_OPERATION: Final = pl.col("operation").map_elements(display_names.part, pl.String)
_OF_RUN: Final = (
    pl.when(pl.col("run").n_unique() == 1)
    .then(_ALGORITHM)
    .when(_ALGORITHM == "unknown")
    .then("run")
    .otherwise(pl.format("{}, {}", "run", _ALGORITHM))
)
_RECORDED: Final = pl.col("layers").is_null()
"""The time is of the algorithms that a run chose, not of each on all layers."""
_ON_SOME: Final = (pl.col("layers") < pl.col("of_layers")).any().over("run", "algorithm")

_PICTURES: Final[Mapping[Name, Picture]] = {
    Name.BATCH: Picture(
        ("image_ns",),
        x="batch",
        panel=pl.col("network").fill_null("unnamed network"),
        where=pl.col("batch").is_not_null(),
        failed=_FAILED,
        remark=_text_if(pl.col("low_ns").count() > 0, "shaded: interquartile range of the steps"),
    ),
    Name.RATIO: Picture(
        ("relative_speed",),
        item=pl.format("{}, batch {}, {}", "network", "batch", "device_kind"),
        where=pl.col("network").is_not_null(),
        failed=_FAILED,
        reference=1.0,
        remark=pl.format(
            "images/s relative to {}",
            pl.col("reference").unique(maintain_order=True).str.join(", "),
        ),
    ),
    Name.SCALING: Picture(
        ("speedup", "communication_share"),
        x="devices",
        series=pl.concat_str(
            pl.format("batch {}", "batch"),
            _text_if(pl.col("scaling") != STRONG, " per device"),
            ignore_nulls=True,
        ),
        panel=pl.concat_str("run", "network", separator=", ", ignore_nulls=True),
        failed=_FAILED,
    ),
    Name.ALGORITHMS: Picture(
        (
            # Sums over other layers do not compare.
            pl.when(_RECORDED).then("time_ns").otherwise("common_ns"),
            pl.when(pl.col("workspace_bytes") > 0).then("workspace_bytes"),
        ),
        x="batch",
        series=pl.concat_str(_OF_RUN, _text_if(_ON_SOME, " *"), ignore_nulls=True),
        panel=pl.concat_str(
            _PASS,
            _text_if(_RECORDED & ~_RECORDED.all(), ", as recorded"),
            ignore_nulls=True,
        ),
        where=pl.col("batch").is_not_null(),
        order=direction_order(),
        remark=pl.coalesce(
            _text_if(
                (pl.col("common_layers") < pl.col("of_layers")).any(),
                "times: sums over the layers on which all algorithms ran; * not on all layers",
            ),
            _text_if(pl.col("low_ns").count() > 0, "shaded: 95 % interval of the trials' median"),
        ),
    ),
    Name.LAYERWISE: Picture(
        (
            "time_ns",
            pl.when(pl.col("status") == "ok", pl.col("direction").is_in(["fprop", "forward"])).then(
                "executed_flops"
            ),
        ),
        item=pl.col("layer"),
        series=_OF_RUN,
        panel=_PASS,
        where=pl.col("batch").eq_missing(pl.col("batch").max()),
        order=direction_order(),
        remark=pl.format("batch {}", pl.col("batch").max()),
        # One slow algorithm would leave no room for the others of all passes.
        shared=False,
        columns=2,
    ),
    Name.FRAMEWORKS: Picture(
        ("forward_ns", "backward_ns"), item=_item("layer"), where=pl.col("role") == "layer"
    ),
    Name.EPILOGUES: Picture(("time_ns",), item=_item(_OPERATION, "direction")),
    Name.SGEMM: Picture(("time_ns", "calls"), item=_item("gemm", "form")),
    Name.TRANSFERS: Picture(
        ("bytes", "bytes_per_s", "time_ns"), item=_item("direction", "host_memory")
    ),
}
_WITHOUT_BATCH: Final = Picture(
    ("time_ns",),
    item=_ALGORITHM,
    panel=_PASS,
    order=direction_order(),
    title="Time of convolution algorithms",
)
"""The algorithms of runs without a recorded batch size."""

_AXES: Final[Mapping[str, str]] = {
    "image_ns": "time per image",
    "forward_ns": "time",
    "backward_ns": "time",
    "speedup": "speedup over one device",
    "workspace_bytes": "workspace",
    "batch": "batch size",
}
"""Titles of axes that differ from the titles of the columns."""
_BOUNDS: Final = ("low_ns", "high_ns")
"""Bounds of a time over a batch size."""
_MOST: Final = 30
"""Items in a picture."""
_HEIGHT: Final = 240
"""Pixels of a chart of lines."""


def picture_of(study: Study) -> list[Block]:
    """Return the picture of ``study`` below the remarks on it; empty without a value.

    A series has one colour in all panels. Of more than 30 items, those with the largest values are
    drawn.
    """
    frame = study.result.frame
    if "source" in frame.columns:
        frame = frame.with_columns(run=pl.coalesce(pl.format("{} ({})", "run", "source"), "run"))
    else:
        frame = frame.with_columns(source=pl.lit(None, pl.String))
    picture = _PICTURES[study.name]
    if study.name is Name.ALGORITHMS and not frame["batch"].count():
        picture = _WITHOUT_BATCH
    frame = frame.filter(picture.where).sort(picture.order, maintain_order=True)
    remarks = frame.select(picture.remark.first()).to_series().drop_nulls().to_list()
    figures = frame.select(picture.figures).columns
    declared = by_name(study.result.columns)
    alike = {
        name: [other for other in figures if declared[other].kind is declared[name].kind]
        for name in figures
    }
    frame = frame.with_columns(
        *picture.figures,
        panel=picture.panel,
        series=picture.series,
        item=picture.item,
        failed=picture.failed,
        model=pl.lit(None, pl.String),
    )
    panels, colours = frame["panel"].unique(maintain_order=True), series_colours(frame["series"])
    if study.name is Name.SCALING:
        frame = pl.concat([frame, _models(study, frame)], how="diagonal")
    elif not picture.x:
        sums = (pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()) for name in figures)
        frame = (
            # The items of all series, in their order.
            frame.with_row_index("at")
            .sort(pl.col("at").min().over("item"), maintain_order=True)
            .group_by("panel", "series", "item", maintain_order=True)
            .agg(*sums, pl.col("failed").first(), published=pl.col("source").is_not_null().any())
        )
        sizes = frame.group_by("item").agg(size=pl.sum_horizontal(pl.col(alike[figures[0]]).sum()))
        if sizes.height > _MOST:
            kept = sizes.top_k(_MOST, by="size")["item"]
            frame = frame.filter(pl.col("item").is_in(kept.implode()))
            remarks.append(
                f"{_MOST} of {sizes.height} rows, by {_axis_title(declared[figures[0]])}"
            )
    charts = []
    for figure in figures:
        first, kind = figure == figures[0], declared[figure].kind
        bounds = [name for name in _BOUNDS if first and name in frame.columns]
        values = [value for name in (*alike[figure], *bounds) for value in frame[name].drop_nulls()]
        log = bool(picture.x) and kind is not Kind.SHARE
        extent = (min(values), max(values)) if values and picture.shared else None
        axis = Axis(_axis_title(declared[figure]), kind, log=log, extent=extent)
        # A failed run is in the panel of the first figure alone.
        drawn = frame if first else frame.with_columns(failed=pl.lit(None, pl.String))
        drawn = drawn.filter(pl.any_horizontal(pl.col(figure, "failed").is_not_null()))
        for panel in panels:
            rows = drawn.filter(pl.col("panel") == panel)
            if rows.is_empty():
                continue
            title = panel or (declared[figure].title if len(figures) > 1 else study.title)
            title = title if first or not panel else f"{panel}: {axis.title}"
            charts.append(
                _lines(rows, title, declared[picture.x], figure, axis, colours)
                if picture.x
                else grouped_bars(rows, title, figure, axis, colours, picture.reference)
            )
    if not charts:
        return []
    columns = min(picture.columns, len(panels) if len(panels) > 1 else len(charts))
    lines = Facts(tuple(("", line) for line in remarks))
    shown = Panels(picture.title or study.title, tuple(charts), columns)
    return [lines, shown] if remarks else [shown]


def _axis_title(column: Column) -> str:
    return _AXES.get(column.name, column.title)


def _models(study: Study, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the ideal speedup in each panel of ``frame``, and each series' better model.

    The rows have the name of the ``model``.
    """
    ideal = frame.select(
        "panel",
        "devices",
        speedup=pl.col("devices").cast(pl.Float64),
        series=pl.lit("ideal"),
        model=pl.lit("ideal"),
    ).unique(maintain_order=True)
    if MODELS not in study.sections:
        return ideal
    better = study.sections[MODELS].frame.filter("fits_better").select(*SERIES, "model")
    of_model = (pl.when(pl.col("model") == model).then(time) for model, time in FITTED.items())
    fitted = (
        frame.drop("model")
        .join(better, on=SERIES, nulls_equal=True, maintain_order="left")
        .select(
            "panel",
            "devices",
            speedup=pl.col("speedup") * pl.col("step_ns") / pl.coalesce(of_model),
            series="series",
            model=pl.format("model {}", "model"),
        )
    )
    return pl.concat([ideal, fitted.drop_nulls("speedup")])


def _lines(
    rows: pl.DataFrame,
    title: str,
    over: Column,
    figure: str,
    axis: Axis,
    colours: Mapping[str, str],
) -> Chart:
    """Return a line of ``figure`` over the column ``over`` for each series, and a dashed one for
    each model.

    Bounds of the values are shaded. A failed run is a cross above the chart; the first with a
    reason has that beside it.
    """
    x = over.name
    rows = rows.sort(x, maintain_order=True)
    of_model = pl.col("model").is_not_null()
    measured, models = rows.filter(~of_model), rows.filter(of_model)
    points = measured.drop_nulls(figure)
    marks = [Marks(points, "line", x, figure, colour="series")]
    low, high = _BOUNDS
    if axis.kind is Kind.TIME and (band := points.drop_nulls(_BOUNDS)).height:
        marks = [Marks(band, "band", x, low, y_end=high, colour="series"), *marks]
    if models.height:
        lines, names = dashed_lines(models, x, figure, "model", "series")
        marks = [lines, names, *marks]
    first = pl.when(pl.col("failed").is_first_distinct()).then("failed")
    reason = pl.concat_str(first, pl.lit("\u00d7"), separator=" ", ignore_nulls=True)
    for failed in measured.drop_nulls("failed").partition_by("series", maintain_order=True):
        failed = failed.with_columns(failed=reason)
        marks.append(Marks(failed, "cross", x, colour="series", label="failed"))
    called = ", ".join(rows["series"].unique(maintain_order=True))
    return Chart(
        title,
        f"{axis.title} by {_axis_title(over)}: {called}.",
        Axis(_axis_title(over), Kind.NUMBER, log=True),
        axis,
        tuple(marks),
        height=_HEIGHT,
        colours=colours,
    )

"""The columns of the tables of :mod:`traceana.comparison.run_tables`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import polars as pl
from msgspec.structs import replace

from traceana.analyze.layers import DIRECTIONS
from traceana.analyze.transfers import COLUMNS as OF_COPIES
from traceana.comparison.columns import WORK
from traceana.table import (
    COUNT,
    FLOP_RATE,
    FLOPS,
    LIBRARY,
    LONG,
    MEAN,
    NUMBER,
    PART,
    PATH,
    RATIO,
    SHARE,
    TEXT,
    TIME,
    Column,
    Columns,
    by_name,
    laid_out,
)
from traceana.vocabulary.option_words import CompareBy

RUN: Final = Column("run", LONG, "label of the run")
ITEM: Final = Column("item", NUMBER, "number of the item, the same in all runs")
TO_FIRST: Final = Column(
    "to_first",
    RATIO,
    "`ratio_of`, of the whole item, over that of the first run; null where it has none",
    title="ratio",
)
_RECORDING: Final = "of the whole recording (the selected steps and devices)"
_STEPS: Final = "mean over the measured steps, rounded down; null without marked steps"
_CALLS: Final = Column("calls", COUNT, f"calls {_RECORDING}")
_STEP_CALLS: Final = Column(
    "step_calls",
    MEAN,
    "calls: mean over the measured steps; null without marked steps",
    title="calls",
)
_TIME: Final = Column("time_ns", TIME, f"time {_RECORDING}")
_STEP_TIME: Final = replace(_TIME, name="step_ns", meaning=f"time: {_STEPS}", title="time")
_SHARE: Final = Column("share", SHARE, "of all work of the run")
FIGURES: Final = (_CALLS, _TIME, _STEP_CALLS, _STEP_TIME, _SHARE, TO_FIRST)
"""The figures of an item in a run."""
_DIRECTION: Final = {name: name.removesuffix("_ns") for name in DIRECTIONS}
LAYER: Final = (
    Column("layer", PATH, "by layer: the layer's name in the first run that has it"),
    Column("type", TEXT, "its type in the first run that has it"),
    Column("role", TEXT, "as in `layers`"),
    Column("path", TEXT, "its name in this run"),
    Column(
        "confidence",
        SHARE,
        "probability that it belongs to the item; null for roles, and in the run that the others "
        "are aligned with",
        title="match",
    ),
)
LAYERS: Final = (
    *LAYER,
    _CALLS,
    *(
        Column(name, TIME, f"by layer: the {called} part of `time_ns`")
        for name, called in _DIRECTION.items()
    ),
    _TIME,
    _STEP_CALLS,
    *(
        Column(f"step_{name}", TIME, f"by layer: the {called} part of `step_ns`", title=called)
        for name, called in _DIRECTION.items()
    ),
    *FIGURES[3:],
)
EPILOGUE: Final = (
    Column(
        "operation",
        PART,
        "by epilogue: `bias`, or the activation: `relu` …; `(other work)` is all other work",
    ),
    Column("direction", PART, "`forward`, `backward`; null if it is not known", title="pass"),
    Column(
        "how",
        TEXT,
        "`separate kernel`, or `fused` into a convolution or GEMM kernel whose name implies it: "
        "its times are null",
    ),
    Column("library", LIBRARY, "library of the kernels; null if it is unknown"),
)
_OF_COPY: Final = by_name(OF_COPIES)
COPIES: Final = tuple(
    replace(_OF_COPY[name], scale=_STEP_TIME.scale) if name == "step_ns" else _OF_COPY[name]
    for name in (
        *("count", "bytes", "mean_bytes", "bytes_per_s", "time_ns", "share", "exposed_ns"),
        *("blocking", "step_count", "step_bytes", "step_ns", "step_share"),
    )
)
"""The figures of :func:`traceana.analyze.transfers.transfers` that two machines can share."""

SUMMARY: Final = laid_out(
    (
        RUN,
        Column("file", TEXT, "its file"),
        Column("framework", TEXT, "as in `meta` of one file"),
        Column("devices", TEXT, "names of the devices that worked"),
        Column(
            "libraries",
            LIBRARY,
            "libraries of its kernels, most time first, at most three, comma-separated",
        ),
        Column("steps", COUNT, "number of measured steps; null where no steps are marked"),
        Column(
            "batch",
            NUMBER,
            "images per step: of the recorded run, or by the shapes of the layers' inputs",
        ),
        Column("layers", COUNT, "layers with work"),
        Column(
            "wall_ns",
            TIME,
            "median wall time of the steps, rounded down. Where not all runs mark steps, each is "
            "one step from its first to the end of its last work",
            title="step",
        ),
        Column("mean_wall_ns", TIME, "mean of that, rounded down"),
        replace(
            TO_FIRST,
            meaning="`wall_ns` over that of the first run; null for recordings that may differ in "
            "iterations",
        ),
        Column(
            "image_ns",
            TIME,
            "`wall_ns` over the batch, rounded down; null without steps or batch",
            title="per image",
        ),
        Column("image_to_first", RATIO, "`image_ns` over that of the first run", title="ratio"),
        Column("step_kernels", MEAN, "mean number of kernels per step", title="kernels"),
        Column(
            "step_launches",
            MEAN,
            "mean number of calls that launched work, per step, on all devices; null where the "
            "trace has no calls",
            title="launches",
        ),
        Column("step_copies", MEAN, "mean number of copies per step", title="copies"),
        Column("step_ns", TIME, "mean of the summed durations of the work of a step", title="time"),
        Column(
            "idle_ns",
            TIME,
            "mean time of a step in which the devices that it used did nothing, summed over them",
        ),
        Column("idle_share", SHARE, "its share of their time", title="idle"),
        Column(
            "flops",
            FLOPS,
            "FLOPs of the layers per step, a multiply-accumulate being two; null where layers with "
            "1 % or more of the time of convolutions, GEMMs, attention and recurrent layers have "
            "no count",
            scale="FLOPs",
            type=pl.Float64,
        ),
        Column(
            "flops_per_s",
            FLOP_RATE,
            "FLOP/s over `mean_wall_ns`, so that idle time counts",
            title="FLOP/s",
        ),
    ),
    shown="run wall_ns to_first image_ns image_to_first step_kernels step_launches step_copies "
    "idle_share flops_per_s",
    dropped="step_copies step_launches step_kernels image_ns",
)
"""One row per run."""
COLUMNS: Final[Mapping[CompareBy, Columns]] = {
    "summary": SUMMARY,
    "layer": laid_out((RUN, ITEM, *LAYERS), shown="layer type", dropped="type"),
    "class": laid_out((RUN, ITEM, *WORK["class"], *FIGURES), shown="category part"),
    "algorithm": laid_out(
        (RUN, ITEM, *WORK["algorithm"], *FIGURES), shown="category algorithm pass"
    ),
    "kernel": laid_out((RUN, ITEM, *WORK["kernel"], *FIGURES), shown="name"),
    "line": laid_out((RUN, ITEM, *WORK["line"], *FIGURES), shown="line"),
    "gemm": laid_out(
        (RUN, ITEM, *WORK["gemm"], *FIGURES),
        shown="gemm form precision library",
        dropped="library",
    ),
    "epilogue": laid_out((RUN, ITEM, *EPILOGUE, *FIGURES), shown="operation direction how"),
    "transfer": laid_out(
        (RUN, ITEM, *WORK["transfer"], *COPIES, TO_FIRST),
        shown="direction host_memory",
        titles={"step_count": "calls", "step_bytes": "bytes", "step_ns": "time"},
    ),
}
"""The columns by grouping; the columns that a table of the runs side by side begins with are
shown."""

"""The labelled work: a row for each piece of device work, with its labels as columns.

``trace.work`` is this frame; analyses take those of its columns that they need. Work is what
devices execute, or on a trace without device work the operators of the CPU: kernels, copies,
memsets and CUDA graphs recorded whole. Synchronization records are waits, and are left out.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import polars as pl

from traceana.columns.distinct import first_rows, numbered
from traceana.table import (
    BYTES,
    CATEGORY,
    DEFAULT,
    DEVICE,
    FLAG,
    KERNEL,
    LIBRARY,
    LINE,
    LONG,
    MOMENT,
    NUMBER,
    PART,
    PARTS,
    PATH,
    TEXT,
    TIME,
    Column,
    names_of,
)
from traceana.trace.schema import LABEL, Direction
from traceana.trace.tables import Tables
from traceana.trace.taxonomy import (
    AUTOTUNE,
    BOOLEAN_COLUMNS,
    CLASS_COLUMNS,
    CLASS_MEANINGS,
    SEARCH,
)

OUTSIDE: Final = "(outside all layers)"
"""The layer of work without one, and without a reason."""
NO_LINE: Final = "(no line)"

SOURCE: Final = ("name_id", "class", "kind", "copy_kind")
"""The columns of activities, and of a printed summary, that determine the class."""

PASSES: Final = pl.Enum(["forward", "dgrad", "wgrad", "backward", "optimizer"])
"""``dgrad`` and ``wgrad`` are of convolutions and products; ``backward`` is the rest."""

BLAS_LETTER: Final[dict[str, str]] = {
    "fp32": "sgemm",
    "tf32": "sgemm",
    "fp64": "dgemm",
    "fp16": "hgemm",
    "int8": "igemm",
    "c64": "cgemm",
    "c128": "zgemm",
}
"""BLAS's names of GEMMs by operand type; TF32 uses SGEMM's interface."""

PARTED_BY_FUNCTION: Final = ("activation", "layout", "collective", "attention")
"""Categories whose part is the function."""

_KINDS_OF_CLASS: Final = {
    "category": CATEGORY,
    "algorithm": PARTS,
    "library": LIBRARY,
    **dict.fromkeys(("direction", "precision", "function", "epilogue"), PART),
    **dict.fromkeys(BOOLEAN_COLUMNS, FLAG),
}
CLASS: Final = {
    name: Column(
        name,
        _KINDS_OF_CLASS.get(name, TEXT),
        meaning,
        title={"category": "class", "direction": "pass"}.get(name, DEFAULT),
    )
    for name, meaning in CLASS_MEANINGS.items()
}
"""The columns of a class by name."""

_CLASS: Final = tuple(
    column for name, column in CLASS.items() if name not in ("category", "direction")
)
COLUMNS: Final = (
    Column("name", KERNEL, "name as recorded by the profiler, demangled"),
    Column("kind", TEXT, "`kernel`, `memcpy`, `memset`, `graph` (recorded whole) or `op` (CPU)"),
    Column("start", MOMENT, "start, from the trace's first event"),
    Column("duration", TIME, "duration"),
    Column("category", CATEGORY, "class, refined by the context of the launch"),
    Column(
        "part",
        PART,
        "part of the class: a convolution's algorithm, a GEMM's BLAS name, a copy's direction, "
        "the function of some others",
    ),
    *_CLASS,
    Column("kernel_direction", PART, CLASS_MEANINGS["direction"]),
    Column("pass", PART, "`forward`, `dgrad`, `wgrad`, `backward` or `optimizer`"),
    Column("direction", PART, "pass of training: `forward`, `backward` or `optimizer`"),
    Column("layer", PATH, "path of the layer, else in parentheses the role or the reason"),
    Column("layer_type", TEXT, "type of the layer"),
    Column("role", TEXT, "`layer`, `optimizer`, `data` …; null outside all layers"),
    Column("operator", LONG, "innermost operator around the launch"),
    Column("range", LONG, "innermost annotation around the launch"),
    Column("call", LONG, "launching call of the runtime or driver"),
    Column("line", LINE, "line of the program: `train.py:41`; of the backward pass the forward's"),
    Column("stack", LONG, "the program's lines that called it and the line, outermost first"),
    Column("step", NUMBER, "number of the step that launched it"),
    Column("device", DEVICE, "device number within its rank; -1: the CPU"),
    Column("stream", NUMBER, "CUDA or HIP stream; of a CPU operator, its thread"),
    Column("rank", NUMBER, "rank in a distributed run", type=pl.Int32),
    Column("process", NUMBER, "operating system's process id"),
    Column("bytes", BYTES, "copied or set; of a collective's kernel, its rank's message"),
    Column("copy_kind", PART, "direction of a copy: `HtoD`, `DtoH` …"),
    Column("source_memory", TEXT, "memory kind of a copy's source"),
    Column("destination_memory", TEXT, "memory kind of a copy's destination"),
)
"""The columns of :func:`work`. Texts that repeat are enums or categoricals."""

_GATHERED: Final = {
    "name": ("name_id", "names", "name"),
    "operator": ("op", "ops", "name"),
    "range_text": ("range", "ranges", "text"),
    "call_name": ("call", "calls", "name"),
    "step_number": ("step", "steps", "number"),
}
"""Labels that a row of another table has: the column of its row number, the table, the column."""

_LABEL_OF: Final = {
    "layer": "layer_path",
    "range": "range_text",
    "call": "call_name",
    "step": "step_number",
}
"""Columns of the labelled work that are row numbers in activities."""

_OF_CLASS: Final = (
    *("category", "part", "kernel_direction", "rule", "context_rule"),
    *(column.name for column in _CLASS),
)
_PASS_OF_DIRECTION: Final = pl.Series(Direction.categories, dtype=PASSES)
_OF_LAYER: Final = ("layer_path", "layer_type", "role")
_OF_FRAME: Final = ("line", "line_text", "stack")


def labelled_work(tables: Tables) -> pl.DataFrame:
    """Return the work with :data:`COLUMNS`."""
    rows = work(tables, *(_LABEL_OF.get(name, name) for name in names_of(COLUMNS)))
    return rows.rename({label: name for name, label in _LABEL_OF.items()})


def work(tables: Tables, *names: str) -> pl.DataFrame:
    """Return the work in the order of activities, with the columns ``names`` of :func:`labels`, or
    all columns of activities."""
    rows = labels(tables, *names) if names else tables.activities
    if "is_work" not in tables.derived:
        is_work = tables.activities["kind"] != "sync"
        # None: every activity is work.
        tables.derived["is_work"] = None if is_work.all() else is_work
    is_work = tables.derived["is_work"]
    return rows if is_work is None else rows.filter(is_work)


def labels(tables: Tables, *names: str) -> pl.DataFrame:
    """Return the columns ``names`` of each activity.

    They are columns of activities, in which ``layer``, ``op``, ``range``, ``call`` and ``step`` are
    row numbers, and labels: ``name``, ``operator``, ``range_text``, ``call_name``, ``step_number``,
    ``layer_path``, ``layer_type``, ``role``, ``line``, ``line_text``, ``stack``, ``pass``,
    ``kernel_direction``, and the other columns of :func:`labels_of`. Each costs the time of its own
    column.
    """
    activities = tables.activities
    columns = []
    for name in names:
        if name in _GATHERED:
            row, table, label = _GATHERED[name]
            texts = tables[table][label]
            if texts.dtype == pl.String:
                texts = texts.cast(LABEL)
            column = texts.gather(activities[row])
        elif name in _OF_CLASS:
            rows, classes = _classes(tables)
            column = classes[name].gather(rows)
        elif name in _OF_LAYER:
            column = layer_labels(tables)[name].gather(activities["layer"])
            if name == "layer_path":
                column = column.fill_null(OUTSIDE)
        elif name in _OF_FRAME:
            column = frame_labels(tables)[name].gather(activities["frame"])
        elif name == "pass":
            rows, classes = _classes(tables)
            gradient = classes["gradient"].gather(rows)
            # Both are small numbers: to cast a million texts takes ten times as long.
            direction = _PASS_OF_DIRECTION.gather(activities["direction"].to_physical())
            column = gradient.zip_with(gradient.is_not_null(), direction)
        else:
            column = activities[name]
        columns.append(column.alias(name))
    return pl.DataFrame(columns)


def labels_of(sources: pl.DataFrame, tables: Tables) -> pl.DataFrame:
    """Return the labels of the class of each of ``sources``, which have the :data:`SOURCE`.

    Columns: ``category``, ``part``, ``kernel_direction``, the other columns of the taxonomy,
    ``rule`` (that classified the name) and ``context_rule`` (that refined the class). ``part``
    splits convolutions by algorithm, matrix products by BLAS name (``sgemm``, ``batched sgemm``;
    ``sgemm (plain or batched)`` where the kernel's name is the same for both; ``gemm`` for an
    unknown precision, ``unknown`` where neither is known), copies by direction, and some categories
    by function; it is null in others. A CUDA graph recorded whole holds kernels and copies.
    """
    # Row numbers are positions in the tables: no join, which would hash all rows.
    of_name = tables.names.select(pl.all().gather(sources["name_id"])).drop("name")
    if tables.classes.is_empty():
        of_name = of_name.with_columns(pl.lit(None, pl.String).alias("context_rule"))
    else:
        refined = tables.classes.select(pl.all().gather(sources["class"]))
        is_refined = refined["context_rule"].is_not_null()
        of_name = of_name.with_columns(
            *(refined[name].zip_with(is_refined, of_name[name]) for name in CLASS_COLUMNS),
            refined["context_rule"],
        )
    return (
        of_name.hstack(sources.select("kind", "copy_kind"))
        .with_columns(*_category_and_part())
        .rename({"direction": "kernel_direction"})
        .drop("kind", "copy_kind")
    )


@cache
def _category_and_part() -> tuple[pl.Expr, pl.Expr]:
    """Return ``category`` and ``part`` of :func:`labels_of`; expressions take long to build."""
    kind = pl.col("kind").cast(pl.String)
    category = (
        pl.when(kind.is_in(["memcpy", "memset"]))
        .then(kind)
        .when(pl.col("function") == AUTOTUNE)
        .then(pl.lit(SEARCH))
        .otherwise(pl.col("category").fill_null("other"))
    )
    precision, batched = pl.col("precision"), pl.col("batched")
    blas = (
        precision.replace_strict(BLAS_LETTER, default=None, return_dtype=pl.String)
        .fill_null(precision + " gemm")
        .fill_null("gemm")
    )
    gemm = (
        pl.when(batched.is_null() & precision.is_null())
        .then(pl.lit("unknown"))
        .when(batched.is_null())
        .then(blas + " (plain or batched)")
        .when(batched)
        .then("batched " + blas)
        .otherwise(blas)
    )
    part = (
        pl.when(kind == "memcpy")
        .then(pl.col("copy_kind").cast(pl.String).fill_null("unknown"))
        .when(kind == "memset")
        .then(None)
        .when(kind == "graph")
        .then(pl.lit("CUDA graph recorded whole"))
        .when(category == "conv")
        .then(pl.col("algorithm").fill_null("unknown"))
        .when(category == "gemm")
        .then(gemm)
        .when(category == "memcpy")
        .then(pl.col("function").fill_null("unknown"))
        .when(category == "pass")
        .then(pl.col("direction"))
        .when(category.is_in(PARTED_BY_FUNCTION))
        .then(pl.col("function"))
    )
    return category.alias("category"), part.alias("part")


def layer_labels(tables: Tables) -> pl.DataFrame:
    """Return ``layer_path``, ``layer_type`` and ``role`` of each row of ``layers``.

    The path is that of the layer, or in parentheses the role or the reason.
    """
    named_layers: pl.DataFrame | None = tables.derived.get("layer_labels")
    if named_layers is None:
        role, path = pl.col("role").cast(pl.String), pl.col("path")
        named = role.is_in(["layer", "unattributed"])
        named_layers = tables.layers.select(
            pl.when(named).then(path).otherwise("(" + role + ")").cast(LABEL).alias("layer_path"),
            pl.when(role == "layer").then("type").cast(LABEL).alias("layer_type"),
            "role",
        )
        tables.derived["layer_labels"] = named_layers
    return named_layers


_LONGEST_STACK: Final = 2000
"""Characters of a stack, which has its innermost lines: the stacks of a deep recursion would fill
the memory."""


def frame_labels(tables: Tables) -> pl.DataFrame:
    """Return ``line``, ``line_text`` and ``stack`` of each row of ``frames``.

    ``train.py:41``; ``train.py:41 loss.item()``, where the text is known; the program's lines that
    called the frame, outermost first, and its own.
    """
    labelled: pl.DataFrame | None = tables.derived.get("frame_labels")
    if labelled is None:
        lines = tables.frames.select(
            line_name(pl.lit("")).alias("line"),
            line_name(" " + pl.col("text")).alias("line_text"),
            "parent",
        )
        stacks: list[str] = []
        # A caller has a smaller number.
        for name, parent in lines.select("line", "parent").iter_rows():
            stack = name if parent is None else f"{stacks[parent]} > {name}"
            if len(stack) > _LONGEST_STACK:
                stack = f"… {stack[-_LONGEST_STACK:].partition(' > ')[2]}"
            stacks.append(stack)
        labelled = lines.select(
            pl.col("line", "line_text").cast(LABEL),
            pl.Series("stack", stacks, dtype=pl.String).cast(LABEL),
        )
        tables.derived["frame_labels"] = labelled
    return labelled


def line_name(text: pl.Expr) -> pl.Expr:
    """Return the name of a line: ``train.py:41``, followed by ``text``. The number and the text are
    left out where they are null."""
    place = pl.concat_str("file", pl.lit(":"), "line")
    return pl.concat_str(pl.coalesce(place, "file"), text.fill_null(""))


def _classes(tables: Tables) -> tuple[pl.Series, pl.DataFrame]:
    """Return the row of each activity in the second value, and the labels of distinct classes."""
    classes: tuple[pl.Series, pl.DataFrame] | None = tables.derived.get("classes")
    if classes is None:
        sources = tables.activities.select(SOURCE)
        (numbers,) = numbered(sources)
        distinct = labels_of(sources[first_rows(numbers)], tables)
        rows = pl.Series(numbers.astype("uint32"))
        distinct = distinct.with_columns(_gradient().cast(PASSES).alias("gradient"))
        classes = rows, distinct.with_columns(pl.col(pl.String).cast(LABEL))
        tables.derived["classes"] = classes
    return classes


def passes(rows: pl.DataFrame) -> pl.Series:
    """Return the pass of each of ``rows``: of convolutions and products the gradient's own."""
    return rows.select(
        pl.coalesce(_gradient(), pl.col("direction").cast(pl.String)).cast(PASSES)
    ).to_series()


@cache
def _gradient() -> pl.Expr:
    """Return the gradient that a class computes, ``dgrad`` or ``wgrad``, else null."""
    direction, category = pl.col("kernel_direction"), pl.col("category")
    computes = direction.is_in(["dgrad", "wgrad"]) & category.is_in(["conv", "gemm"])
    return pl.when(computes).then(direction.cast(pl.String))

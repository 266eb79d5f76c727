"""The columns of tables of several runs: what the work is, and the figures of two runs compared."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from traceana.table import (
    BATCHED,
    CATEGORY,
    KERNEL,
    LIBRARY,
    LONG,
    MEAN,
    PART,
    PARTS,
    PROBABILITY,
    SHARE,
    TEXT,
    TIME,
    Column,
    Columns,
    by_name,
)
from traceana.vocabulary.option_words import WorkBy

RUNS: Final = {"a": "baseline", "b": "candidate"}
"""The runs of a diff, by the letter in the names of their columns."""

_CATEGORY: Final = Column(
    "category", CATEGORY, "category of the work, as in `report`", title="class"
)
_PART: Final = Column("part", PART, "part of the category, as in `report`")
_PRECISION: Final = Column("precision", PART, "operand type, as in `kernels`")
_LIBRARY: Final = Column("library", LIBRARY, "library of the kernels, as in `kernels`")
WORK: Final[dict[WorkBy, Columns]] = {
    "class": (_CATEGORY, _PART),
    "algorithm": (
        _CATEGORY,
        Column("algorithm", PARTS, "by algorithm: that of convolutions, else null"),
        Column("pass", PART, "by algorithm: that of convolutions, else null"),
    ),
    "kernel": (Column("name", KERNEL, "by kernel: its name"), _CATEGORY, _PART),
    "gemm": (
        Column(
            "gemm",
            TEXT,
            "by gemm: tile and layout of the operands as the kernel's name prints them, "
            "`128x64_nn`; `(no tile)`; `(other work)` is all work except GEMMs",
        ),
        Column(
            "form",
            BATCHED,
            "`plain`, `batched`, `strided batched`; `plain or batched` where name and launch are "
            "ambiguous",
            title="batched",
        ),
        _PRECISION,
        _LIBRARY,
        Column("tile", TEXT, "the tile in `gemm`, as in `kernels`"),
        Column("gemm_layout", TEXT, "the layout in `gemm`, as in `kernels`"),
    ),
    "transfer": (
        Column(
            "direction",
            PART,
            "by transfer: as in `transfers`; `(other work)` is all work except copies",
        ),
        Column("host_memory", TEXT, "as in `transfers`", title="memory"),
    ),
    "line": (
        Column(
            "line",
            LONG,
            "by line: file and text of the program's line, where the run keeps its files: a "
            "line that moved is the same; else file and function; `(no line)`",
        ),
    ),
}
"""The columns that identify the work of a row; the first is never null."""
KEYS: Final = {column.name: column for columns in WORK.values() for column in columns}


def in_run(column: Column, run: str) -> Column:
    """Return ``column`` with the values of ``run``, ``a`` or ``b``: ``time_a_ns``, "baseline"."""
    stem = column.name.removesuffix("_ns")
    return replace(
        column,
        name=f"{stem}_{run}{column.name[len(stem) :]}",
        title=f"{RUNS[run]} {column.title}".rstrip(),
        meaning=f"{RUNS[run]}: {column.meaning}",
    )


def in_both(*columns: Column) -> Columns:
    """Return each of ``columns`` twice: for the baseline, then for the candidate."""
    return tuple(in_run(column, run) for column in columns for run in RUNS)


CHANGE: Final = Column("delta_ns", TIME, "candidate less baseline", title="change", signed=True)
_TIMES: Final = in_both(
    Column("time_ns", TIME, "mean time per step, rounded down; the sum over streams", title="")
)
FIGURES: Final = (
    *_TIMES,
    replace(
        CHANGE,
        meaning="candidate less baseline; null, as are its bounds, ratios and `p`, of a pair of "
        "layers with less than 0.5 `confidence`, and everywhere if the runs hold different work",
    ),
    Column("relative", SHARE, "`delta_ns` over `time_a_ns`", title="relative change", signed=True),
    Column("of_step", SHARE, "`delta_ns` over the device time of the baseline's step"),
    Column(
        "verdict",
        TEXT,
        "`faster`, `slower`, `same`, `inconclusive`, `not enough steps`, `only in baseline`, `only "
        "in candidate`; `not compared` if the runs hold different work",
    ),
    Column(
        "p",
        PROBABILITY,
        "probability of such a difference by chance, corrected for all rows of all views and all "
        "changes together; of `(idle)` and `(overlap correction)` each alone; null without enough "
        "steps",
    ),
    *in_both(Column("calls", MEAN, "mean number of calls per step")),
    Column(
        "low_ns",
        TIME,
        "lower bound of the interval of `delta_ns` at the confidence level, which excludes 0 "
        "exactly where `p` is at most 1 less the level; null without enough steps",
    ),
    Column("high_ns", TIME, "upper bound of that interval"),
)
"""The figures of two runs, per step."""
FIGURE: Final = by_name(FIGURES)

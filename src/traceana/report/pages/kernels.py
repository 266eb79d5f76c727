"""``kernels`` and ``classify``: one row per kernel of a trace, or per name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from traceana.analyze import kernels as analysis
from traceana.analyze.measured import profiler
from traceana.analyze.summaries import needs_timeline
from traceana.enrich.classify import rules_in_use
from traceana.errors import UsageError
from traceana.readers.kernel_names import demangle
from traceana.report.pages.bars import bars
from traceana.report.pages.single_table import per_step_result, table_result
from traceana.table import chosen

if TYPE_CHECKING:
    import polars as pl

    from traceana.analyze.per_step import Basis
    from traceana.enrich.classify import RuleSet
    from traceana.report.result import CommandResult
    from traceana.result import Result
    from traceana.trace import Trace
    from traceana.vocabulary.option_words import KernelsBy

_OF_LAUNCHES: Final = (
    *("configurations", "registers", "shared_memory", "theoretical_occupancy", "block", "grid"),
    *("mean_ns", "min_ns", "max_ns", "std_ns", "median_ns"),
)
_OF_OCCUPANCY: Final = ("waves", "tail_share", "estimated_occupancy")
"""How the grid fills the device: a terminal of 120 columns has room for these."""
DROPPED: Final = (
    *_OF_LAUNCHES,
    *("direction", "batched", *_OF_OCCUPANCY, "algorithm", "share", "category"),
)
DROPPED_MEASURED: Final = (
    *_OF_LAUNCHES,
    *_OF_OCCUPANCY,
    *("ncu_ns", "measured_flops"),
    *("algorithm", "direction"),
    *("share", "batched"),
)
_CLASSES: Final = ("batched", "direction", "category", "algorithm")
"""Columns that tell rows of one name apart, the narrow ones first."""


def kernels(
    trace: Trace,
    *,
    by: KernelsBy = "name",
    unclassified: bool = False,
    sum: bool = False,  # noqa: A002
) -> CommandResult:
    """Return one row per distinct kernel: calls, time and class; or by category; or per operator
    and shapes.

    Screens show means per measured step, with ``sum`` sums over the capture. Raises ``UsageError``
    on ``unclassified`` rows by shape, which have no class.
    """
    if by == "shape":
        if unclassified:
            raise UsageError("rows by shape have no classes: leave out --unclassified")
        needs_timeline(trace, "kernels --by shape")
        from traceana.analyze.flops import kernels_by_shape

        keys: tuple[str, ...] = ("name", "operator", "shapes")
        return per_step_result(trace, kernels_by_shape, _short, keys=keys, sums=sum)
    by_kernel = partial(analysis.kernels, unclassified=unclassified)
    if by == "category":
        return per_step_result(
            trace,
            lambda part: analysis.by_category(by_kernel(part)),
            _short,
            keys=("category",),
            sums=sum,
        )
    return per_step_result(trace, by_kernel, _by_name, keys=analysis.KERNEL_KEYS, sums=sum)


def _short(trace: Trace, result: Result, basis: Basis | None) -> CommandResult:
    return table_result("kernels", result, trace, summed=True, screenful=40, basis=basis)


def _by_name(trace: Trace, result: Result, basis: Basis | None) -> CommandResult:
    counted = trace.tables.counters.height > 0
    titles = {}
    if counted and (by_profiler := profiler(trace)) != "Nsight Compute":
        titles["ncu_ns"] = by_profiler
    per = "" if basis is None else f" {basis.per}"
    return table_result(
        *("kernels", result, trace),
        dropped=_dropped(result.frame, DROPPED_MEASURED if counted else DROPPED),
        titles=titles,
        summed=True,
        screenful=30,
        pictures=lambda: bars(
            result.frame,
            "Kernels with most time, coloured by class",
            chosen(result.columns, ("name", "time_ns", "calls")),
            axis=f"time{per}",
            coloured=True,
        ),
        basis=basis,
    )


def _dropped(frame: pl.DataFrame, dropped: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``dropped`` in an order for the rows of ``frame``.

    Columns of classes with one value are dropped first, columns that distinguish rows of one name
    last. Beside those and the algorithms 120 columns have no room for the share.
    """
    alike = {
        "category": frame["category"].is_in(["other"]).all(),
        "batched": not frame["batched"].any(),
    }
    telling: list[str] = []
    for name in _CLASSES:
        if _distinct(frame, *telling, name) > _distinct(frame, *telling):
            telling.append(name)
    first = [name for name, same in alike.items() if same and name not in telling]
    between = [name for name in dropped if name not in (*first, *telling)]
    if telling and frame["algorithm"].count():
        between.remove("share")
        between.insert(between.index(_OF_OCCUPANCY[0]), "share")
    return (*first, *between, *reversed(telling))


def _distinct(frame: pl.DataFrame, *names: str) -> int:
    return frame.n_unique(["name", *names])


def classify(
    names: str | Sequence[str],
    *,
    rules: str | os.PathLike[str] | None = None,
    explain: bool = False,
) -> CommandResult:
    """Return one row per kernel name, in order: its class, and with ``explain`` the reason.

    ``rules`` is a TOML file of extra classification rules, checked first. Mangled names are
    demangled. Raises the errors of :mod:`traceana.errors`.
    """
    given = [names] if isinstance(names, str) else list(names)
    used = rules_in_use(None if rules is None else Path(rules))
    return classified(given, used, readable=demangle(given).names, explain=explain)


def classified(
    names: Sequence[str],
    rules: RuleSet | None,
    *,
    readable: Mapping[str, str],
    explain: bool = False,
) -> CommandResult:
    """Return one row per kernel name, in order: its class, and with ``explain`` the reason.

    ``readable`` has the demangled form of mangled names.
    """
    from traceana.analyze.classes import explained_names, name_classes

    texts = [readable.get(name, name) for name in names]
    if explain:
        classes = explained_names(texts, rules, names)
        return table_result("classify", classes, layout="records")
    classes = name_classes(texts, rules, names)
    return table_result("classify", classes)

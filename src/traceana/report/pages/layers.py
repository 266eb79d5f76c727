"""``layers`` and ``flops``: time, FLOPs and rates of layers and operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Final

import polars as pl
from msgspec.structs import replace

from traceana.analyze.fused_rows import COLUMNS as FUSED
from traceana.analyze.fused_rows import divided
from traceana.analyze.rates import EXPLAINED, UNEXPLAINED
from traceana.analyze.summaries import needs_timeline
from traceana.errors import UsageError
from traceana.flops.peaks import calibrated
from traceana.report import display_names, numbers
from traceana.report.page import Block, Facts, Notes
from traceana.report.pages.analysis_pictures import layer_icicle, roofline_chart
from traceana.report.pages.bars import bars
from traceana.report.pages.single_table import per_step_result, table_result
from traceana.result import Arranged, Result
from traceana.table import chosen

if TYPE_CHECKING:
    from traceana.analyze.per_step import Basis
    from traceana.analyze.roofline import Utilization
    from traceana.flops.peaks import Peaks
    from traceana.report.result import CommandResult
    from traceana.trace import Trace
    from traceana.vocabulary.option_words import FlopsBy, LayersBy, LayersOrder

FEWER: Final = ("winograd", "winograd_nonfused", "fft", "fft_tiling")
"""Algorithms that execute fewer FLOPs than the direct convolution."""


def layers(
    trace: Trace,
    *,
    by: LayersBy = "layer",
    depth: int | None = None,
    direction: bool = False,
    order: LayersOrder = "time",
    tree: bool = False,
    calibrate: bool = False,
    sum: bool = False,  # noqa: A002
) -> CommandResult:
    """Return one row per layer: time by direction, FLOPs, rates and algorithms.

    ``depth`` groups layers by the first parts of their paths; with ``direction`` there is one row
    per layer and pass; with ``tree`` one row per node of the tree of layers, repeated blocks
    folded. ``order``: most time first, or as the network executes them; a tree has the latter.
    ``calibrate`` measures the peaks of this machine's CPU. Screens show means per measured step,
    with ``sum`` sums over the capture. Raises
    :class:`~traceana.errors.UsageError` to calibrate for a trace of a GPU, and for a tree by type
    or direction.
    """
    needs_timeline(trace, "layers")
    from traceana.analyze.layers import LAYER_KEYS
    from traceana.analyze.layers import layers as analysis

    peaks, model = None, trace.manifest
    if calibrate:
        if not trace.on_cpu:
            raise UsageError("--calibrate applies to CPU traces only")
        peaks = calibrated(again=True)

    if tree and (by == "type" or direction):
        raise UsageError("--tree has a row per node: leave out --by type and --direction")
    if tree:
        return _tree(trace, depth, sums=sum)

    def analyzed(part: Trace) -> Result:
        result = analysis(part, by=by, depth=depth, direction=direction, model=model, peaks=peaks)
        if order == "network":
            return result
        frame = result.frame.sort("time_ns", descending=True, nulls_last=True, maintain_order=True)
        return Result(frame, result.totals, result.notes, result.columns)

    def shown(part: Trace, result: Result, basis: Basis | None) -> CommandResult:
        def pictures() -> Sequence[Block]:
            from traceana.analyze.layer_tree import layer_tree
            from traceana.analyze.layers import layer_classes
            from traceana.analyze.rates import machine

            roof = machine(part)[0] or peaks
            rates: Sequence[Block] = ()
            if roof is not None and result.frame["flops_per_s"].count():
                classes = layer_classes(part, by=by, depth=depth, direction=direction, model=model)
                keys = ["layer", *(["direction"] if direction else [])]
                rows = result.frame.join(classes, on=keys, nulls_equal=True, maintain_order="left")
                rates = _layer_roofline(rows, by, roof)
            if by == "type" or depth is not None:
                columns = chosen(result.columns, ("layer", "time_ns", "calls"))
                axis = "time" if basis is None else f"time {basis.per}"
                times = bars(result.frame, "Time by layer", columns, axis=axis)
                return (*times, *rates)
            return (*layer_icicle(layer_tree(part), basis), *rates)

        inside = pl.DataFrame()
        if by == "layer" and depth is None and not direction:
            inside = divided(result.frame, model)
        fused = {} if inside.is_empty() else {"fused_rows": Result(inside, {}, (), FUSED)}
        return table_result(
            *("layers", result, part),
            order="rows in order of first execution" if order == "network" else "",
            summed=True,
            below=lambda rows: (*_above_peak(rows.frame, "algorithm"), *_fused_rows(inside)),
            sections=lambda: fused,
            screenful=30,
            pictures=pictures,
            basis=basis,
        )

    keys = (*LAYER_KEYS, *(["direction"] if direction else []))
    return per_step_result(trace, analyzed, shown, keys=keys, sums=sum)


_INDENT: Final = "\u00a0\u00a0"


def _tree(trace: Trace, depth: int | None, *, sums: bool) -> CommandResult:
    """Return the layers of ``trace`` as a tree."""
    from traceana.analyze.layer_tree import COLUMNS as TREE_COLUMNS
    from traceana.analyze.layer_tree import folded_tree, layer_tree
    from traceana.analyze.layers import layers as analysis

    model = trace.manifest

    def named(shown: Arranged) -> Arranged:
        # In another order, a row has its path. HTML and Markdown collapse plain spaces.
        indent = pl.lit(_INDENT).repeat_by("depth").list.join("")
        name = pl.concat_str(indent, "node") if shown.sort is None else pl.col("layer")
        return replace(shown, frame=shown.frame.with_columns(name.alias("node")))

    def analyzed(part: Trace) -> Result:
        result = analysis(part, model=model)
        return Result(folded_tree(result.frame, depth), {}, result.notes, TREE_COLUMNS)

    def shown(part: Trace, result: Result, basis: Basis | None) -> CommandResult:
        return table_result(
            *("layers", result, part),
            order="rows in order of first execution",
            summed=True,
            displayed=named,
            screenful=60,
            pictures=lambda: layer_icicle(layer_tree(part), basis),
            basis=basis,
        )

    return per_step_result(trace, analyzed, shown, keys=("layer", "depth"), sums=sums)


_MOST_FUSED: Final = 3


def _fused_rows(inside: pl.DataFrame) -> tuple[Notes, ...]:
    """Return the note on the parts of the fused rows with most time; ``inside`` has all rows."""
    if inside.is_empty():
        return ()
    rows = inside.group_by("row", maintain_order=True).agg("layer", "share", pl.sum("time_ns"))
    heaviest = rows.top_k(_MOST_FUSED, by="time_ns").select("row", "layer", "share").iter_rows()
    texts = []
    for row, layers_of, shares in heaviest:
        parts = zip(layers_of, map(numbers.share, shares), strict=True)
        texts.append(f"{row}: {', '.join(map(' '.join, parts))}")
    if more := rows.height - len(texts):
        texts.append(f"{more} more (--format json)")
    return (Notes((("fused rows, time by bytes (estimate)", "; ".join(texts)),)),)


def flops(
    trace: Trace,
    *,
    by: FlopsBy = "operator",
    explain: bool = False,
    sum: bool = False,  # noqa: A002
) -> CommandResult:
    """Return FLOPs and compulsory bytes by operator, class with its roofline, shapes, or GEMM.

    With ``explain``, return the formulas in use with their derivations and operators. Screens show
    means per measured step, with ``sum`` sums over the capture.
    """
    needs_timeline(trace, "flops")
    from traceana.analyze.flops import OPERATOR_KEYS, SHAPE_KEYS, formulas, shapes
    from traceana.analyze.flops import flops as analysis
    from traceana.analyze.gemms import GEMM_KEYS, gemms
    from traceana.analyze.roofline import roofline, utilization

    model = trace.manifest
    if explain:
        result = formulas(analysis(trace, model))
        return table_result("flops", result, trace, layout="records", screenful=40)
    used = cache(lambda: utilization(trace, model))

    def below(algorithm: str, shown: Arranged) -> Iterator[Block]:
        if (utilized := used()) is not None:
            yield Facts(_utilization(utilized))
        yield from _above_peak(shown.frame, algorithm)

    def sections() -> Mapping[str, Result]:
        return {} if (utilized := used()) is None else {"utilization": utilized.result()}

    analyses: Mapping[str, tuple[Callable[[Trace], Result], tuple[str, ...]]] = {
        "operator": (partial(analysis, model=model), OPERATOR_KEYS),
        "class": (partial(roofline, model=model), ("category", "part")),
        "shape": (partial(shapes, model=model), SHAPE_KEYS),
        "gemm": (partial(gemms, model=model), GEMM_KEYS),
    }
    analyze, keys = analyses[by]

    def shown(part: Trace, result: Result, basis: Basis | None) -> CommandResult:
        def pictures() -> Sequence[Block]:
            if by == "class":
                return _roofline(part, result.frame)
            if by in ("shape", "gemm"):
                return ()
            return bars(
                result.frame,
                "Operators with most FLOPs",
                chosen(result.columns, ("operator", "flops", "calls", "time_ns")),
                axis="FLOPs" if basis is None else f"FLOPs {basis.per}",
            )

        return table_result(
            *("flops", result, part),
            summed=True,
            below=partial(below, {"class": "part", "gemm": "operators"}.get(by, "operator")),
            sections=sections,
            screenful=40,
            pictures=pictures,
            basis=basis,
        )

    return per_step_result(trace, analyze, shown, keys=keys, sums=sum)


_LAYER_RATE: Final = (
    "FLOPs / time of all kernels of the counted operators, with layout conversions and copies; "
    "by class: / time of the kernels that compute"
)
_CLASS_RATE: Final = (
    "FLOPs / time of the kernels that compute (counted time); by layer: / time of all kernels of "
    "the counted operators, with layout conversions and copies"
)


def _layer_roofline(rows: pl.DataFrame, by: str, peaks: Peaks) -> list[Block]:
    """Return the roofline of layers; ``rows`` have a class, one row per layer or per pass."""
    passes = ["direction"] if "direction" in rows.columns else []
    named = pl.concat_str("layer", *passes, separator=" ", ignore_nulls=True).alias("layer")
    of_layers = rows.filter(pl.col("role") == "layer").with_columns(named)
    notes = (
        ("FLOP/s", _LAYER_RATE),
        ("colour", "class of the kernels that compute"),
        *_on_peak(of_layers, "algorithm"),
    )
    what = "layer type" if by == "type" else "layer"
    return roofline_chart(of_layers, "layer", peaks, what, notes)


def _roofline(trace: Trace, rows: pl.DataFrame) -> list[Block]:
    from traceana.analyze.rates import machine

    peaks, on_peak = machine(trace)
    notes = (
        *([] if peaks is not None else [("no roof", on_peak)]),
        ("FLOP/s", _CLASS_RATE),
        *_on_peak(rows, "part"),
    )
    return roofline_chart(rows, "part", peaks, "class of kernels", notes)


def _utilization(used: Utilization) -> tuple[tuple[str, str], ...]:
    rows = [("MFU", f"{mfu(used)} in convolutions and matrix products")]
    if used.hfu > used.mfu:
        at_least = "at least " if used.at_least else ""
        rows.append(("HFU", f"{at_least}{numbers.share(used.hfu)}, with recomputed products"))
    return tuple(rows)


def mfu(used: Utilization) -> str:
    """Return the MFU, the peak that it is of, and the FLOPs of the model."""
    at_least = "at least " if used.at_least else ""
    peak, work = numbers.flop_rate(used.peak_flops_per_s), numbers.flops(used.model_flops)
    return f"{at_least}{numbers.share(used.mfu)} of {peak} per device, with {work} per step"


def _above_peak(frame: pl.DataFrame, algorithm: str) -> tuple[Notes, ...]:
    """Return the note on the rows above the peak."""
    notes = _on_peak(frame, algorithm)
    return (Notes(notes),) if notes else ()


def _on_peak(frame: pl.DataFrame, algorithm: str) -> tuple[tuple[str, str], ...]:
    """Return a note on the rows above the peak: explained by their algorithm, and unexplained.

    The label has the largest share of the peak: a narrow terminal leaves its column out.
    """
    if "over_peak" not in frame.columns:
        return ()
    fewer = frame.filter(pl.col("over_peak") == EXPLAINED)
    texts = []
    if not fewer.is_empty():
        algorithms = ", ".join(fewer[algorithm].drop_nulls()).split(", ")
        called = dict.fromkeys(display_names.part(name) for name in algorithms if name in FEWER)
        by = f" by {', '.join(called)}" if called else ""
        texts.append(f"FLOPs of the direct convolution, fewer executed{by}")
    others = frame.filter(pl.col("over_peak") == UNEXPLAINED).height
    if others:
        texts.append(f"{numbers.counted(others, 'row')} unexplained")
    if not texts:
        return ()
    most = frame.filter(pl.col("over_peak").is_not_null())["of_peak"].to_numpy().max()
    return ((f"up to {numbers.share(most)} of peak", "; ".join(texts)),)

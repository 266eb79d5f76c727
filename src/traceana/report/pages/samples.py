"""``samples``: sampled counters by device, step, class or layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceana.analyze.summaries import needs_timeline
from traceana.report import numbers
from traceana.report.pages.single_table import table_result

if TYPE_CHECKING:
    from traceana.report.result import CommandResult
    from traceana.trace import Trace
    from traceana.vocabulary.option_words import SamplesBy


def samples(trace: Trace, *, by: SamplesBy = "counter") -> CommandResult:
    """Return the means of sampled counters by device, step, class or layer."""
    needs_timeline(trace, "samples")
    from traceana.analyze import samples as analysis

    return table_result("samples", analysis.samples(trace, by), trace)


def sampled(trace: Trace) -> str:
    """Return the main counters in one line: means over all devices, and the range of the clock."""
    from traceana.analyze.samples import LOCKED, MAIN
    from traceana.analyze.samples import samples as analysis

    rows = analysis(trace)
    if rows.frame.is_empty():
        return "not in the measured steps"
    texts: dict[str, str] = {}
    for label, pattern in MAIN.items():
        counters = rows.frame.filter(pl.col("name").str.contains(pattern))
        # Values of two units have no mean. Bandwidth as a whole is shown without its parts.
        if counters.is_empty() or counters["unit"].n_unique() > 1 or label.split()[0] in texts:
            continue
        time = pl.col("sampled_ns")
        mean = pl.when(time.sum() > 0).then((pl.col("mean") * time).sum() / time.sum())
        least, most, value = counters.select(
            pl.col("min").min(), pl.col("max").max(), mean.otherwise(pl.col("mean").mean())
        ).row(0)
        text = numbers.value(float(f"{value:.3g}"))
        if label == "SM clock" and least < most:
            text = f"{numbers.value(round(least))}\u2013{numbers.value(round(most))}"
        texts[label] = f"{label} {text} {counters['unit'][0] or ''}".rstrip()
    if not texts:
        texts[""] = numbers.counted(rows.frame.height, "counter")
    locked = " (clocks locked by the sampler)" if LOCKED in rows.notes else ""
    return f"{' · '.join(texts.values())}{locked}"

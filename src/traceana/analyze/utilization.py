"""FLOP utilization of the steps: of the model (MFU) and of the hardware (HFU).

Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", 2022, appendix B.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import polars as pl

from traceana.analyze.costs import charges
from traceana.analyze.flop_coverage import PRODUCTS
from traceana.analyze.rates import machine, peaks_by
from traceana.analyze.roofline import PRODUCT, units
from traceana.analyze.steps import available_ns, measured_steps
from traceana.result import Result

if TYPE_CHECKING:
    from traceana.model import Manifest
    from traceana.trace import Trace


class Utilization(msgspec.Struct, frozen=True):
    """FLOP utilization of the measured steps.

    ``mfu`` is the FLOPs of the model's convolutions, matrix products, attention and recurrent
    layers over what the devices can compute in the steps: step time times devices times
    ``peak_flops_per_s`` (of the precision of most of the products). ``hfu`` also counts what the
    backward pass computes again (activation checkpoints). ``at_least``: some products have no FLOP
    count. The fields are the columns of :meth:`result`.
    """

    mfu: float
    hfu: float
    model_flops: float
    """Per step, of all devices."""
    peak_flops_per_s: float
    """Of one device."""
    at_least: bool

    def rows(self) -> tuple[tuple[str, str], ...]:
        """Return labels and texts for a screen."""
        about = "at least " if self.at_least else ""
        rows = [
            (
                "MFU",
                f"{about}{100 * self.mfu:.1f} % of {self.peak_flops_per_s / 1e12:.4g} TFLOP/s per "
                f"device, with {self.model_flops / 1e9:,.4g} GFLOP per step in convolutions and "
                "matrix products",
            )
        ]
        if self.hfu > self.mfu:
            rows.append(("HFU", f"{about}{100 * self.hfu:.1f} %, with recomputed products"))
        return tuple(rows)

    def result(self) -> Result:
        """Return the figures as one row."""
        return Result(pl.DataFrame([msgspec.structs.asdict(self)]))


def utilization(trace: Trace, model: Manifest | None = None) -> Utilization | None:
    """Return the FLOP utilization of the measured steps of ``trace``.

    None without steps, without a known peak, and without counted products.
    """
    peaks, _ = machine(trace)
    measured = measured_steps(trace)
    if peaks is None or not measured.rows:
        return None
    available = int(available_ns(trace).gather(measured.rows).sum())
    numbers = trace.steps["number"].gather(measured.rows).unique().to_list()
    selected = trace.select(steps=numbers)
    computed = units(selected, model)
    products = computed.charged.filter("product")
    flops = int(products["flops"].sum())
    if not flops or not available:
        return None
    timed = computed.work.filter(pl.col("category").is_in(PRODUCTS))
    located = timed.with_columns(pl.col("duration").alias("time_ns"), pl.lit(0).alias("all"))
    highest = peaks_by(located, ["all"], peaks)["_peak"].drop_nulls().to_list()
    if not highest:
        return None
    (peak,) = highest
    again = _recomputed(selected, model)
    uncounted = timed.filter(
        ~pl.col("unit").is_in(products["unit"].drop_nulls().unique().implode()).fill_null(False)
    )
    capable = available / 1e9 * peak
    return Utilization(
        mfu=(flops - again) / capable,
        hfu=flops / capable,
        model_flops=(flops - again) / len(numbers),
        peak_flops_per_s=peak,
        at_least=uncounted.height > 0 or bool(products["partial"].any()),
    )


def _recomputed(trace: Trace, model: Manifest | None) -> int:
    """Return the FLOPs of forward products within the backward pass."""
    costs = charges(trace, model).operators
    directions = trace.ops["direction"].cast(pl.String).gather(costs["op"])
    again = costs.filter(
        directions.eq("backward").fill_null(value=False)
        & (costs["part"].cast(pl.String) == "forward")
        & costs["formula"].str.contains(PRODUCT)
    )
    return int(again["flops"].sum())

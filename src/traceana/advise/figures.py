"""The analyses' tables of the measured steps, computed on demand and once, for the rules."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal

import msgspec
import numpy as np
import polars as pl

from traceana.analyze.classes import breakdown
from traceana.analyze.convolutions import convolutions, tries_algorithms
from traceana.analyze.devices import busy, devices
from traceana.analyze.kernels import kernels, occupancy
from traceana.analyze.layers import layers
from traceana.analyze.rates import machine
from traceana.analyze.roofline import fp32_products, roofline, units
from traceana.analyze.transfers import transfers
from traceana.analyze.unrecorded import needs_device
from traceana.columns.intervals import computing, exposed, exposed_within
from traceana.settings import (
    BOTTLENECK_SHARE,
    CULPRIT_SHARE,
    FEWEST_TIMED_STEPS,
    LAUNCH_BOUND_SHARE,
    LEAST_SAVING,
    LESS_PER_IMAGE,
)
from traceana.timeline.copies import HOST_DIRECTIONS, copies
from traceana.timeline.idle import gaps_of, idle, idle_time
from traceana.timeline.steps import (
    StepTime,
    device_windows,
    measured,
    measured_steps,
    step_time,
    steps,
)
from traceana.timeline.work import has_frames, work
from traceana.trace import per_trace
from traceana.vocabulary.operators import COMPILED_REGION, FUSED, GENERATED
from traceana.whatif.program import without_profiler

if TYPE_CHECKING:
    from collections.abc import Collection

    from traceana.advise.simulation import Simulator
    from traceana.analyze.roofline import Units
    from traceana.analyze.transfers import Key
    from traceana.flops.peaks import Peaks
    from traceana.result import Result
    from traceana.runs.run_files import BatchSeries
    from traceana.timeline.idle import IdleTime
    from traceana.trace import Trace
    from traceana.vocabulary.option_words import IdleBy


HOST_CAUSES: Final = (
    *("data_loader", "launch_latency", "operator", "host"),
    *("driver", "allocation", "synchronization"),
)
"""Causes of idle time that are the host's."""


class Figures:
    """The tables of one trace.

    They cover the measured steps (without warm-up) if the trace has steps, else the capture.
    Savings are shown per unit. ``units`` is the sum over the measured steps of the devices used, or
    the number of devices without steps. ``window_ns`` is the wall time of all units.
    """

    def __init__(self, trace: Trace, batches: BatchSeries | None = None) -> None:
        """Create the tables of ``trace``; ``batches`` are the step times of its sweep's runs."""
        needs_device(trace, "advise")
        self._trace = without_profiler(trace)
        self._batches = batches
        self._part = measured(self._trace)
        self.on_cpu = trace.on_cpu
        self._transfers: dict[Key, Result] = {}
        self._idle: dict[IdleBy, pl.DataFrame] = {}

    @cached_property
    def stepped(self) -> bool:
        """Whether the figures cover steps, not the capture."""
        return self._part is not self._trace

    @cached_property
    def steps(self) -> pl.DataFrame:
        """All steps of the trace, warm-up too: :func:`traceana.timeline.steps.steps`."""
        return steps(self._trace).frame

    @property
    def step_time(self) -> StepTime | None:
        """The step time: :func:`traceana.timeline.steps.step_time`."""
        return step_time(self._trace)

    @cached_property
    def measured(self) -> pl.DataFrame:
        """The measured steps; a step without device activity counts for one device."""
        return self.steps.filter("measured").with_columns(pl.col("devices").clip(1))

    @cached_property
    def unrecorded(self) -> float:
        """The part of the launches of the measured steps whose work is not in the trace, though
        other work of the device is: 1 where an often idle device has copies and no kernels, since
        profilers older than the driver record neither kernels nor their launches."""
        if self.on_cpu:
            return 0.0
        from traceana.enrich.launches import launches_with_work
        from traceana.enrich.steps import step_of

        trace = self._trace
        if not (self._part.tables.activities["kind"] == "kernel").any():
            span, busy = self.devices.select(pl.col("span_ns", "busy_ns").sum()).row(0)
            return 1.0 if busy < (1 - BOTTLENECK_SHARE) * span else 0.0
        launches = launches_with_work(trace.tables.calls, trace.tables.activities)
        if self.stepped:
            step = pl.Series(step_of(trace.tables.steps, launches["process"], launches["start"]))
            launches = launches.filter(step.is_in(list(measured_steps(trace).rows)))
        return int(launches["lost"].sum()) / max(launches.height, 1)

    @cached_property
    def busy(self) -> pl.DataFrame:
        """Busy time by device: :func:`traceana.analyze.devices.busy`."""
        return busy(self._part).frame

    @cached_property
    def units(self) -> int:
        """Measured steps times the devices they used, or devices."""
        return max(int(self.measured["devices"].sum()) if self.stepped else self.busy.height, 1)

    @cached_property
    def device_units(self) -> dict[int, int]:
        """Measured steps that used each device number, of every rank that has it."""
        counts = self._idle_time.measured.group_by("device").len().iter_rows()
        return {device: max(steps, 1) for device, steps in counts}

    @cached_property
    def window_ns(self) -> int:
        """Time of the measured steps times their devices, or the capture of all devices."""
        if not self.stepped:
            return int(self.busy["span_ns"].sum())
        return int((self.measured["wall_ns"] * self.measured["devices"]).sum())

    @cached_property
    def busy_ns(self) -> int:
        """Busy time of the devices within ``window_ns``."""
        return int((self.measured if self.stepped else self.busy)["busy_ns"].sum())

    @property
    def longest_idle_ns(self) -> int | None:
        """Of steps on the recorded clock that were timed without the profiler, too: the time in all
        of them that is not busy then; else None."""
        timed = self._trace.meta.unprofiled_step_ns
        if timed is None or not self.stepped or self._trace.recorded is not None:
            return None
        return max(round(timed * self.units) - self.busy_ns, 0)

    @cached_property
    def breakdown(self) -> pl.DataFrame:
        """Time by class: :func:`traceana.analyze.classes.breakdown`."""
        return breakdown(self._part).frame

    def class_ns(self, category: str) -> int:
        """Return the summed time of a class."""
        of = self.breakdown.filter(pl.col("category").cast(pl.String) == category)
        return int(of["time_ns"].sum())

    @cached_property
    def softmax_ns(self) -> int:
        """The summed time of softmax kernels, without those of log-softmax."""
        rows = work(self._part, "name", "operator", "category", "duration")
        kernel, operator = (pl.col(name).cast(pl.String) for name in ("name", "operator"))
        of_log = kernel.str.contains(_LOG_KERNEL) | operator.str.contains(_LOG).fill_null(False)
        softmax = rows.filter(pl.col("category") == "softmax").filter(~of_log)
        return int(softmax["duration"].sum())

    @cached_property
    def work_ns(self) -> int:
        """Summed GPU time: the durations of all device activity."""
        return int(self.breakdown["time_ns"].sum())

    @cached_property
    def kernels(self) -> pl.DataFrame:
        """Time by kernel: :func:`traceana.analyze.kernels.kernels`."""
        return kernels(self._part).frame

    @cached_property
    def layers(self) -> pl.DataFrame:
        """Time by layer: :func:`traceana.analyze.layers.layers`, without costs."""
        return layers(self._part, costs=False).frame

    @cached_property
    def passes(self) -> pl.DataFrame:
        """Time by layer and pass: the same, with directions."""
        return layers(self._part, direction=True, costs=False).frame

    @cached_property
    def has_products(self) -> bool:
        """Whether there are convolutions or GEMMs."""
        return bool(self.breakdown["category"].is_in(["conv", "gemm"]).any())

    @cached_property
    def _units(self) -> Units:
        # That of a whole trace is kept, and a simulation of tensor cores needs it.
        same = self._part.tables.activities.height == self._trace.tables.activities.height
        return units(self._trace if same else self._part)

    @cached_property
    def roofline(self) -> pl.DataFrame:
        """Classes on the roofline: :func:`traceana.analyze.roofline.roofline`."""
        return roofline(self._part, computed=self._units).frame

    @cached_property
    def convolutions(self) -> pl.DataFrame:
        """Convolutions by shape and algorithm."""
        return convolutions(self._part).frame

    @cached_property
    def tries_algorithms(self) -> bool:
        """Whether the library tried algorithms for convolutions in any step, warm-up included."""
        return tries_algorithms(self._trace)

    @cached_property
    def fp32_products(self) -> pl.DataFrame:
        """FP32 convolutions and GEMMs without tensor cores, call by call."""
        return fp32_products(self._units)

    @cached_property
    def products(self) -> pl.DataFrame:
        """GEMMs in a row."""
        from traceana.analyze.repeated_gemms import products

        return products(self._part).frame

    @cached_property
    def elementwise_chains(self) -> pl.DataFrame:
        """Elementwise kernels in a row."""
        from traceana.analyze.elementwise_chains import elementwise_chains

        return elementwise_chains(self._part).frame

    @cached_property
    def math_attention(self) -> pl.DataFrame:
        """Work of the math backend of attention."""
        from traceana.analyze.math_attention import math_attention

        return math_attention(self._part).frame

    @cached_property
    def casts(self) -> pl.DataFrame:
        """Casts between FP32 and 16 bits."""
        from traceana.analyze.casts import casts

        return casts(self._part).frame

    @cached_property
    def zeroing(self) -> pl.DataFrame:
        """Memsets, fills, and gradients that are added to zeros."""
        from traceana.analyze.zeroing import zeroing

        return zeroing(self._part).frame

    @cached_property
    def unfused_optimizer(self) -> pl.DataFrame:
        """The kernels of the optimizer that are not fused: ``name``, ``calls``, ``time_ns``."""
        rows = work(self._part, "name", "kind", "direction", "duration")
        of_optimizer = (pl.col("kind") == "kernel") & (pl.col("direction") == "optimizer")
        return (
            rows.filter(of_optimizer)
            .group_by(pl.col("name").cast(pl.String))
            .agg(pl.len().cast(pl.Int64).alias("calls"), pl.col("duration").sum().alias("time_ns"))
            .filter(~pl.col("name").str.contains(FUSED))
            .sort("time_ns", "name", descending=[True, False])
        )

    @cached_property
    def occupancy(self) -> pl.DataFrame:
        """Occupancy of the kernels."""
        return occupancy(self._part).frame

    @cached_property
    def batches(self) -> TimePerImage | None:
        """Time per image by batch: :func:`traceana.advise.figures.time_per_image`."""
        if self._batches is None:
            return None

        return time_per_image(self._batches)

    def transfers(self, by: Key = "direction") -> pl.DataFrame:
        """Return the copies: :func:`traceana.analyze.transfers.transfers`."""
        return self._copies(by).frame

    @cached_property
    def exposed_copies_ns(self) -> int:
        """Exposed copy time within ``window_ns``."""
        return self._exposed(copies(self._part))

    @cached_property
    def exposed_pageable_ns(self) -> int:
        """The same, of copies from or to pageable host memory."""
        return self._exposed(copies(self._part).filter(pl.col("host_memory") == "pageable"))

    def _exposed(self, chosen: pl.DataFrame) -> int:
        kernels = computing(self._part.whole.tables.activities)
        if not self.stepped:
            return int(exposed(chosen, kernels, ())["exposed_ns"].sum())
        return exposed_within(chosen, kernels, device_windows(self._part))

    def _copies(self, by: Key) -> Result:
        if by not in self._transfers:
            self._transfers[by] = transfers(self._part, by)
        return self._transfers[by]

    @cached_property
    def _idle_time(self) -> IdleTime:
        return idle_time(self._part)

    def idle(self, by: IdleBy = "cause") -> pl.DataFrame:
        """Return idle time by cause: :func:`traceana.timeline.idle.idle`."""
        if by not in self._idle:
            self._idle[by] = idle(self._part, by, found=self._idle_time).frame
        return self._idle[by]

    def line_of(self, evidence: pl.DataFrame) -> str | None:
        """Return the line of the program with most time of the layer, the copies or the class in
        the first row of ``evidence``; None below :data:`CULPRIT_SHARE` of it."""
        if evidence.is_empty() or not has_frames(self._trace):
            return None
        first = evidence.row(0, named=True)
        if first.get("layer") is not None:
            chosen = pl.col("layer_path") == first["layer"]
        elif first.get("direction") in HOST_DIRECTIONS:
            chosen = (pl.col("kind") == "memcpy") & (pl.col("copy_kind") == first["direction"])
        elif first.get("category") is not None:
            chosen = pl.col("category") == first["category"]
        else:
            return None
        columns = ("line_text", "layer_path", "category", "kind", "copy_kind", "duration")
        of_row = work(self._part, *columns).filter(chosen)
        total = int(of_row["duration"].sum())
        return culprit(of_row.rename({"duration": "time_ns"}), "line_text", total)

    def gaps(self, causes: Collection[str], key: Literal["operator", "range"]) -> pl.DataFrame:
        """Return the gaps with one of ``causes``: :func:`traceana.timeline.idle.gaps_of`."""
        return gaps_of(self._part, self._idle_time, causes, key)

    def idle_ns(self, *causes: str) -> int:
        """Return the idle time of these causes."""
        frame = self.idle()
        return int(frame.filter(pl.col("cause").cast(pl.String).is_in(causes))["time_ns"].sum())

    @cached_property
    def profiler_step_numbers(self) -> list[int]:
        """Numbers of the measured steps with idle time during profiler overhead."""
        if not self.stepped:
            return []
        rows = self.idle("step").filter(pl.col("cause").cast(pl.String) == "profiler")
        return rows.filter(pl.col("time_ns") > 0)["step"].unique().sort().to_list()

    @property
    def profiler_steps(self) -> int | None:
        """Number of measured steps with idle time during profiler overhead; None without steps."""
        return len(self.profiler_step_numbers) if self.stepped else None

    @cached_property
    def devices(self) -> pl.DataFrame:
        """Launches and overlap by device: :func:`traceana.analyze.devices.devices`."""
        return devices(self._part, found=self._idle_time).frame

    @cached_property
    def launch_bound(self) -> float | None:
        """The share of launch-bound kernels: shorter than their launch call."""
        known = self.devices.drop_nulls(["launch_bound", "launch_bound_share"])
        each = known.filter(pl.col("launch_bound_share") > 0)
        kernels = float((each["launch_bound"] / each["launch_bound_share"]).to_numpy().sum())
        if known.is_empty():
            return None
        return int(known["launch_bound"].sum()) / kernels if kernels else 0.0

    @property
    def is_launch_bound(self) -> bool:
        """Whether so many kernels are launch-bound that launches limit the step."""
        return (self.launch_bound or 0.0) >= LAUNCH_BOUND_SHARE

    @cached_property
    def collectives(self) -> Result:
        """Collectives by message: :func:`traceana.analyze.communication.by_message`."""
        from traceana.analyze.communication import by_message

        return by_message(self._part)

    @cached_property
    def exposed_collectives_ns(self) -> int:
        """Time in which collectives of the steps ran and no other work of their device."""
        if not (self.breakdown["category"] == "collective").any():
            return 0
        return int(self.collectives.totals["exposed_ns"])

    @cached_property
    def waits(self) -> pl.DataFrame:
        """Waits in collectives: :func:`traceana.analyze.collective_ranks.by_rank`."""
        from traceana.analyze.collective_ranks import by_rank

        return by_rank(self._part).frame.drop_nulls("wait_ns")

    @cached_property
    def late_ns(self) -> int:
        """Exposed time of collectives that waits for late ranks: what is more than the transfers
        take, so that none of it goes away if they overlap. 0 where waits are not known."""
        exposed = self.exposed_collectives_ns
        if not exposed:
            return 0
        transfers = self.class_ns("collective") - int(self.waits["wait_ns"].sum())
        return max(0, exposed - transfers)

    @cached_property
    def peaks(self) -> Peaks | None:
        """The peaks of the devices, if all are of one known model."""
        return machine(self._part)[0]

    @cached_property
    def _working(self) -> pl.DataFrame:
        """The rows of the devices with activity."""
        used = self.busy.select("rank", "device")
        return self._trace.tables.devices.join(used, on=["rank", "device"], nulls_equal=True)

    @cached_property
    def compute_capability(self) -> tuple[int, int] | None:
        """The lowest of the NVIDIA devices with activity; None if unknown."""
        rows = self._working.filter(pl.col("vendor") == "NVIDIA")
        known = [_version(text) for text in rows["compute_capability"].drop_nulls().unique()]
        return min((one for one in known if one is not None), default=None)

    @cached_property
    def program(self) -> Program:
        """What kind of program it is: :func:`traceana.advise.figures.program`."""
        return program(self._trace)

    @property
    def vendor(self) -> str | None:
        """The vendor of the devices with activity; None if unknown or mixed."""
        return self.program.vendor

    @cached_property
    def simulator(self) -> Simulator | None:
        """The replay of the trace; None where it has no meaning, and without measured steps."""
        if not self.stepped and self._trace.tables.steps.height:
            return None
        from traceana.advise.simulation import Simulator

        return Simulator.of(self._trace)

    @property
    def profiler_known(self) -> bool:
        """Whether the profiler's cost is known."""
        # The cost is that of a program that waits for a GPU: a CPU's needs no replay to know that.
        if self.on_cpu or self.simulator is None:
            return False
        return self.simulator.model.cost is not None

    def each(self, total_ns: int) -> int:
        """Return the time per unit, rounded down."""
        return total_ns // self.units

    def mean(self, count: int) -> int | float:
        """Return the mean count per unit, an integer where it is one."""
        each = count / self.units
        return int(each) if each.is_integer() else each

    def worth(self, saving_ns: float) -> bool:
        """Return whether a saving over all units is at least :data:`LEAST_SAVING`.

        Measured steps may have no time of their own, where work of an earlier one outlasts them.
        """
        return saving_ns >= LEAST_SAVING * self.window_ns > 0


def _version(text: str) -> tuple[int, int] | None:
    major, _, minor = text.partition(".")
    if not (major.isdecimal() and minor.isdecimal()):
        return None
    return int(major), int(minor)


_OF_NETWORKS: Final = (
    *("conv", "attention", "normalization", "activation", "softmax", "loss", "optimizer"),
    *("pooling", "rnn", "fused"),
)
"""Categories of kernels that only neural networks have."""
_OF_FRAMEWORKS: Final = r"at::|c10::|cudnn|miopen|tensorflow|Eigen|triton_|ncclDev|xla"
_GRADIENTS: Final = ("backward", "optimizer")
_OF_PYTORCH: Final = r"at::native|c10::"
_OF_WORKERS: Final = "_MultiProcessingDataLoaderIter"
"""The iterator of a DataLoader with workers, in the name of its range or operator."""

_LOG: Final = r"(?i)log_?softmax"
_LOG_KERNEL: Final = rf"{_LOG}|softmax_warp_\w+<[^>]*?, (?:\(int\))?\d+, (?:\(bool\)1|true)\b"
"""Kernels of log-softmax: ATen's own have a flag for it behind the size."""

_AMD: Final = (
    ("cuDNN's ConvBiasAct, cuBLASLt", "MIOpen's fusion plans, hipBLASLt"),
    ("cuDNN", "MIOpen"),
    ("cuBLASLt", "hipBLASLt"),
    ("cuBLAS", "rocBLAS"),
    ("NCCL", "RCCL"),
    ("NVLink", "Infinity Fabric"),
    ("SMs", "CUs"),
    ("SM time", "CU time"),
    ("fewer blocks", "fewer workgroups"),
    ("blocks / ", "workgroups / "),
    (" (MPS)", ""),
    ("tensor cores", "matrix cores"),
    ("CUDA graphs", "HIP graphs"),
    ("CUDA-aware", "GPU-aware"),
    ("nvidia-smi -q", "amd-smi static --bus"),
    ("CUDA_MODULE_LOADING=EAGER", "HIP_ENABLE_DEFERRED_LOADING=0"),
    ("nvcc -arch", "hipcc --offload-arch"),
    (", else the driver compiles PTX", ""),
)
"""Words of NVIDIA's libraries and hardware, and AMD's. Names in PyTorch's API (``torch.cuda``,
``torch.backends.cudnn``) are the same on both."""
_CUDA_CALL: Final = re.compile(r"\bcuda(?=[A-Z])")


class Program(msgspec.Struct, frozen=True):
    """The program of a trace.

    ``framework`` is null where neither a record nor a kernel names it; ``native`` is true where
    nothing in the trace is of a framework for neural networks; ``inference`` where the framework
    ran no backward pass and no optimizer. ``vendor`` is that of all devices with activity, else
    null. ``compiled`` is true where ``torch.compile`` compiled some of it, ``loader_workers`` where
    a DataLoader has worker processes.
    """

    framework: str | None = None
    native: bool = False
    inference: bool = False
    vendor: str | None = None
    compiled: bool = False
    loader_workers: bool = False

    def words(self, text: str) -> str:
        """Return ``text`` with the words of the devices' vendor."""
        if self.vendor != "AMD":
            return text
        for nvidia, amd in _AMD:
            text = text.replace(nvidia, amd)
        return _CUDA_CALL.sub("hip", text)


def culprit(rows: pl.DataFrame, by: str, total: int) -> str | None:
    """Return the value of ``by`` with most ``time_ns`` of ``rows``; None below
    :data:`CULPRIT_SHARE` of ``total``."""
    by_time = rows.drop_nulls(by).group_by(by).agg(pl.col("time_ns").sum())
    most = by_time.sort("time_ns", by, descending=True)
    if most.is_empty() or most["time_ns"][0] < CULPRIT_SHARE * total:
        return None
    return str(most[by][0])


@per_trace
def program(trace: Trace) -> Program:
    """Return what kind of program ``trace`` is of."""
    recorded = trace.meta.framework
    framework = recorded or ("PyTorch" if _has(trace, _OF_PYTORCH) else None)
    used = work(trace, "rank", "device").unique()
    vendors = used.join(trace.tables.devices, on=["rank", "device"], nulls_equal=True)[
        "vendor"
    ].unique()
    directions = pl.concat(
        [
            table["direction"].unique().cast(pl.String)
            for table in (trace.tables.activities, trace.tables.ops)
        ]
    )
    return Program(
        framework,
        framework is None and trace.tables.ops.is_empty() and not _is_network(trace),
        recorded is not None and not directions.is_in(_GRADIENTS).any(),
        vendors.item() if len(vendors) == 1 else None,
        _is_compiled(trace),
        any(
            bool(texts.unique().cast(pl.String).str.contains(_OF_WORKERS).any())
            for texts in (trace.tables.ranges["text"], trace.tables.ops["name"])
        ),
    )


def _has(trace: Trace, pattern: str) -> bool:
    """Return whether a kernel's name has ``pattern``."""
    return bool(trace.tables.names["name"].str.contains(pattern).any())


def _is_network(trace: Trace) -> bool:
    known = trace.tables.names["category"].cast(pl.String).is_in(_OF_NETWORKS).any()
    return bool(known) or _has(trace, _OF_FRAMEWORKS)


def _is_compiled(trace: Trace) -> bool:
    calls = trace.tables.ops["name"].unique().cast(pl.String).str.starts_with(COMPILED_REGION)
    return bool(calls.any()) or _has(trace, GENERATED)


SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "batch": pl.Int64,
    "steps": pl.Int64,
    "image_ns": pl.Int64,
    "low_ns": pl.Int64,
    "high_ns": pl.Int64,
}


class TimePerImage(msgspec.Struct, frozen=True):
    """The time per example of the runs: one row of :data:`SCHEMA` per batch, by batch.

    ``image_ns`` is the step time divided by the batch, of the median step, or of the mean if only
    the sum of the steps is exact. ``low_ns`` and ``high_ns`` are the quartiles, null for a mean.
    All are rounded down.
    """

    own: int
    frame: pl.DataFrame

    @property
    def comparable(self) -> bool:
        """Whether this run and one with a larger batch were measured."""
        batches = self.frame["batch"]
        return bool((batches == self.own).any() and (batches > self.own).any())

    @property
    def best(self) -> int | None:
        """The row of the larger batch with the lowest time per example, None without a decrease.

        A decrease is :data:`LESS_PER_IMAGE` or more, with disjoint interquartile ranges of the
        step times.
        """
        if not self.comparable:
            return None
        (own,) = self.frame.filter(pl.col("batch") == self.own).iter_rows(named=True)
        less = (pl.col("image_ns") <= (1 - LESS_PER_IMAGE) * own["image_ns"]) & (
            pl.col("high_ns") < pl.lit(own["low_ns"], pl.Int64)
        ).fill_null(value=True)
        falls = self.frame.with_row_index("row").filter(pl.col("batch") > self.own, less)
        return None if falls.is_empty() else int(falls.sort("image_ns", "batch")["row"][0])


def time_per_image(series: BatchSeries) -> TimePerImage:
    """Return the time per example of each run of ``series`` with three steps or more."""
    rows = []
    for batch, times in sorted(series.times.items()):
        if len(times.steps_ns) < FEWEST_TIMED_STEPS or not batch or not times.step_ns:
            continue
        quartiles: tuple[int | None, int | None] = (None, None)
        if times.synchronized:
            low, high = np.quantile(np.array(times.steps_ns) / batch, (0.25, 0.75))
            quartiles = (int(low), int(high))
        rows.append((batch, len(times.steps_ns), int(times.step_ns / batch), *quartiles))
    return TimePerImage(series.own, pl.DataFrame(rows, schema=SCHEMA, orient="row"))

"""GPU work that a recording lacks: why, as far as the file tells, and what to record."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from traceana.analyze.summaries import needs_timeline
from traceana.errors import NoSuchSelectionError
from traceana.timeline.work import counted, unsupported_driver
from traceana.trace.schema import CPU_DEVICE, DEVICE_WORK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceana.trace import Trace

_RECORD: Final = {
    "nsys": "nsys profile --trace=cuda,nvtx",
    "nvprof": "nvprof --profile-from-start on",
    "kineto": "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
}
"""What records the GPU's work, by format."""

_FIRST_NSYS: Final = {12: (2022, 5), 13: (2025, 3)}
"""The first release of Nsight Systems for each major version of CUDA, by NVIDIA's release notes. An
older one records copies, and neither kernels nor the calls that launch them."""


def unrecorded(trace: Trace) -> str | None:
    """Return what GPU work is missing in ``trace``, why, and what to record instead.

    None where kernels are recorded, where the trace knows of no GPU, and for a printed summary. A
    program that launched nothing while its launches were recorded ran on the CPU. A TPU's work is
    not read.
    """
    if trace.is_summary or trace.tables.counters.height:
        return None
    kinds = trace.tables.activities["kind"]
    if (kinds == "kernel").any():
        return None
    properties = trace.meta.properties
    if unread := properties.get("devices_not_read"):
        return (
            f"the work of {', '.join(unread)} is in the file and not read: only GPUs and CPUs are"
        )
    if (unread := unread_work(trace)) is not None:
        return unread
    older = unsupported_driver(trace) or _older(trace, properties)
    instead = _RECORD.get(trace.meta.format)
    advice = "record the GPU too" if instead is None else f"record with {instead}"
    lost = trace.tables.ledger.filter(reason="no_device_work")["count"].sum()
    if lost:
        work = f"{lost} launches are recorded, and none of the work that they launched"
        return f"{work}: {advice if older is None else older}"
    if kinds.is_in(DEVICE_WORK).any():
        return None if older is None else f"copies are recorded and no kernels: {older}"
    if "unsupported_driver" in properties:
        return older
    devices = trace.tables.devices.filter(pl.col("device") != CPU_DEVICE)
    if devices.is_empty():
        return None
    names = ", ".join(devices["name"].drop_nulls().unique(maintain_order=True))
    if trace.meta.format == "nvprof":
        # nvprof describes a GPU once the program uses it.
        return f"no kernels of {names or 'the GPU'} are recorded: {advice}"
    if properties.get("cuda_traced") != "false":
        return None
    return f"{names or 'the GPU'} was not recorded, CUDA was not traced: {advice}"


def unread_work(trace: Trace) -> str | None:
    """Return the events that look like device work and are not read, with their time, else None."""
    unread = trace.tables.ledger.filter(reason="unread_work")
    if unread.is_empty():
        return None
    by_category = unread.group_by("detail", maintain_order=True).agg(
        pl.col("count").sum(), pl.col("time_ns").sum()
    )
    listed = ", ".join(
        f"{counted(count, 'event', 'events')} of category {category} ({time_ns / 1e6:,.2f} ms)"
        for category, count, time_ns in by_category.iter_rows()
    )
    return f"{listed}: in the file and not read"


def _older(trace: Trace, properties: Mapping[str, Any]) -> str | None:
    """Return that nsys is older than the driver's CUDA, and what to use; None where it is not."""
    release = re.search(r"\b(20\d\d)\.(\d+)", trace.meta.producer or "")
    driver = re.match(r"\d+", str(properties.get("cuda_driver_version", "")))
    if trace.meta.format != "nsys" or release is None or driver is None:
        return None
    major = int(driver[0]) // 1000
    if (int(release[1]), int(release[2])) >= _FIRST_NSYS.get(major, (0, 0)):
        return None
    return f"nsys {release[0]} is older than the driver's CUDA {major}: use a newer nsys"


def needs_device(trace: Trace, what: str) -> None:
    """Raise ``NoSuchSelectionError`` if ``trace`` is a summary or lacks the work of its GPU.

    ``what`` is the analysis that would take the GPU for idle.
    """
    needs_timeline(trace, what)
    if (why := unrecorded(trace)) is not None:
        raise NoSuchSelectionError(f"{what}: {why}")

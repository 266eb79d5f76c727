"""What a reader of the figures of transfers has to know."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceana.analyze.steps import measured_steps
from traceana.analyze.transfers.links import DEVICE_MEMORY, HOST_DIRECTIONS

if TYPE_CHECKING:
    from traceana.trace import Trace


def notes(trace: Trace, each: pl.DataFrame, frame: pl.DataFrame) -> tuple[str, ...]:
    """Return the sentences on ``frame``, the result, whose copies are ``each``."""
    if each.is_empty():
        return ("no copies in the trace or in what was selected of it",)
    found = [
        *_sizes(each),
        *_asked(each, frame),
        *_waits(each),
        *_link(trace, each, frame),
        *_exposed(trace, each),
        *(measured_steps(trace).notes if trace.steps.height else ()),
    ]
    return tuple(found)


def _sizes(each: pl.DataFrame) -> list[str]:
    found = []
    lacking = each["bytes"].null_count()
    if lacking:
        found.append(
            f"the format does not tell the bytes of {lacking:,} of {each.height:,} copies: no "
            "bytes, and no throughput, where one is missing"
        )
    instant = each.filter(pl.col("duration") == 0).height
    if instant:
        found.append(
            f"{instant:,} of {each.height:,} copies last 0 ns as the file has it: the median "
            "throughput leaves them out"
        )
    return found


def _asked(each: pl.DataFrame, frame: pl.DataFrame) -> list[str]:
    by = frame.columns[0]
    if by == "direction" or not frame[by].null_count():
        return []
    lacking = int(frame.filter(pl.col(by).is_null())["count"].sum())
    return [f"the trace tells no {by} of {lacking:,} of {each.height:,} copies"]


def _waits(each: pl.DataFrame) -> list[str]:
    unknown = each["waits"].null_count()
    if not unknown:
        return []
    of = f"for {unknown:,} of {each.height:,} copies"
    without = each["call"].null_count()
    if without == unknown:
        return [f"no call is recorded {of}: whether the host waited for them is not known"]
    return [f"whether the host waited is not known {of}: their calls or memory do not tell"]


def _link(trace: Trace, each: pl.DataFrame, frame: pl.DataFrame) -> list[str]:
    over_links = each.filter(pl.col("direction").is_in(HOST_DIRECTIONS))
    lacking = over_links.filter(pl.col("link").is_null())
    found = []
    if lacking.height:
        used = lacking.select("rank", "device").unique()
        devices = trace.devices.join(used, on=["rank", "device"], nulls_equal=True)
        names = devices["name"].drop_nulls().unique().sort()
        whose = ", ".join(names) if len(names) else "a device that the file does not name"
        found.append(f"the peak of the host's link is not known for {whose}")
    if lacking.height < over_links.height:
        found.append(
            "peak of a link: one way, as the device was built; what the machine gives it is in no "
            "trace"
        )
    in_cache = (pl.col("link") == DEVICE_MEMORY) & (pl.col("peak_share") > 1)
    if frame.select(in_cache.any()).item():
        found.append(
            "more than 100 % of the device memory's peak: small copies can stay in its cache"
        )
    if (each["direction"] == "p2p").any():
        found.append("links between devices are in no trace: no peak of copies from peer to peer")
    return found


def _exposed(trace: Trace, each: pl.DataFrame) -> list[str]:
    found = []
    nowhere = each["device"].null_count()
    if nowhere:
        found.append(f"{nowhere:,} copies are on no device: not in the exposed time")
    if (trace.whole.activities["kind"] == "graph").any():
        found.append("CUDA graphs recorded whole count as kernels: what is in them is not recorded")
    return found

"""The head of the report: what ran, on what, how long a step takes, how busy the device is."""

from __future__ import annotations

from pathlib import PurePath

import polars as pl
from rich.text import Text

from traceana.report import human
from traceana.report.overview import Overview
from traceana.report.text import plain
from traceana.trace.schema import CPU_DEVICE


def header(overview: Overview) -> Text:
    """Return the lines of the head."""
    lines = [_what(overview), _counts(overview)]
    if overview.steps.frame.height:
        lines.append(_step(overview))
    if overview.busy.frame.height:
        lines += _busy(overview)
    return Text("\n").join(lines)


def _what(overview: Overview) -> Text:
    facts = overview.facts
    line = Text(plain(PurePath(facts["file"]).name), style="bold")
    for fact in (overview.model, facts["framework"], _gpus(overview)):
        if fact:
            line.append(f" · {plain(fact)}", style="not bold")
    return line


def _format(overview: Overview) -> str:
    facts = overview.facts
    version = facts["format_version"]
    return f"{facts['format']} {version}" if version else str(facts["format"])


def _gpus(overview: Overview) -> str:
    """Return the devices that worked: ``2 x NVIDIA H100``."""
    working: dict[str, int] = {}
    for device in overview.facts["devices"]:
        if device["activities"] and device["device"] is not None:
            unnamed = "CPU" if device["device"] == CPU_DEVICE else "GPU of unknown name"
            name = device["name"] or unnamed
            working[name] = working.get(name, 0) + 1
    return ", ".join(f"{n} x {name}" if n > 1 else name for name, n in working.items())


def _counts(overview: Overview) -> Text:
    facts = overview.facts
    told = []
    if facts["kernels"]:
        told.append(
            f"{human.counted(facts['kernels'], 'kernel')} of "
            f"{human.counted(facts['distinct_kernel_names'], 'name')}"
        )
    elif facts["cpu_operators"]:
        leaf = "CPU operator" if facts["operators"] else "CPU range"
        told.append(f"no device work; {human.counted(facts['cpu_operators'], leaf)}")
    else:
        told.append("no device work")
    if facts["steps"]:
        marked = f"{facts['step_numbers']}, {facts['step_marker']}"
        told.append(f"{human.counted(facts['steps'], 'step')} ({marked})")
    else:
        told.append("no steps marked")
    if facts["rank"] is not None:
        of = "" if facts["world_size"] is None else f" of {facts['world_size']}"
        told.append(f"rank {facts['rank']}{of}")
    told.append(_format(overview))
    return Text(plain(" · ".join(told)), style="dim")


def _step(overview: Overview) -> Text:
    frame = overview.steps.frame.filter(~pl.col("warm_up"))
    figures = overview.step_figures
    line = Text("step     ", style="dim")
    line.append(human.duration(figures["wall_ns"]), style="bold")
    if frame.height > 1:
        walls = frame["wall_ns"].to_list()
        least, most = (human.duration(one) for one in (min(walls), max(walls)))
        mean = human.duration(figures["mean_wall_ns"])
        line.append(f" median · {mean} mean · {least} to {most} range", style="not bold")
    if figures["busy_share"] is not None:
        busy = f" · {overview.place} busy {human.share(figures['busy_share'])} of it"
        line.append(busy, style="not bold")
    return line


def _busy(overview: Overview) -> list[Text]:
    frame = overview.busy.frame
    totals = overview.busy.totals
    line = Text(f"{overview.place}      ", style="dim")
    share = totals["busy_ns"] / totals["span_ns"] if totals["span_ns"] else 0.0
    selected = "selected_steps" in overview.facts["properties"]
    looked_at = "selected steps" if selected else "capture"
    line.append(f"busy {human.share(share)}", style="bold")
    line.append(
        f" of the {looked_at}: {human.duration(totals['busy_ns'])} of "
        f"{human.duration(totals['span_ns'])}; durations sum to {human.duration(totals['sum_ns'])}",
        style="not bold",
    )
    if frame.height == 1:
        return [line]
    ranked = frame["rank"].null_count() == 0
    rows = frame.select("rank", "device", "busy_ns", "span_ns").iter_rows()
    each = [
        f"{f'{rank}/{device}' if ranked else device}: {human.share(busy / span)}"
        for rank, device, busy, span in rows
        if span
    ]
    by = "by rank/device" if ranked else "by device"
    return [line, Text(f"         busy {by}  {', '.join(each)}", style="dim")]

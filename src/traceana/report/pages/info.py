"""``info``: contents and integrity of a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import PurePath
from shlex import join
from typing import TYPE_CHECKING, Any, Final

from traceana.analyze.facts import as_table, facts
from traceana.report import display_names, numbers
from traceana.report.page import Data, Facts, Page, Rows
from traceana.report.result import CommandResult
from traceana.result import Arranged
from traceana.trace import RECORDED_WITH
from traceana.trace.ledger import REASONS
from traceana.trace.schema import CPU_DEVICE

if TYPE_CHECKING:
    from traceana.trace import Trace

Known = Mapping[str, Any]

_LABELS: Final[Mapping[str, str]] = {
    "cpu": "CPU",
    "cpu_cores": "CPU cores",
    "cuda_driver_version": "CUDA driver",
    "cuda_traced": "CUDA traced",
    "cupti_version": "CUPTI",
    "skips_some_api_calls": "Skips some API calls",
    "cuda_runtime_version": "CUDA runtime",
    "cuda_graph_trace": "CUDA graph trace",
    "driver_version": "Driver",
    "host": "Host name",
    "hostnames": "Host names",
    RECORDED_WITH: "Commit",
}
"""The labels of properties; others have their name."""
_NOTED: Final = (
    *("several_reports", "unmatched", "lost_field", "other_recording", "missing_rank"),
    *("windows", "not_demangled", "graph_unknown"),
)
"""Notes of the ledger that a sound recording need not have; others are counted together."""
_CUDA: Final = ("cuda_driver_version", "cuda_runtime_version")
"""Versions that CUDA writes as one number: 12040 is 12.4."""
_UNKNOWN: Final = "unknown"


def info(trace: Trace) -> CommandResult:
    """Return the facts of the trace, one per row."""
    details = facts(trace)

    def page(shown: Arranged) -> Page:
        rows = ((label[:1].upper() + label[1:], text) for label, text in _lines(details) if text)
        data = Data(Rows(shown.frame, columns=shown.columns), whole=details)
        return Page("info", (Facts(tuple(rows)),), data)

    return CommandResult.of(as_table(details), page)


def _lines(details: Known) -> Iterator[tuple[str, str]]:
    """Yield labels and values; a value that is not known is empty."""

    def number(value: int | None) -> str:
        return numbers.count(value) if value else ""

    def timed(count: int, time_ns: int) -> str:
        # Activities of a printed summary may have sizes alone.
        return f"{numbers.count(count)}{_in(time_ns)}" if count else ""

    yield "file", details["file"]
    yield "format", display_names.file_format(details["format"], details["format_version"])
    yield "producer", details["producer"] or ""
    yield "framework", details["framework"] or ""
    if (epoch_ns := details["epoch_ns"]) is not None:
        try:
            moment = f"{datetime.fromtimestamp(epoch_ns // 10**9, UTC):%Y-%m-%d %H:%M:%S} UTC"
        except (OverflowError, ValueError, OSError):
            moment = f"{epoch_ns} ns after 1970"
        yield "recorded", moment
    if details["rank"] is not None:
        of = "" if details["world_size"] is None else f" of {details['world_size']}"
        yield "rank", f"{details['rank']}{of}"
    if details["span_ns"] is not None:
        every = " over all ranks" if details["ranks"] else ""
        yield "capture", f"{numbers.duration(details['span_ns'])}{every}, as recorded"
    several = len({device["rank"] for device in details["devices"]}) > 1
    for device in details["devices"]:
        rank = f"rank {device['rank']}: " if several else ""
        yield "device", rank + _device(device)
    if kernels := timed(details["kernels"], details["kernel_ns"]):
        yield "kernels", f"{kernels}, {numbers.counted(details['distinct_kernel_names'], 'name')}"
    if copies := details["memcpy"].items():
        each = (f"{numbers.count(count)} {display_names.part(kind)}" for kind, count in copies)
        yield "copies", f"{', '.join(each)}{_in(details['memcpy_ns'])}"
    yield "memsets", timed(details["memset"], details["memset_ns"])
    yield "synchronizations", number(details["synchronizations"])
    yield "CPU operators", timed(details["cpu_operators"], details["cpu_operator_ns"])
    if details["steps"]:
        yield "steps", f"{details['steps']} ({details['step_numbers']}, {details['step_marker']})"
    yield "layers", number(details["layers"])
    host = {"operator": "operators", "runtime call": "calls", "range": "ranges"}
    parts = (numbers.counted(details[of], noun) for noun, of in host.items() if details[of])
    yield "host events", ", ".join(parts)
    yield "counters", _counters(details)
    yield "summary", _summary(details)
    yield "memory", _memory(details)
    yield "events", number(details["events"])
    if details["bytes_read"] is not None and details["bytes_total"]:
        read, total = (numbers.count(details[name]) for name in ("bytes_read", "bytes_total"))
        cut = f"{read} of {total} bytes: truncated file"
        yield "read", cut if details["truncated"] else numbers.size(details["bytes_total"])
    yield from _integrity(details["ledger"])
    for key, value in details["properties"].items():
        if key == RECORDED_WITH and isinstance(value, Mapping):
            value = value.get("commit", "")
        if key == "ranks" and isinstance(value, Mapping):
            value = {rank: PurePath(file).name for rank, file in value.items()}
        if key == "windows" and isinstance(value, Mapping):
            value = tuple(PurePath(file).name for file in value)
        yield _LABELS.get(key, key.replace("_", " ")), _property(key, value)


def _in(time_ns: int) -> str:
    return f" in {numbers.duration(time_ns)}" if time_ns else ""


def _integrity(ledger: list[Known]) -> Iterator[tuple[str, str]]:
    """Yield the entries of the ledger, joined if only rank and number differ.

    The last line counts the normal notes.
    """
    alike: dict[tuple[Any, ...], list[Known]] = {}
    excluded = remarks = 0
    for entry in ledger:
        if entry["severity"] != "note" or entry["reason"] in _NOTED:
            key = tuple(entry[name] for name in ("severity", "reason", "table", "kept", "detail"))
            alike.setdefault(key, []).append(entry)
        elif entry["kept"]:
            remarks += 1
        else:
            excluded += entry["count"]
    for entries in alike.values():
        yield "integrity", _entry(entries)
    if excluded or remarks:
        parts = [numbers.counted(excluded, "event") + " excluded"] * bool(excluded)
        parts += [numbers.counted(remarks, "remark") + " on kept events"] * bool(remarks)
        sound = all(entry["severity"] == "note" for entry in ledger)
        yield "integrity", f"{'no problems; ' * sound}normal: {', '.join(parts)} (--format json)"


def _property(key: str, value: Any) -> str:
    if key in _CUDA and str(value).isdecimal():
        return f"{int(value) // 1000}.{int(value) % 1000 // 10}"
    if key == "command" and isinstance(value, list):
        return join(map(str, value))
    if isinstance(value, Mapping):
        items = (str(name) if item is None else f"{name}: {item}" for name, item in value.items())
        return ", ".join(items)
    text = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return "" if text == _UNKNOWN else text


def _device(device: Known) -> str:
    number = "cpu" if device["device"] == CPU_DEVICE else device["device"]
    parts = [str(number) if device["name"] is None else f"{number} {device['name']}"]
    parts += display_names.device_properties(device)
    parts.append(numbers.counted(device["activities"], "activity", "activities"))
    return ", ".join(parts)


def _counters(details: Known) -> str:
    counters = details["counters"]
    if counters is None:
        return ""
    launches = numbers.counted(counters["launches"], "launch", "launches")
    distinct = numbers.counted(counters["distinct_kernel_names"], "name")
    joined = f", {numbers.count(counters['joined'])} joined to the timeline"
    measured = ", ".join(counters["measured"]) or "no supported metric"
    return f"{launches} of {distinct}{joined if details['kernels'] else ''}: {measured}"


def _summary(details: Known) -> str:
    printed = details["summary"]
    if printed is None:
        return ""
    rows = numbers.counted(printed["rows"], "row")
    tables = numbers.counted(printed["tables"], "table")
    off = printed["plus_minus_ns"]
    exact = f" ± {numbers.duration(off)}" if off else ""
    time = printed["time_ns"]
    gpu_time = "not printed" if time is None else f"{numbers.duration(time)}{exact}"
    return f"{rows} of {tables}, no timeline: names, calls and times; GPU time {gpu_time}"


def _memory(details: Known) -> str:
    memory = details["memory"]
    if memory is None:
        return ""
    blocks = numbers.counted(memory["blocks"], "block")
    segments = numbers.counted(memory["segments"], "segment")
    sizes = (numbers.size(memory[f"{name}_bytes"]) for name in ("allocated", "reserved"))
    failed = memory["out_of_memory"]
    return (
        f"snapshot of {blocks} in {segments}, allocated {' of '.join(sizes)} reserved; history of "
        f"{numbers.counted(memory['history'], 'event')}"
        + f", {numbers.counted(failed, 'failed allocation')}"
        * bool(failed)
    )


def _entry(entries: list[Known]) -> str:
    """Return the sum of entries that differ only in rank and number."""
    first = entries[0]
    meaning = REASONS[first["reason"]][1]
    times = [entry["time_ns"] for entry in entries if entry["time_ns"] is not None]
    time = f" ({numbers.duration(sum(times))})" if times else ""
    detail = "" if first["detail"] is None else f" [{first['detail']}]"
    of = "" if first["table"] == "-" else f" of {first['table']}"
    ranks = [entry["rank"] for entry in entries if entry["rank"] is not None]
    rank = f" of {len(ranks)} ranks" if len(ranks) > 1 else f" of rank {ranks[0]}" if ranks else ""
    kept = "kept" if first["kept"] else "excluded"
    count = sum(entry["count"] for entry in entries)
    return f"{first['severity']}: {numbers.count(count)}{time}{of}{rank}, {kept}: {meaning}{detail}"

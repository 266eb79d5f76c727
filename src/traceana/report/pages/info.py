"""``info``: contents and integrity of a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import PurePath
from shlex import join
from typing import TYPE_CHECKING, Any, Final

from traceana.analyze.facts import as_table, facts
from traceana.report import display_names, numbers
from traceana.report.page import Data, Facts, Page, Rows
from traceana.report.result import CommandResult
from traceana.result import Arranged
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
}
"""The labels of properties; others have their name."""
_NOTED: Final = (
    *("several_reports", "unmatched", "lost_field", "other_recording", "missing_rank"),
    *("not_demangled", "graph_unknown"),
)
"""Notes of the ledger that a sound recording need not have; others are counted together."""
_CUDA: Final = ("cuda_driver_version", "cuda_runtime_version")
"""Versions that CUDA writes as one number: 12040 is 12.4."""
_UNKNOWN: Final = "unknown"


def info(trace: Trace) -> CommandResult:
    """Return the facts of the trace, one per row."""
    known = facts(trace)
    return CommandResult.of(as_table(known), partial(_page, known))


def _page(known: Known, shown: Arranged) -> Page:
    rows = tuple((label[:1].upper() + label[1:], text) for label, text in _lines(known) if text)
    return Page("info", (Facts(rows),), Data(Rows(shown.frame), whole=known))


def _lines(known: Known) -> Iterator[tuple[str, str]]:
    yield "file", known["file"]
    yield "format", display_names.file_format(known["format"], known["format_version"])
    yield "producer", _joined(known["producer"])
    yield "framework", _joined(known["framework"])
    yield "recorded", _moment(known["epoch_ns"])
    yield "rank", _rank(known)
    every = " over all ranks" if known["ranks"] else ""
    yield (
        "capture",
        "" if known["span_ns"] is None else f"{numbers.duration(known['span_ns'])}{every}",
    )
    for device in known["devices"]:
        yield "device", _device(device)
    yield "kernels", _kernels(known)
    yield "copies", _copies(known)
    yield "memsets", _timed(known["memset"], known["memset_ns"])
    yield "synchronizations", _number(known["synchronizations"])
    yield "CPU operators", _timed(known["cpu_operators"], known["cpu_operator_ns"])
    yield "steps", _steps(known)
    yield "layers", _number(known["layers"])
    yield "host events", _host(known)
    yield "counters", _counters(known)
    yield "summary", _summary(known)
    yield "events", _number(known["events"])
    yield "read", _read(known)
    normal = [entry for entry in known["ledger"] if _is_normal(entry)]
    apart = [entry for entry in known["ledger"] if not _is_normal(entry)]
    for entries in _alike(apart):
        yield "integrity", _entry(entries)
    if normal:
        excluded = sum(entry["count"] for entry in normal if not entry["kept"])
        remarks = sum(entry["kept"] for entry in normal)
        parts = [numbers.counted(excluded, "event") + " excluded"] * bool(excluded)
        parts += [numbers.counted(remarks, "remark") + " on kept events"] * bool(remarks)
        sound = all(entry["severity"] == "note" for entry in known["ledger"])
        yield "integrity", f"{'no problems; ' * sound}normal: {', '.join(parts)} (--format json)"
    for key, value in known["properties"].items():
        if key == "ranks" and isinstance(value, Mapping):
            value = {rank: PurePath(file).name for rank, file in value.items()}
        yield _LABELS.get(key, key.replace("_", " ")), _property(key, value)


def _is_normal(entry: Known) -> bool:
    return entry["severity"] == "note" and entry["reason"] not in _NOTED


def _alike(ledger: list[Known]) -> list[list[Known]]:
    """Return the entries of the ledger, those that differ in rank and number together."""
    found: dict[tuple[Any, ...], list[Known]] = {}
    for entry in ledger:
        key = tuple(entry[name] for name in ("severity", "reason", "table", "kept", "detail"))
        found.setdefault(key, []).append(entry)
    return list(found.values())


def _property(key: str, value: Any) -> str:
    if key in _CUDA and str(value).isdecimal():
        return f"{int(value) // 1000}.{int(value) % 1000 // 10}"
    if key == "command" and isinstance(value, list):
        return join(map(str, value))
    return "" if value == _UNKNOWN else _value(value)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {item}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _joined(*parts: Any) -> str:
    return " ".join(str(part) for part in parts if part is not None)


def _some(number: int | None, noun: str) -> str:
    return numbers.counted(number, noun) if number else ""


def _number(number: int | None) -> str:
    return numbers.count(number) if number else ""


def _timed(number: int, time_ns: int) -> str:
    return f"{numbers.count(number)}{_in(time_ns)}" if number else ""


def _moment(epoch_ns: int | None) -> str:
    if epoch_ns is None:
        return ""
    try:
        return f"{datetime.fromtimestamp(epoch_ns // 10**9, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{epoch_ns} ns after 1970"


def _rank(known: Known) -> str:
    of = "" if known["world_size"] is None else f" of {known['world_size']}"
    return "" if known["rank"] is None else f"{known['rank']}{of}"


def _device(device: Known) -> str:
    number = "cpu" if device["device"] == CPU_DEVICE else device["device"]
    parts = [_joined(number, device["name"])]
    if device["compute_capability"]:
        parts.append(f"compute capability {device['compute_capability']}")
    if device["multiprocessors"]:
        parts.append(f"{device['multiprocessors']} SMs")
    if device["memory_bytes"]:
        parts.append(numbers.size(device["memory_bytes"]))
    parts.append(numbers.counted(device["activities"], "activity", "activities"))
    return ", ".join(parts)


def _kernels(known: Known) -> str:
    timed = _timed(known["kernels"], known["kernel_ns"])
    return timed and f"{timed}, {numbers.counted(known['distinct_kernel_names'], 'name')}"


def _copies(known: Known) -> str:
    each = [
        f"{numbers.count(count)} {display_names.part(kind)}"
        for kind, count in known["memcpy"].items()
    ]
    return f"{', '.join(each)}{_in(known['memcpy_ns'])}" if each else ""


def _in(time_ns: int) -> str:
    """Return the time of activities as text: a printed summary may have sizes alone."""
    return f" in {numbers.duration(time_ns)}" if time_ns else ""


def _steps(known: Known) -> str:
    marked = f"{known['step_numbers']}, {known['step_marker']}"
    return f"{known['steps']} ({marked})" if known["steps"] else ""


def _host(known: Known) -> str:
    parts = [
        _some(known["operators"], "operator"),
        _some(known["calls"], "runtime call"),
        _some(known["ranges"], "range"),
    ]
    return ", ".join(part for part in parts if part)


def _counters(known: Known) -> str:
    counters = known["counters"]
    if counters is None:
        return ""
    launches = numbers.counted(counters["launches"], "launch", "launches")
    distinct = numbers.counted(counters["distinct_kernel_names"], "name")
    joined = f", {numbers.count(counters['joined'])} joined to the timeline"
    measured = ", ".join(counters["measured"]) or "no supported metric"
    return f"{launches} of {distinct}{joined if known['kernels'] else ''}: {measured}"


def _summary(known: Known) -> str:
    printed = known["summary"]
    if printed is None:
        return ""
    rows = numbers.counted(printed["rows"], "row")
    tables = numbers.counted(printed["tables"], "table")
    off = printed["plus_minus_ns"]
    exact = f" ± {numbers.duration(off)}" if off else ""
    time = printed["time_ns"]
    gpu_time = "not printed" if time is None else f"{numbers.duration(time)}{exact}"
    return f"{rows} of {tables}, no timeline: names, calls and times; GPU time {gpu_time}"


def _read(known: Known) -> str:
    if known["bytes_read"] is None or not known["bytes_total"]:
        return ""
    if not known["truncated"]:
        return numbers.size(known["bytes_total"])
    read, total = (numbers.count(known[name]) for name in ("bytes_read", "bytes_total"))
    return f"{read} of {total} bytes: truncated file"


def _entry(entries: list[Known]) -> str:
    """Return what entries that differ in rank and number alone add up to."""
    entry = entries[0]
    meaning = REASONS[entry["reason"]][1]
    times = [one["time_ns"] for one in entries if one["time_ns"] is not None]
    time = f" ({numbers.duration(sum(times))})" if times else ""
    detail = "" if entry["detail"] is None else f" [{entry['detail']}]"
    of = "" if entry["table"] == "-" else f" of {entry['table']}"
    ranks = [one["rank"] for one in entries if one["rank"] is not None]
    rank = f" of {len(ranks)} ranks" if len(ranks) > 1 else f" of rank {ranks[0]}" if ranks else ""
    kept = "kept" if entry["kept"] else "excluded"
    count = sum(one["count"] for one in entries)
    return f"{entry['severity']}: {numbers.count(count)}{time}{of}{rank}, {kept}: {meaning}{detail}"

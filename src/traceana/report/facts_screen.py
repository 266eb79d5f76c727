"""The facts of ``traceana info`` for people."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from traceana.report import human, words
from traceana.report.document import Paper
from traceana.report.terminal import draw
from traceana.report.text import plain
from traceana.trace.ledger import REASONS
from traceana.trace.schema import CPU_DEVICE

Facts = Mapping[str, Any]


def render(facts: Facts, paper: Paper) -> str:
    """Return ``facts`` as lines of a label and what it tells; unknown facts are left out."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, told in _lines(facts):
        if told:
            table.add_row(label, Text(plain(told)))
    return draw([table], paper)


def _lines(facts: Facts) -> list[tuple[str, str]]:
    lines = [
        ("file", facts["file"]),
        ("format", _joined(facts["format"], facts["format_version"])),
        ("producer", _joined(facts["producer"])),
        ("framework", _joined(facts["framework"])),
        ("recorded", _moment(facts["epoch_ns"])),
        ("rank", _rank(facts)),
        ("span", "" if facts["span_ns"] is None else human.duration(facts["span_ns"])),
    ]
    lines += [("device", _device(device)) for device in facts["devices"]]
    lines += [
        ("kernels", _kernels(facts)),
        ("copies", _copies(facts)),
        ("memory sets", _timed(facts["memset"], facts["memset_ns"])),
        ("waits", _some(facts["synchronizations"], "synchronization record")),
        ("CPU work", _timed(facts["cpu_operators"], facts["cpu_operator_ns"])),
        ("steps", _steps(facts)),
        ("layers", _number(facts["layers"])),
        ("host", _host(facts)),
        ("counters", _counters(facts)),
        ("events", _number(facts["events"])),
        ("read", _read(facts)),
    ]
    lines += [("ledger", _entry(entry)) for entry in facts["ledger"]]
    return lines + [(key.replace("_", " "), _value(v)) for key, v in facts["properties"].items()]


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {item}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _joined(*parts: Any) -> str:
    return " ".join(str(part) for part in parts if part is not None)


def _some(number: int | None, noun: str) -> str:
    return human.counted(number, noun) if number else ""


def _number(number: int | None) -> str:
    return human.count(number) if number else ""


def _timed(number: int, time_ns: int) -> str:
    return f"{human.count(number)} in {human.duration(time_ns)}" if number else ""


def _moment(epoch_ns: int | None) -> str:
    if epoch_ns is None:
        return ""
    try:
        return f"{datetime.fromtimestamp(epoch_ns // 10**9, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{epoch_ns} ns after 1970"


def _rank(facts: Facts) -> str:
    of = "" if facts["world_size"] is None else f" of {facts['world_size']}"
    return "" if facts["rank"] is None else f"{facts['rank']}{of}"


def _device(device: Mapping[str, Any]) -> str:
    number = "cpu" if device["device"] == CPU_DEVICE else device["device"]
    told = [_joined(number, device["name"])]
    if device["compute_capability"]:
        told.append(f"compute capability {device['compute_capability']}")
    if device["multiprocessors"]:
        told.append(f"{device['multiprocessors']} SMs")
    if device["memory_bytes"]:
        told.append(human.size(device["memory_bytes"]))
    told.append(human.counted(device["activities"], "activity", "activities"))
    return ", ".join(told)


def _kernels(facts: Facts) -> str:
    timed = _timed(facts["kernels"], facts["kernel_ns"])
    return timed and f"{timed}, {human.counted(facts['distinct_kernel_names'], 'name')}"


def _copies(facts: Facts) -> str:
    each = [f"{human.count(count)} {words.part(kind)}" for kind, count in facts["memcpy"].items()]
    return f"{', '.join(each)} in {human.duration(facts['memcpy_ns'])}" if each else ""


def _steps(facts: Facts) -> str:
    marked = f"{facts['step_numbers']}, {facts['step_marker']}"
    return f"{facts['steps']} ({marked})" if facts["steps"] else ""


def _host(facts: Facts) -> str:
    told = [
        _some(facts["operators"], "operator"),
        _some(facts["calls"], "runtime call"),
        _some(facts["ranges"], "range"),
    ]
    return ", ".join(part for part in told if part)


def _counters(facts: Facts) -> str:
    counters = facts["counters"]
    if counters is None:
        return ""
    launches = human.counted(counters["launches"], "launch", "launches")
    names = human.counted(counters["distinct_kernel_names"], "name")
    joined = f", {human.count(counters['joined'])} of them kernels of the timeline"
    return (
        f"{launches} of {names} measured{joined if facts['kernels'] else ''}: "
        f"{', '.join(counters['measured']) or 'nothing that traceana knows'}"
    )


def _read(facts: Facts) -> str:
    if facts["bytes_read"] is None or not facts["bytes_total"]:
        return ""
    if not facts["truncated"]:
        return f"all {human.size(facts['bytes_total'])}"
    of = f"{human.count(facts['bytes_read'])} of {human.count(facts['bytes_total'])} bytes"
    return f"{of}: the file ends in the middle"


def _entry(entry: Mapping[str, Any]) -> str:
    says = REASONS[entry["reason"]][1]
    time = "" if entry["time_ns"] is None else f" ({human.duration(entry['time_ns'])})"
    detail = "" if entry["detail"] is None else f" [{entry['detail']}]"
    of = "" if entry["table"] == "-" else f" of {entry['table']}"
    rank = "" if entry["rank"] is None else f" of rank {entry['rank']}"
    kept = "kept" if entry["kept"] else "left out"
    return (
        f"{entry['severity']}: {human.count(entry['count'])} {entry['reason']}{time}"
        f"{of}{rank}, {kept}: {says}{detail}"
    )

"""Changes between two runs in sentences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from traceana.report import human, words
from traceana.report.text import plain

Row = dict[str, Any]


def sentence(row: Row) -> str:
    """Return what changed, and what it does to a step."""
    says = _SENTENCES[row["change"]](row)
    if row["change"] == "launches":
        return f"{says}."
    return f"{says}: {arrow(row['time_a_ns'], row['time_b_ns'])} a step ({_effect(row)})."


def arrow(before: int, after: int) -> str:
    """Return two durations with one unit: ``12.35 -> 14.10 ms``."""
    unit = human.time_unit([before, after])
    return f"{_short(before, unit)} -> {_short(after, unit)} {unit[1]}"


def signed(value: int) -> str:
    """Return a duration with its sign: ``+1.25 ms``."""
    return f"{'+' if value > 0 else ''}{human.duration(value)}"


def percent(value: float) -> str:
    """Return a relative difference with its sign: ``+2.3 %``."""
    return f"{100 * value:+.1f} %"


def _short(value: int, unit: human.Unit) -> str:
    return human.ratio(value / unit[0]) if unit[0] > 1 else f"{value:,}"


def _effect(row: Row) -> str:
    told = signed(row["delta_ns"])
    if row["of_step"] is not None and row["change"] != "batch":
        told += f", {percent(row['of_step'])} of the step"
    return f"{told}, {row['verdict']}" if row["verdict"] in ("faster", "slower") else told


def _where(row: Row) -> str:
    a, b = plain(row["layer_a"] or "?"), plain(row["layer_b"] or "?")
    name = a if a == b else f"{a} / {b}"
    others = row["layers"] - 1
    return f"in {name}" + (f" and {human.counted(others, 'other layer')}" if others else "")


def _counts(row: Row) -> str:
    return f"{human.mean(row['count_a'])} -> {human.mean(row['count_b'])}"


def _algorithm(row: Row) -> str:
    of = f" ({plain(row['subject'])})" if row["subject"] else ""
    before, after = words.part(row["before"]), words.part(row["after"])
    return f"Another algorithm{of}, {before} -> {after}, {_where(row)}"


def _precision(row: Row) -> str:
    what = words.category(row["subject"])
    return f"Another precision of {what}, {plain(row['before'])} -> {plain(row['after'])}, " + (
        _where(row)
    )


def _tensor_cores(row: Row) -> str:
    verb = "uses" if row["after"] == "true" else "no longer uses"
    return f"{words.category(row['subject'])} {verb} tensor cores {_where(row)}"


def _copies(row: Row) -> str:
    return f"Copies {words.part(row['subject'] or 'unknown')}, {_counts(row)} a step"


def _memory(row: Row) -> str:
    direction = words.part(row["subject"] or "unknown")
    return f"Host memory of copies {direction}, {row['before']} -> {row['after']}"


def _kernels(row: Row) -> str:
    a, b = (human.counted(round(row[f"count_{side}"]), "kernel") for side in ("a", "b"))
    return f"{a} only in A, {b} only in B (names)"


def _layers(row: Row) -> str:
    a, b = (human.counted(round(row[f"count_{side}"]), "layer") for side in ("a", "b"))
    return f"{a} only in A, {b} only in B"


_SENTENCES: Final[dict[str, Callable[[Row], str]]] = {
    "batch": lambda row: f"Another batch, {row['before']} -> {row['after']} images",
    "idle": lambda _: "Idle time of the device",
    "data_loader": lambda _: "The host waits for the data loader",
    "communication": lambda row: f"Collectives, {_counts(row)} a step",
    "copies": _copies,
    "host_memory": _memory,
    "layouts": lambda row: f"Changes of layout, {_counts(row)} a step",
    "launches": lambda row: f"Kernels a step, {_counts(row)}",
    "kernels": _kernels,
    "layers": _layers,
    "algorithm": _algorithm,
    "bias_apart": lambda row: f"The bias is a kernel of its own {_where(row)}",
    "bias_fused": lambda row: f"The bias is no kernel of its own any more {_where(row)}",
    "shape": lambda row: f"Another input, {row['before']} -> {row['after']}, {_where(row)}",
    "precision": _precision,
    "tensor_cores": _tensor_cores,
}

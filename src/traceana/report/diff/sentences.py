"""Changes between two runs in sentences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from traceana.report import human, words
from traceana.report.text import plain

Row = dict[str, Any]


def sentence(row: Row, *, whole: bool) -> str:
    """Return what changed, and what it does to a step, or to the ``whole`` run."""
    per, of = ("", "run") if whole else (" a step", "step")
    says = _SENTENCES[row["change"]](row, per)
    if row["change"] == "launches":
        return f"{says}."
    return f"{says}: {arrow(row['time_a_ns'], row['time_b_ns'])}{per} ({_effect(row, of)})."


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


def _effect(row: Row, of: str) -> str:
    told = signed(row["delta_ns"])
    if row["of_step"] is not None and row["change"] != "batch":
        told += f", {percent(row['of_step'])} of the {of}"
    verdict = _VERDICTS.get(row["verdict"])
    return told if verdict is None else f"{told}, {verdict}"


_VERDICTS: Final = {
    "faster": "faster",
    "slower": "slower",
    "same": "the same within noise",
    "inconclusive": "cannot be told from noise",
}


def _where(row: Row) -> str:
    a, b = plain(row["layer_a"] or "?"), plain(row["layer_b"] or "?")
    name = a if a == b else f"{a} / {b}"
    others = row["layers"] - 1
    return f"in {name}" + (f" and {human.counted(others, 'other layer')}" if others else "")


def _counts(row: Row) -> str:
    return f"{human.mean(row['count_a'])} -> {human.mean(row['count_b'])}"


def _algorithm(row: Row, _: str) -> str:
    of = f" ({plain(row['subject'])})" if row["subject"] else ""
    before, after = words.part(row["before"]), words.part(row["after"])
    return f"Another algorithm{of}, {before} -> {after}, {_where(row)}"


def _precision(row: Row, _: str) -> str:
    what = words.category(row["subject"])
    return f"Another precision of {what}, {plain(row['before'])} -> {plain(row['after'])}, " + (
        _where(row)
    )


def _tensor_cores(row: Row, _: str) -> str:
    verb = "uses" if row["after"] == "true" else "no longer uses"
    return f"{words.category(row['subject'])} {verb} tensor cores {_where(row)}"


def _copies(row: Row, per: str) -> str:
    return f"Copies {words.part(row['subject'] or 'unknown')}, {_counts(row)}{per}"


def _memory(row: Row, _: str) -> str:
    direction = words.part(row["subject"] or "unknown")
    return f"Host memory of copies {direction}, {row['before']} -> {row['after']}"


def _kernels(row: Row, _: str) -> str:
    a, b = (human.counted(round(row[f"count_{side}"]), "kernel") for side in ("a", "b"))
    return f"{a} only in A, {b} only in B (names)"


def _layers(row: Row, _: str) -> str:
    a, b = (human.counted(round(row[f"count_{side}"]), "layer") for side in ("a", "b"))
    told = f"{a} only in A, {b} only in B"
    for side, of in (("A", "before"), ("B", "after")):
        if row[of] == "compiled":
            told += f" ({side}'s run in compiled functions, which hold several layers)"
    return told


def _compiled(row: Row, per: str) -> str:
    return f"Work of compiled functions (torch.compile), {_counts(row)} kernels{per}"


_SENTENCES: Final[dict[str, Callable[[Row, str], str]]] = {
    "batch": lambda row, _: f"Another batch, {row['before']} -> {row['after']} images",
    "idle": lambda *_: "Idle time of the device",
    "data_loader": lambda *_: "The host waits for the data loader",
    "communication": lambda row, per: f"Collectives, {_counts(row)}{per}",
    "copies": _copies,
    "host_memory": _memory,
    "layouts": lambda row, per: f"Changes of layout, {_counts(row)}{per}",
    "launches": lambda row, per: f"Kernels{per}, {_counts(row)}",
    "kernels": _kernels,
    "compiled": _compiled,
    "layers": _layers,
    "algorithm": _algorithm,
    "bias_apart": lambda row, _: f"The bias is a kernel of its own {_where(row)}",
    "bias_fused": lambda row, _: f"The bias is no kernel of its own any more {_where(row)}",
    "shape": lambda row, _: f"Another input, {row['before']} -> {row['after']}, {_where(row)}",
    "weight": lambda row, _: (
        f"Weight shape changed, {row['before']} -> {row['after']}, {_where(row)}"
    ),
    "memory_format": lambda row, _: (
        f"Memory format changed, {row['before']} -> {row['after']}, {_where(row)}"
    ),
    "precision": _precision,
    "tensor_cores": _tensor_cores,
}

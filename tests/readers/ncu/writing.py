"""Writes tables as ``ncu --csv`` prints them; no recorded table is available."""

from __future__ import annotations

from pathlib import Path

FACTS = [
    "ID",
    "Process ID",
    "Process Name",
    "Host Name",
    "Kernel Name",
    "Context",
    "Stream",
    "Block Size",
    "Grid Size",
    "Device",
    "CC",
]
BEFORE = "==PROF== Connected to process 7 (/usr/bin/python)\nstep 1, loss 0.25\n"
BEHIND = "==PROF== Disconnected from process 7\n"

Launch = tuple[str, dict[str, str]]


def facts(number: int, name: str) -> list[str]:
    """Return the columns that every page has, of one launch."""
    place = ["1", "7", "(256, 1, 1)", "(4, 2, 1)", "0", "8.0"]
    return [str(number), "7", "python", "host", name, *place]


def line(cells: list[str]) -> str:
    """Return one line of quoted cells."""
    return ",".join('"' + cell.replace('"', '""') + '"' for cell in cells) + "\n"


def raw(path: Path, units: dict[str, str], launches: list[Launch]) -> Path:
    """Write the page ``raw``: a column a metric, their units in a row of their own."""
    text = line([*FACTS, *units]) + line([*[""] * len(FACTS), *units.values()])
    for number, (name, values) in enumerate(launches):
        text += line([*facts(number, name), *(values.get(metric, "") for metric in units)])
    path.write_text(BEFORE + text + BEHIND)
    return path


def details(path: Path, units: dict[str, str], launches: list[Launch]) -> Path:
    """Write the page ``details``: a row a metric, and a row of advice between."""
    rule = ["Rule Name", "Rule Type", "Rule Description"]
    names = ["Section Name", "Metric Name", "Metric Unit", "Metric Value"]
    text = line([*FACTS, *names, *rule])
    for number, (name, values) in enumerate(launches):
        fixed = facts(number, name)
        for metric, value in values.items():
            text += line([*fixed, "Command line profiler metrics", metric, units[metric], value])
        text += line([*fixed, "Occupancy", "", "", "", "Tail", "OPT", "Two lines,\nof advice"])
    path.write_text(BEFORE + text + BEHIND)
    return path

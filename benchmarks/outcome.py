"""The result of a benchmark, printed as a table and written as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import machine


@dataclass(frozen=True, slots=True)
class Target:
    """A predefined bound of a figure."""

    what: str
    bound: float
    reached: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the figure is within the bound."""
        return self.reached >= self.bound if self.at_least else self.reached <= self.bound


@dataclass(frozen=True, slots=True)
class Outcome:
    """A benchmark's rows, targets and notes."""

    benchmark: str
    input: dict[str, Any]
    rows: list[dict[str, Any]]
    targets: list[Target]
    notes: list[str] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=machine.facts)

    def show(self) -> None:
        """Print the outcome as text."""
        print(f"\n{self.benchmark}: " + ", ".join(f"{k} {v}" for k, v in self.input.items()))
        print(table(self.rows))
        for target in self.targets:
            verdict = "met" if target.met else "MISSED"
            sign = "at least" if target.at_least else "at most"
            print(f"{verdict}: {target.what} {target.reached:.3g}, target {sign} {target.bound:g}")
        for note in self.notes:
            print(f"note: {note}")

    def save(self, folder: Path) -> Path:
        """Write the outcome as ``<benchmark>.json``; return the file."""
        folder.mkdir(parents=True, exist_ok=True)
        document = {
            "benchmark": self.benchmark,
            "machine": self.machine,
            "input": self.input,
            "rows": self.rows,
            "targets": [
                {
                    "what": target.what,
                    "at_least" if target.at_least else "at_most": target.bound,
                    "reached": target.reached,
                    "met": target.met,
                }
                for target in self.targets
            ],
            "notes": self.notes,
        }
        path = folder / f"{self.benchmark}.json"
        path.write_text(json.dumps(document, indent=2) + "\n")
        return path


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return ``rows`` as a text table; columns are all keys, in order of appearance."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [columns, *([_cell(row.get(column)) for column in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if i == 0 else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    if isinstance(value, dict):  # see benchmarks.measure.spread
        return f"{value['median']:.3g} ({value['least']:.3g}-{value['greatest']:.3g})"
    return f"{value:,}" if isinstance(value, int) else str(value)

"""The pages that Nsight Compute prints as text, as the cells of its page ``details`` in CSV."""

from __future__ import annotations

import re
from typing import Final

import polars as pl

from traceana.ingest.printed_text import plain_text, printed_lines

_LAUNCH: Final = re.compile(
    r"(.+?)(?:, \d{4}-\w{3}-\d{2} \d{2}:\d{2}:\d{2})?"
    r"(?: (\(\d+, \d+, \d+\))x(\(\d+, \d+, \d+\)))?"
    r", Context (\d+), Stream (\d+)(?:, Device (\d+))?(?:, CC [\d.]+)?"
)
_PROCESS: Final = re.compile(r"\[(\d+)\] .+@.+")
_METRIC: Final = re.compile(r"(\S(?:\S| (?! ))*?)(?: {2,}(\S+))? {2,}(\S+)")
_RULER: Final = re.compile(r"-{5,}(?: -{5,})*")
_TITLE: Final = "Metric Name"
_COLUMNS: Final = (
    *("ID", "Process ID", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size", "Device"),
    *("Section Name", "Metric Name", "Metric Unit", "Metric Value"),
)


def cells(content: bytes) -> pl.DataFrame:
    """Return a row for each metric of each launch in ``content``, with the titles of the CSV."""
    rows: list[tuple[str | None, ...]] = []
    launch: tuple[str | None, ...] = ()
    process, section, in_table, number = None, None, False, -1
    for line in printed_lines(plain_text(content))["line"].str.strip_chars(" \t").to_list():
        if match := _PROCESS.fullmatch(line):
            process = match[1]
        elif match := _LAUNCH.fullmatch(line):
            number += 1
            name, grid, block, context, stream, device = match.groups()
            launch = (str(number), process, name, context, stream, block, grid, device)
            section, in_table = None, False
        elif line.startswith("Section: "):
            section, in_table = line.removeprefix("Section: "), False
        elif _RULER.fullmatch(line):
            in_table = section is not None
        elif in_table and launch and not line.startswith(_TITLE):
            if match := _METRIC.fullmatch(line):
                rows.append((*launch, section, match[1], match[2] or "", match[3]))
            else:
                in_table = False
    return pl.DataFrame(rows, schema=dict.fromkeys(_COLUMNS, pl.String), orient="row")

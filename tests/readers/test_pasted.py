"""Printed text as logs, launchers, editors and web pages leave it is read as if it were alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

from tests.readers.ncu.test_reader import LAUNCHES, UNITS
from tests.readers.ncu.test_text import PAGE
from tests.readers.ncu.writing import details
from tests.readers.nvprof import test_metrics, test_printed
from tests.readers.summary import writing
from tests.readers.summary.writing import ROWS, Row
from traceana.errors import TraceanaError, UnknownFormatError
from traceana.readers import read
from traceana.readers.source import silent

SUMMARIES: dict[str, str] = {
    "nvprof": writing.nvprof_text(ROWS),
    "nvprof CSV": writing.nvprof_csv(ROWS),
    "nsys": writing.nsys_2023(ROWS),
    "torch": writing.torch_table(ROWS),
}
TEXTS: dict[str, str] = SUMMARIES | {
    "GPU trace": test_printed.TEXT,
    "GPU trace, CSV": test_printed.CSV,
    "metrics": test_metrics.TEXT,
    "metrics, CSV": test_metrics.CSV,
    "ncu": PAGE,
}
PREFIXES = {
    "mpirun": "[1,{n}]<stdout>:",
    "srun": "{n}: ",
    "time": "2021-03-04 12:01:{n:02}.123456 ",
    "time and level": "2021-03-04 12:01:02,{n:03} - INFO - ",
    "glog": "I0304 12:01:02.{n:06}  1234 prof.cc:33] ",
    "compose": "worker_1  | ",
    "ray": "(RayTrainWorker pid=123, ip=10.0.0.1) ",
    "line numbers": "{n:>5}\t",
    "comment": "// ",
    "list": " * ",
    "diff": "+",
}


def equal(path: Path, text: str, changed: str) -> None:
    (path / "a.txt").write_text(text)
    (path / "b.txt").write_text(changed)
    first, second = (read(path / name, silent) for name in ("a.txt", "b.txt"))
    assert first.meta.format == second.meta.format
    assert first.meta.events == second.meta.events
    for table in ("summary", "activities", "calls", "counters", "ledger"):
        assert_frame_equal(first.tables[table], second.tables[table])
    assert first.tables.names["name"].to_list() == second.tables.names["name"].to_list()


@pytest.mark.exhaustive(after=40)
@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("text", TEXTS)
def test_what_stands_before_each_line_is_left_out(tmp_path: Path, text: str, prefix: str) -> None:
    before = PREFIXES[prefix]
    # The rank is the same in all lines; a time and a line's number are not.
    moving = prefix not in ("mpirun", "srun")
    changed = "".join(
        f"{before.format(n=n if moving else 3)}{line}\n"
        for n, line in enumerate(TEXTS[text].splitlines())
    )
    equal(tmp_path, TEXTS[text], changed)


PASTES: dict[str, Callable[[str], str]] = {
    "blank lines": lambda text: text.replace("\n", "\n\n"),
    "spaces behind": lambda text: text.replace("\n", "   \n"),
    "no-break spaces": lambda text: text.replace("  ", "\u00a0 "),
    "entities": lambda text: text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"),
    "progress": lambda text: "40%|##  | 4/10\r" + text.replace("\n", "\r\n"),
    "colours": lambda text: text.replace("  ", " \x1b[1m \x1b[0m").replace(",", "\x1b(B,"),
    "quote": lambda text: "".join(f"> {line}\n" for line in text.splitlines()),
    "indented": lambda text: "".join(f"        {line}\n" for line in text.splitlines()),
}


@pytest.mark.exhaustive(after=36)
@pytest.mark.parametrize("paste", PASTES)
@pytest.mark.parametrize("text", TEXTS)
def test_what_a_terminal_or_a_page_did_is_undone(tmp_path: Path, text: str, paste: str) -> None:
    equal(tmp_path, TEXTS[text], PASTES[paste](TEXTS[text]))


@pytest.mark.parametrize("text", ["nvprof", "nsys", "torch", "GPU trace", "metrics"])
def test_columns_that_a_spreadsheet_separated(tmp_path: Path, text: str) -> None:
    changed = re.sub(r"(?<=\S) {2,}(?=\S)", "\t", TEXTS[text])
    if text == "nvprof":  # a type is of the rows below it
        changed = re.sub(r"^ +(?=[\d.]+%)", "\t", changed, flags=re.MULTILINE)
    equal(tmp_path, TEXTS[text], changed)


@pytest.mark.parametrize("paste", [*PASTES, *PREFIXES])
def test_a_csv_of_nsight_compute_in_a_log(tmp_path: Path, paste: str) -> None:
    text = details(tmp_path / "c.csv", UNITS, LAUNCHES).read_text()
    changed = "".join(f"{PREFIXES[paste].format(n=7)}{line}\n" for line in text.splitlines()) if (
        paste in PREFIXES
    ) else PASTES[paste](text)  # fmt: skip
    equal(tmp_path, text, changed)


@pytest.mark.parametrize("text", ["nvprof", "nsys", "torch"])
def test_ranks_that_print_at_once_are_told_apart(tmp_path: Path, text: str) -> None:
    write = {"nvprof": writing.nvprof_text, "nsys": writing.nsys_2023, "torch": writing.torch_table}
    other = [Row(row.name, row.calls + 2, row.total_ns * 2, row.kind) for row in ROWS]
    ranks = [write[text](rows).splitlines() for rows in (ROWS, other)]
    changed = "".join(
        f"[1,{rank}]<stdout>:{line}\n"
        for both in zip_longest(*ranks)
        for rank, line in enumerate(both)
        if line is not None
    )
    equal(tmp_path, "\n".join([*ranks[0], *ranks[1]]) + "\n", changed)


def test_tables_with_and_without_a_prefix_are_of_one_log(tmp_path: Path) -> None:
    table = writing.nvprof_text(ROWS)
    logged = "".join(f"[1,0]<stdout>:{line}\n" for line in table.splitlines())
    equal(tmp_path, table + table, table + logged)


def test_a_prefix_of_one_line_is_not_one(tmp_path: Path) -> None:
    table = writing.nvprof_text(ROWS)
    title = "Type  Time(%)"
    changed = table.replace("            Type  Time(%)", f"Profile: {title}")
    (tmp_path / "a.txt").write_text(changed)
    with pytest.raises(TraceanaError):
        read(tmp_path / "a.txt", silent)


def test_a_log_of_ranks_without_a_table_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("[1,0]<stdout>:epoch 1\n[1,1]<stdout>:epoch 1\n")
    with pytest.raises(UnknownFormatError, match="unrecognized format"):
        read(tmp_path / "a.txt", silent)

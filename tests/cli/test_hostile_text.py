"""Texts that could steer a terminal or break a table, in every output of every command."""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from tests.fuzz import seeds
from tests.support.every_command import COMMANDS, OF_TWO, printed

TEXTS: Final = {
    "steering": "\x1b[31m\x1b]0;t\x07\x9b2J\x00\x08\x7f",
    "lines": "a\nb\r\nc\x0b\x0cd\u2028e\u2029f\x85",
    "bidirectional": "\u202e\u2066abc\u2069\u200f\u061c\ufeff",
    "tables": '|a\\|b`c`,"d";\t=1+1 <b>[bold]x[/bold]</b> | --- |',
    "long": "nä " * 35_000,
}
LONG: Final = "long"
_WHOLE: Final = {
    "all": "".join(text for name, text in TEXTS.items() if name != LONG),
    LONG: TEXTS[LONG],
}
# A screen cuts long texts, so each is given alone. The other formats write them whole.
GIVEN: Final = {"table": TEXTS, "md": _WHOLE, "csv": _WHOLE, "json": _WHOLE}
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def hostile(text: str) -> bytes:
    """Return a trace with ``text`` in names of kernels, layers, operators, devices and metadata."""
    (seed,) = [one for one in seeds.of("kineto") if one.name == "gpu"]
    whole = json.loads(seed.files["run.json"])
    named: set[str] = set()
    for event in whole["traceEvents"]:
        # A long text in one name of each kind is as long as in all of them, and is read sooner.
        if len(text) < 1000 or event.get("cat") not in named:
            event["name"] = _named(event, text)
            named.add(event.get("cat"))
        if event["ph"] == "M":
            event["args"]["name"] = text
    whole["traceEvents"] += [
        {"ph": "X", "cat": f"cat{text}", "name": text, "ts": 1, "dur": 1, "pid": 1, "tid": text},
        {"ph": "X", "cat": "kernel", "name": text, "ts": 1, "dur": 1, "args": {text: text}},
    ]
    whole["deviceProperties"] = [{"id": 0, "name": text, "computeMajor": 7, "numSms": 80}]
    whole["distributedInfo"] = {"rank": 0, "world_size": 2, "backend": text}
    whole |= {
        "trace_name": text,
        "hostName": text,
        f"with_{text[:99]}": text,
        "schemaVersion": text,
    }
    return json.dumps(whole).encode()


def _named(event: dict[str, Any], text: str) -> str:
    name = str(event["name"])
    if name.startswith("nn.Module"):
        return f"nn.Module: Conv{text}_0"
    return f"{name}{text}" if event.get("cat") in ("kernel", "cpu_op", "user_annotation") else name


@pytest.fixture(scope="module")
def trace_with(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that writes a trace with a text, once."""

    @cache
    def write(text: str) -> Path:
        path = tmp_path_factory.mktemp("hostile") / "run.json"
        path.write_bytes(hostile(text))
        return path

    return write


def outputs(trace: Path, form: str) -> Iterator[tuple[str, str]]:
    for command in COMMANDS:
        given = (trace, trace) if command in OF_TWO else (trace,)
        yield command, printed(command, *given, form=form).decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "form"),
    [
        pytest.param(text, form, id=f"{name}-{form}")
        for form, texts in GIVEN.items()
        for name, text in texts.items()
    ],
)
def test_every_command_writes_text_that_steers_nothing_and_breaks_no_table(
    trace_with: Callable[[str], Path], given: str, form: str
) -> None:
    shown = 0
    for command, text in outputs(trace_with(given), form):
        assert not _CONTROLS.search(text.replace("\n", "")), command
        if form in ("table", "md"):
            kinds = {unicodedata.category(one) for one in set(text) - {"\n"}}
            assert not kinds & {"Cc", "Cf", "Zl", "Zp"}, command
        CHECKS[form](text, command)
        shown += bool(text)
    assert shown > len(COMMANDS) / 2


def _page(text: str, command: str) -> None:
    assert len(text) < 100_000, command


def _markdown(text: str, command: str) -> None:
    for block in re.split(r"\n\n+", text):
        widths = {
            len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines() if line[:1] == "|"
        }
        assert len(widths) <= 1, (command, block)


def _csv(text: str, command: str) -> None:
    csv.field_size_limit(1 << 24)
    assert len({len(row) for row in csv.reader(io.StringIO(text), strict=True)}) <= 1, command


def _json(text: str, command: str) -> None:
    assert not text or json.loads(text), command


CHECKS: Final = {"table": _page, "md": _markdown, "csv": _csv, "json": _json}

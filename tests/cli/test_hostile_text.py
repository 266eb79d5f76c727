"""Texts that could steer a terminal or break a table, in every output of every command."""

from __future__ import annotations

import csv
import html as html_module
import io
import json
import re
import unicodedata
from pathlib import Path
from typing import Any, Final

import pytest

from tests.fuzz import seeds
from tests.support.every_command import COMMANDS, OF_TWO, printed_in

TEXTS: Final = {
    "steering": "\x1b[31m\x1b]0;t\x07\x9b2J\x00\x08\x7f",
    "lines": "a\nb\r\nc\x0b\x0cd\u2028e\u2029f\x85",
    "bidirectional": "\u202e\u2066abc\u2069\u200f\u061c\ufeff",
    "tables": '|a\\|b`c`,"d";\t=1+1 <b>[bold]x[/bold]</b> | --- |',
    "long": "nä " * 35_000,
}
LONG: Final = "long"
# A screen cuts long texts, so each is given alone. The other formats write them whole.
GIVEN: Final = {
    **{name: (text, ("table",)) for name, text in TEXTS.items() if name != LONG},
    "all": ("".join(text for name, text in TEXTS.items() if name != LONG), ("md", "csv", "json")),
    LONG: (TEXTS[LONG], ("table", "md", "csv", "json")),
}
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


@pytest.mark.slow
@pytest.mark.exhaustive(after=1)
@pytest.mark.parametrize(("given", "forms"), GIVEN.values(), ids=GIVEN)
def test_every_command_writes_text_that_steers_nothing_and_breaks_no_table(
    tmp_path: Path, given: str, forms: tuple[str, ...]
) -> None:
    trace = tmp_path / "run.json"
    trace.write_bytes(hostile(given))
    shown = dict.fromkeys(forms, 0)
    for command in COMMANDS:
        files = (trace, trace) if command in OF_TWO else (trace,)
        for form, text in printed_in(forms, command, *files).items():
            assert not _CONTROLS.search(text.replace("\n", "")), command
            if form in ("table", "md"):
                kinds = {unicodedata.category(one) for one in set(text) - {"\n"}}
                assert not kinds & {"Cc", "Cf", "Zl", "Zp"}, command
            CHECKS[form](text, command)
            shown[form] += bool(text)
    assert min(shown.values()) > len(COMMANDS) / 2


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


LINKED: Final = (
    *("https://a.example/x?y=1", "HTTP://a.example", "www.a.example", "ftp://a.example"),
    *("me@a.example", "@somebody", "x @some-body", "#12", "owner/name#12", "!34"),
)
LINKS: Final = re.compile(r"(?i)://|www\.|@\w|[#!]\d")
"""What GitHub and GitLab make links of."""


def test_markdown_has_no_links_of_a_trace(tmp_path: Path) -> None:
    mistune = pytest.importorskip("mistune")
    (seed,) = [one for one in seeds.of("kineto") if one.name == "gpu"]
    whole = json.loads(seed.files["run.json"])
    kernels = [event for event in whole["traceEvents"] if event.get("cat") == "kernel"]
    for number, event in enumerate(kernels):
        event["name"] = LINKED[number % len(LINKED)]
    trace = tmp_path / "run.json"
    trace.write_text(json.dumps(whole))
    text = printed_in(("md",), "kernels", trace)["md"]
    page = mistune.create_markdown(plugins=["url", "table"])
    html = str(page(text))
    assert "<a " not in html
    shown = html_module.unescape(re.sub("<[^>]*>", "", html))
    assert not LINKS.search(shown), LINKS.search(shown)
    seen = [link for link in LINKED if link in shown.replace("\u200b", "")]
    assert len(seen) == min(len(kernels), len(LINKED))
    assert "<a " in str(page(text.replace("\u200b", "")))

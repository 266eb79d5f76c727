"""The console blocks of README and docs are what the commands print.

    python -m tools.consoles            # compare; exit status 1 and a diff where one is stale
    python -m tools.consoles --write    # write the stale ones anew

A block is fenced as ``console``; bash runs its lines ``$ command`` in a scratch folder, with
`fixtures/` at hand. A line ``…`` stands for lines left out. A comment above a block changes that,
for a recording that is shown as it was and never run, and for traces that are not in the
repository (several with a space between):

    <!-- recorded 2026-11-22, AMD EPYC (2 cores): why it is not run -->
    <!-- trace kineto/x.json.gz: whose, and its licence -->
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRACES = ROOT.parent / "shared" / "traces"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
LEFT_OUT = "…"

_BLOCK = re.compile(r"(?:<!-- (?P<mark>[^\n]*) -->\n)?```console\n(?P<body>.*?)```\n", re.DOTALL)
_MARK = re.compile(r"(?P<kind>recorded|trace) (?P<what>[^:]+)")


class BadBlockError(Exception):
    """A block that is not of a form this module knows."""


@dataclass(frozen=True, slots=True)
class Block:
    """A console block: its page, where its body begins and ends there, and the comment above."""

    page: Path
    start: int
    end: int
    body: str
    mark: str | None

    @property
    def place(self) -> str:
        """Where the block stands, as ``file:line``."""
        line = self.page.read_text(encoding="utf-8").count("\n", 0, self.start) + 1
        return f"{self.page.relative_to(ROOT)}:{line}"

    @property
    def runs_here(self) -> bool:
        """Whether the block can be run: it is not a recording, and its traces are at hand."""
        return not self._is("recorded") and all(trace.exists() for trace in self._traces)

    @property
    def _traces(self) -> list[Path]:
        match = _MARK.match(self.mark or "")
        if match is None or match["kind"] != "trace":
            return []
        return [TRACES / trace for trace in match["what"].split()]

    def _is(self, kind: str) -> bool:
        match = _MARK.match(self.mark or "")
        return match is not None and match["kind"] == kind

    def printed(self) -> str:
        """Return the block as its commands print it now, with the same lines left out.

        Raises :class:`BadBlockError` where the block begins with no command.
        """
        parts = _parts(self)
        with tempfile.TemporaryDirectory() as scratch:
            Path(scratch, "fixtures").symlink_to(ROOT / "fixtures")
            for trace in self._traces:
                Path(scratch, trace.name).symlink_to(trace)
            return "".join(
                f"$ {command}\n" + _shortened(_output(command, Path(scratch)), shown)
                for command, shown in parts
            )


def blocks(page: Path) -> Iterator[Block]:
    """Return the console blocks of a page."""
    for match in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        yield Block(page, match.start("body"), match.end("body"), match["body"], match["mark"])


def _parts(block: Block) -> list[tuple[str, list[str]]]:
    """Return each command of a block with the lines shown below it."""
    parts: list[tuple[str, list[str]]] = []
    for line in block.body.splitlines():
        if line.startswith("$ "):
            parts.append((line.removeprefix("$ "), []))
        elif not parts:
            raise BadBlockError(f"{block.place}: a console block begins with a line `$ command`")
        else:
            parts[-1][1].append(line)
    return parts


def _output(command: str, folder: Path) -> str:
    """Return what ``command`` prints on a terminal of 100 columns, errors included."""
    programs = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "COLUMNS": "100",
        "NO_COLOR": "1",
    }
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


def _shortened(output: str, shown: list[str]) -> str:
    """Return ``output`` without what ``shown`` leaves out: as many lines before and behind it."""
    lines = output.splitlines()
    if shown.count(LEFT_OUT) == 1:
        before = shown.index(LEFT_OUT)
        behind = len(shown) - before - 1
        if before + behind < len(lines):
            lines = [*lines[:before], LEFT_OUT, *lines[len(lines) - behind :]]
    return "".join(f"{line}\n" for line in lines)


def main(arguments: list[str]) -> int:
    """Compare all blocks, or write them; return the exit status."""
    write = arguments == ["--write"]
    stale = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in reversed(list(blocks(page))):
            if not block.runs_here:
                continue
            now = block.printed()
            if now == block.body:
                continue
            stale += 1
            if write:
                text = text[: block.start] + now + text[block.end :]
                print(f"{block.place}: written anew")
            else:
                lines = (block.body.splitlines(), now.splitlines())
                print("\n".join(difflib.unified_diff(*lines, block.place, "now", lineterm="")))
        if write:
            page.write_text(text, encoding="utf-8")
    if stale and not write:
        print(f"{stale} console blocks are stale: make docs")
    return int(bool(stale) and not write)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

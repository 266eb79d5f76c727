"""Checks that the console blocks of README and docs are the commands' output.

    python -m tools.consoles            # compare; exit status 1 and a diff where one is stale
    python -m tools.consoles --write    # update the stale ones

A block is fenced as ``console``; bash runs its lines ``$ command`` in a scratch folder with
`fixtures/`. A line that ends with a backslash continues on the next. A line ``…`` stands for
omitted lines. No line is wider than the page, 100 columns. A comment above a block marks a
recorded screen, which is not run again, or names traces that are not in the repository (separated
by spaces):

    <!-- recorded 2026-11-22, AMD EPYC (2 cores): why it is not run -->
    <!-- trace kineto/x.json.gz: whose, and its licence -->
    <!-- built x.json: a trace that tools/tutorials.py builds -->
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

from tools.tutorials import built

ROOT = Path(__file__).resolve().parents[1]
TRACES = ROOT.parent / "shared" / "traces"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
LEFT_OUT = "…"
WIDTH = 100
"""Columns of the terminal, and of the page."""

_BLOCK = re.compile(r"(?:<!-- (?P<mark>[^\n]*) -->\n)?```console\n(?P<body>.*?)```\n", re.DOTALL)
_MARK = re.compile(r"(?P<kind>recorded|trace|built) (?P<what>[^:]+)")


class BadBlockError(Exception):
    """A block in an unsupported form."""


@dataclass(frozen=True, slots=True)
class Block:
    """A console block: its page, the positions of its body, and the comment above."""

    page: Path
    start: int
    end: int
    body: str
    mark: str | None

    @property
    def position(self) -> str:
        """The position of the block, as ``file:line``."""
        line = self.page.read_text(encoding="utf-8").count("\n", 0, self.start) + 1
        return f"{self.page.relative_to(ROOT)}:{line}"

    @property
    def runs_here(self) -> bool:
        """Whether the block can be run: it is not a recording, and its traces exist."""
        return not self._is("recorded") and all(trace.exists() for trace in self._traces)

    @property
    def _traces(self) -> list[Path]:
        match = _MARK.match(self.mark or "")
        if match is None or match["kind"] == "recorded":
            return []
        folder = built() if match["kind"] == "built" else TRACES
        return [folder / trace for trace in match["what"].split()]

    def _is(self, kind: str) -> bool:
        match = _MARK.match(self.mark or "")
        return match is not None and match["kind"] == kind

    def printed(self) -> str:
        """Return the block with the current output of its commands, the same lines omitted.

        Raises :class:`BadBlockError` where the block does not begin with a command.
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
            raise BadBlockError(
                f"{block.position}: a console block must begin with a line `$ command`"
            )
        elif parts[-1][0].endswith("\\") and not parts[-1][1]:
            parts[-1] = (f"{parts[-1][0]}\n{line}", [])
        else:
            parts[-1][1].append(line)
    return parts


def _output(command: str, folder: Path) -> str:
    """Return what ``command`` prints on a terminal of ``WIDTH`` columns, errors included."""
    programs = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "COLUMNS": str(WIDTH),
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
    """Return ``output`` with as many lines before and after the omission as ``shown`` has."""
    lines = output.splitlines()
    if shown.count(LEFT_OUT) == 1:
        before = shown.index(LEFT_OUT)
        behind = len(shown) - before - 1
        if before + behind < len(lines):
            lines = [*lines[:before], LEFT_OUT, *lines[len(lines) - behind :]]
    return "".join(f"{line}\n" for line in lines)


def main(arguments: list[str]) -> int:
    """Compare all blocks, or write them; return 1 where one is stale or too wide."""
    write = arguments == ["--write"]
    stale = wide = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in reversed(list(blocks(page))):
            if max(map(len, block.body.splitlines()), default=0) > WIDTH:
                print(f"{block.position}: wider than {WIDTH} columns")
                wide += 1
            if not block.runs_here:
                continue
            now = block.printed()
            if now == block.body:
                continue
            stale += 1
            if write:
                text = text[: block.start] + now + text[block.end :]
                print(f"{block.position}: updated")
            else:
                lines = (block.body.splitlines(), now.splitlines())
                print("\n".join(difflib.unified_diff(*lines, block.position, "now", lineterm="")))
        if write:
            page.write_text(text, encoding="utf-8")
    if stale and not write:
        print(f"{stale} console blocks are out of date: run make docs")
    return int(bool(wide) or (bool(stale) and not write))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

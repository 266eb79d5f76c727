"""The output of every command for a trace, which is opened once.

As a program: the digests of that, a line of JSON for each file named on a line of its input.
"""

from __future__ import annotations

import gc
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from tests.support.command_line import run
from tests.support.opened import forget
from traceana.cli.output import Output
from traceana.errors import ExitCode
from traceana.report.render import Format
from traceana.report.result import CommandResult

COMMANDS = (
    *("report", "info", "advise", "kernels", "kernels --unclassified", "transfers", "critical"),
    *("critical --by line", "memory --by line", "idle --by line"),
    *("whatif", "whatif --replay"),
    *("transfers --collectives", "layers", "layers --direction", "layers --by type"),
    *("layers --depth 1", "flops", "flops --by class", "flops --explain", "critical --by segment"),
    *("idle", "idle --by operator", "idle --by range", "idle --by step", "idle --by gap"),
    *("lines", "lines --by stack", "memory", "memory --by layer", "compare", "diff"),
    *("samples", "samples --by class"),
)
OF_TWO = ("compare", "diff")


def printed(command: str, *files: Path, form: str) -> bytes:
    """Return the output of ``command``; empty if it ends with an error, other than an internal one.

    An internal error is raised.
    """
    result = run(*command.split(), *files, "--format", form)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code != ExitCode.INTERNAL, f"{command}: {result.stderr}"
    return result.stdout_bytes


def printed_in(forms: Sequence[str], command: str, *files: Path) -> dict[str, str]:
    """Return the output of ``command`` in each of ``forms``, none where it writes no page.

    It runs once: what a command finds is the same in every format.
    """
    found: dict[str, str] = {}
    write_page = Output.write_page

    def in_each(self: Output, result: CommandResult) -> None:
        for form in forms:
            with mock.patch.object(self, "_format", Format(form)):
                before = sys.stdout.buffer.tell()
                write_page(self, result)
                sys.stdout.buffer.seek(before)
                found[form] = sys.stdout.buffer.read().decode()

    with mock.patch.object(Output, "write_page", in_each):
        printed(command, *files, form=forms[0])
    return found


def as_json(command: str, file: Path) -> bytes:
    """Return the JSON of ``command`` on ``file``, compared with itself where it takes two."""
    return printed(command, *((file, file) if command in OF_TWO else (file,)), form="json")


def digest(text: bytes) -> str:
    """Return a digest of an output."""
    return hashlib.sha256(text).hexdigest()


if __name__ == "__main__":
    gc.set_threshold(100_000)
    for line in sys.stdin:
        file = Path(line.rstrip("\n"))
        digests = {command: digest(as_json(command, file)) for command in COMMANDS}
        forget()
        print(json.dumps(digests), flush=True)

"""What every command prints of a trace, the trace opened once.

As a program: the digests of it of files, as JSON.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from typer.testing import CliRunner

import traceana
from traceana.cli.main import app
from traceana.trace import Trace

COMMANDS = (
    *("report", "info", "advise", "kernels", "kernels --unclassified", "transfers", "critical"),
    *("layers", "layers --direction", "layers --by type", "layers --depth 1"),
    *("flops", "flops --by class", "flops --explain", "critical --by segment"),
    *("idle", "idle --by operator", "idle --by range", "idle --by step", "idle --by gap"),
    *("memory", "memory --by layer"),
)
OF_TWO = ("compare", "diff")


@contextmanager
def opened_once() -> Iterator[None]:
    """Open no file a second time; keep the last two traces."""
    kept: dict[str, Trace] = {}
    real = traceana.open

    def once(path: Any, **options: Any) -> Trace:
        key = repr((path, options.get("counters"), options.get("device_model")))
        if key not in kept:
            while len(kept) > 1:
                del kept[next(iter(kept))]
            kept[key] = real(path, **options)
        return kept[key]

    with mock.patch.object(traceana, "open", once):
        yield


def printed(command: str, *files: Path, form: str) -> bytes:
    """Return what ``command`` prints; an error message where it refuses."""
    words = [*command.split(), *map(str, files), "--format", form]
    result = CliRunner().invoke(app, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout_bytes


def digests(files: list[Path], forms: tuple[str, ...] = ("json",)) -> dict[str, str]:
    """Return a digest of what each command prints of each file in each form."""
    found = {}
    with opened_once():
        for file in files:
            for form in forms:
                for command in (*COMMANDS, *OF_TWO):
                    given = (file, file) if command in OF_TWO else (file,)
                    text = printed(command, *given, form=form)
                    found[f"{file} {command} {form}"] = hashlib.sha256(text).hexdigest()
    return found


if __name__ == "__main__":
    json.dump(digests([Path(name) for name in sys.argv[1:]]), sys.stdout)

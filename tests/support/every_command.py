"""The output of every command for a trace, which is opened once.

As a program: the digests of that, a line of JSON for each of the files that it is given.
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

import traceana
from tests.support.command_line import run
from traceana.trace import Trace

COMMANDS = (
    *("report", "info", "advise", "kernels", "kernels --unclassified", "transfers", "critical"),
    *("transfers --collectives", "layers", "layers --direction", "layers --by type"),
    *("layers --depth 1", "flops", "flops --by class", "flops --explain", "critical --by segment"),
    *("idle", "idle --by operator", "idle --by range", "idle --by step", "idle --by gap"),
    *("memory", "memory --by layer", "compare", "diff"),
)
OF_TWO = ("compare", "diff")


@contextmanager
def opened_once() -> Iterator[None]:
    """Open no file a second time; keep the last two traces."""
    kept: dict[str, Trace] = {}
    real = traceana.open

    def once(path: Any, **options: Any) -> Trace:
        key = repr(
            (path, options.get("counters"), options.get("device_model"), options.get("model"))
        )
        if key not in kept:
            while len(kept) > 1:
                del kept[next(iter(kept))]
            kept[key] = real(path, **options)
        return kept[key]

    with mock.patch.object(traceana, "open", once):
        yield


def printed(command: str, *files: Path, form: str) -> bytes:
    """Return the output of ``command``, or its error message."""
    result = run(*command.split(), *files, "--format", form)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout_bytes


def as_json(command: str, file: Path) -> bytes:
    """Return the JSON of ``command`` on ``file``, compared with itself where it takes two."""
    return printed(command, *((file, file) if command in OF_TWO else (file,)), form="json")


def digest(text: bytes) -> str:
    """Return a digest of an output."""
    return hashlib.sha256(text).hexdigest()


if __name__ == "__main__":
    with opened_once():
        for name in sys.argv[1:]:
            found = {command: digest(as_json(command, Path(name))) for command in COMMANDS}
            print(json.dumps(found), flush=True)

"""Every command prints the same bytes in two processes, whatever they hash and how many threads.

Of the traces at hand the smallest of each folder and kind of file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.manifest import FIXTURES, traces_at_hand

_BY_SIZE = sorted(
    (file for file in traces_at_hand() if file.is_file()),
    key=lambda file: file.stat().st_size,
    reverse=True,
)
FILES = list(
    {(file.parent, Path(file.name.removesuffix(".gz")).suffix): file for file in _BY_SIZE}.values()
)


def test_two_processes_print_the_same_bytes() -> None:
    command = [sys.executable, "-m", "tests.support.every_command", *map(str, FILES)]
    printed = []
    for seed, threads in (("1", "1"), ("2", "4")):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "POLARS_MAX_THREADS": threads}
        done = subprocess.run(
            command, cwd=FIXTURES.parent, env=environment, capture_output=True, check=True
        )
        printed.append(json.loads(done.stdout))
    first, second = printed
    assert len(first) > 10 * len(FILES)
    assert [what for what in first if first[what] != second[what]] == []

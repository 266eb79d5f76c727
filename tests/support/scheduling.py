"""How the workers of pytest-xdist share the tests."""

from __future__ import annotations

from functools import cache
from typing import Final

import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from tests.support.manifest import FIXTURES, TRACES

_LONGEST_FIRST: Final = ("frameworks", "slow")
_TOGETHER: Final = {
    "chromium": ("tests/report/html/",),
    "forked": (
        "tests/comparison/test_keras_names.py",
        "tests/comparison/test_networks.py",
        "tests/enrich/test_cpu.py",
        "tests/enrich/test_recorded_scopes.py",
        "tests/timeline/idle/test_real_loading.py",
        "tests/analyze/memory/test_recorded.py",
        "tests/model/test_frameworks_agree.py",
        "tests/model/test_keras.py",
        "tests/record/test_recorder.py",
        "tests/workloads/test_workload_agreement.py",
        "tests/workloads/test_workload_losses.py",
    ),
}
"""Files of one worker: one starts the browser, and one the processes that import Keras and PyTorch
for all that are forked of them, which takes seconds (forked.py)."""


class ByTrace(LoadFileScheduling):  # type: ignore[misc]
    """Gives all tests of one trace to one worker, which opens it once, and the others by file.

    Files that need the same process beside the worker are one.
    """

    def _split_scope(self, nodeid: str) -> str:
        file, _, parameters = nodeid.partition("[")
        for group, begins in _TOGETHER.items():
            if file.startswith(begins):
                return group
        # The trace is the last parameter, or the only one.
        parts = parameters.removesuffix("]").rpartition("/")[2].split("-")
        ends = ("-".join(parts[first:]) for first in range(len(parts)))
        return next((_traces()[end] for end in ends if end in _traces()), file.partition("::")[0])


@cache
def _traces() -> dict[str, str]:
    """Return the recorded traces by their names, as they stand in the tests' parameters.

    Some tests leave out the ending, which is the name of no other trace then.
    """
    # The folders of formats are no traces, and their names are other parameters' values.
    names = {
        path.name
        for folder in (TRACES, FIXTURES)
        for path in folder.rglob("*")
        if path.parent != folder or path.is_file()
    }
    short = {
        beginning: {name for name in names if name.startswith(f"{beginning}.")}
        for beginning in {name.partition(".")[0] for name in names}
    }
    one = {beginning: min(found) for beginning, found in short.items() if len(found) == 1}
    return {**one, **{name: name for name in names}}


def rank(item: pytest.Item) -> int:
    """Return the place of ``item`` among all tests: no worker ends with a long file."""
    marks = {mark.name for mark in item.iter_markers()}
    found = (n for n, name in enumerate(_LONGEST_FIRST) if name in marks)
    return next(found, len(_LONGEST_FIRST))

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
    "keras": (
        "tests/comparison/test_keras_names.py",
        "tests/enrich/test_recorded_scopes.py",
        "tests/idle/test_real_loading.py",
        "tests/model/test_frameworks_agree.py",
        "tests/model/test_keras.py",
        "tests/workloads/test_workload_agreement.py",
        "tests/workloads/test_workload_losses.py",
    ),
}
"""Files of one worker: one starts the browser, and one imports Keras, which takes seconds."""


class ByTrace(LoadFileScheduling):  # type: ignore[misc]
    """Gives all tests of one trace to one worker, which opens it once, and the others by file.

    Files that need the same process beside the worker are one.
    """

    def _split_scope(self, nodeid: str) -> str:
        file, _, parameters = nodeid.partition("[")
        for group, begins in _TOGETHER.items():
            if file.startswith(begins):
                return group
        name = parameters.removesuffix("]").rpartition("/")[2]
        return name if name in _traces() else file.partition("::")[0]


@cache
def _traces() -> frozenset[str]:
    """Return the names of the recorded traces, as they stand in the tests' parameters."""
    return frozenset(path.name for folder in (TRACES, FIXTURES) for path in folder.rglob("*"))


def rank(item: pytest.Item) -> int:
    """Return the place of ``item`` among all tests: no worker ends with a long file."""
    marks = {mark.name for mark in item.iter_markers()}
    found = (n for n, name in enumerate(_LONGEST_FIRST) if name in marks)
    return next(found, len(_LONGEST_FIRST))

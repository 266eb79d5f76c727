"""How the workers of pytest-xdist share the tests."""

from __future__ import annotations

from functools import cache
from typing import Final

import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from tests.support.manifest import FIXTURES, TRACES

_LONGEST_FIRST: Final = ("frameworks", "slow")


class ByTrace(LoadFileScheduling):  # type: ignore[misc]
    """Gives all tests of one trace to one worker, which opens it once, and the others by file."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, parameters = nodeid.partition("[")
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

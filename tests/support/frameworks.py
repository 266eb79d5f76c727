"""Which frameworks are installed, without importing them, and how they are imported sooner."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import pytest


def needs(*modules: str) -> None:
    """Skip the test, or the module that is imported, where one of ``modules`` is missing."""
    for module in modules:
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed", allow_module_level=True)


@contextmanager
def imported_sooner() -> Iterator[None]:
    """Let the processes that are started import their frameworks in less time."""
    paths = [str(Path(__file__).with_name("started")), os.environ.get("PYTHONPATH", "")]
    with mock.patch.dict(os.environ, {"PYTHONPATH": os.pathsep.join(filter(None, paths))}):
        yield

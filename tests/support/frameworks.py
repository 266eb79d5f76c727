"""Which frameworks are installed, without importing them: that takes seconds."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(*modules: str) -> None:
    """Skip the test, or the module that is imported, where one of ``modules`` is missing."""
    for module in modules:
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed", allow_module_level=True)

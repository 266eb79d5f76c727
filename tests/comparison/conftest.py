"""What the tests of comparisons share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_baselines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each test begins without saved baselines."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))

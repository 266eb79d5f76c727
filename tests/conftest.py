"""What holds for every test."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# A deadline measures the machine: two cores that others use as well fail it at random.
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")


@pytest.fixture(autouse=True)
def no_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No test sees the rules of whoever runs it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "no configuration"))


@pytest.fixture(scope="session")
def alexnets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a sweep of AlexNet in three frameworks, recorded once for all tests."""
    from tests.support.recorded import tiny

    return tiny(tmp_path_factory.mktemp("recorded") / "alexnet", "alexnet")

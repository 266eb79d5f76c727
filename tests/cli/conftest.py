"""Bundles of built traces, for the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.traces import TraceBuilder, cnn_steps


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bundle of ``cnn_steps``."""
    return cnn_steps().save(tmp_path_factory.mktemp("bundles") / "cnn")


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Return the bundle of a truncated trace with a problem in its ledger."""
    builder = TraceBuilder(truncated=True, bytes_read=600, bytes_total=1000)
    builder.kernel("k", 0, 10)
    builder.ledger.add("no_launch", 1, table="activities", kept=True)
    return builder.build().save(tmp_path / "damaged")


@pytest.fixture
def problematic(tmp_path: Path) -> Path:
    """Return the bundle of a whole trace with a problem and a note in its ledger."""
    builder = TraceBuilder()
    builder.kernel("k", 0, 10)
    builder.ledger.add("no_launch", 1200, table="activities", kept=True)
    builder.ledger.add("metadata", 3, table="-")
    return builder.build().save(tmp_path / "problematic")

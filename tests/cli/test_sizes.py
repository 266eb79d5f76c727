"""Every command on traces of long times and large copies, and on a large file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from benchmarks.generate_kineto import generate, read_source
from tests.support.column_types import ColumnTypes, Types
from tests.support.every_command import COMMANDS, as_json
from tests.support.manifest import FIXTURES
from tests.support.opened import forget
from tests.support.synthetic import write_kineto
from tests.support.synthetic.cnn import cnn_training
from traceana import readers
from traceana.trace import Trace
from traceana.trace.schema import SCHEMA

SCALE = 2**12
"""Brings the sums of some groups above 2^31 ns and leaves others below."""
SIZE = 200_000_000
ALEXNET = FIXTURES / "gpu" / "alexnet_b128.json.gz"


def scaled(trace: Trace) -> Trace:
    """Return ``trace`` with all times and sizes times :data:`SCALE`."""
    tables = {}
    for name, table in SCHEMA.items():
        columns = [
            column
            for column, of in table.columns.items()
            if of.dtype == pl.Int64 and (of.unit or "").startswith(("ns", "bytes"))
        ]
        tables[name] = trace.tables[name].with_columns(pl.col(column) * SCALE for column in columns)
    return trace.with_tables(**tables)


def types_of_all(file: Path) -> Types:
    """Return the types of all columns of numbers that the commands make on ``file``."""
    types = ColumnTypes()
    forget()
    with types.collected():
        for command in COMMANDS:
            types.command = command
            as_json(command, file)
    forget()
    return types.found()


def assert_types_ignore_values(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = types_of_all(file)
    read: Callable[..., Trace] = readers.read
    monkeypatch.setattr(readers, "read", lambda *args: scaled(read(*args)))
    large = types_of_all(file)
    shared = plain.keys() & large.keys()
    assert shared
    differing = {key: (plain[key], large[key]) for key in shared if plain[key] != large[key]}
    assert differing == {}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "file",
    [
        FIXTURES / "alexnet-cpu-ranges.json.gz",
        ALEXNET,
        FIXTURES / "gpu" / "resnet18_b32_memory.json.gz",
        FIXTURES / "gpu" / "alexnet_jax.xplane.pb.gz",
    ],
    ids=lambda file: file.name,
)
def test_column_types_of_a_recording_do_not_depend_on_values(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_types_ignore_values(file, monkeypatch)


@pytest.mark.exhaustive
def test_column_types_do_not_depend_on_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_types_ignore_values(write_kineto(cnn_training(), tmp_path / "a.json"), monkeypatch)


@pytest.mark.exhaustive
def test_every_command_on_a_large_file(tmp_path: Path) -> None:
    """A recording of AlexNet, repeated: 645 steps, 6 s of copies to the device."""
    file, _ = generate(read_source(ALEXNET), SIZE, tmp_path)
    for command in COMMANDS:
        as_json(command, file)
    forget()
    file.unlink()

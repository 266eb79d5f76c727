"""Forced pairs: both file formats, and one-line errors."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.comparison.shared import diff
from tests.support.training import training
from traceana.errors import ExitCode, InvalidInputError, NotFoundError

A = training(seed=1)
B = training(seed=2)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("map.toml", '# what became of them\n"conv1" = "conv2"\nconv2 = "conv1"\n'),
        ("map.csv", "a,b\nconv1,conv2\n\nconv2 , conv1\n"),
        ("map.CSV", "conv1,conv2\nconv2,conv1\n"),
    ],
)
def test_forced_pairs_are_rows(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    rows = diff(A, B, pairs=file).by("layer").filter(pl.col("how") == "map")
    assert set(rows.select("a", "b").iter_rows()) == {("conv1", "conv2"), ("conv2", "conv1")}
    assert set(rows["confidence"]) == {1.0}


def test_a_mapping_forces_pairs_too() -> None:
    rows = diff(A, B, pairs={"relu1": "relu2"}).by("layer").filter(pl.col("how") == "map")
    assert rows.select("a", "b").rows() == [("relu1", "relu2")]


@pytest.mark.parametrize(
    ("name", "text", "reported"),
    [
        (
            "m.toml",
            '"conv1" = "conv1"\n"nope" = "conv2"\n',
            ["line 2", "no layer 'nope' with work in the baseline"],
        ),
        ("m.toml", '"conv1" = "nope"\n', ["line 1", "no layer 'nope' with work in the candidate"]),
        ("m.toml", '"conv1" = "conv1"\n"conv2" = "conv1"\n', ["line 2", "paired twice"]),
        ("m.toml", '"conv1" = "conv1"\nconv2 = \n', ["line 2", "invalid TOML"]),
        ("m.toml", "a.b = 'conv1'\n", ["line 1", "in quotes"]),
        ("m.toml", '"conv1" = 3\n', ["line 1", "not a layer name"]),
        ("m.csv", "a,b\nconv1\n", ["line 2", "two layer names"]),
        ("m.csv", "conv1,conv1,conv1\n", ["line 1", "two layer names"]),
        ("m.csv", 'conv1,"conv1\n', ["invalid CSV"]),
    ],
)
def test_an_error_is_one_line_with_file_and_line(
    tmp_path: Path, name: str, text: str, reported: list[str]
) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(InvalidInputError) as caught:
        diff(A, B, pairs=file)
    message = str(caught.value)
    assert "\n" not in message
    assert str(file) in message
    for words in reported:
        assert words in message
    assert caught.value.exit_code is ExitCode.INVALID_FILE


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        diff(A, B, pairs=tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInputError, match="not text"):
        diff(A, B, pairs=tmp_path / "bytes.toml")

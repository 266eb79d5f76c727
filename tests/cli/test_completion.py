"""The completion of shells, as their scripts ask for it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.manifest import FIXTURES
from traceana.cli.reference import app


def completed(line: str) -> list[str]:
    """Return the completions of the last word of ``line`` in bash."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    variables = {**words, "_TRACEANA_COMPLETE": "complete_bash"}
    result = CliRunner().invoke(app, [], prog_name="traceana", env=variables)
    return result.stdout.split("\n")[:-1]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("traceana lay", ["layers"]),
        ("traceana report --qu", ["--quiet"]),
        ("traceana idle --by c", ["cause"]),
        ("traceana report --format m", ["md"]),
        ("traceana advise --rule host", ["host_bound", "host_synchronization"]),
        ("traceana advise --fail-on host_bound,alloc", ["host_bound,allocation"]),
        ("traceana advise --max idl", ["idle="]),
    ],
)
def test_words(line: str, expected: list[str]) -> None:
    assert completed(line) == expected


def test_classes_and_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = "alexnet-cpu-ranges"
    shutil.copy(FIXTURES / f"{name}.layers.json", tmp_path)
    (tmp_path / f"{name}.json.gz").write_bytes(b"it is not opened")
    line = f"traceana whatif {name}.json.gz --scenario"
    assert {"conv", "copies"} <= {*completed(f"{line} co")}
    assert completed(f"{line} fused-o") == ["fused-optimizer"]
    layers = completed(f"{line} layer:")
    assert len(layers) > 5
    assert all(layer.startswith("layer:") for layer in layers)
    (tmp_path / f"{name}.layers.json").write_text("damaged")
    assert completed(f"{line} layer:") in ([], [""])

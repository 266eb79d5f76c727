"""``traceana doctor``: what traceana runs on, and its cache."""

from __future__ import annotations

import json
import re
import shutil
from importlib import metadata
from pathlib import Path

import polars as pl
import pytest

import traceana
from tests.support.command_line import run
from traceana import __version__
from traceana.cache import FOLDERS
from traceana.cache import folder as cache_folder
from traceana.errors import ExitCode, how_to_install
from traceana.report.numbers import size


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def facts(*words: str) -> dict[str, str]:
    result = run("doctor", *words, "-f", "json")
    assert result.exit_code == 0, result.output
    return {row["fact"]: row["value"] for row in json.loads(result.stdout)["rows"]}


def test_versions_and_extras() -> None:
    found = facts()
    assert found["traceana"].startswith(__version__)
    assert f"polars {pl.__version__}" in found["packages"]
    assert "missing" not in found["packages"]
    assert found["extra duckdb"].startswith("duckdb ")
    assert not {"extra dev", "extra workloads"} & set(found)


def test_an_extra_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    known = metadata.version

    def version(name: str) -> str:
        if name == "obstore":
            raise metadata.PackageNotFoundError
        return known(name)

    monkeypatch.setattr(metadata, "version", version)
    assert facts()["extra remote"] == f"not installed: {how_to_install('remote')}"


def test_without_nsys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert "install Nsight Systems" in facts()["nsys"]


def test_the_cache_is_measured_and_cleared(cache: Path) -> None:
    assert facts()["cache"] == f"{cache / 'traceana'}: empty"
    for name in FOLDERS:
        cache_folder(name).mkdir(parents=True)
    (cache_folder("ranks") / "summary").write_bytes(bytes(2_000_000))
    (cache / "traceana" / "mine").write_text("not of traceana")
    (cache / "other").write_text("not of traceana")
    assert facts()["cache"].endswith(f": ranks {size(2_000_000)}")
    assert facts("--clear-cache")["cache"].endswith(": empty")
    assert sorted(path.name for path in cache.rglob("*")) == ["mine", "other", "traceana"]


def test_a_linked_folder_is_not_followed(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("keep")
    cache_folder("ranks").parent.mkdir(parents=True)
    cache_folder("ranks").symlink_to(tmp_path / "precious")
    facts("--clear-cache")
    assert (tmp_path / "precious" / "file").read_text() == "keep"


def test_what_cannot_be_deleted_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    cache_folder("ranks").mkdir(parents=True)

    def refused(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(shutil, "rmtree", refused)
    result = run("doctor", "--clear-cache")
    assert result.exit_code == ExitCode.CANNOT_WRITE
    assert result.stderr.count("\n") == 1


def test_every_folder_of_the_cache_is_known() -> None:
    sources = Path(traceana.__file__).parent.rglob("*.py")
    named = [re.findall(r'cache\.\w+\("(\w+)"', path.read_text("utf-8")) for path in sources]
    assert {name for found in named for name in found} == set(FOLDERS)

"""Classes kept in the user's cache: used where they are of these rules, else found anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from tests.support.manifest import FIXTURES
from traceana.cache import folder as cache_folder
from traceana.enrich.classify import classify_names, engine, load_rules

NAMES = ("ampere_sgemm_128x64_nn", 'a "name"\n\u2028\x00 of nothing', "", "Memset (Device)")
TRACE = FIXTURES / "alexnet-cpu-ranges.json.gz"


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cache_folder("classes") / "classes.json"


def classes() -> pl.DataFrame:
    return classify_names(NAMES, load_rules())


def test_what_is_written_is_read(cache: Path) -> None:
    assert engine.kept_classes().is_empty()
    engine.keep(classes(), classes().head(1))
    assert_frame_equal(engine.kept_classes(), classes())
    assert [file.name for file in cache.parent.iterdir()] == [cache.name]


@pytest.mark.parametrize("cut", [0, 1, 64, 65, 66, 200, -1])
def test_a_damaged_file_is_as_none(cache: Path, cut: int) -> None:
    engine.keep(classes(), classes())
    whole = cache.read_bytes()
    cache.write_bytes(whole[:cut])
    assert engine.kept_classes().is_empty()
    cache.write_bytes(whole[:cut] + bytes([whole[cut] ^ 1]) + whole[cut:][1:])
    assert engine.kept_classes().is_empty()


def test_other_rules_or_another_polars_find_classes_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine.keep(classes(), classes())
    monkeypatch.setattr(pl, "__version__", "0.0")
    assert engine.kept_classes().is_empty()


def test_too_many_names_leave_those_that_were_added() -> None:
    many = classify_names([f"kernel_{i:050}" for i in range(engine.MOST_IN_FILE // 50)])
    engine.keep(many, classes())
    assert_frame_equal(engine.kept_classes(), classes())
    engine.keep(many, many)
    assert_frame_equal(engine.kept_classes(), classes())


def test_without_a_place_to_write_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "traceana").write_text("not a folder", "utf-8")
    engine.keep(classes(), classes())
    assert engine.kept_classes().is_empty()


def printed(*words: str) -> str:
    command = [sys.executable, "-m", "traceana", *words]
    done = subprocess.run(command, env=os.environ, capture_output=True, check=True, text=True)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.exhaustive
def test_the_next_process_uses_what_this_one_kept(cache: Path, tmp_path: Path) -> None:
    words = ("kernels", str(TRACE), "--format", "csv")
    first = printed(*words)
    kept = engine.kept_classes()
    assert kept.height
    assert printed(*words) == first
    engine.keep(kept.with_columns(category=pl.lit("image"), algorithm=None), kept)
    assert "image" in printed(*words)
    # Rules of the user's own come before traceana's: nothing kept is of them.
    rules = tmp_path / "rules.toml"
    text = 'id = "mine"\nreason = "a test"\nname = "."\ncategory = "fft"'
    rules.write_text(f"[[rule]]\n{text}\n", "utf-8")
    assert "image" not in printed(*words, "--rules", str(rules))
    cache.unlink()
    assert printed(*words) == first


def test_names_that_two_threads_added_are_kept_once(cache: Path) -> None:
    """A name that is there twice would shift the classes of all names that are new later."""
    twice = pl.concat([classes(), classes().reverse()])
    engine.keep(twice, twice)
    assert_frame_equal(engine.kept_classes(), classes())
    again = subprocess.run(
        [sys.executable, "-c", _CLASSIFIES], capture_output=True, text=True, check=False
    )
    assert (again.returncode, again.stderr) == (0, "")


_CLASSIFIES = """
from traceana.enrich.classify import classify_names
for names in (["ampere_sgemm_128x64_nn", "new_kernel"], ["other_kernel", "", "new_kernel"]):
    assert classify_names(names)["name"].to_list() == names
"""

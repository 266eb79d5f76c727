"""``traceana study``: its screens to the letter, its formats, its pictures, its refusals."""

from __future__ import annotations

import csv
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import polars as pl
import pytest

from tests.study.test_published import SCHEMAS
from tests.support.command_line import Run
from tests.support.golden import check
from tests.support.runs import write_run
from tests.support.traces import cnn_steps
from traceana.errors import ExitCode, how_to_install
from traceana.study import Name
from traceana.table import names_of

GOLDEN = Path(__file__).parent / "golden" / "study"
MS = 1_000_000


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of runs: AlexNet in two frameworks at three batches, one out of memory."""
    folder = tmp_path_factory.mktemp("runs")
    for framework, image in (("JAX", 2), ("PyTorch", 4)):
        for batch in (1, 2, 4):
            dead = framework == "PyTorch" and batch == 4
            write_run(
                folder / f"{framework}-{batch}",
                framework=framework,
                batch=batch,
                steps_ns=() if dead else [image * (batch + 1) * MS + jump for jump in (-8, 0, 4)],
                died="out of memory" if dead else None,
                trace=None if dead else cnn_steps(),
            )
    return folder


@pytest.fixture(scope="module")
def devices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of runs on 1, 2 and 4 devices that share a batch of 256."""
    folder = tmp_path_factory.mktemp("devices")
    for count in (1, 2, 4):
        time = 200 * MS // count + 25 * MS * (count - 1)
        write_run(
            folder / str(count),
            batch=256,
            processes=count,
            gpu=True,
            steps_ns=[time],
            parameters=62_000_000,
        )
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["batch", "ratio", "frameworks", "epilogues", "transfers"])
def test_screens(run: Run, runs: Path, name: str) -> None:
    result = run("study", name, runs, "--published")
    assert result.exit_code == 0
    check(result.stdout, GOLDEN / f"{name}.txt")


def test_screen_of_scaling(run: Run, devices: Path) -> None:
    result = run("study", "scaling", devices, "--published")
    assert result.exit_code == 0
    check(result.stdout, GOLDEN / "scaling.txt")
    check(run("study", "scaling", devices, "-f", "md").stdout, GOLDEN / "scaling.md")


def test_the_limit_is_of_the_items_and_keeps_every_run_and_published_figure(
    run: Run, runs: Path
) -> None:
    whole = run("study", "frameworks", runs, "--limit", "0").stdout
    cut = run("study", "frameworks", runs, "--limit", "2").stdout
    layers = ("features.0", "features.1", "features.2", "classifier")
    assert all(layer in whole for layer in layers)
    assert [layer for layer in layers if layer in cut] == ["features.0", "features.1"]
    assert cut.count("batch 4") == whole.count("batch 4")
    assert "more rows (--limit 0: all)" in cut
    published = run("study", "transfers", runs, "--published", "--limit", "1").stdout
    everything = run("study", "transfers", runs, "--published", "--limit", "0").stdout
    source = "Kim et al. 2017, Table"
    assert published.split(source)[1:] == everything.split(source)[1:]


@pytest.mark.parametrize("name", Name)
def test_published_figures_stand_alone(run: Run, name: Name) -> None:
    result = run("study", name.value, "--published")
    rows = json.loads(run("study", name.value, "--published", "-f", "json").stdout)["rows"]
    assert result.exit_code == (0 if rows else ExitCode.EMPTY_SELECTION)
    if rows:
        check(result.stdout, GOLDEN / f"{name}-published.txt")


def test_failed_runs_are_listed_and_left_out_of_traces(run: Run, runs: Path) -> None:
    result = run("study", "frameworks", runs)
    assert "traceana: skipped" in result.stderr
    assert "out of memory" in result.stderr


def test_every_format_has_the_same_rows(run: Run, runs: Path, tmp_path: Path) -> None:
    document = json.loads(run("study", "batch", runs, "-f", "json").stdout)
    assert document["meta"]["study"] == "batch"
    assert document["meta"]["command"] == "study"
    assert document["meta"]["units"]["image_ns"] == "ns"
    rows = document["rows"]
    assert [row["image_ns"] for row in rows[:3]] == [4 * MS, 3 * MS, 2_500_000]
    dead = next(row for row in rows if row["status"] != "ok")
    assert (dead["batch"], dead["image_ns"]) == (4, None)
    (tmp_path / "sub").mkdir()
    for format_ in ("csv", "tsv", "parquet"):
        file = tmp_path / f"rows.{format_}"
        assert run("study", "batch", runs, "-o", file).exit_code == 0
        if format_ == "parquet":
            found = pl.read_parquet(file).to_dicts()
        else:
            text = file.read_text(encoding="utf-8").splitlines()
            found = list(csv.DictReader(text, delimiter="," if format_ == "csv" else "\t"))
        assert len(found) == len(rows)
        assert str(found[0]["image_ns"]) == str(rows[0]["image_ns"])


def test_sections_are_in_the_json(run: Run, devices: Path) -> None:
    document = json.loads(run("study", "scaling", devices, "-f", "json").stdout)
    assert {row["model"] for row in document["sections"]["models"]} == {"O(N-1)", "O(log N)"}
    assert document["meta"]["units"]["gather_ns"] == "ns"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["batch", "ratio", "frameworks", "epilogues", "transfers"])
def test_pictures(run: Run, runs: Path, tmp_path: Path, name: str) -> None:
    for suffix in ("svg", "png"):
        file = tmp_path / f"{name}.{suffix}"
        result = run("study", name, runs, "--published", "--plot", file)
        assert result.exit_code == 0, result.output
        content = file.read_bytes()
        if suffix == "svg":
            assert ElementTree.fromstring(content.decode()).tag.endswith("svg")
        else:
            assert content.startswith(b"\x89PNG")


def test_a_picture_is_not_written_over(run: Run, runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "there.svg"
    file.write_text("mine")
    result = run("study", "batch", runs, "--plot", file)
    assert result.exit_code == ExitCode.CANNOT_WRITE
    assert file.read_text() == "mine"
    assert run("study", "batch", runs, "--plot", file, "--force").exit_code == 0
    assert file.read_text() != "mine"


def test_refusals(run: Run, runs: Path, tmp_path: Path) -> None:
    assert run("study", "batch").exit_code == ExitCode.USAGE
    assert run("study", "nothing", runs).exit_code == ExitCode.USAGE
    wrong = run("study", "batch", runs, "--plot", tmp_path / "picture.pdf")
    assert wrong.exit_code == ExitCode.CANNOT_WRITE
    assert ".svg" in wrong.stderr
    assert run("study", "batch", tmp_path / "none").exit_code == ExitCode.NOT_FOUND
    assert run("study", "frameworks", tmp_path / "none").exit_code == ExitCode.NOT_FOUND
    (tmp_path / "empty").mkdir()
    empty = run("study", "batch", tmp_path / "empty")
    assert empty.exit_code == ExitCode.UNRECOGNIZED_FORMAT
    assert "traceana record" in empty.stderr
    assert len(empty.stderr.strip().splitlines()) == 1


def test_vl_convert_is_asked_for_before_anything_is_read(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "vl_convert", None)
    result = run("study", "batch", tmp_path / "none", "--plot", tmp_path / "a.png")
    assert result.exit_code == ExitCode.MISSING_DEPENDENCY
    assert result.stderr == f"traceana: pictures need vl-convert: {how_to_install('html')}\n"


def test_hostile_names_steer_nothing(run: Run, tmp_path: Path) -> None:
    evil = "$\\frac{a$\n\x1b[2J\u202e|<b>_"
    for batch in (1, 2):
        write_run(
            tmp_path / f"run-{batch}", framework=evil, network=evil, batch=batch, steps_ns=[MS]
        )
    for format_ in ("table", "md", "json", "csv", "tsv"):
        shown = run("study", "batch", tmp_path, "-f", format_)
        assert shown.exit_code == 0
        assert "\x1b" not in shown.stdout
        assert "\u202e" not in shown.stdout
    file = tmp_path / "picture.svg"
    assert run("study", "batch", tmp_path, "--plot", file).exit_code == 0
    content = file.read_text(encoding="utf-8")
    assert "\x1b" not in content
    ElementTree.fromstring(content)
    assert "$\\frac{a$" in content


def test_a_trace_alone_is_a_run(run: Run, bundle: Path) -> None:
    result = run("study", "frameworks", bundle, "-f", "json")
    assert result.exit_code == 0
    layers = [row["layer"] for row in json.loads(result.stdout)["rows"]]
    assert layers[:2] == ["features.0", "features.1"]


@pytest.mark.parametrize("name", Name)
def test_every_key_of_the_json_is_documented(run: Run, name: Name) -> None:
    page = (Path(__file__).parents[2] / "docs" / "json.md").read_text(encoding="utf-8")
    section = page.split("\n### study\n")[1].split("\n### ")[0]
    compared = page.split("\n### compare\n")[1].split("\n### ")[0]
    reported = json.loads(run("study", name.value, "--published", "-f", "json").stdout)
    keys = pl.DataFrame(reported["rows"]).columns or names_of(SCHEMAS[name])
    for key in (*keys, "study", "title", "conditions", "missing"):
        assert f"`{key}`" in section or f"`{key}`" in compared, key


def test_the_page_has_every_study_and_its_pictures() -> None:
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "studies.md").read_text(encoding="utf-8")
    for name in Name:
        assert f"$ traceana study {name}" in page
    pictures = re.findall(r"\]\((studies/[^)]+\.svg)\)", page)
    assert len(pictures) >= 5
    for picture in pictures:
        ElementTree.parse(docs / picture)

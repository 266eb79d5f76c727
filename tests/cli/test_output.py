"""Output files appear whole or not at all, and never over something of the user's."""

from __future__ import annotations

import json
import os
from pathlib import Path

import polars as pl
import pytest

from tests.support.command_line import Run
from traceana.errors import CannotWriteError, ExitCode
from traceana.files import write_output as write_whole


def test_the_suffix_determines_the_format(run: Run, bundle: Path, tmp_path: Path) -> None:
    for suffix in ("json", "csv", "tsv", "md", "parquet", "txt"):
        file = tmp_path / f"kernels.{suffix}"
        result = run("kernels", bundle, "-o", file)
        wrote = f"traceana: wrote {file}\n"
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", wrote)
    assert len(json.loads((tmp_path / "kernels.json").read_text())["rows"]) == 6
    assert (tmp_path / "kernels.csv").read_text().startswith("name,category,algorithm,")
    assert pl.read_parquet(tmp_path / "kernels.parquet").height == 6
    assert (tmp_path / "kernels.txt").read_text().startswith("Table  averages over 2 of 3 steps")
    assert "\x1b" not in (tmp_path / "kernels.txt").read_text()


def test_a_suffix_without_a_format_is_an_error(run: Run, bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "kernels.xlsm"
    result = run("kernels", bundle, "-o", file)
    assert result.exit_code == ExitCode.CANNOT_WRITE
    assert result.stderr.startswith("traceana: kernels.xlsm: no format by that suffix; use .csv,")
    assert not file.exists()
    assert run("kernels", bundle, "-o", file, "--format", "table").exit_code == 0
    assert run("kernels", bundle, "-o", tmp_path / "kernels").exit_code == 0


def test_a_page_of_html_is_written_and_printed(run: Run, bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "kernels.html"
    assert run("kernels", bundle, "-o", file).exit_code == 0
    assert file.read_text().startswith("<!doctype html>")
    assert run("kernels", bundle, "--format", "html").stdout == file.read_text()


def test_the_format_option_wins_over_the_suffix(run: Run, bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "k.csv"
    run("kernels", bundle, "-o", file, "--format", "json")
    assert json.loads(file.read_text())["meta"]["command"] == "kernels"


def test_nothing_is_overwritten_without_force(run: Run, bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "k.csv"
    file.write_text("precious", encoding="utf-8")
    result = run("kernels", bundle, "-o", file)
    assert result.exit_code == ExitCode.CANNOT_WRITE
    assert file.read_text() == "precious"
    assert run("kernels", bundle, "-o", file, "--force").exit_code == 0
    assert file.read_text().startswith("name,")


def test_neither_the_input_nor_a_directory_is_overwritten(
    run: Run, tmp_path: Path, bundle: Path
) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text('{"traceEvents": []}', encoding="utf-8")
    result = run("kernels", trace, "-o", trace, "--force")
    assert result.exit_code == ExitCode.CANNOT_WRITE
    assert "is the input" in result.stderr
    assert run("kernels", bundle, "-o", tmp_path, "--force").exit_code == ExitCode.CANNOT_WRITE
    missing = tmp_path / "no" / "such" / "folder.csv"
    result = run("kernels", bundle, "-o", missing)
    assert result.exit_code == ExitCode.CANNOT_WRITE
    assert result.stderr.count("\n") == 1


def test_an_unwritable_output_is_an_error_before_reading(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "k.csv"
    file.touch()
    result = run("kernels", tmp_path / "missing.json", "-o", file)
    assert result.exit_code == ExitCode.CANNOT_WRITE


def test_nothing_half_written_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "hardlink_to", full)
    with pytest.raises(CannotWriteError, match="No space left"):
        write_whole(tmp_path / "k.csv", b"rows", force=False)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_appeared_meanwhile_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "k.csv"
    file.write_text("theirs", encoding="utf-8")
    with pytest.raises(CannotWriteError):
        write_whole(file, b"ours", force=False)
    assert file.read_text() == "theirs"
    assert [entry.name for entry in tmp_path.iterdir()] == ["k.csv"]


def test_files_have_the_rights_that_the_umask_gives(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_whole(tmp_path / "k.csv", b"rows", force=False)
    finally:
        os.umask(old)
    assert (tmp_path / "k.csv").stat().st_mode & 0o777 == 0o640


def test_a_table_has_one_screen_in_a_pipe_and_in_a_file_alike(run: Run, tmp_path: Path) -> None:
    trace = Path(__file__).parents[2] / "fixtures" / "alexnet-cpu-ranges.json.gz"
    words = ("idle", trace, "--by", "gap")
    piped = run(*words).stdout
    run(*words, "-o", tmp_path / "gaps.txt")
    assert (tmp_path / "gaps.txt").read_text(encoding="utf-8") == piped
    rows = run(*words, "-f", "csv").stdout.splitlines()[1:]
    (hidden,) = (line for line in piped.splitlines() if "more row" in line)
    assert hidden.startswith(f"… {len(rows) - 30:,} more rows")
    assert hidden.endswith("(--limit 0: all)")
    everything = run(*words, "--limit", "0").stdout
    assert "more row" not in everything
    assert len(everything.splitlines()) == len(piped.splitlines()) - 1 + len(rows) - 30


def test_chosen_columns_and_rows(run: Run, bundle: Path) -> None:
    columns = ("kernels", bundle, "--columns", "name,time", "-f", "csv")
    assert run(*columns).stdout.splitlines()[0] == "name,time_ns"
    every = run("kernels", bundle, "--columns", "all").stdout
    assert "hidden" not in every
    assert "… 3 columns hidden (--columns all: mean, min, max)" in run("kernels", bundle).stdout
    rows = json.loads(run("kernels", bundle, "-f", "json").stdout)["rows"]
    slow = [one for one in rows if one["time_ns"] > 1000]
    assert 0 < len(slow) < len(rows)
    found = json.loads(run("kernels", bundle, "-f", "json", "--filter", "time > 1 us").stdout)
    assert found["rows"] == slow
    assert found["meta"]["totals"]["time_ns"] == sum(one["time_ns"] for one in slow)
    names = {one["name"] for one in rows if one["category"] == "conv"}
    of_class = run("kernels", bundle, "-f", "json", "--filter", "class == Convolution").stdout
    assert {one["name"] for one in json.loads(of_class)["rows"]} == names
    others = run("kernels", bundle, "-f", "json", "--filter", "category != conv").stdout
    assert {one["name"] for one in json.loads(others)["rows"]} == {r["name"] for r in rows} - names


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("kernels", "--filter", "time"), ExitCode.USAGE, "write COLUMN == VALUE"),
        (("kernels", "--filter", "time > fast"), ExitCode.USAGE, "fast is not a number with s, ms"),
        (("kernels", "--filter", "name > 3"), ExitCode.USAGE, "name is text"),
        (("kernels", "--filter", "tine > 3"), ExitCode.EMPTY_SELECTION, "did you mean time"),
        (("kernels", "--columns", "tine"), ExitCode.EMPTY_SELECTION, "did you mean time"),
        (("report", "--filter", "share > 3"), ExitCode.USAGE, "this command has several"),
    ],
)
def test_a_bad_choice_is_an_error_of_one_line(
    run: Run, bundle: Path, words: tuple[str, ...], code: ExitCode, text: str
) -> None:
    result = run(words[0], bundle, *words[1:])
    assert result.exit_code == code
    assert text in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_file_of_o_is_opened_on_request(
    run: Run, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("typer.launch", lambda path: opened.append(path))
    run("kernels", bundle, "-o", tmp_path / "k.html", "--open")
    assert opened == [str(tmp_path / "k.html")]
    assert run("kernels", bundle, "--open").exit_code == ExitCode.USAGE

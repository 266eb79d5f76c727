"""The output of each command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import Result

from tests.support.command_line import Run
from traceana import __version__
from traceana.errors import ExitCode
from traceana.readers.compiled import COMPILED
from traceana.trace.taxonomy import CLASS_SCHEMA

TABLE_COMMANDS = [
    *("report", "info", "kernels", "layers", "flops", "transfers", "idle", "critical", "advise"),
    "whatif",
]


def rows(result: Result) -> list[dict[str, object]]:
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["rows"]
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("name", TABLE_COMMANDS)
@pytest.mark.parametrize("format_", ["table", "csv", "tsv", "json", "md"])
def test_every_command_prints_every_format(run: Run, bundle: Path, name: str, format_: str) -> None:
    result = run(name, bundle, "--format", format_)
    assert result.exit_code == 0
    assert result.stdout.endswith("\n")
    assert result.stderr == ""


def test_info_is_one_object(run: Run, bundle: Path) -> None:
    known = json.loads(run("info", bundle, "--format", "json").stdout)
    assert known["kernels"] == 21
    assert known["kernel_ns"] == 12_900
    assert known["distinct_kernel_names"] == 6
    assert known["memcpy"] == {"HtoD": 3}
    assert known["memset"] == 0
    assert known["steps"] == 3
    assert [device["device"] for device in known["devices"]] == [0]
    assert known["ledger"] == []


def test_steps_and_devices_are_selected(run: Run, bundle: Path) -> None:
    assert json.loads(run("info", bundle, "--step", "2-3", "-f", "json").stdout)["kernels"] == 14
    selected = json.loads(run("report", bundle, "--step", "1,3", "-f", "json").stdout)
    assert selected["meta"]["selected_steps"] == [1, 3]
    assert selected["meta"]["total_ns"] == 2 * 4400
    assert rows(run("kernels", bundle, "--device", "0", "-f", "json"))


def test_rows_are_limited_and_sorted(run: Run, bundle: Path) -> None:
    found = rows(run("kernels", bundle, "--sort", "mean:asc", "--limit", "2", "-f", "json"))
    assert [row["mean_ns"] for row in found] == [50, 150]
    assert len(rows(run("kernels", bundle, "--limit", "0", "-f", "json"))) == 6
    text = run("kernels", bundle, "--limit", "1").stdout
    assert "… 5 more rows, 1.30 µs (--limit 0: all)" in text


def test_rows_are_sorted_by_the_titles_that_are_shown(run: Run, bundle: Path) -> None:
    by_title, by_name = (
        rows(run("transfers", bundle, "--by", "layer", "--sort", sort, "-f", "json"))
        for sort in ("Memory:desc", "host_memory:desc")
    )
    assert by_title == by_name


def test_layers_by_direction(run: Run, bundle: Path) -> None:
    found = rows(run("layers", bundle, "--direction", "--order", "network", "-f", "json"))
    assert [(row["layer"], row["direction"], row["time_ns"]) for row in found][:3] == [
        ("features.0", "forward", 3000),
        ("features.0", "backward", 6000),
        ("features.1", "forward", 600),
    ]


def test_classify_reads_names_and_answers_in_order(run: Run) -> None:
    names = ["volta_sgemm_64x64_nt", "tab\there", "", "volta_sgemm_64x64_nt", "x\x0by\u2028z"]
    result = run("classify", "-", "--format", "tsv", input="\n".join(names) + "\n")
    assert result.exit_code == 0
    lines = result.stdout.split("\n")
    assert lines[0].split("\t") == list(CLASS_SCHEMA)
    cells = [line.split("\t") for line in lines[1:-1]]
    assert [row[0] for row in cells] == [names[0], r"tab\there", "", names[0], r"x\x0by\u2028z"]
    assert {len(row) for row in cells} == {len(CLASS_SCHEMA)}
    assert cells[0][1] == "gemm"


def test_classify_takes_names_as_arguments_too(run: Run) -> None:
    found = rows(run("classify", "volta_sgemm_64x64_nt", "winograd3x3Kernel", "-f", "json"))
    assert [row["category"] for row in found] == ["gemm", "conv"]


def test_classify_reads_mangled_names_and_gives_them_back_as_given(run: Run) -> None:
    found = rows(run("classify", "_Z3barv", "_ZN5cudnn12winograd_fwdIfEEvv", "-f", "json"))
    assert [row["name"] for row in found] == ["_Z3barv", "_ZN5cudnn12winograd_fwdIfEEvv"]
    assert found[1]["category"] == "conv"


def test_classify_without_names_has_a_note(run: Run) -> None:
    result = run("classify", "-", input="")
    assert result.exit_code == 0
    assert result.stdout == "no names given\n"


def test_classify_explains(run: Run) -> None:
    (found,) = rows(run("classify", "volta_sgemm_64x64_nt", "--explain", "-f", "json"))
    assert found["rule"]
    assert found["reason"]
    assert str(found["file"]).endswith(".toml")


def test_a_saved_bundle_is_opened_again(run: Run, bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.traceana"
    assert run("save", bundle, "-o", copy).exit_code == 0
    assert run("report", copy).stdout == run("report", bundle).stdout
    assert run("save", bundle, "-o", copy).exit_code == ExitCode.CANNOT_WRITE
    assert run("save", bundle, "-o", copy, "--force").exit_code == 0


def test_a_truncated_trace_is_shown_with_a_note(run: Run, damaged: Path) -> None:
    result = run("report", damaged)
    assert result.exit_code == ExitCode.DAMAGED_INPUT
    assert "Truncated file: 60.0 % of 1.00 kB read" in result.stdout
    assert result.stderr == ("traceana: truncated file: read 600 of 1,000 bytes (60.0 %)\n")


def test_strict_refuses_problems_and_not_notes(run: Run, problematic: Path, bundle: Path) -> None:
    assert run("kernels", problematic).exit_code == 0
    result = run("kernels", problematic, "--strict")
    assert result.exit_code == ExitCode.DAMAGED_INPUT
    assert result.stdout
    assert result.stderr == "traceana: integrity problems: 1,200 no_launch\n"
    assert run("kernels", bundle, "--strict").exit_code == 0


def test_the_version(run: Run) -> None:
    scanner = "with" if COMPILED else "without"
    wanted = f"traceana {__version__}, {scanner} the compiled scanner\n"
    assert run("--version").stdout == wanted

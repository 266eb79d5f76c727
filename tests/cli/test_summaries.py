"""Commands on printed summaries, which have no timeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.readers.summary import writing
from tests.readers.summary.writing import ROWS, Row
from tests.support.command_line import Run

SLOWER = tuple(
    Row(
        row.name, row.calls, 2 * row.total_ns if "sgemm_128" in row.name else row.total_ns, row.kind
    )
    for row in ROWS
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_text(writing.nsys_2023(ROWS))
    return path


@pytest.fixture
def slower(tmp_path: Path) -> Path:
    path = tmp_path / "b.csv"
    path.write_text(writing.nvprof_csv(SLOWER))
    return path


def output(run: Run, *words: object) -> Any:
    done = run(*words, "--format", "json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_report_and_kernels_have_the_printed_times(run: Run, file: Path) -> None:
    classes = {row["category"]: row["time_ns"] for row in output(run, "report", file)["rows"]}
    assert classes == {"conv": 91_234_567, "memcpy": 6_957_100, "gemm": 4_270_912, "memset": 1_344}
    whole = output(run, "kernels", file)
    kernels = whole["rows"]
    assert "copies and memsets excluded" in whole["meta"]["notes"][0]
    assert [(row["calls"], row["time_ns"], row["median_ns"]) for row in kernels] == [
        (104, 91_234_567, None),
        (7, 4_270_912, None),
    ]
    text = run("report", file).stdout
    assert "no timeline: 4 rows" in text
    assert "Kernels          111 · 2 distinct" in text


def test_transfers_have_what_is_printed(run: Run, file: Path) -> None:
    (row,) = output(run, "transfers", file)["rows"]
    known = {key: value for key, value in row.items() if value is not None}
    assert known == {
        **{"direction": "HtoD", "host_memory": "unknown", "count": 13, "time_ns": 6_957_100},
        **{"share": 1.0, "small": False},
    }


def test_info_has_the_facts_of_the_summary(run: Run, file: Path) -> None:
    known = output(run, "info", file)
    assert known["summary"] == {
        **{"rows": 6, "tables": 3, "counted_rows": 4, "calls": 126, "time_ns": 102_463_923},
        **{"plus_minus_ns": 0, "printed_total_ns": None},
        **{"host_calls": 114, "host_ns": 1_502_001_341},
    }
    assert (known["kernels"], known["memcpy"], known["memset"]) == (111, {"HtoD": 13}, 2)


@pytest.mark.exhaustive(after=2)
@pytest.mark.parametrize("by", ["class", "algorithm", "kernel", "gemm", "transfer"])
def test_two_summaries_are_compared(run: Run, file: Path, slower: Path, by: str) -> None:
    rows = output(run, "diff", file, slower, "--by", by)["rows"]
    changes = {row["delta_ns"] for row in rows if row["delta_ns"]}
    assert changes == {4_270_912}
    assert not any("idle" in str(row) for row in rows)
    assert output(run, "compare", file, slower, "--by", by)["rows"]


def test_a_summary_is_compared_with_a_timeline(run: Run, file: Path, tmp_path: Path) -> None:
    from tests.readers.nvprof.test_printed import BEGIN, TEXT

    trace = tmp_path / "trace.log"
    trace.write_text(BEGIN + TEXT)
    rows = output(run, "diff", file, trace, "--by", "class")["rows"]
    assert sum(row["time_b_ns"] for row in rows) == 4_800 + 1_239_600 + 992
    assert "(idle)" not in json.dumps(rows)


def test_the_summary_of_runs_has_no_wall_time(run: Run, file: Path, slower: Path) -> None:
    for row in output(run, "compare", file, slower)["rows"]:
        assert row["wall_ns"] is None
        assert row["idle_ns"] is None
        assert row["step_kernels"] == 111


@pytest.mark.parametrize("study", ["epilogues", "sgemm", "transfers"])
def test_studies_of_kernels_read_summaries(run: Run, file: Path, slower: Path, study: str) -> None:
    bias = Row("void tensorflow::BiasNHWCKernel<float>(int, float const *)", 3, 500)
    file.write_text(writing.nsys_2023([*ROWS, bias]))
    assert run("study", study, file, slower).exit_code == 0


@pytest.mark.parametrize(
    "words",
    [
        ("idle",),
        ("critical",),
        ("layers",),
        ("flops",),
        ("memory",),
        ("transfers", "--by", "size"),
    ],
)
def test_what_needs_a_timeline_says_so(run: Run, file: Path, words: tuple[str, ...]) -> None:
    done = run(words[0], file, *words[1:])
    assert done.exit_code == 20
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "is a summary without a timeline" in line
    assert words[0] in line


def test_layers_of_summaries_are_not_compared(run: Run, file: Path, slower: Path) -> None:
    done = run("compare", file, slower, "--by", "layer")
    assert (done.exit_code, done.stdout) == (20, "")


def test_a_summary_is_saved_and_exported(run: Run, file: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    assert run("save", file, "-o", saved).exit_code == 0
    assert output(run, "kernels", saved)["rows"] == output(run, "kernels", file)["rows"]
    assert run("report", file, "-o", tmp_path / "a.html").exit_code == 0
    assert run("export", file, "-o", tmp_path / "a.perfetto.json").exit_code == 20


def test_calls_of_the_host_alone_are_no_work(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "api.txt"
    file.write_text(writing.nsys_csv([row for row in ROWS if row.kind == "call"]))
    done = run("report", file)
    assert done.exit_code == 20
    assert "only calls of the host" in done.stderr


def test_a_cut_table_is_a_problem_when_strict(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "cut.txt"
    file.write_text(writing.torch_table(ROWS, limit=2))
    text = run("report", file).stdout
    assert "rows not printed: 11.0 % of the printed total" in text
    assert run("report", file, "--strict").exit_code == 17


def test_a_sum_of_printed_times_has_half_of_their_last_digits_as_its_error(
    run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("""\
==7== Profiling result:
Time(%)      Time     Calls       Avg       Min       Max  Name
 75.00%  3.0000us         1  3.0000us  3.0000us  3.0000us  a(int*)
 25.00%  1.00us           1  1.00us    1.00us    1.00us    b(int*)
""")
    notes = output(run, "kernels", file)["meta"]["notes"]
    # The digits are 1 ns (which is as exact as times are) and 10 ns: half of 11, rounded up.
    assert "times as printed: their sum is within ±6 ns" in notes


def test_a_total_without_rows_is_said(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "total.txt"
    file.write_text(
        "=== flash ===\n...\nSelf CPU time total: 52.389ms\nSelf CUDA time total: 52.545ms\n"
    )
    done = run("report", file)
    assert done.exit_code == 20
    assert "only the printed total of 52,545,000 ns" in done.stderr

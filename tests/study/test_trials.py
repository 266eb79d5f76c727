"""Traces that are trials of a sweep: found by name, read together, their medians by batch."""

from __future__ import annotations

import json
from math import comb
from pathlib import Path

import polars as pl
import pytest

import traceana
from tests.support.command_line import Run
from tests.support.manifest import TRACES
from traceana.errors import ExitCode, NotFoundError, UsageError
from traceana.study.trials import find_trials, median_interval, read_trials

PATTERN = "l{layer}_bs{batch}_{trial}"
WINOGRAD = "maxwell_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148m_nt_v1"
GEMM = "maxwell_scudnn_128x64_stridedB_medium_nn"
OTHER = '"void (anonymous namespace)::elementwise_kernel<float>(float*)"'


def printed(path: Path, *kernels: tuple[str, int]) -> None:
    """Write what nvprof prints of ``kernels``: names and durations (ns), one after the other."""
    lines = ['"Start","Duration","Device","Context","Stream","Name","Correlation_ID"', "s,ms,,,,,"]
    at = 1_000_000_000
    for number, (name, duration) in enumerate(kernels):
        lines.append(
            f'{at / 1e9:.9f},{duration / 1e6:.6f},"NVIDIA Tegra X1 (0)","1","7",{name},{number}'
        )
        at += 2 * duration
    path.write_text("==7== NVPROF is profiling process 7\n" + "\n".join(lines) + "\n")


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Return seven trials at batch 2 and 16; one of the latter ran what ran at batch 2."""
    folder = tmp_path / "sweep"
    folder.mkdir()
    for trial in range(1, 8):
        printed(folder / f"t_l3_bs2_{trial}.csv", (WINOGRAD, 1000 * trial), (OTHER, 50))
        name = WINOGRAD if trial == 7 else GEMM
        printed(folder / f"t_l3_bs16_{trial}.csv", (name, 9000 + trial), (name, 1000))
    (folder / "notes.txt").write_text("of the machine")
    return folder


def test_fields_are_those_of_the_names(sweep: Path) -> None:
    found, others = find_trials([sweep], PATTERN)
    assert others == 1
    assert [(one.batch, one.fields["trial"]) for one in found[:2]] == [(2, "1"), (2, "2")]
    assert {one.series for one in found} == {"layer 3"}
    assert {one.batch for one in find_trials([sweep], "_bs{batch}_")[0]} == {2, 16}


def test_a_number_is_whole(tmp_path: Path) -> None:
    (tmp_path / "bs128.csv").touch()
    ((one,), _) = find_trials([tmp_path], "bs{batch}")
    assert one.batch == 128


@pytest.mark.parametrize("pattern", ["l{layer}", "{batch}{batch}", "bs{batch}_{", "{}{batch}"])
def test_patterns_without_a_batch_or_with_odd_braces_are_refused(sweep: Path, pattern: str) -> None:
    with pytest.raises(UsageError, match="--sweep-from"):
        find_trials([sweep], pattern)


def test_a_pattern_that_no_name_contains_is_an_error(sweep: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no file name contains batch\{batch\}"):
        find_trials([sweep], "batch{batch}")


@pytest.mark.parametrize("count", range(1, 60))
def test_the_interval_of_a_median_covers_it_in_19_of_20_samples_and_no_shorter_one_does(
    count: int,
) -> None:
    found = median_interval(range(count))
    outside = [2 * sum(comb(count, i) for i in range(k)) / 2**count for k in range(count // 2 + 2)]
    if found is None:
        assert count < 6
        return
    low, high = found
    assert low + high == count - 1
    assert outside[low + 1] <= 0.05 < outside[low + 2]


def test_times_are_medians_of_the_trials_that_ran_the_algorithm(run: Run, sweep: Path) -> None:
    printed = run("study", "algorithms", sweep, "--sweep-from", PATTERN, "--format", "json")
    assert printed.exit_code == ExitCode.OK
    whole = json.loads(printed.stdout)
    columns = ("run", "batch", "algorithm", "time_ns", "calls", "low_ns", "high_ns", "trials")
    assert [tuple(row[name] for name in columns) for row in whole["rows"]] == [
        ("layer 3", 2, "winograd", 4000, 1.0, 1000, 7000, 7),
        ("layer 3", 16, "implicit_precomp_gemm", 10003, 2.0, 10001, 10006, 6),
        ("layer 3", 16, "winograd", 10007, 2.0, None, None, 1),
    ]
    assert {row["of_trials"] for row in whole["rows"]} == {7}
    assert whole["sections"]["switches"] == [
        {
            "run": "layer 3",
            "batch_before": 2,
            "algorithm_before": "winograd",
            "batch_after": 16,
            "algorithm_after": "implicit_precomp_gemm",
        }
    ]


def test_the_time_per_image_is_that_of_all_kernels(run: Run, sweep: Path) -> None:
    printed = run("study", "batch", sweep, "--sweep-from", PATTERN, "--format", "json")
    rows = json.loads(printed.stdout)["rows"]
    found = {row["batch"]: (row["step_ns"], row["image_ns"], row["steps"]) for row in rows}
    assert found == {2: (4050, 2025, 7), 16: (10004, 625, 7)}
    assert {row["timed"] for row in rows} == {"kernels"}


def test_a_batch_without_kernels_is_no_point_but_a_row_with_the_reason(
    run: Run, sweep: Path
) -> None:
    printed(sweep / "t_l3_bs32_1.csv", ("[CUDA memcpy HtoD]", 500))
    shown = run("study", "batch", sweep, "--sweep-from", PATTERN, "--format", "json")
    rows = {row["batch"]: row for row in json.loads(shown.stdout)["rows"]}
    assert (rows[32]["status"], rows[32]["step_ns"]) == ("no kernels", None)
    assert rows[16]["status"] == "ok"


def test_what_cannot_be_read_is_skipped_with_its_reason(run: Run, sweep: Path) -> None:
    (sweep / "t_l3_bs2_8.csv").write_text("==7== Application received signal 9\n")
    printed = run("study", "batch", sweep, "--sweep-from", PATTERN)
    assert printed.exit_code == ExitCode.OK
    assert "t_l3_bs2_8.csv" in printed.stderr
    assert f"skipped: 1 file without {PATTERN} in its name" in printed.stderr


@pytest.mark.parametrize("words", [["sgemm", "."], ["algorithms"]])
def test_other_studies_have_no_trials(run: Run, words: list[str]) -> None:
    refused = run("study", *words, "--sweep-from", PATTERN)
    assert refused.exit_code == ExitCode.USAGE


def test_a_pattern_without_a_batch_is_an_error_of_the_command(run: Run, sweep: Path) -> None:
    refused = run("study", "batch", sweep, "--sweep-from", "l{layer}")
    assert refused.exit_code == ExitCode.USAGE
    assert refused.stderr == "traceana: --sweep-from l{layer}: has no {batch}\n"


@pytest.mark.slow
@pytest.mark.skipif(not TRACES.is_dir(), reason="no shared traces")
def test_kernels_read_together_have_the_classes_that_they_have_alone() -> None:
    found, _ = find_trials([TRACES / "nvprof-printed"], f"GPUTrace_{PATTERN}")
    some = read_trials(found[::40], print)
    for number, trial in enumerate(some.trials):
        alone = traceana.open(trial.file)
        ours = some.trace.work.filter(rank=number, kind="kernel")
        theirs = alone.work.filter(kind="kernel")
        texts = pl.col("name", "category", "algorithm", "kernel_direction", "library")
        assert ours.select(texts.cast(pl.String)).equals(theirs.select(texts.cast(pl.String)))

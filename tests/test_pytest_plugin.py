"""The pytest plugin, in sessions of pytest of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import traceana
from tests.support.training import KERNELS, training

pytest_plugins = ["pytester"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a training, an equal one, a slower one, and one of a single step."""
    folder = tmp_path_factory.mktemp("runs")
    slower = {**KERNELS, "conv2": (("implicit", 700_000),)}
    training(seed=1).save(folder / "a")
    training(seed=2).save(folder / "b")
    training(seed=2, kernels=slower).save(folder / "slower")
    training(steps=1).save(folder / "one")
    # A session within this process unloads what it imports, and NumPy cannot be loaded twice.
    compared = traceana.diff(traceana.open(folder / "a"), traceana.open(folder / "b"))
    assert compared.summary.step.decides.verdict == "inconclusive"
    traceana.open(folder / "a").advise()
    return folder


@pytest.fixture
def session(
    pytester: pytest.Pytester, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> pytest.Pytester:
    """Return a session that has the plugin, installed or not."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\naddopts = -p traceana.pytest_plugin\nfilterwarnings = error")
    monkeypatch.setenv("RUNS", str(runs))
    pytester.makeconftest("import os\nfrom pathlib import Path\nRUNS = Path(os.environ['RUNS'])")
    return pytester


def write(session: pytest.Pytester, *calls: str) -> None:
    """Write a test for each call of the gate."""
    tests = "".join(
        f"def test_{number}(traceana_gate):\n    {call}\n" for number, call in enumerate(calls)
    )
    session.makepyfile(f"from conftest import RUNS\n{tests}")


@pytest.mark.slow
def test_the_gates(session: pytest.Pytester) -> None:
    write(
        session,
        "assert traceana_gate(RUNS / 'b', RUNS / 'a').diff.step.decides.verdict == 'inconclusive'",
        "traceana_gate(RUNS / 'a', max={'unclassified': 0.5, 'idle': '100%'})",
        "traceana_gate(RUNS / 'one', RUNS / 'a')",
        # These fail.
        "traceana_gate(RUNS / 'slower', RUNS / 'a')",
        "traceana_gate(RUNS / 'a', max={'step_time': '0.1ms'})",
        "traceana_gate(RUNS / 'a', fail_on='unfused_bias_activation,first_step_counted')",
        "traceana_gate(RUNS / 'one', RUNS / 'a', on_inconclusive='fail')",
        "traceana_gate(RUNS / 'absent')",
        "traceana_gate(RUNS / 'a', max={'idel': '1%'})",
        "traceana_gate(RUNS / 'a', max_slowdown='much')",
    )
    result = session.runpytest()
    result.assert_outcomes(passed=3, failed=7)
    result.stdout.fnmatch_lines(
        [
            "traceana: gate: candidate slower by 30.* %, limit 3 %",
            "traceana: gate: step_time is *, limit 100.0 µs",
            "traceana: gate: unfused_bias_activation: finding",
            "traceana: gate: step time not enough steps: failed",
            "traceana: *absent*",
            "traceana: unknown figure 'idel' (did you mean *",
            "traceana: 'much' is not a percentage: use 3% or 0.03",
            "*inconclusive gates, passed*",
            "*test_2: step time not enough steps",
        ]
    )
    assert "exception" not in result.stdout.str()


@pytest.mark.slow
def test_baselines_are_saved_and_compared(session: pytest.Pytester) -> None:
    write(session, "traceana_gate(RUNS / 'a')", "traceana_gate(RUNS / 'a')")
    session.runpytest("--traceana-save", "before").assert_outcomes(passed=2)
    assert len(list((session.path / ".traceana" / "before").iterdir())) == 2
    write(session, "traceana_gate(RUNS / 'a', RUNS / 'one')", "traceana_gate(RUNS / 'slower')")
    result = session.runpytest("--traceana-compare", "before", "--traceana-save", "after")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*candidate slower by 30.*"])
    assert len(list((session.path / ".traceana" / "after").iterdir())) == 2, "also of failed gates"

    write(session, "pass", "pass", "traceana_gate(RUNS / 'a')")
    result = session.runpytest("--traceana-compare", "before")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*has no trace of this test: save it with --traceana-save before"])


def test_a_baseline_is_replaced_with_force_only(session: pytest.Pytester) -> None:
    write(session, "traceana_gate(RUNS / 'a')")
    session.runpytest("--traceana-save", "x").assert_outcomes(passed=1)
    (bundle,) = (session.path / ".traceana" / "x").iterdir()
    before = bundle.stat().st_ino
    again = session.runpytest("--traceana-save", "x")
    again.assert_outcomes(failed=1)
    assert bundle.stat().st_ino == before
    session.runpytest("--traceana-save", "x", "--traceana-force").assert_outcomes(passed=1)
    assert bundle.stat().st_ino != before


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--traceana-save", "../up"], "*use letters, digits, - and _ only*"),
        (["--traceana-compare", "a/b"], "*use letters, digits, - and _ only*"),
        (["--traceana-compare", "absent"], "*no baseline absent in *; no baselines saved*"),
    ],
)
def test_names_of_baselines(session: pytest.Pytester, words: list[str], error: str) -> None:
    result = session.runpytest(*words)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([error])


def test_the_import_is_light() -> None:
    code = (
        "import pytest, sys; before = {*sys.modules}; import traceana.pytest_plugin;"
        "print(*sorted({name.partition('.')[0] for name in {*sys.modules} - before}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["traceana"]

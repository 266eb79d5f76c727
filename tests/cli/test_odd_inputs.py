"""Commands of the bottleneck report on traces without their events, or with hostile names."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.support.command_line import Run
from tests.support.synthetic import Scenario, write_kineto
from traceana.errors import ExitCode

COMMANDS = ["transfers", "idle", "critical", "advise", "report"]
CPU = Path(__file__).parents[2] / "fixtures" / "alexnet-cpu-ranges.json.gz"
Write = Callable[[Callable[[Scenario], None]], Path]
HOSTILE = "\x1b[31m\x07\u202e\u2028[bold]x[/bold]\x00{x}"


def hostile(run: Scenario) -> None:
    run.step(1, 0, 3_000)
    run.range(f"range{HOSTILE}", 10, 450)
    run.operator(f"operator{HOSTILE}", 20, 400)
    run.launch(at=100, begins=300, duration=1_000, name=f"kernel{HOSTILE}")
    run.copy("HtoD", 64, at=1_500, begins=1_600, duration=100, memory="pageable", synchronous=True)


def without_copies(run: Scenario) -> None:
    run.launch(at=100, begins=300, duration=1_000)


def of_no_time(run: Scenario) -> None:
    run.launch(at=0, begins=0, duration=0, call=0)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Write:
    @cache
    def write(describe: Callable[[Scenario], None]) -> Path:
        run = Scenario()
        describe(run)
        return write_kineto(run, tmp_path_factory.mktemp("odd") / "run.json")

    return write


@pytest.mark.exhaustive(after=30)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("describe", [hostile, without_copies, of_no_time])
@pytest.mark.parametrize("format_", ["table", "csv", "json", "md"])
def test_odd_traces_are_shown_and_do_no_harm(
    run: Run, file: Write, command: str, describe: Callable[[Scenario], None], format_: str
) -> None:
    result = run(command, file(describe), "-f", format_)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert result.stdout
    assert not set(result.stdout) & set("\x00\x07\x1b\u202e\u2028")


@pytest.mark.parametrize(
    ("command", "by"),
    [
        *(("transfers", by) for by in ("operator", "range", "layer", "call")),
        *(("idle", by) for by in ("operator", "range", "gap")),
        *(("critical", by) for by in ("operator", "kernel", "layer", "segment")),
    ],
)
def test_hostile_names_are_escaped(run: Run, file: Write, command: str, by: str) -> None:
    result = run(command, file(hostile), "--by", by)
    assert result.exit_code == 0
    assert not set(result.stdout) & set("\x00\x07\x1b\u202e\u2028")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_trace_of_the_cpu_has_no_copies_and_no_gpu(run: Run, command: str) -> None:
    result = run(command, CPU)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert "GPU" not in result.stdout.replace("no GPU activity", "")


@pytest.mark.parametrize("command", [*COMMANDS, "memory"])
@pytest.mark.parametrize(
    ("option", "message"),
    [("--step", "no step 9; steps: "), ("--device", "no device 9; devices: 0")],
)
def test_what_is_not_there_is_refused_in_a_line(
    run: Run, file: Write, command: str, option: str, message: str
) -> None:
    result = run(command, file(hostile), option, "9")
    assert result.exit_code == ExitCode.EMPTY_SELECTION
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize("command", [*COMMANDS, "memory"])
def test_an_empty_trace_has_a_note(run: Run, tmp_path: Path, command: str) -> None:
    path = tmp_path / "empty.json"
    path.write_text('{"traceEvents": []}', encoding="utf-8")
    result = run(command, path)
    assert result.exit_code == ExitCode.EMPTY_SELECTION
    assert result.stderr.startswith("traceana: nothing to show for ")
    assert result.stderr.count("\n") == 1

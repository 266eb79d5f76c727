"""The Python API in a notebook."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import traceana
from tests.support.every_command import COMMANDS as EVERY
from tests.support.traces import TraceBuilder, cnn_steps
from tools.api import EXAMPLES, PAGE, api
from traceana.commands import COMMANDS
from traceana.errors import CannotWriteError, NoSuchSelectionError, NotFoundError, UsageError

ROOT = Path(__file__).parents[2]


def test_what_there_is_can_be_found() -> None:
    assert {"open", "diff", "compare", "describe", "Trace", "CommandResult", "classify"} <= set(
        dir(traceana)
    )
    options = inspect.signature(traceana.open).parameters
    assert {"steps", "ranks", "devices", "model", "step_marker", "rules", "counters"} <= set(
        options
    )
    assert "polars" not in (traceana.__doc__ or "polars").split("import")[0]


@pytest.mark.parametrize("name", [one.name for one in COMMANDS.values() if one.of])
def test_every_command_with_a_result_is_a_function_with_its_options(name: str) -> None:
    command = COMMANDS[name]
    function = getattr(traceana.Trace if command.of == "trace" else traceana, name)
    parameters = inspect.signature(function).parameters
    for option in command.options:
        default = option.words[0] if option.words else False if option.kind is bool else None
        assert command.own or (parameters[option.name].default or None) == (default or None)
    assert function.__name__ == name
    assert (inspect.getdoc(function) or "").split()


def test_every_command_of_a_trace_is_tried_on_every_trace() -> None:
    of_trace = {one.name for one in COMMANDS.values() if one.of == "trace" and one.options}
    assert of_trace | {"report", "info", "advise"} <= {one.split()[0] for one in EVERY}


@pytest.mark.slow
def test_type_checkers_know_every_method_and_its_type(tmp_path: Path) -> None:
    types = {
        "trace": "traceana.api.Trace",
        "trace.kernels()": "traceana.report.result.CommandResult",
        "trace.layers(by='type')": "traceana.report.result.CommandResult",
        "trace.select(steps=[1]).report()": "traceana.report.result.CommandResult",
        "trace.with_tables().idle()": "traceana.report.result.CommandResult",
        "trace.save('bundle')": "pathlib.Path",
        "trace.manifest": "traceana.runs.layer_manifest.Manifest | None",
        "traceana.diff(trace, trace)": "traceana.report.result.CommandResult",
    }
    methods = [*(name for name, one in COMMANDS.items() if one.of == "trace"), "select"]
    lines = [
        *("import traceana", "trace = traceana.open('run.json.gz', steps=[1, 2])"),
        *(f"reveal_type({expression})" for expression in types),
        *(f"trace.{name}" for name in methods),
        *("trace.kernels(by='colour')", "trace.colour()", "traceana.open(1)"),
    ]
    program = tmp_path / "program.py"
    program.write_text("\n".join(lines))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-pretty", str(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.findall(r'Revealed type is "(.*)"', done.stdout) == [*types.values()], done.stdout
    wrong = [int(line) for line in re.findall(r"program\.py:(\d+): error", done.stdout)]
    assert wrong == [len(lines) - 2, len(lines) - 1, len(lines)], done.stdout


def test_what_there_is_not_is_an_error_that_lists_what_there_is() -> None:
    trace = cnn_steps()
    with pytest.raises(NoSuchSelectionError, match="use name, category, shape"):
        trace.kernels(by="layer")  # type: ignore[arg-type]
    with pytest.raises(NoSuchSelectionError, match="use class, kernel, layer"):
        trace.critical(by="name")  # type: ignore[arg-type]
    with pytest.raises(NoSuchSelectionError, match="by=None: use cause, operator"):
        trace.idle(by=None)  # type: ignore[arg-type]
    with pytest.raises(NoSuchSelectionError, match=r"did you mean calls"):
        trace.kernels().page(sort="cals")
    with pytest.raises(NoSuchSelectionError, match="use layer, class, algorithm"):
        traceana.diff(trace, trace, by="layers")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"no option 'bye' .*by\?\): options: by, uncl"):
        trace.kernels(bye="name")  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match=r"did you mean kernels\?.*: it has advise, critical"):
        trace.kernals  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"use trace\.tables\.activities"):
        trace.activities  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"did you mean activities\?.*: activities, names"):
        trace.tables.activites  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"did you mean diff\?.*: it has CommandResult"):
        traceana.dif  # noqa: B018


def test_errors_name_the_keywords_of_python(tmp_path: Path) -> None:
    trace = cnn_steps()
    for save in (trace.save, trace.kernels().save):
        path = tmp_path / f"{save.__name__}-{id(save)}.csv"
        save(path)
        with pytest.raises(CannotWriteError, match=r"another name, or overwrite=True$"):
            save(path)
    with pytest.raises(UsageError, match=r"shape have no classes: leave out unclassified=$"):
        trace.kernels(by="shape", unclassified=True)
    with pytest.raises(NoSuchSelectionError, match=r"no steps: omit steps=, or record"):
        trace.with_tables(steps=trace.tables.steps.clear()).select(steps=[1])
    with pytest.raises(NotFoundError, match=r"^inductor_cache=\S+/missing: no such folder$"):
        missing = tmp_path / "missing"
        traceana.open(ROOT / "fixtures" / "alexnet-cpu-ranges.json.gz", inductor_cache=missing)


def test_a_result_has_its_rows_and_shows_the_page() -> None:
    result = cnn_steps().kernels()
    assert result.frame.height == 6
    assert result.totals["calls"] == 21
    assert "scudnn" in repr(result)
    assert ">scudnn</td>" in result._repr_html_()
    assert result.to_pandas().shape == (6, len(result.frame.columns))


def test_html_escapes_the_text_of_a_trace() -> None:
    builder = TraceBuilder()
    builder.kernel("<script>alert(1)</script>", 0, 10)
    assert "<script>alert" not in builder.build().report()._repr_html_()


@pytest.mark.parametrize("suffix", ["csv", "tsv", "json", "md", "parquet", "txt"])
def test_a_result_is_saved_whole_and_never_over_something(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"kernels.{suffix}"
    result = cnn_steps().kernels()
    assert result.save(file) == file
    if suffix == "parquet":
        assert pl.read_parquet(file).equals(result.frame)
    with pytest.raises(CannotWriteError):
        result.save(file)
    result.save(file, overwrite=True)


def test_a_diff_shows_its_summary() -> None:
    found = traceana.diff(cnn_steps(), cnn_steps())
    assert repr(found).startswith("Baseline")
    assert "Step time" in found._repr_html_()
    assert found.frame.equals(found.summary.by("layer"))
    assert traceana.compare([cnn_steps(), cnn_steps()], by="class").frame.height


def test_the_page_is_up_to_date_and_its_examples_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PAGE.read_text(encoding="utf-8") == api(), "run `python -m tools.api`"
    monkeypatch.chdir(ROOT)
    (code,) = re.findall(r"```python\n(.*?)```", EXAMPLES, re.DOTALL)
    exec(code, {})  # noqa: S102


@pytest.mark.parametrize(
    "name", ["kernels", "layers", "flops", "transfers", "idle", "critical", "memory"]
)
def test_an_unknown_grouping_is_an_error_that_lists_all(name: str) -> None:
    with pytest.raises(NoSuchSelectionError, match=r"^by='colour': use \w+, \w+"):
        getattr(TraceBuilder().build(), name)(by="colour")

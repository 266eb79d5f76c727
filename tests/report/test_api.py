"""The Python API in a notebook."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import traceana
from tests.support.traces import TraceBuilder, cnn_steps
from tools.api import EXAMPLES, PAGE, api
from traceana.cli import main
from traceana.errors import CannotWriteError, NoSuchSelectionError
from traceana.trace.commands import Commands

ROOT = Path(__file__).parents[2]
NAMED_APART = {"layers": "layer_times", "memory": "memory_use"}


def function_of(command: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(import_module(f"traceana.cli.{command}"), command)
    return found


def test_what_there_is_can_be_found() -> None:
    assert {"open", "diff", "compare", "describe", "Trace", "Result"} <= set(dir(traceana))
    options = inspect.signature(traceana.open).parameters
    assert {"steps", "ranks", "devices", "model", "step_marker", "rules", "counters"} <= set(
        options
    )
    assert "polars" not in (traceana.__doc__ or "polars").split("import")[0]


@pytest.mark.parametrize(
    "command",
    [name for name in main.COMMANDS if "files" in inspect.signature(function_of(name)).parameters],
)
def test_every_command_of_one_trace_is_a_method_with_its_options(command: str) -> None:
    function = function_of(command)
    if command in ("save", "export"):
        return  # they write and have no table
    method = getattr(Commands, NAMED_APART.get(command, command))
    shared = {"files", "reading", "tabling", "writing", "calibrate"}
    gates = {"list_", "fail_on", "most", "on_inconclusive"}
    wanted = set(inspect.signature(function).parameters) - shared - gates
    assert wanted <= set(inspect.signature(method).parameters)


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
    assert "<script>" not in builder.build().report()._repr_html_()


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
    assert found.frame.equals(found.layers)
    assert traceana.compare([cnn_steps(), cnn_steps()]).result("class").frame.height


@pytest.mark.slow
def test_the_page_is_up_to_date_and_its_examples_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PAGE.read_text(encoding="utf-8") == api(), "run `python -m tools.api`"
    monkeypatch.chdir(ROOT)
    (code,) = re.findall(r"```python\n(.*?)```", EXAMPLES, re.DOTALL)
    exec(code, {})  # noqa: S102


@pytest.mark.parametrize(
    "name", ["kernels", "layer_times", "flops", "transfers", "idle", "critical", "memory_use"]
)
def test_an_unknown_grouping_is_an_error_that_lists_all(name: str) -> None:
    with pytest.raises(NoSuchSelectionError, match=r"^by='category': use \w+, \w+"):
        getattr(TraceBuilder().build(), name)(by="category")

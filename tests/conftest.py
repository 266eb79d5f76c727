"""Fixtures of all tests."""

from __future__ import annotations

import contextlib
import gc
import os
import sys

# As the command line does (cli/main.py, cli/main.py). Polars reads the variable when it is
# imported, and its threads wait by spinning: without workers, tests take a third more CPU time.
gc.set_threshold(100_000)
os.environ.setdefault("POLARS_MAX_THREADS", "1")
# Threads that wait for each other by spinning take the time of whatever else runs.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Else it starts processes beside, which import PyTorch.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# XLA compiles longer than its programs run. What it does before LLVM, and records, is the same.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

# Polars works in threads of its own. On one core they and the tests take turns; on two, each of
# some hundred thousand queries wakes the other core, which took a sixth of all CPU time.
if (worker := os.environ.get("PYTEST_XDIST_WORKER")) and hasattr(os, "sched_setaffinity"):
    cores = sorted(os.sched_getaffinity(0))
    # Some containers forbid it.
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})

# ruff: noqa: E402
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.support import command_line
from tests.support.manifest import TRACES
from tests.support.once import once

# Tests start many processes. What these import is compiled once, whatever the shell's setting.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Nor whether what they print is buffered: that a user sets it is not to be expected.
os.environ.pop("PYTHONUNBUFFERED", None)

# A deadline measures the machine: two cores that others use as well fail it at random.
settings.register_profile("shared machine", deadline=None, max_examples=25)
# `pytest --hypothesis-profile long` searches longer.
settings.register_profile("long", deadline=None, max_examples=1000)
settings.load_profile("shared machine")


def pytest_sessionstart() -> None:
    """Refuse to run without others' traces where they are required, as in `.ci/run`."""
    if os.environ.get("TRACEANA_SHARED") == "required" and not TRACES.is_dir():
        pytest.exit("TRACEANA_SHARED=required, and ../shared/traces is missing", returncode=4)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files of frameworks, which take seconds to import, where none is selected."""
    if "not frameworks" not in config.option.markexpr or collection_path.suffix != ".py":
        return None
    marked = "\npytestmark = pytest.mark.frameworks\n" in collection_path.read_text("utf-8")
    return marked or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked ``exhaustive``, without the option, and run the longest first.

    ``exhaustive`` is for a test of which others of its kind are tried on every change, and
    ``exhaustive(after=3)`` for the parameters of a test after the first three.
    """
    if not config.getoption("--exhaustive"):
        parameters: Counter[str] = Counter()
        kept: list[pytest.Item] = []
        left_out: list[pytest.Item] = []
        for item in items:
            function = item.nodeid.partition("[")[0]
            parameters[function] += 1
            mark = item.get_closest_marker("exhaustive")
            out = mark is not None and parameters[function] > mark.kwargs.get("after", 0)
            (left_out if out else kept).append(item)
        items[:] = kept
        if left_out:
            config.hook.pytest_deselected(items=left_out)
    if "PYTEST_XDIST_WORKER" in os.environ:
        from tests.support.scheduling import rank

        items.sort(key=rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return the schedule of ``--dist loadfile``: by trace where a test has one, else by file."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.support.scheduling import ByTrace

    # Else the files with most tests come first.
    config.option.loadscopereorder = False
    return ByTrace(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one line on the tests skipped without the traces of others."""
    if not TRACES.is_dir():
        skipped = terminalreporter.stats.get("skipped", [])
        lost = sum("shared traces" in str(report.longrepr) for report in skipped)
        terminalreporter.write_line(f"{lost} tests skipped: no shared traces (../shared/traces)")


@pytest.fixture(autouse=True, scope="session")
def no_configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests do not use the user's rules; a trace opened for a module is that of its tests."""
    with pytest.MonkeyPatch.context() as patched:
        folder = tmp_path_factory.getbasetemp() / "no configuration"
        patched.setenv("XDG_CONFIG_HOME", str(folder))
        yield


@pytest.fixture
def run() -> command_line.Run:
    """Return a function that runs the command line in this process."""
    return command_line.run


@pytest.fixture(scope="session")
def alexnets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a sweep of AlexNet in three frameworks, recorded once for all workers."""
    from tests.support.recorded import tiny

    return once(tmp_path_factory, "alexnets", lambda folder: tiny(folder, "alexnet"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of ``make test-all``."""
    parser.addoption(
        "--exhaustive", action="store_true", help="Also the tests that are marked exhaustive."
    )

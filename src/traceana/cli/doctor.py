"""``traceana doctor``."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from traceana.cli.options import Tabling, Writing
from traceana.cli.output import Output
from traceana.errors import ExitCode, MissingDependencyError, how_to_install

_FOR_DEVELOPERS: Final = ("dev", "workloads")
_REQUIREMENT: Final = re.compile(r"(?P<name>[\w.-]+)[^;]*(?:;.*extra == ['\"](?P<extra>\w+)['\"])?")

ClearCache = Annotated[
    bool, typer.Option("--clear-cache", help="Delete what traceana keeps in its cache.")
]


def doctor(tabling: Tabling, writing: Writing, clear_cache: ClearCache = False) -> ExitCode:
    """Run the command; :mod:`traceana.commands` has its help."""
    output = Output(tabling, writing)
    if clear_cache:
        from traceana import cache

        cache.clear()
    import polars as pl

    from traceana.report.page import Data, Facts, Page, Rows
    from traceana.report.result import CommandResult
    from traceana.result import Result

    rows = list(_facts())
    frame = pl.DataFrame(rows, schema={"fact": pl.String, "value": pl.String}, orient="row")
    result = CommandResult.of(
        Result(frame), lambda shown: Page("doctor", (Facts(tuple(rows)),), Data(Rows(shown.frame)))
    )
    output.write(result)
    return ExitCode.OK


def _facts() -> Iterator[tuple[str, str]]:
    # All commands are imported for the list of them: what only this one needs is imported here.
    import webbrowser
    from importlib.metadata import requires

    from traceana.readers.compiled import COMPILED
    from traceana.record.nsys import find_nsys
    from traceana.version import __version__

    scanner = "with" if COMPILED else "without"
    place = Path(__file__).parents[1]
    yield "traceana", f"{__version__}, {scanner} the compiled scanner, in {place}"
    yield "Python", f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    needs: dict[str | None, list[str]] = {}
    for requirement in requires("traceana") or ():
        if parsed := _REQUIREMENT.match(requirement):
            needs.setdefault(parsed["extra"], []).append(parsed["name"])
    yield "packages", ", ".join(f"{name} {_version(name) or 'missing'}" for name in needs[None])
    for extra, names in needs.items():
        if extra is not None and extra not in _FOR_DEVELOPERS:
            missing = [name for name in names if _version(name) is None]
            there = ", ".join(f"{name} {_version(name)}" for name in names)
            hint = f"not installed: {how_to_install(extra)}"
            yield f"extra {extra}", hint if missing else there
    try:
        yield "nsys", find_nsys()
    except MissingDependencyError as error:
        yield "nsys", str(error)
    try:
        yield "browser", webbrowser.get().name
    except webbrowser.Error:
        yield "browser", "not found: open HTML pages elsewhere"
    from traceana import cache
    from traceana.cli.configuration import sources
    from traceana.report import numbers

    parts = ", ".join(f"{name} {numbers.size(size)}" for name, size in cache.sizes().items())
    yield "cache", f"{cache.folder('')}: {parts or 'empty'}"
    for number, source in enumerate(sources(), 1):
        settings = ", ".join(f"{key} = {value}" for key, value in source.settings.items())
        shown = f"{source.name}: {settings or 'no settings'}"
        yield f"configuration {number}", f"ignored: {source.error}" if source.error else shown


def _version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None

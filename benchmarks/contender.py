"""One reader of a Kineto trace: ``python contender.py READER FILE`` prints its cost as JSON.

Runs in any environment that has the reader's packages: it imports only the standard library, and
the reader's packages when it starts. Exit code 3: not installed.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

Work = Callable[[], int]
"""Reads the file and returns the number of rows."""

NOT_INSTALLED = 3


def traceana_read(path: str) -> tuple[Work, list[str]]:
    """Read into the canonical tables: exact times, integrity ledger."""
    read = import_module("traceana.readers.kineto.reader").read
    silent = import_module("traceana.readers.source").silent
    return lambda: int(read(Path(path), silent).meta.events), ["traceana"]


def traceana_open(path: str) -> tuple[Work, list[str]]:
    """Read, classify the names and attribute every activity."""
    opening = import_module("traceana.opening")
    return lambda: int(opening.open_trace(path).meta.events), ["traceana"]


def traceana_report(path: str) -> tuple[Work, list[str]]:
    """Run ``traceana report``, whose page is discarded."""
    application = import_module("traceana.cli.main").application(["report"])

    def work() -> int:
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
            application(["report", path], standalone_mode=False)
        return 0

    return work, ["traceana"]


def _in_python(way: Callable[[str], tuple[Work, list[str]]]) -> Callable[[str], Any]:
    """Return ``way`` without the compiled scanner."""

    def without(path: str) -> tuple[Work, list[str]]:
        reader: Any = import_module("traceana.readers.kineto.reader")
        reader.DECODER = import_module("traceana.readers.kineto.decode").DECODER
        return way(path)

    without.__name__ = f"{way.__name__}_in_python"
    return without


def hta_parse(path: str, backend: str | None = None) -> tuple[Work, list[str]]:
    """Parse one file into HTA's data frame, with its default backend or ``backend``."""
    parser = import_module("hta.common.trace_parser")
    configs = import_module("hta.configs.parser_config")
    config = configs.ParserConfig.get_default_cfg()
    if backend is not None:
        import_module("ijson")
        config.set_parser_backend(configs.ParserBackend[backend])
    return lambda: len(parser.parse_trace_dataframe(path, config)[1]), [
        "HolisticTraceAnalysis",
        "pandas",
    ]


def hta_parse_ijson(path: str) -> tuple[Work, list[str]]:
    """Parse one file with the backend that HTA chooses where yajl is installed."""
    work, packages = hta_parse(path, "IJSON_BATCH_AND_COMPRESS")
    return work, [*packages, "ijson"]


def hta_analysis(path: str) -> tuple[Work, list[str]]:
    """Open the file by HTA's public API: parse, align, index, iterations."""
    analysis = import_module("hta.trace_analysis").TraceAnalysis
    file = Path(path)

    def work() -> int:
        opened: Any = analysis(trace_files={0: file.name}, trace_dir=str(file.parent))
        return len(opened.t.get_trace(0))

    return work, ["HolisticTraceAnalysis", "pandas"]


def json_load(path: str) -> tuple[Work, list[str]]:
    """Decode into Python objects, which are discarded."""

    def work() -> int:
        return len(json.loads(Path(path).read_bytes())["traceEvents"])

    return work, []


def orjson_polars(path: str) -> tuple[Work, list[str]]:
    """Decode the whole file, then six columns with float times; garbage collection is off."""
    orjson, polars = import_module("orjson"), import_module("polars")

    def work() -> int:
        gc.disable()
        events = orjson.loads(Path(path).read_bytes())["traceEvents"]
        columns = {key: [event.get(key) for event in events] for key in ("ph", "cat", "name")}
        numbers = {key: [event.get(key) for event in events] for key in ("ts", "dur")}
        correlation = [event.get("args", {}).get("correlation") for event in events]
        schema = dict.fromkeys(columns, polars.Categorical) | dict.fromkeys(numbers, polars.Float64)
        frame = polars.DataFrame(
            {**columns, **numbers, "correlation": correlation},
            schema={**schema, "correlation": polars.Int64},
            strict=False,
        )
        return int(frame.height)

    return work, ["orjson", "polars"]


WAYS: dict[str, Callable[[str], tuple[Work, list[str]]]] = {
    reader.__name__: reader
    for reader in (
        traceana_read,
        traceana_open,
        traceana_report,
        *map(_in_python, (traceana_read, traceana_open, traceana_report)),
        hta_parse,
        hta_parse_ijson,
        hta_analysis,
        json_load,
        orjson_polars,
    )
}


def run_reader(readers: dict[str, Callable[[str], tuple[Work, list[str]]]]) -> None:
    """Prepare the reader that the command line names, time it and print its cost."""
    # The peers' logs and warnings are not part of the result.
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    reader, path = sys.argv[1:]
    try:
        work, packages = readers[reader](path)
    except ModuleNotFoundError as error:
        print(f"not installed: {error.name}", file=sys.stderr)
        sys.exit(NOT_INSTALLED)
    begin = time.perf_counter()
    rows = work()
    seconds = time.perf_counter() - begin
    known = {package: version(package) for package in packages}
    print("\n" + json.dumps({"seconds": seconds, "rows": rows, "versions": known}))


if __name__ == "__main__":
    run_reader(WAYS)

"""The runs of a history, and the rows that a folder of runs keeps: no trace is opened twice.

A store is a folder of bundles, recorded runs, traces or folders of ranks. Beside them lies
:data:`FILE`, with a row per run (:data:`traceana.comparison.run_rows.ROW`). A row counts as long as
its run is what it was made of: the manifest of a bundle and the file of a recorded run by their
content, other files by size and time of change.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from traceana.comparison.run_rows import ROW, run_row, timed_row
from traceana.errors import NoSuchSelectionError, NotFoundError, TraceanaError
from traceana.files import crc32, is_folder, write_whole
from traceana.plain_text import as_unicode
from traceana.readers.folder_search import is_name_of_trace
from traceana.readers.inputs import Kind, kind_of, resolve
from traceana.readers.source import silent
from traceana.runs.run_files import RUN_FILE
from traceana.runs.run_folders import is_run, read_run, runs_below
from traceana.trace.bundle import MANIFEST, is_bundle

FILE: Final = "traceana-history.parquet"
_VERSION: Final = 1
"""Of the rows: increased when one is computed in another way."""
_WRITTEN_EVERY: Final = 50
"""New rows after which the file is written, so that an interruption costs few."""
if TYPE_CHECKING:
    from traceana.job.tasks import Done

_KEPT: Final[dict[str, Any]] = {"name": pl.String, "state": pl.String, **ROW}


class StoredRun(msgspec.Struct, frozen=True):
    """A run of a history: its path, and the folder that keeps its row, None of a run by itself."""

    path: Path
    store: Path | None = None


class Rows(msgspec.Struct, frozen=True):
    """The rows of runs, in the order of ``runs``, and why others were left out."""

    runs: tuple[StoredRun, ...]
    frame: pl.DataFrame
    left_out: tuple[str, ...]


def find_stored(given: Sequence[Path]) -> list[StoredRun]:
    """Return the runs of ``given``, each once.

    A folder of bundles or recorded runs, and the only folder given, is a store: each trace, bundle,
    recorded run and folder in it is a run. Of several paths a folder of traces is one run: its
    ranks. Raises the errors of :mod:`traceana.errors`.
    """
    runs: dict[Path, StoredRun] = {}
    for path in given:
        if not path.exists():
            raise NotFoundError(f"{path} does not exist: check the path")
        kind = kind_of(path)
        stored: list[StoredRun] = []
        if kind is Kind.RUNS:
            # A sweep has its runs in the order of its points.
            stored = [StoredRun(run, run.parent) for run in runs_below(path)]
            stored += [StoredRun(bundle, path) for bundle in _bundles(path)]
        elif kind is Kind.FOLDER:
            stored = [StoredRun(bundle, path) for bundle in _bundles(path)]
            if not stored and len(given) == 1:
                stored = [StoredRun(run, path) for run in _traces(path)]
        for run in stored or [StoredRun(path)]:
            runs.setdefault(run.path.absolute(), run)
    return list(runs.values())


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        listed = [entry for entry in entries if not entry.name.startswith(".")]
    return sorted(listed, key=lambda entry: entry.name)


def _bundles(folder: Path) -> list[Path]:
    return [Path(entry.path) for entry in _entries(folder) if is_bundle(Path(entry.path))]


def _traces(folder: Path) -> list[Path]:
    return [
        Path(entry.path)
        for entry in _entries(folder)
        if is_folder(entry) or is_name_of_trace(entry.name)
    ]


def rows_of(runs: Sequence[StoredRun], *, items: bool = False, progress: Done = silent) -> Rows:
    """Return the rows of ``runs``, with the column ``items`` if they are asked for.

    Rows that their store has are not computed again, new ones are kept there if that is possible.
    A run that cannot be read, or has no time, is left out. Raises
    :class:`~traceana.errors.NoSuchSelectionError` if no run is left.
    """
    columns = [name for name in _KEPT if items or name != "items"]
    stores = dict.fromkeys(run.store for run in runs if run.store is not None)
    kept = {store: _kept_rows(store, columns) for store in stores}
    numbers = {
        store: {key: row for row, key in enumerate(frame.select("name", "state").iter_rows())}
        for store, frame in kept.items()
    }
    places: list[tuple[Path | None, int]] = []
    used: list[StoredRun] = []
    left_out: list[str] = []
    made: dict[Path | None, list[dict[str, Any]]] = {}
    for number, run in enumerate(runs):
        key = as_unicode(run.path.name), state_of(run.path)
        at = numbers.get(run.store, {}).get(key) if run.store is not None else None
        if at is None:
            progress(number, len(runs))
            try:
                row = {"name": key[0], "state": key[1], **_row(run.path)}
            except TraceanaError as error:
                left_out.append(f"{run.path}: {error}")
                continue
            new = made.setdefault(run.store, [])
            at = (kept[run.store].height if run.store is not None else 0) + len(new)
            new.append(row)
            if run.store is not None and len(new) % _WRITTEN_EVERY == 0:
                _keep(run.store, new)
        places.append((run.store, at))
        used.append(run)
    if not used:
        why = f": {left_out[0]}" if left_out else ""
        raise NoSuchSelectionError(f"no run with a step time{why}: record runs first")
    frames: dict[Path | None, pl.DataFrame] = {}
    for store in {store for store, _ in places}:
        new_rows = pl.DataFrame(made.get(store, []), schema=_KEPT, orient="row").select(columns)
        frames[store] = new_rows
        if store is not None:
            frames[store] = pl.concat([kept[store], new_rows])
            if store in made:
                _keep(store, made[store])
    ordered = [*frames]
    offsets = dict(
        zip(ordered, [0, *pl.Series([f.height for f in frames.values()]).cum_sum()], strict=False)
    )
    every = pl.concat(frames.values())
    frame = every[[offsets[store] + at for store, at in places]]
    return Rows(tuple(used), frame.drop("name", "state"), tuple(left_out))


def _row(path: Path) -> dict[str, Any]:
    from traceana.opening import open_trace
    from traceana.timeline.work import any_work, why_no_work

    if is_run(path) and not (run := read_run(path)).run.traces:
        row = timed_row(run)
        if row is not None:
            return row
    trace = open_trace(path)
    if trace.is_snapshot or not any_work(trace):
        why = "a memory snapshot" if trace.is_snapshot else why_no_work(trace)
        raise NoSuchSelectionError(f"no step time ({why})")
    row = run_row(trace)
    if not row["step_ns"]:
        raise NoSuchSelectionError("no step time (0 ns)")
    return row


def state_of(path: Path) -> str:
    """Return a text that changes with the run at ``path``."""
    with suppress(OSError):
        for name in (MANIFEST, RUN_FILE):
            file = path / name
            if file.is_file():
                content = file.read_bytes()
                return f"{_VERSION} {crc32(content):08x} {len(content)}"
        files = [path] if path.is_file() else sorted(_files(path))
        facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        return f"{_VERSION} {crc32(repr(facts).encode()):08x} {len(files)}"
    return f"{_VERSION} unread"


def _files(folder: Path) -> Iterable[Path]:
    try:
        return resolve(folder).files
    except TraceanaError:
        return []


def _kept_rows(store: Path, columns: Sequence[str]) -> pl.DataFrame:
    """Return the ``columns`` of the rows that ``store`` keeps; none where they are damaged."""
    empty = pl.DataFrame(schema={name: _KEPT[name] for name in columns})
    try:
        content = (store / FILE).read_bytes()
        frame = pl.read_parquet(io.BytesIO(content), columns=list(columns))
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return empty
    if frame.schema != empty.schema:
        return empty
    # Only rows that were computed here have a time, but the file may be from anywhere.
    return frame.filter(
        pl.col("step_ns") > 0, ~pl.any_horizontal(pl.col("name", "state").is_null())
    )


def _keep(store: Path, made: Sequence[dict[str, Any]]) -> None:
    """Write the rows of ``store`` with those ``made``; rows of runs that are gone are left out."""
    new = pl.DataFrame(made, schema=_KEPT, orient="row")
    before = _kept_rows(store, list(_KEPT))
    here = pl.Series([as_unicode(entry.name) for entry in _entries(store)], dtype=pl.String)
    every = pl.concat([new, before]).unique("name", keep="first", maintain_order=True)
    every = every.filter(pl.col("name").is_in(here.implode()))
    content = io.BytesIO()
    every.write_parquet(content, compression="zstd")
    # A store that cannot be written is read again next time.
    with suppress(OSError):
        write_whole(store / FILE, content.getvalue())

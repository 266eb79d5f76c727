"""What a path is: a trace, a saved bundle, a recorded run, several runs, or a folder of ranks."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import msgspec

from traceana.errors import UnknownFormatError
from traceana.runs.run_folders import check_finished, is_run, read_run, runs_below
from traceana.trace.bundle import is_bundle


class Kind(StrEnum):
    """What a path is."""

    FILE = "file"
    BUNDLE = "bundle"
    RUN = "recorded run"
    RUNS = "recorded runs"
    FOLDER = "folder"


class Input(msgspec.Struct, frozen=True):
    """A path, and the files to read: the traces of one run, a file a rank.

    ``beside`` are what is not read of a folder, as pairs (not read, read): files beside one of the
    same name and format, and older runs of TensorFlow's or JAX's profiler.
    """

    path: Path
    kind: Kind
    files: list[Path]
    beside: list[tuple[Path, Path]] = msgspec.field(default_factory=list)


def kind_of(path: Path) -> Kind:
    """Return what ``path`` is: a file where nothing else is there.

    Raises :class:`~traceana.errors.CorruptError` for an unfinished recording, and the errors of
    :func:`~traceana.runs.run_folders.runs_below`.
    """
    if not path.is_dir():
        return Kind.FILE
    if is_bundle(path):
        return Kind.BUNDLE
    check_finished(path)
    if is_run(path):
        return Kind.RUN
    return Kind.RUNS if runs_below(path) else Kind.FOLDER


def resolve(path: Path) -> Input:
    """Return what ``path`` is, and its traces.

    Those of a folder are the traces and bundles below it, in order of their paths. Its other files
    (layer manifests, logs, pictures) are skipped, and damaged traces are returned: their reader
    raises the error. Raises the errors of :func:`kind_of`, ``UnknownFormatError`` for several
    recorded runs and for a folder without traces, ``NotATraceError`` where there is JSON only,
    ``UsageError`` where there are several runs of rocprofv3,
    ``NotFoundError`` where the folder cannot be listed, and those of
    :meth:`~traceana.runs.run_folders.RecordedRun.traces`.
    """
    kind = kind_of(path)
    if kind is Kind.RUNS:
        below = runs_below(path)
        raise UnknownFormatError(
            f"{path} contains {len(below)} recorded runs: give one of them, such as {below[0]}"
        )
    if kind is Kind.FOLDER:
        # Most inputs are files.
        from traceana.readers.folder_traces import traces_below

        files, beside = traces_below(path)
        return Input(path, kind, files, beside)
    return Input(path, kind, read_run(path).traces() if kind is Kind.RUN else [path])

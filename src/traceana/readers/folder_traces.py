"""The traces of a folder: of files of one name the preferred, of several runs the newest."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from traceana.errors import (
    CorruptError,
    NotATraceError,
    NotFoundError,
    UnknownFormatError,
    UsageError,
)
from traceana.readers import nsys, rocprof
from traceana.readers.detect import FORMATS, detect
from traceana.readers.folder_search import COMPRESSED, ENDINGS, Search, listing
from traceana.readers.printed.text import nsys_summaries
from traceana.trace.bundle import is_bundle
from traceana.trace.bundle import sources as bundle_sources

_RUNS: Final = ("plugins", "profile")
"""The folder in which TensorFlow's and JAX's profilers write a folder per run, a file per host."""
_PASS: Final = re.compile(r"(?:pmc|pass)_\d+")
"""The folder in which rocprofv3 writes each run of the program for more counters."""
_NUMBERS: Final = re.compile(r"\d+")


def traces_below(folder: Path) -> tuple[list[Path], list[tuple[Path, Path]]]:
    """Return the traces and bundles below ``folder``, in order of their paths.

    The second is what is not read, as pairs (not read, read). Raises the
    errors of :func:`traceana.readers.inputs.resolve`.
    """
    if nsys.is_export(folder) or rocprof.files(folder):
        return [folder], []
    files = listing(folder)
    # The recordings of one name, each with its preference.
    named: dict[tuple[Path, str], list[tuple[int, Path]]] = {}
    other_files: list[Path] = []
    search = Search(folder)
    for group in (files.recordings, files.likely, files.others):
        # Where names are those of traces, files without such a name are none.
        if named and group is files.others:
            continue
        for preference, path in search.open_each(group, _preference):
            if preference is None:
                other_files.append(path)
                continue
            # rocprof writes results.csv and results.db; other CSV tables are not named as traces.
            endings = (*ENDINGS, ".csv.gz", ".csv")
            ending = next((ending for ending in endings if path.name.endswith(ending)), "")
            recordings = named.setdefault((path.parent, path.name.removesuffix(ending)), [])
            # The files of a run of rocprofv3 are one recording.
            if (preference, path) not in recordings:
                recordings.append((preference, path))
    if not named:
        alone: list[Path] = []
        for path in other_files:
            # JSON without events raises.
            with suppress(CorruptError, UnknownFormatError):
                detect(path)
                alone.append(path)
        if alone and {*alone} <= {*nsys_summaries(folder)}:
            return [folder], []
        if alone:
            raise UnknownFormatError(
                f"{folder} has no traces of ranks, but printed tables, counters or memory "
                f"snapshots: pass one of the files, such as {alone[0]}"
            )
        raise UnknownFormatError(
            f"{folder} is a directory without traces: pass a trace, or its folder"
        )
    for recordings in named.values():
        recordings.sort()
    preferred = _without_sources_of_bundles([recordings[0][1] for recordings in named.values()])
    names = {(path.parent, numberless(path)) for path in preferred}
    damaged = [path for path in other_files if (path.parent, numberless(path)) in names]
    beside = [
        (other_path, path)
        for (preference, path), *others in named.values()
        for other_preference, other_path in others
        if other_preference == preference
    ]
    runs = {path.parent for path in preferred if path.parent.parent.parts[-2:] == _RUNS}
    if len(runs) > 1:
        # Their folders are named after the time.
        newest = max(runs, key=lambda run: (run.name, run))
        older = runs - {newest}
        preferred = [path for path in preferred if path.parent not in older]
        damaged = [path for path in damaged if path.parent not in older]
        beside += [(run, newest) for run in sorted(older)]
    passes = {path.parent for path in preferred if _PASS.fullmatch(path.parent.name)}
    if len(passes) > 1:
        raise UsageError(
            f"{folder} holds {len(passes)} runs of rocprofv3, one for each group of counters: pass "
            f"the folder of one, such as {min(passes)}"
        )
    return sorted([*preferred, *damaged]), beside


def _without_sources_of_bundles(paths: list[Path]) -> list[Path]:
    """Return ``paths`` without the files that bundles among them were saved from."""
    saved: set[Path] = set()
    for path in paths:
        if is_bundle(path):
            # A relative path was relative to another folder, and a bundle may have moved with it.
            sources = [Path(text) for text in bundle_sources(path)]
            saved |= {_real(source) for source in sources if source.is_absolute()}
            saved |= {_real(path.parent / source.name) for source in sources}
    return [path for path in paths if is_bundle(path) or _real(path) not in saved]


def _real(path: Path) -> Path:
    """Return ``path`` without links; of a link to itself, a path that does not exist."""
    return Path(os.path.realpath(path))


def _preference(path: Path) -> tuple[int | None, Path]:
    """Return the preference of a file among the recordings of one run, and the path to read.

    The smallest number is read; None: the file is not read. An unreadable file that is named as a
    trace is the damaged file of a rank, and comes last.
    """
    if path.is_dir():
        return 0, path
    try:
        format_ = detect(path)
    except NotATraceError:
        return None, path
    except (CorruptError, UnknownFormatError):
        name = path.name.lower()
        compressed = next((ending for ending in COMPRESSED if name.endswith(ending)), "")
        is_named_as_trace = name.removesuffix(compressed).endswith(ENDINGS)
        return len(FORMATS) if is_named_as_trace else None, path
    except NotFoundError:
        return len(FORMATS), path
    return FORMATS.index(format_) if format_.in_folders else None, format_.run_of(path)


def numberless(path: Path) -> str:
    """Return the name of ``path`` with ``#`` for each number: files of ranks have one name."""
    return _NUMBERS.sub("#", path.name)

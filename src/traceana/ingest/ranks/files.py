"""Which files of a folder are traces, and which of two recordings of one thing to read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from traceana.errors import (
    AmbiguousRanksError,
    EmptyFileError,
    IsDirectoryError,
    NotATraceError,
    UnknownFormatError,
    UnreadableError,
)
from traceana.ingest.detect import Format, detect
from traceana.ingest.nsys_tables.sniff import is_export
from traceana.trace.bundle import is_bundle

# One run is often there twice: a report and its export, an xplane.pb and the trace.json of it.
# The fuller one is read.
_PREFERRED: Final = (
    Format.XPLANE,
    Format.SQLITE,
    Format.NSYS_TABLES,
    Format.NSYS_REPORT,
    Format.NSYS_STREAM,
    Format.KINETO,
    Format.XPLANE_JSON,
    Format.MXNET,
    Format.CHROME_JSON,
)
_RUNS: Final = ("plugins", "profile")
"""Where TensorFlow's and JAX's profilers make a folder for each run, with a file for each host."""
_ENDINGS: Final = (
    ".pt.trace.json.gz", ".pt.trace.json", ".trace.json.gz", ".trace.json", ".json.gz", ".json",
    ".xplane.pb", ".pb", ".nsys-rep", ".qdrep", ".qdstrm", ".sqlite", ".nvvp", ".nvprof", ".sql",
)  # fmt: skip


def find(folder: Path) -> list[Path]:
    """Return the traces and bundles below ``folder``, in order of their paths.

    Files that are no traces (layer lists, logs, pictures) are passed over. What begins like a
    trace and is damaged is returned: its reader says what is wrong. Raises ``IsDirectoryError``
    when there is none, ``AmbiguousRanksError`` when they are several runs of TensorFlow's or JAX's
    profiler, ``UnreadableError`` when the folder may not be listed.
    """
    if is_export(folder):
        return [folder]
    best: dict[tuple[Path, str], tuple[int, Path]] = {}
    for path in _walk(folder):
        rank = 0 if is_bundle(path) else _preference(path)
        if rank is None:
            continue
        key = path.parent, _stem(path.name)
        best[key] = min(best.get(key, (rank, path)), (rank, path))
    if not best:
        raise IsDirectoryError(
            f"{folder} is a directory, and nothing in it is a trace: name a trace, or its folder"
        )
    found = sorted(path for _, path in best.values())
    runs = sorted({path.parent for path in found if path.parent.parent.parts[-2:] == _RUNS})
    if len(runs) > 1:
        raise AmbiguousRanksError(
            f"{folder} holds {len(runs)} runs of the profiler: name the folder of one, "
            f"the last of them is {runs[-1]}"
        )
    return found


def _walk(folder: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        raise UnreadableError(f"{folder} cannot be listed: {error.strerror}") from error

    for root, folders, files in os.walk(folder, onerror=fail):
        here = Path(root)
        for name in list(folders):
            if name.startswith(".") or is_bundle(here / name) or is_export(here / name):
                folders.remove(name)
                if not name.startswith("."):
                    yield here / name
        visible = (here / name for name in files if not name.startswith("."))
        yield from (path for path in visible if path.is_file() or not path.exists())


def _preference(path: Path) -> int | None:
    try:
        return _PREFERRED.index(detect(path))
    except (NotATraceError, UnknownFormatError):
        return None
    except ValueError:  # a format that is no timeline of its own
        return None
    except EmptyFileError:
        return len(_PREFERRED) if path.name.endswith(_ENDINGS) else None
    except UnreadableError:
        return len(_PREFERRED)


def _stem(name: str) -> str:
    ending = next((ending for ending in _ENDINGS if name.endswith(ending)), "")
    return name[: len(name) - len(ending)]

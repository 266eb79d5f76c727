"""Searches a folder for files that may be traces: names decide which are opened, and when.

A project's folder may hold a Python environment and a data set, a million files. Folders of
installed packages are not searched, and the search ends with an error where it lists too many
files or opens too many that are not traces.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from traceana.errors import NotFoundError, UnknownFormatError
from traceana.files import is_folder
from traceana.readers import nsys
from traceana.runs.run_files import is_name_beside
from traceana.trace.bundle import MANIFEST

PROFILERS_ENDINGS: Final = (
    "_results.db", "_results.json", "_results.pftrace", ".pftrace.gz", ".pftrace",
    ".pt.trace.json.gz", ".pt.trace.json", ".trace.json.gz", ".trace.json",
    ".xplane.pb", ".nsys-rep", ".qdrep", ".qdstrm", ".sqlite", ".nvvp", ".nvprof",
)  # fmt: skip
"""Endings of the names that profilers give, and few other programs."""
ENDINGS: Final = (*PROFILERS_ENDINGS, ".db", ".json.gz", ".json", ".pb", ".sql")
"""Endings of traces: of a name with several, the longest stands first."""
COMPRESSED: Final = (".zst", ".xz", ".bz2", ".lz4", ".zip", ".7z", ".tar", ".tgz", ".tar.gz")
"""Endings behind :data:`ENDINGS` of files that no reader opens."""
_TABLES: Final = (".csv", ".csv.gz")
_LIKELY: Final = (*ENDINGS, *_TABLES, *(a + b for a in ENDINGS for b in COMPRESSED))

_INSTALLED: Final = frozenset({"site-packages", "dist-packages", "node_modules", "__pycache__"})
"""Folders of installed packages and of compiled files, which hold no recordings."""
_ENVIRONMENT: Final = ("pyvenv.cfg", "conda-meta")
"""A file or folder at the top of a Python environment, whatever its name is."""
_NEVER_TRACES: Final = (
    ".py", ".pyc", ".pyi", ".pyx", ".ipynb", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp",
    ".so", ".o", ".a", ".rs", ".go", ".js", ".ts", ".css", ".html", ".yaml", ".yml", ".toml",
    ".lock", ".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".bmp", ".tif", ".tiff", ".mp3",
    ".mp4", ".wav", ".flac", ".pdf", ".pt", ".pth", ".ckpt", ".safetensors", ".onnx", ".gguf",
    ".npy", ".npz", ".pkl", ".h5", ".whl", ".tfrecord", ".tfrecords", ".arrow", ".parquet",
)  # fmt: skip
"""Endings of sources, pictures, weights and data, which are not opened."""
_SNAPSHOT: Final = "snapshot.pkl"
"""But of memory snapshots."""

_MOST_LISTED: Final = 1_000_000
_MOST_OPENED: Final = 2_000
"""Files that are not traces."""
_FEW_LISTED: Final = 20_000
_FEW_OPENED: Final = 200
"""So many are read however slow the disk is."""
_MOST_SECONDS: Final = 1.0
_NAMED: Final = 3
"""Folders that an error names."""


def is_name_of_trace(name: str) -> bool:
    """Return whether files of this name can be traces, by its ending.

    Names of files beside a trace are not: at a URL, their content costs a download.
    """
    return name.endswith(ENDINGS) and not is_name_beside(name)


class Listing(msgspec.Struct, frozen=True):
    """The files of a folder and of those below it, by what their names say, in order of paths.

    ``recordings`` are bundles, exports of nsys and names that profilers give, ``likely`` other
    names with the endings of traces and tables, ``others`` may be printed tables.
    """

    recordings: list[str]
    likely: list[str]
    others: list[str]


def listing(folder: Path) -> Listing:
    """Return the files below ``folder`` that may be traces.

    Hidden folders and installed packages are left out, and links to files that are below
    ``folder`` anyway. Raises ``NotFoundError`` where a folder cannot be listed, and
    ``UnknownFormatError`` where it holds too many files.
    """
    # Texts: a path object a file takes longer than the listing.
    recordings: list[str] = []
    likely: list[str] = []
    others: list[str] = []
    top = os.path.realpath(folder)
    waiting = [str(folder)]
    visited: set[tuple[int, int]] = set()
    begun, listed = time.monotonic(), 0
    while waiting:
        here = waiting.pop()
        late = listed > _FEW_LISTED and time.monotonic() - begun > _MOST_SECONDS
        if listed > _MOST_LISTED or late:
            what = f"listed {listed:,} files and folders"
            raise _not_searched(folder, what, [here, *waiting], recordings)
        try:
            status = Path(here).stat()
            with os.scandir(here) as scanned:
                entries = [entry for entry in scanned if not entry.name.startswith(".")]
        except OSError as error:
            raise NotFoundError(
                f"{folder} cannot be listed ({error.strerror}): check its permissions"
            ) from error
        # Links to folders may form a cycle.
        if (key := (status.st_dev, status.st_ino)) in visited:
            continue
        visited.add(key)
        listed += len(entries)
        below = here != str(folder)
        names = {entry.name for entry in entries}
        if below and not names.isdisjoint(_ENVIRONMENT):
            continue
        if below and (MANIFEST in names or not names.isdisjoint(nsys.EXPORT_FILES)):
            recordings.append(here)
            continue
        for entry in entries:
            name = entry.name
            is_data = name.endswith(_NEVER_TRACES) and not name.endswith(_SNAPSHOT)
            if is_folder(entry):
                if name not in _INSTALLED:
                    waiting.append(entry.path)
            elif is_data or _is_no_file(entry, top):
                continue
            elif name.endswith(PROFILERS_ENDINGS):
                recordings.append(entry.path)
            elif name.lower().endswith(_LIKELY):
                likely.append(entry.path)
            else:
                others.append(entry.path)
    return Listing(sorted(recordings), sorted(likely), sorted(others))


def _is_no_file(entry: os.DirEntry[str], top: str) -> bool:
    """Return whether ``entry`` is a pipe, or a link to a file that is listed anyway.

    Such a file is below ``top`` and not in a hidden folder. A link to nothing is a damaged file.
    """
    if not entry.is_symlink():
        return not entry.is_file()
    target = os.path.realpath(entry.path)
    if not Path(target).exists():
        return False
    if not Path(target).is_relative_to(top):
        return not entry.is_file()
    return not any(part.startswith(".") for part in Path(target).relative_to(top).parts)


class Search(msgspec.Struct):
    """Counts the files of ``folder`` that were opened and are not traces, and their time."""

    folder: Path
    files: int = 0
    seconds: float = 0.0

    def open_each(
        self, files: Sequence[str], preference_of: Callable[[Path], tuple[int | None, Path]]
    ) -> Iterator[tuple[int | None, Path]]:
        """Yield the preference of each of ``files``, None for no trace, and the path to read.

        Raises ``UnknownFormatError``, which names what was not opened, after too many that are no
        traces.
        """
        for place, file in enumerate(files):
            late = self.files > _FEW_OPENED and self.seconds > _MOST_SECONDS
            if self.files > _MOST_OPENED or late:
                folders = dict.fromkeys(path.rpartition(os.sep)[0] for path in files[place:])
                what = f"opened {self.files:,} files that are no traces"
                raise _not_searched(self.folder, what, [*folders])
            begun = time.monotonic()
            preference, path = preference_of(Path(file))
            if preference is None:
                self.files += 1
                self.seconds += time.monotonic() - begun
            yield preference, path


def _not_searched(
    folder: Path, what: str, folders: list[str], recordings: Sequence[str] = ()
) -> UnknownFormatError:
    such_as = f", such as {min(recordings)}" if recordings else ""
    named = ", ".join(folders[:_NAMED])
    more = f" and {len(folders) - _NAMED:,} more folders" if len(folders) > _NAMED else ""
    return UnknownFormatError(
        f"{folder}: {what}, and did not search {named}{more}: pass the trace, or the folder of the "
        f"traces{such_as}"
    )

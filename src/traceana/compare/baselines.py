"""Runs that were kept under a name, to compare others with."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from traceana.errors import CannotWriteError, NotFoundError
from traceana.trace.bundle import is_bundle

if TYPE_CHECKING:
    from traceana.describe import Manifest
    from traceana.trace import Trace

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def baselines_folder() -> Path:
    """Return where baselines are: ``traceana/baselines`` in ``$XDG_DATA_HOME``.

    Where that is unset, empty or no absolute path it is in ``~/.local/share``, as the XDG Base
    Directory Specification has it.
    """
    told = os.environ.get("XDG_DATA_HOME", "")
    home = Path(told) if Path(told).is_absolute() else Path("~/.local/share").expanduser()
    return home / "traceana" / "baselines"


def resolved(given: Path) -> Path:
    """Return ``given`` where it exists, else the baseline of that name.

    Raises :class:`~traceana.errors.NotFoundError`, which lists the baselines there are.
    """
    if given.exists():
        return given
    folder = baselines_folder()
    name = str(given)
    if _NAME.fullmatch(name) and is_bundle(folder / name):
        return folder / name
    kept = sorted(path.name for path in folder.glob("*") if is_bundle(path))
    there = f"the baselines are {', '.join(kept)}" if kept else "no baseline was saved yet"
    raise NotFoundError(f"{given} is neither a file nor a baseline: {there}")


def save_baseline(name: str, trace: Trace, model: Manifest | None) -> Path:
    """Keep ``trace`` under ``name``, with its layer manifest, in place of one of that name.

    Returns its bundle. Raises :class:`~traceana.errors.CannotWriteError`, also on a name of other
    characters than letters, digits, ``-`` and ``_``.
    """
    if not _NAME.fullmatch(name):
        raise CannotWriteError(
            f"{name!r} cannot be a baseline's name: use letters, digits, - and _ only"
        )
    folder = baselines_folder()
    bundle = trace.save(folder / name, overwrite=True)
    beside = folder / f"{name}.layers.json"
    if model is not None:
        model.write(beside)
        return bundle
    try:
        beside.unlink(missing_ok=True)
    except OSError as error:
        raise CannotWriteError(f"cannot replace {beside}: {error.strerror}") from error
    return bundle

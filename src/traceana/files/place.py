"""Folders that get their name only when they are whole."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path


def put_in_place(made: Path, target: Path) -> None:
    """Rename the folder ``made`` to ``target``, whose content goes when the new one is there.

    Raises ``OSError``; ``target`` is then what it was.
    """
    if not target.exists():
        made.rename(target)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
    target.rename(aside / "old")
    try:
        made.rename(target)
    except OSError:
        (aside / "old").rename(target)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)

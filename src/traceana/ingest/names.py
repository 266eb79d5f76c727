"""Distinct activity names and their row numbers, gathered while a reader streams."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import polars as pl

UNNAMED: Final = "(unnamed)"
"""The name of activities whose name is not in the file; the reader counts them in the ledger."""

LONGEST: Final = 16 << 10
"""Letters of a mangled name; a longer one stays as it is."""

_MANGLED: Final = re.compile(r"_Z[0-9A-Za-z_.$]+")
_WORKER: Final = Path(__file__).with_name("demangle_worker.py")

_SECONDS: Final = 10.0
"""For all names together; tens of thousands take one."""


class NameTable:
    """Gives every distinct name one number, in the order in which the names first appear.

    The numbers are ``activities.name_id``, the table of :meth:`frame` is ``names``. Only distinct
    names pass through Python, never one object an event. Mangled C++ names are kept in their
    readable form only, so that the formats' names of one kernel are one name.
    """

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._seen: dict[str, int] = {}  # by the spelling in the file

    def ids(self, texts: pl.Series) -> pl.Series:
        """Return the UInt32 numbers of ``texts``; a null text is :data:`UNNAMED`."""
        labels = texts.cast(pl.Categorical)
        distinct = labels.unique(maintain_order=True)
        names = distinct.cast(pl.String).fill_null(UNNAMED).to_list()
        plain = readable(name for name in names if name not in self._seen)
        for name in names:
            if name not in self._seen:
                shown = plain.get(name, name)
                self._seen[name] = self._ids.setdefault(shown, len(self._ids))
        numbers = [self._seen[name] for name in names]
        # The physical number of a label is the key: no event's name is compared as text.
        return labels.to_physical().replace_strict(
            distinct.to_physical(), pl.Series(numbers, dtype=pl.UInt32), return_dtype=pl.UInt32
        )

    def frame(self) -> pl.DataFrame:
        """Return the names seen so far, one row each, row number = id."""
        return pl.DataFrame({"name": list(self._ids)}, schema={"name": pl.String})


def readable(names: Iterable[str]) -> dict[str, str]:
    """Return the readable form of those ``names`` that are mangled and can be read."""
    mangled = [n for n in names if len(n) <= LONGEST and _MANGLED.fullmatch(n)]
    found: dict[str, str] = {}
    deadline = time.monotonic() + _SECONDS
    while mangled and time.monotonic() < deadline:
        lines = _work(mangled, deadline - time.monotonic())
        answered = zip(mangled, lines, strict=False)
        found |= {name: line for name, line in answered if line != name}
        # The first without an answer is the one that the worker died of.
        mangled = mangled[len(lines) + 1 :]
    return found


def _work(names: list[str], seconds: float) -> list[str]:
    """Return an answer a line for the first of ``names``, in order; for all if nothing is wrong."""
    library = find_spec("pycxxfilt")
    if library is None or library.origin is None:
        return names
    command = [sys.executable, "-I", "-S", "-X", "utf8", str(_WORKER)]
    try:
        done = subprocess.run(
            [*command, str(Path(library.origin).parents[1])],
            input="\n".join(names).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            check=False,
        )
        output = done.stdout
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
    except OSError:
        return names
    return output.decode("utf-8", "replace").replace("\r\n", "\n").split("\n")[:-1]

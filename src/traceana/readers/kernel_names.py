"""Numbers the distinct names of activities, and demangles C++ names.

LLVM's demangler runs in a process of its own with little memory and time: a name of 300 letters
can expand to terabytes, and one of deep nesting overflows the stack. A name that cannot be
demangled stays mangled.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from traceana.trace.ledger import Ledger

UNNAMED: Final = "(unnamed)"
"""The name of activities whose name is not in the file; the reader counts them in the ledger."""
LONGEST: Final = 16 << 10
"""Letters of the longest name that is demangled."""
_MANGLED: Final = re.compile(r"_Z[0-9A-Za-z_.$]+")  # of the Itanium ABI
_DESCRIPTOR: Final = r"(?: \[clone \.kd\]|\.kd)$"
"""Of the kernel's descriptor, whose symbol rocprof and rocprofv2 print."""
_WORKER: Final = Path(__file__).with_name("demangle_worker.py")
_SECONDS: Final = 10.0
"""Time limit of all names together; tens of thousands take one second."""
_OUT_OF_TIME: Final = f"not done in {_SECONDS:.0f} s"
_LONGEST_ERROR: Final = 200
_READY: Final = "ready"
"""The first line of the helper process; the answers follow."""
_MOST_KNOWN: Final = 10_000
_known: dict[str, str] = {}
"""Names demangled before: the files of a sweep have the same ones, and a process takes 30 ms."""


FEW: Final = 1_000
"""Values of a column that Python handles faster than a query is planned."""


def plain_names(names: pl.Series) -> pl.Series:
    """Return ``names`` of kernels without the suffix of their descriptor, ``.kd``."""
    return names.str.replace(_DESCRIPTOR, "")


def distinct_values(values: pl.Series) -> list[Any]:
    """Return the distinct values of ``values`` that are not null, in the order of appearance."""
    if len(values) <= FEW:
        return [value for value in dict.fromkeys(values.to_list()) if value is not None]
    return values.unique(maintain_order=True).drop_nulls().to_list()


class NameTable:
    """Numbers the distinct names in the order of their first appearance.

    The numbers are ``activities.name_id``, the table of :meth:`frame` is ``names``. Only distinct
    names become Python objects. Names are demangled, so that a kernel has one name in every format;
    ``ledger`` counts those that cannot be.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._ids: dict[str, int] = {}
        self._seen: dict[str, int] = {}  # by the spelling in the file

    def ids(self, texts: pl.Series) -> pl.Series:
        """Return the UInt32 numbers of ``texts``; a null text is :data:`UNNAMED`."""
        if len(texts) <= FEW:
            spelt = [UNNAMED if text is None else str(text) for text in texts.to_list()]
            self._number(dict.fromkeys(spelt))
            return pl.Series(texts.name, [self._seen[text] for text in spelt], dtype=pl.UInt32)
        labels = texts.cast(pl.Categorical)
        distinct = labels.unique(maintain_order=True)
        names = distinct.cast(pl.String).fill_null(UNNAMED).to_list()
        self._number(names)
        numbers = [self._seen[name] for name in names]
        # Labels are looked up by their physical number: no event's name is compared as text.
        return labels.to_physical().replace_strict(
            distinct.to_physical(), pl.Series(numbers, dtype=pl.UInt32), return_dtype=pl.UInt32
        )

    def _number(self, names: Iterable[str]) -> None:
        new = [name for name in names if name not in self._seen]
        plain = demangle(new)
        plain.count_failures(self._ledger)
        for name in new:
            shown = plain.names.get(name, name)
            self._seen[name] = self._ids.setdefault(shown, len(self._ids))

    def frame(self) -> pl.DataFrame:
        """Return the names seen so far, one row each, row number = id."""
        return pl.DataFrame({"name": list(self._ids)}, schema={"name": pl.String})


class Demangled(msgspec.Struct):
    """Demangled names by their mangled form.

    ``failed`` is how many mangled names could not be demangled, ``error`` the reason.
    """

    names: dict[str, str]
    failed: int = 0
    error: str | None = None

    def count_failures(self, ledger: Ledger) -> None:
        """Count in ``ledger`` the names that stay mangled."""
        ledger.add("not_demangled", self.failed, table="names", kept=True, detail=self.error)


def demangle(names: Iterable[str]) -> Demangled:
    """Return the readable form of the mangled names among ``names``."""
    mangled = [name for name in names if len(name) <= LONGEST and _MANGLED.fullmatch(name)]
    demangled = Demangled({name: _known[name] for name in mangled if name in _known})
    mangled = [name for name in mangled if name not in _known]
    if not mangled:
        return demangled
    command: list[str] = []
    error: str | None = None
    library = find_spec("pycxxfilt")
    if library is None or library.origin is None:
        error = "pycxxfilt is not installed"
    else:
        folder = Path(library.origin).parents[1]
        command = [sys.executable, "-I", "-S", "-X", "utf8", str(_WORKER), str(folder)]
    deadline = time.monotonic() + _SECONDS
    while mangled and error is None:
        seconds = deadline - time.monotonic()
        lines, error = _run(command, mangled, seconds) if seconds > 0 else ([], _OUT_OF_TIME)
        answered = zip(mangled, lines, strict=False)
        readable = {name: line for name, line in answered if line != name}
        demangled.names |= readable
        for name, line in readable.items():
            if len(_known) < _MOST_KNOWN and len(line) <= LONGEST:
                _known[name] = line
        mangled = mangled[len(lines) :]
        if mangled and error is None:
            # The process ended at this name.
            mangled = mangled[1:]
            demangled.failed += 1
            demangled.error = "out of the demangler's memory or stack"
    if mangled:
        demangled.failed += len(mangled)
        demangled.error = error
    return demangled


def _run(command: list[str], names: list[str], seconds: float) -> tuple[list[str], str | None]:
    """Return the answers for the first of ``names``, in order, and the error that ended them.

    Without an error, the name after the last answer ended the process.
    """
    try:
        worker = subprocess.run(
            command,
            input="\n".join(names).encode(),
            capture_output=True,
            timeout=seconds,
            check=False,
        )
        output, error = worker.stdout, None
    except subprocess.TimeoutExpired as timeout:
        output, error = timeout.stdout or b"", _OUT_OF_TIME
    except OSError as failure:
        return [], f"{command[0]} cannot be run: {failure.strerror}"
    ready, *lines = output.decode("utf-8", "replace").replace("\r\n", "\n").split("\n")
    if ready != _READY and error is None:
        messages = worker.stderr.decode("utf-8", "replace").strip().splitlines()
        last = messages[-1][:_LONGEST_ERROR] if messages else f"exit status {worker.returncode}"
        return [], f"the demangler does not start: {last}"
    return lines[:-1], error

"""What one recorded process tells the recording one, in a file of its own."""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from .settings import Settings

PREFIX = "process-"
EXITING = "exiting-"
"""Begin the names of files; the process id follows."""
_RESERVE = 1 << 14
"""Bytes set aside on the disk for a last report; a page of an exception's text fits."""


class Report:
    """Facts about this process, written to ``process-PID.json`` whenever there is news."""

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.folder
        self._process = os.getpid()
        self._facts: dict[str, Any] = {}
        self._closing: list[Callable[[], None]] = []

    def forget(self) -> None:
        """Begin anew, in a child that was forked: nothing of the parent's is its own."""
        self._process = os.getpid()
        self._facts = {}
        self._closing = []

    def tell(self, **facts: Any) -> None:
        """Add ``facts``, and write all of them."""
        self._facts.update(facts)
        self._write()

    def note(self, text: str) -> None:
        """Add what could not be had."""
        self.tell(notes=[*self._facts.get("notes", []), text])

    def problem(self, kind: str, text: str) -> None:
        """Tell what ended the recording: ``conflict``, ``no space``, ``profiler``."""
        self.tell(problem={"kind": kind, "text": text})

    def failed(self, error: BaseException) -> None:
        """Tell of an error of the profiler, or of writing what it gave."""
        import errno

        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        self.problem("no space" if full else "profiler", f"{type(error).__name__}: {error}")

    def at_close(self, action: Callable[[], None]) -> None:
        """Have ``action`` done before the last report."""
        self._closing.append(action)
        # Functions that were registered last are called first: before those of the frameworks,
        # which take apart what a profiler needs.
        atexit.register(self._act)

    def close(self, error: BaseException | None) -> None:
        """End the report of a process that was ended by ``error``, or by nothing."""
        self._act()
        if error is not None:
            self._facts["exception"] = {
                "type": f"{type(error).__module__}.{type(error).__qualname__}",
                "text": str(error)[-4000:],
            }
        if self._facts:
            from .facts import facts

            self.tell(**facts())

    def exiting(self) -> None:
        """Tell that this process has only to exit: its time to do so is limited from here."""
        from pathlib import Path

        if self._facts:
            try:
                Path(self._folder, f"{EXITING}{self._process}").touch()
            except OSError as error:
                self.note(f"the time to exit is not limited: {error.strerror}")

    def _act(self) -> None:
        actions, self._closing = self._closing, []
        for action in actions:
            try:
                action()
            except Exception as raised:  # noqa: BLE001
                self.failed(raised)

    def _write(self) -> None:
        from pathlib import Path  # not at the start of every Python

        path = Path(self._folder, f"{PREFIX}{self._process}.json")
        scratch, reserve = path.with_suffix(".new"), path.with_suffix(".reserve")
        content = json.dumps({"executable": sys.executable, **self._facts})
        for full in (False, True):
            try:
                # When the disk is full, what was set aside is for saying so.
                if full:
                    reserve.unlink()
                elif not reserve.exists():
                    reserve.write_bytes(bytes(_RESERVE))
                scratch.write_text(content, encoding="utf-8")
                scratch.replace(path)
                return
            except OSError:
                continue


def guarded(action: Callable[[], None], report: Report) -> None:
    """Do ``action``; where it fails the script runs on, and the report says so."""
    try:
        action()
    except Exception as error:  # noqa: BLE001
        report.note(f"part of the recording failed: {type(error).__name__}: {str(error)[:200]}")

"""The command line in this process."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import typer.main
import typer.testing
from typer.testing import CliRunner, Result

from tests.support.opened import opened_once
from traceana.cli.reference import app

Run = Callable[..., Result]

# typer builds all commands again for each call, which takes as long as a command on a small trace.
setattr(typer.testing, "_get_command", cache(typer.main.get_command))  # noqa: B010


def run(*words: object, **more: Any) -> Result:
    """Return the result of ``traceana WORDS``; ``more`` is for the runner (``input``, ``env``)."""
    with opened_once():
        return CliRunner().invoke(app, [str(word) for word in words], **more)

"""The application with every command, for the generated reference and the tests."""

from __future__ import annotations

from typing import Final

from traceana.cli.main import application

app: Final = application()

"""The application with every command, for what walks through all of them."""

from __future__ import annotations

from typing import Final

from traceana.cli.main import application

app: Final = application()

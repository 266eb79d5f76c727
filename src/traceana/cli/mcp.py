"""``traceana mcp``."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from traceana.errors import ExitCode, MissingDependencyError, NotFoundError, how_to_install

Root = Annotated[
    Path,
    typer.Option(
        metavar="DIR",
        help="Folder of the traces; nothing outside it is opened.",
    ),
]


def mcp(root: Root) -> ExitCode:
    """Run the command; :mod:`traceana.commands` has its help."""
    if find_spec("mcp") is None:
        raise MissingDependencyError(f"the MCP server needs mcp: {how_to_install('mcp')}")
    if not root.is_dir():
        raise NotFoundError(f"{root}: no such folder; give the folder of the traces")
    from traceana.mcp_server import serve

    serve(root)
    return ExitCode.OK

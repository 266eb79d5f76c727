"""Imports all that a command may import, before any process is forked.

A child then starts with everything loaded, and all of one version even if the source changes.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import walk_packages
from typing import Final

import traceana

_LIVE: Final = (
    *(f"traceana.model.{name}" for name in ("pytorch", "keras", "flax", "jax", "live")),
    "traceana.record.inside",
    "traceana.__main__",
    "traceana.readers.demangle_worker",
)
"""Adapters of frameworks that are not imported here, and programs of their own."""


def everything() -> None:
    """Import every module of traceana that needs no framework."""
    for module in walk_packages(traceana.__path__, "traceana."):
        if not module.name.startswith(_LIVE):
            import_module(module.name)
    for name in ("adbc_driver_sqlite.dbapi", "isal.isal_zlib", "pycxxfilt", "pyarrow.parquet"):
        import_module(name)

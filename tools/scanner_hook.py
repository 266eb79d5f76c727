"""Hatchling's hook: the wheel holds the compiled scanner where there is a compiler, and says so."""

from __future__ import annotations

import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ScannerHook(BuildHookInterface):  # type: ignore[misc]
    """Compiles in place for an editable installation, else into the wheel alone."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; a wheel without the library stays one for every platform."""
        # By its path: the repository's root is not where modules are imported from here.
        tool = runpy.run_path(str(Path(self.root) / "tools" / "build_scanner.py"))
        if version == "editable":
            tool["build"]()
            return
        self._folder = tempfile.TemporaryDirectory()
        library = tool["build"](Path(self._folder.name))
        if library is not None:
            place = f"traceana/readers/compiled/{library.name}"
            build_data["force_include"][str(library)] = place
            build_data["pure_python"] = False
            build_data["tag"] = tool["platform_tag"]()

    def finalize(self, version: str, *_: Any) -> None:
        """Remove what was compiled for the wheel."""
        if version != "editable":
            self._folder.cleanup()

"""Other tools that traceana is compared with, each in its own virtual environment.

They need other versions of the libraries that traceana uses.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.source import ROOT

PACKAGES: Final = ("HolisticTraceAnalysis", "ijson", "orjson", "polars")
XPLANE_PACKAGES: Final = ("protobuf", "xprof")
CRITICAL_PACKAGES: Final = ("HolisticTraceAnalysis", "pandas<3")
"""With pandas 3 the critical path of HTA 0.5.0 ends in a ``ValueError``."""
_FOLDER: Final = ROOT / ".bench-venv"
PYTHON: Final = _FOLDER / "bin" / "python"
_XPLANE_FOLDER: Final = ROOT / ".cache" / "bench-venv-xplane"
XPLANE_PYTHON: Final = _XPLANE_FOLDER / "bin" / "python"
_CRITICAL_FOLDER: Final = ROOT / ".cache" / "bench-venv-critical"
CRITICAL_PYTHON: Final = _CRITICAL_FOLDER / "bin" / "python"


def install() -> bool:
    """Create or complete the environments from a package index; return whether that succeeded."""
    done = [
        _filled(_FOLDER, PYTHON, PACKAGES),
        _filled(_XPLANE_FOLDER, XPLANE_PYTHON, XPLANE_PACKAGES),
        _filled(_CRITICAL_FOLDER, CRITICAL_PYTHON, CRITICAL_PACKAGES),
    ]
    if all(done):
        return True
    print("the peers could not be installed: the results are without them", file=sys.stderr)
    return False


def _filled(folder: Path, python: Path, packages: Sequence[str]) -> bool:
    if not python.exists():
        venv.create(folder, with_pip=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    return subprocess.run([*command, *packages], check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(0 if install() else 1)

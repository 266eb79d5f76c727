"""Programs of others that traceana is measured against, in a virtual environment of their own.

Theirs are other versions of the libraries that traceana uses, so neither touches the other.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from typing import Final

from benchmarks.source import ROOT

PACKAGES: Final = ("HolisticTraceAnalysis", "ijson", "orjson", "polars")
_FOLDER: Final = ROOT / ".bench-venv"
PYTHON: Final = _FOLDER / "bin" / "python"


def install() -> bool:
    """Create the environment, or complete it, from a package index; whether that worked."""
    if not PYTHON.exists():
        venv.create(_FOLDER, with_pip=True)
    command = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*command, *PACKAGES], check=False).returncode == 0:
        return True
    print("the peers could not be installed: what is measured lacks them", file=sys.stderr)
    return False


if __name__ == "__main__":
    sys.exit(0 if install() else 1)

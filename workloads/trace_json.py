"""Writes the ``trace.json.gz`` of an XPlane file: ``python -m workloads.trace_json IN OUT``.

TensorFlow's profiler wrote this file beside each XPlane file until TensorBoard's plugin did it.
jaxlib still has that code, in a private module.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from jax._src.lib import _profiler


def main(source: Path, target: Path) -> None:
    """Convert ``source`` to ``target``."""
    session = _profiler.ProfilerSession()
    session.stop()
    with tempfile.TemporaryDirectory() as folder:
        session.export(source.read_bytes(), folder)
        (made,) = Path(folder).glob("plugins/profile/*/*.trace.json.gz")
        shutil.copyfile(made, target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

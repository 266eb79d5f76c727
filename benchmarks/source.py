"""The source traces of the benchmarks, and the folder of their files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SCRATCH: Final = ROOT / ".cache" / "benchmarks"
"""Generated traces and results; git ignores it."""

SHARED_TRACES: Final = ROOT.parent / "shared" / "traces"
_PREFERRED: Final = SHARED_TRACES / "kineto" / "cnn_train_ns_resolution_v100.json.gz"
"""Training of a CNN on a V100, with nanosecond times and kernels."""


def default_source() -> Path:
    """Return a Kineto trace: of a GPU where one is available, else a fixture."""
    if _PREFERRED.exists():
        return _PREFERRED
    return ROOT / "fixtures" / "alexnet-cpu-ranges.json.gz"

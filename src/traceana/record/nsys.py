"""Nsight Systems: the command that records another, and the export that traceana reads."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from traceana.errors import MissingToolError
from traceana.record.inside.nvtx_window import CAPTURE
from traceana.record.subject import Launch

# OS runtime events and samples would make the export many times bigger.
QUIET: Final = ("--sample=none", "--cpuctxsw=none")
_NAME: Final = "trace"
_SIGNS: Final = ("NSYS_PROFILING_SESSION_ID", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")


def find_nsys() -> str:
    """Return the path of nsys; raises ``MissingToolError``."""
    found = shutil.which("nsys")
    if found is None:
        raise MissingToolError(
            "nsys is not on the PATH: install Nsight Systems, or record with --profiler auto"
        )
    return found


def runs_beside_us(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is profiled by nsys or another client of CUPTI already."""
    preloaded = "ToolsInjection" in environment.get("LD_PRELOAD", "")
    return preloaded or any(name in environment for name in _SIGNS)


def profiled(launch: Launch, scratch: Path, *, window: bool) -> Launch:
    """Return ``launch`` under nsys, which records all of it, or the ``window`` that it marks."""
    # Without a driver there is nothing of CUDA to record, and old versions say so at length.
    gpu = Path("/proc/driver/nvidia/version").exists() or Path("/dev/dxg").exists()
    words = [find_nsys(), "profile", f"--trace={'cuda,nvtx,cudnn,cublas' if gpu else 'nvtx'}"]
    words += [*QUIET, f"--output={scratch / _NAME}"]
    environment = dict(launch.environment)
    if window:
        words += ["--capture-range=nvtx", f"--nvtx-capture={CAPTURE}", "--capture-range-end=stop"]
        words += ["--kill=none"]
        # The range's text is not registered beforehand.
        environment["NSYS_NVTX_PROFILER_REGISTER_ONLY"] = "0"
    return Launch([*words, *launch.words], environment)


def exported(scratch: Path) -> tuple[Path, ...]:
    """Export the report in ``scratch``; returns nothing where nsys wrote none."""
    report, export = scratch / f"{_NAME}.nsys-rep", scratch / f"{_NAME}.sqlite"
    if not report.is_file():
        return ()
    words = [find_nsys(), "export", "--type=sqlite", f"--output={export}", str(report)]
    subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return (export,) if export.is_file() else ()

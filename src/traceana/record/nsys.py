"""Recording with Nsight Systems, and the SQLite export of its report."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from traceana.errors import MissingDependencyError
from traceana.files import scratch_folder
from traceana.record.inside.step_window import CAPTURE
from traceana.record.outcome import Launch

# OS runtime events and samples would make the export several times larger.
QUIET: Final = ("--sample=none", "--cpuctxsw=none")
_NAME: Final = "trace"
_STARTED: Final = "started"
TRIALS: Final = 3
"""Attempts to start nsys: where several start at once, some fail before the command runs (4 of 100
starts of nsys 2022.4.2, 8 at once)."""
_TEST_TIMEOUT: Final = 120
"""Seconds for a test recording; it usually takes less than 10."""
_LONGEST: Final = 200
_NSYS_VARIABLES: Final = (
    "NSYS_PROFILING_SESSION_ID",
    "CUDA_INJECTION64_PATH",
    "NVTX_INJECTION64_PATH",
)


def find_nsys() -> str:
    """Return the path of nsys; raises ``MissingDependencyError``."""
    path = shutil.which("nsys")
    if path is None:
        raise MissingDependencyError(
            "nsys is not on the PATH: install Nsight Systems, or record with --profiler auto"
        )
    return path


def check_nsys() -> None:
    """Raise an error if this nsys cannot record, as one without its importer.

    It is tested by recording ``true``. Raises ``MissingDependencyError`` if nsys
    writes or exports no report.
    """
    path = find_nsys()
    why = _why_unusable(path, Path(path).stat().st_mtime_ns)
    if why is not None:
        raise MissingDependencyError(
            f"{path} cannot record: 'nsys profile true' failed: {why}; install the complete "
            "Nsight Systems package, or record with --profiler auto"
        )


@lru_cache(maxsize=8)
def _why_unusable(path: str, _modified: int) -> str | None:
    """Return why the test recording failed, None if it succeeded.

    It is repeated if nsys wrote no file.
    """
    why = None
    for _ in range(TRIALS):
        with scratch_folder() as folder:
            why, wrote_file = _test_recording(path, folder)
        if wrote_file:
            break
    return why


def _test_recording(path: str, scratch: Path) -> tuple[str | None, bool]:
    """Return why a test recording failed, and whether nsys wrote any file."""
    words = [path, "profile", "--trace=none", *QUIET, f"--output={scratch / _NAME}", "true"]
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Without an importer, nsys may write its stream to the temporary folder.
            env={**os.environ, "TMPDIR": str(scratch)},
            timeout=_TEST_TIMEOUT,
            check=False,
        )
    except OSError as error:
        return f"it cannot be run ({error.strerror})", False
    except subprocess.TimeoutExpired:
        return f"it took more than {_TEST_TIMEOUT} s", True
    traces, why = exported(scratch)
    if traces:
        return None, True
    if (scratch / f"{_NAME}.nsys-rep").is_file():
        return f"'nsys export' wrote no SQLite file ({why})", True
    if any(scratch.glob("*.qdstrm")):
        return "it wrote a .qdstrm file and no .nsys-rep: its importer is missing", True
    return f"it wrote no report, exit status {done.returncode} ({_last_line(done.stdout)})", False


def _last_line(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").replace("\r", "\n").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no message")[:_LONGEST]


def is_profiled(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether nsys or another CUPTI client already profiles this process."""
    preloaded = "ToolsInjection" in environment.get("LD_PRELOAD", "")
    return preloaded or any(name in environment for name in _NSYS_VARIABLES)


def profiled(launch: Launch, scratch: Path, *, window: bool) -> Launch:
    """Return ``launch`` under nsys, which records the whole process or the marked ``window``."""
    # Without a driver, old versions print long warnings about CUDA tracing.
    gpu = Path("/proc/driver/nvidia/version").exists() or Path("/dev/dxg").exists()
    words = [find_nsys(), "profile", f"--trace={'cuda,nvtx,cudnn,cublas' if gpu else 'nvtx'}"]
    words += [*QUIET, f"--output={scratch / _NAME}"]
    environment = dict(launch.environment)
    if window:
        words += ["--capture-range=nvtx", f"--nvtx-capture={CAPTURE}", "--capture-range-end=stop"]
        words += ["--kill=none"]
        # The range's text is not a registered string.
        environment["NSYS_NVTX_PROFILER_REGISTER_ONLY"] = "0"
    started = scratch / _STARTED
    # nsys may fail before it starts the command, with exit status 0 too.
    mark = ["sh", "-c", ': > "$1" && shift && exec "$@"', "traceana", str(started)]
    return Launch([*words, *mark, *launch.words], environment, started)


def exported(scratch: Path) -> tuple[tuple[Path, ...], str | None]:
    """Return the exported report of ``scratch``, or no path and the reason, nsys' last line."""
    report, export = scratch / f"{_NAME}.nsys-rep", scratch / f"{_NAME}.sqlite"
    if not report.is_file():
        return (), "nsys wrote no report"
    words = [find_nsys(), "export", "--type=sqlite", f"--output={export}", str(report)]
    done = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if export.is_file():
        return (export,), None
    return (), f"nsys export failed, exit status {done.returncode}: {_last_line(done.stdout)}"

"""Run a command where a profiler finds nothing of the machine to write into its trace.

nsys writes the environment, the command line and the name of every process that it sees into its
export, both profilers the host's name, and file paths. So recordings that are to be published run
in namespaces of their own (``unshare`` of util-linux, as root): no other process, host name
``traceana``, Python under /srv/python, the workloads and the output under /srv/run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

HOST_NAME = "traceana"
_UNSHARE = ("unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc")
# $1 Python's prefix, $2 the workloads, $3 where output goes, $4 nsys' folder; the rest: command.
_SCRIPT = f"""
set -e
hostname {HOST_NAME}
mount -t tmpfs none /srv
mkdir /srv/python /srv/run /srv/nsys
mount --bind "$1" /srv/python
mount --bind "$3" /srv/run
mkdir -p /srv/run/workloads
mount --bind "$2" /srv/run/workloads
mount --bind "$4" /srv/nsys
mount -t tmpfs none /tmp
cd /srv/run
shift 4
# No exec: as process 1 of its namespace the command would share its number with a GPU in Kineto.
"$@"
exit $?
"""
# What CUDA may need to be found; absent on a machine without it.
_PASSED_ON = ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")


class RoomError(RuntimeError):
    """The namespaces cannot be made here, or a command in them failed."""


def check_room() -> None:
    """Raise :class:`RoomError` where this process may not make namespaces."""
    if shutil.which("unshare") is None:
        raise RoomError("there is no unshare command; install util-linux")
    tried = subprocess.run([*_UNSHARE, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        raise RoomError(
            "recordings to be published need namespaces of their own, which this user may not "
            f"make ({tried.stderr.strip()}); run as root, in a container with --privileged"
        )


def run_in_room(
    command: Sequence[str], output: Path, nsys: Path | None = None, timeout: float = 300
) -> str:
    """Run ``command`` with the current directory, /srv/run, being ``output``; returns its stdout.

    ``python`` and ``nsys`` as first words mean this Python and the executable ``nsys``. Raises
    :class:`RoomError` with the command's last line when it fails or takes over ``timeout`` s.
    """
    words = list(command)
    if nsys is not None and words[0] == "nsys":
        words[0] = str(nsys) if _is_installed(nsys) else f"/srv/nsys/{nsys.name}"
    script = [
        *_UNSHARE,
        *("sh", "-c", _SCRIPT, "sh", sys.prefix, str(Path(__file__).parent), str(output)),
        str(output if nsys is None or _is_installed(nsys) else nsys.parent),
        *words,
    ]
    try:
        done = subprocess.run(
            script,
            # The shell exports the directory that it starts in.
            cwd="/",
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RoomError(f"{' '.join(command)}: not done after {timeout:.0f} s") from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise RoomError(f"{' '.join(command)}: exit {done.returncode}: {last}")
    return done.stdout


def _is_installed(nsys: Path) -> bool:
    """Whether its path says nothing of this machine's owner (and so may stand in a trace)."""
    return nsys.parts[1] in ("usr", "opt")


def _environment() -> Mapping[str, str]:
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {
        "PATH": "/srv/python/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": "/srv/run",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        **passed,
    }

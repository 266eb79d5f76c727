"""Run a command where a profiler finds nothing of the machine to write into its trace.

nsys writes the environment, the command line and the name of every process that it sees into its
export, both profilers the host's name, and file paths. So recordings that are to be published run
in namespaces of their own (``unshare`` of util-linux): no other process, host name ``traceana``,
Python under /srv/python, the workloads and the output under /srv/run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import traceana

HOST_NAME = "traceana"
_UNSHARE = ("unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc")
# As root; as any other user or in a container, where the kernel lets users have namespaces.
_WAYS = (_UNSHARE, (*_UNSHARE, "--user", "--map-root-user"))
# $1 Python's prefix, $2 the workloads, $3 where output goes, $4 the profiler's folder, $5 traceana,
# in whose format the layers are written; the rest: the command.
_SCRIPT = f"""
set -e
hostname {HOST_NAME}
mount -t tmpfs none /srv
mkdir /srv/python /srv/run /srv/profiler
mount --bind "$1" /srv/python
mount --bind "$3" /srv/run
mkdir -p /srv/run/workloads /srv/run/traceana
mount --bind "$2" /srv/run/workloads
mount --bind "$5" /srv/run/traceana
mount --bind "$4" /srv/profiler
mount -t tmpfs none /tmp
# nsys keeps a file there by process number, and the numbers in here are the same every time: what a
# run that was killed left behind would stop the next.
mount -t tmpfs none /dev/shm
cd /srv/run
shift 5
# A shell of its own: process 1's command line forgets the folders above, and the command is not
# process 1, a number that Kineto gives to a GPU too.
exec sh -c '"$@"; exit $?' sh "$@"
"""
# What CUDA may need to be found; absent on a machine without it.
_PASSED_ON = ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")


class RoomError(RuntimeError):
    """A command failed or took too long."""


@dataclass(frozen=True)
class Program:
    """A profiler's executable, and the word of a command that means it."""

    word: str
    path: Path


@dataclass(frozen=True)
class Room:
    """Where commands run: in namespaces made by ``unshare``, or beside everything else if None."""

    unshare: tuple[str, ...] | None

    @property
    def closed(self) -> bool:
        """Whether a profiler sees nothing of the machine."""
        return self.unshare is not None

    def run(
        self,
        command: Sequence[str],
        output: Path,
        program: Program | None = None,
        timeout: float = 300,
    ) -> str:
        """Run ``command`` with ``output`` as its current directory and return what it printed.

        Its word ``python`` means this Python, and the word of ``program`` its executable. Raises
        :class:`RoomError` with the last line of its messages when it fails or takes ``timeout`` s.
        """
        if self.closed:
            words = self._inside(command, output, program)
        else:
            words = _meant(command, sys.executable, program)
        try:
            done = subprocess.run(
                words,
                # The shell within exports the directory that it starts in.
                cwd="/" if self.closed else output,
                env=_environment(self.closed),
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

    def _inside(self, command: Sequence[str], output: Path, program: Program | None) -> list[str]:
        tool_folder = output
        if program is not None and not _says_nothing(program.path):
            tool_folder = program.path.parent
            program = Program(program.word, Path("/srv/profiler", program.path.name))
        python = f"/srv/python/bin/{Path(sys.executable).name}"
        folders = (sys.prefix, str(_WORKLOADS), str(output), str(tool_folder), str(_TRACEANA))
        script = [*(self.unshare or ()), "sh", "-c", _SCRIPT, "sh", *folders]
        return script + _meant(command, python, program)


_WORKLOADS = Path(__file__).resolve().parent
_TRACEANA = Path(traceana.__file__).resolve().parent


def find_room() -> Room:
    """The most closed room that this process may make."""
    if shutil.which("unshare") is not None:
        for way in _WAYS:
            # Only a whole try tells: containers allow some of these calls and refuse others.
            tried = [*way, "sh", "-c", "hostname x && mount -t tmpfs none /srv"]
            if subprocess.run(tried, capture_output=True, check=False).returncode == 0:
                return Room(way)
    return Room(None)


def _meant(command: Sequence[str], python: str, program: Program | None) -> list[str]:
    meaning = {"python": python}
    if program is not None:
        meaning[program.word] = str(program.path)
    return [meaning.get(word, word) for word in command]


def _says_nothing(path: Path) -> bool:
    """Whether ``path`` is one that any machine could have, and so may stand in a trace."""
    return path.parts[1] in ("usr", "opt")


def _environment(closed: bool) -> Mapping[str, str]:
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    if closed:
        passed |= {"PATH": "/srv/python/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
        passed |= {"HOME": "/srv/run"}
    else:
        passed |= {"PATH": os.environ.get("PATH", os.defpath)}
        passed |= {"PYTHONPATH": os.pathsep.join(map(str, (_WORKLOADS.parent, _TRACEANA.parent)))}
    return {**passed, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}

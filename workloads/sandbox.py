"""Runs a command in namespaces, so that traces contain no information about the machine.

nsys writes the environment, the command line and the name of every visible process into its export;
both profilers write the host's name and file paths. Recordings for publication therefore run in
separate namespaces (``unshare`` of util-linux): no other process, host name ``traceana``, Python
under /srv/python, the workloads and the output under /srv/run.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HOST_NAME = "traceana"
_UNSHARE = ("unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc")
# As root; as another user or in a container, where the kernel allows user namespaces.
_UNSHARE_COMMANDS = (_UNSHARE, (*_UNSHARE, "--user", "--map-root-user"))
# $1 Python's prefix, $2 the workloads, $3 the output's folder, $4 the parent of the profiler's
# folder: nsys requires the folder's name, and finds its importer beside it; the rest: the command.
# Python finds the workloads in its working directory, because PYTHONPATH may not reach it.
_SCRIPT = f"""
set -e
hostname {HOST_NAME}
mount -t tmpfs none /srv
mkdir /srv/python /srv/run /srv/profiler
mount --bind "$1" /srv/python
mount --bind "$3" /srv/run
mkdir -p /srv/run/workloads
mount --bind "$2" /srv/run/workloads
mount --bind "$4" /srv/profiler
mount -t tmpfs none /tmp
# nsys keeps a file there by process number. The numbers are the same in every run: the file of
# a killed run would make the next one fail.
mount -t tmpfs none /dev/shm
cd /srv/run
shift 4
# A second shell: the command line of process 1 then does not contain the folders above, and the
# command is not process 1, a number that Kineto uses for a GPU too.
exec sh -c '"$@"; exit $?' sh "$@"
"""
# Environment variables that CUDA may need, in XLA too.
_PASSED_ON = ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "XLA_FLAGS")


class RecordingError(RuntimeError):
    """A command failed, took too long, or wrote no recording."""


@dataclass(frozen=True)
class Program:
    """A profiler's executable, and the word of a command that it replaces."""

    word: str
    path: Path


@dataclass(frozen=True)
class Sandbox:
    """Runs commands in namespaces made by ``unshare``; None: without namespaces."""

    unshare: tuple[str, ...] | None

    @property
    def isolated(self) -> bool:
        """Whether the machine is hidden from profilers."""
        return self.unshare is not None

    def run(
        self,
        command: Sequence[str],
        output: Path,
        program: Program | None = None,
        timeout: float = 300,
    ) -> str:
        """Run ``command`` in the directory ``output``; return its standard output.

        The word ``python`` is replaced by this Python, that of ``program`` by its executable.
        Raises :class:`RecordingError` with the last line of its messages when it fails or takes
        ``timeout`` s. None of its processes is left then, nor after another exception: they would
        slow down the next recording.
        """
        if self.isolated:
            words = self._inside(command, output, program)
        else:
            words = _resolved(command, sys.executable, program)
            if not (output / "workloads").exists():
                (output / "workloads").symlink_to(_WORKLOADS)
        with subprocess.Popen(
            words,
            # The shell within exports the directory that it starts in.
            cwd="/" if self.isolated else output,
            env=_environment(self.isolated),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                printed, messages = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired as error:
                raise RecordingError(
                    f"{' '.join(command)}: time limit of {timeout:.0f} s exceeded"
                ) from error
            finally:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
        if process.returncode:
            last = (messages.strip() or printed.strip() or "no message").splitlines()[-1]
            raise RecordingError(f"{' '.join(command)}: exit {process.returncode}: {last}")
        return printed

    def _inside(self, command: Sequence[str], output: Path, program: Program | None) -> list[str]:
        tool_folder = output
        if program is not None and not _is_standard(program.path):
            path = program.path.resolve()
            tool_folder = path.parent.parent
            program = Program(program.word, Path("/srv/profiler", path.parent.name, path.name))
        python = f"/srv/python/bin/{Path(sys.executable).name}"
        folders = (sys.prefix, str(_WORKLOADS), str(output), str(tool_folder))
        script = [*(self.unshare or ()), "sh", "-c", _SCRIPT, "sh", *folders]
        return script + _resolved(command, python, program)


_WORKLOADS = Path(__file__).resolve().parent


def find_sandbox() -> Sandbox:
    """Return a sandbox with namespaces where this process may create them, else one without."""
    if shutil.which("unshare") is not None:
        for unshare in _UNSHARE_COMMANDS:
            # Containers allow some of these calls and refuse others: all of them are tried.
            tried = [*unshare, "sh", "-c", "hostname x && mount -t tmpfs none /srv"]
            if subprocess.run(tried, capture_output=True, check=False).returncode == 0:
                return Sandbox(unshare)
    return Sandbox(None)


def _resolved(command: Sequence[str], python: str, program: Program | None) -> list[str]:
    meaning = {"python": python}
    if program is not None:
        meaning[program.word] = str(program.path)
    return [meaning.get(word, word) for word in command]


def _is_standard(path: Path) -> bool:
    """Return whether ``path`` is a standard one, which may be in a published trace."""
    return path.parts[1] in ("usr", "opt")


def _environment(isolated: bool) -> Mapping[str, str]:
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    if isolated:
        passed |= {"PATH": "/srv/python/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
        passed |= {"HOME": "/srv/run"}
    else:
        passed |= {"PATH": os.environ.get("PATH", os.defpath)}
    return {**passed, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}

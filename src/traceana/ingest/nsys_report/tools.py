"""The user's own Nsight Systems: which of its programs is where, and how one is run."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from traceana.errors import MissingToolError, ToolFailedError
from traceana.ingest.progress import Progress

_PERCENT: Final = re.compile(rb"\[[=\s]*(\d{1,3})%")
_LINE_END: Final = re.compile(rb"[\r\n]+")
_LONGEST_LINE: Final = 300


def nsys(command: list[str]) -> str:
    """Return the path of ``nsys``.

    Raises ``MissingToolError`` that tells to run ``command`` on a machine that has it.
    """
    found = shutil.which("nsys")
    if found is None:
        raise MissingToolError(
            "reports of Nsight Systems are read by its own nsys, which is not on the PATH: install "
            f"it, or run '{shlex.join(command)}' where it is, and give that file"
        )
    return found


def importer(command: list[str]) -> str:
    """Return the path of ``QdstrmImporter``, which lies beside ``nsys`` as a rule.

    Raises ``MissingToolError`` that tells to run ``command`` on a machine that has it.
    """
    name = "QdstrmImporter"
    places = [shutil.which(name)]
    if tool := shutil.which("nsys"):
        # nsys is in bin or target-…, its importer in host-…, of the same installation.
        home = Path(tool).resolve().parents[1]
        places += [str(place) for place in sorted(home.glob(f"host-*/{name}"))]
    found = next((place for place in places if place), None)
    if found is None:
        raise MissingToolError(
            f"a .qdstrm becomes a report by Nsight Systems' {name}, which is neither on the PATH "
            f"nor beside nsys: run '{shlex.join(command)}' where it is, and give that file"
        )
    return found


def run(command: list[str], source: Path, progress: Progress) -> None:
    """Run ``command``, one of the above on the file ``source``, and wait until it is done.

    ``progress`` gets the share that the program shows, as bytes of ``source``. Raises
    ``ToolFailedError`` with the program's last line where it fails.
    """
    total = source.stat().st_size
    progress(0, total)
    last = b""
    try:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            assert process.stdout is not None
            try:
                for line in _lines(process.stdout):
                    if shown := _PERCENT.search(line):
                        progress(total * min(int(shown[1]), 100) // 100, total)
                    else:
                        last = line
            except BaseException:
                process.kill()
                raise
    except OSError as error:
        raise ToolFailedError(f"{command[0]} cannot be run: {error.strerror}") from error
    if process.returncode:
        said = last.decode("utf-8", "replace").strip()[:_LONGEST_LINE]
        raise ToolFailedError(
            f"{Path(command[0]).name} cannot read {source} ({said or process.returncode}): "
            "export it with the nsys that recorded it, or copy it again"
        )


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a program that draws a bar, which ends them with carriage returns."""
    rest = b""
    while block := stream.read1(1 << 16):  # type: ignore[attr-defined]
        *lines, rest = _LINE_END.split(rest + block)
        yield from (line for line in lines if line.strip())
    if rest.strip():
        yield rest

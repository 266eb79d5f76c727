"""``python -m tools.build_scanner``: compile the scanner of events in place.

One library serves every Python from 3.11: it uses the stable ABI alone. Building the
package does the same (``tools/scanner_hook.py``). Without a C compiler or Python's headers there is
no library, and the decoder in Python reads the events.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "src" / "traceana" / "readers" / "compiled"
_SOURCES: Final = ("module.c", "json_events.c", "xplane_events.c")
LIBRARY: Final = "_scanner.abi3.so"
_FLAGS: Final = ("-std=c11", "-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden")
_OPTIMIZED: Final = ("-O2",)
SANITIZED: Final = (
    *("-O1", "-g", "-fno-omit-frame-pointer"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
)
"""Options with which the library ends the process on an error of memory or undefined behaviour."""


def build(folder: Path = FOLDER, options: Sequence[str] = _OPTIMIZED) -> Path | None:
    """Compile the scanner into ``folder``; return the library, or None with a line on stderr."""
    command = compiler()
    if command is None:
        _warn("no C compiler")
        return None
    include = Path(sysconfig.get_paths()["include"])
    if not (include / "Python.h").exists():
        _warn(f"no Python.h in {include}")
        return None
    library = folder / LIBRARY
    # Under another name until it is whole: a running process may have the old one mapped.
    unfinished = library.with_suffix(".part")
    link = ("-bundle", "-undefined", "dynamic_lookup") if sys.platform == "darwin" else ("-shared",)
    files = (f"-I{include}", *(str(FOLDER / one) for one in _SOURCES), "-o", str(unfinished))
    done = subprocess.run(
        [*command, *_FLAGS, *options, *link, *files], capture_output=True, text=True, check=False
    )
    if done.returncode:
        _warn(done.stderr.strip() or f"{command[0]} failed")
        return None
    return unfinished.replace(library)


def platform_tag() -> str:
    """Return the tag of a wheel that holds the library."""
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return f"cp311-abi3-{platform}"


def compiler() -> list[str] | None:
    """Return the command of a C compiler: ``$CC``, Python's own, or the system's."""
    if os.name != "posix":
        return None
    chosen = os.environ.get("CC")
    for words in (chosen,) if chosen else (sysconfig.get_config_var("CC"), "cc", "gcc", "clang"):
        command = shlex.split(words or "")
        if command and shutil.which(command[0]):
            return command
    return None


def _warn(reason: str) -> None:
    print(f"the scanner is not compiled, events are decoded in Python: {reason}", file=sys.stderr)


def main() -> int:
    """Compile in place; 1 where that is not possible."""
    parser = argparse.ArgumentParser(prog="python -m tools.build_scanner", description=__doc__)
    parser.parse_args()
    library = build()
    if library is not None:
        print(library.relative_to(ROOT))
    return 0 if library is not None else 1


if __name__ == "__main__":
    sys.exit(main())

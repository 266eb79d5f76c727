"""Mangled C++ names (Itanium ABI, ``_Z…``) to readable ones.

LLVM's demangler does the work, in a process of its own with little memory and time: a name of 300
letters can stand for one of terabytes, and one of deep nesting overflows the stack. A name that it
dies of, or cannot read, stays as it is.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

LONGEST: Final = 16 << 10
"""Letters of a mangled name; a longer one stays as it is."""

_MANGLED: Final = re.compile(r"_Z[0-9A-Za-z_.$]+")
_WORKER: Final = Path(__file__).with_name("demangle_worker.py")
_SECONDS: Final = 10.0
"""For all names together; tens of thousands take one."""


def readable(names: Iterable[str]) -> dict[str, str]:
    """Return the readable form of those ``names`` that are mangled and can be read."""
    mangled = [n for n in names if len(n) <= LONGEST and _MANGLED.fullmatch(n)]
    found: dict[str, str] = {}
    deadline = time.monotonic() + _SECONDS
    while mangled and time.monotonic() < deadline:
        lines = _work(mangled, deadline - time.monotonic())
        answered = zip(mangled, lines, strict=False)
        found |= {name: line for name, line in answered if line != name}
        # The first without an answer is the one that the worker died of.
        mangled = mangled[len(lines) + 1 :]
    return found


def _work(names: list[str], seconds: float) -> list[str]:
    """Return an answer a line for the first of ``names``, in order; for all if nothing is wrong."""
    library = find_spec("pycxxfilt")
    if library is None or library.origin is None:
        return names
    command = [sys.executable, "-I", "-S", "-X", "utf8", str(_WORKER)]
    try:
        done = subprocess.run(
            [*command, str(Path(library.origin).parents[1])],
            input="\n".join(names).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            check=False,
        )
        output = done.stdout
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
    except OSError:
        return names
    return output.decode("utf-8", "replace").replace("\r\n", "\n").split("\n")[:-1]

"""Demangles the lines of the standard input; run by :mod:`traceana.ingest.names` only.

Its argument is the folder that the package ``pycxxfilt`` lies in.
"""

from __future__ import annotations

import sys
from typing import Final

_MEMORY_BYTES: Final = 256 << 20
_CPU_SECONDS: Final = 5
_LONGEST: Final = 64 << 10
"""Letters of a readable name; for a longer one the mangled name is better."""


def _limit() -> None:
    try:
        import resource
    except ImportError:  # Windows; the caller's time limit remains
        return
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: _CPU_SECONDS,
        resource.RLIMIT_AS: _MEMORY_BYTES,
    }
    for which, value in limits.items():
        resource.setrlimit(which, (value, value))


def main() -> None:
    """Answer each line with one: the readable name, or the line where there is none."""
    sys.path.append(sys.argv[1])
    from pycxxfilt import itanium_demangle

    _limit()
    for line in sys.stdin:
        name = line.rstrip("\n")
        try:
            text = itanium_demangle(name)
        except ValueError:
            text = None
        usable = text is not None and len(text) <= _LONGEST and "\n" not in text
        # Written at once: what is answered remains if the next name is the last.
        print(text if usable else name, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()

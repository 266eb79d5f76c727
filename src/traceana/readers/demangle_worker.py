"""Demangles standard input line by line: the helper process of
:mod:`traceana.readers.kernel_names`.

The argument is the folder of the package ``pycxxfilt``.
"""

from __future__ import annotations

import sys
from typing import Final

_MEMORY_BYTES: Final = 256 << 20
_CPU_SECONDS: Final = 5
_LONGEST: Final = 64 << 10
"""Letters of the longest readable name; beyond it the mangled name is shown."""


def main() -> None:
    """Write ``ready``, then a line for each line read: the readable name, else the line itself."""
    sys.path.append(sys.argv[1])
    from pycxxfilt import itanium_demangle

    print("ready", flush=True)  # noqa: T201
    try:
        import resource
    except ImportError:  # Windows; the caller's time limit remains
        pass
    else:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    for line in sys.stdin:
        name = line.rstrip("\n")
        try:
            text = itanium_demangle(name)
        except ValueError:
            text = None
        usable = text is not None and len(text) <= _LONGEST and "\n" not in text
        # Flushed: the answers so far remain if the next name ends the process.
        print(text if usable else name, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()

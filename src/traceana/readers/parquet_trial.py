"""Reads columns of Parquet files before :mod:`traceana.readers.parquet` does.

The helper process, which a damaged page may end: the decoder allocates what a length in the page
asks for, and aborts where that fails. A line of standard input is a file and its columns; a line of
standard output says that the trial ended.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    """Try each file; errors are those of the reader, which reads it again."""
    os.environ.setdefault("POLARS_MAX_THREADS", "2")
    import polars as pl

    try:
        import resource
    except ImportError:  # Windows: the decoder's own limit remains
        pass
    else:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        # A limit of the shell's stays.
        if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
            resource.setrlimit(resource.RLIMIT_AS, (physical, physical))
    for line in sys.stdin:
        file, columns = json.loads(line)
        try:
            # polars takes no path that is not UTF-8, and expands "*".
            with open(file, "rb") as opened:  # noqa: PTH123
                pl.read_parquet(opened, columns=columns)
        except Exception:  # noqa: BLE001
            pass
        except pl.exceptions.PanicException:
            pass
        print("tried", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()

"""Writes the names of CUDA's calls by CUPTI's callback number, from CUPTI's own headers.

nvprof stores a call's number (``cbid``) only. The numbers are enumerated in
``cupti_runtime_cbid.h`` and ``cupti_driver_cbid.h`` of the CUDA toolkit and of the package
``nvidia-cuda-cupti-cu12``; they are the same in all versions. Usage::

    python tools/cupti_call_names.py FOLDER_OF_THE_HEADERS > src/traceana/readers/nvprof/calls.tsv
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

_ENTRY = re.compile(r"CUPTI_(?:RUNTIME|DRIVER)_TRACE_CBID_(cu\w+)\s*=\s*(\d+)")


def rows(folder: Path) -> Iterator[tuple[str, int, str]]:
    """Yield API (``runtime`` or ``driver``), number and name, in the order of the headers."""
    for api in ("runtime", "driver"):
        header = (folder / f"cupti_{api}_cbid.h").read_text()
        for name, number in _ENTRY.findall(header):
            yield api, int(number), name


def main() -> None:
    """Print the table."""
    print("api\tcbid\tname")
    for row in rows(Path(sys.argv[1])):
        print(*row, sep="\t")


if __name__ == "__main__":
    main()

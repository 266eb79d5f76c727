"""Whether text holds a table of Nsight Compute, which comes behind what the program printed."""

from __future__ import annotations

import re
from typing import Final

HEADER: Final = re.compile(rb'^"ID",(?="[^\r\n]*"Kernel Name",)', re.MULTILINE)


def is_counters(head: bytes) -> bool:
    """Tell whether ``head``, the begin of a file, has the header of such a table."""
    return HEADER.search(head) is not None

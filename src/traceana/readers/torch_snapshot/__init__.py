"""PyTorch's memory snapshots: ``torch.cuda.memory._dump_snapshot()``, pickled."""

from __future__ import annotations

import re
from typing import Final

from traceana.readers.format import Confidence, Format, Head, known

_PICKLE: Final = re.compile(rb"\x80[\x02-\x05]")
"""The begin of a pickle of protocol 2 and later."""
_KEYS: Final = re.compile(rb"segments|device_traces|total_size")


def _is_snapshot(head: Head) -> Confidence:
    return known(_PICKLE.match(head.content) and _KEYS.search(head.content))


FORMATS: Final = (
    Format(
        "PyTorch memory snapshot",
        _is_snapshot,
        "torch_snapshot.reader:read",
        # They are beside a trace, and of one process several.
        in_folders=False,
    ),
    Format(
        "a pickle, but not a memory snapshot of PyTorch",
        lambda head: known(_PICKLE.match(head.content)),
        instead="pass the file that torch.cuda.memory._dump_snapshot() wrote (traceana runs no "
        "pickle)",
    ),
)

"""torch.profiler's traces."""

from __future__ import annotations

import re
from typing import Final

from traceana.readers.format import Confidence, Format, known

_NUMBERS: Final = re.compile(rb"\s*\[\s*\[\s*-?\d")
"""The beginning of lists of numbers, which ``export_memory_timeline`` writes."""

# All JSON that no other format knows: this reader has the clearer errors.
FORMATS: Final = (
    Format(
        "a memory timeline of torch.profiler (bytes by category over time, no kernels)",
        lambda head: known(_NUMBERS.match(head.content)),
        instead="export the trace of the same profile with export_chrome_trace",
    ),
    Format("kineto", lambda head: known(head.is_json, Confidence.JSON), "kineto.reader:read"),
)

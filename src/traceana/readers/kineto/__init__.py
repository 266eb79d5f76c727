"""torch.profiler's traces."""

from __future__ import annotations

from typing import Final

from traceana.readers.format import Confidence, Format, known

# All JSON that no other format knows: this reader has the clearer errors.
FORMATS: Final = (
    Format("kineto", lambda head: known(head.is_json, Confidence.JSON), "kineto.reader:read"),
)

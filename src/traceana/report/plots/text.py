"""Text made safe to draw: names from traces and folders may hold anything."""

from __future__ import annotations

import re
from typing import Final

from traceana.report.text import cut_start, plain

_NOT_XML: Final = re.compile("[\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
LONGEST: Final = 44
LONGEST_NAME: Final = 64
"""Of a series in the key."""


def drawn(text: str, width: int = LONGEST) -> str:
    """Return ``text`` as one line of at most ``width`` cells that any picture can hold.

    Characters that steer terminals and those that XML forbids are written out. Matplotlib takes a
    label that begins with an underscore for one to hide: a blank before it makes it a name.
    """
    shown = _NOT_XML.sub(lambda match: f"\\u{ord(match.group()):04x}", plain(text))
    shown = cut_start(shown, width)
    return f" {shown}" if shown.startswith("_") else shown

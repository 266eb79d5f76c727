"""Whether a file is an XSpace, told from its first bytes."""

from __future__ import annotations

from traceana.ingest.xplane.buffer import Buffer
from traceana.ingest.xplane.wire import LENGTH, VARINT, WireError, fields, text

_PLANES = b"\x0a"


def is_xspace(head: bytes) -> bool:
    """Tell an XSpace: its first plane begins with a number, or none, and then its name.

    Other messages whose first field is a message too (GraphDef, pprof's profiles) have another
    type there, and JSON that begins with an empty line has a letter.
    """
    if not head.startswith(_PLANES):
        return False
    buffer = Buffer.of([head])
    try:
        plane = next(fields(buffer, 0, buffer.size))
        for part in fields(buffer, plane.start, plane.end):
            if part.number == 1 and part.wire == VARINT:
                continue
            name = text(buffer, part)
            return (
                part.number == 2
                and part.wire == LENGTH
                and not part.cut
                and name.isprintable()
                and "\ufffd" not in name
            )
    except WireError:
        pass
    return False

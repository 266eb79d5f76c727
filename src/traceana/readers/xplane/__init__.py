"""Reader for XPlane protobuf files (``*.xplane.pb``) of TensorFlow's and JAX's profilers."""

from __future__ import annotations

from typing import Final

from traceana.readers.format import Confidence, Format, Head


def _sniff(head: Head) -> Confidence:
    """Return whether ``head`` begins an XSpace: a plane that begins with its id, if any, and name.

    In other messages (GraphDef, pprof's profiles) the field after this tag is not a plane with a
    name. JSON that begins with an empty line has a letter after the first byte.
    """
    if not head.content.startswith(b"\x0a"):
        return Confidence.NONE
    from traceana.readers.xplane.wire import LENGTH, VARINT, Buffer, WireError, fields, text

    buffer = Buffer.of([head.content])
    try:
        plane = next(fields(buffer, 0, buffer.size))
        for part in fields(buffer, plane.start, plane.end):
            if part.number == 1 and part.wire == VARINT:
                continue
            name = text(buffer, part)
            if (
                part.number == 2
                and part.wire == LENGTH
                and not part.cut
                and name.isprintable()
                and "\ufffd" not in name
            ):
                return Confidence.CERTAIN
            break
    except WireError:
        pass
    return Confidence.NONE


FORMATS: Final = (Format("xplane", _sniff, "xplane.reader:read"),)

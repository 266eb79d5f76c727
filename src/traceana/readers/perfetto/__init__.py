"""Perfetto's protobuf traces (``.pftrace``), of PyTorch, of rocprofv3 and of GPU drivers."""

from __future__ import annotations

from itertools import islice
from typing import Final

from traceana.readers.format import Confidence, Format, Head

_FIRST_PACKETS: Final = 200
_CONTENT: Final = {1, 6, 11, 12, 33, 36, 43, 44, 45, 52, 53, 59, 60, 89, 128}
"""Fields of a Perfetto packet that hold a message or bytes, the first ones of any trace."""
_COMPRESSED: Final = {50, 133}
_TIME, _SEQUENCE, _SERVICE_UID = 8, 10, 3


def _is_perfetto(head: Head) -> Confidence:
    """Return whether one of the first packets has content, and a sequence or a time."""
    if not head.content.startswith(b"\x0a"):
        return Confidence.NONE
    from traceana.readers.xplane.wire import LENGTH, VARINT, Buffer, WireError, fields

    buffer = Buffer.of([head.content])
    try:
        for packet in islice(fields(buffer, 0, buffer.size), _FIRST_PACKETS):
            if packet.number != 1 or packet.wire != LENGTH:
                break
            inside = list(fields(buffer, packet.start, packet.end))
            numbers = {field.number for field in inside if field.wire == VARINT}
            messages = {field.number for field in inside if field.wire == LENGTH}
            if messages & _COMPRESSED and not messages - _COMPRESSED:
                return Confidence.CERTAIN
            if numbers & {_TIME, _SEQUENCE, _SERVICE_UID} and messages & _CONTENT:
                return Confidence.CERTAIN
    except WireError:
        pass
    return Confidence.NONE


FORMATS: Final = (Format("pftrace", _is_perfetto, "perfetto.reader:read"),)

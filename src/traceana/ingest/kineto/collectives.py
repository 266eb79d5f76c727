"""Collectives as Kineto tells of them: those of the host, and the sizes of those of the device."""

from __future__ import annotations

from typing import Final

from traceana.ingest.kineto.events import Args, Event

_BACKENDS: Final = ("gloo:", "mpi:", "ucc:")
"""c10d's backends whose collectives threads of the host carry out. Those of NCCL are kernels, and
what is called ``nccl:all_reduce`` on the host is their launch."""

# c10::ScalarType's names.
_ELEMENT_BYTES: Final = {
    "Bool": 1,
    "Byte": 1,
    "Char": 1,
    "Float8_e4m3fn": 1,
    "Float8_e4m3fnuz": 1,
    "Float8_e5m2": 1,
    "Float8_e5m2fnuz": 1,
    "Short": 2,
    "Half": 2,
    "BFloat16": 2,
    "Int": 4,
    "Float": 4,
    "Long": 8,
    "Double": 8,
    "ComplexFloat": 8,
    "ComplexDouble": 16,
}


def split_annotations(events: list[Event]) -> tuple[list[Event], list[Event]]:
    """Return (annotations, collectives of the host); both keep their order.

    c10d records such a collective, with its tensors' shapes, while a thread of the backend carries
    it out and waits for the other ranks; Kineto prints it as a ``user_annotation``.
    """
    kept: list[Event] = []
    collectives: list[Event] = []
    for event in events:
        is_one = event.cat == "user_annotation" and event.name.startswith(_BACKENDS)
        (collectives if is_one else kept).append(event)
    return kept, collectives


def message_bytes(args: Args) -> int | None:
    """Return what the rank gives to the collective whose kernel this is; None where not told."""
    elements, kind = args.message_elements, args.message_type
    if not isinstance(elements, int) or not isinstance(kind, str) or kind not in _ELEMENT_BYTES:
        return None
    return elements * _ELEMENT_BYTES[kind]

"""Small programs of XLA written by the tests, as the profiler keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.readers.xplane.writing import PlaneWriter, message, number

F32, U8, TUPLE = 11, 6, 13


def array(*sizes: int, kind: int = F32) -> bytes:
    """Encode the shape of an array."""
    packed = b"".join(number(0, size)[1:] for size in sizes)
    return number(2, kind) + (message(3, packed) if sizes else b"")


def tuple_of(*shapes: bytes) -> bytes:
    """Encode the shape of a tuple."""
    return number(2, TUPLE) + b"".join(message(4, shape) for shape in shapes)


@dataclass
class Made:
    """An instruction; ``more`` are encoded fields."""

    key: int
    name: str
    opcode: str
    shape: bytes = b""
    scope: str = ""
    operands: Sequence[int] = ()
    called: Sequence[int] = ()
    more: bytes = b""

    def encode(self) -> bytes:
        """Encode it as a field of its computation."""
        content = message(1, self.name) + message(2, self.opcode) + message(3, self.shape)
        content += message(7, message(2, self.scope)) if self.scope else b""
        content += number(35, self.key)
        content += message(36, b"".join(number(0, each)[1:] for each in self.operands))
        content += b"".join(number(38, each) for each in self.called)
        return message(2, content + self.more)


def computation(key: int, root: int, *instructions: Made) -> bytes:
    """Encode a computation as a field of its module."""
    return message(
        3, b"".join(each.encode() for each in instructions) + number(5, key) + number(6, root)
    )


def module(entry: int, *computations: bytes) -> bytes:
    """Encode an HloProto."""
    return message(1, message(1, "m") + b"".join(computations) + number(6, entry))


def metadata_plane(**programs: bytes) -> bytes:
    """Encode the plane of the programs; ``jit_f_4`` is program 4 of name jit_f."""
    content = message(2, "/host:metadata")
    content += message(5, number(1, 1) + message(2, number(1, 1) + message(2, "Hlo Proto")))
    for key, (label, proto) in enumerate(programs.items(), 1):
        name, _, program = label.rpartition("_")
        value = number(1, key) + message(2, f"{name}({program})")
        value += message(5, number(1, 1) + message(6, proto))
        content += message(4, number(1, key) + message(2, value))
    return message(1, content)


def ran(*instructions: tuple[str, int, str]) -> PlaneWriter:
    """A GPU with one kernel a microsecond for each (module, program, instruction)."""
    plane = PlaneWriter("/device:GPU:0")
    plane.line(
        "Stream #1",
        [
            plane.event(f"k{i}", i * 1_000_000, 500, hlo_module=m, program_id=p, hlo_op=name)
            for i, (m, p, name) in enumerate(instructions)
        ],
    )
    return plane


def write_programs(path: Path, plane: PlaneWriter, **programs: bytes) -> Path:
    """Write a file of one plane of events and its programs."""
    path.write_bytes(metadata_plane(**programs) + plane.encode())
    return path

"""What an algorithm study consists of; ``docs/studies.md`` describes its file."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

Direction = Literal["fprop", "dgrad", "wgrad"]
Pair = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A two-dimensional convolution of one image: extents are (height, width).

    ``padding`` is one pair (before, after) per dimension.
    """

    path: str
    in_channels: int
    out_channels: int
    input: Pair
    output: Pair
    kernel: Pair
    stride: Pair
    padding: tuple[Pair, Pair]
    dilation: Pair
    groups: int = 1


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One algorithm of one layer in one direction at one batch size.

    ``algorithm`` is the class, ``name`` the library's own name, ``implementation`` the
    implementation that the library reports. ``times_ns`` are the timed runs in order; they are
    given if and only if ``status`` is ``ok``. Otherwise ``reason`` is given. ``search_ns`` is the
    time of the library's own search for the algorithm. ``reorder_ns`` are the times of the reorders
    of operands and result between plain layouts and those of the implementation, 0 for plain
    layouts; ``reorder_bytes`` is the size of the copies. ``error`` is the root mean square
    difference from a direct convolution in double precision, in units of the square root of the sum
    of the squared products.
    """

    layer: str
    direction: Direction
    batch: int
    algorithm: str
    name: str
    status: Literal["ok", "unsupported", "out_of_memory", "failed", "wrong", "left_out"]
    implementation: str | None = None
    reason: str | None = None
    times_ns: tuple[int, ...] = ()
    search_ns: int | None = None
    workspace_bytes: int | None = None
    reorder_ns: tuple[int, ...] = ()
    reorder_bytes: int | None = None
    math_type: str | None = None
    deterministic: bool | None = None
    error: float | None = None

    def row(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value not in (None, ())}


@dataclass(frozen=True, kw_only=True)
class Device:
    """The device of the measurement; ``threads`` is for a CPU, ``memory_bytes`` for a GPU."""

    kind: Literal["cpu", "gpu"]
    name: str
    memory_bytes: int | None = None
    threads: int | None = None

"""The calls of layers that one forward pass made, as every framework's adapter collects them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from traceana.describe.manifest import Layout


@dataclass(slots=True)
class Recorded:
    """One layer: the shapes of every call, in the framework's own order of axes.

    ``key`` tells layers apart; ``layer`` is the framework's own object. ``axes`` is the order of
    the axes in these shapes, ``layout`` that in memory: PyTorch's shapes have the channels first
    whatever the memory has.
    """

    key: object
    path: str
    layer: Any
    inputs: list[tuple[int, ...]]
    outputs: list[tuple[int, ...]]
    axes: Layout
    layout: Layout
    later: list[tuple[list[tuple[int, ...]], list[tuple[int, ...]]]] = field(default_factory=list)
    """Inputs and outputs of the calls after the first."""
    times: int = 1
    """How often all of these are called: the turns of a scan."""
    flops: int | None = None
    """Of all calls, as the operators that ran count them; None where one has no formula."""
    product: tuple[int, int] | None = None
    """Features made and taken by a layer that multiplies by its one matrix and does no more."""
    order: list[int] = field(default_factory=list)
    """Places in the sequence of all calls, where the framework tells it."""

    @property
    def calls(self) -> list[tuple[list[tuple[int, ...]], list[tuple[int, ...]]]]:
        """Inputs and outputs of every call."""
        return [(self.inputs, self.outputs), *self.later]


class Recording:
    """Layers in order of their first call."""

    def __init__(self) -> None:
        """Start without any."""
        self._layers: dict[object, Recorded] = {}

    @property
    def layers(self) -> list[Recorded]:
        """The layers, each once."""
        return list(self._layers.values())

    def add(self, recorded: Recorded) -> None:
        """Take in one call."""
        known = self._layers.setdefault(recorded.key, recorded)
        if known is not recorded:
            known.later.append((recorded.inputs, recorded.outputs))

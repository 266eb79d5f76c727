"""TensorFlow's operators that move and compute nothing."""

from __future__ import annotations

from traceana.flops.call import Call
from traceana.flops.model import Cost, Operand, compulsory
from traceana.flops.neutral.memory import COPY
from traceana.flops.registry import operator


@operator("Cast")
def cast(call: Call) -> tuple[Cost, ...]:
    """A tensor; the type of the result is an attribute, so bytes are not known."""
    written = Operand(call.elements(0), None)
    return (Cost("copy", "forward", 0, compulsory(call.operand(0), written), COPY),)


@operator("Transpose", "_MklTranspose")
def transpose(call: Call) -> tuple[Cost, ...]:
    """A tensor and the order of its dimensions."""
    image = Operand.of(call.shape(0), call.size(0))
    return (Cost("copy", "forward", 0, compulsory(image, image), COPY),)

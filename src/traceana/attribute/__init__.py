"""What every activity belongs to: its launching call, operator, range, layer, step, direction."""

from traceana.attribute.attribution import attribute

__all__ = ["attribute"]

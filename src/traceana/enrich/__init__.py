"""What every activity belongs to: its launching call, operator, range, layer, step, direction."""

from traceana.enrich.attribution import attribute

__all__ = ["attribute"]

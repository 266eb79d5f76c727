"""Communication between the ranks of a distributed run: its time, what it hides behind, its bytes.

Scaling over devices is judged by it: how much of a step is communication that computing does not
hide, and how many bytes a step reduces beside those of the parameters.
"""

from traceana.analyze.communication.table import communication

__all__ = ["communication"]

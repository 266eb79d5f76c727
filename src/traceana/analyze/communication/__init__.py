"""Communication between the ranks of a distributed run: its time, what it hides behind, its bytes.

Scaling over devices is judged by it: how much of a step is communication that computing does not
hide, how many bytes a step reduces beside those of the parameters, and at which bandwidth.
"""

from traceana.analyze.communication.bandwidth import by_message
from traceana.analyze.communication.table import communication

__all__ = ["by_message", "communication"]

"""What a convolution's algorithm executes, which is not what a direct convolution would.

Figure 9 (c) of Kim et al. (ISPASS 2017): floating-point operations by layer and algorithm.
"""

from __future__ import annotations

from traceana.flops.executed.algorithms import executed, supported
from traceana.flops.executed.model import Direction, Executed, Operations

__all__ = ["Direction", "Executed", "Operations", "executed", "supported"]
